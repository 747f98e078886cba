"""Chat templates in a process of their own: the same prompts, and no template that holds up the server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from engine.model_error import ModelError
from server.text.chat_template import ChatTemplate, ChatTemplateError, TemplateSources
from server.text.plain_text import PlainText
from server.text.template_process import TemplateProcess
from tests.builders import chat_templates as written

pytestmark = pytest.mark.anyio

USER = {"role": "user", "content": "Hi <b>&</b> 漢 👩‍👧 <|im_end|>\n"}
PLAIN = PlainText(["<|im_end|>", "<|im_start|>"], mark="MARK")
Start = Callable[..., AbstractAsyncContextManager[TemplateProcess]]


@asynccontextmanager
async def process(source: str, seconds: float = 0.3) -> AsyncIterator[TemplateProcess]:
    made = TemplateProcess(TemplateSources({"default": source}, {"bos_token": "<s>"}, "here"), PLAIN, seconds)
    await made.start()
    try:
        yield made
    finally:
        await made.close()


async def test_prompts_are_those_of_the_template() -> None:
    here = ChatTemplate({"default": written.QWEN}, special_tokens={"bos_token": "<s>"}, protect=PLAIN.protect)
    tools = [{"type": "function", "function": {"name": "f", "description": "<|im_start|>", "parameters": {}}}]
    async with process(written.QWEN) as elsewhere:
        for options in ({}, {"tools": tools}, {"add_generation_prompt": False}):
            for variables in ({}, {"enable_thinking": False, "big": 10**40}):
                expected = here.render([USER], **options, **variables)
                assert await elsewhere.render([USER], **options, variables=variables) == expected
        asked = [elsewhere.render([{**USER, "content": str(number)}]) for number in range(20)]
        assert [str(number) in text for number, text in enumerate(await asyncio.gather(*asked))] == [
            True
        ] * 20


async def test_refusals_are_the_templates_own() -> None:
    async with process("{{ raise_exception('no ' + messages[0].content) }}") as one:
        with pytest.raises(ChatTemplateError, match="refused the conversation: no system"):
            await one.render([{"role": "user", "content": "system"}])


async def test_a_template_that_is_no_jinja_is_told_of() -> None:
    with pytest.raises(ModelError, match="here: chat template 'default' is no valid Jinja"):
        async with process("{% if %}"):
            pass


LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
EXPONENTIAL = "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(40) }}"


@pytest.mark.parametrize(
    ("attack", "message"),
    [
        (LOOP, "more than 0.3 s"),
        (EXPONENTIAL, "more than 0.3 s"),
        ("{{ 'x' * 10 ** 10 }}", "more memory"),
        ("{{ ('%%%dd' % 3000000000) % 1 }}", "more memory|refused"),
        (
            "{% set x = namespace(a='x') %}{% for i in range(50) %}{% set x.a = x.a ~ x.a %}{% endfor %}",
            "more memory|more than",
        ),
        ("{{ 'x' * 40000000 }}", "far more text"),
        ("{{ ''.__class__.__mro__ }}", "refused"),
    ],
)
async def test_hostile_templates_cost_one_request_only(attack: str, message: str) -> None:
    async with process("{% if messages[0].content == 'attack' %}" + attack + "{% endif %}fine") as one:
        began = time.monotonic()
        with pytest.raises(ChatTemplateError, match=message):
            await one.render([{"role": "user", "content": "attack"}])
        assert time.monotonic() - began < 10
        assert await one.render([USER]) == "fine"


async def test_one_that_outstays_the_server_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """For whatever does not notice that its own time is up: here it may take more than the server waits."""
    monkeypatch.setattr("server.text.template_process.PATIENCE", 0.1)
    async with process("{% if messages[0].content == 'attack' %}" + LOOP + "{% endif %}fine", 20) as one:
        with pytest.raises(ChatTemplateError, match="too long"):
            await one.render([{"role": "user", "content": "attack"}])
        assert await one.render([USER]) == "fine"


async def test_a_request_that_is_given_up_leaves_no_answer_behind() -> None:
    async with process("{{ messages[0].content }}") as one:
        given_up = asyncio.create_task(one.render([{"role": "user", "content": "first"}]))
        await asyncio.sleep(0)
        given_up.cancel()
        await asyncio.gather(given_up, return_exceptions=True)
        assert await one.render([{"role": "user", "content": "second"}]) == "second"
