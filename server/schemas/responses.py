"""The bodies of responses, for the OpenAPI document; generation/formats.py builds what is sent."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict


class Answer(BaseModel):
    """A JSON object of a response: exactly these keys."""

    model_config = ConfigDict(extra="forbid")


class ErrorDetails(Answer):
    """What went wrong."""

    message: str
    type: Literal["invalid_request_error", "rate_limit_error", "server_error"]
    param: str | None
    code: str | None


class ErrorAnswer(Answer):
    """OpenAI's error object."""

    error: ErrorDetails


class PromptTokensDetails(Answer):
    """How the prompt was computed."""

    cached_tokens: int


class CompletionTokensDetails(Answer):
    """What the output was spent on."""

    reasoning_tokens: int


class UsageAnswer(Answer):
    """Token counts."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class TopLogprob(Answer):
    """One likely token."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    """An output token and the likeliest ones in its place."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(Answer):
    """Of the tokens of a message."""

    content: list[TokenLogprob]
    refusal: None


class ChatAnswerMessage(Answer):
    """What the assistant says."""

    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(Answer):
    """One of the n answers."""

    index: int
    message: ChatAnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length"]
    token_ids: list[int] | None = None


class PromptToken(Answer):
    """A token in one place of the prompt."""

    logprob: float
    rank: int | None
    decoded_token: str


PromptLogprobs = list[dict[str, PromptToken] | None]
"""By position, then by token id; null for the first."""


class ChatCompletion(Answer):
    """A whole answer to POST /v1/chat/completions."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    service_tier: Literal["default"]
    choices: list[ChatChoice]
    usage: UsageAnswer
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: PromptLogprobs | None = None


class ChatDelta(Answer):
    """The first has the role, the last nothing."""

    role: Literal["assistant"] | None = None
    content: str | None = None


class ChatChunkChoice(Answer):
    """A piece of one choice."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length"] | None
    token_ids: list[int] | None = None


class ChatCompletionChunk(Answer):
    """The data of one event of a streamed chat completion."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    system_fingerprint: str
    service_tier: Literal["default"]
    choices: list[ChatChunkChoice]
    usage: UsageAnswer | None = None
    prompt_token_ids: list[int] | None = None


class CompletionLogprobs(Answer):
    """Of the tokens of a text; the lists go together."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(Answer):
    """One of the answers; index = prompt * n + choice."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"]
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: PromptLogprobs | None = None


class Completion(Answer):
    """A whole answer to POST /v1/completions."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: UsageAnswer


class CompletionChunkChoice(Answer):
    """A piece of one choice."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"] | None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


class CompletionChunk(Answer):
    """The data of one event of a streamed completion."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChunkChoice]
    usage: UsageAnswer | None = None


class Model(Answer):
    """A served model."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelList(Answer):
    """All served models."""

    object: Literal["list"]
    data: list[Model]


class Health(Answer):
    """Whether the process is alive, and in what state its engine is. Ages are seconds."""

    status: Literal["ok", "stalled", "failed"]
    engine: str
    requests: int
    heartbeat_age: float | None
    iteration_age: float | None


class Version(Answer):
    """Of this program."""

    version: str
