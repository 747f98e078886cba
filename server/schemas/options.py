"""The fields that chat completions and completions share."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import AfterValidator, Discriminator, Field, Tag

from server.schemas.base import CONST_FALSE, INTEGRAL, REPRESENTABLE, Body, Flag, Text, always, refusal, tag

MAX_COUNT = 2**63 - 1
"""Of tokens, and a token id: the engine's messages carry nothing larger."""
MAX_CHOICES = 128
MAX_STOPS = 16
MAX_STOP_CHARACTERS = 1024
MAX_TOP_LOGPROBS = 20
MAX_BIASES = 1024

BOOKKEEPING = "For the caller's own bookkeeping; OpenAI defines no effect"

UNSUPPORTED_EVERYWHERE = frozenset(
    {
        *("add_special_tokens", "allowed_token_ids", "bad_words", "cache_prompt", "grammar"),
        *("guided_choice", "guided_decoding_backend", "guided_grammar", "guided_json", "guided_regex"),
        *("guided_whitespace_pattern", "json_schema", "kv_tier_hint", "kv_transfer_params"),
        *("length_penalty", "logits_processors", "mirostat", "n_predict", "regex"),
        *("repeat_penalty", "request_id", "return_tokens_as_token_ids"),
        *("spaces_between_special_tokens", "structured_outputs", "structural_tag", "thinking_token_budget"),
        *("truncate_prompt_tokens", "typical_p", "use_beam_search", "vllm_xargs"),
    }
)


Count = Annotated[int, Field(strict=True, ge=0, le=MAX_COUNT), INTEGRAL]
Share = Annotated[float, Field(strict=True, ge=0.0, le=1.0), REPRESENTABLE]
Penalty = Annotated[float, Field(strict=True, ge=-2.0, le=2.0), REPRESENTABLE]
Bias = Annotated[float, Field(strict=True, ge=-100.0, le=100.0), REPRESENTABLE]
TopLogprobs = Annotated[int, Field(strict=True, ge=0, le=MAX_TOP_LOGPROBS), INTEGRAL]


class StreamOptions(Body):
    """What a stream carries besides the text."""

    include_usage: Flag = False
    include_obfuscation: Annotated[Flag, always(False, "unsupported_parameter"), CONST_FALSE] = False
    continuous_usage_stats: Annotated[Flag, always(False, "unsupported_parameter"), CONST_FALSE] = False


def _string_or_list(value: object) -> str:
    return "list" if isinstance(value, list) else "string"


StopString = Annotated[Text, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]
Stop = Annotated[
    Annotated[StopString, Tag("=string")]
    | Annotated[Annotated[list[StopString], Field(max_length=MAX_STOPS, fail_fast=True)], Tag("=list")],
    Discriminator(tag(_string_or_list)),
]


def _token_ids(biases: dict[str, float]) -> dict[str, float]:
    for key in biases:
        if not (key.isascii() and key.isdigit() and len(key) <= 10):
            raise refusal("invalid_value", "must have token ids as keys")
    return biases


class GenerationOptions(Body):
    """How much to generate, how to sample it, where to stop and how to answer."""

    unsupported: ClassVar[frozenset[str]] = UNSUPPORTED_EVERYWHERE

    model: Annotated[Text, Field(description="Name of the served model")]
    max_tokens: Count | None = None
    n: Annotated[int, Field(strict=True, ge=1, le=MAX_CHOICES), INTEGRAL] = 1
    temperature: (
        Annotated[
            float,
            Field(strict=True, ge=0.0, le=2.0, description="0 takes the likeliest token"),
            REPRESENTABLE,
        ]
        | None
    ) = None
    top_p: Share | None = None
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    logit_bias: Annotated[
        dict[str, Bias],
        Field(default_factory=dict, max_length=MAX_BIASES, description="Added to raw logits, by token id"),
        AfterValidator(_token_ids),
    ]
    seed: Annotated[int, Field(strict=True, ge=-(2**63), le=2**63 - 1), INTEGRAL] | None = None
    stop: Stop | None = None
    stream: Flag = False
    stream_options: StreamOptions | None = None
    user: Annotated[Text, Field(description=BOOKKEEPING)] | None = None

    top_k: (
        Annotated[
            int, Field(strict=True, ge=-1, le=MAX_COUNT, description="Extension; 0 and -1 mean off"), INTEGRAL
        ]
        | None
    ) = None
    min_p: Annotated[Share, Field(description="Extension")] | None = None
    repetition_penalty: (
        Annotated[float, Field(strict=True, ge=1e-6, le=1e6, description="Extension"), REPRESENTABLE] | None
    ) = None
    min_tokens: Annotated[Count, Field(description="Extension")] = 0
    ignore_eos: Annotated[Flag, Field(description="Extension")] = False
    stop_token_ids: Annotated[
        list[Count], Field(default_factory=list, max_length=64, fail_fast=True, description="Extension")
    ]
    include_stop_str_in_output: Annotated[Flag, Field(description="Extension")] = False
    skip_special_tokens: Annotated[Flag, Field(description="Extension")] = True
    priority: Annotated[
        int,
        Field(strict=True, ge=-(2**31), le=2**31 - 1, description="Extension; lower is served first"),
        INTEGRAL,
    ] = 0
    cache_salt: Annotated[
        Text, Field(max_length=1024, description="Extension; the prefix cache is shared within a salt only")
    ] = ""

    deadline_ms: (
        Annotated[
            int,
            Field(
                strict=True, ge=1, le=2**31 - 1, description="Extension; milliseconds until it is given up"
            ),
            INTEGRAL,
        ]
        | None
    ) = None

    prompt_logprobs: (
        Annotated[TopLogprobs, Field(description="Extension; of the prompt's tokens, without stream")] | None
    ) = None
    return_token_ids: Annotated[Flag, Field(description="Extension")] = False

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
