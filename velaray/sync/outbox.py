"""Queue of outgoing messages from any thread to the client's loop, a batch at a time."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Iterator
from contextvars import Context, copy_context
from typing import Any, NamedTuple

from velaray.client.batcher import Done, PackedBatch
from velaray.client.enums import BatchingType, Result
from velaray.client.exceptions import AlreadyClosed, ProducerQueueIsFull, VelarayError
from velaray.client.message import OutgoingMessage
from velaray.client.options import ProducerOptions
from velaray.client.partition_producer import PartitionProducer
from velaray.client.producer import Producer as AioProducer
from velaray.client.transactions import Transaction
from velaray.events.ids import MessageId as StoredId
from velaray.sync.loop import LoopThread
from velaray.sync.receipt import Callback, Receipt, Shipment
from velaray.wire.batches import pack, pack_plain

_ROOM_FOR_METADATA = 16
_KEY_BYTES = 4
"""The maximum size of a key's character in UTF-8."""

_LONGEST_KEY = 1000


class Item(NamedTuple):
    """A message that goes through the asyncio producer's own batches."""

    message: OutgoingMessage
    done: Done
    urgent: bool
    txn: Transaction | None = None
    context: Context | None = None
    """The context variables of the caller, which interceptors see."""


class _Batch(Shipment):
    """Plain messages that share an entry. ``keys`` is None until a message has a key."""

    __slots__ = ("callbacks", "keys", "size", "values")

    def __init__(self, lock: threading.Lock) -> None:
        super().__init__(lock)
        self.values: list[bytes] = []
        self.keys: list[str | None] | None = None
        self.size = 0
        self.callbacks: list[tuple[int, Callback]] = []


