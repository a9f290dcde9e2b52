"""The topics of the garbage collectors, and the activation of collectors."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

from velaray.actors.catalog.policies import POLICIES, Level
from velaray.actors.machine import Reason
from velaray.broker.catalog import messages as catalog_messages
from velaray.broker.coordinator.coordinators import ensure_partitions
from velaray.broker.garbage_collection.deletion import DEAD, EVENTS, OPERATOR, RETRY, TOPICS, WORKER
from velaray.broker.partition.messages import FindUnacked, Subscriptions
from velaray.events.ids import ActorKey, TopicName
from velaray.journal.offload.tiered_store import TieredStore
from velaray.topology.actor_system import ActorSystem
from velaray.topology.rpc import RemoteError

SWEEPER = 0
"""The number of the garbage collector that deletes the orphans of the archive."""
_NEVER = 1 << 30
_POLICIES: Mapping[str, Any] = {
    **{
        name: policy.default
        for name, policy in POLICIES.items()
        # Later ones are set here only if a cluster can set them: a new policy changes nothing in
        # clusters that don't use it.
        if (policy.in_every_answer or Level.CLUSTER in policy.levels)
        and Level.NAMESPACE in policy.levels
        and policy.default is not None
    },
    # Garbage collectors move dead letters themselves. Without a limit, kills of collectors make
    # none.
    "deadLetter": {
        "maxRedeliverCount": _NEVER,
        "deadLetterTopic": str(DEAD),
        "initialSubscriptionName": OPERATOR,
    },
}
"""Policies of the system's namespace. They override the cluster's, so no event expires or is
refused."""


async def ensure_deletion_topics(actor_system: ActorSystem) -> None:
    """Create the topics of the garbage collectors, with at least one partition for each collector.

    They always have partitions, whatever the policy of automatic creation is. More partitions would
    mean more actors, which all activate for every deletion. Raises what `ActorSystem.call` raises.
    """
    namespace = EVENTS.namespace_name
    wanted = catalog_messages.Policies(namespace=namespace)
    own = await actor_system.request(ActorKey.catalog(), wanted)
    for name, value in _POLICIES.items():
        if own.get(name) != value:
            text = json.dumps(value).encode()
            policy = catalog_messages.SetPolicy(name, text, namespace=namespace)
            await actor_system.request(ActorKey.catalog(), policy)
    for topic in TOPICS:
        await ensure_partitions(actor_system, topic, max(1, actor_system.config.deleters))


async def partitions_in_use(actor_system: ActorSystem, topic: TopicName) -> AsyncIterator[ActorKey]:
    """The partitions of ``topic`` that have ever stored anything; none if there is no topic.

    Raises what `ActorSystem.call` raises, and the store's errors.
    """
    try:
        wanted = catalog_messages.Topic(str(topic))
        found = await actor_system.request(ActorKey.catalog(), wanted)
    except RemoteError as error:
        if error.kind != Reason.NOT_FOUND:
            raise
        return
    for key in ActorKey.of_partitions(topic, found["incarnation"], found["partitions"]):
        if await actor_system.store.list_ledgers(key.text()):
            yield key


async def has_work(actor_system: ActorSystem) -> bool:
    """Whether there are events that the garbage collectors haven't acknowledged.

    Raises what `ActorSystem.ask` raises, and the store's errors.
    """
    wanted = FindUnacked(WORKER, 1)
    for topic in (EVENTS, RETRY):
        async for key in partitions_in_use(actor_system, topic):
            if WORKER not in await actor_system.ask(key, Subscriptions()):
                continue
            if await actor_system.ask(key, wanted) is not None:
                return True
    return False


async def collectors_to_wake(actor_system: ActorSystem) -> list[ActorKey]:
    """The garbage collectors to activate when a cluster starts: none if there never was an event
    and there is no archive, whose orphans the first one deletes.

    They passivate if nothing is left to do. Raises what `ActorSystem.call` raises, and the store's
    errors.
    """
    for topic in (EVENTS, RETRY):
        async for _ in partitions_in_use(actor_system, topic):
            return [
                ActorKey.of_garbage_collector(number)
                for number in range(actor_system.config.deleters)
            ]
    if isinstance(actor_system.store, TieredStore) and actor_system.config.deleters:
        return [ActorKey.of_garbage_collector(SWEEPER)]
    return []
