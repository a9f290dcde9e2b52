"""A producer on one topic partition: registration, sending, receipts, reconnecting."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from velaray.client.batcher import Done, Entry, EntryBuilder, EntryDone, PackedBatch
from velaray.client.connection import Connection
from velaray.client.core import Core
from velaray.client.enums import ProducerAccessMode
from velaray.client.exceptions import (
    AlreadyClosed,
    MessageTooBig,
    NotConnected,
    ProducerBlockedQuotaExceededError,
    ProducerBlockedQuotaExceededException,
    ProducerBusy,
    ServiceUnitNotReady,
    Timeout,
    TransactionNotFound,
    UnknownError,
    VelarayError,
    from_server,
)
from velaray.client.message import OutgoingMessage
from velaray.client.message_id import MessageId
from velaray.client.options import ProducerOptions
from velaray.client.retry import TRANSIENT, Backoff
from velaray.client.topic_schemas import MOST_KNOWN, Recent
from velaray.events.ids import MessageId as StoredId
from velaray.events.ids import TopicName, TransactionId
from velaray.schemas import SchemaInfo
from velaray.schemas.validation import UNSTORED
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.commands import entry_header
from velaray.wire.schemas import NO_VERSION, to_proto

logger = logging.getLogger("velaray")

_TRANSIENT: tuple[type[VelarayError], ...] = (
    *TRANSIENT,
    ProducerBusy,
    ProducerBlockedQuotaExceededError,
    ProducerBlockedQuotaExceededException,
)
"""What a producer that was registered before tries to get over: its old self may linger, and
a backlog may be consumed."""


class _Sent:
    """An entry without receipt."""

    __slots__ = ("deadline", "entry", "flushed", "header", "number", "producer_id")

    def __init__(self, producer_id: int, entry: Entry, deadline: float, number: int) -> None:
        self.producer_id = producer_id
        self.entry = entry
        self.header = _header(producer_id, entry)
        self.deadline = deadline
        self.number = number
        self.flushed: list[asyncio.Future[None]] = []

    def stamp(self, versions: Mapping[SchemaInfo, bytes]) -> None:
        """Give the entry its schema's version in the cluster that it goes to now."""
        version = versions.get(self.entry.schema) if self.entry.schema else None
        if version is not None:
            self.entry = self.entry.stamped(version)
            self.header = _header(self.producer_id, self.entry)


def _header(producer_id: int, entry: Entry) -> bytes:
    command = pb.CommandSend(producer_id=producer_id, sequence_id=entry.first_sequence_id)
    if entry.messages > 1:
        command.num_messages = entry.messages
        command.highest_sequence_id = entry.last_sequence_id
    if entry.chunk is not None:
        command.is_chunk = True
    if entry.transaction is not None:
        command.txnid_most_bits, command.txnid_least_bits = entry.transaction
    return entry_header(command, len(entry.data))


def _is_of(schema: SchemaInfo, entry: Entry) -> bool:
    return entry.schema == schema


