"""Conversations into prompts, by the model's Jinja template."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2

from engine.model_error import ModelError
from server.text.content_format import ContentFormat, content_format
from server.text.template_environment import template_environment

if TYPE_CHECKING:
    from server.text.tokenizer.tokenizer import Tokenizer

RESERVED_VARIABLES = frozenset({"messages", "tools", "add_generation_prompt"})
"""Names that a client's own template variables can't take."""

Message = Mapping[str, Any]
"""A message as OpenAI's API has it: role, content (text, parts or None), tool_calls, ..."""

_TEMPLATE_FAULTS = (
    *(jinja2.TemplateError, TypeError, ValueError, LookupError),
    *(AttributeError, ArithmeticError, RecursionError),
)
"""What a template can raise: its own refusals, the sandbox's, and whatever Python finds wrong."""


class ChatTemplateError(ValueError):
    """A conversation can't become a prompt; the message tells the client why."""


@dataclass(frozen=True, slots=True)
class TemplateSources:
    """What a ``ChatTemplate`` is made of."""

    by_name: Mapping[str, str]
    special_tokens: Mapping[str, str]
    where: object = "the model"


@dataclass(frozen=True, slots=True)
class _Variant:
    """One compiled template and what it expects."""

    template: jinja2.Template
    content: ContentFormat
    knows_developer: bool


class ChatTemplate:
    """A model's chat template, compiled once. Rendering is safe from several threads.

    Args:
        sources: Jinja sources by name. ``tool_use`` is taken where tools are given, else ``default``.
        special_tokens: template variables like ``bos_token``.
        where: names the templates' origin in error messages.
        now: the clock for templates that mention the date.
        protect: what becomes of a client's values before the template sees them.

    Raises:
        ModelError: a source is no valid Jinja.
    """

    def __init__(
        self,
        sources: Mapping[str, str],
        *,
        special_tokens: Mapping[str, str] | None = None,
        where: object = "the model",
        now: Callable[[], datetime] = datetime.now,
        protect: Callable[[Any], Any] = lambda value: value,
    ) -> None:
        self._environment = template_environment(now)
        self._protect = protect
        self._special_tokens = dict(special_tokens or {})
        self._variants = {name: self._compile(name, source, where) for name, source in sources.items()}

    def render(
        self,
        messages: Sequence[Message],
        /,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: object,
    ) -> str:
        """The prompt for a conversation. Encode it without special tokens: it holds them all.

        Keys with value None are left out of messages, as in transformers. Missing content (of a
        message with tool calls) is empty, as in vLLM: many templates add it to a string.
        ``developer`` becomes ``system`` unless the template knows it. The arguments of tool calls
        become objects. Text parts are joined by newlines for a template that takes strings, as in
        vLLM; a string becomes one text part for a template that only takes parts.

        Args:
            messages: the conversation; not changed.
            tools: OpenAI's tool definitions, or None.
            add_generation_prompt: end with what makes the model answer.
            variables: more template variables, like ``enable_thinking``.

        Raises:
            ChatTemplateError: there is no template, it refuses the conversation, or it fails.
        """
        if "messages" in variables:
            raise ChatTemplateError("a template variable can't be named messages")
        variant = self._variant(with_tools=bool(tools))
        prepared = [_prepared(message, variant) for message in messages]
        context = {"documents": None, **self._special_tokens, **self._protect(variables)}
        context |= {"tools": self._protect(tools), "add_generation_prompt": add_generation_prompt}
        context["messages"] = self._protect(prepared)
        try:
            return variant.template.render(context)
        except _TEMPLATE_FAULTS as error:
            raise ChatTemplateError(f"the chat template refused the conversation: {error}") from error

    def _variant(self, with_tools: bool) -> _Variant:
        names = ("tool_use", "default") if with_tools else ("default",)
        for name in names:
            if name in self._variants:
                return self._variants[name]
        if self._variants:
            raise ChatTemplateError(
                "the model has no default chat template, only " + ", ".join(sorted(self._variants))
            )
        raise ChatTemplateError(
            "the model has no chat template, so it can't chat; use completions, or start the server "
            "with --chat-template"
        )

    def _compile(self, name: str, source: str, where: object) -> _Variant:
        try:
            parsed = self._environment.parse(source)
            template = self._environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ModelError(
                f"{where}: chat template {name!r} is no valid Jinja: {error.message} (line {error.lineno}); "
                "another can be given with --chat-template"
            ) from error
        return _Variant(template, content_format(parsed), "developer" in source)


def template_sources(tokenizer: Tokenizer, override: Path | None = None) -> TemplateSources:
    """The chat template that came with a model's tokenizer, or the one in a file given instead.

    Raises:
        ModelError: the file can't be read.
    """
    if override is None:
        return TemplateSources(tokenizer.chat_templates, tokenizer.special_tokens)
    try:
        source = override.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{override}: the chat template can't be read: {error}") from error
    return TemplateSources({"default": source}, tokenizer.special_tokens, override)


def _prepared(message: Message, variant: _Variant) -> dict[str, Any]:
    prepared = {key: value for key, value in message.items() if value is not None}
    if prepared.get("role") == "developer" and not variant.knows_developer:
        prepared["role"] = "system"
    prepared["content"] = _content(prepared.get("content", ""), variant.content)
    if "tool_calls" in prepared:
        prepared["tool_calls"] = [_tool_call(call) for call in prepared["tool_calls"]]
    return prepared


def _content(content: object, wanted: ContentFormat) -> object:
    if isinstance(content, str):
        return _as_parts(content) if wanted == "list" else content
    if isinstance(content, list) and wanted == "string":
        return "\n".join(_part_text(part) for part in content)
    return content


def _as_parts(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}] if text else []


def _part_text(part: object) -> str:
    text = part.get("text") if isinstance(part, Mapping) else None
    if not isinstance(text, str):
        raise ChatTemplateError("the model's chat template takes text only, so content parts must be text")
    return text


def _tool_call(call: Mapping[str, Any]) -> dict[str, Any]:
    """OpenAI sends arguments as JSON text; templates expect the object and write the JSON themselves.

    Arguments that are no JSON object, which a model may have produced, stay as they are.
    """
    function = call.get("function")
    if not isinstance(function, Mapping) or not isinstance(arguments := function.get("arguments"), str):
        return dict(call)
    try:
        parsed = json.loads(arguments)
    except (ValueError, RecursionError):
        return dict(call)
    return {**call, "function": {**function, "arguments": parsed if isinstance(parsed, dict) else arguments}}
