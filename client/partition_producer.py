"""A producer on one topic partition: registration, sending, receipts, reconnecting."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from velaray.client.batcher import Done, Entry, EntryDone, PackedBatch
from velaray.client.batching import Batching
from velaray.client.connection import Connection
from velaray.client.core import Core
from velaray.client.enums import ProducerAccessMode
from velaray.client.exceptions import (
    AlreadyClosed,
    BrokerMetadataError,
    CryptoError,
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
from velaray.client.options import ProducerOptions
from velaray.client.pending_entries import PendingEntries
from velaray.client.producer_registration import Registration, refused
from velaray.client.producer_schemas import ProducerSchemas
from velaray.client.reconnecting import Reconnection
from velaray.client.retry import TRANSIENT
from velaray.events.backoff import Backoff
from velaray.events.ids import MessageId as StoredId
from velaray.events.ids import TopicName, TransactionId
from velaray.schemas import SchemaInfo
from velaray.wire import pulsar_pb2 as pb

logger = logging.getLogger("velaray")

_TRANSIENT: tuple[type[VelarayError], ...] = (
    *TRANSIENT,
    ProducerBusy,
    ProducerBlockedQuotaExceededError,
    ProducerBlockedQuotaExceededException,
)
"""Errors that a formerly registered producer retries.