class PartitionProducer:
    """Sends entries in order and completes each message exactly once.

    Entries without receipt are kept and sent again, in order and with the same sequence
    ids, after a reconnect; the service drops those that it has already if de-duplication
    is on for the topic. Reconnecting goes on, with backoff, until the producer is closed
    or the service refuses for good; messages fail by their send timeout meanwhile.
    """

    def __init__(
        self,
        core: Core,
        topic: TopicName,
        options: ProducerOptions[Any],
        *,
        name_is_ours: bool = True,
        initial_subscription: str | None = None,
        schema: SchemaInfo | None = None,
    ) -> None:
        """A name that isn't ours is forgotten by the service when the producer is closed."""
        self._schema = schema
        self._schema_version = NO_VERSION
        self._versions: Recent[SchemaInfo, bytes] = Recent(MOST_KNOWN)
        self._learning: asyncio.Task[bytes] | None = None
        self._name_is_ours = name_is_ours and options.producer_name is not None
        self._initial_subscription = initial_subscription
        self.topic = str(topic)
        self.name = options.producer_name or ""
        self.last_sequence_id = -1
        self.error: VelarayError | None = None
        self._core = core
        self._options = options
        self.partition = topic.partition
        self._id = core.next_id()
        self._epoch = 0
        self._topic_epoch: int | None = None
        self._next_sequence = 0
        self._builder: EntryBuilder | None = None
        self._connection: Connection | None = None
        self._reconnecting: asyncio.Task[None] | None = None
        self._begun = asyncio.Event()
        self._early: list[Callable[[], None]] = []
        self._awaited: set[asyncio.Future[None]] = set()
        self._pending: deque[_Sent] = deque()
        self._first_chunk: StoredId | None = None
        self._batch_timer: asyncio.TimerHandle | None = None
        self._send_timer: asyncio.TimerHandle | None = None
        self._sent = 0
        self._failures = 0
        self._last_failure: VelarayError | None = None
        self._elsewhere = False  # since the client went to another cluster
        core.when_switched.add(self._switched)

    # --- registration ---

    @property
    def connected(self) -> bool:
        """Whether the producer is registered with the service at the moment."""
        return self._connection is not None

    @property
    def begun(self) -> bool:
        """Whether it was registered once."""
        return self._builder is not None

    @property
    def started(self) -> bool:
        """Whether it was registered before or is being registered."""
        return self._builder is not None or self._reconnecting is not None

    async def start(self) -> None:
        """Register. Raises the service's refusal, or `Timeout`.

        With `ProducerAccessMode.WaitForExclusive` there's no timeout: it waits its turn.
        """
        if self._options.access_mode != ProducerAccessMode.WaitForExclusive:
            await self._core.retrying(f"creating a producer on {self.topic}", self._register)
            return
        backoff = Backoff()
        while not self.connected:
            try:
                await self._register(wait_for_turn=True)
            except TRANSIENT as error:
                logger.info("producer on %s waits for its turn again: %s", self.topic, error)
                await backoff.wait()

    def start_lazily(self) -> None:
        """Register in the background; messages wait for it."""
        if not self.started and self.error is None:
            self._reconnecting = self._core.spawn(self._reconnect())

    async def ready(self) -> None:
        """Wait until it was registered once. Raises the error that ended it."""
        if self.error is None:
            await self._begun.wait()
        if self.error is not None:
            raise self.error

    async def _register(self, wait_for_turn: bool = False) -> None:
        """One attempt to register, then send what is pending."""
        versions = await self._versions_elsewhere() if self._elsewhere else {}
        connection = await self._core.lookup.server_of(self.topic)
        connection.producers[self._id] = self
        timeout = None if wait_for_turn else self._core.attempt_timeout
        try:
            answer = await connection.request(self._command(), timeout)
        except (Timeout, asyncio.CancelledError):
            # The service may register us all the same: undo that.
            if not self._core.closed:
                close = pb.CommandCloseProducer(producer_id=self._id)
                self._core.spawn(self._quietly(connection, close))
            raise
        finally:
            attached = connection.producers.pop(self._id, None) is self
        if not attached or self.error is not None:
            raise self.error or NotConnected(f"{connection.address} closed the new producer")
        connection.producers[self._id] = self
        if self._elsewhere:
            self._arrived(versions, answer)
        self._registered(connection, answer)

    def _command(self) -> pb.CommandProducer:
        options = self._options
        register = pb.CommandProducer(
            topic=self.topic,
            producer_id=self._id,
            epoch=self._epoch,
            user_provided_producer_name=self._name_is_ours,
            producer_access_mode=int(options.access_mode),  # type: ignore[arg-type]
        )
        self._epoch += 1
        if self._schema is not None:
            register.schema.CopyFrom(to_proto(self._schema))
        if self._initial_subscription is not None:
            register.initial_subscription_name = self._initial_subscription
        if self.name:
            register.producer_name = self.name
        if self._topic_epoch is not None:
            register.topic_epoch = self._topic_epoch
        for key, value in (options.properties or {}).items():
            register.metadata.add(key=key, value=value)
        return register

    def _registered(self, connection: Connection, answer: pb.CommandProducerSuccess) -> None:
        self.name = answer.producer_name
        if answer.HasField("topic_epoch"):
            self._topic_epoch = answer.topic_epoch
        if self._schema is not None:
            self._schema_version = answer.schema_version
        self._connection = connection
        if self._builder is None:
            self._begin(connection, answer.last_sequence_id)
        else:
            self._builder.max_message_size = connection.max_message_size
            for sent in self._pending:
                connection.send_entry(sent.header, sent.entry.data)
        self._send_early()

    def _send_early(self) -> None:
        early, self._early = self._early, []
        for send in early:
            send()

    def _begin(self, connection: Connection, last_sequence_id: int) -> None:
        self._builder = EntryBuilder(self._options, self.name, connection.max_message_size)
        if self._options.initial_sequence_id is not None:
            last_sequence_id = self._options.initial_sequence_id
        self.last_sequence_id = last_sequence_id
        self._next_sequence = last_sequence_id + 1
        self._begun.set()

    async def _quietly(self, connection: Connection, close: pb.CommandCloseProducer) -> None:
        try:
            await connection.request(close, self._core.attempt_timeout)
        except VelarayError as error:
            logger.debug("closing a producer on %s: %s", self.topic, error)

    # --- sending ---

    @property
    def batch_open(self) -> bool:
        """Whether a batch was begun that takes more messages."""
        return self._builder is not None and self._builder.open

    def send(self, message: OutgoingMessage, done: Done) -> None:
        """Take one message; ``done`` is called exactly once, later or (on failure) now."""
        if self.error is not None:
            self._failed(done, self.error)
            return
        builder = self._builder
        if builder is None or self._learning is not None:
            self._early.append(partial(self.send, message, done))
            return
        version = self._version_of(message.schema)
        if version is None:
            assert message.schema is not None
            self._learn(message.schema, message, done)
            return
        self._put_into(builder, message.transaction, version, message.schema or self._schema)
        sequence_id = message.sequence_id
        if sequence_id is None:
            sequence_id = self._next_sequence
        try:
            entries = builder.add(message, sequence_id, done)
        except MessageTooBig as error:
            self._failed(done, error)
            return
        if message.sequence_id is None:
            self._next_sequence = sequence_id + 1
        for entry in entries:
            self._transmit(entry)
        if builder.open and self._batch_timer is None:
            delay = self._options.batching_max_publish_delay_ms / 1000
            self._batch_timer = self._core.loop.call_later(delay, self.flush_batch)

    @property
    def batch_limit(self) -> int:
        """How large the payload of a batch may be; known once it's `ready`."""
        assert self._builder is not None
        return self._builder.batch_limit

    def send_batch(
        self, batch: PackedBatch, done: EntryDone, transaction: TransactionId | None = None
    ) -> None:
        """Send an entry of its own; ``done`` is called exactly once, later or now."""
        if self.error is not None:
            self._failed(done, self.error)
            return
        builder = self._builder
        if builder is None or self._learning is not None:
            self._early.append(partial(self.send_batch, batch, done, transaction))
            return
        self.flush_batch()
        self._put_into(builder, transaction, self._schema_version, self._schema)
        entry = builder.packed(batch, self._next_sequence, done)
        self._next_sequence = entry.last_sequence_id + 1
        self._transmit(entry)

    def _put_into(
        self,
        builder: EntryBuilder,
        transaction: TransactionId | None,
        version: bytes,
        schema: SchemaInfo | None,
    ) -> None:
        """What is added next is in this transaction and of this schema, which has this version."""
        if transaction != builder.transaction or version != builder.schema_version:
            self.flush_batch()
            builder.transaction = transaction
            builder.schema_version = version
            builder.schema = schema if version else None

    # --- schemas of single messages ---

    def _version_of(self, schema: SchemaInfo | None) -> bytes | None:
        """The version of a message's schema, None: the producer's; None if it isn't known yet."""
        if schema is None:
            return self._schema_version
        return NO_VERSION if schema.type in UNSTORED else self._versions.get(schema)

    def _learn(self, schema: SchemaInfo, message: OutgoingMessage, done: Done) -> None:
        """Register the message's schema; it fails alone, and those after it wait meanwhile."""

        switches = self._core.switches

        def learned(learning: asyncio.Task[bytes]) -> None:
            self._learning = None
            if switches != self._core.switches and not learning.cancelled():
                self._learn(schema, message, done)  # it may have another version there
                return
            if learning.cancelled():
                closed = AlreadyClosed(f"the producer on {self.topic} is closed")
                self._failed(done, self.error or closed)
            elif (error := learning.exception()) is not None:
                known = error if isinstance(error, VelarayError) else UnknownError(repr(error))
                self._failed(done, known)
            else:
                self._versions.put(schema, learning.result())
                self.send(message, done)
            self._send_early()

        self._learning = self._core.spawn(self._core.schemas.version_of(self.topic, schema))
        # A task that is cancelled before its first step does nothing by itself.
        self._learning.add_done_callback(learned)

    def flush_batch(self) -> None:
        """Send the current batch without waiting for more messages."""
        if self._batch_timer is not None:
            self._batch_timer.cancel()
            self._batch_timer = None
        if self._builder is not None:
            for entry in self._builder.flush():
                self._transmit(entry)

    def _transmit(self, entry: Entry) -> None:
        now = self._core.loop.time()
        timeout = self._options.send_timeout_millis / 1000
        self._sent += 1
        sent = _Sent(self._id, entry, now + timeout, self._sent)
        self._pending.append(sent)
        if timeout and self._send_timer is None:
            self._send_timer = self._core.loop.call_at(sent.deadline, self._expire)
        if self._connection is not None:
            self._connection.send_entry(sent.header, entry.data)

    def awaits(self, joining: asyncio.Future[None]) -> None:
        """Messages come when this is done: `flush` waits for them as well."""
        self._awaited.add(joining)
        joining.add_done_callback(self._awaited.discard)

    async def flush(self) -> None:
        """Wait until every message taken so far is stored.

        Raises the error of one that failed meanwhile; the others are complete as well then.
        """
        failures = self._failures
        if self._awaited:
            await asyncio.wait(self._awaited)
        if self._early or self._learning is not None:
            reached: asyncio.Future[None] = self._core.loop.create_future()
            self._early.append(partial(self._reach, reached))
            await reached
        self.flush_batch()
        last = self._sent
        while self._pending and self._pending[0].number <= last:
            # Nearly always the last one completes last; one round is enough then.
            complete = self._core.loop.create_future()
            newest = next(sent for sent in reversed(self._pending) if sent.number <= last)
            newest.flushed.append(complete)
            await complete
        if self._failures > failures and self._last_failure is not None:
            raise self._last_failure

    def _reach(self, reached: asyncio.Future[None]) -> None:
        """Everything before this is on its way, unless a message waits for its schema."""
        if self._learning is not None:
            self._early.append(partial(self._reach, reached))
        elif not reached.done():
            reached.set_result(None)

    def _failed(self, done: Done | EntryDone, error: VelarayError) -> None:
        self._failures += 1
        self._last_failure = error
        done(error, None)

    # --- receipts ---

    def on_receipt(self, receipt: pb.CommandSendReceipt) -> None:
        """Complete the oldest entry; a receipt that fits nothing is out of step."""
        if not self._pending or receipt.sequence_id < self._pending[0].entry.first_sequence_id:
            return  # for an entry that was given up before
        entry = self._pending[0].entry
        if receipt.sequence_id > entry.last_sequence_id:
            assert self._connection is not None
            self._connection.abort(
                NotConnected(f"{self.topic}: receipt {receipt.sequence_id} is out of step")
            )
            return
        sent = self._pending.popleft()
        stored = StoredId.from_proto(receipt.message_id)
        self.last_sequence_id = max(self.last_sequence_id, entry.last_sequence_id)
        self._complete(entry, stored)
        self._flushed(sent)

    def _flushed(self, sent: _Sent) -> None:
        for future in sent.flushed:
            if not future.done():
                future.set_result(None)

    def _complete(self, entry: Entry, stored: StoredId) -> None:
        first_chunk = None
        if entry.chunk is not None:
            number, count = entry.chunk
            if number == 0:
                self._first_chunk = stored
            if number == count - 1:
                first_chunk = self._first_chunk
        if entry.done is not None:
            entry.done(None, stored)
        batched = entry.batch
        for index, done in enumerate(entry.waiting):
            message_id = MessageId(
                self.partition,
                stored.ledger_id,
                stored.entry_id,
                index if batched else -1,
                batch_size=entry.messages if batched else 0,
                topic=self.topic,
                first_chunk=first_chunk,
            )
            done(None, message_id)

    def on_send_error(self, error: pb.CommandSendError) -> None:
        """Fail the entry, or reconnect and send again if the trouble may pass."""
        exception = from_server(error.error, error.message)
        if isinstance(exception, ServiceUnitNotReady):
            if self._connection is not None:
                self._connection.abort(exception)
            return
        for sent in self._pending:
            if sent.entry.first_sequence_id == error.sequence_id:
                self._give_up_one(sent.entry, exception)
                break

    def _give_up_one(self, entry: Entry, error: VelarayError) -> None:
        """Drop ``entry``, and the other chunks of its message, from what is pending."""
        number = entry.first_sequence_id if entry.chunk is not None else None
        self._give_up(
            lambda it: it is entry or (it.chunk is not None and it.first_sequence_id == number),
            error,
        )

    def _give_up(self, which: Callable[[Entry], bool], error: VelarayError) -> None:
        """Drop entries from what is pending."""
        gone = [sent for sent in self._pending if which(sent.entry)]
        if gone:
            self._pending = deque(sent for sent in self._pending if not which(sent.entry))
            self._fail_all(gone, error)

    def _fail_all(self, gone: Iterable[_Sent], error: VelarayError) -> None:
        for sent in gone:
            for done in sent.entry.waiting:
                self._failed(done, error)
            if sent.entry.done is not None:
                self._failed(sent.entry.done, error)
            self._flushed(sent)

    def _expire(self) -> None:
        """Fail the entries that have waited for their receipts too long."""
        self._send_timer = None
        now = self._core.loop.time()
        while self._pending and self._pending[0].deadline <= now:
            self._give_up_one(
                self._pending[0].entry,
                Timeout(
                    f"{self.topic}: no receipt in {self._options.send_timeout_millis} ms;"
                    " the message may or may not be stored"
                ),
            )
        if self._pending:
            self._send_timer = self._core.loop.call_at(self._pending[0].deadline, self._expire)

    # --- losing and regaining the connection ---

    def on_closed(self, connection: Connection) -> None:
        """The connection or the registration is gone: get a new one."""
        if connection is not self._connection:
            return  # lost while registering: whoever registers finds out
        self._connection = None
        if self.error is None and not self._core.closed:
            self._reconnecting = self._core.spawn(self._reconnect())

    def _switched(self) -> None:
        """The client goes to another cluster, which numbers schemas itself, as it does epochs of
        exclusive producers, and knows nothing of transactions."""
        self._elsewhere = True
        self._topic_epoch = None
        self._versions = Recent(MOST_KNOWN)
        self.flush_batch()
        error = TransactionNotFound(f"{self.topic}: the client has left the transaction's cluster")
        self._give_up(lambda entry: entry.transaction is not None, error)

    async def _versions_elsewhere(self) -> dict[SchemaInfo, bytes]:
        """Which versions the schemas of what is pending have where the client has gone to, but for
        the producer's own one.

        Entries whose schema is refused there are given up.
        """
        self.flush_batch()
        wanted = {sent.entry.schema for sent in self._pending} - {self._schema}
        versions = {}
        for schema in filter(None, wanted):
            try:
                versions[schema] = await self._core.schemas.version_of(self.topic, schema)
            except TRANSIENT:
                raise
            except VelarayError as error:
                self._give_up(partial(_is_of, schema), error)
        return versions

    def _arrived(
        self, versions: dict[SchemaInfo, bytes], answer: pb.CommandProducerSuccess
    ) -> None:
        """Registered where the client has gone to: stamp what is pending with versions of there."""
        self.flush_batch()
        self._elsewhere = False
        if self._builder is not None:
            self._builder.schema_version, self._builder.schema = NO_VERSION, None
        if self._schema is not None:
            versions[self._schema] = answer.schema_version
        for sent in self._pending:
            sent.stamp(versions)

    async def _reconnect(self) -> None:
        backoff = Backoff()
        while self.error is None:
            try:
                await self._register()
            except _TRANSIENT as error:
                logger.info("producer on %s can't reconnect yet: %s", self.topic, error)
                if self._builder is None and not isinstance(error, TRANSIENT):
                    self._fail(error)
                elif isinstance(error, ProducerBlockedQuotaExceededException):
                    pending, self._pending = self._pending, deque()
                    self._fail_all(pending, error)
            except VelarayError as error:
                logger.warning("producer on %s is out: %s", self.topic, error)
                self._fail(error)
            else:
                break
            await backoff.wait()
        self._reconnecting = None

    # --- the end ---

    def _fail(self, error: VelarayError) -> None:
        """Nothing can be sent any more: complete everything with ``error``."""
        if self.error is None:
            self.error = error
        self._core.when_switched.discard(self._switched)
        self.flush_batch()
        if self._send_timer is not None:
            self._send_timer.cancel()
        pending, self._pending = self._pending, deque()
        self._begun.set()
        if self._learning is not None:
            self._learning.cancel()
        self._send_early()
        self._fail_all(pending, error)

    def stop(self) -> None:
        """Give up: messages that are not stored yet fail with `AlreadyClosed`."""
        self._fail(AlreadyClosed(f"the producer on {self.topic} is closed"))
        if self._reconnecting is not None:
            self._reconnecting.cancel()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.producers.pop(self._id, None)

    async def close(self) -> None:
        """Wait for the receipts of what was sent, at most one operation timeout, then stop."""
        try:
            async with asyncio.timeout(self._core.timeout):
                await self.flush()
        except TimeoutError:
            logger.warning("producer on %s closes with messages unsent", self.topic)
        except VelarayError as error:
            # Whoever sent the message has been told.
            logger.debug("producer on %s closes after a failure: %s", self.topic, error)
        connection = self._connection
        self.stop()
        if connection is not None:
            await self._quietly(connection, pb.CommandCloseProducer(producer_id=self._id))
