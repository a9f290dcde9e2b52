"""How much of a partition's log is left to read, in bytes and in time.

Bytes are those of entries and their events as journaled. Within a ledger every entry counts the
same, so that no entry need be read; what a subscription acknowledged beyond its mark counts, too,
unless its ledger is trimmed.
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
"""So many entries are looked at in one go; the rest is for the next one."""


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
    """Of one partition."""

    def __init__(self, partition: Log) -> None:
        self._partition = partition
        # Everything from the first to the second offset was published before the time.
        self._scanned = (0, 0, 0)

    def _kept(self) -> list[LedgerInfo]:
        trimmed = self._partition.runtime.state.trimmed
        return [info for info in self._partition.ledgers if info.ledger_id not in trimmed]

    def bytes_from(self, offset: int) -> int:
        """Bytes of the entries at and after ``offset``."""
        total = 0
        for info in self._kept():
            left = min(info.next_offset - offset, info.entries)
            if left > 0:
                total += info.record_bytes * left // info.entries
        return total

    def last_bytes(self, limit: int) -> int:
        """The offset from which on there are at most ``limit`` bytes."""
        for info in reversed(self._kept()):
            size = info.record_bytes
            if size > limit:
                return info.next_offset - info.entries * limit // size
            limit -= size
        return 0

    async def age_ms(self, offset: int) -> int:
        """How long ago the first entry at or after ``offset`` was published; 0 if none is there."""
        at = self._partition.kept_from(offset)
        if at >= self._partition.end_offset:
            return 0
        try:
            published_ms = await self._published_ms(at)
        except NoSuchEntryError:
            return 0  # it was trimmed away meanwhile
        return max(self._partition.actor_system.clock_ms() - published_ms, 0)

    async def _published_ms(self, offset: int) -> int:
        """When an entry was published; 0 if it doesn't say: nobody can read it."""
        try:
            return known_publish_time((await self._partition.entry(offset)).data)
        except JournalError:
            return self._sealed_ms(offset)

    def _sealed_ms(self, offset: int) -> int:
        """When the ledger of an entry was sealed, so the entry was there; now if it is open."""
        ledger_id = self._partition.position_of(offset).ledger_id
        sealed = (info.sealed_ms for info in self._kept() if info.ledger_id == ledger_id)
        return next(sealed, 0) or self._partition.actor_system.clock_ms()

    async def older_than(self, start: int, age_ms: int) -> int:
        """The offset up to which everything from ``start`` on was published longer ago.

        By the publish times that clients gave, one entry after the other: an entry that isn't
        old enough stops it, whatever comes behind.
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
