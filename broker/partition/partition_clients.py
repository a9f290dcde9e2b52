"""What a partition tells about the producers and consumers that are connected to it."""

from __future__ import annotations

from typing import Any, Protocol

from velaray.actors.partition.producers import AccessMode
from velaray.broker.partition.partition_metrics import PartitionMetrics
from velaray.broker.partition.subscription_channel import (
    ChannelConsumer,
    ConsumerSession,
    SubscriptionChannel,
)
from velaray.topology.flow import Flow


class Partition(Protocol):
    """What `with_clients` needs of a partition."""

    channels: dict[str, SubscriptionChannel]
    meter: PartitionMetrics

    def clock_ms(self) -> int:
        """Return wall-clock milliseconds."""
        ...


class Producing(Protocol):
    """What `producer_stats` needs of a producer."""

    name: str
    producer_id: int
    access: AccessMode
    ready: bool
    connected_ms: int
    metadata: dict[str, str]
    traffic: Flow

    @property
    def session(self) -> ConsumerSession:
        """The connection of its client."""
        ...


def with_clients(partition: Partition, name: str, stats: dict[str, Any]) -> dict[str, Any]:
    """The subscription's statistics with what this end knows of its consumers.

    ``leaving`` counts those that are gone here and that the dispatcher still has.
    """
    channel, now_ms = partition.channels.get(name), partition.clock_ms()
    known = {} if channel is None else channel.consumers
    consumers = [
        {**each, **_consumer_traffic(known[each["number"]], now_ms)}
        for each in stats["consumers"]
        if each["number"] in known
    ]
    return {
        **stats,
        **partition.meter.delivered(name),
        "consumers": consumers,
        "leaving": len(stats["consumers"]) - len(consumers),
    }


def _consumer_traffic(consumer: ChannelConsumer, now_ms: int) -> dict[str, Any]:
    speed = consumer.traffic.speed(now_ms)
    return {
        **_client(consumer.session, consumer.connected_ms, consumer.metadata),
        **speed.told("out"),
        "rate_again": speed.again,
        "messages": consumer.traffic.messages,
        "bytes": consumer.traffic.bytes,
        **consumer.activity.told(),
    }


def producer_stats(producing: Producing, now_ms: int) -> dict[str, Any]:
    """What this end knows of a producer."""
    return {
        "name": producing.name,
        "producer_id": producing.producer_id,
        "access": producing.access.name,
        "ready": producing.ready,
        **_client(producing.session, producing.connected_ms, producing.metadata),
        **producing.traffic.speed(now_ms).told("in"),
    }


def _client(
    session: ConsumerSession, connected_ms: int, metadata: dict[str, str]
) -> dict[str, Any]:
    return {
        "address": session.connection.peer,
        "client_version": session.client_version,
        "connected_ms": connected_ms,
        "metadata": metadata,
    }
