"""The pages of sequences: prefix hits, growth and release, over one pool and one index."""

from __future__ import annotations

from scheduler.pages import PagePool
from scheduler.prefix_index import Parent, PrefixIndex
from scheduler.sequence import Sequence


class SequencePages:
    """Gives sequences their pages and keeps the prefix index true to the pool."""

    def __init__(self, num_pages: int, page_size: int) -> None:
        self.pool = PagePool(num_pages)
        self.index = PrefixIndex()
        self.page_size = page_size

    def pages_for(self, tokens: int) -> int:
        """Pages that hold ``tokens`` tokens."""
        return -(-tokens // self.page_size)

    def admit(self, sequence: Sequence, headroom: int) -> bool:
        """Give a sequence without pages those for all its known tokens, shared where cached.

        At least its last token stays to be computed, since its logits are wanted. ``headroom``
        pages must remain available. Returns False, and changes nothing, if there are too few.
        """
        hits, tail = self._cached_prefix(sequence)
        wanted = self.pages_for(len(sequence.tokens)) - len(hits)
        revived = sum(self.pool.holders(page) == 0 for page in hits)
        if self.pool.available - revived < wanted + headroom:
            return False
        self.pool.share(hits)
        sequence.pages = hits + self._allocate(wanted)
        sequence.computed = len(hits) * self.page_size
        sequence.indexed_pages = len(hits)
        sequence.indexed_tail = tail
        return True

    def grow(self, sequence: Sequence) -> bool:
        """Make room for all known tokens. Returns False, and changes nothing, without pages for it."""
        wanted = self.pages_for(len(sequence.tokens)) - len(sequence.pages)
        if wanted > self.pool.available:
            return False
        sequence.pages += self._allocate(wanted)
        return True

    def index_computed(self, sequence: Sequence) -> None:
        """Offer the sequence's newly filled pages to later prefix look-ups."""
        size = self.page_size
        for number in range(sequence.indexed_pages, sequence.computed // size):
            tokens = tuple(sequence.tokens[number * size : (number + 1) * size])
            sequence.indexed_tail = self.index.insert(sequence.indexed_tail, tokens, sequence.pages[number])
            sequence.indexed_pages = number + 1

    def release(self, sequence: Sequence) -> None:
        """Take the sequence's pages; those with indexed content stay cached while nobody needs room."""
        self.pool.release(sequence.pages, [page in self.index for page in sequence.pages])
        sequence.pages = []
        sequence.computed = 0
        sequence.indexed_pages = 0
        sequence.indexed_tail = sequence.salt

    def forget(self, sequence: Sequence) -> None:
        """Remove from the index what only this sequence holds."""
        for page in sequence.pages:
            if page in self.index and self.pool.holders(page) == 1:
                self.index.remove(page)

    def _allocate(self, count: int) -> list[int]:
        pages, evicted = self.pool.allocate(count)
        for page in evicted:
            self.index.remove(page)
        return pages

    def _cached_prefix(self, sequence: Sequence) -> tuple[list[int], Parent]:
        size = self.page_size
        pages: list[int] = []
        parent: Parent = sequence.salt
        for start in range(0, len(sequence.tokens) - size, size):
            found = self.index.find(parent, tuple(sequence.tokens[start : start + size]))
            if found is None:
                break
            parent, page = found
            pages.append(page)
        return pages, parent
