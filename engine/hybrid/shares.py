"""The accelerator's share of what there is."""

from __future__ import annotations

from scheduler.messages import Start

_DEVICE_SHARE = 4


def device_pages(start: Start, host_pages: int) -> int:
    """Pages of the device's tier; 0 without an accelerator."""
    if start.device == "cpu":
        return 0
    return start.device_kv_pages or max(host_pages // _DEVICE_SHARE, 1)


def accelerator_threads(threads: int) -> int:
    """Of all threads, those that play the accelerator.

    Both sides compute at once, so each gets its share; with one thread they take turns.
    """
    return max(threads - max(threads // 2, 1), 1)
