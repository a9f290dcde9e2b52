"""The topics of those who delete ledgers, and waking them up."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

from velaray.actors.machine import Reason
from velaray.actors.policies import POLICIES, Level
from velaray.events.ids import ActorKey, TopicName
from velaray.topology.fabric import Fabric
from velaray.topology.ledgers.deletion import DEAD, EVENTS, OPERATOR, RETRY, TOPICS, WORKER
from velaray.topology.links import RemoteError
from velaray.topology.transactions.coordinators import ensure_partitions

_NEVER = 1 << 30
_POLICIES: Mapping[str, Any] = {
    **{
        name: policy.default
        for name, policy in POLICIES.items()
        if Level.NAMESPACE in policy.levels and policy.default is not None
    },
    # The deleters move their dead letters themselves; killing them often makes none.
    "deadLetter": {
        "maxRedeliverCount": _NEVER,
        "deadLetterTopic": str(DEAD),
        "initialSubscriptionName": OPERATOR,
    },
}
"""Of the system's namespace, whatever is set for the cluster: no event may expire or be refused."""


async def ensure_deletion_topics(fabric: Fabric) -> None:
    """Have the topics of which deleters live, with a partition for each deleter at least.

    They always have partitions, whatever topics are that come into being by themselves. (More of
    them would be more actors, which all wake up for every deletion.) Raises what `Fabric.call`
    raises.
    """
    namespace = EVENTS.namespace_name
    own = await fabric.call(ActorKey.catalog(), "policies", {"namespace": namespace})
    for name, value in _POLICIES.items():
        if own.get(name) != value:
            policy = {"namespace": namespace, "name": name, "value": json.dumps(value).encode()}
            await fabric.call(ActorKey.catalog(), "set_policy", policy)
    for topic in TOPICS:
        await ensure_partitions(fabric, topic, max(1, fabric.config.deleters))


async def partitions_in_use(fabric: Fabric, topic: TopicName) -> AsyncIterator[ActorKey]:
    """The partitions of ``topic`` in which anything was ever stored; none if there is no topic.

    Raises what `Fabric.call` raises, and the store's errors.
    """
    try:
        found = await fabric.call(ActorKey.catalog(), "topic", {"topic": str(topic)})
    except RemoteError as error:
        if error.kind != Reason.NOT_FOUND:
            raise
        return
    for key in ActorKey.of_partitions(topic, found["incarnation"], found["partitions"]):
        if await fabric.store.list_ledgers(key.text()):
            yield key


async def has_work(fabric: Fabric) -> bool:
    """Whether anything is announced that the deleters haven't acknowledged.

    Raises what `Fabric.ask` raises, and the store's errors.
    """
    wanted: dict[str, Any] = {"name": WORKER, "number": 1}
    for topic in (EVENTS, RETRY):
        async for key in partitions_in_use(fabric, topic):
            if WORKER not in await fabric.ask(key, "subscriptions", {}):
                continue
            if await fabric.ask(key, "find_unacked", wanted) is not None:
                return True
    return False


async def deleters_to_wake(fabric: Fabric) -> list[ActorKey]:
    """Those who are to be activated when a cluster starts: none if nothing was ever announced.

    They leave if nothing is left to do. Raises what `Fabric.call` raises, and the store's errors.
    """
    for topic in (EVENTS, RETRY):
        async for _ in partitions_in_use(fabric, topic):
            return [ActorKey.of_deleter(number) for number in range(fabric.config.deleters)]
    return []
