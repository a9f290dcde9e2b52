"""The look-up of transaction coordinators: they are partitions of a topic without messages."""

from __future__ import annotations

from velaray.actors.catalog.machine import SYSTEM_NAMESPACE, SYSTEM_TENANT
from velaray.actors.machine import Reason
from velaray.broker.catalog import messages as catalog_messages
from velaray.events.ids import ActorKey, TopicName
from velaray.topology.actor_system import ActorSystem
from velaray.topology.rpc import RemoteError

ASSIGN = TopicName(SYSTEM_TENANT, SYSTEM_NAMESPACE, "transaction_coordinator_assign")
"""Pulsar's name; its partition n stands for coordinator n."""
DEFAULT_COORDINATORS = 16
"""The number of coordinators of a new cluster, as in Pulsar."""


def coordinator_of(topic: TopicName) -> ActorKey | None:
    """The coordinator that a partition of `ASSIGN` stands for; None for other topics."""
    same = (topic.tenant, topic.namespace, topic.local) == (
        ASSIGN.tenant,
        ASSIGN.namespace,
        ASSIGN.local,
    )
    return ActorKey.of_coordinator(topic.partition) if same and topic.partition >= 0 else None


def stands_for_coordinators(topic: TopicName) -> bool:
    """Whether clients find coordinators by the topic: it is `ASSIGN` or a partition of it."""
    return topic.topic == ASSIGN


def is_systems(topic: TopicName) -> bool:
    """Whether the topic is in the system's namespace. Clients can't publish to, read or change such
    topics."""
    return (topic.tenant, topic.namespace) == (SYSTEM_TENANT, SYSTEM_NAMESPACE)


def check_not_systems(topic: TopicName) -> TopicName:
    """Return the topic. Raises `RemoteError` (NOT_ALLOWED) if it is a system topic."""
    if is_systems(topic):
        raise RemoteError(Reason.NOT_ALLOWED, f"{topic} belongs to the system")
    return topic


async def ensure_coordinators(actor_system: ActorSystem, count: int) -> None:
    """Make sure that there are at least this many coordinators; their number never falls.

    Raises what `ActorSystem.call` raises.
    """
    await ensure_partitions(actor_system, ASSIGN, count)


async def ensure_partitions(actor_system: ActorSystem, topic: TopicName, count: int) -> None:
    """Make sure that a system topic has at least this many partitions.

    Raises what `ActorSystem.call` raises.
    """
    name = str(topic)
    create = catalog_messages.CreateTopic(name, count, exist_ok=True)
    await actor_system.request(ActorKey.catalog(), create)
    found = await actor_system.request(ActorKey.catalog(), catalog_messages.Topic(name))
    if found["partitions"] < count:
        grow = catalog_messages.GrowPartitions(name, count)
        await actor_system.request(ActorKey.catalog(), grow)
