"""Connecting and closing the producers of a client connection."""

from __future__ import annotations

import contextlib
from functools import partial

from velaray.actors.machine import Reason, Refusal
from velaray.actors.partition.machine import (
    FindProducer,
    ForgetProducer,
    RaiseTopicEpoch,
    StartAt,
)
from velaray.actors.partition.producers import (
    Accepted,
    ProducerSpec,
    Promotion,
    Waiting,
)
from velaray.broker.catalog.messages import Clusters, MeetCluster
from velaray.broker.partition.session.admission import (
    check_accepts_entries,
    check_encrypts,
    check_home,
    check_name,
    check_source,
    find_partition,
)
from velaray.broker.partition.session.producer import (
    ConnectedProducer,
    ProducerTable,
    reconnected,
)
from velaray.broker.partition.session.protocols import (
    Client,
    HostedPartition,
    LocalPartitions,
    Refuse,
)
from velaray.broker.partition.session.requests import Attempts
from velaray.broker.schema_registry.schema_session import schema_of
from velaray.broker.wire_errors import code_of_reason
from velaray.events.ids import ActorKey
from velaray.journal.errors import JournalError
from velaray.topology.rpc import RemoteError
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.replication import DATA_ID, source_of
from velaray.wire.schemas import NO_VERSION, version_bytes

BEYOND = 1 << 32
"""More than the number of sequence ids for which any producer holds entries."""

MAX_SEQUENCE_ID = (1 << 63) - 2
"""The highest sequence id whose successor is still in the range that clients count in."""


