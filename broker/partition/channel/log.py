"""What a channel needs of its partition's log."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from velaray.actors.partition.ledger_table import LedgerSpan
from velaray.broker.partition.delayed_delivery import DelayedDeliveryTracker
from velaray.broker.partition.entries import EntryCache

RUN_ENTRIES = 256
"""Entries that are taken from the cache together."""


class VisibleEntries(Protocol):
    """Which entries of a log its consumers get."""

    @property
    def readable_end(self) -> int:
        """Consumers get nothing at or beyond this offset: no open transaction has entries below
        it."""
        ...

    def visible_until(self, first: int, end: int) -> tuple[int, int]:
        """How far from ``first`` on, up to ``end``, it is in memory which entries are hidden, and
        the first one that is: its transaction was aborted, it is never delivered. If there is none,
        both are equal."""
        ...

    def hidden_within(self, first: int, end: int) -> list[tuple[int, int]]:
        """All hidden offsets of the range, as ascending (first, last + 1); it must be in
        memory."""
        ...

    async def load(self, offset: int) -> None:
        """Load what `visible_until` stops at, for use in the turn in which this returns."""
        ...

    def next_remote(self, origins: Collection[str] | None, first: int, end: int) -> int:
        """The first offset from ``first`` on that came from one of these clusters (None: from any);
        ``end`` if there is none before it."""
        ...


class LogSync(Protocol):
    """Which entries of a log survive a loss of power."""

    @property
    def synced_offset(self) -> int:
        """The offset after the newest entry that a loss of power can't remove."""
        ...

    def ask_for_sync(self) -> None:
        """Sync the log up to its end soon, then call `DispatcherLink.log_synced`."""
        ...


class PartitionLog(Protocol):
    """The protocol of a channel's partition."""

    cache: EntryCache
    partition_index: int
    delayed: DelayedDeliveryTracker

    @property
    def visibility(self) -> VisibleEntries:
        """Which entries consumers get."""
        ...

    @property
    def terminated_at(self) -> int | None:
        """The offset at which the topic ended; None while it is open."""
        ...

    @property
    def end_offset(self) -> int:
        """The offset after the newest durable entry."""
        ...

    def span_of(self, offset: int) -> LedgerSpan:
        """The ledger that holds the entry, which determines the positions that clients see.

        Raises `NoSuchEntryError` for a trimmed entry.
        """
        ...

    def kept_from(self, offset: int) -> int:
        """The first offset at or after ``offset`` that isn't trimmed."""
        ...

    def clock_ms(self) -> int:
        """Wall-clock milliseconds."""
        ...

    def reading_failed(self, offset: int, error: Exception) -> str:
        """Report that an entry could not be read; returns the reason, for clients. An error that
        isn't the journal's ends the partition."""
        ...
