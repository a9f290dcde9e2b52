"""Writes and reads one generation of a partition's compacted entries.

A generation is a journal of its own: the kept entries in the order of the log, then a checkpoint
with the index (`velaray.actors.partition.compacted_index`). So a view is opened without reading its
entries, and doesn't depend on the partition's log. In memory it takes 8 bytes per kept entry, and
about 100 for each partly kept batch.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from google.protobuf.message import Message

from velaray.actors.machine import digest
from velaray.actors.partition.compacted_index import CompactedIndex, CompactedIndexMachine
from velaray.actors.partition.ledger_table import LedgerTable
from velaray.actors.subscription.cursor import mask_to_words
from velaray.broker.partition.entries import CachedEntry, EntryCache, cached_entries
from velaray.events.codec import decode, encode
from velaray.events.events_pb2 import CompactedLedger, EntryCompacted, GenerationCompleted
from velaray.events.ids import ActorKey, Position
from velaray.journal.errors import NotStored
from velaray.journal.journal import Journal, JournalSettings
from velaray.journal.scan import EntryRun
from velaray.journal.store import LedgerStore

COMMIT_ENTRIES = 256
COMMIT_BYTES = 1 << 20
SETTINGS = JournalSettings(roll_records=1 << 40, roll_bytes=1 << 30)
"""Rolls over rarely: each ledger begins with the whole index so far, so few large ledgers are
better."""

_MACHINE = CompactedIndexMachine()


class ViewWriter:
    """Writes one generation, which takes effect when the partition publishes it."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._index = _MACHINE.initial()
        self._staged = 0
        self._staged_bytes = 0

    @property
    def entries(self) -> int:
        """The number of kept entries."""
        return len(self._index.offsets)

    async def start(self) -> None:
        """Raises what `Journal.start` raises."""
        await self._journal.start(*self._checkpoint())

    def _checkpoint(self) -> tuple[Mapping[str, bytes], bytes]:
        segments = _MACHINE.snapshot(self._index)
        return segments, digest(segments)

    def _stage(self, event: Message, blob: bytes | memoryview | None = None) -> None:
        _MACHINE.evolve(self._index, event)
        self._journal.stage(encode(event), blob)

    async def add(self, offset: int, entry: CachedEntry, mask: int | None) -> None:
        """Keep an entry; ``mask`` has the remaining messages of a batch (None: all).

        Raises what `Journal.commit` and `Journal.roll` raise.
        """
        event = EntryCompacted(offset=offset, chunk_uuid=entry.chunk_uuid)
        if entry.messages > 1:
            event.messages = entry.messages
        if mask is not None:
            event.kept.extend(mask_to_words(mask))
        self._stage(event, entry.data)
        self._staged += 1
        self._staged_bytes += len(entry.data)
        if self._staged >= COMMIT_ENTRIES or self._staged_bytes >= COMMIT_BYTES:
            await self._commit()
            if self._journal.should_roll:
                await self._journal.roll(*self._checkpoint())

    async def _commit(self) -> None:
        self._staged = self._staged_bytes = 0
        await self._journal.commit()

    async def finish(self, horizon: int, ledgers: Sequence[tuple[int, int]]) -> None:
        """Complete the generation and write the index. The whole view is durable on return.

        ``ledgers`` are those of the log below the horizon: (ledger id, offset of its entry 0).
        Raises what `Journal.commit` and `Journal.roll` raise.
        """
        needed = [
            CompactedLedger(ledger_id=ledger_id, first=first)
            for ledger_id, first in self._needed(horizon, ledgers)
        ]
        self._stage(GenerationCompleted(horizon=horizon, ledgers=needed))
        await self._commit()
        await self._journal.roll(*self._checkpoint())

    def _needed(self, horizon: int, ledgers: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """The ledgers with kept entries."""
        offsets = self._index.offsets
        ends = [first for _, first in ledgers[1:]] + [horizon]
        starts = [bisect_left(offsets, first) for _, first in ledgers]
        stops = [bisect_left(offsets, end) for end in ends]
        return [
            row for row, start, stop in zip(ledgers, starts, stops, strict=True) if start < stop
        ]

    async def close(self) -> None:
        """Release the file."""
        await self._journal.close()


class CompactedView:
    """A complete generation, for reading."""

    def __init__(self, journal: Journal, index: CompactedIndex) -> None:
        self.horizon = index.horizon
        self.offsets = index.offsets
        self.masks = index.masks
        self.table = LedgerTable(index.ledgers, index.horizon)
        self.cache = EntryCache(self.read, len(index.offsets))
        self._journal = journal

    @classmethod
    async def open(
        cls, store: LedgerStore, key: ActorKey, clock_ms: Callable[[], int]
    ) -> CompactedView:
        """Open a published generation by reading its index.

        Raises `NotStored` if a part of it is missing, and what `Journal.open` raises.
        """
        journal = await Journal.open(store, key.text(), SETTINGS, clock_ms=clock_ms)
        checkpoint = journal.recovered.checkpoint
        index = None if checkpoint is None else _MACHINE.restore(checkpoint.segments)
        if index is None or not index.horizon:
            raise NotStored(f"the index of {key.text()}")
        return cls(journal, index)

    async def read(self, index: int, max_entries: int, max_bytes: int) -> Sequence[CachedEntry]:
        """Kept entries from the ``index``-th on, at least one.

        Raises what `Journal.read` raises, and `NotStored`.
        """
        found: EntryRun | None = None
        for info in self._journal.ledgers:
            if info.first_offset <= index < info.first_offset + info.entries:
                first = Position(info.ledger_id, index - info.first_offset)
                found = await self._journal.read(first, max_entries, max_bytes)
        if not found:
            raise NotStored(f"{self._journal.key}: kept entry {index}")
        events = []
        for at, raw in enumerate(found.events, index):
            event = decode(raw)
            if not isinstance(event, EntryCompacted) or event.offset != self.offsets[at]:
                raise NotStored(f"{self._journal.key}: kept entry {at}")
            events.append(event)
        return cached_entries(found.blobs, events)

    async def entry(self, index: int) -> CachedEntry:
        """The ``index``-th kept entry, from memory or disk. Raises what `Journal.read` raises."""
        while (found := self.cache.get(index)) is None:
            await self.cache.load(index)
        return found

    # -- positions and indexes -------------------------------------------------------------

    def index_of(self, offset: int) -> int | None:
        """The index of an entry among the kept ones; None if it wasn't kept."""
        index = self.index_from(offset)
        return index if index < len(self.offsets) and self.offsets[index] == offset else None

    def index_from(self, offset: int) -> int:
        """The index of the first kept entry at or after ``offset``; the number of kept entries if
        there is none."""
        return bisect_left(self.offsets, offset)

    def kept_from(self, offset: int) -> int:
        """The first kept offset at or after ``offset``; the horizon if there is none."""
        index = self.index_from(offset)
        return self.offsets[index] if index < len(self.offsets) else self.horizon

    def gone(self, first: int, end: int) -> list[tuple[int, int]]:
        """The offsets from ``first`` to ``end`` - 1 that weren't kept, as ranges."""
        kept = self.offsets[bisect_left(self.offsets, first) : bisect_left(self.offsets, end)]
        borders = [first - 1, *kept, end]
        return [(before + 1, at) for before, at in pairwise(borders) if before + 1 < at]

    def masks_between(self, first: int, end: int) -> list[tuple[int, int]]:
        """The remaining messages of the partly kept batches from ``first`` to ``end`` - 1."""
        kept = self.offsets[bisect_left(self.offsets, first) : bisect_left(self.offsets, end)]
        return [(offset, self.masks[offset]) for offset in kept if offset in self.masks]

    def stretch_end(self, index: int, gap: int) -> int:
        """The offset after the last of the kept entries from ``index`` on that are less than
        ``gap`` apart; never far more than `COMMIT_ENTRIES` of them."""
        limit = min(index + COMMIT_ENTRIES, len(self.offsets)) - 1
        while index < limit and self.offsets[index + 1] - self.offsets[index] <= gap:
            index += 1
        return self.offsets[index] + 1
