"""A partition that meets its successor at a subscription."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.support.by_name import call_by_name
from velaray.actors.partition.machine import StartAt
from velaray.broker.partition.channel_opening import _DispatcherConnection
from velaray.broker.partition.partition_actor import PartitionActor
from velaray.broker.partition.subscription_channel import SubscriptionChannel
from velaray.broker.subscription.messages import GetMark, OpenDispatcher, ResetCursor, call_of
from velaray.events.ids import ActorKey, TopicName
from velaray.geo.actor_kinds import make_actor
from velaray.journal.errors import Fenced
from velaray.journal.journal import Journal
from velaray.journal.memory import MemoryStore
from velaray.topology.actor_system import Unreachable
from velaray.topology.config import ClusterConfig
from velaray.topology.in_process import InProcessActorSystem
from velaray.topology.messages import Request
from velaray.topology.rpc import RpcConnectionClosed

TOPIC = TopicName.parse("persistent://public/default/t")


async def _partition_with_a_subscription(
    actor_system: InProcessActorSystem,
) -> tuple[PartitionActor, ActorKey]:
    names = {"cluster": "c", "service_url": "pulsar://h:1", "admin_url": "http://h:2"}
    await call_by_name(actor_system, ActorKey.catalog(), "bootstrap", names)
    found = await call_by_name(
        actor_system, ActorKey.catalog(), "ensure_topic", {"topic": str(TOPIC)}
    )
    key = ActorKey.of_partition(TOPIC, found["incarnation"])
    await actor_system.address(key)
    partition = actor_system.actors[key]
    assert isinstance(partition, PartitionActor)
    ref = await partition.subscriptions.create_subscription("s", StartAt.EARLIEST, {})
    return partition, key.of_subscription("s", ref.incarnation)


def test_a_reset_by_a_successor_disconnects_consumers_of_the_former_partition() -> None:
    """Otherwise they continue at a position that they don't know."""

    async def main() -> None:
        actor_system = InProcessActorSystem(
            ClusterConfig("nowhere", 1, b"key", deleters=0), MemoryStore(), make_actor
        )
        partition, dispatcher = await _partition_with_a_subscription(actor_system)
        channel = await partition.subscriptions.durable_channel("s", StartAt.EARLIEST, {})
        requests: list[Request[Any]] = [GetMark(), ResetCursor(0, "seek")]
        for request in requests:
            assert not channel.closed
            epoch = partition.runtime.journal.epoch + 1
            await actor_system.request(dispatcher, call_of(epoch, 0, request))
        async with asyncio.timeout(5):
            while not channel.closed:
                await asyncio.sleep(0)
        await actor_system.stop()

    asyncio.run(main())


def test_a_superseded_partition_ends_and_its_consumers_look_up_again() -> None:
    """Consumers get `Unreachable`, which is transient."""

    async def main() -> None:
        actor_system = InProcessActorSystem(
            ClusterConfig("nowhere", 1, b"key", deleters=0), MemoryStore(), make_actor
        )
        partition, dispatcher = await _partition_with_a_subscription(actor_system)
        log = partition.log
        of_successor = SubscriptionChannel("s", log, log, lambda *_: None, durable=True)
        rpc_connection = await actor_system.open_rpc(
            dispatcher, _DispatcherConnection(of_successor)
        )
        epoch = partition.runtime.journal.epoch + 1
        await rpc_connection.ask(OpenDispatcher(0, None, 0, (), epoch))

        with pytest.raises(Unreachable, match="served by another activation"):
            await partition.subscriptions.durable_channel("s", StartAt.EARLIEST, {})
        ((ended, error),) = actor_system.failures
        assert ended == partition.key
        assert isinstance(error, Fenced)
        assert not rpc_connection.closed  # the successor's hold is as it was
        rpc_connection.close()
        await actor_system.stop()

    asyncio.run(main())


def test_a_superseded_subscription_opens_no_dispatcher() -> None:
    """It would deliver what its successor's consumers have acknowledged."""

    async def main() -> None:
        store = MemoryStore()
        actor_system = InProcessActorSystem(
            ClusterConfig("nowhere", 1, b"key", deleters=0), store, make_actor
        )
        partition, key = await _partition_with_a_subscription(actor_system)
        channel = await partition.subscriptions.durable_channel("s", StartAt.EARLIEST, {})
        successor = await Journal.open(MemoryStore(store.disk), key.text(), clock_ms=lambda: 0)

        rpc_connection = await actor_system.open_rpc(key, _DispatcherConnection(channel))
        epoch = partition.runtime.journal.epoch
        with pytest.raises(RpcConnectionClosed):
            await rpc_connection.ask(OpenDispatcher(0, None, 0, (), epoch))
        ((ended, error),) = actor_system.failures
        assert ended == key
        assert isinstance(error, Fenced)
        await successor.close()
        await actor_system.stop()

    asyncio.run(main())
