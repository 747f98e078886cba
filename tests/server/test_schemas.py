"""Every fault of a request body has OpenAI's code and names its field; what is right passes."""

from __future__ import annotations

import pytest

from server.http.errors import ApiError
from server.schemas.chat import ChatCompletionRequest
from server.schemas.completions import CompletionRequest
from server.schemas.parsing import parse_request

HI = [{"role": "user", "content": "hi"}]


def fault(schema, data) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parse_request(schema, data)
    error = caught.value
    assert error.status == 400
    assert error.message.endswith((".", "?"))
    assert len(error.message) < 300
    for python_name in ("Traceback", "pydantic", "NoneType", " dict", "str ", "None", "True", "False"):
        assert python_name not in error.message
    return error


def chat(**fields) -> dict:
    return {"model": "m", "messages": HI, **fields}


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"messages": []}, "empty_array", "messages"),
        ({"messages": HI * 2049}, "array_above_max_length", "messages"),
        ({"messages": None}, "missing_required_parameter", "messages"),
        ({"messages": "hi"}, "invalid_type", "messages"),
        ({"messages": [None]}, "invalid_type", "messages.0"),
        ({"messages": [{}]}, "missing_required_parameter", "messages.0.role"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "invalid_value", "messages.0.role"),
        ({"messages": [{"role": 5, "content": "x"}]}, "invalid_type", "messages.0.role"),
        ({"messages": [*HI, {"role": "user", "content": 5}]}, "invalid_type", "messages.1.content"),
        (
            {"messages": [{"role": "user", "content": None}]},
            "missing_required_parameter",
            "messages.0.content",
        ),
        ({"messages": [{"role": "user", "content": []}]}, "empty_array", "messages.0.content"),
        (
            {"messages": [*HI, *HI, {"role": "user", "content": [{"type": 5, "text": "x"}]}]},
            "invalid_value",
            "messages.2.content.0.type",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "unsupported_value",
            "messages.0.content.0.type",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "missing_required_parameter",
            "messages.0.content.0.text",
        ),
        ({"messages": [{"role": "user", "content": "x", "nmae": "y"}]}, "unsupported_parameter", None),
        (
            {"messages": [{"role": "tool", "content": "x"}]},
            "missing_required_parameter",
            "messages.0.tool_call_id",
        ),
        ({"model": None}, "missing_required_parameter", "model"),
        ({"model": 5}, "invalid_type", "model"),
        ({"temperature": 5}, "decimal_above_max_value", "temperature"),
        ({"temperature": -0.1}, "decimal_below_min_value", "temperature"),
        ({"temperature": 999999}, "decimal_above_max_value", "temperature"),
        ({"temperature": "hot"}, "invalid_type", "temperature"),
        ({"temperature": True}, "invalid_type", "temperature"),
        ({"temperature": 10**400}, "decimal_above_max_value", "temperature"),
        ({"top_p": -1}, "decimal_below_min_value", "top_p"),
        ({"top_p": 1.5}, "decimal_above_max_value", "top_p"),
        ({"min_p": 2}, "decimal_above_max_value", "min_p"),
        ({"top_k": -7}, "integer_below_min_value", "top_k"),
        ({"top_k": 2.5}, "invalid_type", "top_k"),
        ({"top_k": "2"}, "invalid_type", "top_k"),
        ({"top_k": True}, "invalid_type", "top_k"),
        ({"repetition_penalty": 0}, "decimal_below_min_value", "repetition_penalty"),
        ({"repetition_penalty": 1e-310}, "decimal_below_min_value", "repetition_penalty"),
        ({"presence_penalty": 5}, "decimal_above_max_value", "presence_penalty"),
        ({"frequency_penalty": -2.1}, "decimal_below_min_value", "frequency_penalty"),
        ({"max_tokens": -1}, "integer_below_min_value", "max_tokens"),
        ({"max_completion_tokens": -1}, "integer_below_min_value", "max_completion_tokens"),
        ({"n": 0}, "integer_below_min_value", "n"),
        ({"n": 129}, "integer_above_max_value", "n"),
        ({"stop": ""}, "empty_string", "stop"),
        ({"stop": ["a", ""]}, "empty_string", "stop.1"),
        ({"stop": ["x"] * 17}, "array_above_max_length", "stop"),
        ({"stop": [1]}, "invalid_type", "stop.0"),
        ({"stop": {"a": 1}}, "invalid_type", "stop"),
        ({"stop": "x" * 2000}, "string_above_max_length", "stop"),
        ({"logit_bias": {"-1": 1}}, "invalid_value", "logit_bias"),
        ({"logit_bias": {"abc": 1}}, "invalid_value", "logit_bias"),
        ({"logit_bias": {"1": 101}}, "decimal_above_max_value", "logit_bias"),
        ({"logit_bias": {"1": "x"}}, "invalid_type", "logit_bias"),
        ({"logit_bias": []}, "invalid_type", "logit_bias"),
        (
            {"logit_bias": {str(key): 1 for key in range(5000)}},
            "object_above_max_length",
            "logit_bias",
        ),
        ({"seed": 2**63}, "integer_above_max_value", "seed"),
        ({"seed": -(2**63) - 1}, "integer_below_min_value", "seed"),
        ({"seed": 1.5}, "invalid_type", "seed"),
        ({"logprobs": 1}, "invalid_type", "logprobs"),
        ({"top_logprobs": 21, "logprobs": True}, "integer_above_max_value", "top_logprobs"),
        ({"stream": "yes"}, "invalid_type", "stream"),
        ({"stream_options": {"include_usage": 1}}, "invalid_type", "stream_options.include_usage"),
        ({"stream_options": []}, "invalid_type", "stream_options"),
        ({"metadata": {"k": "v" * 513}}, "string_above_max_length", "metadata.k"),
        (
            {"metadata": {str(key): "v" for key in range(17)}},
            "object_above_max_length",
            "metadata",
        ),
        ({"safety_identifier": "x" * 65}, "string_above_max_length", "safety_identifier"),
        ({"store": True}, "unsupported_value", "store"),
        ({"store": 0}, "invalid_type", "store"),
        ({"service_tier": "flex"}, "unsupported_value", "service_tier"),
        ({"service_tier": "best"}, "invalid_value", "service_tier"),
        ({"response_format": {"type": "xml"}}, "invalid_value", "response_format.type"),
        ({"chat_template_kwargs": []}, "invalid_type", "chat_template_kwargs"),
        ({"priority": 2**40}, "integer_above_max_value", "priority"),
        ({"min_tokens": -1}, "integer_below_min_value", "min_tokens"),
        ({"stop_token_ids": [-1]}, "integer_below_min_value", "stop_token_ids.0"),
        ({"stop_token_ids": 3}, "invalid_type", "stop_token_ids"),
    ],
)
def test_a_fault_in_a_chat_request_is_named(fields, code, param):
    error = fault(ChatCompletionRequest, chat(**fields))
    assert error.code == code
    assert error.param == param or (param is None and error.param)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tools", [{"type": "function", "function": {"name": "f"}}]),
        ("tools", []),
        ("tool_choice", "auto"),
        ("tool_choice", {"type": "function"}),
        ("parallel_tool_calls", False),
        ("functions", []),
        ("function_call", "auto"),
        ("response_format", {"type": "json_object"}),
        ("response_format", {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}),
        ("audio", {}),
        ("modalities.0", ["audio"]),
        ("prediction", {}),
        ("web_search_options", {}),
        ("reasoning_effort", "low"),
        ("verbosity", "low"),
        ("moderation", True),
        ("regex", "a"),
        ("grammar", "a"),
        ("guided_json", {}),
        ("guided_regex", "a"),
        ("guided_choice", ["a"]),
        ("guided_grammar", "a"),
        ("structured_outputs", {}),
        ("echo", True),
        ("best_of", 2),
        ("chat_template", "{{ 1 }}"),
        ("use_beam_search", True),
        ("bad_words", ["x"]),
        ("truncate_prompt_tokens", 5),
        ("stream_options.include_obfuscation", {"include_obfuscation": True}),
        ("stream_options.continuous_usage_stats", {"continuous_usage_stats": True}),
    ],
)
def test_what_is_known_but_not_offered_is_refused_by_name(field, value):
    error = fault(ChatCompletionRequest, chat(**{field.partition(".")[0]: value}))
    assert (error.code, error.param) == ("unsupported_parameter", field)
    assert f"'{field}'" in error.message


