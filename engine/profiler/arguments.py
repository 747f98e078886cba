"""Arguments of ``tandem profile``. Loads no torch."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from configs.loader import Option, SettingsError, load_settings, nearest, options
from configs.settings import Settings

DEVICES = ("cpu", "emulated")
_SETTINGS = (
    "model", "dtype", "quantization", "kv_dtype", "page_size", "threads", "cpu_kernels", "max_batch_tokens",
)  # fmt: skip
"""Options of ``tandem serve`` that the times depend on."""
_OWN_FLAGS = ("--output", "--device", "--seconds", "--help")
_MOST_SECONDS = 86400.0


@dataclass(frozen=True, slots=True)
class Arguments:
    """What was asked for."""

    settings: Settings
    """Those the times depend on; the others have their defaults."""
    device: str
    seconds: float
    output: Path | None


def parse_arguments(argv: Sequence[str]) -> Arguments:
    """Arguments of the command line.

    Raises:
        SettingsError: an unknown flag or a wrong value.
        SystemExit: help was asked for, and printed.
    """
    known, unknown = _parser().parse_known_args(argv)
    if unknown:
        raise SettingsError(_unknown(unknown[0]))
    found = vars(known)
    flags = {name: found[name] for name in _SETTINGS if name in found}
    return Arguments(
        settings=load_settings(flags, {}).settings,
        device=_device(found["device"]),
        seconds=_seconds(found["seconds"]),
        output=Path(found["output"]) if "output" in found else None,
    )


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise SettingsError(message.removeprefix("argument "))


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="tandem profile",
        description="Measure how long each stage of serving takes on this machine, for the planner.",
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    for option in _settings():
        described = f"{option.description} (default: {option.default})"
        text = (option.description if option.default is None else described).replace("%", "%%")
        if option.name == "model":
            parser.add_argument("model", metavar="MODEL", nargs="?", help=text)
        else:
            choices = "{" + ",".join(option.choices) + "}"
            metavar = choices if option.choices else option.name.split("_")[-1].upper()
            parser.add_argument(option.flag, dest=option.name, metavar=metavar, help=text)
    parser.add_argument(
        "--device",
        metavar="{" + ",".join(DEVICES) + "}",
        default="emulated",
        help="what is measured as the accelerator: here the CPU stands in for it, with streams of its own "
        "(emulated) or without (cpu) (default: %(default)s)",
    )
    parser.add_argument(
        "--seconds", metavar="N", default="60", help="about how long to measure (default: %(default)s)"
    )
    parser.add_argument(
        "--output", metavar="FILE", help="JSON file to write; default: MODEL-DEVICE.json, if there is none"
    )
    return parser


def _settings() -> tuple[Option, ...]:
    return tuple(option for option in options() if option.name in _SETTINGS)


def _unknown(argument: str) -> str:
    name = argument.split("=", 1)[0]
    if not name.startswith("-"):
        return f"unexpected argument {argument}; only one MODEL can be profiled"
    flags = [*(option.flag for option in _settings() if option.name != "model"), *_OWN_FLAGS]
    return f"unknown flag {name}{nearest(name, flags)}"


def _device(text: str) -> str:
    if text not in DEVICES:
        raise SettingsError(f"flag --device: {text!r} is not allowed; expected one of {', '.join(DEVICES)}")
    return text


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= _MOST_SECONDS:
        raise SettingsError(
            f"flag --seconds: {text!r} is not allowed; expected a number above 0, {_MOST_SECONDS:.0f} at most"
        )
    return value
