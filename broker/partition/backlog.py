"""The size of a subscription's backlog in a partition's log, in bytes and in time.

Bytes are those of entries and their events as journaled. Within a ledger every entry counts the
same, so no entry is read. Entries acknowledged beyond the mark-delete position count, too, unless
their ledger is trimmed.
"""

from __future__ import annotations

from typing import Protocol

from velaray.actors.partition.ledger_table import NoSuchEntryError
from velaray.actors.partition.state import PartitionState
from velaray.actors.runtime import Runtime
from velaray.broker.partition.entries import CachedEntry
from velaray.events.ids import Position
from velaray.journal.errors import JournalError
from velaray.journal.manifest import LedgerInfo
from velaray.topology.actor_system import ActorSystem
from velaray.wire.messages import known_publish_time

SCAN_ENTRIES = 100_000
"""The number of entries that one round reads at most; the next round continues."""


class Log(Protocol):
    """What `Backlog` needs of its partition."""

    actor_system: ActorSystem
    runtime: Runtime[PartitionState]

    @property
    def end_offset(self) -> int:
        """The offset after the newest durable entry."""
        ...

    @property
    def ledgers(self) -> tuple[LedgerInfo, ...]:
        """Every ledger of the journal, oldest first."""
        ...

    def kept_from(self, offset: int) -> int:
        """Return the first offset at or after ``offset`` that isn't trimmed away."""
        ...

    def position_of(self, offset: int) -> Position:
        """Return the position that clients see."""
        ...

    async def entry(self, offset: int) -> CachedEntry:
        """Return one entry, from memory or disk."""
        ...


class Backlog:
    """The backlog of one partition."""

    def __init__(self, partition: Log) -> None:
        self._partition = partition
        # All entries between the two offsets were published before the time.
        self._scanned = (0, 0, 0)

    def _kept(self) -> list[LedgerInfo]:
        trimmed = self._partition.runtime.state.trimmed
        return [info for info in self._partition.ledgers if info.ledger_id not in trimmed]

    def bytes_from(self, offset: int) -> int:
        """The bytes of the entries at and after ``offset``."""
        total = 0
        for info in self._kept():
            left = min(info.next_offset - offset, info.entries)
            if left > 0:
                total += info.record_bytes * left // info.entries
        return total

    def last_bytes(self, limit: int) -> int:
        """The offset after which at most ``limit`` bytes follow."""
        for info in reversed(self._kept()):
            size = info.record_bytes
            if size > limit:
                return info.next_offset - info.entries * limit // size
            limit -= size
        return 0

    async def age_ms(self, offset: int) -> int:
        """The age of the first entry at or after ``offset``; 0 if there is none."""
        at = self._partition.kept_from(offset)
        if at >= self._partition.end_offset:
            return 0
        try:
            published_ms = await self._published_ms(at)
        except NoSuchEntryError:
            return 0  # it was trimmed away meanwhile
        return max(self._partition.actor_system.clock_ms() - published_ms, 0)

    async def _published_ms(self, offset: int) -> int:
        """The publish time of an entry; 0 if its metadata is unreadable."""
        try:
            return known_publish_time((await self._partition.entry(offset)).data)
        except JournalError:
            return self._sealed_ms(offset)

    def _sealed_ms(self, offset: int) -> int:
        """The time at which the entry's ledger was sealed, after the entry was stored; now if it is
        open."""
        ledger_id = self._partition.position_of(offset).ledger_id
        sealed = (info.sealed_ms for info in self._kept() if info.ledger_id == ledger_id)
        return next(sealed, 0) or self._partition.actor_system.clock_ms()

    async def older_than(self, start: int, age_ms: int) -> int:
        """The offset before which all entries from ``start`` on are older than the given age.

        Ages follow from the publish times of clients. The first entry that isn't old enough ends
        the range, even if older ones follow.
        """
        partition = self._partition
        before_ms = partition.actor_system.clock_ms() - age_ms
        first, until, known_ms = self._scanned
        if not (first <= start <= until and before_ms >= known_ms):
            first = until = start
        end = min(partition.end_offset, until + SCAN_ENTRIES)
        at = partition.kept_from(until)
        while at < end and await self._published_ms(at) < before_ms:
            until = at + 1
            at = partition.kept_from(until)
        self._scanned = (first, until, before_ms)
        return until
