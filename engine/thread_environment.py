"""Environment for a process that computes with torch. Torch-free: it must be set before torch loads."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

THREAD_ENVIRONMENT: Mapping[str, str] = MappingProxyType({"GOMP_SPINCOUNT": "10000"})
"""How long OpenMP threads spin before they sleep, in loop turns (some hundred microseconds).

By default they spin for many milliseconds when there are as many threads as cores. Then, as soon as
anything else wants a core, even our own HTTP process, every parallel region waits for a thread that has
lost its core to a spinning one: a decode step's matrix products took 30 ms alone, 950 ms beside one busy
process, and 95 ms beside it with this bound, which costs nothing alone. The user's own setting wins.
"""
