"""Compaction of one partition: makes the compacted view in two passes over the log.

The first pass finds the position of every key's newest message
(`velaray.actors.partition.compaction`), the second copies the kept entries into the journal of a
new generation. Both read the current view, then the log after its horizon, in small reads, and
yield to other tasks between slices of work. One event makes the new generation current. Readers
switch to it at once and continue at their position, since it holds everything that they still need.
Then the former generation is deleted. After a crash the next activation deletes an incomplete
generation.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from velaray.actors.machine import Reason, Refusal
from velaray.actors.partition.compacted import (
    BeginCompaction,
    ConfirmCompactionSwept,
    Generation,
    NothingNew,
    PublishCompaction,
)
from velaray.actors.partition.compaction import NewestByKey, TooManyKeys, everything
from velaray.actors.partition.ledger_table import LedgerTable
from velaray.actors.partition.state import PartitionState
from velaray.actors.runtime import Runtime
from velaray.broker.garbage_collection.deletion import purge_journal
from velaray.broker.partition.compacted_view import SETTINGS, CompactedView, ViewWriter
from velaray.broker.partition.entries import CachedEntry
from velaray.broker.partition.visibility import Visibility
from velaray.broker.topic_policies import TopicPolicies
from velaray.events.ids import ActorKey, MessageId, Position
from velaray.journal.errors import JournalError, StorageFull
from velaray.journal.journal import Journal
from velaray.topology.actor_system import ActorSystem
from velaray.topology.config import ClusterConfig
from velaray.topology.rpc import RemoteError, reason_of
from velaray.topology.transient import TRANSIENT
from velaray.wire.errors import MalformedEntryError
from velaray.wire.messages import is_batch, known_publish_time, read_metadata

logger = logging.getLogger(__name__)

READ_ENTRIES = 256
READ_BYTES = 512 << 10
SLICE_MESSAGES = 512
SLICE_BYTES = 256 << 10
"""The amount of work after which other tasks of the event loop get a turn."""
_ROLL_OVER_S = 0.01
CHECK_S = 60.0
"""The interval between checks of the threshold, as in Pulsar."""

Look = Callable[[int, CachedEntry], Awaitable[None]]


class CompactionFailed(Exception):
    """A compaction failed, for the reason in the message. The former view stays current."""


@dataclass(slots=True)
class Status:
    """The status of the last compaction of this activation, in Pulsar's words."""

    status: str = "NOT_RUN"
    last_error: str = ""
    removed: int = 0
    duration_ms: int = 0
    failed_ms: int = 0


class Partition(Protocol):
    """What a compactor needs of its partition besides the log."""

    topic: str
    key: ActorKey
    config: ClusterConfig
    actor_system: ActorSystem
    policies: TopicPolicies
    runtime: Runtime[PartitionState]

    def spawn(self, work: Any) -> asyncio.Task[Any]:
        """Run a coroutine that is cancelled with the partition."""
        ...


class Log(Protocol):
    """What a compactor needs of the partition's log."""

    partition_index: int
    visibility: Visibility

    def kept_from(self, offset: int) -> int:
        """Return the first offset at or after ``offset`` that isn't trimmed away."""
        ...

    def table(self, compacted: bool = False) -> LedgerTable:
        """Return the position of every entry; with all entries of the compacted view."""
        ...

    def position_of(self, offset: int) -> Position:
        """Return the position that clients see."""
        ...

    async def offset_at_time(self, publish_ms: int) -> int:
        """Return the first offset whose publish time isn't before ``publish_ms``."""
        ...

    async def entry(self, offset: int) -> CachedEntry:
        """Return one entry, from memory or disk."""
        ...

    async def read_log(
        self, offset: int, max_entries: int, max_bytes: int
    ) -> Sequence[CachedEntry]:
        """Return durable entries from ``offset`` on, at least one."""
        ...


