"""The Jinja environment that chat templates are written for: the one transformers gives them.

Templates come with downloaded models, so they run in Jinja's sandbox.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


class _GenerationTag(Extension):
    """``{% generation %}``: marks the assistant's words for training; its body is simply rendered."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own way to declare them

    def parse(self, parser: Parser) -> nodes.Node:
        """Read up to ``{% endgeneration %}``."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def template_environment(now: Callable[[], datetime]) -> ImmutableSandboxedEnvironment:
    """An environment like ``transformers.utils.chat_template_utils`` makes.

    Args:
        now: tells templates that date their system message what day it is.
    """

    def strftime_now(format: str) -> str:
        return now().strftime(format)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = strftime_now
    return environment


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes HTML's characters, which a model would see."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
