"""From decoded JSON to a typed request, and from pydantic's errors to OpenAI's."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from server.http.errors import ApiError, bad_request, shorten
from server.schemas.base import Body, json_type

EXPECTED: Mapping[str, str] = MappingProxyType(
    {
        "bool_type": "a boolean",
        "dict_type": "an object",
        "float_type": "a number",
        "int_type": "an integer",
        "list_type": "an array",
        "model_type": "an object",
        "string_type": "a string",
    }
)

ONE_PARAMETER = frozenset({"logit_bias"})
"""Fields whose keys are data, not names: errors below them are theirs."""

Parsed = TypeVar("Parsed", bound=Body)


def parse_request(schema: type[Parsed], data: dict[str, Any]) -> Parsed:
    """Check a decoded JSON object against a schema.

    Raises:
        ApiError: 400 for the first fault, with OpenAI's code and the dotted path of the field.
    """
    try:
        return schema.model_validate(data)
    except ValidationError as error:
        raise _to_api_error(error.errors(include_url=False)[0]) from None


def _to_api_error(error: ErrorDetails) -> ApiError:
    context = error.get("ctx", {})
    path = [str(part) for part in error["loc"] if not str(part).startswith("=")]
    if path and path[0] in ONE_PARAMETER:
        path = path[:1]
    if error["type"] == "api" and context["at"]:
        path.append(context["at"])
    param = ".".join(path)[:200] or None
    code, predicate = _explain(error, context)
    subject = f"'{param}'" if param else "The request body"
    end = "" if predicate.endswith("?") else "."
    if error["type"] == "missing":
        return bad_request(f"The required parameter {subject} is missing.", code, param)
    return bad_request(f"{subject} {predicate}{end}", code, param)


def _explain(error: ErrorDetails, context: dict[str, Any]) -> tuple[str, str]:
    """The API's code, and the sentence after its subject."""
    kind, value = error["type"], error["input"]
    if kind in EXPECTED:
        return "invalid_type", f"must be {EXPECTED[kind]}, but is {json_type(value)}"
    match kind:
        case "api":
            return context["code"], context["predicate"]
        case "missing":
            return "missing_required_parameter", "is missing"
        case "greater_than" | "greater_than_equal":
            return _out_of_range(value, context["gt" if kind == "greater_than" else "ge"], kind)
        case "less_than_equal":
            return _out_of_range(value, context["le"], kind)
        case "too_short":
            return "empty_array", "must not be empty"
        case "too_long":
            container = "object" if isinstance(value, dict) else "array"
            return f"{container}_above_max_length", f"must have at most {context['max_length']} entries"
        case "string_too_short":
            return "empty_string", "must not be empty"
        case "string_too_long":
            limit = context["max_length"]
            return "string_above_max_length", f"must have at most {limit} characters"
        case "literal_error":
            expected = context["expected"].replace("False", "false")
            return "invalid_value", f"must be {expected}, but is {shorten(value)}"
        case _:
            return "invalid_value", f"has a value that is not valid: {shorten(value)}"


def _out_of_range(value: object, limit: float, kind: str) -> tuple[str, str]:
    number = "integer" if isinstance(limit, int) else "decimal"
    side = "above_max" if kind == "less_than_equal" else "below_min"
    words = {
        "greater_than": "greater than",
        "greater_than_equal": "at least",
        "less_than_equal": "at most",
    }
    return f"{number}_{side}_value", f"must be {words[kind]} {limit}, but is {shorten(value)}"
