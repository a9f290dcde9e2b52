"""Statistics of the producers and consumers that are connected to a partition."""

from __future__ import annotations

from typing import Any, Protocol

from velaray.actors.partition.producers import AccessMode
from velaray.broker.partition.channel.consumer import ChannelConsumer
from velaray.broker.partition.subscription_channel import SubscriptionChannel
from velaray.broker.subscription.messages import Stats
from velaray.topology.flow import Flow
from velaray.wire.connection import WireConnection


class _Connected(Protocol):
    """A producer, or the session of a consumer."""

    connection: WireConnection

    @property
    def client_version(self) -> str:
        """The name and version of the client's program."""
        ...


class DescribedProducer(_Connected, Protocol):
    """The part of a producer that `producer_stats` reads."""

    name: str
    producer_id: int
    access: AccessMode
    ready: bool
    connected_ms: int
    metadata: dict[str, str]
    traffic: Flow


def with_clients(
    channel: SubscriptionChannel | None,
    delivered: dict[str, Any],
    stats: Stats,
    now_ms: int,
) -> dict[str, Any]:
    """Return a dispatcher's statistics, completed with those of the connected consumers.

    ``delivered`` counts what was sent to the consumers. ``leaving`` in the answer counts consumers
    that are disconnected here but still attached at the dispatcher.
    """
    known = {} if channel is None else channel.consumers
    consumers = [
        {**each, **_consumer_traffic(known[each["number"]], now_ms)}
        for each in stats["consumers"]
        if each["number"] in known
    ]
    return {
        **stats,
        **delivered,
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


def producer_stats(producer: DescribedProducer, now_ms: int) -> dict[str, Any]:
    """Return the statistics of a producer."""
    return {
        "name": producer.name,
        "producer_id": producer.producer_id,
        "access": producer.access.name,
        "ready": producer.ready,
        **_client(producer, producer.connected_ms, producer.metadata),
        **producer.traffic.speed(now_ms).told("in"),
    }


def _client(session: _Connected, connected_ms: int, metadata: dict[str, str]) -> dict[str, Any]:
    return {
        "address": session.connection.peer,
        "client_version": session.client_version,
        "connected_ms": connected_ms,
        "metadata": metadata,
    }
