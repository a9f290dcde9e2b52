"""The bytes of a partition's entries: a cache of the newest ones, and reads of older ones.

The tail cache holds the newest durable entries up to a byte budget, so consumers that keep
up never cause a disk read. Older entries are read from ledgers in chunks, the next one while
one is delivered; a few chunks are kept, so that several consumers draining the same backlog
share one read.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from velaray.wire.messages import known_key_hash

TAIL_BUDGET = 32 << 20
CHUNK_ENTRIES = 512
CHUNK_BYTES = 4 << 20
CHUNKS_KEPT = 8
HASHES_KEPT = 20_000


class CachedEntry(NamedTuple):
    """One entry: its bytes, its number of messages, the chunked message that it is part of."""

    data: bytes | memoryview
    messages: int
    chunk_uuid: str


ReadChunk = Callable[[int, int, int], Awaitable[Sequence[CachedEntry]]]
"""Reads entries from an offset on, up to a number of entries and of bytes; returns at least one, or
raises."""


class EntryCache:
    """Entries by offset. ``read`` loads consecutive entries from the journal."""

    def __init__(self, read: ReadChunk, next_offset: int, budget: int = TAIL_BUDGET) -> None:
        self._read = read
        self._budget = budget
        # A list, since access to the middle of a deque is slow. Dropped entries leave empty places
        # # before ``_dropped``, until these are the majority.
        self._tail: list[CachedEntry | None] = []
        self._dropped = 0
        self._tail_start = next_offset
        self._tail_bytes = 0
        self._chunks: OrderedDict[int, Sequence[CachedEntry]] = OrderedDict()
        self._loading: dict[int, asyncio.Task[None]] = {}
        self._unreadable: set[int] = set()  # where a read failed: no read-ahead there
        self._hashes: dict[int, int] = {}  # hashes of keys, for the last requested entries

    @property
    def end(self) -> int:
        """The offset after the newest entry."""
        return self._tail_start + len(self._tail) - self._dropped

    @property
    def bytes_held(self) -> int:
        """Bytes of the tail cache (the chunks hold at most another 32 MiB)."""
        return self._tail_bytes

    def append(self, entry: CachedEntry) -> None:
        """Add the newest durable entry."""
        self._tail.append(entry)
        self._tail_bytes += len(entry.data)
        while self._tail_bytes > self._budget and len(self._tail) - self._dropped > 1:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        oldest = self._tail[self._dropped]
        assert oldest is not None
        self._tail_bytes -= len(oldest.data)
        self._tail_start += 1
        self._tail[self._dropped] = None
        self._dropped += 1
        if self._dropped * 2 > len(self._tail):
            del self._tail[: self._dropped]
            self._dropped = 0

    def get(self, offset: int) -> CachedEntry | None:
        """The entry if it is in memory."""
        index = offset - self._tail_start
        if index >= 0:
            index += self._dropped
            return self._tail[index] if index < len(self._tail) else None
        for start in reversed(self._chunks):
            chunk = self._chunks[start]
            if start <= offset < start + len(chunk):
                return chunk[offset - start]
        return None

    def run(self, offset: int, count: int) -> Sequence[CachedEntry]:
        """The entries from ``offset`` on that are in memory together, at most ``count``.

        Empty if the entry at ``offset`` isn't in memory. For older entries the next chunk is read
        ahead.
        """
        index = offset - self._tail_start
        if index >= 0:
            index += self._dropped
            return self._tail[index : index + count]  # type: ignore[return-value]
        for start in reversed(self._chunks):
            chunk = self._chunks[start]
            if start <= offset < start + len(chunk):
                self._read_ahead(start + len(chunk))
                return chunk[offset - start : offset - start + count]
        return ()

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

    async def load(self, offset: int) -> None:
        """Read the entry and those after it into memory; concurrent loads share the read.

        Raises what the journal raises (`CorruptJournal`).
        """
        if self.get(offset) is not None:
            return
        await asyncio.shield(self._loading.get(offset) or self._start_loading(offset))

    def _read_ahead(self, offset: int) -> None:
        known = offset in self._chunks or offset in self._loading or offset in self._unreadable
        if offset < self._tail_start and not known:
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
                self._chunks.popitem(last=False)
        finally:
            self._loading.pop(offset, None)


def _fail_in_silence(task: asyncio.Task[None]) -> None:
    """Ignore the error of a read-ahead: a later load of these entries raises it."""
    if not task.cancelled():
        task.exception()
