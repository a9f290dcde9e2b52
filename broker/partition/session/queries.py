"""Requests about subscriptions and schemas: unsubscribe, seek, last message id, statistics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from velaray.actors.dispatch.consumers import SubscriptionType
from velaray.actors.machine import Reason
from velaray.actors.partition.machine import DeleteSubscription
from velaray.broker.partition.session.consumers import (
    ConnectedConsumer,
    ConsumerTable,
    seek_target,
)
from velaray.broker.partition.session.protocols import Client, HostedPartition, LocalPartitions
from velaray.broker.partition.subscription_channel import SubscriptionChannel
from velaray.broker.schema_registry.schema_session import get_or_create_schema, get_schema
from velaray.broker.subscription.messages import GetMark, GetStats
from velaray.events.ids import MessageId, TopicName
from velaray.schemas import SchemaInfo
from velaray.topology.rpc import RemoteError
from velaray.wire import pulsar_pb2 as pb

Method = Callable[[ConnectedConsumer, Any], Awaitable[None]]
"""Answers one kind of request."""


class SubscriptionRequests:
    """Answers requests about the subscriptions of one connection's consumers."""

    def __init__(self, client: Client, consumers: ConsumerTable) -> None:
        self._client = client
        self._consumers = consumers
        self._sought: dict[SubscriptionChannel, HostedPartition] = {}

    async def answer(self, method: Method, command: Any) -> None:
        """Answer a request about the subscription of the consumer that it names."""
        found = self._consumers.find(command.consumer_id)
        with found.partition.clients.request(partial(self._client.error, command.request_id)):
            await method(found, command)

    async def unsubscribe(self, found: ConnectedConsumer, command: pb.CommandUnsubscribe) -> None:
        """Delete the consumer's subscription."""
        consumer, channel = found.consumer, found.channel
        if len(channel.consumers) > 1 and not command.force:
            others = len(channel.consumers) - 1
            raise RemoteError(Reason.NOT_ALLOWED, f"{others} other consumers are connected")
        self._consumers.remove(consumer)
        channel.remove(consumer)
        if not channel.durable:
            channel.close()
        else:
            await self._delete(found)
        self._client.succeed(command.request_id)

    async def _delete(self, found: ConnectedConsumer) -> None:
        consumer, channel, partition = found.consumer, found.channel, found.partition
        deleted = False
        try:
            await partition.deletion.delete_subscription(DeleteSubscription(channel.name))
            deleted = True
        finally:
            if not deleted:  # the consumer is detached already: make the client subscribe again
                close = pb.CommandCloseConsumer(consumer_id=consumer.consumer_id, request_id=0)
                self._client.connection.send(close)
                partition.subscriptions.drop_if_unused(channel)

    async def seek(self, found: ConnectedConsumer, command: pb.CommandSeek) -> None:
        """Move the cursor of the consumer's subscription."""
        channel, partition = found.channel, found.partition
        if command.HasField("message_publish_time"):
            where = partition.compacted if channel.compacted else partition.log
            offset = await where.offset_at_time(command.message_publish_time)
        else:
            offset = seek_target(partition, command.message_id, channel.compacted)
        self._sought[channel] = partition
        await partition.cursors.reset_subscription(channel.name, offset, "seek")
        self._client.succeed(command.request_id)

    async def last_message_id(
        self, found: ConnectedConsumer, command: pb.CommandGetLastMessageId
    ) -> None:
        """Answer the topic's last message id and the subscription's mark."""
        channel, partition = found.channel, found.partition
        mark = await channel.ask(GetMark())
        last = await partition.compacted.last_message_id(channel.horizon)
        before = partition.log.table(channel.compacted).position_before(mark)
        answer = pb.CommandGetLastMessageIdResponse(
            request_id=command.request_id,
            last_message_id=last.to_proto(),
            consumer_mark_delete_position=MessageId(*before, partition.key.partition).to_proto(),
        )
        if command.HasField("span"):
            span = await partition.find_span(channel.name, mark, command.span)
            answer.span.CopyFrom(span)
        self._client.connection.send(answer)

    async def stats(self, found: ConnectedConsumer, command: pb.CommandConsumerStats) -> None:
        """Answer a consumer's statistics."""
        consumer, channel, partition = found.consumer, found.channel, found.partition
        stats = await channel.ask(GetStats(partition.log.end_offset))
        own: Mapping[str, Any] = next(
            (each for each in stats["consumers"] if each["number"] == consumer.number), {}
        )
        self._client.connection.send(
            pb.CommandConsumerStatsResponse(
                request_id=command.request_id,
                consumerName=consumer.name,
                availablePermits=max(own.get("permits", 0), 0),
                unackedMessages=own.get("unacked", 0),
                blockedConsumerOnUnackedMsgs=own.get("blocked", False),
                address=self._client.connection.peer,
                type=SubscriptionType(consumer.type).name.capitalize(),
                msgBacklog=stats["backlog"],
            )
        )

    def drop_sought(self) -> None:
        """Close the channels that only a seek kept open, because the connection is closed."""
        for channel, partition in self._sought.items():
            partition.subscriptions.drop_if_unused(channel)


class SchemaRequests:
    """Answers requests about the schemas of topics. All partitions of a topic share its schemas."""

    def __init__(self, client: Client, partitions: LocalPartitions) -> None:
        self._client = client
        self._partitions = partitions

    async def get_schema(self, command: pb.CommandGetSchema) -> None:
        """Answer a version of the topic's schema."""

        async def find(version: int | None) -> dict[str, Any]:
            partition = self._partitions.find_sibling(TopicName.parse(command.topic))
            return await partition.schemas.find(version)

        self._client.connection.send(await get_schema(command, find))

    async def get_or_create_schema(self, command: pb.CommandGetOrCreateSchema) -> None:
        """Answer the version of a schema, which is registered if it is new."""

        async def register(info: SchemaInfo) -> int | None:
            partition = self._partitions.find_sibling(TopicName.parse(command.topic))
            partition.geo.fence.check()
            return await partition.schemas.of_producer(info, self._client.info.role)

        self._client.connection.send(await get_or_create_schema(command, register))
