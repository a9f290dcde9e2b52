"""The tail of the entry cache: within its budget, and every offset leads to its entry."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from velaray.topology.entries import CachedEntry, EntryCache


async def nothing(offset: int, max_entries: int, max_bytes: int) -> Sequence[CachedEntry]:
    return []


@given(
    st.integers(0, 5),
    st.integers(0, 40),
    st.lists(st.integers(0, 30), max_size=60),
)
def test_the_tail_holds_the_newest_that_fit(first: int, budget: int, sizes: list[int]) -> None:
    cache = EntryCache(nothing, first, budget)
    entries: list[CachedEntry] = []
    for number, size in enumerate(sizes):
        entries.append(CachedEntry(bytes(size), number, ""))
        cache.append(entries[-1])
        kept = len(entries)
        while kept > 1 and sum(len(entry.data) for entry in entries[-kept:]) > budget:
            kept -= 1
        assert cache.end == first + len(entries)
        assert cache.bytes_held == sum(len(entry.data) for entry in entries[-kept:])
        for index, entry in enumerate(entries):
            found = cache.get(first + index)
            assert found is (entry if index >= len(entries) - kept else None)
            run = cache.run(first + index, 3)
            assert list(run) == (entries[index : index + 3] if found is entry else [])
        assert cache.get(cache.end) is None
        assert cache.get(first - 1) is None
