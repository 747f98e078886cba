"""Text to token ids and back: one tokenizer, whichever file format described it. Torch-free."""

from server.tokenizer.loading import load_tokenizer
from server.tokenizer.tokenizer import Tokenizer, UnencodableTextError
from server.tokenizer.vocabulary import TokenTable, Vocabulary

__all__ = ["TokenTable", "Tokenizer", "UnencodableTextError", "Vocabulary", "load_tokenizer"]
