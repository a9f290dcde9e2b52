"""Subscribing and closing the consumers of a client connection."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from velaray.actors.catalog.policies import SUBSCRIPTION_TYPES
from velaray.actors.dispatch.consumers import KeySharedMode, KeySharedPolicy
from velaray.actors.machine import Reason
from velaray.actors.partition.machine import StartAt
from velaray.broker.partition import remote_ids
from velaray.broker.partition.channel.consumer import ChannelConsumer, ConsumerSession
from velaray.broker.partition.session.admission import check_home, check_name, find_partition
from velaray.broker.partition.session.protocols import (
    Client,
    HostedPartition,
    LocalPartitions,
    Refuse,
)
from velaray.broker.partition.session.requests import CONSUMER_CLOSED, Attempts
from velaray.broker.partition.subscription_channel import SubscriptionChannel
from velaray.broker.schema_registry.schema_session import schema_of
from velaray.broker.wire_errors import RETRIABLE
from velaray.client.retention_marks import RETENTION_MARK
from velaray.events.ids import MessageId
from velaray.events.ids_pb2 import MessageIdData
from velaray.schemas import SchemaType
from velaray.topology.rpc import RemoteError, RpcConnectionClosed
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.replication import REPLICATED_SUBSCRIPTION

IN_ORDER = (pb.CommandSubscribe.Exclusive, pb.CommandSubscribe.Failover)
"""The subscription types whose consumers receive entries in order."""


class ConsumerOwner(Protocol):
    """The handlers of the connection that a consumer belongs to."""

    client: Client

    def send_home(self, connected: ConnectedConsumer) -> None:
        """Close a consumer: the tenant's home cluster serves it from now on."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class ConnectedConsumer:
    """A consumer of a client connection, its channel, and the partition that it reads."""

    consumer: ChannelConsumer
    channel: SubscriptionChannel
    partition: HostedPartition
    owner: ConsumerOwner


class ConsumerTable:
    """The consumers of one connection, by their ids."""

    def __init__(self) -> None:
        self._connected: dict[int, ConnectedConsumer] = {}

    def __bool__(self) -> bool:
        return bool(self._connected)

    def __iter__(self) -> Iterator[ConnectedConsumer]:
        return iter(list(self._connected.values()))

    def get(self, consumer_id: int) -> ConnectedConsumer | None:
        """Return a consumer; None if there is none with this id."""
        return self._connected.get(consumer_id)

    def find(self, consumer_id: int) -> ConnectedConsumer:
        """Return a consumer. Raises `RemoteError` (CONFLICT) if there is none with this id."""
        found = self._connected.get(consumer_id)
        if found is None:
            raise RemoteError(Reason.CONFLICT, f"consumer {consumer_id} not found")
        return found

    def add(self, connected: ConnectedConsumer) -> None:
        """Add a consumer."""
        self._connected[connected.consumer.consumer_id] = connected
        connected.partition.clients.add_consumer(connected)

    def remove(self, consumer: ChannelConsumer) -> bool:
        """Remove a consumer, and return whether it was there."""
        found = self._connected.get(consumer.consumer_id)
        if found is None or found.consumer is not consumer:
            return False
        del self._connected[consumer.consumer_id]
        found.partition.clients.remove_consumer(found)
        return True


