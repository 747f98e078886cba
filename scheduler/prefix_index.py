"""Which page holds the KV of which prompt prefix."""

from __future__ import annotations

from typing import NewType

EntryId = NewType("EntryId", int)
"""Names an indexed prefix; never reused."""

Parent = EntryId | str
"""The prefix before a page: another entry, or the cache salt at the root."""


class PrefixIndex:
    """Maps full pages of tokens, chained by what precedes them, to page ids. O(1) a page.

    An entry's key is (the entry before it, its own tokens), so the dictionary's hash is chained
    over the whole prefix and its equality test compares the tokens: a hash collision can slow a
    look-up, never falsify it. Entry ids are not reused, so the children of an evicted entry can
    not be reached by a later prefix that merely takes its place.
    """

    def __init__(self) -> None:
        self._pages: dict[tuple[Parent, tuple[int, ...]], tuple[EntryId, int]] = {}
        self._keys: dict[int, tuple[Parent, tuple[int, ...]]] = {}
        self._next_id = 0

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, page: int) -> bool:
        return page in self._keys

    def find(self, parent: Parent, tokens: tuple[int, ...]) -> tuple[EntryId, int] | None:
        """The entry and page holding ``tokens`` (one page full) after ``parent``, if any."""
        return self._pages.get((parent, tokens))

    def insert(self, parent: Parent, tokens: tuple[int, ...], page: int) -> EntryId:
        """Record that ``page`` holds ``tokens`` after ``parent``.

        If that content is known already, the earlier page stays indexed and its entry is returned.
        """
        key = (parent, tokens)
        known = self._pages.get(key)
        if known is not None:
            return known[0]
        if page in self._keys:
            raise ValueError(f"page {page} is indexed already")
        entry = EntryId(self._next_id)
        self._next_id += 1
        self._pages[key] = (entry, page)
        self._keys[page] = key
        return entry

    def remove(self, page: int) -> None:
        """Forget what ``page`` holds."""
        del self._pages[self._keys.pop(page)]
