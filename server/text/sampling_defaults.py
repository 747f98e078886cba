"""Sampling parameters that a model's authors recommend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from engine.model_error import ModelError
from engine.weights.model_packages import MODEL_PACKAGES
from server.text.model_files import read_json_object

if TYPE_CHECKING:
    from engine.weights.source import ModelSource


class SamplingDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """What a request gets that doesn't say otherwise. The defaults change nothing."""

    temperature: Annotated[float, Meta(ge=0)] = 1.0
    top_p: Annotated[float, Meta(ge=0, le=1)] = 1.0
    top_k: Annotated[int, Meta(ge=0)] = 0
    """0 means off."""
    min_p: Annotated[float, Meta(ge=0, le=1)] = 0.0
    repetition_penalty: Annotated[float, Meta(gt=0)] = 1.0


def load_sampling_defaults(source: ModelSource) -> SamplingDefaults:
    """The values in a Hugging Face directory's generation_config.json, or those of a model package.

    Neutral ones for other GGUF files.

    ``do_sample`` is not regarded, as in vLLM: a recommended temperature counts without it.

    Raises:
        ModelError: the file is no JSON object, or a value is of the wrong type or out of range.
    """
    if source.kind != "huggingface":
        package = MODEL_PACKAGES.get(source.short_name)
        return msgspec.convert({} if package is None else dict(package.sampling), SamplingDefaults)
    path = source.path / "generation_config.json"
    config = read_json_object(path)
    names = SamplingDefaults.__struct_fields__
    given = {name: config[name] for name in names if config.get(name) is not None}
    if given.get("top_k") == -1:  # another way to write "off"
        given["top_k"] = 0
    try:
        return msgspec.convert(given, SamplingDefaults)
    except msgspec.ValidationError as error:
        raise ModelError(f"{path}: {error}") from error
