"""A partition that meets its successor at a subscription."""

from __future__ import annotations

import asyncio

import pytest

from velaray.actors.partition.machine import StartAt
from velaray.broker.partition.partition_actor import PartitionActor, _DispatcherConnection
from velaray.broker.partition.subscription_channel import SubscriptionChannel
from velaray.events.ids import ActorKey, TopicName
from velaray.geo.actor_kinds import make_body
from velaray.journal.errors import Fenced
from velaray.journal.memory import MemoryStore
from velaray.topology.actor_system import Unreachable
from velaray.topology.config import ClusterConfig
from velaray.topology.in_process import InProcessActorSystem

TOPIC = TopicName.parse("persistent://public/default/t")


async def _partition_with_a_subscription(
    fabric: InProcessActorSystem,
) -> tuple[PartitionActor, ActorKey]:
    names = {"cluster": "c", "service_url": "pulsar://h:1", "admin_url": "http://h:2"}
    await fabric.call(ActorKey.catalog(), "bootstrap", names)
    found = await fabric.call(ActorKey.catalog(), "ensure_topic", {"topic": str(TOPIC)})
    key = ActorKey.of_partition(TOPIC, found["incarnation"])
    await fabric.address(key)
    partition = fabric.bodies[key]
    assert isinstance(partition, PartitionActor)
    ref = await partition.create_subscription("s", StartAt.EARLIEST, {})
    return partition, key.of_subscription("s", ref.incarnation)


def test_a_reset_by_a_successor_lets_go_of_the_former_partitions_consumers() -> None:
    """They would go on at the new place without having been told of it."""

    async def main() -> None:
        fabric = InProcessActorSystem(
            ClusterConfig("nowhere", 1, b"key", deleters=0), MemoryStore(), make_body
        )
        partition, brain = await _partition_with_a_subscription(fabric)
        channel = await partition.durable_channel("s", StartAt.EARLIEST, {})
        for method in ("cursor", "reset"):
            assert not channel.closed
            args = [0, "seek"] if method == "reset" else None
            epoch = partition.runtime.journal.epoch + 1
            question = {"epoch": epoch, "start": 0, "method": method, "args": args}
            await fabric.call(brain, "brain", question)
        async with asyncio.timeout(5):
            while not channel.closed:
                await asyncio.sleep(0)
        await fabric.stop()

    asyncio.run(main())


def test_a_superseded_partition_ends_and_its_consumers_look_up_again() -> None:
    """It isn't the consumers' fault: what they are told is `Unreachable`, which passes."""

    async def main() -> None:
        fabric = InProcessActorSystem(
            ClusterConfig("nowhere", 1, b"key", deleters=0), MemoryStore(), make_body
        )
        partition, brain = await _partition_with_a_subscription(fabric)
        of_successor = SubscriptionChannel("s", partition, lambda *_: None, durable=True)
        link = await fabric.open_link(brain, _DispatcherConnection(of_successor))
        await link.request("open", [partition.runtime.journal.epoch + 1, 0, None, 0, []])

        with pytest.raises(Unreachable, match="served elsewhere"):
            await partition.durable_channel("s", StartAt.EARLIEST, {})
        ((ended, error),) = fabric.failures
        assert ended == partition.key
        assert isinstance(error, Fenced)
        assert not link.closed  # the successor's hold is as it was
        link.close()
        await fabric.stop()

    asyncio.run(main())
