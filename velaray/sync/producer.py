"""The synchronous producer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from datetime import timedelta
from typing import Any, Generic, overload

from velaray.client.batcher import Done
from velaray.client.closing import Closing
from velaray.client.enums import Result
from velaray.client.exceptions import AlreadyClosed, ProducerQueueIsFull, VelarayError
from velaray.client.message import OutgoingMessage, content_of
from velaray.client.message_id import MessageId
from velaray.client.options import ProducerOptions
from velaray.client.producer import Producer as AioProducer
from velaray.client.schema.base import Schema, T
from velaray.client.sent import SentBatch
from velaray.client.transactions import Transaction as AioTransaction
from velaray.sync.face import Face, direct
from velaray.sync.loop import LoopThread
from velaray.sync.outbox import Item, Outbox
from velaray.sync.receipt import Callback
from velaray.sync.transaction import Transaction, inner_of


class Producer(Face[AioProducer[Any]], Closing, Generic[T]):
    """Publishes to a topic. Created by `velaray.Client.create_producer`; thread-safe.

    Messages that one thread sends to one partition are stored in the order of the calls, also
    across reconnects.
    """

    def __init__(
        self,
        thread: LoopThread,
        producer: AioProducer[Any],
        options: ProducerOptions[Any],
        on_close: Callable[[Producer[Any]], None],
    ) -> None:
        super().__init__(thread, producer)
        self._on_close = on_close
        self._schema = schema = producer.schema
        self._encode = None if schema is None or schema.separate_key else schema.encode
        # The schema argument of messages that are already bytes: None, or an object that matches
        # none.
        self._bytes: object = None if schema is None else object()
        self._outbox = Outbox(thread, producer, options)
        if producer.interceptors is not None:
            producer.interceptors.owner = self

    # --- sending ---

    def send(
        self,
        content: T | None,
        properties: Mapping[str, str] | None = None,
        partition_key: str | None = None,
        ordering_key: str | None = None,
        sequence_id: int | None = None,
        replication_clusters: Sequence[str] | None = None,
        disable_replication: bool = False,
        event_timestamp: int | None = None,
        deliver_at: int | None = None,
        deliver_after: timedelta | None = None,
        *,
        txn: Transaction | None = None,
        schema: Schema[Any] | None = None,
    ) -> MessageId:
        """Publish one message and wait for its receipt, which means that it is stored durably.

        In a transaction (``txn``) consumers get the message after the commit, or never. Messages of
        one transaction keep their order. Raises `InvalidTxnStatusError` if the transaction isn't
        open, and `InvalidConfiguration` if it is another client's.

        ``schema``, or else the producer's schema, encodes ``content``. A schema of this message is
        registered first, unless it is known. Raises `InvalidMessage` for a value that doesn't fit
        the schema, and `IncompatibleSchema` if the topic's rules refuse the schema.

        ``content`` None sends a tombstone. After `Timeout` the message may or may not be stored;
        after any other error it isn't. The call doesn't wait for a batch to fill. Raises
        `ProducerQueueIsFull` if too many messages are pending, unless the producer has
        ``block_if_queue_full=True``.
        """
        outbox = self._outbox
        encoded = None
        payload: Any = content
        if schema is not self._bytes:
            if schema is not None or self._encode is None:
                encoded = content_of(content, partition_key, self._schema, schema)
                payload, partition_key = encoded.payload, encoded.key
            elif content is not None:
                payload = self._encode(content)
        if (
            type(payload) is bytes
            and len(payload) <= outbox.largest
            and properties is None
            and outbox.takes(partition_key)
            and ordering_key is None
            and sequence_id is None
            and replication_clusters is None
            and not disable_replication
            and event_timestamp is None
            and deliver_at is None
            and deliver_after is None
            and txn is None
            and (encoded is None or encoded.plain)
        ):
            self._thread.forbid_here()
            receipt = outbox.add(payload, None, partition_key)
            assert receipt is not None
            outbox.hurry()
            return receipt.result()
        message = OutgoingMessage(
            *(payload, properties, partition_key, ordering_key, sequence_id),
            *(replication_clusters, disable_replication, event_timestamp),
            *(deliver_at, deliver_after, encoded),
        )
        future: Future[MessageId] = Future()
        self._thread.forbid_here()
        outbox.put(Item(message, self._completing(future), True, inner_of(txn) if txn else None))
        return future.result()

    @overload
    def send_async(
        self,
        content: T | None,
        callback: Callback,
        properties: Mapping[str, str] | None = None,
        partition_key: str | None = None,
        ordering_key: str | None = None,
        sequence_id: int | None = None,
        replication_clusters: Sequence[str] | None = None,
        disable_replication: bool = False,
        event_timestamp: int | None = None,
        deliver_at: int | None = None,
        deliver_after: timedelta | None = None,
        *,
        txn: Transaction | None = None,
        schema: Schema[Any] | None = None,
    ) -> None: ...

    @overload
    def send_async(
        self,
        content: T | None,
        callback: None = None,
        properties: Mapping[str, str] | None = None,
        partition_key: str | None = None,
        ordering_key: str | None = None,
        sequence_id: int | None = None,
        replication_clusters: Sequence[str] | None = None,
        disable_replication: bool = False,
        event_timestamp: int | None = None,
        deliver_at: int | None = None,
        deliver_after: timedelta | None = None,
        *,
        txn: Transaction | None = None,
        schema: Schema[Any] | None = None,
    ) -> Future[MessageId]: ...

    def send_async(
        self,
        content: T | None,
        callback: Callback | None = None,
        properties: Mapping[str, str] | None = None,
        partition_key: str | None = None,
        ordering_key: str | None = None,
        sequence_id: int | None = None,
        replication_clusters: Sequence[str] | None = None,
        disable_replication: bool = False,
        event_timestamp: int | None = None,
        deliver_at: int | None = None,
        deliver_after: timedelta | None = None,
        *,
        txn: Transaction | None = None,
        schema: Schema[Any] | None = None,
    ) -> Future[MessageId] | None:
        """Publish one message without waiting for its receipt.

        A ``callback`` is called once, on the client's thread, with ``(Result.Ok, message_id)`` or
        ``(error code, None)``, also if the queue is full. It must not block. Without a callback,
        the call returns a future of the message id, which raises typed errors. With
        ``block_if_queue_full`` the call waits for room. Success and failure mean the same as for
        `send`. Committing a transaction (``txn``) waits for its messages, and aborts it if one of
        them failed.
        """
        outbox = self._outbox
        encoded = None
        payload: Any = content
        if schema is not self._bytes:
            if schema is not None or self._encode is None:
                encoded = content_of(content, partition_key, self._schema, schema)
                payload, partition_key = encoded.payload, encoded.key
            elif content is not None:
                payload = self._encode(content)
        try:
            if (
                type(payload) is bytes
                and len(payload) <= outbox.largest
                and properties is None
                and outbox.takes(partition_key)
                and ordering_key is None
                and sequence_id is None
                and replication_clusters is None
                and not disable_replication
                and event_timestamp is None
                and deliver_at is None
                and deliver_after is None
                and txn is None
                and (encoded is None or encoded.plain)
            ):
                return outbox.add(payload, callback, partition_key)
            message = OutgoingMessage(
                *(payload, properties, partition_key, ordering_key, sequence_id),
                *(replication_clusters, disable_replication, event_timestamp),
                *(deliver_at, deliver_after, encoded),
            )
            inner = None if txn is None else inner_of(txn)
            if callback is not None:
                outbox.put(Item(message, self._reporting(callback), False, inner))
                return None
            future: Future[MessageId] = Future()
            outbox.put(Item(message, self._completing(future), False, inner))
            return future
        except ProducerQueueIsFull as error:
            if callback is None:
                raise
            self._thread.call(callback, error.result, None)
            return None

    def send_many(
        self, values: Any, keys: Any = None, *, txn: Transaction | None = None
    ) -> SentBatch:
        """Publish many values in order and wait for all receipts: all are stored then.

        ``values`` are a sequence of bytes (None is a tombstone), or a pyarrow array of bytes or
        text (null is a tombstone). A schema encodes the values; it takes an Arrow array as a list.
        ``keys`` are None, or as many keys as values: a sequence of str (None or "" is no key), or a
        pyarrow array of text.

        Values are packed into as few entries as possible, of up to 512 KiB, in Pulsar's batch
        layout, which every client reads. The producer's batching options don't apply, except that
        with `BatchingType.KeyBased` keys don't share entries. On a topic with partitions, values
        with a key go to the same partition as with ``send``. The other values go to the partitions
        in turn, entry by entry. Order is kept within each partition. Earlier messages of this
        thread come first.

        The call waits while ``max_pending_messages`` entries or 4 MiB of other calls have no
        receipt. It never raises `ProducerQueueIsFull`. These errors are raised before anything is
        sent: `MessageTooBig` if a value doesn't fit into an entry (nothing is chunked),
        `InvalidMessage` for invalid arguments, and `AlreadyClosed`. `NotAllStored` is raised if an
        entry failed. It says which values are stored, and `durable`, the number of values from the
        first on without a gap. A transaction (``txn``) works as in `send`.
        """
        if self._outbox.closed:
            raise AlreadyClosed("the producer is closed")
        inner = None if txn is None else inner_of(txn)
        return self._thread.run(self._send_many(values, keys, inner))

    async def _send_many(self, values: Any, keys: Any, txn: AioTransaction | None) -> SentBatch:
        self._outbox.drain_all()
        return await self._inner.send_many(values, keys, txn=txn)

    def _completing(self, future: Future[MessageId]) -> Done:
        def done(error: VelarayError | None, message_id: MessageId | None) -> None:
            self._outbox.give_room()
            if message_id is not None:
                future.set_result(message_id)
            elif error is not None:
                future.set_exception(error)

        return done

    def _reporting(self, callback: Callback) -> Done:
        def done(error: VelarayError | None, message_id: MessageId | None) -> None:
            self._outbox.give_room()
            # Scheduled instead of called: exceptions of the user's code must not break the
            # connection.
            result = Result.Ok if error is None else error.result
            self._thread.loop.call_soon(callback, result, message_id)

        return done

    def flush(self) -> None:
        """Send what is batched and wait for the receipts of all messages sent so far.

        On return all of them are stored. Raises the error of a message that failed.
        """
        self._thread.run(self._flush())

    async def _flush(self) -> None:
        self._outbox.drain_all()
        try:
            await self._inner.flush()
        finally:
            await self._outbox.reported()

    # --- closing and properties ---

    def close(self) -> None:
        """Flush (for at most one operation timeout), then leave the service.

        Messages that couldn't be stored in that time fail with `AlreadyClosed`. Closing twice has
        no effect.
        """
        if not self._outbox.close():
            return
        if not self._thread.stopped:
            self._thread.run(self._close())
        self._on_close(self)

    async def _close(self) -> None:
        self._outbox.drain_all()
        await self._inner.close()
        await self._outbox.reported()

    def abandon(self) -> None:
        """Fail the messages in the outbox; runs on the loop's thread."""
        self._outbox.close()
        self._outbox.drain_all()

    topic = direct(AioProducer.topic)
    producer_name = direct(AioProducer.producer_name)
    last_sequence_id = direct(AioProducer.last_sequence_id)

    def is_connected(self) -> bool:
        """Whether every started partition is currently registered with the service."""
        return not self._outbox.closed and self._inner.is_connected()
