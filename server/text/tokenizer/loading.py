"""Finding and loading a model's tokenizer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.weights.gguf_file import GgufFile
from server.text.tokenizer.gguf import tokenizer_from_metadata
from server.text.tokenizer.huggingface import tokenizer_from_directory
from server.text.tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from engine.weights.source import ModelSource


def load_tokenizer(source: ModelSource) -> Tokenizer:
    """The tokenizer of a model, and the chat templates that come with it.

    Raises:
        ModelError: the model has none, or one of a kind that is not supported.
    """
    if source.kind == "gguf":
        return tokenizer_from_metadata(GgufFile(source.path).metadata, source.path)
    return tokenizer_from_directory(source.path)