class Outbox:
    """Bounds the pending messages, and keeps the order of the calls.

    Plain messages (content and an optional key) are collected in the caller's thread. The loop gets
    a whole batch when it's full, or after the batch's delay. Other messages are passed on one by
    one. The loop is woken once for many batches or messages.
    """

    def __init__(
        self, thread: LoopThread, producer: AioProducer[Any], options: ProducerOptions[Any]
    ) -> None:
        collects = (
            options.batching_enabled
            and options.batching_type == BatchingType.Default
            and options.message_router is None
            and not options.interceptors
        )
        self._keys = not producer.partitioned
        self.closed = False
        self._thread = thread
        self._producer = producer
        self._keeps_context = bool(options.interceptors)
        self._block = options.block_if_queue_full
        self._delay = options.batching_max_publish_delay_ms / 1000
        self._max_messages = options.batching_max_messages
        limit = producer.batch_limit - 2 * _LONGEST_KEY * _KEY_BYTES
        self._max_bytes = min(options.batching_max_allowed_size_in_bytes, limit)
        self.largest = self._max_bytes - _ROOM_FOR_METADATA if collects else -1
        self._limit = producer.pending_limit
        self._in_flight = 0
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._waiting = 0
        self._queue: deque[_Batch | Item] = deque()
        self._open: _Batch | None = None
        self._woken = False
        self._urgent: set[PartitionProducer] = set()
        self._reports: deque[tuple[_Batch, Iterator[tuple[int, Callback]]]] = deque()

    # --- any thread ---

    def takes(self, key: str | None) -> bool:
        """Whether messages with this key may be batched here: all keys go to one partition then."""
        return key is None or (
            self._keys
            and type(key) is str
            and len(key) <= _LONGEST_KEY
            and key.isprintable()  # only keys that UTF-8 can encode
        )

    def add(
        self, content: bytes, callback: Callback | None = None, key: str | None = None
    ) -> Receipt | None:
        """Enqueue one plain message of at most `largest` bytes.

        Returns its receipt, or None with a callback. The key must be one that `takes` accepts.
        Raises `AlreadyClosed`, or `ProducerQueueIsFull` unless the producer waits for room.
        """
        size = len(content) + _ROOM_FOR_METADATA
        if key:
            size += _KEY_BYTES * len(key)
        with self._lock:
            if self._in_flight >= self._limit or self.closed:
                self._wait_for_room()
            self._in_flight += 1
            batch = self._open
            if batch is None or batch.size + size > self._max_bytes:
                batch = self._begin()
            values = batch.values
            index = len(values)
            values.append(content)
            batch.size += size
            if key or batch.keys is not None:
                if batch.keys is None:
                    batch.keys = [None] * index
                batch.keys.append(key)
            if callback is not None:
                batch.callbacks.append((index, callback))
            if index + 1 >= self._max_messages or batch.size >= self._max_bytes:
                self._close()
        return Receipt(batch, index) if callback is None else None

    def put(self, item: Item) -> None:
        """Enqueue one message of any kind. Raises as `add`."""
        if self._keeps_context:
            item = item._replace(context=copy_context())
        with self._lock:
            if self._in_flight >= self._limit or self.closed:
                self._wait_for_room()
            self._in_flight += 1
            self._open = None
            self._queue.append(item)
            self._wake()

    def hurry(self) -> None:
        """Send the enqueued messages without waiting for more."""
        with self._lock:
            self._close()

    def _wait_for_room(self) -> None:
        while not self.closed:
            if self._in_flight >= self._limit:
                self._limit = self._producer.pending_limit  # partitions may have been added
            if self._in_flight < self._limit:
                return
            if not self._block:
                raise ProducerQueueIsFull(
                    f"{self._limit} messages wait for receipts; wait for some, or use"
                    " block_if_queue_full=True"
                )
            self._thread.forbid_here()
            self._close()
            self._waiting += 1
            try:
                self._room.wait()
            finally:
                self._waiting -= 1
        raise AlreadyClosed("the producer is closed")

    def _begin(self) -> _Batch:
        batch = self._open = _Batch(self._lock)
        self._queue.append(batch)
        if not self._thread.call(self._arm, batch):
            self._queue.clear()
            self._open = None
            raise AlreadyClosed("the client is closed")
        return batch

    def _close(self) -> None:
        self._open = None
        if self._queue:
            self._wake()

    def _wake(self) -> None:
        if not self._woken:
            self._woken = self._thread.call(self.drain)
            if not self._woken:
                self._queue.clear()
                raise AlreadyClosed("the client is closed")

    # --- the loop's thread ---

    def _arm(self, batch: _Batch) -> None:
        if batch is self._open:
            self._thread.loop.call_later(self._delay, self._overdue, batch)

    def _overdue(self, batch: _Batch) -> None:
        if batch is self._open:
            self.drain_all()

    def drain_all(self) -> None:
        """Send all enqueued messages, including batches that aren't full."""
        with self._lock:
            self._open = None
        self.drain()

    def drain(self) -> None:
        """Send all enqueued messages except those of the open batch."""
        with self._lock:
            self._woken = False
            taken, self._queue = self._queue, deque()
            if self._open is not None:
                self._queue.append(taken.pop())
        try:
            while taken:
                item = taken.popleft()
                if isinstance(item, Item):
                    self._submit(item)
                else:
                    self._ship(item)
        finally:
            if taken:
                # The loop reports the failure of one message; the remaining messages are still
                # sent.
                with self._lock:
                    self._queue.extendleft(reversed(taken))
                self._thread.call(self.drain)

    def _ship(self, batch: _Batch) -> None:
        batch.count = len(batch.values)
        if batch.keys is None:
            packed = PackedBatch(pack_plain(batch.values), batch.count)
        else:
            packed = PackedBatch(pack(batch.values, batch.keys), batch.count, batch.keys[0])

        def done(error: VelarayError | None, stored: StoredId | None) -> None:
            self.give_room(batch.count)
            if stored is not None:
                batch.stored(stored, part.topic, part.partition)
            elif error is not None:
                batch.failed(error)
            if batch.callbacks:
                if not self._reports:
                    self._thread.loop.call_soon(self._report)
                self._reports.append((batch, iter(batch.callbacks)))

        part = self._producer.next_part()
        part.send_batch(packed, done)

    def _report(self) -> None:
        # Scheduled instead of called: exceptions of the user's code must not break the connection.
        try:
            while self._reports:
                batch, callbacks = self._reports[0]
                error = batch.error
                for index, callback in callbacks:
                    if error is None:
                        callback(Result.Ok, batch.message_id(index))
                    else:
                        callback(error.result, None)
                self._reports.popleft()
        finally:
            if self._reports:
                self._thread.loop.call_soon(self._report)

    async def reported(self) -> None:
        """Wait until the callbacks of all completed messages have been called."""
        while self._reports:
            await asyncio.sleep(0)

    def _submit(self, item: Item) -> None:
        if item.context is None:
            self._submit_here(item)
        else:
            item.context.run(self._submit_here, item)

    def _submit_here(self, item: Item) -> None:
        if item.txn is not None:
            self._producer.submit_in(item.txn, item.message, item.done, item.urgent)
            return
        part = self._producer.submit(item.message, item.done)
        if item.urgent and part is not None:
            if not self._urgent:
                self._thread.loop.call_soon(self._hurry)
            self._urgent.add(part)

    def _hurry(self) -> None:
        # Runs after all messages of this wake-up are in the batch, so they share it.
        urgent, self._urgent = self._urgent, set()
        for part in urgent:
            part.flush_batch()

    def give_room(self, count: int = 1) -> None:
        """Release the room of ``count`` completed messages."""
        with self._lock:
            self._in_flight -= count
            if self._waiting:
                self._room.notify_all()

    def close(self) -> bool:
        """Reject new messages; False if it was closed before."""
        with self._lock:
            before, self.closed = self.closed, True
            self._room.notify_all()
        return not before
