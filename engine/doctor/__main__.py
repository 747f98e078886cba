"""Entry point of ``tandem doctor``: ``python -m engine.doctor``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from engine.doctor import report
from engine.doctor.advice import advise


def main(arguments: Sequence[str]) -> int:
    """Examine this machine and print what was found. Returns the exit code: 130 if interrupted."""
    options = _parser().parse_args(arguments)
    try:
        from engine.doctor.examine import examine  # and torch: help and wrong options need not wait for it

        facts = examine(options.bandwidth_mib * 2**20)
        shown = report.to_json if options.json else report.to_text
        print(shown(facts, advise(facts)), flush=True)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # whoever read it has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes again at its end
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tandem doctor",
        description="Say what this machine offers and what would make Tandem faster on it.",
        allow_abbrev=False,
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    parser.add_argument(
        "--bandwidth-mib",
        type=_positive,
        default=512,
        metavar="N",
        help="MiB of memory to read for the bandwidth, more than the caches hold (default: %(default)s)",
    )
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above 0")
    return int(text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
