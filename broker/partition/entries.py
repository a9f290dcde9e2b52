"""The bytes of a partition's entries: a cache of the newest ones, and reads of older ones.

The tail cache holds the newest durable entries, so consumers that keep up never cause a disk read.
All partitions of a host share one byte budget for it: the oldest entries of the host are dropped.
Older entries are read from ledgers in chunks, the next one while one is delivered; a few chunks are
kept while they are read, so that several consumers draining the same backlog share one read.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from velaray.topology.config import ClusterConfig
from velaray.wire.messages import known_key_hash

TAIL_BUDGET = 32 << 20
"""Bytes of memory of the tail caches of a host."""
ENTRY_BYTES = 150
"""Bytes of memory that an entry takes beside its data."""
CHUNK_ENTRIES = 512
CHUNK_BYTES = 4 << 20
CHUNKS_KEPT = 8
HASHES_KEPT = 20_000


class CachedEntry(NamedTuple):
    """One entry: its bytes, its number of messages, the chunked message that it is part of."""

    data: bytes | memoryview
    messages: int
    chunk_uuid: str


_NEW_ENTRY = partial(tuple.__new__, CachedEntry)


class _Stored(Protocol):
    """The event of an entry."""

    messages: int
    chunk_uuid: str


def cached_entries(blobs: Sequence[memoryview], events: Sequence[_Stored]) -> list[CachedEntry]:
    """Entries that were read from a journal."""
    messages = [event.messages or 1 for event in events]
    uuids = [event.chunk_uuid for event in events]
    # Without a call of Python's for each: most entries of a backlog are made here.
    return list(map(_NEW_ENTRY, zip(blobs, messages, uuids, strict=True)))


ReadChunk = Callable[[int, int, int], Awaitable[Sequence[CachedEntry]]]
"""Reads entries from an offset on, up to a number of entries and of bytes; returns at least one, or
raises."""


class _Tail:
    """The newest entries of one partition, from offset ``start`` on."""

    __slots__ = ("bytes", "closed", "dropped", "entries", "places", "start")

    def __init__(self, start: int) -> None:
        # A list, since access to the middle of a deque is slow. Dropped entries leave empty places
        # before ``dropped``, until these are the majority.
        self.entries: list[CachedEntry | None] = []
        self.dropped = 0
        self.start = start
        self.bytes = 0
        self.places = 0  # in the order of `TailMemory`
        self.closed = False

    def __len__(self) -> int:
        return len(self.entries) - self.dropped

    @property
    def memory(self) -> int:
        return self.bytes + len(self) * ENTRY_BYTES

    def drop_oldest(self, most: int, excess: int) -> tuple[int, int]:
        """Drop entries until they had ``excess`` bytes of memory, at most ``most``; returns their
        number and bytes of memory."""
        entries, at, freed = self.entries, self.dropped, 0
        end = at + most
        while at < end and freed < excess:
            oldest = entries[at]
            assert oldest is not None
            freed += len(oldest.data) + ENTRY_BYTES
            entries[at] = None
            at += 1
        count = at - self.dropped
        self.bytes -= freed - count * ENTRY_BYTES
        self.start += count
        self.dropped = at
        if at * 2 > len(entries):
            del entries[:at]
            self.dropped = 0
        return count, freed

    def close(self) -> None:
        self.start += len(self)
        self.entries, self.dropped, self.bytes = [], 0, 0
        self.closed = True


class _Place:
    """Entries of one partition that follow each other in the order of all entries of a host."""

    __slots__ = ("entries", "tail")

    def __init__(self, tail: _Tail) -> None:
        self.tail = tail
        self.entries = 0


class TailMemory:
    """The memory of the tail caches of a host; a part of `ActorHost`."""

    def __init__(self, config: ClusterConfig | None = None, budget: int = TAIL_BUDGET) -> None:
        self.used = 0
        """Bytes of memory of all entries."""
        self._budget = budget
        self._order: deque[_Place] = deque()  # oldest first
        self._void = 0  # the places of closed tails

    def append(self, tail: _Tail, entry: CachedEntry) -> None:
        """Add an entry, and drop the oldest ones beyond the budget."""
        size = len(entry.data)
        tail.entries.append(entry)
        tail.bytes += size
        if tail.closed:
            return
        self._add(tail, 1, size + ENTRY_BYTES)

    def append_run(self, tail: _Tail, entries: Sequence[CachedEntry], size: int) -> None:
        """Add entries with ``size`` bytes, and drop the oldest ones beyond the budget."""
        tail.entries += entries
        tail.bytes += size
        if not tail.closed:
            self._add(tail, len(entries), size + len(entries) * ENTRY_BYTES)

    def _add(self, tail: _Tail, entries: int, memory: int) -> None:
        order = self._order
        if not order or order[-1].tail is not tail:
            order.append(_Place(tail))
            tail.places += 1
        order[-1].entries += entries
        self.used += memory
        if self.used > self._budget:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        """Drop the oldest entries beyond the budget, but not the newest of all."""
        order = self._order
        while self.used > self._budget:
            oldest = order[0]
            tail, most = oldest.tail, oldest.entries - (len(order) == 1)
            if tail.closed:
                order.popleft()
                self._void -= 1
                continue
            if not most:
                return
            count, freed = tail.drop_oldest(most, self.used - self._budget)
            self.used -= freed
            oldest.entries -= count
            if not oldest.entries:
                order.popleft()
                tail.places -= 1

    def close(self, tail: _Tail) -> None:
        """Drop all entries of a tail."""
        if tail.closed:
            return
        self.used -= tail.memory
        self._void += tail.places
        tail.close()
        if self._void * 2 > len(self._order):
            self._order = deque(each for each in self._order if not each.tail.closed)
            self._void = 0

    def stop(self) -> None:
        """The partitions have closed their tails."""

    def abort(self) -> None:
        """The memory ends with the process."""


class EntryCache:
    """Entries by offset. ``read`` loads consecutive entries from the journal."""

    def __init__(self, read: ReadChunk, next_offset: int, memory: TailMemory | None = None) -> None:
        """``memory`` is that of the host; without it, the cache has one of its own."""
        self._read = read
        self._memory = memory or TailMemory()
        self._tail = _Tail(next_offset)
        self._chunks: OrderedDict[int, Sequence[CachedEntry]] = OrderedDict()
        self._read_lately: set[int] = set()  # chunks, since `drop_idle_chunks`
        self._loading: dict[int, asyncio.Task[None]] = {}
        self._unreadable: set[int] = set()  # where a read failed: no read-ahead there
        self._hashes: dict[int, int] = {}  # hashes of keys, for the last requested entries

    @property
    def end(self) -> int:
        """The offset after the newest entry."""
        return self._tail.start + len(self._tail)

    @property
    def bytes_held(self) -> int:
        """Bytes of the tail cache (the chunks hold at most another 32 MiB while older entries are
        read)."""
        return self._tail.bytes

    @property
    def chunks_held(self) -> int:
        """The number of chunks of older entries in memory."""
        return len(self._chunks)

    def append(self, entry: CachedEntry) -> None:
        """Add the newest durable entry."""
        self._memory.append(self._tail, entry)

    def append_run(self, entries: Sequence[CachedEntry], size: int) -> None:
        """Add the newest durable entries, which have ``size`` bytes."""
        self._memory.append_run(self._tail, entries, size)

    def close(self) -> None:
        """Release the memory of the tail cache."""
        self._memory.close(self._tail)

    def get(self, offset: int) -> CachedEntry | None:
        """The entry if it is in memory."""
        tail = self._tail
        index = offset - tail.start
        if index >= 0:
            index += tail.dropped
            return tail.entries[index] if index < len(tail.entries) else None
        start = self._chunk_of(offset)
        return None if start is None else self._chunks[start][offset - start]

    def run(self, offset: int, count: int) -> Sequence[CachedEntry]:
        """The entries from ``offset`` on that are in memory together, at most ``count``.

        Empty if the entry at ``offset`` isn't in memory. For older entries the next chunk is read
        ahead.
        """
        tail = self._tail
        index = offset - tail.start
        if index >= 0:
            index += tail.dropped
            return tail.entries[index : index + count]  # type: ignore[return-value]
        start = self._chunk_of(offset)
        if start is None:
            return ()
        chunk = self._chunks[start]
        self._read_ahead(start + len(chunk))
        return chunk[offset - start : offset - start + count]

    def _chunk_of(self, offset: int) -> int | None:
        """The first offset of the chunk that holds an entry."""
        for start in reversed(self._chunks):
            if start <= offset < start + len(self._chunks[start]):
                self._read_lately.add(start)
                return start
        return None

    def hashes(self, offset: int, count: int) -> list[int]:
        """The hashes of the keys of consecutive entries; 0 for entries that aren't in memory
        because they were trimmed."""
        known = self._hashes
        found = []
        for at in range(offset, offset + count):
            hashed = known.get(at)
            if hashed is None:
                entry = self.get(at)
                if entry is None:
                    found.append(0)
                    continue
                hashed = known[at] = known_key_hash(entry.data)
            found.append(hashed)
        while len(known) > HASHES_KEPT:
            del known[next(iter(known))]
        return found

    def drop_idle_chunks(self) -> None:
        """Drop the chunks of older entries that weren't read since the last call."""
        for start in self._chunks.keys() - self._read_lately:
            del self._chunks[start]
        self._read_lately.clear()

    async def load(self, offset: int) -> None:
        """Read the entry and those after it into memory; concurrent loads share the read.

        Raises what the journal raises (`CorruptJournal`).
        """
        if self.get(offset) is not None:
            return
        await asyncio.shield(self._loading.get(offset) or self._start_loading(offset))

    def _read_ahead(self, offset: int) -> None:
        known = offset in self._chunks or offset in self._loading or offset in self._unreadable
        if offset < self._tail.start and not known:
            self._start_loading(offset).add_done_callback(_fail_in_silence)

    def _start_loading(self, offset: int) -> asyncio.Task[None]:
        task = self._loading[offset] = asyncio.get_running_loop().create_task(self._load(offset))
        return task

    async def _load(self, offset: int) -> None:
        try:
            self._unreadable.add(offset)
            chunk = await self._read(offset, CHUNK_ENTRIES, CHUNK_BYTES)
            self._unreadable.discard(offset)
            self._chunks[offset] = chunk
            while len(self._chunks) > CHUNKS_KEPT:
                self._read_lately.discard(self._chunks.popitem(last=False)[0])
            self._read_lately.add(offset)
        finally:
            self._loading.pop(offset, None)


def _fail_in_silence(task: asyncio.Task[None]) -> None:
    """Ignore the error of a read-ahead: a later load of these entries raises it."""
    if not task.cancelled():
        task.exception()