def test_an_unknown_field_is_refused_with_the_nearest_known_one():
    error = fault(ChatCompletionRequest, chat(temprature=1))
    assert (error.code, error.param) == ("unsupported_parameter", "temprature")
    assert "did you mean 'temperature'?" in error.message


def test_null_means_not_given():
    fields = dict.fromkeys(ChatCompletionRequest.model_fields) | {"tools": None, "whatever": None}
    given = parse_request(ChatCompletionRequest, {**fields, "model": "m", "messages": HI})
    assert given == parse_request(ChatCompletionRequest, chat())


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": 2.0, "top_k": -1, "top_p": 0, "temperature": 2, "seed": -1},
        {"max_tokens": 0, "seed": 2**63 - 1, "stop": ["a"] * 5, "logit_bias": {"5": -100}},
        {"stop": "x", "stream": True, "stream_options": {"include_usage": True}},
        {"response_format": {"type": "text"}, "tool_choice": "none", "modalities": ["text"]},
        {"user": "u", "metadata": {"a": "b"}, "safety_identifier": "s", "store": False},
        {"service_tier": "auto", "prompt_cache_key": "k", "cache_salt": "c", "priority": -5},
        {"stream_options": {"include_usage": False, "include_obfuscation": False}},
    ],
)
def test_right_fields_pass(fields):
    parsed = parse_request(ChatCompletionRequest, chat(**fields))
    for name, value in fields.items():
        if not isinstance(value, dict):
            assert getattr(parsed, name) == value