class ProducerHandlers:
    """Connects, closes and replaces the producers of one connection."""

    def __init__(
        self,
        client: Client,
        partitions: LocalPartitions,
        producers: ProducerTable,
    ) -> None:
        self.client = client
        self._partitions = partitions
        self._producers = producers
        self._attempts = Attempts(client)

    # -- connecting ----------------------------------------------------------------

    def on_producer(self, command: pb.CommandProducer) -> None:
        """Connect a producer."""
        refuse = partial(self.client.error, command.request_id)
        self._attempts.start(command.producer_id, self._connect(command, refuse), refuse)

    async def _connect(self, command: pb.CommandProducer, refuse: Refuse) -> None:
        partition = find_partition(self._partitions, self.client, command.topic)
        with partition.clients.request(refuse):
            await self._connect_to(partition, command)

    async def _connect_to(self, partition: HostedPartition, command: pb.CommandProducer) -> None:
        source = source_of(command.producer_name)
        metadata = {item.key: item.value for item in command.metadata}
        if source is None:
            check_name(self.client, command.producer_name, "publish as")
        else:
            config, info = self._partitions.config, self.client.info
            check_source(config, info, source, command.producer_name, metadata)
        check_accepts_entries(self.client, partition)
        check_encrypts(self.client, partition, command)
        known = self._producers.connected.get(command.producer_id)
        if known is not None:
            await self._connect_again(known, command)
            return
        schema, version = schema_of(command), None
        if schema is not None or source is None:  # a replicator's entries name their own versions
            version = await partition.schemas.of_producer(schema, self.client.info.role)
        if command.initial_subscription_name:
            await partition.subscriptions.create_subscription(
                command.initial_subscription_name, StartAt.EARLIEST, {}
            )
        name = command.producer_name or partition.publishing.producer_name()
        if source is not None:
            await self._check_registered(partition, source)
            await self._meet(partition, source, metadata.get(DATA_ID, ""))
        producer = ConnectedProducer(self, partition, command.producer_id, name)
        producer.describe(command)
        producer.schema_version = version
        await self._register(producer, command)

    async def _connect_again(
        self, producer: ConnectedProducer, command: pb.CommandProducer
    ) -> None:
        producer.request_id = command.request_id
        producer.reconnected = producer.reconnected or reconnected(command)
        if producer.partition.publishing.registry.is_ready(producer):
            await self._succeed(producer)
        else:
            self._answer_waiting(producer)

    async def _register(self, producer: ConnectedProducer, command: pb.CommandProducer) -> None:
        partition = producer.partition
        spec = ProducerSpec(
            producer,
            producer.name,
            producer.access,
            command.epoch,
            command.topic_epoch if command.HasField("topic_epoch") else None,
        )
        check_home(self.client, partition)  # it may have changed meanwhile
        check_encrypts(self.client, partition, command)
        answer = partition.publishing.connect_producer(spec)
        if isinstance(answer, Refusal):
            code = code_of_reason(answer.reason)
            if code == pb.ConsumerBusy:
                code = pb.ProducerBusy
            self.client.error(command.request_id, code, answer.message)
            return
        self._producers.add(producer)
        await self._admit(producer, answer)

    async def _admit(self, producer: ConnectedProducer, answer: Accepted | Waiting) -> None:
        replaced = answer.replaced
        if isinstance(replaced, ConnectedProducer):
            if replaced.source is not None and replaced.owner is not self:
                # The newcomer may be another replicator, which leaves again. Closing the first one
                # makes it connect again; otherwise it would wait for answers for ever.
                replaced.owner.fence(replaced)
            else:
                replaced.owner.forget(replaced)
        if isinstance(answer, Waiting):
            self._answer_waiting(producer)
            return
        for fenced in answer.fenced:
            assert isinstance(fenced, ConnectedProducer)
            fenced.owner.fence(fenced)
        for refused in answer.refused:
            assert isinstance(refused, ConnectedProducer)
            refused.owner.forget(refused)
            problem = "another producer took over"
            refused.owner.client.error(refused.request_id, pb.ProducerFenced, problem)
        if answer.raise_epoch:
            await self._raise_epoch(producer)
        await self._succeed(producer)

    async def _raise_epoch(self, producer: ConnectedProducer) -> None:
        reply = await producer.partition.log.runtime.ask(RaiseTopicEpoch(producer.name))
        if isinstance(reply, Refusal):
            self._drop(producer)  # otherwise its next attempt would find it connected
            raise RemoteError(reply.reason, reply.message)

    async def _check_registered(self, partition: HostedPartition, source: str) -> None:
        """Refuse a cluster with a key of its own that isn't registered, or no longer is."""
        if not self._partitions.config.replication_keys or self.client.info.is_system:
            return
        if source not in await partition.actor_system.request(ActorKey.catalog(), Clusters()):
            problem = f"cluster {source!r} isn't registered here: use `velaray clusters create`"
            raise RemoteError(Reason.NOT_ALLOWED, problem)

    async def _meet(self, partition: HostedPartition, source: str, data_id: str) -> None:
        """Refuse a cluster that has lost its data: its positions name other messages now."""
        if data_id or self._partitions.config.replication_keys:
            meet = MeetCluster(source, data_id)
            await partition.actor_system.request(ActorKey.catalog(), meet)

    def _answer_waiting(self, producer: ConnectedProducer) -> None:
        self.client.connection.send(
            pb.CommandProducerSuccess(
                request_id=producer.request_id,
                producer_name=producer.name,
                schema_version=NO_VERSION,
                producer_ready=False,
            )
        )

    async def _succeed(self, producer: ConnectedProducer) -> None:
        # The question is queued behind all entries that an earlier connection sent under this
        # name, so the answer counts them.
        anew = not (producer.generated or producer.reconnected)
        find = FindProducer(producer.name, anew=anew)
        found = await producer.partition.log.runtime.ask(find)
        if isinstance(found, Refusal):
            self._drop(producer)  # otherwise its next attempt would find it connected
            raise RemoteError(found.reason, found.message)
        if not self._producers.has(producer):
            check_accepts_entries(self.client, producer.partition)
            raise RemoteError(Reason.FENCED, f"producer {producer.name!r} was replaced")
        producer.ready = True
        self.client.connection.send(
            pb.CommandProducerSuccess(
                request_id=producer.request_id,
                producer_name=producer.name,
                last_sequence_id=self._reported_id(producer, found.last_sequence_id),
                # Java's client needs the field also when there is no version.
                schema_version=version_bytes(producer.schema_version),
                topic_epoch=found.topic_epoch,
                producer_ready=True,
            )
        )

    def _reported_id(self, producer: ConnectedProducer, last: int) -> int:
        """Return the last sequence id to report to a producer.

        After a reconnect a client may hold entries, and restart its numbers from the reported id.
        So this is an id above those of all entries. A producer with a name of its own gets it
        only from a client that is known to restart: programs read the last stored id.
        """
        restarts = self.client.info.restarts_ids
        if producer.reconnected and (producer.generated or restarts):
            return min(last + BEYOND, MAX_SEQUENCE_ID)
        return last if producer.partition.publishing.policies.deduplicate else -1

    def promote(self, producer: ConnectedProducer) -> None:
        """Make a producer that waited for exclusivity the exclusive one."""
        refuse = partial(self.client.error, producer.request_id)
        self.client.spawn_request(self._promote(producer), refuse)

    async def _promote(self, producer: ConnectedProducer) -> None:
        await self._raise_epoch(producer)
        await self._succeed(producer)

    # -- closing -------------------------------------------------------------------

    def on_close_producer(self, command: pb.CommandCloseProducer) -> None:
        """Close a producer for its client."""
        self._attempts.stop(command.producer_id)
        producer = self._producers.connected.get(command.producer_id)
        if producer is None:
            self.client.succeed(command.request_id)
        else:
            self._drop(producer)
            refuse = partial(self.client.error, command.request_id)
            work = self._close(producer, command.request_id, refuse)
            self.client.spawn_request(work, refuse)

    async def _close(self, producer: ConnectedProducer, request_id: int, refuse: Refuse) -> None:
        """Answer after all receipts, because clients fail pending entries of a closed producer."""
        runtime = producer.partition.log.runtime
        with producer.partition.clients.request(refuse):
            if producer.generated:
                # A generated name is never used again.
                await runtime.ask(ForgetProducer(producer.name))
            else:
                await runtime.ask(FindProducer(producer.name))
        self.client.succeed(request_id)

    def forget(self, producer: ConnectedProducer) -> None:
        """Remove a producer that the registry has replaced."""
        self._producers.remove(producer)

    def fence(self, producer: ConnectedProducer) -> None:
        """Remove and close a producer, because another one took exclusivity or the partition
        accepts no entries any more."""
        self.forget(producer)
        close = pb.CommandCloseProducer(producer_id=producer.producer_id, request_id=0)
        self.client.connection.send(close)

    def _drop(self, producer: ConnectedProducer) -> None:
        self.forget(producer)
        promotion = producer.partition.publishing.registry.disconnect(producer)
        if isinstance(promotion, Promotion):
            waiting = promotion.key
            assert isinstance(waiting, ConnectedProducer)
            waiting.owner.promote(waiting)

    def drop_all(self) -> None:
        """Remove all producers, because the connection is closed."""
        for producer in list(self._producers.connected.values()):
            self._drop(producer)
            producer.partition.publishing.forget_connection(producer.connection)

    def close(self, producer: ConnectedProducer) -> None:
        """Close a producer. The answer to its next attempt says why."""
        self.fence(producer)
        producer.partition.publishing.registry.disconnect(producer)

    def abandon(self, producer: ConnectedProducer) -> None:
        """Close a producer whose partition has ended. Its entries without a receipt get none."""
        if producer.releasing is not None:
            producer.releasing.cancel()
        self.fence(producer)

    def send_home(self, producer: ConnectedProducer) -> None:
        """Close a producer after its last receipt. The answer to its next attempt says where it is
        served, or why it isn't."""
        self._drop(producer)
        if producer.ready:
            self.client.spawn(self._close_after_receipts(producer))
        else:
            code, problem = pb.ServiceNotReady, "look the topic up again"
            self.client.error(producer.request_id, code, problem)

    async def _close_after_receipts(self, producer: ConnectedProducer) -> None:
        """Close a producer after its last receipt. Its client sends all other entries to the home
        cluster."""
        with contextlib.suppress(JournalError):
            await producer.partition.log.runtime.ask(FindProducer(producer.name))
        close = pb.CommandCloseProducer(producer_id=producer.producer_id, request_id=0)
        self.client.connection.send(close)
