"""Where a sequence's KV lives."""

from __future__ import annotations

import enum


class Tier(enum.StrEnum):
    """One of the two pools of pages. They have one layout, so moving a page is one copy."""

    DEVICE = "device"
    """The accelerator's own memory. There are none of its pages without an accelerator."""
    HOST = "host"
    """The machine's memory, pinned where a device copies from it."""
