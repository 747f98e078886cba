"""Opening a model's checkpoint and checking it against the model before any weight is read."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from engine.model_error import ModelError
from engine.weights.checkpoint import Checkpoint
from engine.weights.source import ModelSource

_NAMED_AT_MOST = 3
_HARMLESS_SUFFIXES = (".rotary_emb.inv_freq",)
"""Buffers that old transformers versions saved; every model computes them."""


def open_checkpoint(source: ModelSource) -> Checkpoint:
    """The checkpoint that ``source.resolve`` found.

    Raises:
        ModelError: it is damaged, incomplete or of an unsupported architecture.
    """
    # Imported when needed: each brings the libraries of its format, a tenth of a second of the start.
    if source.kind == "gguf":
        from engine.weights.gguf_checkpoint import GgufCheckpoint

        return GgufCheckpoint(source.path, source.short_name)
    from engine.weights.huggingface_checkpoint import HuggingFaceCheckpoint

    return HuggingFaceCheckpoint(source.path, source.short_name)


def check_checkpoint(checkpoint: Checkpoint, expected: Mapping[str, tuple[int, ...]]) -> None:
    """Compare names and shapes. Reads no data.

    Args:
        checkpoint: open, so that its files are known to be whole.
        expected: shape by name of every tensor that the model takes.

    Raises:
        ModelError: a tensor is missing, has another shape, or would be left unused although the
            output depends on it (a bias the model does not know, for example).
    """
    model = checkpoint.config.name
    missing = expected.keys() - checkpoint.names
    if missing:
        raise ModelError(f"{model}: {_listed(missing)} missing from the checkpoint")
    for name, shape in expected.items():
        if checkpoint.shape(name) != shape:
            raise ModelError(
                f"{model}: tensor {name!r} has shape {list(checkpoint.shape(name))}, "
                f"the configuration asks for {list(shape)}"
            )
    unused = {name for name in checkpoint.names - expected.keys() if not _is_harmless(name, checkpoint)}
    if unused:
        raise ModelError(f"{model}: {_listed(unused)} unknown to family {checkpoint.config.family!r}")


def _is_harmless(name: str, checkpoint: Checkpoint) -> bool:
    tied_copy = checkpoint.config.tie_word_embeddings and name == "lm_head.weight"
    return tied_copy or name.endswith(_HARMLESS_SUFFIXES)


def _listed(names: Collection[str]) -> str:
    shown = ", ".join(sorted(names)[:_NAMED_AT_MOST])
    more = len(names) - _NAMED_AT_MOST
    if more > 0:
        return f"tensors {shown} and {more} more are"
    return f"tensor {shown} is" if len(names) == 1 else f"tensors {shown} are"
