"""The ``tandem`` command. Light on imports: help and errors come before anything heavy loads."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import server
from configs.loader import (
    CONFIG_VARIABLE,
    LoadedSettings,
    Option,
    SettingsError,
    describe,
    load_settings,
    nearest,
    options,
)

USAGE_ERROR = 2

OVERVIEW = """\
usage: tandem COMMAND ...

Tandem serves a language model with an OpenAI-compatible API, on machines with little or no GPU memory.

commands:
  serve [MODEL]   start the server
  chat            talk to a running server
  bench           measure a running server
  doctor          say what this machine offers and what would make Tandem faster
  profile [MODEL] measure this machine with a model, for the planner

`tandem COMMAND --help` lists the options of a command, `tandem --version` prints the version.
"""
COMMANDS = ("serve", "chat", "bench", "doctor", "profile")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the installed ``tandem`` calls this without arguments.

    Args:
        arguments: What follows the program's name; default: of this process.

    Returns:
        The exit code: 0 done, 1 the command failed, 2 it was called wrongly.
    """
    argv = sys.argv[1:] if arguments is None else arguments
    if not argv:
        sys.stderr.write(OVERVIEW)
        return USAGE_ERROR
    command, rest = argv[0], argv[1:]
    match command:
        case "-h" | "--help":
            sys.stdout.write(OVERVIEW)
            return 0
        case "-V" | "--version":
            print(f"tandem {server.__version__}")
            return 0
        case "serve":
            return _serve(rest)
        case "chat":
            from server.client import chat

            return _printing(lambda: chat.run(rest))
        case "bench":
            from server.client.bench import main as bench

            return _printing(lambda: bench.run(rest))
        case "doctor":
            return _in_a_process("engine.doctor", rest)
        case "profile":
            return _in_a_process("engine.profiler", rest)
        case _:
            return _fail("tandem", f"unknown command {command}{nearest(command, COMMANDS)}")


def _serve(argv: Sequence[str]) -> int:
    try:
        loaded, print_config = parse_serve_arguments(argv, os.environ)
    except SettingsError as error:
        return _fail("tandem serve", str(error))
    for warning in loaded.warnings:
        print(f"tandem serve: {warning}", file=sys.stderr)
    if print_config:
        return _printing(lambda: _print(describe(loaded)))
    from server.lifecycle import serve

    return serve(loaded.settings)


def _in_a_process(module: str, argv: Sequence[str]) -> int:
    """Run a command that finds the machine as an engine would, in a process that may load torch."""
    import subprocess

    from engine.thread_environment import THREAD_ENVIRONMENT

    import_path = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
    environment = {**THREAD_ENVIRONMENT, **os.environ, "PYTHONPATH": import_path}
    try:
        return subprocess.run([sys.executable, "-P", "-m", module, *argv], env=environment).returncode
    except KeyboardInterrupt:
        return 130


def parse_serve_arguments(argv: Sequence[str], environment: Mapping[str, str]) -> tuple[LoadedSettings, bool]:
    """Settings from the command line and everything below it, and whether only to print them.

    Raises:
        SettingsError: an unknown option or a wrong value, in any of the sources.
    """
    parser = _serve_parser()
    known, unknown = parser.parse_known_args(argv)
    if unknown:
        raise SettingsError(_unknown_argument(unknown[0]))
    flags = vars(known)
    config = flags.pop("config", None) or environment.get(CONFIG_VARIABLE)
    print_config = flags.pop("print_config")
    return load_settings(flags, environment, Path(config) if config else None), print_config


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Report like every other wrong setting, without a screen of usage."""
        raise SettingsError(message.removeprefix("argument "))


def _serve_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="tandem serve",
        description="Start the server.",
        epilog="Every option can also be set by an environment variable (--host-kv-pages: "
        "TANDEM_HOST_KV_PAGES) or in a YAML file (host_kv_pages: 100); flags win, then the environment, "
        f"then the file named by --config or {CONFIG_VARIABLE}.",
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument("--config", metavar="FILE", help="YAML file with options")
    parser.add_argument(
        "--print-config",
        action="store_true",
        default=False,
        help="print every value and its origin, then exit",
    )
    for option in options():
        _add_option(parser, option)
    return parser


def _add_option(parser: argparse.ArgumentParser, option: Option) -> None:
    shown = "" if option.default in (None, ()) else f" (default: {_shown(option.default)})"
    text = (option.description + shown).replace("%", "%%")
    if option.name == "model":
        parser.add_argument("model", metavar="MODEL", nargs="?", help=text)
    elif option.is_boolean:
        parser.add_argument(option.flag, dest=option.name, action=argparse.BooleanOptionalAction, help=text)
    else:
        metavar = (
            "{" + ",".join(option.choices) + "}" if option.choices else option.name.split("_")[-1].upper()
        )
        action = "append" if option.is_list else "store"
        parser.add_argument(option.flag, dest=option.name, metavar=metavar, help=text, action=action)


def _shown(default: object) -> str:
    return str(default).lower() if isinstance(default, bool) else str(default)


def _unknown_argument(argument: str) -> str:
    name = argument.split("=", 1)[0]
    if name == "--model":
        return "the model is given without a flag: tandem serve MODEL"
    if not name.startswith("-"):
        return f"unexpected argument {argument}; only one MODEL can be served"
    return f"unknown flag {name}{nearest(name, _flags())}"


def _flags() -> list[str]:
    names = [option.flag for option in options() if option.name != "model"]
    switches = [option.off_flag for option in options() if option.is_boolean]
    return [*names, *switches, "--config", "--print-config", "--help"]


def _printing(command: Callable[[], int]) -> int:
    """Run what prints to standard output; whoever reads it may have seen enough before it ends."""
    try:
        return command()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes again at its end
        return 0


def _print(text: str) -> int:
    print(text, flush=True)
    return 0


def _fail(program: str, message: str) -> int:
    print(f"{program}: {message}", file=sys.stderr)
    return USAGE_ERROR


if __name__ == "__main__":
    sys.exit(main())
