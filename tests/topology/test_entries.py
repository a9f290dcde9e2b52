"""The tail of the entry cache: within its budget, and every offset leads to its entry."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from velaray.broker.partition.entries import ENTRY_BYTES, CachedEntry, EntryCache, TailMemory
from velaray.journal.errors import NotStored


async def nothing(offset: int, max_entries: int, max_bytes: int) -> Sequence[CachedEntry]:
    return []


def memory_of(entries: Sequence[CachedEntry]) -> int:
    return sum(len(entry.data) + ENTRY_BYTES for entry in entries)


@given(
    st.integers(0, 5),
    st.integers(0, 5 * ENTRY_BYTES),
    st.lists(st.integers(0, 2 * ENTRY_BYTES), max_size=60),
)
def test_the_tail_holds_the_newest_entries_that_fit(
    first: int, budget: int, sizes: list[int]
) -> None:
    memory = TailMemory(budget=budget)
    cache = EntryCache(nothing, first, memory)
    entries: list[CachedEntry] = []
    for number, size in enumerate(sizes):
        entries.append(CachedEntry(bytes(size), number, ""))
        cache.append(entries[-1])
        kept = len(entries)
        while kept > 1 and memory_of(entries[-kept:]) > budget:
            kept -= 1
        assert cache.end == first + len(entries)
        assert memory.used == memory_of(entries[-kept:])
        assert cache.bytes_held == sum(len(entry.data) for entry in entries[-kept:])
        for index, entry in enumerate(entries):
            found = cache.get(first + index)
            assert found is (entry if index >= len(entries) - kept else None)
            run = cache.run(first + index, 3)
            assert list(run) == (entries[index : index + 3] if found is entry else [])
        assert cache.get(cache.end) is None
        assert cache.get(first - 1) is None


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 300)), max_size=80), st.integers(0, 3))
def test_the_caches_of_a_host_share_one_budget(appends: list[tuple[int, int]], closed: int) -> None:
    memory = TailMemory(budget=8 * ENTRY_BYTES)
    caches = [EntryCache(nothing, 0, memory) for _ in range(4)]
    kept: list[tuple[int, CachedEntry]] = []
    for at, (number, size) in enumerate(appends):
        entry = CachedEntry(bytes(size), 1, "")
        caches[number].append(entry)
        kept.append((number, entry))
        while len(kept) > 1 and memory_of([entry for _, entry in kept]) > 8 * ENTRY_BYTES:
            del kept[0]
        if at == len(appends) // 2:
            caches[closed].close()
            kept = [each for each in kept if each[0] != closed]
            caches[closed] = EntryCache(nothing, caches[closed].end, memory)
        assert memory.used == memory_of([entry for _, entry in kept])
        for number, cache in enumerate(caches):
            mine = [entry for owner, entry in kept if owner == number]
            assert list(cache.run(cache.end - len(mine), 99)) == mine
            assert cache.get(cache.end - len(mine) - 1) is None


class Log:
    """An old log of single bytes, read five at a time; ``reads`` is where reads began."""

    def __init__(self, end: int) -> None:
        self.reads: list[int] = []
        self.broken = False
        self.cache = EntryCache(self._read, end)
        self._end = end

    async def _read(self, offset: int, max_entries: int, max_bytes: int) -> list[CachedEntry]:
        self.reads.append(offset)
        if self.broken:
            raise NotStored(str(offset))
        end = min(offset + 5, self._end)
        return [CachedEntry(bytes([at]), 1, "") for at in range(offset, end)]


def test_the_next_chunk_is_read_while_one_is_delivered() -> None:
    async def drain() -> None:
        log = Log(12)
        await log.cache.load(0)
        assert log.reads == [0]
        assert len(log.cache.run(0, 5)) == len(log.cache.run(2, 3)) + 2 == 5
        await log.cache.load(5)
        assert log.reads == [0, 5], "the read ahead is the one that is waited for"
        assert [entry.data for entry in log.cache.run(5, 9)] == [bytes([at]) for at in range(5, 10)]
        await log.cache.load(10)
        assert len(log.cache.run(10, 9)) == 2
        await asyncio.sleep(0)
        assert log.reads == [0, 5, 10], "nothing is older than the tail any more"

    asyncio.run(drain())


def test_chunks_that_nobody_reads_are_dropped() -> None:
    async def read_and_rest() -> None:
        log = Log(40)
        for offset in (0, 10, 20):
            await log.cache.load(offset)
        log.cache.drop_idle_chunks()
        assert log.cache.chunks_held == 3, "they were loaded since the last call"
        assert log.cache.get(12) is not None
        log.cache.drop_idle_chunks()
        assert log.cache.chunks_held == 1
        assert log.cache.get(12) is not None
        log.cache.drop_idle_chunks()
        log.cache.drop_idle_chunks()
        assert log.cache.chunks_held == 0
        await log.cache.load(0)
        assert log.reads == [0, 10, 20, 0], "a dropped chunk is read again"

    asyncio.run(read_and_rest())


def test_a_failed_read_ahead_is_raised_by_a_later_load() -> None:
    async def drain() -> None:
        log = Log(12)
        await log.cache.load(0)
        log.broken = True
        log.cache.run(0, 5)
        await asyncio.sleep(0)
        with pytest.raises(NotStored):
            await log.cache.load(5)
        log.broken = False
        await log.cache.load(5)
        assert len(log.cache.run(5, 5)) == 5

    asyncio.run(drain())