class Compactor:
    """Compacts one partition, and has its current view."""

    def __init__(self, partition: Partition, log: Log) -> None:
        self._partition = partition
        self._log = log
        self._running: asyncio.Task[Any] | None = None
        self._opening = asyncio.Lock()
        self._table = LedgerTable()
        self._table_of: tuple[Any, ...] = ()
        self.view: CompactedView | None = None
        self.status = Status()

    # -- reading -------------------------------------------------------------------

    async def open_view(self) -> CompactedView | None:
        """The current view; None if the partition was never compacted.

        Raises `RemoteError` (UNAVAILABLE) if it can't be read.
        """
        async with self._opening:
            current = await self._partition.runtime.read(lambda state: state.compactions.current)
            if current is not None and self.view is None:
                try:
                    self.view = await self._open(current.number)
                except JournalError as error:
                    raise RemoteError(Reason.UNAVAILABLE, error.told) from error
            return self.view

    async def _open(self, number: int) -> CompactedView:
        key = self._partition.key.of_compacted(number)
        actor_system = self._partition.actor_system
        return await CompactedView.open(actor_system.store, key, actor_system.clock_ms)

    def table(self) -> LedgerTable:
        """Positions of all entries that the log or the current view has."""
        live, view = self._partition.runtime.state.table, self.view
        if view is None:
            return live
        rows, gone = live.ledgers(), live.gone()
        known = (view, len(rows), rows[-1:], rows[:1], len(gone))
        if known != self._table_of:
            merged = {**dict(view.table.ledgers()), **dict(rows)}
            lost = set(gone).difference(ledger for ledger, _ in view.table.ledgers())
            self._table = LedgerTable(sorted(merged.items()), live.end_offset, lost)
            self._table_of = known
        self._table.end_offset = live.end_offset
        return self._table

    async def offset_at_time(self, publish_ms: int) -> int:
        """Like `EntryLog.offset_at_time`, for the current view and the log after it."""
        view = self.view
        if view is None:
            return await self._log.offset_at_time(publish_ms)
        low, high = 0, len(view.offsets)
        while low < high:
            middle = (low + high) // 2
            if known_publish_time((await view.entry(middle)).data) < publish_ms:
                low = middle + 1
            else:
                high = middle
        if low < len(view.offsets):
            return view.offsets[low]
        return max(view.horizon, await self._log.offset_at_time(publish_ms))

    async def last_message_id(self, horizon: int | None) -> MessageId:
        """The newest message's id with its index in its batch; (-1, -1) if there is none.

        A reader of the compacted topic sees the view, and the log after ``horizon``.
        """
        log = self._log
        number, view, mask = log.partition_index, self.view, None
        table = self._partition.runtime.state.table
        offset = await log.visibility.last_readable()
        if horizon is not None and view is not None and offset < max(horizon, table.first_offset):
            if not view.offsets:
                return MessageId(-1, -1, number)
            offset = view.offsets[-1]
            entry = await view.entry(len(view.offsets) - 1)
            position = log.table(compacted=True).position_of(offset)
            mask = view.masks.get(offset)
        elif offset < table.first_offset:
            return MessageId(-1, -1, number)
        else:
            entry = await log.entry(offset)
            position = log.position_of(offset)
        try:
            metadata = read_metadata(entry.data)
        except MalformedEntryError:
            return MessageId(*position, number)
        if not is_batch(metadata):
            return MessageId(*position, number)
        count = metadata.num_messages_in_batch if mask is None else mask.bit_length()
        return MessageId(*position, number, count - 1)

    # -- starting ------------------------------------------------------------------

    def trigger(self) -> None:
        """Begin to compact. Raises `RemoteError` (CONFLICT) while a compaction runs."""
        if self._running is not None:
            raise RemoteError(Reason.CONFLICT, "Compaction already in progress")
        self.status.status, self.status.last_error = "RUNNING", ""
        self._running = self._partition.spawn(self._run())
        self._running.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running = None

    @property
    def running(self) -> bool:
        """Whether a compaction runs."""
        return self._running is not None

    async def finished(self) -> None:
        """Return when no compaction runs."""
        if self._running is not None:
            await asyncio.wait([self._running])

    def described(self) -> dict[str, str]:
        """The status of the last compaction of this activation, in the form of Pulsar's REST
        API."""
        return {"status": self.status.status, "lastError": self.status.last_error}

    async def stats(self) -> dict[str, Any]:
        """The statistics of compaction."""
        state = await self._partition.runtime.read(lambda state: state.compactions)
        current = state.current
        return {
            "horizon": state.horizon,
            "generation": 0 if current is None else current.number,
            "entries": 0 if current is None else current.entries,
            "succeeded_ms": 0 if current is None else current.published_ms,
            "failed_ms": self.status.failed_ms,
            "duration_ms": self.status.duration_ms,
            "removed": self.status.removed,
            **self.described(),
        }

    async def watch(self) -> None:
        """Delete what former activations left; then compact whenever the policy requires it."""
        try:
            await self._sweep()
        except (JournalError, CompactionFailed) as error:
            logger.warning("%s: %s", self._partition.topic, error)  # retried at the next start
        while True:
            await asyncio.sleep(CHECK_S)
            threshold = self._partition.policies.raw["compactionThreshold"]
            if threshold and self._running is None and self.uncompacted_bytes() > threshold:
                self.trigger()

    def uncompacted_bytes(self) -> int:
        """The bytes of the log after the horizon, including a share of the horizon's own ledger."""
        journal = self._partition.runtime.journal
        assert isinstance(journal, Journal)
        horizon = self._partition.runtime.state.compactions.horizon
        total = 0
        for info in journal.ledgers:
            size = info.bytes - info.data_offset
            behind = min(info.first_offset + info.entries - horizon, info.entries)
            if behind > 0:
                total += size * behind // info.entries
        return total

    # -- the work ------------------------------------------------------------------

    async def _run(self) -> None:
        clock_ms = self._partition.actor_system.clock_ms
        began_ms = clock_ms()
        try:
            await self._compact()
        except (CompactionFailed, TooManyKeys, JournalError, RemoteError) as error:
            logger.warning("compacting %s failed: %s", self._partition.topic, error)
            self.status.status, self.status.last_error = "ERROR", reason_of(error)
            self.status.failed_ms = clock_ms()
        else:
            self.status.status = "SUCCESS"
        self.status.duration_ms = clock_ms() - began_ms

    async def _ask(self, command: Any) -> Any:
        reply = await self._partition.runtime.ask(command)
        if isinstance(reply, Refusal):
            raise CompactionFailed(reply.message)
        return reply

    async def _compact(self) -> None:
        await self._sweep()
        former = await self.open_view()
        begun = await self._ask(BeginCompaction())
        if isinstance(begun, NothingNew):
            return
        assert isinstance(begun, Generation)
        try:
            entries = await self._copy(begun, former)
        except (CompactionFailed, TooManyKeys, JournalError):
            await self._discard(begun.number)
            raise
        await self._ask(PublishCompaction(begun.number, entries))
        async with self._opening:
            self.view = await self._open(begun.number)
        await self._sweep()

    async def _copy(self, begun: Generation, former: CompactedView | None) -> int:
        """Make the generation durable; return its number of entries."""
        # Imported late: only compaction needs the codecs.
        from velaray.broker.partition.compacted_entries import contents, keep_part

        partition = self._partition
        newest = NewestByKey(retain_without_key=partition.config.compaction_retain_null_key)
        removed = 0

        async def learn(offset: int, entry: CachedEntry) -> None:
            newest.see(offset, contents(entry.data))

        async def copy(offset: int, entry: CachedEntry) -> None:
            nonlocal removed
            found = contents(entry.data)
            mask = newest.kept(offset, found)
            if found.items is not None:
                before = sum(not item.gone for item in found.items)
                removed += before - mask.bit_count()
            if mask == everything(found):
                await writer.add(offset, entry, None)
            elif mask:
                part = entry._replace(data=keep_part(entry.data, mask))
                await writer.add(offset, part, mask)

        await self._pass(begun.horizon, former, learn)
        writer = await self._new_writer(begun.number)
        try:
            await writer.start()
            await self._pass(begun.horizon, former, copy)
            await writer.finish(begun.horizon, self._ledgers(begun.horizon))
        finally:
            await writer.close()
        self.status.removed = removed
        return writer.entries

    async def _new_writer(self, number: int) -> ViewWriter:
        """The journal of a new generation, if this activation is still the partition's owner.

        The journal is created first, and the ownership is checked afterwards; a successor first
        takes the ownership and then sweeps such journals. So one of the two sees the other.
        """
        partition = self._partition
        key = partition.key.of_compacted(number).text()
        journal = await Journal.open(
            partition.actor_system.store, key, SETTINGS, clock_ms=partition.actor_system.clock_ms
        )
        log = partition.runtime.journal
        assert isinstance(log, Journal)
        while not await log.confirm():
            if log.failure is not None:
                raise log.failure
            await asyncio.sleep(_ROLL_OVER_S)
        return ViewWriter(journal)

    def _ledgers(self, horizon: int) -> Sequence[tuple[int, int]]:
        return [row for row in self.table().ledgers() if row[1] < horizon]

    async def _pass(self, horizon: int, former: CompactedView | None, look: Look) -> None:
        """Call ``look`` for every entry below ``horizon`` of the former view and of the log after
        it."""
        messages = size = 0
        async for offset, entry in self._entries(horizon, former):
            await look(offset, entry)
            messages += entry.messages
            size += len(entry.data)
            if messages >= SLICE_MESSAGES or size >= SLICE_BYTES:
                messages = size = 0
                await asyncio.sleep(0)

    async def _entries(
        self, horizon: int, former: CompactedView | None
    ) -> AsyncIterator[tuple[int, CachedEntry]]:
        offset = 0
        if former is not None:
            offset = former.horizon
            index = 0
            while index < len(former.offsets):
                run = await former.read(index, READ_ENTRIES, READ_BYTES)
                for entry in run:
                    yield former.offsets[index], entry
                    index += 1
        while (offset := self._log.kept_from(offset)) < horizon:
            most = min(READ_ENTRIES, horizon - offset)
            for entry in await self._log.read_log(offset, most, READ_BYTES):
                if not await self._log.visibility.is_hidden(offset):
                    yield offset, entry
                offset += 1

    # -- deleting ------------------------------------------------------------------

    async def _discard(self, number: int) -> None:
        try:
            await self._delete(number)
        except (CompactionFailed, StorageFull) as error:
            logger.warning("%s: %s", self._partition.topic, error)  # the next compaction sweeps it

    async def _sweep(self) -> None:
        """Delete superseded and failed generations."""
        leftovers = await self._partition.runtime.read(lambda state: state.compactions.leftovers())
        for number in leftovers:
            await self._delete(number)

    async def _delete(self, number: int) -> None:
        key = self._partition.key.of_compacted(number)
        try:
            await purge_journal(self._partition.actor_system, key)
        except TRANSIENT as error:
            raise CompactionFailed(f"{key} can't be purged now: {error}") from error
        await self._ask(ConfirmCompactionSwept(number))
