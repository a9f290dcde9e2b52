"""The public asyncio producer: one or many partitions, routing, and a limit of pending messages."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Generic

from velaray.client.batcher import Done
from velaray.client.closing import AsyncClosing
from velaray.client.core import Core, start_all, topic_name, watch_partitions
from velaray.client.enums import BatchingType
from velaray.client.exceptions import (
    AlreadyClosed,
    InvalidMessage,
    ProducerQueueIsFull,
    VelarayError,
)
from velaray.client.interceptors import ProducerInterceptors, SendManyWatches
from velaray.client.message import OutgoingMessage, content_of
from velaray.client.message_id import MessageId
from velaray.client.options import ProducerOptions
from velaray.client.partition_producer import PartitionProducer
from velaray.client.routing import Router
from velaray.client.schema.auto import AutoProduceBytesSchema
from velaray.client.schema.base import Schema, T, typed
from velaray.client.sending import Room, SendMany
from velaray.client.sent import SentBatch
from velaray.client.transactions import Transaction
from velaray.client.values import encoded_values, values_of
from velaray.events.ids import TopicName
from velaray.schemas import SchemaInfo
from velaray.schemas.validation import UNSTORED


class _Receipt:
    """The receipt of one message, for the caller of ``send``.

    One object for each message: more of them would take time in cycle collection.
    """

    __slots__ = ("_future", "_producer")

    def __init__(self, producer: Producer[Any], future: asyncio.Future[MessageId]) -> None:
        self._producer = producer
        self._future = future

    def __call__(self, error: VelarayError | None, message_id: MessageId | None) -> None:
        self._producer._one_less()
        if self._future.done():
            return
        if message_id is not None:
            self._future.set_result(message_id)
        elif error is not None:
            self._future.set_exception(error)


class Producer(AsyncClosing, Generic[T]):
    """Publishes to a topic. Made by `velaray.aio.Client.create_producer`.

    Messages of one producer to one partition are stored in the order of the ``send`` calls, also
    after reconnects.
    """

    def __init__(
        self,
        core: Core,
        options: ProducerOptions[Any],
        on_close: Callable[[Producer[Any]], None],
        initial_subscription: str | None = None,
    ) -> None:
        """``initial_subscription`` is created before anything is stored, unless it exists."""
        self._core = core
        self._options = options
        self._initial_subscription = initial_subscription
        self._on_close = on_close
        self._topic = topic_name(options.topic)
        self.schema = typed(options.schema)
        self._parts: list[PartitionProducer] = []
        self._router: Router | None = None
        self._closed = False
        self._in_flight = 0
        self._room: deque[asyncio.Future[None]] = deque()
        self._watcher: asyncio.Task[None] | None = None
        self.interceptors: ProducerInterceptors | None = None
        if options.interceptors:
            self.interceptors = ProducerInterceptors(options.interceptors)
            self.interceptors.owner = self
        self._batch_room = Room(core.loop, lambda: self.pending_limit)

    async def start(self) -> None:
        """Register with the service; called by the client."""
        count = await self._core.partitions_of(str(self._topic))
        if isinstance(self.schema, AutoProduceBytesSchema):
            self.schema = self.schema.bound(await self._core.schemas.latest(str(self._topic)))
        if count == 0:
            self._parts = [self._made_one(self._topic)]
        else:
            self._parts = self._made(0, count)
        self._router = Router(self._options, len(self._parts))
        eager = self._parts
        if self._options.lazy_start_partitioned_producers:
            eager = [self._parts[self._router.start]]
        await start_all(self._core, eager)
        if count:
            watch = watch_partitions(self._core, str(self._topic), count, self._grow)
            self._watcher = self._core.spawn(watch)

    def _made(self, first: int, count: int) -> list[PartitionProducer]:
        return [self._made_one(self._topic.of_partition(index)) for index in range(first, count)]

    def _made_one(self, topic: TopicName) -> PartitionProducer:
        return PartitionProducer(
            self._core,
            topic,
            self._options,
            schema=self._registered,
            initial_subscription=self._initial_subscription,
        )

    @property
    def _registered(self) -> SchemaInfo | None:
        """The schema for the registration; None for bytes."""
        stored = self.schema is not None and self.schema.info.type not in UNSTORED
        return self.schema.info if self.schema is not None and stored else None

    async def _grow(self, known: int, now: int) -> None:
        added = self._made(known, now)
        for part in added:
            part.start_lazily()
        self._parts += added

    # --- sending ---

    @property
    def pending_limit(self) -> int:
        """The limit of messages without a receipt, over all partitions."""
        options = self._options
        total = options.max_pending_messages * max(len(self._parts), 1)
        return min(total, options.max_pending_messages_across_partitions)

    async def send(
        self,
        content: T | None,
        properties: Mapping[str, str] | None = None,
        partition_key: str | None = None,
        ordering_key: str | None = None,
        sequence_id: int | None = None,
        replication_clusters: Sequence[str] | None = None,
        disable_replication: bool | None = None,
        event_timestamp: int | None = None,
        deliver_at: int | None = None,
        deliver_after: timedelta | None = None,
        *,
        txn: Transaction | None = None,
        schema: Schema[Any] | None = None,
    ) -> MessageId:
        """Publish one message and wait for its receipt: it is stored durably then.

        In a transaction (``txn``) consumers get the message when the transaction is committed, or
        never. Messages of one transaction keep their order. Raises `InvalidTxnStatusError` if the
        transaction isn't open, and `InvalidConfiguration` if it is another client's.

        ``content`` is encoded with ``schema``, by default the producer's. An unknown schema is
        registered first. Raises `InvalidMessage` for a value that doesn't fit, and
        `IncompatibleSchema` if the topic's rules refuse the schema.

        ``content`` None sends a tombstone. On `Timeout`, or if the call is cancelled, the message
        may or may not be stored. After any other error it isn't stored. Raises
        `ProducerQueueIsFull` if too many messages are pending, unless the producer was created with
        ``block_if_queue_full=True``.
        """
        encoded = None
        payload: Any = content
        if schema is not None or self.schema is not None:
            encoded = content_of(content, partition_key, self.schema, schema)
            payload, partition_key = encoded.payload, encoded.key
        message = OutgoingMessage(
            *(payload, properties, partition_key, ordering_key, sequence_id),
            *(replication_clusters, disable_replication, event_timestamp),
            *(deliver_at, deliver_after, encoded),
        )
        await self._make_room()
        receipt: asyncio.Future[MessageId] = self._core.loop.create_future()
        done = _Receipt(self, receipt)
        self._in_flight += 1
        if txn is None:
            self.submit(message, done)
        else:
            self.submit_in(txn, message, done)
        return await receipt

    async def send_many(
        self, values: Any, keys: Any = None, *, txn: Transaction | None = None
    ) -> SentBatch:
        """Publish many values in order, and wait for all receipts: all values are stored then.

        ``values`` are a sequence of bytes (None is a tombstone), or a pyarrow array of bytes or
        text (null is a tombstone). With a schema they are values for it; an Arrow array is
        converted to a list. ``keys`` are None, or as many keys as values: a sequence of str (None
        or "" is no key), or a pyarrow array of text. Values are sent in as few entries as possible,
        of up to 512 KiB, in Pulsar's batch layout, which every client reads. The producer's
        batching options don't apply, except that with `BatchingType.KeyBased` keys don't share
        entries. On a topic with partitions, values with a key go to the same partition as with
        ``send``. Entries of values without a key go to the partitions in turn. Order is kept within
        each partition.

        Waits while ``max_pending_messages`` entries or 4 MiB of earlier calls have no receipt;
        never raises `ProducerQueueIsFull`. Before sending anything, raises `MessageTooBig` if a
        value doesn't fit into an entry (nothing is chunked), `InvalidMessage` for other values or
        keys, and `AlreadyClosed`. Raises `NotAllStored` if an entry failed: it lists the stored
        values, and `durable` is the number of stored values before the first gap. If the call is
        cancelled, each of the values may or may not be stored. A transaction (``txn``) works as
        with `send`.
        """
        if self._closed:
            raise AlreadyClosed("the producer is closed")
        assert self._router is not None
        if self.schema is not None:
            values = encoded_values(values, self.schema)
        given = values_of(values, keys)
        if txn is not None:
            txn.belongs_to(self._core)
        watches = SendManyWatches()
        if self.interceptors is not None:
            watches = self.interceptors.before_send_many(len(given))
        by_key = self._options.batching_type == BatchingType.KeyBased
        properties = watches.properties
        call = SendMany(self._parts, self._router, self._batch_room, by_key, txn, properties)
        work = call.run(given)
        return await watches.outcome_of(work if txn is None else txn.run(work))

    async def _make_room(self) -> None:
        limit = self.pending_limit
        if self._in_flight < limit and not self._room:
            return
        if not self._options.block_if_queue_full:
            raise ProducerQueueIsFull(
                f"{limit} messages wait for receipts; await some, or use block_if_queue_full=True"
            )
        while self._in_flight >= limit:
            room = self._core.loop.create_future()
            self._room.append(room)
            await room

    def _one_less(self) -> None:
        self._in_flight -= 1
        while self._room:
            room = self._room.popleft()
            if not room.done():
                room.set_result(None)
                break

    def submit(self, message: OutgoingMessage, done: Done) -> PartitionProducer | None:
        """Route and enqueue a message; the caller enforces the limit of pending messages.

        ``done`` is called exactly once, at once if the message is refused. Returns the
        partition's producer that took the message.
        """
        if self.interceptors is not None:
            message, done = self._intercepted(self.interceptors, message, done)
        try:
            part = self._part_for(message)
        except InvalidMessage as error:
            done(error, None)
            return None
        part.send(message, done)
        return part

    def submit_in(
        self, txn: Transaction, message: OutgoingMessage, done: Done, urgent: bool = False
    ) -> None:
        """Submit as `submit`, in a transaction of this client's."""
        if self.interceptors is not None:
            message, done = self._intercepted(self.interceptors, message, done)
        try:
            txn.belongs_to(self._core)
            txn.send(self._part_for(message), message, done, urgent)
        except VelarayError as error:
            done(error, None)

    def _part_for(self, message: OutgoingMessage) -> PartitionProducer:
        """Return the partition for the message: by its key, or the next one.

        Raises `InvalidMessage`.
        """
        assert self._router is not None
        parts = self._parts
        index = 0
        if len(parts) > 1:
            index = self._router.choose(
                message, len(parts), lambda current: parts[current].batch_open
            )
        part = parts[index]
        if self._options.lazy_start_partitioned_producers:
            part.start_lazily()
        return part

    def _intercepted(
        self, interceptors: ProducerInterceptors, message: OutgoingMessage, done: Done
    ) -> tuple[OutgoingMessage, Done]:
        message = interceptors.before_send(message)

        def told(error: VelarayError | None, message_id: MessageId | None) -> None:
            interceptors.acknowledged(message, message_id, error)
            done(error, message_id)

        return message, told

    @property
    def partitioned(self) -> bool:
        """Whether the topic has partitions, even if there is only one now."""
        return self._watcher is not None

    @property
    def batch_limit(self) -> int:
        """The largest payload of a batch, as far as known."""
        return min(part.batch_limit for part in self._parts if part.begun)

    def next_part(self) -> PartitionProducer:
        """The partition for the next batch without keys."""
        assert self._router is not None
        parts = self._parts
        part = parts[self._router.next_batch(len(parts)) if len(parts) > 1 else 0]
        if self._options.lazy_start_partitioned_producers:
            part.start_lazily()
        return part

    async def flush(self) -> None:
        """Send the open batches and wait for the receipts of all messages so far.

        On return all of them are stored. Raises the error of a message that failed; the ``send``
        calls of the others return their outcome.
        """
        results = await asyncio.gather(
            *(part.flush() for part in self._parts), return_exceptions=True
        )
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def close(self) -> None:
        """Flush for at most one operation timeout, then leave the service.

        Messages that couldn't be stored in that time fail with `AlreadyClosed`. Closing
        twice does nothing.
        """
        self._closed = True
        self._cancel_watcher()
        await asyncio.gather(*(part.close() for part in self._parts))
        if self.interceptors is not None:
            self.interceptors.close()
        self._on_close(self)

    def stop(self) -> None:
        """Leave at once: messages without a receipt fail with `AlreadyClosed`."""
        self._closed = True
        self._cancel_watcher()
        for part in self._parts:
            part.stop()

    def _cancel_watcher(self) -> None:
        if self._watcher is not None:
            self._watcher.cancel()

    # --- properties ---

    def topic(self) -> str:
        """The full name of the topic."""
        return str(self._topic)

    def producer_name(self) -> str:
        """The name, given by the user or generated by the service."""
        return self._parts[0].name

    def last_sequence_id(self) -> int:
        """The highest sequence id with a receipt.

        Without one it is the service's last one for this name, or else -1.
        """
        return max(part.last_sequence_id for part in self._parts)

    def is_connected(self) -> bool:
        """Whether every started partition is registered with the service at the moment."""
        return all(part.connected for part in self._parts if part.started)

    def __repr__(self) -> str:
        return f"<Producer of {self._topic}>"