class ConsumerHandlers:
    """Subscribes and closes the consumers of one connection."""

    def __init__(
        self,
        client: Client,
        session: ConsumerSession,
        partitions: LocalPartitions,
        consumers: ConsumerTable,
    ) -> None:
        self.client = client
        self._session = session
        self._partitions = partitions
        self._consumers = consumers
        self._attempts = Attempts(client)

    # -- subscribing ---------------------------------------------------------------

    def on_subscribe(self, command: pb.CommandSubscribe) -> None:
        """Subscribe a consumer."""
        known = self._consumers.get(command.consumer_id)
        if known is not None and known.consumer.subscribed:
            self.client.succeed(command.request_id)
            return
        refuse = partial(self._refuse, command)
        self._attempts.start(command.consumer_id, self._subscribe(command, refuse), refuse)

    async def _subscribe(self, command: pb.CommandSubscribe, refuse: Refuse) -> None:
        partition = find_partition(self._partitions, self.client, command.topic)
        with partition.clients.request(refuse):
            await self._subscribe_to(partition, command)

    def _refuse(self, command: pb.CommandSubscribe, code: pb.ServerError, message: str) -> None:
        if self.client.info.subscribes_again_if_closed and code in RETRIABLE:
            self._send_close(command.consumer_id)
        self.client.error(command.request_id, code, message)

    def _send_close(self, consumer_id: int) -> None:
        close = pb.CommandCloseConsumer(consumer_id=consumer_id, request_id=0)
        self.client.connection.send(close)

    async def _subscribe_to(self, partition: HostedPartition, command: pb.CommandSubscribe) -> None:
        check_name(self.client, command.subscription, "subscribe as")
        if command.read_compacted and command.subType not in IN_ORDER:
            refusal = "readCompacted only allowed on failover or exclusive subscriptions"
            raise RemoteError(Reason.NOT_ALLOWED, refusal)
        self._check(partition, command.subscription)
        if not self.client.info.means_this_cluster:
            check_type(partition, command)
        schema = schema_of(command)
        active = partition.availability.active_for_schemas
        await partition.schemas.of_consumer(schema, active=active, role=self.client.info.role)
        channel = await _open_channel(partition, command)
        try:
            # Another consumer may have connected while the channel was opened. The fence closes
            # only the channels that are there when it goes up, and the tenant's home may have
            # changed.
            self._check(partition, channel.name)
        except RemoteError:
            partition.subscriptions.drop_if_unused(channel)
            raise
        name = command.consumer_name or f"{partition.publishing.producer_name()}-consumer"
        consumer = channel.add(self._session, command.consumer_id, name, command.subType)
        consumer.request_id = command.request_id
        consumer.metadata = {item.key: item.value for item in command.metadata}
        consumer.auto_consume = schema is not None and schema.type is SchemaType.AUTO_CONSUME
        if command.subType in IN_ORDER and command.HasField("consumer_epoch"):
            consumer.epoch = command.consumer_epoch
        connected = ConnectedConsumer(consumer, channel, partition, self)
        self._consumers.add(connected)
        await self._attach(connected, command)

    def _check(self, partition: HostedPartition, subscription: str) -> None:
        """Raise `RemoteError` if the partition accepts no consumer of the subscription."""
        check_home(self.client, partition)
        partition.geo.fence.check(subscription)
        if not self.client.info.means_this_cluster:
            partition.subscriptions.check_consumers(subscription)

    async def _attach(self, connected: ConnectedConsumer, command: pb.CommandSubscribe) -> None:
        consumer = connected.consumer
        keys = _key_shared_policy(command)
        try:
            await connected.channel.attach(consumer, command.priority_level, keys)
            if consumer.closed:
                raise RpcConnectionClosed(CONSUMER_CLOSED)
            consumer.answered()
        finally:
            if not consumer.subscribed:
                self._drop(connected)
        self.client.succeed(command.request_id)

    # -- receiving -----------------------------------------------------------------

    def on_flow(self, command: pb.CommandFlow) -> None:
        """Give a consumer permits for more messages."""
        found = self._consumers.get(command.consumer_id)
        if found is not None:
            found.consumer.flow(command.messagePermits)

    def on_writable(self) -> None:
        """Continue deliveries that waited for the socket."""
        for connected in self._consumers:
            connected.channel.delivery.deliver(connected.consumer)

    # -- closing -------------------------------------------------------------------

    def on_close_consumer(self, command: pb.CommandCloseConsumer) -> None:
        """Close a consumer for its client."""
        self._attempts.stop(command.consumer_id)
        found = self._consumers.get(command.consumer_id)
        if found is not None:
            self._drop(found)
        self.client.succeed(command.request_id)

    def _drop(self, connected: ConnectedConsumer, *, lost: bool = False) -> None:
        consumer, channel = connected.consumer, connected.channel
        self._consumers.remove(consumer)
        channel.remove(consumer, lost)
        connected.partition.subscriptions.drop_if_unused(channel)

    def closed_by_channel(self, consumer: ChannelConsumer) -> None:
        """Tell the client that its subscription closed a consumer; it may subscribe again."""
        if self._consumers.remove(consumer) and consumer.subscribed:
            self._send_close(consumer.consumer_id)

    def drop_all(self) -> None:
        """Remove all consumers, because the connection is closed."""
        for connected in self._consumers:
            self._drop(connected, lost=True)

    def send_home(self, connected: ConnectedConsumer) -> None:
        """Close a consumer: the tenant's home cluster serves it from now on."""
        consumer, channel = connected.consumer, connected.channel
        channel.remove(consumer)
        self.closed_by_channel(consumer)
        connected.partition.subscriptions.drop_if_unused(channel)


