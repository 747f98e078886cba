"""Entry point of ``tandem profile``: ``python -m engine.profiler``."""

from __future__ import annotations

import datetime
import os
import sys
from collections.abc import Sequence

from configs.loader import SettingsError
from engine.model_error import ModelError
from engine.profiler.arguments import parse_arguments

_USAGE_ERROR = 2


def main(arguments: Sequence[str]) -> int:
    """Measure and write a profile.

    Returns:
        The exit code: 1 if the model can't be had, 2 for wrong arguments or a file that can't be written,
        130 if interrupted.
    """
    try:
        parsed = parse_arguments(arguments)
        from engine.profiler.command import run  # and torch: help and wrong options need not wait for it

        run(parsed, datetime.datetime.now(datetime.UTC).date().isoformat(), sys.stdout, sys.stderr)
    except (SettingsError, ModelError) as error:
        print(f"tandem profile: {error}", file=sys.stderr)
        return _USAGE_ERROR if isinstance(error, SettingsError) else 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # whoever read it has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes again at its end
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
