"""Fills Settings: flags before ``TANDEM_*`` environment variables, a YAML file, defaults.

Nothing unknown is passed over: a misspelt flag, variable or key is an error that names the nearest
known one, a wrong value is an error that says where it came from and what is allowed.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast, get_type_hints

import msgspec
from msgspec import inspect

from configs.effects import without_effect
from configs.environment import without_service_links
from configs.settings import Settings

ENVIRONMENT_PREFIX = "TANDEM_"
CONFIG_VARIABLE = "TANDEM_CONFIG"
"""Names the YAML file where ``--config`` doesn't."""

_BOOLEAN_WORDS = MappingProxyType({"yes": True, "on": True, "no": False, "off": False})


class SettingsError(Exception):
    """An option can't be used as given; the message is for the user."""


@dataclass(frozen=True, slots=True)
class Option:
    """What flags, help and error messages need to know of one field of Settings."""

    name: str
    description: str
    allowed: str
    """Completes "expected ..."."""
    default: object
    choices: tuple[str, ...]
    is_boolean: bool
    is_list: bool
    is_secret: bool

    @property
    def flag(self) -> str:
        """As on the command line, ``--host-kv-pages``."""
        return "--" + self.name.replace("_", "-")

    @property
    def off_flag(self) -> str:
        """Switches a boolean off, ``--no-prefix-caching``."""
        return "--no-" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """As in the environment, ``TANDEM_HOST_KV_PAGES``."""
        return ENVIRONMENT_PREFIX + self.name.upper()


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """Settings, and where each value came from."""

    settings: Settings
    origins: Mapping[str, str]
    """Option name to ``flag --port``, ``environment TANDEM_PORT``, ``FILE: port`` or ``default``."""
    warnings: tuple[str, ...] = ()
    """What was passed over, for the user to know."""


def options() -> tuple[Option, ...]:
    """Every option, in the order of Settings."""
    described = cast(inspect.StructType, inspect.type_info(Settings))
    return tuple(_option(field) for field in described.fields)


def load_settings(
    flags: Mapping[str, str | bool | list[str]],
    environment: Mapping[str, str],
    config_file: Path | None = None,
) -> LoadedSettings:
    """Merge the four sources.

    Args:
        flags: Option name to text, only of flags that were given.
        environment: All of it; variables without the prefix are ignored, empty ones count as unset.
        config_file: YAML file with a mapping of option names, or None.

    Raises:
        SettingsError: an unknown key, a wrong value, or a file that can't be read.
    """
    known = {option.name: option for option in options()}
    values: dict[str, object] = {}
    origins = dict.fromkeys(known, "default")
    if config_file is not None:
        for key, value in _read_yaml(config_file).items():
            if key not in known:
                raise SettingsError(f"{config_file}: unknown option {key}{nearest(str(key), known)}")
            origins[key] = f"{config_file}: {key}"
            values[key] = _convert(known[key], value, origins[key], strict=True)
    given, injected = without_service_links(environment, ENVIRONMENT_PREFIX)
    for key, text in _from_environment(given, known).items():
        origins[key] = f"environment {known[key].variable}"
        values[key] = _convert(known[key], text, origins[key], strict=False)
    for key, text_or_switch in flags.items():
        origins[key] = _flag_origin(known[key], text_or_switch)
        values[key] = _convert(known[key], text_or_switch, origins[key], strict=False)
    settings = msgspec.convert(values, Settings)
    if refusal := without_effect(settings, origins):
        raise SettingsError(refusal)
    return LoadedSettings(settings, MappingProxyType(origins), _service_warning(injected))


def describe(loaded: LoadedSettings) -> str:
    """Every value with its origin: a YAML file that gives the same settings, with comments.

    Secrets are only counted, in a comment: nothing that stood for them could be mistaken for a key.
    """
    lines = []
    for option in options():
        value = getattr(loaded.settings, option.name)
        shown = f"{option.name}: {msgspec.json.encode(value).decode()}"
        if option.is_secret and value:
            shown = f"# {option.name}: {len(value) if option.is_list else 1} not shown"
        lines.append(f"{shown:<46}  # {loaded.origins[option.name]}")
    return "\n".join(lines)


def nearest(word: str, known: Iterable[str]) -> str:
    """``; did you mean X?`` for the known word most like ``word``, empty if none is like it."""
    matches = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"; did you mean {matches[0]}?" if matches else ""


def _service_warning(variables: tuple[str, ...]) -> tuple[str, ...]:
    if not variables:
        return ()
    listed = ", ".join(variables)
    return (f"ignored {listed}: Kubernetes made them for a service whose name begins with tandem",)