async def _open_channel(
    partition: HostedPartition, command: pb.CommandSubscribe
) -> SubscriptionChannel:
    if command.read_compacted:
        await partition.compacted.open_view()
    if command.durable:
        return await _open_durable(partition, command)
    compacted = command.read_compacted
    if command.HasField("start_message_id"):
        offset = seek_target(partition, command.start_message_id, compacted)
    elif command.initialPosition == pb.CommandSubscribe.Earliest:
        offset = partition.log.table(compacted).first_offset
    else:
        offset = partition.log.end_offset
    return await partition.subscriptions.volatile_channel(
        command.subscription, offset, compacted=compacted
    )


async def _open_durable(
    partition: HostedPartition, command: pb.CommandSubscribe
) -> SubscriptionChannel:
    earliest = command.initialPosition == pb.CommandSubscribe.Earliest
    start = StartAt.EARLIEST if earliest else StartAt.LATEST
    properties = {item.key: item.value for item in command.subscription_properties}
    if command.replicate_subscription_state:
        properties[REPLICATED_SUBSCRIPTION] = "true"
    channel = await partition.subscriptions.durable_channel(
        command.subscription, start, properties, compacted=command.read_compacted
    )
    # The subscription may have existed without these.
    if command.replicate_subscription_state:
        await partition.subscriptions.set_replicated(command.subscription, replicated=True)
    if RETENTION_MARK in properties:
        kind = properties[RETENTION_MARK]
        await partition.subscriptions.set_property(command.subscription, RETENTION_MARK, kind)
    return channel


def check_type(partition: HostedPartition, command: pb.CommandSubscribe) -> None:
    """Raise `RemoteError` (NOT_ALLOWED) if the policy leaves out the type of the subscription."""
    enabled = partition.publishing.policies.raw.get(SUBSCRIPTION_TYPES)
    name = pb.CommandSubscribe.SubType.Name(command.subType)
    if enabled and name not in enabled:
        problem = f"the topic takes no {name} subscriptions; it takes {', '.join(enabled)}"
        raise RemoteError(Reason.NOT_ALLOWED, problem)


def seek_target(partition: HostedPartition, data: MessageIdData, compacted: bool) -> int:
    """Return the offset at which to continue: that of the named entry. The client skips what it
    has of the entry."""
    position = MessageId.from_proto(data).position
    return remote_ids.at_or_after(partition.log, position, compacted=compacted)


def _key_shared_policy(command: pb.CommandSubscribe) -> KeySharedPolicy:
    meta = command.keySharedMeta
    ranges = tuple((each.start, each.end) for each in meta.hashRanges)
    return KeySharedPolicy(KeySharedMode(meta.keySharedMode), ranges, meta.allowOutOfOrderDelivery)
