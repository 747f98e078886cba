"""POST /tokenize, /detokenize, /apply-template and /abort_request: what clients ask beside generating."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from server.schemas.base import Body, Flag, Text, refusal
from server.schemas.chat import MAX_MESSAGES, Message
from server.schemas.options import Count
from server.schemas.responses import Answer

MAX_TOKENS = 1 << 20
"""Token ids in one request."""

Messages = Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]


class ConversationOptions(Body):
    """How a conversation is rendered, as in chat completions."""

    model: Text | None = None
    add_generation_prompt: Flag = True
    continue_final_message: Flag = False
    chat_template_kwargs: Annotated[dict[str, Any], Field(default_factory=dict)]


class ApplyTemplateRequest(ConversationOptions):
    """The body of POST /apply-template."""

    messages: Messages


class TokenizeRequest(ConversationOptions):
    """The body of POST /tokenize: a text or a conversation."""

    prompt: Text | None = None
    messages: Messages | None = None
    add_special_tokens: Annotated[
        Flag, Field(description="Add what the tokenizer puts around a text; default: with a prompt only")
    ] = True
    return_token_strs: Flag = False

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if self.prompt is None and self.messages is None:
            raise refusal("missing_required_parameter", "is missing, and so is 'messages'", at="prompt")
        if self.prompt is not None and self.messages is not None:
            raise refusal("invalid_value", "excludes 'messages'", at="prompt")
        return self


class DetokenizeRequest(Body):
    """The body of POST /detokenize."""

    model: Text | None = None
    tokens: Annotated[list[Count], Field(max_length=MAX_TOKENS, fail_fast=True)]
    skip_special_tokens: Flag = False


class AbortRequest(Body):
    """The body of POST /abort_request."""

    request_id: Annotated[Text, Field(min_length=1, max_length=128)]


class AbortAnyRequest(Body):
    """The body of POST /abort_request for those who run the server."""

    request_id: Annotated[Text, Field(min_length=1, max_length=128)] | None = None
    all: Flag = False

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.request_id is None) != self.all:
            raise refusal("invalid_value", "or 'all' has to be given, and not both", at="request_id")
        return self


class Prompt(Answer):
    """A text."""

    prompt: str


class Tokens(Answer):
    """A text as tokens."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class Aborted(Answer):
    """How many requests were ended."""

    aborted: int


class Flushed(Answer):
    """That it will be done before the next iteration."""

    flushed: bool


class Load(Answer):
    """How busy the server is; counts of requests, sequences and pages, by tier."""

    server_load: int
    requests_running: int
    requests_waiting: int
    max_running: int
    max_queue: int
    sequences_running: int
    sequences_waiting: int
    kv_pages_total: dict[str, int]
    kv_pages_used: dict[str, int]
    kv_usage_ratio: dict[str, float]


class LiveRequest(Answer):
    """One request that is being served."""

    id: str
    request_id: str
    endpoint: str
    model: str
    stream: bool
    state: str
    seconds: float
    prompt_tokens: int
    output_tokens: int
    tiers: list[str]
    key: int | None


class LiveRequests(Answer):
    """All of them, the oldest first."""

    requests: list[LiveRequest]


class ServerInfo(Answer):
    """What the server is and how it was started; secrets are counted only."""

    version: str
    model: str
    state: str
    uptime_seconds: float
    engine: dict[str, Any] | None
    plan: dict[str, Any] | None
    settings: dict[str, Any]
