"""Rendering against transformers, and what becomes of messages that a template can't take."""

from __future__ import annotations

import copy
import itertools
from datetime import datetime
from pathlib import Path

import jinja2
import pytest
import tokenizers
from tokenizers import models
from transformers import PreTrainedTokenizerFast

from engine.model_error import ModelError
from engine.weights.source import resolve
from server.text.chat_template import ChatTemplate, ChatTemplateError
from server.text.content_format import content_format
from server.text.template_environment import template_environment
from server.text.tokenizer import Tokenizer, Vocabulary, load_tokenizer
from tests.builders import chat_templates as written

SPECIAL = {"bos_token": "<bos>", "eos_token": "<eos>"}
USER = {"role": "user", "content": "Hi <b>&</b> \"you\" 'é' 漢 👩‍👧\n  x  "}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": 'Wie\'s <wird> & "bleibt" – 漢',
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Köln"}}}
CONVERSATIONS = {
    "one": [USER],
    "system": [{"role": "system", "content": " Be brief. "}, USER],
    "turns": [USER, {"role": "assistant", "content": " Yes? "}, {"role": "user", "content": ""}],
    "tools": [
        USER,
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": '{"c": 20}'},
    ],
}
NOW = datetime(2026, 2, 3, 4, 5)


def template(source: str, **others: str) -> ChatTemplate:
    return ChatTemplate({"default": source, **others}, special_tokens=SPECIAL, now=lambda: NOW)


@pytest.fixture(scope="module")
def oracle() -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer(models.BPE()), **SPECIAL)


@pytest.fixture(scope="module")
def sources() -> dict[str, str]:
    smollm2 = load_tokenizer(resolve("smollm2-135m-instruct")).chat_templates["default"]
    return written.ALL | {"smollm2": smollm2}


@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("name", [*written.ALL, "smollm2"])
def test_renders_as_transformers_does(
    sources: dict[str, str], oracle: PreTrainedTokenizerFast, name: str, conversation: str
):
    messages = CONVERSATIONS[conversation]
    ours = template(sources[name])
    for tools, generate in itertools.product([None, [TOOL]], [True, False]):
        arguments = {
            "tools": copy.deepcopy(tools),
            "add_generation_prompt": generate,
            "chat_template": sources[name],
            "date_string": "03 Feb 2026",  # ours must come to it by the clock
        }
        try:
            expected = oracle.apply_chat_template(copy.deepcopy(messages), tokenize=False, **arguments)
        except (jinja2.TemplateError, TypeError):
            assert (conversation, name) in REFUSED
            with pytest.raises(ChatTemplateError):
                ours.render(messages, tools, generate)
        else:
            assert (conversation, name) not in REFUSED
            assert ours.render(messages, tools, generate) == expected


REFUSED = {("tools", "mistral"), ("tools", "gemma")}
"""These templates raise at a tool's message."""


def test_template_variables_reach_the_template(oracle: PreTrainedTokenizerFast):
    rendered = template(written.QWEN).render([USER], enable_thinking=False)
    expected = oracle.apply_chat_template(
        [USER], chat_template=written.QWEN, tokenize=False, add_generation_prompt=True, enable_thinking=False
    )
    assert rendered == expected
    assert rendered.endswith("<think>\n\n</think>\n\n")
    assert template("{{ bos_token }}").render([USER], bos_token="<other>") == "<other>"


@pytest.mark.parametrize("name", written.ALL)
def test_missing_content_is_empty(name: str):
    """OpenAI's clients leave it null beside tool calls; ``'<|im_start|>' + none`` would be an error."""
    assistant = {"role": "assistant", "tool_calls": [CALL]}
    expected = template(written.ALL[name]).render([USER, assistant | {"content": ""}])
    assert template(written.ALL[name]).render([USER, assistant | {"content": None}]) == expected
    assert template(written.ALL[name]).render([USER, assistant]) == expected


def test_messages_are_not_changed():
    messages = [USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}]
    before = copy.deepcopy(messages)
    template(written.QWEN).render(messages)
    assert messages == before


def test_other_keys_that_are_null_are_left_out():
    source = "{{ messages[0] | tojson }}"
    message = {"role": "user", "content": "x", "name": None, "refusal": None}
    assert template(source).render([message]) == '{"role": "user", "content": "x"}'


@pytest.mark.parametrize(
    ("arguments", "rendered"),
    [
        ('{"b": 1, "a": "é"}', '{"b": 1, "a": "é"}'),
        ("not json", '"not json"'),
        ("[1]", '"[1]"'),
        ({"a": 1}, '{"a": 1}'),
    ],
)
def test_arguments_of_tool_calls_become_objects(arguments: object, rendered: str):
    source = "{{ messages[0].tool_calls[0].function.arguments | tojson }}"
    call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
    assert template(source).render([{"role": "assistant", "tool_calls": [call]}]) == rendered


def test_tojson_writes_html_and_unicode_as_they_are():
    source = "{{ messages[0].content | tojson }} {{ tools | tojson(indent=1) }}"
    assert template(source).render([{"role": "user", "content": "<&'é"}], [{"b": 1}]) == (
        '"<&\'é" [\n {\n  "b": 1\n }\n]'
    )


