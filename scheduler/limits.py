"""What the scheduler may hand out."""

from __future__ import annotations

import msgspec

from scheduler.tier import Tier


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Known once the model is loaded."""

    host_pages: int
    device_pages: int = 0
    """0: there is no accelerator, and the CPU computes everything from host pages."""
    page_size: int
    """Tokens in a page."""
    page_bytes: int = 0
    """Of all layers; for counting migrated bytes."""
    max_running: int
    """Sequences that hold pages at once."""
    max_batch_tokens: int
    """Tokens computed in one iteration; those of host rows are not counted."""
    context_length: int
    """Tokens one sequence may hold; its pages must fit a tier it can decode in, so that it can finish."""
    eos_token_ids: tuple[int, ...] = ()
    prefix_caching: bool = True
    """Share prefix pages between requests; the choices of one request always share."""
    host_decodes: bool = True
    """Whether the CPU decodes what is in the host tier; else that only keeps what had to leave the device."""

    @property
    def has_device(self) -> bool:
        """Whether there are two tiers."""
        return self.device_pages > 0

    def decodes_in(self, tier: Tier) -> bool:
        """Whether sequences of ``tier`` are computed where they are."""
        return tier is Tier.DEVICE or self.host_decodes or not self.has_device

    def check(self) -> None:
        """Refuse what can't work.

        Raises:
            ValueError: a sequence of the context length could never finish, or nothing could run.
        """
        pages = self.device_pages
        if self.decodes_in(Tier.HOST):
            pages = max(pages, self.host_pages)
        if self.context_length > pages * self.page_size:
            raise ValueError("the pages can't hold one sequence of the context length")
        if min(self.max_running, self.max_batch_tokens) < 1:
            raise ValueError("max_running and max_batch_tokens must be at least 1")