Its former session may still exist, and a backlog may be consumed.
"""


class PartitionProducer:
    """Sends entries in order and completes each message exactly once.

    Entries without a receipt are kept. After a reconnect they are sent again, in order and with the
    same sequence ids. The service drops those that it already has if de-duplication is on for the
    topic. Reconnecting is repeated, with back-off, until the producer is closed or the service
    refuses permanently. Messages can fail by their send timeout meanwhile.
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
        """Whether the name is the user's.

        The service deletes other names when the producer is closed.
        """
        self.topic = str(topic)
        self.partition = topic.partition
        self.name = options.producer_name or ""
        self.last_sequence_id = -1
        self.error: VelarayError | None = None
        self._core = core
        self._options = options
        self._id = core.next_id()
        self._registration = Registration(
            self.topic, self._id, options, schema, name_is_ours, initial_subscription
        )
        self._schemas = ProducerSchemas(core, self.topic, schema)
        self._pending = PendingEntries(core.loop, topic, self._id, options.send_timeout_millis)
        self._batches = Batching(options, core.loop, lambda entry: self._transmit(entry))
        self._learning: asyncio.Task[bytes] | None = None
        self._connection: Connection | None = None
        self._reconnection = Reconnection(
            core, self._register, self._attempt_failed, lambda: self.error is not None
        )
        self._begun = asyncio.Event()
        self._early: list[Callable[[], None]] = []
        self._awaited: set[asyncio.Future[None]] = set()
        self._elsewhere = False  # set after a switch to another cluster
        core.when_switched.add(self._switched)

    # --- registration ---

    @property
    def connected(self) -> bool:
        """Whether the producer is registered with the service at the moment."""
        return self._connection is not None

    @property
    def begun(self) -> bool:
        """Whether the producer was registered at least once."""
        return self._batches.builder is not None

    @property
    def started(self) -> bool:
        """Whether the producer was registered before, or is being registered."""
        return self.begun or self._reconnection.running

    async def start(self) -> None:
        """Register. Raises the service's refusal, or `Timeout`.

        With `ProducerAccessMode.WaitForExclusive` there is no timeout: the call waits for exclusive
        access.
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
        """Register in the background; messages wait until then."""
        if not self.started and self.error is None:
            self._reconnection.start()

    async def ready(self) -> None:
        """Wait until the producer was registered once. Raises the error that ended it."""
        if self.error is None:
            await self._begun.wait()
        if self.error is not None:
            raise self.error

    async def _register(self, wait_for_turn: bool = False) -> None:
        """Make one attempt to register, then send the pending entries."""
        versions = await self._versions_elsewhere() if self._elsewhere else {}
        connection = await self._core.lookup.server_of(self.topic)
        connection.producers[self._id] = self
        timeout = None if wait_for_turn else self._core.attempt_timeout
        try:
            answer = await connection.request(self._registration.command(self.name), timeout)
        except BrokerMetadataError as error:
            raise refused(error) from error
        except (Timeout, asyncio.CancelledError):
            # The service may still register this producer: undo that.
            if not self._core.closed:
                close = pb.CommandCloseProducer(producer_id=self._id)
                self._core.spawn(self._core.close_quietly(connection, close))
            raise
        finally:
            attached = connection.producers.pop(self._id, None) is self
        if not attached or self.error is not None:
            raise self.error or NotConnected(f"{connection.address} closed the new producer")
        connection.producers[self._id] = self
        if self._elsewhere:
            self._arrived(versions, answer)
        self._registered(connection, answer)

    def _registered(self, connection: Connection, answer: pb.CommandProducerSuccess) -> None:
        self.name = answer.producer_name
        self._registration.answered(answer)
        if self._schemas.own is not None:
            self._schemas.own_version = answer.schema_version
        self._connection = connection
        if self._batches.builder is None:
            last = self._options.initial_sequence_id
            self.last_sequence_id = answer.last_sequence_id if last is None else last
            next_id, most = self.last_sequence_id + 1, connection.max_message_size
            self._batches.begin(self.name, next_id, most)
            self._begun.set()
        else:
            self._batches.builder.max_message_size = connection.max_message_size
            for sent in self._pending.entries:
                connection.send_entry(sent.header, sent.entry.data)
        self._send_early()

    def _send_early(self) -> None:
        early, self._early = self._early, []
        for send in early:
            send()

    # --- sending ---

    @property
    def batch_open(self) -> bool:
        """Whether there is an open batch that takes more messages."""
        return self._batches.open

    def send(self, message: OutgoingMessage, done: Done) -> None:
        """Take one message; ``done`` is called exactly once, later or (on failure) now."""
        if self.error is not None:
            self._pending.fail(done, self.error)
            return
        if not self.begun or self._learning is not None:
            self._early.append(partial(self.send, message, done))
            return
        version = self._schemas.version_of(message.schema)
        if version is None:
            assert message.schema is not None
            self._learn(message.schema, message, done)
            return
        try:
            self._batches.add(message, version, message.schema or self._schemas.own, done)
        except (CryptoError, MessageTooBig) as error:
            self._pending.fail(done, error)

    @property
    def batch_limit(self) -> int:
        """Largest payload of a batch; known when the producer is `ready`."""
        assert self._batches.builder is not None
        return self._batches.builder.batch_limit

    def send_batch(
        self, batch: PackedBatch, done: EntryDone, transaction: TransactionId | None = None
    ) -> None:
        """Send a packed batch as an entry; ``done`` is called exactly once, later or now."""
        if self.error is not None:
            self._pending.fail(done, self.error)
            return
        if not self.begun or self._learning is not None:
            self._early.append(partial(self.send_batch, batch, done, transaction))
            return
        schemas = self._schemas
        try:
            self._batches.add_packed(batch, transaction, schemas.own_version, schemas.own, done)
        except CryptoError as error:
            self._pending.fail(done, error)

    # --- schemas of single messages ---

    def _learn(self, schema: SchemaInfo, message: OutgoingMessage, done: Done) -> None:
        """Register the message's schema, while later messages wait.

        If the schema is refused only this message fails.
        """

        switches = self._core.switches

        def learned(learning: asyncio.Task[bytes]) -> None:
            self._learning = None
            if switches != self._core.switches and not learning.cancelled():
                self._learn(schema, message, done)  # the version may differ in another cluster
                return
            if learning.cancelled():
                closed = AlreadyClosed(f"the producer on {self.topic} is closed")
                self._pending.fail(done, self.error or closed)
            elif (error := learning.exception()) is not None:
                known = error if isinstance(error, VelarayError) else UnknownError(repr(error))
                self._pending.fail(done, known)
            else:
                self._schemas.learned(schema, learning.result())
                self.send(message, done)
            self._send_early()

        self._learning = self._core.spawn(self._core.schemas.version_of(self.topic, schema))
        # A task that is cancelled before its first step doesn't run its own cleanup.
        self._learning.add_done_callback(learned)

    def flush_batch(self) -> None:
        """Send the current batch without waiting for more messages."""
        self._batches.flush()

    def _transmit(self, entry: Entry) -> None:
        sent = self._pending.add(entry)
        if self._connection is not None:
            self._connection.send_entry(sent.header, entry.data)

    def awaits(self, joining: asyncio.Future[None]) -> None:
        """Make `flush` wait for ``joining``, after which more messages are sent."""
        self._awaited.add(joining)
        joining.add_done_callback(self._awaited.discard)

    async def flush(self) -> None:
        """Wait until every message taken so far is stored.

        Raises the error of a message that failed meanwhile; all others are complete then, too.
        """
        failures = self._pending.failures
        if self._awaited:
            await asyncio.wait(self._awaited)
        if self._early or self._learning is not None:
            reached: asyncio.Future[None] = self._core.loop.create_future()
            self._early.append(partial(self._reach, reached))
            await reached
        self.flush_batch()
        await self._pending.drained()
        if self._pending.failures > failures and self._pending.last_failure is not None:
            raise self._pending.last_failure

    def _reach(self, reached: asyncio.Future[None]) -> None:
        """Wait until all earlier messages are sent, except those that wait for a schema."""
        if self._learning is not None:
            self._early.append(partial(self._reach, reached))
        elif not reached.done():
            reached.set_result(None)

    # --- receipts ---

    def on_receipt(self, receipt: pb.CommandSendReceipt) -> None:
        """Complete the oldest entry; a receipt for another entry closes the connection."""
        try:
            sent = self._pending.take_receipt(receipt.sequence_id)
        except NotConnected as error:
            assert self._connection is not None
            self._connection.abort(error)
            return
        if sent is not None:
            self.last_sequence_id = max(self.last_sequence_id, sent.entry.last_sequence_id)
            self._pending.complete(sent, StoredId.from_proto(receipt.message_id))

    def on_send_error(self, error: pb.CommandSendError) -> None:
        """Fail the entry, or reconnect and send again after a transient error."""
        exception = from_server(error.error, error.message)
        if not isinstance(exception, ServiceUnitNotReady):
            self._pending.refuse(error.sequence_id, exception)
        elif self._connection is not None:
            self._connection.abort(exception)

    # --- losing and regaining the connection ---

    def on_closed(self, connection: Connection) -> None:
        """Register again after the loss of the connection or of the registration."""
        if connection is not self._connection:
            return  # lost while registering: that attempt fails
        self._connection = None
        if self.error is None and not self._core.closed:
            self._reconnection.start()

    def _switched(self) -> None:
        """Handle a switch to another cluster, which doesn't have this cluster's transactions."""
        self._elsewhere = True
        self._registration.leave_cluster()
        self._schemas.leave_cluster()
        self.flush_batch()
        error = TransactionNotFound(
            f"{self.topic}: the client has switched away from the transaction's cluster"
        )
        self._pending.give_up(lambda entry: entry.transaction is not None, error)

    async def _versions_elsewhere(self) -> dict[SchemaInfo, bytes]:
        """Return the versions of the pending entries' schemas in the new cluster.

        Entries whose schema the cluster refuses fail.
        """
        self.flush_batch()

        def refused(schema: SchemaInfo, error: VelarayError) -> None:
            self._pending.give_up(lambda entry: entry.schema == schema, error)

        schemas = [sent.entry.schema for sent in self._pending.entries]
        return await self._schemas.ask(schemas, refused)

    def _arrived(
        self, versions: dict[SchemaInfo, bytes], answer: pb.CommandProducerSuccess
    ) -> None:
        """Stamp the pending entries with the versions of the new cluster."""
        self.flush_batch()
        self._elsewhere = False
        self._batches.forget_schema()
        if self._schemas.own is not None:
            versions[self._schemas.own] = answer.schema_version
        for sent in self._pending.entries:
            sent.stamp(versions)

    def _attempt_failed(self, error: VelarayError) -> None:
        if not isinstance(error, _TRANSIENT):
            logger.warning("producer on %s failed: %s", self.topic, error)
            self._fail(error)
            return
        logger.info("producer on %s can't reconnect yet: %s", self.topic, error)
        if not self.begun and not isinstance(error, TRANSIENT):
            self._fail(error)
        elif isinstance(error, ProducerBlockedQuotaExceededException):
            self._pending.fail_all(self._pending.take_all(), error)

    # --- the end ---

    def _fail(self, error: VelarayError) -> None:
        """Complete everything with ``error``: nothing can be sent any more."""
        if self.error is None:
            self.error = error
        self._core.when_switched.discard(self._switched)
        self.flush_batch()
        pending = self._pending.take_all()
        self._begun.set()
        if self._learning is not None:
            self._learning.cancel()
        self._send_early()
        self._pending.fail_all(pending, error)

    def stop(self) -> None:
        """Stop at once: messages without a receipt fail with `AlreadyClosed`."""
        self._fail(AlreadyClosed(f"the producer on {self.topic} is closed"))
        self._reconnection.stop()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.producers.pop(self._id, None)

    async def close(self) -> None:
        """Wait for pending receipts for at most one operation timeout, then stop."""
        try:
            async with asyncio.timeout(self._core.timeout):
                await self.flush()
        except TimeoutError:
            logger.warning("producer on %s is closed with unsent messages", self.topic)
        except VelarayError as error:
            # The message's callback has the error already.
            logger.debug("producer on %s is closed after a failure: %s", self.topic, error)
        connection = self._connection
        self.stop()
        if connection is not None:
            close = pb.CommandCloseProducer(producer_id=self._id)
            await self._core.close_quietly(connection, close)
