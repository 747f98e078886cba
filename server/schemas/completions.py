"""POST /v1/completions: the request."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field, PlainValidator

from server.schemas.base import INTEGRAL, Flag, always, json_type, refusal
from server.schemas.options import UNSUPPORTED_EVERYWHERE, Count, GenerationOptions, TopLogprobs

MAX_PROMPTS = 1024

Prompt = str | tuple[int, ...]
"""Text, or token ids."""

PromptJson = str | list[str] | list[int] | list[list[int]]


def parse_prompts(value: object) -> tuple[Prompt, ...]:
    """The prompts of a request, one or many, as text or as token ids (not yet against a vocabulary).

    Plain Python over whole lists, because a body may hold a million ids.
    """
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list):
        raise refusal("invalid_type", f"must be a string or an array, but is {json_type(value)}")
    if not value:
        raise refusal("empty_array", "must not be empty")
    if not isinstance(value[0], str | list):
        return (_token_ids(value),)
    if len(value) > MAX_PROMPTS:
        raise refusal("array_above_max_length", f"must have at most {MAX_PROMPTS} prompts")
    if isinstance(value[0], str):
        if not all(isinstance(prompt, str) for prompt in value):
            raise refusal("invalid_type", "must have prompts of one kind")
        return tuple(value)
    return tuple(_token_ids(ids) for ids in value)


def _token_ids(ids: object) -> tuple[int, ...]:
    if not isinstance(ids, list):
        raise refusal("invalid_type", "must have prompts of one kind")
    if not ids:
        raise refusal("empty_array", "must not have an empty prompt")
    types = set(map(type, ids))
    if types == {int}:
        return tuple(ids)
    if types <= {int, float} and all(token_id == int(token_id) for token_id in ids):
        return tuple(map(int, ids))
    raise refusal("invalid_type", "must have integers as token ids")


class CompletionRequest(GenerationOptions):
    """The body of POST /v1/completions."""

    unsupported: ClassVar[frozenset[str]] = UNSUPPORTED_EVERYWHERE | {
        *("logprob_token_ids", "prompt_embeds", "response_format", "suffix"),
    }

    prompt: Annotated[
        tuple[Prompt, ...],
        PlainValidator(parse_prompts, json_schema_input_type=PromptJson),
        Field(description="One or several prompts, each as text or as token ids"),
    ]
    max_tokens: Count = 16
    logprobs: TopLogprobs | None = None
    echo: Annotated[Flag, Field(description="Begins the text with the prompt")] = False
    best_of: Annotated[
        int, Field(strict=True, json_schema_extra={"const": 1}), always(1, "unsupported_parameter"), INTEGRAL
    ] = 1
