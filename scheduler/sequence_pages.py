"""The pages of one tier: prefix hits, growth and release, over one pool and one index."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.pages import PagePool
from scheduler.prefix_index import Parent, PrefixIndex
from scheduler.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Hit:
    """A cached prefix."""

    pages: list[int]
    tail: Parent
    """The prefix they make; the salt if there are none."""


class SequencePages:
    """Gives sequences their pages and keeps the prefix index true to the pool."""

    def __init__(self, num_pages: int, page_size: int) -> None:
        self.pool = PagePool(num_pages)
        self.index = PrefixIndex()
        self.page_size = page_size

    def pages_for(self, tokens: int) -> int:
        """Pages that hold ``tokens`` tokens."""
        return -(-tokens // self.page_size)

    def find(self, sequence: Sequence, tokens: int) -> Hit:
        """The longest cached prefix, in full pages, of the sequence's first ``tokens`` tokens."""
        size = self.page_size
        pages: list[int] = []
        parent: Parent = sequence.salt
        for end in range(size, tokens + 1, size):
            found = self.index.find(parent, tuple(sequence.tokens[end - size : end]))
            if found is None:
                break
            parent, page = found
            pages.append(page)
        return Hit(pages, parent)

    def fits(self, tokens: int, hit: Hit, headroom: int) -> bool:
        """Whether ``tokens`` tokens that begin with ``hit`` leave ``headroom`` pages available."""
        revived = sum(self.pool.holders(page) == 0 for page in hit.pages)
        wanted = self.pages_for(tokens) - len(hit.pages)
        return self.pool.available - revived >= wanted + headroom

    def take(self, tokens: int, hit: Hit) -> list[int]:
        """Pages for ``tokens`` tokens that begin with ``hit``."""
        self.pool.share(hit.pages)
        return hit.pages + self._allocate(self.pages_for(tokens) - len(hit.pages))

    def settle(self, sequence: Sequence, pages: list[int], hit: Hit) -> None:
        """Let a sequence without pages have those that were taken for it."""
        sequence.hold(pages)
        sequence.indexed_pages = len(hit.pages)
        sequence.indexed_tail = hit.tail

    def covers(self, sequence: Sequence) -> bool:
        """Whether its pages hold all its known tokens."""
        return len(sequence.pages) * self.page_size >= len(sequence.tokens)

    def grow(self, sequence: Sequence, tokens: int) -> bool:
        """Make room for ``tokens`` tokens. Returns False, and changes nothing, without pages for it."""
        wanted = self.pages_for(tokens) - len(sequence.pages)
        if wanted > self.pool.available:
            return False
        if wanted > 0:
            sequence.extend(self._allocate(wanted))
        return True

    def index_computed(self, sequence: Sequence) -> None:
        """Offer the sequence's newly filled pages to later prefix look-ups."""
        size = self.page_size
        for number in range(sequence.indexed_pages, sequence.computed // size):
            tokens = tuple(sequence.tokens[number * size : (number + 1) * size])
            sequence.indexed_tail = self.index.insert(sequence.indexed_tail, tokens, sequence.pages[number])
            sequence.indexed_pages = number + 1

    def release(self, pages: list[int]) -> None:
        """Give back a holder's pages; those with indexed content stay cached while nobody needs room."""
        self.pool.release(pages, [page in self.index for page in pages])

    def forget(self, sequence: Sequence) -> None:
        """Remove from the index what only this sequence holds."""
        for page in sequence.pages:
            if page in self.index and self.pool.holders(page) == 1:
                self.index.remove(page)

    def forget_prefixes(self) -> None:
        """Give up every page that is kept for its content only."""
        for page in self.pool.forget():
            self.index.remove(page)

    def _allocate(self, count: int) -> list[int]:
        pages, evicted = self.pool.allocate(count)
        for page in evicted:
            self.index.remove(page)
        return pages
