"""Progress of other clusters' subscriptions: taken in, kept until the entries come, filtered."""

import asyncio
import functools

import pytest

from tests.topology.geo import (
    TOPIC,
    Consumer,
    Replicator,
    Site,
    exported,
    marker,
    run,
    soon,
)
from velaray.broker.partition.channel import delivery
from velaray.broker.subscription import subscription_queries
from velaray.broker.subscription.messages import (
    GetMark,
    GetStats,
    GetUnacked,
    LeaseReport,
    ReleaseLease,
    TakeRemoteProgress,
)
from velaray.geo.replication import remote_progress
from velaray.journal.journal import JournalSettings
from velaray.topology.messages import ReplyT, Request
from velaray.topology.rpc import RemoteError
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.replication import Marker
from velaray.wire.replication_pb2 import SubscriptionProgress

EXCLUSIVE, SHARED = pb.CommandSubscribe.Exclusive, pb.CommandSubscribe.Shared
KINDS = pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED, pb.CommandSubscribe.Key_Shared])


async def filled(east: Site, count: int, name: str = "s", kind: int = SHARED) -> Consumer:
    """So many entries, and a consumer of east that got them all."""
    consumer = await Consumer(east, name, kind).connect()
    for number in range(count):
        await east.publish(number)
    await consumer.received(count)
    return consumer


def numbers(payloads: list[str], cluster: str = "east") -> list[int]:
    return [int(each.split("-")[2]) for each in payloads if each.startswith(f"{cluster}-p-")]


@KINDS
def test_messages_acknowledged_elsewhere_are_not_delivered(kind: int) -> None:
    async def scenario(east: Site, west: Site) -> None:
        consumer = await filled(east, 10)
        for number in (0, 1, 4, 7):
            await consumer.acknowledge(f"east-p-{number}")
        replicator = await Replicator(east, west).connect()
        await replicator.replicate()
        receipt = await replicator.tell(await exported(east, "s"))
        assert isinstance(receipt, pb.CommandSendReceipt)
        moved = await Consumer(west, "s", kind).connect()
        assert numbers(await moved.all_of()) == [2, 3, 5, 6, 8, 9]

    run(scenario)


@KINDS
def test_an_entry_acknowledged_before_its_arrival_is_skipped(kind: int) -> None:
    async def scenario(east: Site, west: Site) -> None:
        moved = await Consumer(west, "s", kind).connect()
        consumer = await filled(east, 10)
        replicator = await Replicator(east, west).connect()
        for number in (1, 2, 5, 9):
            await consumer.acknowledge(f"east-p-{number}")
            await replicator.tell(await exported(east, "s"))
        await west.publish(0)
        await replicator.replicate(0, 6)
        assert numbers(await moved.received(4)) == [0, 3, 4]
        for number in (6, 7):
            await consumer.acknowledge(f"east-p-{number}")
            await replicator.tell(await exported(east, "s"))
        await replicator.replicate(6)
        await west.publish(1)
        found = await moved.all_of()
        assert numbers(found) == [0, 3, 4, 8]
        assert numbers(found, "west") == [0, 1]

    run(scenario)


@KINDS
def test_progress_and_entries_that_arrive_together_deliver_nothing_twice(kind: int) -> None:
    async def scenario(east: Site, west: Site) -> None:
        moved = await Consumer(west, "s", kind).connect()
        consumer = await filled(east, 60)
        for number in range(0, 60, 3):
            await consumer.acknowledge(f"east-p-{number}")
        told = (await exported(east, "s")).SerializeToString()
        replicator = await Replicator(east, west).connect()
        for first in range(0, 60, 10):
            told_at_once = west.call("import_progress", source="east", part=told)
            await asyncio.gather(replicator.replicate(first, first + 10), told_at_once)
        found = numbers(await moved.all_of())
        late = [number for number in found if number % 3 == 0]
        assert [number for number in found if number % 3] == [n for n in range(60) if n % 3]
        assert all(number < 10 for number in late)  # they arrived before their progress

    run(scenario)


def test_the_same_messages_of_a_batch_stay_open() -> None:
    async def scenario(east: Site, west: Site) -> None:
        consumer = await Consumer(east, "s", SHARED).connect()
        for number in range(3):
            await east.publish(number, messages=4)
        await consumer.received(3)
        await consumer.acknowledge("east-p-0", [0b0110])
        replicator = await Replicator(east, west).connect()
        await replicator.replicate(0, 1)
        await consumer.acknowledge("east-p-1", [0b1000])
        await consumer.acknowledge("east-p-0", [0b0010])
        await replicator.tell(await exported(east, "s"))
        moved = await Consumer(west, "s", SHARED).connect()
        await replicator.replicate(1)
        await moved.received(3)
        assert [command.ack_set for command, _ in moved.client.entries] == [
            (0b0010,),
            (0b1000,),
            (),
        ]

    run(scenario)


