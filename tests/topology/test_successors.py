"""A partition that meets its successor at a subscription."""

from __future__ import annotations

import asyncio

import pytest

from velaray.actors.partition import StartAt
from velaray.events.ids import ActorKey, TopicName
from velaray.journal.errors import Fenced
from velaray.journal.memory import MemoryStore
from velaray.topology.channel import Channel
from velaray.topology.config import ClusterConfig
from velaray.topology.fabric import Unreachable
from velaray.topology.local import LocalFabric
from velaray.topology.partition_body import PartitionBody, _BrainLink

TOPIC = TopicName.parse("persistent://public/default/t")


def test_a_superseded_partition_ends_and_its_consumers_look_up_again() -> None:
    """It isn't the consumers' fault: what they are told is `Unreachable`, which passes."""

    async def main() -> None:
        fabric = LocalFabric(ClusterConfig("nowhere", 1, b"key"), MemoryStore())
        names = {"cluster": "c", "service_url": "pulsar://h:1", "admin_url": "http://h:2"}
        await fabric.call(ActorKey.catalog(), "bootstrap", names)
        found = await fabric.call(ActorKey.catalog(), "ensure_topic", {"topic": str(TOPIC)})
        key = ActorKey.of_partition(TOPIC, found["incarnation"])
        await fabric.address(key)
        partition = fabric.bodies[key]
        assert isinstance(partition, PartitionBody)
        ref = await partition.create_subscription("s", StartAt.EARLIEST, {})
        of_successor = Channel("s", partition, lambda *_: None, durable=True)
        brain = key.of_subscription("s", ref.incarnation)
        link = await fabric.open_link(brain, _BrainLink(of_successor))
        await link.request("open", [partition.runtime.journal.epoch + 1, 0, None])

        with pytest.raises(Unreachable, match="served elsewhere"):
            await partition.durable_channel("s", StartAt.EARLIEST, {})
        ((ended, error),) = fabric.failures
        assert ended == key
        assert isinstance(error, Fenced)
        assert not link.closed  # the successor's hold is as it was
        link.close()
        await fabric.stop()

    asyncio.run(main())