def test_all_roles_and_contents_pass():
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "developer", "content": "d"},
        {"role": "system", "content": [{"type": "text", "text": "s"}]},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None},
        {"role": "tool", "content": "t", "tool_call_id": "1"},
        {"role": "function", "content": "t", "name": "f"},
        {"role": "assistant", "content": None},
    ]
    assert len(parse_request(ChatCompletionRequest, chat(messages=messages)).messages) == 7


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("x", ("x",)),
        ("", ("",)),
        (["x", "y"], ("x", "y")),
        ([1, 2], ((1, 2),)),
        ([1, 2.0], ((1, 2),)),
        ([[1], [2, 3]], ((1,), (2, 3))),
    ],
)
def test_every_form_of_prompt(prompt, prompts):
    assert parse_request(CompletionRequest, {"model": "m", "prompt": prompt}).prompt == prompts


@pytest.mark.parametrize(
    ("prompt", "code"),
    [
        ([], "empty_array"),
        ([[]], "empty_array"),
        ([[1], []], "empty_array"),
        ([1.5], "invalid_type"),
        ([True], "invalid_type"),
        ([10**400, 1.5], "invalid_type"),
        (["x", 1], "invalid_type"),
        ([1, "x"], "invalid_type"),
        ([["x"]], "invalid_type"),
        ([[1], "x"], "invalid_type"),
        ({"a": 1}, "invalid_type"),
        (5, "invalid_type"),
        (None, "missing_required_parameter"),
        ([[1]] * 2000, "array_above_max_length"),
    ],
)
def test_a_wrong_prompt(prompt, code):
    error = fault(CompletionRequest, {"model": "m", "prompt": prompt})
    assert (error.code, error.param) == (code, "prompt")


@pytest.mark.parametrize(("field", "value"), [("best_of", 2), ("suffix", "x"), ("prompt_embeds", "x")])
def test_completions_refuse_by_name(field, value):
    error = fault(CompletionRequest, {"model": "m", "prompt": "x", field: value})
    assert (error.code, error.param) == ("unsupported_parameter", field)


def test_neutral_values_of_refused_completion_fields_pass():
    data = {"model": "m", "prompt": "x", "echo": True, "best_of": 1.0, "suffix": None, "logprobs": 0}
    assert parse_request(CompletionRequest, data).logprobs == 0


def test_long_values_are_shortened():
    error = fault(ChatCompletionRequest, chat(service_tier="x" * 10_000))
    assert "x" * 90 in error.message
    error = fault(ChatCompletionRequest, chat(**{"y" * 10_000: 1}))
    assert error.param == "y" * 200


def test_many_faults_cost_no_more_than_one():
    error = fault(ChatCompletionRequest, chat(messages=[{"role": "user", "content": 5}] * 100_000))
    assert error.param == "messages.0.content"
