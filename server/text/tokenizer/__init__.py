"""Text to token ids and back: one tokenizer, whichever file format described it. Torch-free."""

from server.text.tokenizer.loading import load_tokenizer
from server.text.tokenizer.tokenizer import Tokenizer, UnencodableTextError
from server.text.tokenizer.vocabulary import TokenTable, Vocabulary

__all__ = ["TokenTable", "Tokenizer", "UnencodableTextError", "Vocabulary", "load_tokenizer"]