@pytest.mark.parametrize("before", [False, True])
def test_failed_deliveries_continue_to_count(before: bool) -> None:
    async def scenario(east: Site, west: Site) -> None:
        consumer = await filled(east, 3)
        partition = await east.partition()
        for _ in range(3):
            count = len(consumer.client.entries)
            again = pb.CommandRedeliverUnacknowledgedMessages(consumer_id=1)
            data = consumer.client.entries[1][0]
            again.message_ids.add(ledgerId=data.ledger_id, entryId=data.entry_id)
            consumer.client.say(again)
            await consumer.received(count + 1)
        assert [found[0].redelivery_count for found in consumer.client.entries[3:]] == [1, 2, 3]
        assert partition.log.end_offset == 3
        replicator = await Replicator(east, west).connect()
        if before:
            await replicator.tell(await exported(east, "s"))
        await replicator.replicate()
        if not before:
            await replicator.tell(await exported(east, "s"))
        moved = await Consumer(west, "s", SHARED).connect()
        await moved.received(3)
        counts = [command.redelivery_count for command, _ in moved.client.entries]
        assert (counts[1], max(counts[0], counts[2]) <= 1) == (4, True)

    run(scenario)


def test_local_messages_are_skipped_only_by_their_own_position() -> None:
    async def scenario(east: Site, west: Site) -> None:
        there, back = Replicator(east, west), Replicator(west, east)
        await there.connect()
        await back.connect()
        for number in range(4):
            await east.publish(number)
            await west.publish(number)
            await there.replicate(2 * number)
            await back.replicate(2 * number)
        consumer = await Consumer(east, "s", SHARED).connect()
        await consumer.received(8)
        for payload in ("east-p-1", "west-p-0", "east-p-3", "west-p-3"):
            await consumer.acknowledge(payload)
        told = await exported(east, "s")
        up_to = next(each for each in told.origins if each.cluster == "east").up_to
        up_to.ledger_id, up_to.entry_id = (await east.partition()).log.position_of(7)
        await there.tell(told)
        moved = await Consumer(west, "s", SHARED).connect()
        assert await moved.all_of() == ["west-p-1", "west-p-2"]

    run(scenario)


@pytest.mark.parametrize("ranges", [False, True])
def test_a_position_of_this_cluster_refers_to_its_own_entries(ranges: bool) -> None:
    async def scenario(east: Site, west: Site) -> None:
        replicator = await Replicator(east, west).connect()
        for number in range(3):
            position = await west.publish(number)
            await east.publish(number)
            await replicator.replicate(number)
        told = SubscriptionProgress(subscription="s")
        progress = told.origins.add(cluster="west")
        for ledger_id in (position.ledger_id + (1 << 24), position.ledger_id - (1 << 24)):
            # Of another journal: that means nothing here.
            progress.up_to.ledger_id, progress.up_to.entry_id = ledger_id, 9
            progress.acked.add(ledger=ledger_id, first_entry=0, last_entry=1 << 40)
            await replicator.tell(told)
        moved = await Consumer(west, "s", SHARED).connect()
        assert len(await moved.all_of()) == 6
        moved.client.leave()
        del progress.acked[:]
        if ranges:
            progress.ClearField("up_to")
            progress.acked.add(ledger=position.ledger_id, first_entry=0, last_entry=1 << 40)
        else:
            progress.up_to.ledger_id, progress.up_to.entry_id = position
        await replicator.tell(told)
        moved = await Consumer(west, "s", SHARED).connect()
        assert [payload for payload in await moved.all_of() if "-p-" in payload] == [
            *("east-p-0", "east-p-1", "east-p-2")
        ]

    run(scenario)


def test_a_missing_subscription_is_created_and_gets_everything_else() -> None:
    async def scenario(east: Site, west: Site) -> None:
        await west.publish(0)
        consumer = await filled(east, 2)
        await consumer.acknowledge("east-p-0")
        replicator = await Replicator(east, west).connect()
        await replicator.replicate()
        await replicator.tell(await exported(east, "s"))
        partition = await west.partition()
        made = partition.runtime.state.subscriptions["s"]
        assert (made.ref.start_offset, made.properties) == (
            0,
            {"pulsar.replicated.subscription": "true"},
        )
        moved = await Consumer(west, "s", SHARED).connect()
        assert await moved.all_of() == ["west-p-0", "east-p-1"]

    run(scenario)