def _flag_origin(option: Option, value: str | bool | list[str]) -> str:
    if option.name == "model":
        return "argument MODEL"
    return f"flag {option.flag if value is not False else option.off_flag}"


def _from_environment(environment: Mapping[str, str], known: Mapping[str, Option]) -> dict[str, str]:
    by_variable = {option.variable: name for name, option in known.items()}
    found = {}
    for variable, text in environment.items():
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable == CONFIG_VARIABLE:
            continue
        if variable not in by_variable:
            raise SettingsError(
                f"unknown environment variable {variable}{nearest(variable, [*by_variable, CONFIG_VARIABLE])}"
            )
        if text:
            found[by_variable[variable]] = text
    return found


def _read_yaml(path: Path) -> dict[Any, object]:
    import yaml  # only when there is a file to read: the command line has to start quickly

    try:
        text = path.read_text(encoding="utf-8")
        root = yaml.compose(text, yaml.SafeLoader)
        content = yaml.safe_load(text)
    except OSError as error:
        raise SettingsError(f"can't read config file {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"config file {path} is not UTF-8 text") from error
    except RecursionError as error:
        raise SettingsError(f"config file {path} is nested too deeply") from error
    except yaml.YAMLError as error:
        raise SettingsError(
            f"config file {path} is not valid YAML: {' '.join(str(error).split())}"
        ) from error
    if root is None:
        return {}
    if not isinstance(root, yaml.MappingNode):
        raise SettingsError(f"config file {path} must hold `option: value` lines")
    names = [key.value for key, _ in root.value]
    if twice := [name for name in names if names.count(name) > 1]:
        raise SettingsError(f"config file {path} gives {twice[0]} twice")
    return dict(content)


def _convert(option: Option, value: object, origin: str, *, strict: bool) -> object:
    if option.is_boolean and not strict and isinstance(value, str):
        value = _BOOLEAN_WORDS.get(value.lower(), value)
    if option.is_list and isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    try:
        converted: object = msgspec.convert(value, _field_types()[option.name], strict=strict)
    except msgspec.ValidationError as error:
        raise _wrong_value(option, value, origin) from error
    text = isinstance(converted, str) and not _is_unicode(converted)
    if text or (isinstance(converted, float) and not math.isfinite(converted)):
        raise _wrong_value(option, value, origin)
    return converted


def _is_unicode(text: str) -> bool:
    """Bytes of the command line that are not UTF-8 arrive as halves of surrogate pairs."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _wrong_value(option: Option, value: object, origin: str) -> SettingsError:
    shown = "what it gives" if option.is_secret else repr(value)
    shown = shown if len(shown) <= 100 else shown[:97] + "..."
    return SettingsError(f"{origin}: {shown} is not allowed; expected {option.allowed}")


def _field_types() -> dict[str, Any]:
    return get_type_hints(Settings, include_extras=True)


def _option(field: inspect.Field) -> Option:
    described = cast(inspect.Metadata, field.type)
    kind = described.type
    if isinstance(kind, inspect.UnionType):
        kind = next(member for member in kind.types if not isinstance(member, inspect.NoneType))
    inner = kind.item_type if isinstance(kind, inspect.VarTupleType) else kind
    secret = isinstance(inner, inspect.Metadata) and bool((inner.extra or {}).get("secret"))
    return Option(
        name=field.name,
        description=(described.extra_json_schema or {})["description"],
        allowed=_allowed(kind),
        default=field.default,
        choices=tuple(map(str, kind.values)) if isinstance(kind, inspect.LiteralType) else (),
        is_boolean=isinstance(kind, inspect.BoolType),
        is_list=isinstance(kind, inspect.VarTupleType),
        is_secret=secret,
    )


def _allowed(kind: inspect.Type) -> str:
    match kind:
        case inspect.BoolType():
            return "true or false"
        case inspect.LiteralType(values=values):
            return "one of " + ", ".join(map(str, values))
        case inspect.IntType(ge=low, le=high):
            return f"a whole number from {low} to {high}"
        case inspect.FloatType(gt=None, ge=low, le=high):
            return f"a number from {low} to {high}"
        case inspect.FloatType(gt=low, le=high):
            return f"a number above {low}, {high} at most"
        case inspect.VarTupleType(item_type=item):
            return f"a list, each {_words(item)}"
        case inspect.Metadata():
            return _words(kind)
        case _:
            return "text"


def _words(kind: inspect.Type) -> str:
    """What the type says of itself, where its pattern would say little to a user."""
    extra = kind.extra if isinstance(kind, inspect.Metadata) else None
    return str((extra or {}).get("words", "text"))
