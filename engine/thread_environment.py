"""How the threads of a process that computes with torch get along. Torch-free: set before torch loads."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import MappingProxyType

THREAD_ENVIRONMENT: Mapping[str, str] = MappingProxyType({"GOMP_SPINCOUNT": "10000"})
"""How long OpenMP threads spin before they sleep, in loop turns (some hundred microseconds).

By default they spin for many milliseconds when there are as many threads as cores. Then, as soon as
anything else wants a core, even our own HTTP process, every parallel region waits for a thread that has
lost its core to a spinning one: a decode step's matrix products took 30 ms alone, 950 ms beside one busy
process, and 95 ms beside it with this bound, which costs nothing alone. The user's own setting wins.
"""

_SWITCH_SECONDS = 0.0005


def share_the_interpreter() -> None:
    """Let a thread that wants the interpreter have it soon: by default it waits for 5 ms.

    The threads of an emulated device, the executor's and the loop's each want it a moment at a time. A
    millisecond's operation beside a busy Python thread took 3.5 ms by default, 1.04 ms with this.
    """
    sys.setswitchinterval(_SWITCH_SECONDS)