def test_a_local_rewind_is_not_undone_by_earlier_progress() -> None:
    async def scenario(east: Site, west: Site) -> None:
        consumer = await filled(east, 6)
        for number in range(4):
            await consumer.acknowledge(f"east-p-{number}")
        replicator = await Replicator(east, west).connect()
        await replicator.replicate()
        await replicator.tell(await exported(east, "s"))
        position = (await west.partition()).log.position_of(1)
        await west.call("seek", name="s", position=list(position))
        for restarts in (False, True):
            if restarts:
                west.actor_system.kill(west.key)
                replicator = await Replicator(east, west).connect()
            await replicator.tell(await exported(east, "s"))
        await consumer.acknowledge("east-p-5")
        await replicator.tell(await exported(east, "s"))
        moved = await Consumer(west, "s", SHARED).connect()
        assert numbers(await moved.all_of()) == [1, 2, 3, 4]

    run(scenario)


def test_a_rewind_is_not_undone_by_a_cluster_with_older_progress() -> None:
    async def scenario(east: Site, west: Site) -> None:
        consumer = await filled(east, 6)
        there, back = Replicator(east, west), Replicator(west, east)
        await there.connect()
        await there.replicate()
        for number in range(4):
            await consumer.acknowledge(f"east-p-{number}")
        await there.tell(await exported(east, "s"))
        await west.publish(0)
        await back.connect()
        await back.replicate()  # so east knows that others may have heard
        position = (await east.partition()).log.position_of(1)
        await east.call("seek", name="s", position=list(position))
        moved = await Consumer(west, "s", SHARED).connect()
        await moved.received(3)
        await moved.acknowledge("east-p-5")
        await back.tell(await exported(west, "s"))
        again = await Consumer(east, "s", SHARED).connect()
        assert numbers(await again.all_of()) == [1, 2, 3, 4]

    run(scenario)


def test_much_waiting_progress_is_settled_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscription_queries, "_AT_ONCE", 3)
    monkeypatch.setattr(remote_progress, "AT_ONCE", 2)

    async def scenario(east: Site, west: Site) -> None:
        moved = await Consumer(west, "s", SHARED).connect()
        consumer = await filled(east, 30)
        for number in range(0, 30, 2):
            await consumer.acknowledge(f"east-p-{number}")
        replicator = await Replicator(east, west).connect()
        await replicator.tell(await exported(east, "s"))
        await replicator.replicate()
        assert numbers(await moved.all_of()) == list(range(1, 30, 2))
        assert not waiting(west)

    run(scenario)


def killed(site: Site) -> None:
    """Every actor of the topic, as by SIGKILL."""
    for key in list(site.actor_system.actors):
        if key.topic == "t":
            site.actor_system.kill(key)


def test_confirmed_progress_survives_a_crash_at_every_step() -> None:
    async def scenario(east: Site, west: Site) -> None:
        consumer = await filled(east, 12)
        for number in range(12):
            if number % 3 != 1:
                await consumer.acknowledge(f"east-p-{number}")
            replicator = await Replicator(east, west).connect()
            await replicator.tell(await exported(east, "s"))
            killed(west)
            if number % 2:
                replicator = await Replicator(east, west).connect()
                await replicator.replicate(0, number)
                killed(west)
        await (await Replicator(east, west).connect()).replicate()
        killed(west)
        moved = await Consumer(west, "s", SHARED).connect()
        assert numbers(await moved.all_of()) == [1, 4, 7, 10]

    run(scenario)


def test_progress_in_flight_survives_a_crash_of_the_subscription() -> None:
    async def scenario(east: Site, west: Site) -> None:
        moved = await Consumer(west, "s", SHARED).connect()
        consumer = await filled(east, 20)
        for number in range(0, 20, 2):
            await consumer.acknowledge(f"east-p-{number}")
        told = (await exported(east, "s")).SerializeToString()
        replicator = await Replicator(east, west).connect()
        await replicator.replicate(0, 10)
        for turns in range(12):
            taking = asyncio.ensure_future(west.call("import_progress", source="east", part=told))
            for _ in range(turns):
                await asyncio.sleep(0)
            for key in [key for key in west.actor_system.actors if key.subscription == "s"]:
                west.actor_system.kill(key)
            await asyncio.gather(taking, return_exceptions=True)
        await west.call("import_progress", source="east", part=told)
        await replicator.replicate(10)
        moved = await Consumer(west, "s", SHARED).connect()
        assert numbers(await moved.all_of()) == list(range(1, 20, 2))

    run(scenario)


