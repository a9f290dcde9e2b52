"""Reads the entries of one partition: all stored ones, or those that consumers may get.

Offsets count the entries of a partition from 0; positions are the ledger and entry ids that clients
see. Everything here is about durable entries.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from velaray.actors.partition.delayed import DelayedEntry
from velaray.actors.partition.ledger_table import LedgerSpan, LedgerTable, NoSuchEntryError
from velaray.actors.partition.state import PartitionState
from velaray.actors.runtime import Runtime
from velaray.broker.partition.backlog import Backlog
from velaray.broker.partition.compactor import Compactor
from velaray.broker.partition.delayed_delivery import DelayedDeliveryTracker
from velaray.broker.partition.entries import CachedEntry, EntryCache, TailMemory, cached_entries
from velaray.broker.partition.geo_replication import GeoReplication
from velaray.broker.partition.sealing import Sealing
from velaray.broker.partition.subscription_channel import SubscriptionChannel
from velaray.broker.partition.visibility import Visibility
from velaray.events.codec import decode_entries
from velaray.events.ids import ActorKey, Position
from velaray.journal.errors import JournalError, NotStored
from velaray.journal.journal import Journal
from velaray.journal.manifest import LedgerInfo
from velaray.topology.actor_system import ActorSystem
from velaray.topology.config import ClusterConfig
from velaray.topology.host import ActorHost
from velaray.topology.rpc import reason_of
from velaray.wire.messages import known_publish_time

logger = logging.getLogger(__name__)


class Partition(Protocol):
    """What a log needs of its partition."""

    key: ActorKey
    config: ClusterConfig
    actor_system: ActorSystem
    host: ActorHost
    runtime: Runtime[PartitionState]
    compactor: Compactor
    geo: GeoReplication


def gone_offsets(state: PartitionState) -> list[int]:
    """The offsets of trimmed entries: first, last + 1, first, ..."""
    return [at for pair in state.table.gone_ranges() for at in pair]


class EntryLog:
    """Reads the log of one activation of a partition."""

    runtime: Runtime[PartitionState]
    cache: EntryCache
    visibility: Visibility
    delayed: DelayedDeliveryTracker

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self.topic = str(partition.key.topic_name)
        self.partition_index = partition.key.partition
        self.config = partition.config
        self.actor_system = partition.actor_system
        self.clock_ms = partition.actor_system.clock_ms
        self.terminated_at: int | None = None
        """The offset at which the topic ended; None while it goes on."""
        self.backlog = Backlog(self)
        self.sealing: Sealing | None = None
        """Seals and opens the entries of a topic whose messages can be erased."""
        self.failed_reads = 0

    def open(self, on_due: Callable[[list[DelayedEntry], int], None]) -> None:
        """Take over the recovered state; ``on_due`` as in `DelayedDeliveryTracker`."""
        self.runtime = self._partition.runtime
        state = self.runtime.state
        memory = self._partition.host.part(TailMemory)
        self.cache = EntryCache(self.read_log, state.end_offset, memory)
        self.visibility = Visibility(self.runtime, self.cache)
        self.delayed = DelayedDeliveryTracker(self.actor_system.clock_ms, on_due, state.delayed)
        self.terminated_at = state.end_offset if state.terminated else None

    def close(self) -> None:
        """Stop the timer of delayed entries."""
        if hasattr(self, "delayed"):  # else it never opened
            self.delayed.close()

    def drop_idle_chunks(self) -> None:
        """Release the memory of older entries that weren't read since the last call."""
        view = self._partition.compactor.view
        for cache in (self.cache,) if view is None else (self.cache, view.cache):
            cache.drop_idle_chunks()

    def release(self) -> None:
        """Release the memory of the cache: nothing is read any more."""
        if hasattr(self, "cache"):  # else it never opened
            self.cache.close()

    @property
    def _journal(self) -> Journal:
        journal = self.runtime.journal
        assert isinstance(journal, Journal)
        return journal

    # -- what there is -------------------------------------------------------------

    @property
    def end_offset(self) -> int:
        """The offset after the newest durable entry."""
        return self.cache.end

    @property
    def ledgers(self) -> tuple[LedgerInfo, ...]:
        """Every ledger of the journal, trimmed ones included, oldest first."""
        return self._journal.ledgers

    def table(self, compacted: bool = False) -> LedgerTable:
        """The position of every entry; ``compacted``: with all entries of the compacted view."""
        return self._partition.compactor.table() if compacted else self.runtime.state.table

    def position_of(self, offset: int) -> Position:
        """The position that clients see."""
        return self.runtime.state.table.position_of(offset)

    def span_of(self, offset: int) -> LedgerSpan:
        """The ledger that holds an entry."""
        return self.runtime.state.table.span_of(offset)

    def kept_from(self, offset: int) -> int:
        """The first offset at or after ``offset`` that isn't trimmed away."""
        return self.runtime.state.table.kept_from(offset)

    def gone(self) -> list[int]:
        """The offsets of trimmed entries: first, last + 1, first, ..."""
        return gone_offsets(self.runtime.state)

    async def durably_gone(self, *, compacted: bool) -> list[int]:
        """The offsets that are durably trimmed for a subscription.

        A reader of a compacted view has none: only entries that the view covers are trimmed.
        """
        return await self.runtime.read(
            lambda state: [] if compacted and state.compactions.current else gone_offsets(state)
        )

    # -- reading -------------------------------------------------------------------

    async def read_log(
        self, offset: int, max_entries: int, max_bytes: int
    ) -> Sequence[CachedEntry]:
        """Durable entries from ``offset`` on, at least one. Raises what `Journal.read` raises."""
        position = self.position_of(offset)
        found = await self._journal.read(position, max_entries, max_bytes)
        if not found or (found.ledger_id, found.first) != position:
            raise NotStored(f"{self.topic}: entry {position}")
        return cached_entries(found.blobs, decode_entries(found.events))

    async def entry(self, offset: int) -> CachedEntry:
        """One entry, from memory or disk."""
        while (found := self.cache.get(offset)) is None:
            await self.cache.load(offset)
        return found

    async def offset_at_time(self, publish_ms: int) -> int:
        """The first offset whose publish time isn't before ``publish_ms``, by bisection."""
        low, high = self.runtime.state.first_offset, self.end_offset
        while low < high:
            middle = (low + high) // 2
            kept = self.kept_from(middle)
            if kept >= high or known_publish_time((await self.entry(kept)).data) >= publish_ms:
                high = middle
            else:
                low = kept + 1
        return self.kept_from(low)

    def reading_failed(self, offset: int, error: Exception) -> str:
        """Handle a failed read of an entry; returns the reason that clients get.

        An error of the journal concerns the entry's readers alone. Any other error ends this
        activation.
        """
        problem = f"entry {self._described_position(offset)} can't be read: {reason_of(error)}"
        if isinstance(error, JournalError):
            self.failed_reads += 1
            logger.error("%s: entry at offset %d can't be read: %s", self.topic, offset, error)
        else:
            self.actor_system.fatal(self._partition, error)
        return problem

    def _described_position(self, offset: int) -> str:
        """The position of an entry, even if it is compacted and trimmed."""
        with contextlib.suppress(NoSuchEntryError):
            return str(self.table(compacted=True).position_of(offset))
        return f"at offset {offset}"

    # -- power loss ----------------------------------------------------------------

    @property
    def synced_offset(self) -> int:
        """The offset after the newest entry that survives a loss of power."""
        return self._journal.synced_offset

    def ask_for_sync(self) -> None:
        """Request a sync of the journal; `SubscriptionChannel.log_synced` follows it."""
        self.runtime.ask_for_sync()

    async def sync(self) -> None:
        """Return when all present entries survive a loss of power.

        Await it before other journals depend on an entry.
        """
        await self.runtime.sync()

    async def settle(self, channel: SubscriptionChannel) -> None:
        """Apply pending progress of other clusters to the subscription of a channel."""
        await self._partition.geo.progress.settle_channel(channel)
