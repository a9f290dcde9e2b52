"""``send_many``: sends many values in few entries, several of them concurrently."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from velaray.client.batcher import PackedBatch
from velaray.client.exceptions import NotAllStored, VelarayError
from velaray.client.partition_producer import PartitionProducer
from velaray.client.routing import NEXT, Router
from velaray.client.sent import SentBatch, SentEntry
from velaray.client.transactions import Transaction
from velaray.client.values import ENTRY_SIZE, Values, check_sizes
from velaray.events.ids import MessageId as StoredId

WINDOW = 8 * ENTRY_SIZE
"""Limit of payload bytes in flight, over all ``send_many`` calls of a producer."""


class Room:
    """Bounds the entries and bytes in flight; the longest waiting caller is next."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: Callable[[], int]) -> None:
        self._loop = loop
        self._limit = limit
        self._entries = self._bytes = 0
        self._turn = asyncio.Lock()
        self._freed: asyncio.Future[None] | None = None

    @property
    def _free(self) -> bool:
        return self._entries < self._limit() and self._bytes < WINDOW

    async def take(self, size: int) -> None:
        """Wait for room for one entry; the last entry may exceed the byte limit."""
        async with self._turn:
            while not self._free:
                self._freed = self._loop.create_future()
                await self._freed
            self._entries += 1
            self._bytes += size

    def give(self, size: int) -> None:
        """Release the room of an entry that is stored or has failed."""
        self._entries -= 1
        self._bytes -= size
        if self._freed is not None and not self._freed.done():
            self._freed.set_result(None)


class SendMany:
    """One call: sends entry after entry, and collects their receipts."""

    def __init__(
        self,
        parts: list[PartitionProducer],
        router: Router,
        room: Room,
        by_key: bool,
        txn: Transaction | None,
        properties: Mapping[str, str],
    ) -> None:
        """``properties`` are those of the entries."""
        self._parts = parts
        self._router = router
        self._room = room
        self._by_key = by_key
        self._txn = txn
        self._properties = properties
        self._entries: list[SentEntry] = []
        self._outstanding = 0
        self._lost: list[Sequence[int]] = []
        self._error: VelarayError | None = None
        self._idle: asyncio.Future[None] | None = None

    async def run(self, values: Values) -> SentBatch:
        """Send everything.

        Raises `NotAllStored`, or another error before anything is sent.
        """
        if not len(values):
            return SentBatch([])
        groups = self._router.groups(values, len(self._parts), self._by_key)
        size = await self._entry_size(values, {group.partition for group in groups})
        for group in groups:
            rows = range(len(values)) if group.rows is None else group.rows
            chosen = values if group.rows is None else values.select(group.rows)
            for first, end in chosen.cuts(size):
                if self._error is not None:
                    break
                await self._send(group.partition, chosen, first, end, rows)
        await self._all_answered()
        if self._error is not None:
            raise self._failure(len(values)) from self._error
        return SentBatch(self._entries)

    async def _entry_size(self, values: Values, partitions: set[int]) -> int:
        """Register the partitions where necessary; return the largest payload that all take."""
        parts = self._parts
        if NEXT not in partitions:
            parts = [parts[partition] for partition in partitions]
        for part in parts:
            part.start_lazily()
        await asyncio.gather(*(part.ready() for part in parts))
        limit = min(part.batch_limit for part in parts) - values.longest_key
        limit -= sum(len(name) + len(text) + 8 for name, text in self._properties.items())
        check_sizes(values, limit)
        return min(ENTRY_SIZE, limit)

    async def _send(
        self, partition: int, values: Values, first: int, end: int, rows: Sequence[int]
    ) -> None:
        if partition == NEXT:
            partition = self._router.next_batch(len(self._parts))
        part = self._parts[partition]
        txn_id = None
        if self._txn is not None:
            txn_id = self._txn.txn_id
            await self._txn.join_topic(part.topic)
        payload = values.pack(first, end)
        await self._room.take(len(payload))
        if self._error is not None:
            self._room.give(len(payload))
            return
        self._outstanding += 1
        batch = PackedBatch(payload, end - first, values.key(first), self._properties)
        part.send_batch(batch, self._answer(part, len(payload), rows[first:end]), txn_id)

    def _answer(
        self, part: PartitionProducer, size: int, rows: Sequence[int]
    ) -> Callable[[VelarayError | None, StoredId | None], None]:
        number = len(self._entries)
        self._entries.append(SentEntry(part.topic, part.partition, -1, -1, rows))

        def done(error: VelarayError | None, stored: StoredId | None) -> None:
            self._room.give(size)
            self._outstanding -= 1
            if stored is not None:
                entry = self._entries[number]
                self._entries[number] = entry._replace(
                    ledger_id=stored.ledger_id, entry_id=stored.entry_id
                )
            elif error is not None:
                self._lost.append(rows)
                self._error = self._error or error
            if not self._outstanding and self._idle is not None and not self._idle.done():
                self._idle.set_result(None)

        return done

    async def _all_answered(self) -> None:
        if self._outstanding:
            self._idle = asyncio.get_running_loop().create_future()
            await self._idle

    def _failure(self, total: int) -> NotAllStored:
        lost = {row for rows in self._lost for row in rows}
        entries = [entry for entry in self._entries if entry.rows[0] not in lost]
        stored = {row for entry in entries for row in entry.rows}
        prefix = next(row for row in range(total) if row not in stored)
        return NotAllStored(
            f"{len(stored)} of {total} values are stored, the first {prefix} of them without"
            f" gap: {self._error}",
            SentBatch(entries),
            prefix,
        )
