"""Requests of a migration to its own cluster."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from typing import Any

from velaray.actors.machine import Reason
from velaray.broker.catalog.messages import Topic
from velaray.events.ids import ActorKey, TopicName
from velaray.topology.actor_system import ActorSystem
from velaray.topology.messages import ReplyT, Request
from velaray.topology.rpc import RemoteError


async def ask_catalog(actor_system: ActorSystem, request: Request[ReplyT]) -> ReplyT:
    """Ask the catalog. Raises what `ActorSystem.request` raises."""
    return await actor_system.request(ActorKey.catalog(), request)


async def partitions_of(actor_system: ActorSystem, topics: Iterable[str]) -> list[ActorKey]:
    """The partitions of these topics. Raises what `ActorSystem.request` raises."""
    found: list[ActorKey] = []
    for topic in topics:
        known = await ask_catalog(actor_system, Topic(topic))
        name = TopicName.parse(topic)
        found += ActorKey.of_partitions(name, known["incarnation"], known["partitions"])
    return found


async def partition_of(actor_system: ActorSystem, tenant: str, topic: str) -> ActorKey:
    """The actor of a partition, or of a topic without partitions, of this tenant.

    Raises `RemoteError` (INVALID) if the topic is another tenant's, and what `ActorSystem.request`
    raises.
    """
    name = TopicName.parse(topic)
    if name.tenant != tenant:
        raise RemoteError(Reason.INVALID, f"{topic} isn't of tenant {tenant}")
    found = await ask_catalog(actor_system, Topic(topic))
    return ActorKey.of_partition(name, found["incarnation"])


async def unless_gone(deletion: Awaitable[Any]) -> None:
    """Await a deletion, and ignore that the resource doesn't exist. Raises its other errors."""
    try:
        await deletion
    except RemoteError as error:
        if error.kind != Reason.NOT_FOUND:
            raise