@pytest.mark.parametrize("restarts", [False, True])
def test_entries_without_consumers_are_settled_before_they_are_trimmed(restarts: bool) -> None:
    async def scenario(east: Site, west: Site) -> None:
        west.actor_system.journal_settings = JournalSettings(roll_records=4)
        west.actor_system.kill(west.key)
        consumer = await filled(east, 18)
        replicator = await Replicator(east, west).connect()
        for first in (0, 6, 12):
            for number in range(first, first + 6):
                await consumer.acknowledge(f"east-p-{number}")
            await replicator.tell(await exported(east, "s"))
            partition = await west.partition()
            partition.geo.progress.came = lambda: None  # type: ignore[method-assign]
            await replicator.replicate(first, first + 6)
            assert await partition.subscriptions.ask_subscription("s", GetMark()) == first
            if restarts:
                killed(west)
                partition = await west.partition()
                replicator = await Replicator(east, west).connect()
            await partition.maintenance.once()
            assert await partition.subscriptions.ask_subscription("s", GetMark()) == first + 6
            assert partition.runtime.state.first_offset >= first + 3
        assert not waiting(west)

    run(scenario)


@pytest.mark.parametrize("read", ["never", "before", "until then"])
def test_entries_without_consumers_are_settled_without_further_requests(read: str) -> None:
    async def scenario(east: Site, west: Site) -> None:
        moved, partition = Consumer(west, "s", SHARED), await west.partition()
        if read != "never":
            await moved.connect()
        if read == "before":
            moved.client.leave()
            await soon(lambda: not partition.subscriptions.channels)
        consumer = await filled(east, 6)
        for number in (0, 1, 2, 5):
            await consumer.acknowledge(f"east-p-{number}")
        replicator = await Replicator(east, west).connect()
        await replicator.tell(await exported(east, "s"))
        if read == "until then":
            moved.client.leave()
            await soon(lambda: not partition.subscriptions.channels)
        await replicator.replicate(0, 3)
        await replicator.replicate(3)
        await soon(lambda: not waiting(west))
        assert await partition.subscriptions.ask_subscription("s", GetUnacked(0, 9, 6)) == [3, 5]

    run(scenario)


def waiting(site: Site) -> dict[str, object]:
    """The progress that waits at the site's subscription."""
    found = [actor for key, actor in site.actor_system.actors.items() if key.subscription == "s"]
    return found[0].runtime.state.remote.waiting  # type: ignore[attr-defined]


