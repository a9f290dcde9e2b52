"""The publish path of one partition: producers, appends, receipts, and back-pressure.

An entry is appended and delivered unchanged; only its metadata is read.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from functools import partial
from operator import itemgetter
from typing import Any, Protocol

from velaray.actors.machine import Reason, Refusal
from velaray.actors.partition.delayed import DelayedEntry
from velaray.actors.partition.machine import Chunk, Duplicate, ExpireProducers, Publish, Published
from velaray.actors.partition.origins import NOWHERE
from velaray.actors.partition.producers import Accepted, ProducerRegistry, ProducerSpec, Waiting
from velaray.actors.partition.publish_run import PublishedRun, PublishRun
from velaray.actors.partition.state import PartitionState
from velaray.actors.rates import PublishRate
from velaray.actors.runtime import Runtime
from velaray.broker.partition.dead_letters import PRODUCER_PREFIX
from velaray.broker.partition.delayed_delivery import DelayedDeliveryTracker
from velaray.broker.partition.entries import CachedEntry, EntryCache
from velaray.broker.partition.geo_replication import GeoReplication
from velaray.broker.partition.maintenance import Maintenance
from velaray.broker.partition.sealing import Sealing
from velaray.broker.partition.session.protocols import Publisher
from velaray.broker.partition.transaction_admission import TransactionAdmission
from velaray.broker.topic_policies import TopicPolicies
from velaray.events.ids import ActorKey, TransactionId
from velaray.topology.actor_system import ActorSystem
from velaray.topology.config import ClusterConfig
from velaray.topology.flow import Flow
from velaray.topology.telemetry import store_spans
from velaray.wire.commands import Send
from velaray.wire.connection import WireConnection
from velaray.wire.messages import delivery_time, key_hash, read_metadata
from velaray.wire.send_runs import SendRun

PENDING_HIGH = 32 << 20
"""Reading from a client that publishes pauses above this number of bytes that aren't durable."""
PENDING_LOW = 8 << 20
"""Reading resumes below this number of bytes."""
PRODUCER_EXPIRY_MS = 6 * 3600 * 1000
"""The time for which the sequence ids of a disconnected producer are kept."""
_PRODUCER = itemgetter(0)


class Log(Protocol):
    """What the publish path needs of the partition's log."""

    cache: EntryCache
    delayed: DelayedDeliveryTracker


class Partition(Protocol):
    """What the publish path needs of its partition."""

    key: ActorKey
    config: ClusterConfig
    actor_system: ActorSystem
    runtime: Runtime[PartitionState]
    policies: TopicPolicies
    geo: GeoReplication
    maintenance: Maintenance

    def spawn(self, work: Any) -> Any:
        """Run a coroutine that is cancelled with the partition."""


