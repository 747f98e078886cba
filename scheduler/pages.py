"""KV pages of one tier: who holds them, which still have reusable content, which are blank."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence


class OutOfPages(Exception):
    """More pages were asked for than are available."""


class PagePool:
    """Reference-counted pages 0 .. num_pages - 1. Every operation is O(1) a page.

    A page is *held* (by one or more sequences), *cached* (held by none, content kept for a later
    prefix hit) or *blank*. Cached pages count as available: allocation takes blank pages first,
    then the least recently released cached ones.
    """

    def __init__(self, num_pages: int) -> None:
        if num_pages < 1:
            raise ValueError(f"a page pool needs at least one page, not {num_pages}")
        self.num_pages = num_pages
        self._holders = [0] * num_pages
        self._blank = list(range(num_pages - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()

    @property
    def available(self) -> int:
        """Pages that can be allocated now."""
        return len(self._blank) + len(self._cached)

    @property
    def cached(self) -> int:
        """Pages nobody holds whose content is kept."""
        return len(self._cached)

    @property
    def held(self) -> int:
        """Pages in use by at least one sequence."""
        return self.num_pages - self.available

    def holders(self, page: int) -> int:
        """How many sequences hold ``page``."""
        return self._holders[page]

    def allocate(self, count: int) -> tuple[list[int], list[int]]:
        """Take ``count`` pages for one holder.

        Returns:
            The pages, and those among them whose cached content is hereby lost (the caller
            removes them from its index).

        Raises:
            OutOfPages: fewer are available; nothing was taken.
        """
        if count > self.available:
            raise OutOfPages(f"{count} pages wanted, {self.available} available")
        pages: list[int] = []
        evicted: list[int] = []
        for _ in range(count):
            if self._blank:
                page = self._blank.pop()
            else:
                page, _none = self._cached.popitem(last=False)
                evicted.append(page)
            self._holders[page] = 1
            pages.append(page)
        return pages, evicted

    def forget(self) -> list[int]:
        """Make every cached page blank.

        Returns:
            These pages (the caller removes them from its index).
        """
        forgotten = list(self._cached)
        self._cached.clear()
        self._blank += forgotten
        return forgotten

    def share(self, pages: Iterable[int]) -> None:
        """Add a holder to each of ``pages``, which are held or cached."""
        for page in pages:
            if self._holders[page] == 0:
                del self._cached[page]
            self._holders[page] += 1

    def release(self, pages: Sequence[int], keep: Iterable[bool]) -> None:
        """Remove a holder from each of ``pages``.

        Those left without one are cached if their ``keep`` is true, else blank. The last page
        counts as least recently used: the tail of a prefix is worth less than its head.
        """
        for page, kept in reversed(list(zip(pages, keep, strict=True))):
            if self._holders[page] < 1:
                raise ValueError(f"page {page} is released but not held")
            self._holders[page] -= 1
            if self._holders[page] == 0:
                if kept:
                    self._cached[page] = None
                else:
                    self._blank.append(page)