def test_entries_acknowledged_elsewhere_are_not_delivered_under_a_lease(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The report of what was delivered goes out when it is asked for, never by the timer.
    monkeypatch.setattr(delivery, "REPORT_S", 3600.0)

    async def scenario(east: Site, west: Site) -> None:
        consumer = await filled(east, 6)
        replicator = await Replicator(east, west).connect()
        await replicator.replicate()
        moved = await Consumer(west, "s", EXCLUSIVE).connect(permits=2)
        assert numbers(await moved.received(2)) == [0, 1]
        await consumer.acknowledge("east-p-3")
        port, said = (await west.partition()).subscriptions.channels["s"].link.port, []
        for kind in ("tell", "ask"):
            saying = getattr(port, kind)
            spy = functools.partial(
                lambda say, message: [said.append(type(message)), say(message)][1], saying
            )
            setattr(port, kind, spy)
        await replicator.tell(await exported(east, "s"))
        assert said[:3] == [LeaseReport, ReleaseLease, TakeRemoteProgress]
        moved.client.say(pb.CommandFlow(consumer_id=1, messagePermits=9))
        assert numbers(await moved.all_of()) == [0, 1, 2, 4, 5]

    run(scenario)


def test_entries_stored_while_their_progress_is_applied_are_settled_without_later_ones() -> None:
    async def scenario(east: Site, west: Site) -> None:
        consumer = await filled(east, 3)
        await consumer.acknowledge("east-p-1")
        replicator = await Replicator(east, west).connect()
        partition = await west.partition()
        ask, gate = partition.subscriptions.ask_subscription, asyncio.Event()
        asked = asyncio.Event()

        async def late(name: str, request: Request[ReplyT]) -> ReplyT:
            asked.set()
            await gate.wait()
            return await ask(name, request)

        partition.subscriptions.ask_subscription = late  # type: ignore[method-assign]
        told = (await exported(east, "s")).SerializeToString()
        taking = asyncio.ensure_future(partition.geo.progress.take("east", told))
        await asked.wait()
        await replicator.replicate()
        gate.set()
        await taking
        await soon(lambda: not waiting(west))
        assert await ask("s", GetUnacked(0, 9, 3)) == [0, 1, 2, 3]

    run(scenario)


def test_undelivered_entries_are_settled_when_the_consumer_leaves() -> None:
    async def scenario(east: Site, west: Site) -> None:
        moved = await Consumer(west, "s", SHARED).connect(permits=1)
        consumer = await filled(east, 300)
        await consumer.acknowledge("east-p-299")
        replicator = await Replicator(east, west).connect()
        await replicator.tell(await exported(east, "s"))
        await replicator.replicate()
        await moved.received(1)
        assert waiting(west)
        moved.client.leave()
        await soon(lambda: not waiting(west))

    run(scenario)


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED])
def test_entries_stored_while_their_progress_is_applied_wait_for_it(kind: int) -> None:
    async def scenario(east: Site, west: Site) -> None:
        moved = await Consumer(west, "s", kind).connect()
        consumer = await filled(east, 3)
        replicator = await Replicator(east, west).connect()
        await replicator.replicate(0, 1)
        await moved.received(1)
        await consumer.acknowledge("east-p-1")
        told = (await exported(east, "s")).SerializeToString()
        partition = await west.partition()
        ask, gate = partition.subscriptions.ask_subscription, asyncio.Event()

        async def late(name: str, request: Request[ReplyT]) -> ReplyT:
            await gate.wait()
            return await ask(name, request)

        partition.subscriptions.ask_subscription = late  # type: ignore[method-assign]
        taking = asyncio.ensure_future(partition.geo.progress.take("east", told))
        await soon(lambda: partition.subscriptions.channels["s"].origins.waiting == {"east"})
        await replicator.replicate(1)
        await asyncio.sleep(0.05)
        assert len(moved.client.entries) == 1
        gate.set()
        await taking
        assert numbers(await moved.all_of()) == [0, 2]
        assert not waiting(west)

    run(scenario)


def test_a_reader_with_the_name_of_the_subscription_is_left_unchanged() -> None:
    async def scenario(east: Site, west: Site) -> None:
        client = await west.client()
        client.say(
            pb.CommandSubscribe(
                topic=str(TOPIC),
                subscription="s",
                subType=EXCLUSIVE,
                consumer_id=1,
                request_id=1,
                durable=False,
            )
        )
        await client.answer(pb.CommandSuccess)
        replicator = await Replicator(east, west).connect()
        refused = await replicator.tell(SubscriptionProgress(subscription="s"))
        assert "a reader is connected as 's'" in refused.message

    run(scenario)


@pytest.mark.parametrize(
    ("part", "why"),
    [
        (b"\xff\xff", "progress of a subscription of cluster 'east'"),
        (b"", "the subscription's name or a position is missing"),
        (SubscriptionProgress(subscription="pulsar.repl.x").SerializeToString(), "a replicator"),
    ],
)
def test_unreadable_progress_is_refused(part: bytes, why: str) -> None:
    async def scenario(east: Site, west: Site) -> None:
        replicator = await Replicator(east, west).connect()
        refused = await replicator.send(marker(Marker.PROGRESS, part))
        assert why in refused.message
        with pytest.raises(RemoteError, match=why):
            await west.call("import_progress", source="east", part=part)
        assert not (await west.partition()).runtime.state.subscriptions

    run(scenario)


def test_entries_acknowledged_elsewhere_are_no_longer_held() -> None:
    async def scenario(east: Site, west: Site) -> None:
        consumer = await filled(east, 4)
        replicator = await Replicator(east, west).connect()
        await replicator.replicate()
        moved = await Consumer(west, "s", SHARED).connect()
        await moved.received(4)
        await consumer.acknowledge("east-p-2")
        await replicator.tell(await exported(east, "s"))
        partition = await west.partition()
        stats = await partition.subscriptions.channels["s"].ask(GetStats(partition.log.end_offset))
        assert stats["consumers"][0]["unacked"] == 3
        moved.client.say(pb.CommandRedeliverUnacknowledgedMessages(consumer_id=1))
        assert numbers((await moved.received(7))[4:]) == [0, 1, 3]
        await soon(lambda: len(moved.client.entries) == 7)

    run(scenario)