class Publishing:
    """Appends the entries of one activation's producers."""

    def __init__(self, partition: Partition, log: Log, more_readable: Callable[[], None]) -> None:
        """``more_readable`` is called when entries have become durable."""
        self._partition = partition
        self._log = log
        self._more_readable = more_readable
        self.admission = TransactionAdmission(
            partition.key, partition.actor_system, partition.spawn
        )
        self.registry = ProducerRegistry()
        self.policies = partition.policies
        self.sealing: Sealing | None = None
        """Seals entries before they are published; None if messages can't be erased."""
        self.pending_bytes = 0
        self._clock_ms = partition.actor_system.clock_ms
        self.published = Flow(self._clock_ms())
        self._stored: list[tuple[Publisher, int, int]] = []
        self._names = itertools.count(1)
        self._paused: set[WireConnection] = set()
        self._rate: PublishRate | None = None
        self._throttling: asyncio.TimerHandle | None = None
        self._spans = store_spans(partition.config, str(partition.key.topic_name))

    # -- producers -----------------------------------------------------------------

    def connect_producer(self, spec: ProducerSpec) -> Accepted | Waiting | Refusal:
        """As `ProducerRegistry.connect`; refused BUSY beyond the topic's limit as well."""
        partition = self._partition
        if partition.geo.fence.up:
            return Refusal(Reason.UNAVAILABLE, "the topic is moving to another cluster")
        if partition.maintenance.held_back is not None:
            return Refusal(partition.maintenance.held_back, "the topic's backlog exceeds its quota")
        limit = self.policies.max_producers
        if limit and len(self.registry.names() - {spec.name}) >= limit:
            return Refusal(Reason.BUSY, f"the topic has reached its limit of {limit} producers")
        return self.registry.connect(spec, partition.runtime.state.topic_epoch)

    def producer_name(self) -> str:
        """Generate a name for a producer that has none.

        It is unique over all activations, incarnations of the topic and clusters.
        """
        partition = self._partition
        config, epoch = partition.config, partition.runtime.journal.epoch
        cluster = f"{config.name}-{config.data_id[:8]}" if config.data_id else config.name
        return f"{cluster}-{partition.key.topic_incarnation}-{epoch}-{next(self._names)}"

    async def expire_producers(self, every_s: float) -> None:
        """Expire producers that have been disconnected for long, every ``every_s`` seconds. Never
        returns."""
        partition = self._partition
        while True:
            await asyncio.sleep(every_s)
            before = partition.actor_system.clock_ms() - PRODUCER_EXPIRY_MS
            producers = partition.runtime.state.producers
            couriers = {name for name in producers if name.startswith(PRODUCER_PREFIX)}
            connected = self.registry.names() | couriers
            await partition.runtime.ask(ExpireProducers(before, connected=connected))

    # -- appending -----------------------------------------------------------------

    def publish(self, producer: Publisher, send: Send, entry: bytes) -> None:
        """Append an entry; the receipt is sent when it is durable, in order."""
        _, sequence_id, messages, highest, is_chunk, txn_id, _, _ = send
        command = Publish(
            producer.name,
            sequence_id,
            sequence_id if highest is None else highest,
            messages,
            entry,
            self.policies.deduplicate,
        )
        command.exact = producer.exact
        if is_chunk:
            metadata = read_metadata(entry)
            chunks = metadata.num_chunks_from_msg
            command.chunk = Chunk(metadata.uuid, metadata.chunk_id, chunks)
        if txn_id is not None:
            command.transaction = TransactionId(*txn_id)
        self.submit(producer, send, command, entry, delivery_time(entry))

    def publish_run(self, producer: Publisher, run: SendRun) -> bool:
        """Append entries as `publish` would one by one; false, and nothing happens, if they must be
        published one by one.

        The client is paused after the last one at the earliest: a run is at most as large as the
        buffer of received bytes.
        """
        if self._rate is not None or self._spans is not None or self.sealing is not None:
            return False
        if run.may_be_delayed and any(map(delivery_time, run.entries)):
            return False
        command = PublishRun(producer.name, run.first_sequence_id, run.messages, run.entries)
        release = partial(self._published_run, producer, run)
        if not self._partition.runtime.submit_run(command, len(run.entries), release):
            return False
        self.pending_bytes += run.size
        if self.pending_bytes > PENDING_HIGH:
            self._pause(producer.connection)
        return True

    def submit(
        self, producer: Publisher, send: Send, command: Publish, entry: bytes, deliver_at: int
    ) -> None:
        """As `publish`, given the command and the delivery time in milliseconds (0: at once)."""
        chunk = command.chunk
        uuid = chunk.uuid if chunk is not None else ""
        release: Callable[[Any, tuple[Any, ...]], None] = partial(
            self._published, producer, send, entry, uuid
        )
        if deliver_at:
            self._delay(command, deliver_at, entry)
            release = partial(self._published_later, command, release)
        if self._spans is not None:
            release = self._spans.watch(entry, release)
        self._partition.runtime.submit(command, release)
        self.pending_bytes += len(entry)
        if self._rate is not None:
            self._throttle(self._rate, producer, command.messages, len(entry))
        if self.pending_bytes > PENDING_HIGH:
            self._pause(producer.connection)

    async def append(self, command: Publish) -> Any:
        """Append an entry that no client sent; returns the reply when it is durable."""
        appended: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def release(reply: Any, effects: Any) -> None:
            if type(reply) is Published:
                uuid = command.chunk.uuid if command.chunk is not None else ""
                self._log.cache.append(CachedEntry(command.blob, reply.messages, uuid))
                self._more_readable()
            if not appended.done():
                appended.set_result(reply)

        self._partition.runtime.submit(command, release)
        return await appended

    def _delay(self, command: Publish, deliver_at_ms: int, entry: bytes) -> None:
        command.deliver_at_ms = deliver_at_ms
        command.key_hash = key_hash(entry)
        delays = self.policies.raw["delayedDelivery"]
        if delays["active"]:
            command.max_delay_ms = delays.get("maxDeliveryDelayInMillis", 0)

    def _published_later(
        self,
        command: Publish,
        release: Callable[[Any, tuple[Any, ...]], None],
        reply: Any,
        effects: tuple[Any, ...],
    ) -> None:
        if type(reply) is Published:
            messages = reply.messages if command.chunk is None else 0
            later = DelayedEntry(command.deliver_at_ms, reply.offset, messages, command.key_hash)
            self._log.delayed.add(later)
        release(reply, effects)

    def _published(
        self,
        producer: Publisher,
        send: Send,
        entry: bytes,
        chunk_uuid: str,
        reply: Any,
        effects: tuple[Any, ...],
    ) -> None:
        size = len(entry)
        self.pending_bytes -= size
        if type(reply) is Published:
            messages = reply.messages
            cached = tuple.__new__(CachedEntry, (entry, messages, chunk_uuid))
            self._log.cache.append(cached)
            if not self._stored:
                self._more_readable()
            self._stored.append((producer, messages, size))
            producer.stored(send, reply.position)
        elif isinstance(reply, Duplicate):
            producer.stored(send, NOWHERE)
        else:
            producer.refuse(send, reply)
        if self._paused and self._throttling is None and self.pending_bytes < PENDING_LOW:
            self._resume()

    def _published_run(
        self, producer: Publisher, run: SendRun, reply: Any, effects: tuple[Any, ...]
    ) -> None:
        self.pending_bytes -= run.size
        messages, entries = run.messages, run.entries
        if type(reply) is PublishedRun:
            self._log.cache.append_run(
                [tuple.__new__(CachedEntry, (entry, messages, "")) for entry in entries], run.size
            )
            if not self._stored:
                self._more_readable()
            self._stored.append((producer, messages * len(entries), run.size))
            producer.stored_run(run, reply.position)
        else:
            for sequence_id in range(run.first_sequence_id, run.first_sequence_id + len(entries)):
                producer.refuse(Send(run.producer_id, sequence_id, messages), reply)
        if self._paused and self._throttling is None and self.pending_bytes < PENDING_LOW:
            self._resume()

    def count_stored(self) -> None:
        """Count the entries that the last commit has stored: once for each run of a producer."""
        stored, self._stored = self._stored, []
        now_ms = self._clock_ms()
        for producer, run in itertools.groupby(stored, _PRODUCER):
            _, messages, sizes = zip(*run, strict=True)
            producer.traffic.count(sum(messages), sum(sizes), now_ms)
            if producer.source is not None:
                replication = self._partition.geo.replication
                replication.count_received(producer.source, sum(messages), sum(sizes))

    # -- back-pressure -------------------------------------------------------------

    def close(self) -> None:
        """Admit no more transactions, and resume reading from clients: their connections may serve
        other partitions."""
        self.admission.close()
        if self._throttling is not None:
            self._throttling.cancel()
            self._throttling = None
        self._resume()

    def apply(self, policies: TopicPolicies) -> None:
        """Publish by these policies of the topic from now on. A limit that stays the same isn't
        counted anew."""
        rate = policies.publish_rate
        if rate != self.policies.publish_rate:
            self._rate = PublishRate(*rate) if max(rate) > 0 else None
        self.policies = policies

    def forget_connection(self, connection: WireConnection) -> None:
        """Remove a disconnected client."""
        self._paused.discard(connection)

    def _throttle(self, rate: PublishRate, producer: Publisher, messages: int, size: int) -> None:
        """Pause reading from this client while the topic exceeds its publish rate."""
        loop = asyncio.get_running_loop()
        wait_s = rate.take(messages, size, loop.time())
        if wait_s > 0:
            self._pause(producer.connection)
            if self._throttling is None:
                self._throttling = loop.call_later(wait_s, self._end_throttling)

    def _end_throttling(self) -> None:
        self._throttling = None
        if self.pending_bytes < PENDING_LOW:
            self._resume()

    def _pause(self, connection: WireConnection) -> None:
        if connection not in self._paused:
            self._paused.add(connection)
            connection.pause_reading(self)

    def _resume(self) -> None:
        for connection in self._paused:
            connection.resume_reading(self)
        self._paused.clear()
