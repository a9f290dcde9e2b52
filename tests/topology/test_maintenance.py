"""What a partition does by itself: a real one, on a real journal, in memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.support.by_name import call_by_name
from tests.topology.test_partition_session import SUBSCRIBE, Client
from velaray.actors.machine import Reason
from velaray.actors.partition.machine import Publish, StartAt
from velaray.actors.partition.producers import ProducerSpec
from velaray.actors.subscription.expiry import ExpiryReason
from velaray.broker.partition.partition_actor import PartitionActor
from velaray.broker.subscription.messages import GetHoldings, GetMark, SkipTo
from velaray.broker.topic_policies import MIB
from velaray.events.ids import ActorKey, ActorKind, Position, TopicName
from velaray.geo.actor_kinds import make_actor
from velaray.journal.journal import JournalSettings
from velaray.journal.memory import MemoryStore
from velaray.topology.config import ClusterConfig
from velaray.topology.in_process import InProcessActorSystem
from velaray.topology.messages import Request
from velaray.topology.rpc import RemoteError
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.messages import build_entry

TOPIC = TopicName.parse("persistent://public/default/t")
PER_LEDGER = 10
KEEP_ALL = {"retention": {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}}


def message(published_ms: int, size: int = 100) -> bytes:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=published_ms)
    return build_entry(metadata, b"x" * size)


class Setting:
    """A partition whose ledgers hold ten entries, and which does its rounds when told to."""

    def __init__(self) -> None:
        config = ClusterConfig("nowhere", 1, b"key", maintenance_s=36_000.0, deleters=0)
        self.actor_system = InProcessActorSystem(config, MemoryStore(), make_actor)
        self.actor_system.journal_settings = JournalSettings(roll_records=PER_LEDGER)
        self.now_ms = 1_800_000_000_000
        self.actor_system.clock_ms = lambda: self.now_ms  # type: ignore[method-assign]
        self.partition: PartitionActor
        self.sent = 0

    async def start(self) -> None:
        names = {"cluster": "c", "service_url": "pulsar://h:1", "admin_url": "http://h:2"}
        await call_by_name(self.actor_system, ActorKey.catalog(), "bootstrap", names)
        await call_by_name(
            self.actor_system, ActorKey.catalog(), "ensure_topic", {"topic": str(TOPIC)}
        )
        await self.activate()

    async def activate(self) -> None:
        found = await call_by_name(
            self.actor_system, ActorKey.catalog(), "topic", {"topic": str(TOPIC)}
        )
        key = ActorKey.of_partition(TOPIC, found["incarnation"])
        await self.actor_system.address(key)
        actor = self.actor_system.actors[key]
        assert isinstance(actor, PartitionActor)
        self.partition = actor

    async def restart(self) -> None:
        self.actor_system.kill(self.partition.key)
        await self.activate()

    async def apply(self, **policies: Any) -> None:
        """Set policies of the namespace, and wait until the partition has heard of it."""
        for name, value in policies.items():
            text = json.dumps(value).encode()
            args = {"namespace": "public/default", "name": name, "value": text}
            await call_by_name(self.actor_system, ActorKey.catalog(), "set_policy", args)
        async with asyncio.timeout(5):
            while any(self.partition.policies.raw[name] != policies[name] for name in policies):
                await asyncio.sleep(0.001)

    async def publish(self, count: int, age_ms: int = 0, size: int = 100) -> None:
        for _ in range(count):
            self.sent += 1
            entry = message(self.now_ms - age_ms, size)
            command = Publish("p", self.sent, self.sent, 1, entry, True)
            await self.partition.runtime.ask(command)
            # Nobody produces over a socket here: the cache follows the log.
            self.partition.log.cache._tail.start = self.partition.runtime.state.end_offset

    async def subscribe(self, name: str) -> None:
        await self.partition.subscriptions.create_subscription(name, StartAt.EARLIEST, {})

    async def acknowledge(self, name: str, until: int) -> None:
        end = self.partition.log.end_offset
        await self.partition.subscriptions.ask_subscription(name, SkipTo(end, until))
        self.partition.maintenance.touched(name)

    async def mark(self, name: str) -> int:
        return await self.partition.subscriptions.ask_subscription(name, GetMark())

    @property
    def kept(self) -> list[tuple[int, int]]:
        """The ledgers that can be read, by number of the ledger, and their entries."""
        state = self.partition.runtime.state
        runs = state.table.runs(0, state.end_offset)
        return [(run.ledger_id & 0xFFFFFF, run.entries) for run in runs]

    def dispatchers(self) -> list[ActorKey]:
        return [key for key in self.actor_system.actors if key.kind is ActorKind.SUBSCRIPTION]


def run(scenario: Callable[[Setting], Awaitable[None]]) -> None:
    async def main() -> None:
        setting = Setting()
        await setting.start()
        await scenario(setting)
        await setting.actor_system.stop()

    asyncio.run(main())


def test_acknowledged_ledgers_are_trimmed_except_the_current_one() -> None:
    async def scenario(setting: Setting) -> None:
        await setting.subscribe("s")
        await setting.subscribe("t")
        await setting.publish(35)
        before = setting.kept
        await setting.acknowledge("s", 35)
        await setting.acknowledge("t", before[0][1] + 1)
        await setting.partition.maintenance.once()
        assert setting.kept == before[1:]
        await setting.acknowledge("t", 35)
        await setting.partition.maintenance.once()
        assert setting.kept == before[-1:]
        trimmed = setting.partition.runtime.state.trimmed
        assert len(trimmed) >= len(before) - 1

    run(scenario)


def test_a_crash_keeps_trimmed_ledgers_trimmed_and_others_stored() -> None:
    async def scenario(setting: Setting) -> None:
        await setting.subscribe("s")
        await setting.publish(35)
        await setting.acknowledge("s", 25)
        await setting.partition.maintenance.once()
        before, state = setting.kept, setting.partition.runtime.state
        first, trimmed = state.first_offset, dict(state.trimmed)
        assert 0 < first <= 25
        await setting.restart()
        state = setting.partition.runtime.state
        assert (state.first_offset, state.trimmed) == (first, trimmed)
        assert setting.kept == before
        assert await setting.mark("s") == 25
        found = await setting.partition.call("find_unacked", {"name": "s", "number": 1})
        assert found == 25

    run(scenario)


def test_seeks_to_trimmed_positions_move_to_the_first_kept_entry() -> None:
    async def scenario(setting: Setting) -> None:
        await setting.subscribe("s")
        await setting.publish(35)
        oldest = setting.partition.log.position_of(0)
        await setting.acknowledge("s", 35)
        await setting.partition.maintenance.once()
        first = setting.partition.runtime.state.first_offset
        assert first > 0
        for position in ([-1, -1], list(oldest)):
            await setting.partition.call("seek", {"name": "s", "position": position})
            assert await setting.mark("s") == first
        # As one that is under way while the ledger is trimmed.
        await setting.partition.cursors.reset_subscription("s", 3, "seek")
        assert await setting.mark("s") == first
        (stats,) = [(await setting.partition.call("stats", {}))["subscriptions"]["s"]]
        assert Position(*stats["mark_delete"][:2]) < setting.partition.log.position_of(first)

    run(scenario)


def test_ledgers_are_not_trimmed_while_a_cursor_is_moved_back() -> None:
    async def scenario(setting: Setting) -> None:
        await setting.subscribe("s")
        await setting.publish(35)
        await setting.acknowledge("s", 35)
        maintenance, partition = setting.partition.maintenance, setting.partition
        held = await maintenance._ask_subscriptions()
        await partition.cursors.reset_subscription("s", 12, "seek")
        before = setting.kept
        await maintenance._trim(held)  # what was asked is out of date
        assert setting.kept == before
        held = await maintenance._ask_subscriptions()
        async with maintenance.moving("s"):
            await maintenance._trim(held)
            assert setting.kept == before
        await maintenance.once()
        assert partition.runtime.state.first_offset <= 12
        assert setting.kept != before

    run(scenario)


def test_progress_read_before_a_cursor_moved_back_is_discarded() -> None:
    async def scenario(setting: Setting) -> None:
        await setting.subscribe("s")
        await setting.publish(35)
        await setting.acknowledge("s", 35)
        maintenance, partition = setting.partition.maintenance, setting.partition
        sync, asked = partition.log.sync, []

        async def slow_sync() -> None:
            asked.append(await maintenance._ask_subscriptions())
            await sync()

        partition.log.sync = slow_sync  # type: ignore[method-assign]
        # Asked beside the lock that the reset holds, as over a channel.
        partition.subscriptions.ask_subscription = partition.subscriptions.call_dispatcher  # type: ignore[method-assign]
        await partition.cursors.reset_subscription("s", 12, "seek")
        partition.log.sync = sync  # type: ignore[method-assign]
        (held,) = asked
        assert held["s"].mark == 35
        before = setting.kept
        await maintenance._trim(held)
        assert setting.kept == before
        await maintenance.once()  # nor is it remembered
        assert partition.runtime.state.first_offset <= 12

    run(scenario)


def test_an_expiry_does_not_hide_a_cursor_moved_back() -> None:
    async def scenario(setting: Setting) -> None:
        await setting.subscribe("s")
        await setting.publish(35)
        await setting.acknowledge("s", 34)
        maintenance, partition = setting.partition.maintenance, setting.partition
        held = await maintenance._ask_subscriptions()
        await partition.cursors.reset_subscription("s", 12, "seek")
        before = setting.kept
        await maintenance._move_on("s", held["s"], 35, ExpiryReason.TTL)
        assert await setting.mark("s") == 12
        await maintenance._trim(held)
        assert setting.kept == before

    run(scenario)


def test_expired_entries_are_trimmed_in_the_same_round() -> None:
    async def scenario(setting: Setting) -> None:
        await setting.subscribe("s")
        await setting.publish(35)
        maintenance, before = setting.partition.maintenance, setting.kept
        held = await maintenance._ask_subscriptions()
        await maintenance._move_on("s", held["s"], 35, ExpiryReason.TTL)
        await maintenance._trim(held)
        assert setting.kept == before[-1:]

    run(scenario)


def test_idle_subscriptions_are_queried_once() -> None:
    async def scenario(setting: Setting) -> None:
        await setting.subscribe("s")
        await setting.publish(35)
        asked = []
        ask = setting.partition.subscriptions.ask_subscription

        async def noted(name: str, request: Request[Any]) -> Any:
            asked.append(type(request))
            return await ask(name, request)

        setting.partition.subscriptions.ask_subscription = noted  # type: ignore[method-assign]
        for _ in range(3):
            await setting.partition.maintenance.once()
        assert asked == [GetHoldings]

    run(scenario)


def test_a_query_while_a_consumer_subscribes_is_not_the_answer_after_it_has_left() -> None:
    async def scenario(setting: Setting) -> None:
        await setting.subscribe("s")
        await setting.publish(35)
        partition, before, rounds = setting.partition, setting.kept, []
        opener, asked = partition.subscriptions._opener, asyncio.Event()
        connect, ask = opener.connect, partition.subscriptions.ask_subscription

        async def noted(name: str, request: Request[Any]) -> Any:
            asked.set()
            return await ask(name, request)

        async def during_a_round(*args: Any, **options: Any) -> Any:
            rounds.append(asyncio.create_task(partition.maintenance.once()))
            await asked.wait()
            return await connect(*args, **options)

        partition.subscriptions.ask_subscription = noted  # type: ignore[method-assign]

        opener.connect = during_a_round  # type: ignore[method-assign]
        client = Client(partition)
        client.say(SUBSCRIBE)
        await client.answer(pb.CommandSuccess)
        await asyncio.gather(*rounds)
        last = partition.log.position_of(34)
        ack = pb.CommandAck(consumer_id=1, request_id=2, ack_type=pb.CommandAck.Cumulative)
        ack.message_id.add(ledgerId=last.ledger_id, entryId=last.entry_id)
        client.say(ack)
        await client.answer(pb.CommandAckResponse)
        client.say(pb.CommandCloseConsumer(consumer_id=1, request_id=3))
        await client.answer(pb.CommandSuccess)
        async with asyncio.timeout(5):
            while partition.subscriptions.channels:
                await asyncio.sleep(0.001)
        assert await setting.mark("s") == 35
        await partition.maintenance.once()
        assert setting.kept == before[-1:]

    run(scenario)


def test_no_subscription_is_queried_while_retention_keeps_everything() -> None:
    async def scenario(setting: Setting) -> None:
        await setting.subscribe("s")
        await setting.publish(35)
        await setting.apply(**KEEP_ALL)
        await setting.partition.maintenance.once()
        assert setting.dispatchers() == []
        assert sum(entries for _, entries in setting.kept) == 35

    run(scenario)


def test_only_old_messages_expire_by_their_publish_time() -> None:
    async def scenario(setting: Setting) -> None:
        await setting.subscribe("s")
        await setting.subscribe("t")
        await setting.publish(4, age_ms=9_000)
        await setting.publish(1, age_ms=1_000)
        await setting.publish(2, age_ms=9_000)  # behind one that isn't old: they wait for it
        await setting.acknowledge("t", 2)
        await setting.apply(messageTTL=5, **KEEP_ALL)
        await setting.partition.maintenance.once()
        assert (await setting.mark("s"), await setting.mark("t")) == (4, 4)
        stats = (await setting.partition.call("stats", {}))["subscriptions"]
        assert (stats["s"]["expired"], stats["t"]["expired"]) == ({"ttl": 4}, {"ttl": 2})
        setting.now_ms += 4_001
        await setting.partition.maintenance.once()
        assert (await setting.mark("s"), await setting.mark("t")) == (7, 7)

    run(scenario)


def test_a_backlog_beyond_its_quota_is_evicted_from_its_old_end() -> None:
    async def scenario(setting: Setting) -> None:
        await setting.subscribe("s")
        await setting.publish(40, size=1000)
        total = setting.partition.maintenance.backlog.bytes_from(0)
        quota = {"policy": "consumer_backlog_eviction", "limitSize": total // 2}
        await setting.apply(backlogQuota={"destination_storage": quota}, **KEEP_ALL)
        await setting.partition.maintenance.once()
        mark = await setting.mark("s")
        left = setting.partition.maintenance.backlog.bytes_from(mark)
        assert 0.4 * total < left <= 0.45 * total
        await setting.partition.maintenance.once()
        assert await setting.mark("s") == mark

    run(scenario)


@pytest.mark.parametrize(
    ("policy", "code"),
    [
        ("producer_request_hold", pb.ProducerBlockedQuotaExceededError),
        ("producer_exception", pb.ProducerBlockedQuotaExceededException),
    ],
)
def test_producers_are_held_back_beyond_the_quota_until_there_is_room(policy, code) -> None:
    async def scenario(setting: Setting) -> None:
        await setting.subscribe("s")
        await setting.publish(40, size=1000)
        client = Client(setting.partition)
        hello = pb.CommandProducer(topic=str(TOPIC), producer_id=1, request_id=1)
        client.say(hello)
        await client.answer(pb.CommandProducerSuccess)
        quota = {"policy": policy, "limitSize": 10_000}
        await setting.apply(backlogQuota={"destination_storage": quota})
        await setting.partition.maintenance.once()
        assert (await client.answer(pb.CommandCloseProducer)).producer_id == 1
        client.say(hello)
        assert (await client.answer(pb.CommandError)).error == code
        await setting.acknowledge("s", 39)
        await setting.partition.maintenance.once()
        client.say(hello)
        await client.answer(pb.CommandProducerSuccess)

    run(scenario)


def test_a_backlog_that_is_too_old_holds_producers_back() -> None:
    async def scenario(setting: Setting) -> None:
        await setting.subscribe("s")
        await setting.publish(3, age_ms=60_000)
        quota = {"policy": "producer_exception", "limitTime": 30}
        await setting.apply(backlogQuota={"message_age": quota})
        await setting.partition.maintenance.once()
        assert setting.partition.maintenance.held_back is Reason.QUOTA_EXCEEDED
        refused = setting.partition.publishing.connect_producer(ProducerSpec("x", "x"))
        assert refused.reason is Reason.QUOTA_EXCEEDED  # type: ignore[union-attr]
        await setting.acknowledge("s", 3)
        await setting.partition.maintenance.once()
        assert setting.partition.maintenance.held_back is None

    run(scenario)


def test_a_long_unused_subscription_is_deleted_even_across_a_crash() -> None:
    async def scenario(setting: Setting) -> None:
        await setting.subscribe("s")
        await setting.apply(subscriptionExpirationTime=1)
        await setting.partition.maintenance.once()
        setting.now_ms += 40_000
        await setting.restart()
        await setting.partition.maintenance.once()
        assert "s" in setting.partition.runtime.state.subscriptions
        setting.now_ms += 20_000
        await setting.partition.maintenance.once()
        assert "s" not in setting.partition.runtime.state.subscriptions

    run(scenario)


def test_a_used_subscription_is_kept() -> None:
    async def scenario(setting: Setting) -> None:
        await setting.subscribe("s")
        await setting.apply(subscriptionExpirationTime=1)
        await setting.partition.maintenance.once()
        setting.now_ms += 60_000
        await setting.partition.subscriptions.durable_channel("s", StartAt.LATEST, {})
        await setting.partition.maintenance.once()
        assert "s" in setting.partition.runtime.state.subscriptions

    run(scenario)


def test_a_reader_of_trimmed_entries_continues_at_the_first_kept_one() -> None:
    async def scenario(setting: Setting) -> None:
        await setting.publish(35)
        channel = await setting.partition.subscriptions.volatile_channel("r", 0)
        await setting.partition.maintenance.once()
        first = setting.partition.runtime.state.first_offset
        assert first > 0
        assert await channel.ask(GetMark()) == first
        with pytest.raises(RemoteError, match="no subscription"):
            await setting.partition.maintenance.expire("r", 0)

    run(scenario)


def test_retention_by_size_keeps_the_newest_megabytes() -> None:
    async def scenario(setting: Setting) -> None:
        await setting.publish(40, size=100_000)
        limits = {"retentionTimeInMinutes": -1, "retentionSizeInMB": 1}
        await setting.apply(retention=limits)
        await setting.partition.maintenance.once()
        left = setting.partition.maintenance.backlog.bytes_from(0)
        assert MIB <= left < MIB + (PER_LEDGER + 1) * 100_500

    run(scenario)
