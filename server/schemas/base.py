"""JSON values as OpenAI's API takes them, and the base of every request object.

Numbers are strict: 2.0 is an integer, 2.5, "2" and true are not. Null means "not given" everywhere.
What has no effect here is refused by name, so nothing is ever accepted and ignored.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictStr,
    model_validator,
)
from pydantic_core import PydanticCustomError

from server.http.errors import shorten

JSON_TYPES: Mapping[type, str] = MappingProxyType(
    {
        type(None): "null",
        bool: "a boolean",
        int: "an integer",
        float: "a number",
        str: "a string",
        list: "an array",
        dict: "an object",
    }
)


def json_type(value: object) -> str:
    """What a JSON value is, with its article."""
    return JSON_TYPES.get(type(value), "something else")


def refusal(code: str, predicate: str, at: str = "") -> PydanticCustomError:
    """A validation error that already knows its API code; the message is ``'<param>' <predicate>.``

    ``at`` is the dotted path below the value being validated, where the fault lies deeper.
    """
    return PydanticCustomError("api", "refused", {"code": code, "predicate": predicate, "at": at})


def _integral(value: object) -> object:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _representable(value: object) -> object:
    """Integers beyond any float are out of every range; clamped, they get the range's message."""
    if isinstance(value, int) and abs(value) > 1 << 512:
        return 1e300 if value > 0 else -1e300
    return value


INTEGRAL = BeforeValidator(_integral)
"""Goes last in an integer's annotation, after its strict ``Field``."""
REPRESENTABLE = BeforeValidator(_representable)
"""Goes last in a number's annotation, after its strict ``Field``."""

Text = StrictStr
Flag = StrictBool


def but_not(values: Sequence[str], code: str) -> BeforeValidator:
    """Refuses strings that OpenAI knows and this server does not offer, with ``code``, by name."""

    def check(value: object) -> object:
        if isinstance(value, str) and value in values:
            raise _not_offered(code, value)
        return value

    return BeforeValidator(check)


def always(constant: bool | int, code: str) -> AfterValidator:
    """Refuses every value but one with ``code``; the type has been checked before."""

    def check(value: bool | int) -> bool | int:
        if value != constant:
            raise _not_offered(code, value)
        return value

    return AfterValidator(check)


CONST_FALSE = Field(json_schema_extra={"const": False})
"""Says in the JSON schema what ``always(False, ...)`` checks."""


def _not_offered(code: str, value: object) -> PydanticCustomError:
    return refusal(code, f"has a value this server does not support: {shorten(value)}")


def tag(kind: Callable[[object], str]) -> Callable[[object], str]:
    """A discriminator whose tags are marked, so that error paths can leave them out."""
    return lambda value: "=" + kind(value)


class Body(BaseModel):
    """A JSON object of a request."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    unsupported: ClassVar[frozenset[str]] = frozenset()
    """Fields that OpenAI or other servers know and this one refuses."""

    @model_validator(mode="before")
    @classmethod
    def _given_fields(cls, data: object) -> object:
        """Drop nulls and refuse fields without effect, naming the first of them."""
        if not isinstance(data, dict):
            return data
        given = {name: value for name, value in data.items() if value is not None}
        for name in given:
            if name not in cls.model_fields:
                raise refusal("unsupported_parameter", cls._why_not(name), at=name)
        return given

    @classmethod
    def _why_not(cls, name: str) -> str:
        if name in cls.unsupported:
            return "is not supported by this server"
        near = difflib.get_close_matches(name[:64], cls.model_fields, n=1)
        return "is not a known parameter" + (f"; did you mean '{near[0]}'?" if near else "")
