"""Pages and prefix index: laws under random use, and the order of eviction."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from scheduler.pages import OutOfPages, PagePool
from scheduler.prefix_index import PrefixIndex


def test_blank_pages_go_first_then_the_least_recently_released():
    pool = PagePool(4)
    pages, evicted = pool.allocate(4)
    assert evicted == []
    pool.release([pages[0]], [True])
    pool.release([pages[1], pages[2]], [True, True])
    pool.release([pages[3]], [False])
    assert pool.allocate(3) == ([pages[3], pages[0], pages[2]], [pages[0], pages[2]])
    assert pool.cached == 1


def test_a_shared_cached_page_is_not_evicted():
    pool = PagePool(2)
    pages, _ = pool.allocate(2)
    pool.release(pages, [True, True])
    pool.share([pages[1]])
    assert pool.allocate(1) == ([pages[0]], [pages[0]])
    with pytest.raises(OutOfPages):
        pool.allocate(1)


def test_releasing_a_page_nobody_holds_is_an_error():
    pool = PagePool(1)
    with pytest.raises(ValueError, match="not held"):
        pool.release([0], [False])


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4), st.booleans()), max_size=60))
def test_every_page_is_held_cached_or_blank(steps):
    pool = PagePool(7)
    holdings: list[list[int]] = []
    for kind, count, keep in steps:
        if kind == 0 and count <= pool.available:
            holdings.append(pool.allocate(count)[0])
        elif kind == 1 and holdings:
            pool.share(holdings[count % len(holdings)])
            holdings.append(list(holdings[count % len(holdings)]))
        elif kind == 2 and holdings:
            pages = holdings.pop(count % len(holdings))
            pool.release(pages, [keep] * len(pages))
        held = {page for pages in holdings for page in pages}
        assert pool.held == len(held)
        assert pool.available == pool.num_pages - len(held)
        assert all(pool.holders(page) == sum(page in pages for pages in holdings) for page in range(7))


def test_equal_tokens_after_different_prefixes_are_different():
    index = PrefixIndex()
    first = index.insert("", (1, 2), page=0)
    other = index.insert("", (3, 4), page=1)
    index.insert(first, (5, 6), page=2)
    assert index.find(other, (5, 6)) is None
    found = index.find(first, (5, 6))
    assert found is not None and found[1] == 2


def test_salts_do_not_share():
    index = PrefixIndex()
    index.insert("a", (1, 2), page=0)
    assert index.find("b", (1, 2)) is None


def test_known_content_keeps_its_first_page():
    index = PrefixIndex()
    entry = index.insert("", (1, 2), page=0)
    assert index.insert("", (1, 2), page=5) == entry
    assert 5 not in index and 0 in index


def test_children_of_an_evicted_prefix_are_not_found_through_its_successor():
    index = PrefixIndex()
    old = index.insert("", (1, 2), page=0)
    index.insert(old, (3, 4), page=1)
    index.remove(0)
    new = index.insert("", (1, 2), page=2)
    assert index.find(new, (3, 4)) is None


def test_a_page_holds_one_content():
    index = PrefixIndex()
    index.insert("", (1, 2), page=0)
    with pytest.raises(ValueError, match="indexed already"):
        index.insert("", (3, 4), page=0)
