"""The garbage collector: publishes deletion events, and deletes ledgers that no manifest lists.

It has no journal. Its work is in three topics (`velaray.broker.garbage_collection.deletion`), where
it is an ordinary client: a producer without batching, and a Shared consumer with a retry topic and
a dead-letter topic. An event is acknowledged after its ledger is deleted, so a crash loses no
deletion. The collector doesn't trust events: `velaray.journal.garbage_collection.dispose` checks
the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import Any

from velaray.actors.machine import Reason
from velaray.broker.actor_messages import Describe, Ledgers, Metrics, request_named
from velaray.broker.actor_peer import ActorPeer
from velaray.broker.actor_tasks import ActorTasks
from velaray.broker.catalog.messages import Clusters
from velaray.broker.garbage_collection.collector_metrics import CollectorMetrics
from velaray.broker.garbage_collection.collectors import (
    SWEEPER,
    ensure_deletion_topics,
    has_work,
)
from velaray.broker.garbage_collection.deletion import DEAD, EVENTS, OPERATOR, RETRY, WORKER
from velaray.broker.garbage_collection.deletion_events import (
    SCHEMA,
    MalformedEvent,
    MisaddressedEvent,
    PendingDeleteLedgerInfo,
    addressee,
    event_of,
    read_event,
)
from velaray.broker.garbage_collection.messages import (
    TO_COLLECTOR,
    AcknowledgeDeadLetters,
    EnqueueDeletion,
)
from velaray.client.client import Client
from velaray.client.consumer import Consumer
from velaray.client.dead_letters import RECONSUMETIMES
from velaray.client.enums import ConsumerType, InitialPosition
from velaray.client.exceptions import InvalidMessage, VelarayError
from velaray.client.message import Message as ClientMessage
from velaray.client.message_id import MessageId as ClientMessageId
from velaray.client.options import ClientOptions, ConsumerOptions, ProducerOptions
from velaray.client.policies import ConsumerDeadLetterPolicy
from velaray.client.producer import Producer
from velaray.events.ids import ActorKey, InvalidNameError, MessageId
from velaray.journal.errors import JournalError
from velaray.journal.garbage_collection import Fate, dispose
from velaray.journal.offload.rounds import sweep_archive
from velaray.journal.offload.tiered_store import TieredStore
from velaray.topology.actor_system import ActorBase, ActorSystem, Address
from velaray.topology.messages import Message, Request
from velaray.topology.rpc import RemoteError, RpcConnection
from velaray.topology.rpc_server import RpcServer
from velaray.topology.system_credentials import SystemCredentials
from velaray.topology.transient import TRANSIENT_OR_STORE

logger = logging.getLogger("velaray")

MAX_TRIES = 10
"""Attempts for an event; then it is a dead letter."""
AT_ONCE = 16
"""Ledgers that one garbage collector deletes at a time."""
PAUSE_S = 0.06
"""The pause after each of them. It limits deletions to about 250 a second, which hardly slows
publishing."""
QUEUE = 100
"""The receiver queue of each partition, in events."""
GRACE_MS = 2_000
"""The delay of an event, to which one millisecond is added for each ledger of the request. The
caller drops the ledgers from the manifest just after the request; an earlier event would have to be
retried."""
MAX_NACK_DELAY_MS = 60_000
SWEEP_S = 3600.0
"""The time between two sweeps of the archive."""
_SWEEPER = ActorKey.of_garbage_collector(SWEEPER)

_TRANSIENT: tuple[type[Exception], ...] = (VelarayError, *TRANSIENT_OR_STORE)
"""Transient errors, such as the restart of an actor or a full disk."""

Event = PendingDeleteLedgerInfo


class GarbageCollector(ActorBase):
    """Publishes deletion events and deletes ledgers."""

    accepts = TO_COLLECTOR

    def __init__(self, key: ActorKey, actor_system: ActorSystem) -> None:
        self.key = key
        self.actor_system = actor_system
        self.config = actor_system.config
        self.rpc_server = RpcServer(ActorPeer(self), key.text(), actor_system.host_of(key).rpc)
        self.meter = CollectorMetrics()
        self._client: Client | None = None
        self._producer: Producer[Event] | None = None
        self._connecting = asyncio.Lock()
        self._enqueuing = 0
        self._room = asyncio.Semaphore(AT_ONCE)
        self._tasks = ActorTasks(self, actor_system)
        self._handling = ActorTasks(self, actor_system)
        self._stopping = False
        self._drained = False

    # -- life ------------------------------------------------------------------------

    async def start(self) -> Address:
        """Create the topics if needed, and begin. Raises what `ActorSystem.call` raises."""
        await ensure_deletion_topics(self.actor_system)
        rpc_port = await self.rpc_server.open(self.config.listen_host)
        self._tasks.spawn(self._consume())
        self._tasks.spawn(self._look_for_work())
        store = self.actor_system.store
        if isinstance(store, TieredStore) and self.key == _SWEEPER:
            self._tasks.spawn(self._sweep_archive(store))
        return Address(self.config.listen_host, 0, rpc_port)

    def idle(self) -> bool:
        """Whether there is no call, nothing is under way, and the last look found no work."""
        busy = self.rpc_server.connections or self._enqueuing or self._handling
        return self._drained and not busy

    async def stop(self) -> None:
        """Finish what is under way, and stop. Unacknowledged events are delivered to the next
        activation."""
        self._stopping = True
        self.rpc_server.stop()
        tasks = [*self._tasks.cancel(), *self._handling.cancel()]
        if tasks:
            await asyncio.wait(tasks)
        if self._client is not None:
            await self._client.close()

    def abort(self) -> None:
        """Stop as a crash would."""
        self._stopping = True
        self.rpc_server.abort()
        self._tasks.cancel()
        self._handling.cancel()
        if self._client is not None:
            self._client.abort()

    # -- calls -----------------------------------------------------------------------

    async def call(self, method: str, args: dict[str, Any]) -> Any:
        """Answer a request by name. Raises what `request_named` and `handle` raise."""
        return await self.handle(request_named(self.key, self.accepts, method, args))

    async def handle(self, request: Message) -> Any:
        """Answer a request of `velaray.broker.garbage_collection.messages`. Raises
        `RemoteError`."""
        match request:
            case EnqueueDeletion():
                return await self._enqueue_deletion(request.journal, request.ledger_ids)
            case AcknowledgeDeadLetters():
                return await self._acknowledge(
                    [MessageId(*message_id) for message_id in request.message_ids]
                )
            case Describe():
                return {"key": self.key.text(), "counts": self.meter.counts()}
            case Metrics():
                return [list(sample) for sample in self.meter.samples(self.config.name, self.key)]
            case Ledgers():
                return []  # no journal, no ledgers
        raise TypeError(f"unexpected request {request!r}")

    async def answer(self, rpc_connection: RpcConnection, request: Request[Any]) -> Any:
        """Answer a request that came over a connection."""
        return await self.handle(request)

    def on_rpc_closed(self, rpc_connection: RpcConnection) -> None:
        """Do nothing: no state depends on a connection."""

    # -- enqueuing -------------------------------------------------------------------

    async def _enqueue_deletion(self, journal: str, ledger_ids: Sequence[int]) -> None:
        """Publish an event for each ledger; all of them are stored when this returns.

        Raises `RemoteError`: then any of them may be stored, and all may be published again.
        """
        try:
            key = ActorKey.parse(journal)
            events = [event_of(key, ledger_id) for ledger_id in ledger_ids]
        except (InvalidNameError, MisaddressedEvent) as error:
            raise RemoteError(Reason.INVALID, str(error)) from error
        self._enqueuing += 1
        self._drained = False
        try:
            producer = await self._connected_producer()
            grace_ms = min(GRACE_MS + len(events), self._delay_ms)
            due_ms = self.actor_system.clock_ms() + grace_ms
            await asyncio.gather(*(self._send(producer, event, due_ms) for event in events))
        except VelarayError as error:
            text = (
                f"the deletion of {len(events)} ledgers of {journal} can't be enqueued now: {error}"
            )
            raise RemoteError(Reason.UNAVAILABLE, text) from error
        finally:
            self._enqueuing -= 1

    async def _send(self, producer: Producer[Event], event: Event, due_ms: int) -> None:
        # A journal's events are in one partition, so publishing them activates no other.
        await producer.send(event, partition_key=event.journal, deliver_at=due_ms)
        self.meter.sent += 1

    async def _connected_producer(self) -> Producer[Event]:
        """The producer, which is connected at the first use. Raises `VelarayError`."""
        async with self._connecting:
            if self._producer is None:
                client = await self._connected_client()
                options = ProducerOptions(
                    str(EVENTS),
                    schema=SCHEMA,
                    batching_enabled=False,
                    block_if_queue_full=True,
                    lazy_start_partitioned_producers=True,
                )
                # The producer creates the collectors' subscription before it stores any event.
                made = Producer[Event](client.core, options, client.forget, WORKER)
                self._producer = await client.adopt(made)
            return self._producer

    async def _connected_client(self) -> Client:
        if self._client is None:
            clusters = await self.actor_system.request(ActorKey.catalog(), Clusters())
            own = clusters[self.config.name]
            url = own["service_url_tls"] or own["service_url"]
            proof = SystemCredentials(self.config.rpc_key)
            self._client = Client.with_options(ClientOptions(url, authentication=proof))
        return self._client

    # -- dead letters ----------------------------------------------------------------

    async def _acknowledge(self, dead_letters: Sequence[MessageId]) -> None:
        """Acknowledge dead letters durably: an operator has handled them.

        Raises `RemoteError`: then some may be acknowledged, and all may be acknowledged again.
        """
        self._enqueuing += 1
        try:
            async with self._connecting:
                client = await self._connected_client()
            for number in sorted({dead_letter.partition for dead_letter in dead_letters}):
                topic = str(DEAD.of_partition(number))
                await self._acknowledge_in(
                    client,
                    topic,
                    [
                        dead_letter
                        for dead_letter in dead_letters
                        if dead_letter.partition == number
                    ],
                )
        except VelarayError as error:
            text = f"{len(dead_letters)} dead letters can't be acknowledged now: {error}"
            raise RemoteError(Reason.UNAVAILABLE, text) from error
        finally:
            self._enqueuing -= 1

    async def _acknowledge_in(
        self, client: Client, topic: str, dead_letters: Sequence[MessageId]
    ) -> None:
        options = ConsumerOptions[Event](
            topic,
            OPERATOR,
            ConsumerType.Shared,
            receiver_queue_size=1,
            initial_position=InitialPosition.Earliest,
        )
        consumer = await client.adopt(Consumer[Event](client.core, options, client.forget))
        try:
            ids = [
                ClientMessageId(
                    dead_letter.partition, dead_letter.ledger_id, dead_letter.entry_id, topic=topic
                )
                for dead_letter in dead_letters
            ]
            await asyncio.gather(*(consumer.acknowledge(each, receipt=True) for each in ids))
        finally:
            await consumer.close()

    # -- deleting --------------------------------------------------------------------

    async def _consume(self) -> None:
        """Handle events; never returns."""
        consumer = await self._subscribed()
        async for message in consumer:
            self.meter.received += 1
            self._drained = False
            await self._room.acquire()
            self._handling.spawn(self._handle(consumer, message))

    async def _subscribed(self) -> Consumer[Event]:
        policy = ConsumerDeadLetterPolicy(
            MAX_TRIES, str(DEAD), OPERATOR, retry_letter_topic=str(RETRY)
        )
        options = ConsumerOptions(
            str(EVENTS),
            WORKER,
            ConsumerType.Shared,
            schema=SCHEMA,
            receiver_queue_size=QUEUE,
            initial_position=InitialPosition.Earliest,
            negative_ack_redelivery_delay_ms=min(self._delay_ms, MAX_NACK_DELAY_MS),
            dead_letter_policy=policy,
            enable_retry=True,
        )
        backoff = self.actor_system.backoff()
        while True:
            try:
                # The producer registers the schema of an unused topic.
                await self._connected_producer()
                client = await self._connected_client()
                return await client.adopt(Consumer[Event](client.core, options, client.forget))
            except _TRANSIENT as error:
                logger.warning("%s can't subscribe: %s", self.key, error)
            await backoff.wait()

    @property
    def _delay_ms(self) -> int:
        return max(1, round(self.config.deletion_retry_s * 1000))

    async def _handle(self, consumer: Consumer[Event], message: ClientMessage[Event]) -> None:
        """Delete the ledger of an event if that is allowed, then acknowledge the event or retry it
        later."""
        try:
            if await self._is_done_with(message):
                await consumer.acknowledge(message)
                self.meter.acked += 1
            else:
                await self._again_later(consumer, message)
        except VelarayError as error:
            if not self._stopping:
                logger.warning("%s: an event is retried: %s", self.key, error)
                with contextlib.suppress(VelarayError):  # closed: all are redelivered
                    await consumer.negative_acknowledge(message)
        finally:
            if not self._stopping:
                self._tasks.spawn(self._leave_room())

    async def _leave_room(self) -> None:
        await asyncio.sleep(PAUSE_S)
        self._room.release()

    async def _is_done_with(self, message: ClientMessage[Event]) -> bool:
        """Whether the event needs no further attempt."""
        meter = self.meter
        try:
            event = read_event(message)
            key = addressee(event)
        except MalformedEvent as error:
            meter.malformed += 1
            logger.warning("invalid deletion event, dropped: %s", error)
            return True
        except MisaddressedEvent as error:
            meter.forged += 1
            logger.warning("misaddressed deletion event, dropped: %s", error)
            return True
        try:
            fate = await dispose(self.actor_system.store, key.text(), event.ledgerId)
        except (JournalError, OSError) as error:
            meter.failed += 1
            logger.warning("deleting ledger %d of %s failed: %s", event.ledgerId, key, error)
            return False
        match fate:
            case Fate.DELETED:
                meter.deleted += 1
            case Fate.GONE:
                meter.gone += 1
            case Fate.LISTED:
                meter.in_use += 1
            case Fate.FOREIGN:
                meter.forged += 1
                logger.warning("ledger %d doesn't belong to %s: kept", event.ledgerId, key)
        return fate is not Fate.LISTED

    async def _again_later(self, consumer: Consumer[Event], message: ClientMessage[Event]) -> None:
        """Publish the event to the retry topic. Raises `VelarayError`: then it is unchanged."""
        try:
            await consumer.reconsume_later(message, self._delay_ms)
        except InvalidMessage:
            # Its count of attempts isn't one that a garbage collector writes.
            self.meter.forged += 1
            await consumer.acknowledge(message)
            return
        times = int(message.properties().get(RECONSUMETIMES, "0")) + 1
        if times > MAX_TRIES:
            self.meter.dead += 1
        else:
            self.meter.retried += 1

    async def _sweep_archive(self, store: TieredStore) -> None:
        """Delete the orphans of the archive, at once and from time to time; never returns."""
        while True:
            try:
                swept = await sweep_archive(store)
            except (JournalError, OSError) as error:
                logger.warning("the archive of ledgers can't be swept now: %s", error)
            else:
                if swept:
                    logger.info("deleted %d orphans from the archive of ledgers", swept)
            await asyncio.sleep(SWEEP_S)

    # -- leaving ---------------------------------------------------------------------

    async def _look_for_work(self) -> None:
        """Check from time to time, while idle, whether any events are left, delayed ones
        included."""
        while True:
            seen = self._progress()
            await asyncio.sleep(self.config.maintenance_s)
            if self._drained or self._enqueuing or self._handling or self._progress() != seen:
                continue
            with contextlib.suppress(*_TRANSIENT):  # unknown until the next check
                left = await has_work(self.actor_system)
                self._drained = not left and self._progress() == seen

    def _progress(self) -> tuple[int, int]:
        return self.meter.sent, self.meter.received
