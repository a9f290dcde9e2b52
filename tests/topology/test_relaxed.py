"""A relaxed partition: receipts before the sync, and nothing elsewhere ahead of its log."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.topology.test_partition_session import SUBSCRIBE, Setting
from velaray.actors.partition.machine import Publish, StartAt
from velaray.broker.garbage_collection.deletion import TOPICS
from velaray.broker.partition import subscription_admin
from velaray.broker.partition.entries import CachedEntry
from velaray.broker.partition.messages import SkipTo
from velaray.broker.partition.partition_actor import PartitionActor
from velaray.broker.subscription.messages import GetMark
from velaray.cluster import Cluster
from velaray.events.ids import ActorKey, TopicName
from velaray.geo.actor_kinds import make_actor
from velaray.geo.partition_actors import make_partition_actor
from velaray.journal.memory import MemoryStore
from velaray.topology.config import ClusterConfig, PartitionSync
from velaray.topology.in_process import InProcessActorSystem
from velaray.wire import pulsar_pb2 as pb


class Relaxed(Setting):
    """A cluster whose timer doesn't fire during a test."""

    def __init__(self) -> None:
        super().__init__()
        config = ClusterConfig(
            "nowhere",
            1,
            b"key",
            partition_sync=PartitionSync.INTERVAL,
            sync_interval_ms=10**8,
            deleters=0,
        )
        self.actor_system = InProcessActorSystem(config, MemoryStore(self.disk), make_actor)

    async def publish(self, count: int, first: int = 0) -> None:
        for sequence_id in range(first, first + count):
            command = Publish("p", sequence_id, sequence_id, 1, b"entry", True)
            await self.partition.runtime.ask(command)
            self.partition.log.cache.append(CachedEntry(b"entry", 1, ""))

    def synced(self) -> int:
        return self.partition.log.synced_offset

    async def lose_power(self) -> PartitionActor:
        """Everything dies, what isn't synced is lost; returns the next activation."""
        for actor in list(self.actor_system.actors.values()):
            actor.abort()
        self.disk.power_loss()
        again = Relaxed()
        again.disk = self.disk
        again.actor_system = InProcessActorSystem(
            self.actor_system.config, MemoryStore(self.disk), make_actor
        )
        await again.start()
        self.actor_system, self.partition = again.actor_system, again.partition
        return again.partition


def run(scenario: Callable[[Relaxed], Awaitable[None]]) -> None:
    async def main() -> None:
        setting = Relaxed()
        await setting.start()
        async with asyncio.timeout(20):
            await scenario(setting)
        await setting.actor_system.stop()

    asyncio.run(main())


def test_only_the_journals_of_partitions_are_relaxed() -> None:
    async def scenario(setting: Relaxed) -> None:
        await setting.publish(4)
        # The first entry brings its producer's name.
        assert setting.synced() == 1
        catalog = setting.actor_system.actors[ActorKey.catalog()]
        assert catalog.runtime.journal.unsynced == 0  # type: ignore[attr-defined]
        assert catalog.journal_settings().sync_interval_ms == 0  # type: ignore[attr-defined]
        partition = await setting.lose_power()
        assert partition.log.end_offset == 1

    run(scenario)


@pytest.mark.parametrize("topic", TOPICS)
def test_deletion_topics_sync_every_entry(topic: TopicName) -> None:
    """The manifest drops its ledger after the answer: a lost event would leave it for ever."""

    async def scenario(setting: Relaxed) -> None:
        key = ActorKey.of_partition(topic.of_partition(0), 1)
        assert (
            make_partition_actor(key, setting.actor_system).journal_settings().sync_interval_ms == 0
        )

    run(scenario)


def test_a_new_subscription_syncs_the_entries_before_it() -> None:
    async def scenario(setting: Relaxed) -> None:
        await setting.publish(4)
        ref = await setting.partition.subscriptions.create_subscription("s", StartAt.LATEST, {})
        assert ref.start_offset == 4
        partition = await setting.lose_power()
        assert partition.log.end_offset == 4

    run(scenario)


