"""Where clients find transaction coordinators: the partitions of a topic that holds nothing."""

from __future__ import annotations

from velaray.actors.catalog.machine import SYSTEM_NAMESPACE, SYSTEM_TENANT
from velaray.actors.machine import Reason
from velaray.events.ids import ActorKey, TopicName
from velaray.topology.actor_system import ActorSystem
from velaray.topology.rpc import RemoteError

ASSIGN = TopicName(SYSTEM_TENANT, SYSTEM_NAMESPACE, "transaction_coordinator_assign")
"""Pulsar's name; its partition n stands for coordinator n."""
DEFAULT_COORDINATORS = 16
"""Of a new cluster, as in Pulsar."""


def coordinator_of(topic: TopicName) -> ActorKey | None:
    """The coordinator that a partition of `ASSIGN` stands for; None for other topics."""
    same = (topic.tenant, topic.namespace, topic.local) == (
        ASSIGN.tenant,
        ASSIGN.namespace,
        ASSIGN.local,
    )
    return ActorKey.of_coordinator(topic.partition) if same and topic.partition >= 0 else None


def is_systems(topic: TopicName) -> bool:
    """Whether it is in the system's namespace: nobody publishes to such a topic, reads or
    changes it."""
    return (topic.tenant, topic.namespace) == (SYSTEM_TENANT, SYSTEM_NAMESPACE)


def check_not_systems(topic: TopicName) -> TopicName:
    """The topic itself. Raises `RemoteError` (NOT_ALLOWED) if it is the system's."""
    if is_systems(topic):
        raise RemoteError(Reason.NOT_ALLOWED, f"{topic} belongs to the system")
    return topic


async def ensure_coordinators(actor_system: ActorSystem, count: int) -> None:
    """Have at least so many coordinators; there are never fewer than before.

    Raises what `ActorSystem.call` raises.
    """
    await ensure_partitions(actor_system, ASSIGN, count)


async def ensure_partitions(actor_system: ActorSystem, topic: TopicName, count: int) -> None:
    """Have a topic of the system with at least so many partitions.

    Raises what `ActorSystem.call` raises.
    """
    name = str(topic)
    create = {"topic": name, "partitions": count, "exist_ok": True}
    await actor_system.call(ActorKey.catalog(), "create_topic", create)
    found = await actor_system.call(ActorKey.catalog(), "topic", {"topic": name})
    if found["partitions"] < count:
        grow = {"topic": name, "partitions": count}
        await actor_system.call(ActorKey.catalog(), "grow_partitions", grow)