def test_what_a_template_refuses_is_the_clients_error():
    with pytest.raises(ChatTemplateError, match="roles must alternate"):
        template(written.MISTRAL).render([USER, USER])


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__subclasses__() }}",
        "{{ raise_exception.__globals__.json }}",
        "{{ range(10 ** 9) | list }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ 1 // 0 }}",
        "{{ 'a' + 1 }}",
        "{{ missing.attribute }}",
    ],
)
def test_what_the_sandbox_or_python_refuses_is_no_crash(source: str):
    with pytest.raises(ChatTemplateError, match=r"the chat template refused the conversation: ."):
        template(source).render([USER])


def test_a_template_for_tools_is_taken_where_there_are_tools():
    both = template("plain", tool_use="with tools")
    assert both.render([USER]) == "plain"
    assert both.render([USER], []) == "plain"
    assert both.render([USER], [TOOL]) == "with tools"


def test_a_model_without_a_template_says_so():
    with pytest.raises(ChatTemplateError, match=r"has no chat template.*--chat-template"):
        ChatTemplate({}).render([USER])
    with pytest.raises(ChatTemplateError, match="no default chat template, only rag"):
        ChatTemplate({"rag": "x"}).render([USER])


def test_a_template_that_is_no_jinja_is_refused_at_the_start():
    with pytest.raises(ModelError, match=r"chat template 'default' is no valid Jinja: .* \(line 2\)"):
        ChatTemplate({"default": "fine\n{% if %}"})


def test_a_client_cannot_replace_the_messages():
    with pytest.raises(ChatTemplateError, match="messages"):
        template("x").render([USER], **{"messages": []})


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        (written.CHATML, "string"),
        (written.LLAMA31, "string"),
        (written.MISTRAL, "string"),
        (written.QWEN, "string"),
        (written.GEMMA, "either"),
        (written.MACRO, "either"),
        (written.PARTS_ONLY, "list"),
        (
            "{% for m in messages %}{% set c = m['content'] %}{% for p in c %}{% endfor %}{% endfor %}",
            "list",
        ),
        ("{% for m in messages %}{% for p in m.content | reject('none') %}{% endfor %}{% endfor %}", "list"),
        ("{% for m in messages %}{% for l in m.content.split('x') %}{% endfor %}{% endfor %}", "string"),
    ],
)
def test_how_a_template_wants_content_is_read_off_it(source: str, wanted: str):
    assert content_format(template_environment(datetime.now).parse(source)) == wanted


PARTS = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]


def test_content_is_brought_into_the_form_that_the_template_wants():
    parts, string = [{"role": "user", "content": PARTS}], [{"role": "user", "content": "one"}]
    assert "user\none\ntwo<|im_end|>" in template(written.CHATML).render(parts)
    assert template(written.PARTS_ONLY).render(parts) == "<user>onetwo"
    assert template(written.PARTS_ONLY).render(string) == "<user>one"
    assert template(written.PARTS_ONLY).render([{"role": "assistant", "content": None}]) == "<assistant>"
    assert template(written.MACRO).render(parts) == "[one][two]"
    assert template(written.MACRO).render(string) == "one"


@pytest.mark.parametrize(
    "part", [{"type": "image_url", "image_url": {"url": "x"}}, {"type": "text"}, "text", 3]
)
def test_parts_that_are_no_text_are_refused_by_a_template_for_strings(part: object):
    with pytest.raises(ChatTemplateError, match="content parts must be text"):
        template(written.CHATML).render([{"role": "user", "content": [part]}])


def test_developer_is_system_unless_the_template_knows_it():
    message = {"role": "developer", "content": "x"}
    assert template("{{ messages[0].role }}").render([message]) == "system"
    knowing = "{{ messages[0].role }}{% if messages[0].role == 'developer' %}!{% endif %}"
    assert template(knowing).render([message]) == "developer!"


def test_the_body_of_a_generation_tag_is_rendered_in_its_own_scope(oracle: PreTrainedTokenizerFast):
    source = "{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}"
    expected = oracle.apply_chat_template([USER], chat_template=source, tokenize=False)
    assert template(source).render([USER]) == expected == "21"


def test_loading_from_a_tokenizer_or_a_file(tmp_path: Path):
    tokenizer = Tokenizer(
        tokenizers.Tokenizer(models.BPE()),
        Vocabulary(()),
        special_tokens={"bos_token": "<s>"},
        chat_templates={"default": "{{ bos_token }}model's"},
    )
    assert written.loaded(tokenizer).render([USER]) == "<s>model's"
    file = tmp_path / "mine.jinja"
    file.write_text("{{ bos_token }}meiné", encoding="utf-8")
    assert written.loaded(tokenizer, file).render([USER]) == "<s>meiné"
    with pytest.raises(ModelError, match=r"other\.jinja: the chat template can't be read"):
        written.loaded(tokenizer, tmp_path / "other.jinja")
    file.write_text("{% broken")
    with pytest.raises(ModelError, match=r"mine\.jinja: chat template 'default' is no valid Jinja"):
        written.loaded(tokenizer, file)


def test_tool_arguments_too_deep_to_read_stay_text():
    counting = template("{{ messages[0].tool_calls[0].function.arguments | length }}")
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "[" * 50_000}}
    assert counting.render([{"role": "assistant", "content": "", "tool_calls": [call]}]) == "50000"