def test_a_seek_syncs_the_entries_before_its_target() -> None:
    async def scenario(setting: Relaxed) -> None:
        await setting.partition.subscriptions.create_subscription("s", StartAt.EARLIEST, {})
        await setting.publish(4)
        assert setting.synced() < 4
        await setting.partition.cursors.reset_subscription("s", 4, "a test")
        assert setting.synced() == 4

    run(scenario)


def test_skipping_syncs_the_skipped_entries() -> None:
    async def scenario(setting: Relaxed) -> None:
        await setting.partition.subscriptions.create_subscription("s", StartAt.EARLIEST, {})
        await setting.publish(4)
        await subscription_admin.skip_to(setting.partition, SkipTo("s", 3))
        assert setting.synced() == 4

    run(scenario)


def test_an_acknowledgement_is_never_durable_before_its_entry() -> None:
    async def scenario(setting: Relaxed) -> None:
        client, partition = setting.client, setting.partition
        client.say(SUBSCRIBE)
        await client.answer(pb.CommandSuccess)
        await setting.publish(3)
        key = partition.log.position_of(2)
        ack = pb.CommandAck(consumer_id=1, ack_type=pb.CommandAck.Individual)
        ack.message_id.add(ledgerId=key.ledger_id, entryId=key.entry_id)
        client.say(ack)
        told = await _cursor(setting)
        assert told == [(2, 3)]  # asking for it is behind the acknowledgement
        assert setting.synced() == 3
        ack.request_id = 7
        client.say(ack)
        assert (await client.answer(pb.CommandAckResponse)).request_id == 7

    run(scenario)


async def _cursor(setting: Relaxed) -> list[tuple[int, int]]:
    channel = setting.partition.subscriptions.channels["s"]
    assert channel.link.held
    await channel.ask(GetMark())
    (key,) = setting.dispatchers()
    actor: Any = setting.actor_system.actors[key]
    return list(actor.runtime.state.cursor.acked_ranges())


def test_stopping_reports_held_acknowledgements() -> None:
    async def scenario(setting: Relaxed) -> None:
        client, partition = setting.client, setting.partition
        client.say(SUBSCRIBE)
        await client.answer(pb.CommandSuccess)
        await setting.publish(3)
        ledger_id, entry_id = partition.log.position_of(0)
        ack = pb.CommandAck(consumer_id=1, ack_type=pb.CommandAck.Cumulative)
        ack.message_id.add(ledgerId=ledger_id, entryId=entry_id + 2)
        client.say(ack)
        assert partition.subscriptions.channels["s"].link.held
        (key,) = setting.dispatchers()
        actor: Any = setting.actor_system.actors[key]
        assert actor.runtime.state.cursor.acked_before == 0
        await partition.stop()
        while actor.runtime.state.cursor.acked_before < 3:
            await asyncio.sleep(0.001)

    run(scenario)


def test_positions_are_not_reused_after_a_power_loss() -> None:
    async def scenario(setting: Relaxed) -> None:
        await setting.publish(4)
        before = setting.partition.log.position_of(3)
        partition = await setting.lose_power()
        await setting.publish(3, first=1)
        assert partition.log.end_offset == 4
        assert partition.log.position_of(3) != before

    run(scenario)


@pytest.mark.parametrize(
    "wrong",
    [
        {"partition_sync": "sometimes"},
        {"sync_interval_ms": 0},
        {"max_active_transactions": -1},
        {"deleters": 0},
        {"undelete_s": -1.0},
        {"deletion_retry_s": 0.0},
    ],
    ids=str,
)
def test_relaxed_mode_is_set_for_a_whole_cluster(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"sometimes|at least|above 0"):
        Cluster.start(tmp_path / "data", **wrong)
    assert not (tmp_path / "data").exists()
