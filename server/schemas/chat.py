"""POST /v1/chat/completions: the request."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from server.schemas.base import CONST_FALSE, Body, Flag, Text, always, but_not, refusal, tag
from server.schemas.options import BOOKKEEPING, UNSUPPORTED_EVERYWHERE, Count, GenerationOptions, TopLogprobs

MAX_MESSAGES = 2048
"""OpenAI's own limit."""

ROLES = ("developer", "system", "user", "assistant", "tool", "function")

OTHER_PARTS = ("audio_url", "file", "image_url", "input_audio", "refusal", "video_url")

UNSUPPORTED_IN_CHAT = UNSUPPORTED_EVERYWHERE | {
    *("audio", "best_of", "chat_template", "documents", "echo", "enable_thinking", "function_call"),
    *("functions", "include_reasoning", "mm_processor_kwargs", "moderation", "parallel_tool_calls"),
    *("prediction", "reasoning", "reasoning_effort", "suffix", "thinking", "tools", "verbosity"),
    *("web_search_options",),
}


class TextPart(Body):
    """A piece of a message's text."""

    unsupported: ClassVar[frozenset[str]] = frozenset({"cache_control"})

    type: Literal["text"]
    text: Text

    @model_validator(mode="before")
    @classmethod
    def _is_text(cls, data: object) -> object:
        """Parts of other kinds are refused as such, before their fields are looked at."""
        kind = data.get("type") if isinstance(data, dict) else None
        if isinstance(kind, str) and kind in OTHER_PARTS:
            raise refusal("unsupported_value", f"is {kind}, but this model takes text only", at="type")
        return data


def _string_or_parts(value: object) -> str:
    return "parts" if isinstance(value, list) else "string"


Content = Annotated[
    Annotated[Text, Tag("=string")]
    | Annotated[Annotated[list[TextPart], Field(min_length=1, fail_fast=True)], Tag("=parts")],
    Discriminator(tag(_string_or_parts)),
]


class SystemMessage(Body):
    """Instructions; ``developer`` is today's word for ``system``."""

    role: Literal["system", "developer"]
    content: Content
    name: Text | None = None


class UserMessage(Body):
    """What the user says."""

    role: Literal["user"]
    content: Content
    name: Text | None = None


class CalledFunction(Body):
    """A function the assistant called, its arguments as the model wrote them."""

    name: Text
    arguments: Text


class ToolCall(Body):
    """A tool call of an earlier turn, given to the chat template."""

    id: Text
    type: Literal["function"]
    function: CalledFunction


class AssistantMessage(Body):
    """What the assistant said before."""

    unsupported: ClassVar[frozenset[str]] = frozenset({"audio", "function_call", "refusal", "annotations"})

    role: Literal["assistant"]
    content: Content | None = None
    name: Text | None = None
    tool_calls: Annotated[list[ToolCall], Field(min_length=1, fail_fast=True)] | None = None


class ToolMessage(Body):
    """A tool's answer."""

    role: Literal["tool"]
    content: Content
    tool_call_id: Text
    name: Text | None = None


class FunctionMessage(Body):
    """A function's answer, OpenAI's older form."""

    role: Literal["function"]
    content: Content
    name: Text


def _has_role(value: object) -> object:
    if not isinstance(value, dict):
        return value
    role = value.get("role")
    if role is None:
        raise refusal("missing_required_parameter", "is missing", at="role")
    if not isinstance(role, str):
        raise refusal("invalid_type", "must be a string", at="role")
    if role not in ROLES:
        raise refusal("invalid_value", f"must be one of {', '.join(ROLES)}", at="role")
    return value


def _role(value: object) -> str:
    role = str(value["role"]) if isinstance(value, dict) else "user"
    return "system" if role == "developer" else role


Message = Annotated[
    Annotated[SystemMessage, Tag("=system")]
    | Annotated[UserMessage, Tag("=user")]
    | Annotated[AssistantMessage, Tag("=assistant")]
    | Annotated[ToolMessage, Tag("=tool")]
    | Annotated[FunctionMessage, Tag("=function")],
    Discriminator(tag(_role)),
    BeforeValidator(_has_role),
]


class ResponseFormat(Body):
    """The form of the answer."""

    type: Literal["text"]


def _text_format(value: object) -> object:
    kind = value.get("type") if isinstance(value, dict) else None
    if kind in ("json_object", "json_schema", "structural_tag"):
        raise refusal("unsupported_parameter", f"of type {kind} is not supported by this server")
    return value


def _no_tool(value: object) -> object:
    if value != "none":
        raise refusal("unsupported_parameter", "other than none is not supported by this server")
    return value


MetadataKey = Annotated[Text, Field(max_length=64)]
MetadataValue = Annotated[Text, Field(max_length=512)]


class ChatCompletionRequest(GenerationOptions):
    """The body of POST /v1/chat/completions."""

    unsupported: ClassVar[frozenset[str]] = UNSUPPORTED_IN_CHAT

    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    max_completion_tokens: Annotated[Count, Field(description="Wins over max_tokens")] | None = None
    logprobs: Flag = False
    top_logprobs: TopLogprobs | None = None
    response_format: Annotated[ResponseFormat, BeforeValidator(_text_format)] | None = None
    tool_choice: Annotated[Literal["none"], BeforeValidator(_no_tool)] = "none"
    modalities: Annotated[
        list[Annotated[Literal["text"], but_not(("audio", "image"), "unsupported_parameter")]],
        Field(default_factory=lambda: ["text"], min_length=1, max_length=1),
    ]
    metadata: Annotated[
        dict[MetadataKey, MetadataValue],
        Field(default_factory=dict, max_length=16, description=BOOKKEEPING),
    ]
    safety_identifier: Annotated[Text, Field(max_length=64, description=BOOKKEEPING)] | None = None
    prompt_cache_key: Annotated[
        Text, Field(max_length=1024, description="Joins cache_salt as the prefix cache's key space")
    ] = ""
    store: Annotated[Flag, always(False, "unsupported_value"), CONST_FALSE] = False
    service_tier: Annotated[
        Literal["auto", "default"],
        but_not(("flex", "priority", "scale"), "unsupported_value"),
    ] = "default"

    add_generation_prompt: Annotated[Flag, Field(description="Extension")] = True
    continue_final_message: Annotated[Flag, Field(description="Extension")] = False
    chat_template_kwargs: Annotated[
        dict[str, Any], Field(default_factory=dict, description="Extension; given to the chat template")
    ]
