"""What a partition tells other clusters of its subscriptions, beside what they have."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

import pytest

from tests.topology.geo import TOPIC, Site, stamped
from velaray.actors.machine import Reason
from velaray.actors.partition import origins
from velaray.actors.partition.machine import Publish, Published, Replicated
from velaray.actors.subscription import progress_exports
from velaray.actors.subscription.cursor import mask_to_words
from velaray.broker.subscription.messages import AckEntriesInTransaction, GetStats, PassOver, SkipTo
from velaray.events.ids import ActorKey, Position, TransactionId
from velaray.geo.replication import progress_export
from velaray.journal.journal import JournalSettings
from velaray.topology.messages import ReplyT, Request
from velaray.topology.rpc import RemoteError
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.messages import build_entry
from velaray.wire.replication import REPLICATED_SUBSCRIPTION
from velaray.wire.replication_pb2 import SubscriptionProgress

BATCH = 4
ALL = (1 << BATCH) - 1
REPLICATED = {REPLICATED_SUBSCRIPTION: "true"}


@pytest.fixture(autouse=True, scope="module")
def _narrow() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(progress_exports, "WINDOW", 16)
        patch.setattr(progress_exports, "MOST_RANGES", 8)
        patch.setattr(origins, "BLOCK", 3)
        patch.setattr(origins, "KEPT_BLOCKS", 1)
        patch.setattr(progress_export, "PART_BYTES", 300)
        patch.setattr(progress_export, "PARTS", 2)
        yield


class Told:
    """The exports to another cluster: by origin, by position."""

    def __init__(self, name: str = "west") -> None:
        self.name = name
        self.token: Any = None
        self.parts: list[SubscriptionProgress] = []

    def forget(self) -> None:
        self.parts.clear()

    def add(self, raw: bytes) -> None:
        assert len(raw) <= progress_export.PART_BYTES + 200
        self.parts.append(SubscriptionProgress.FromString(raw))

    def ack_set(self, cluster: str, at: Position) -> int:
        """The ack set of a batch; 0 if it is acknowledged."""
        left = ALL
        for origin in (each for part in self.parts for each in part.origins):
            if origin.cluster != cluster:
                continue
            if at <= (origin.up_to.ledger_id, origin.up_to.entry_id) and origin.HasField("up_to"):
                return 0
            for each in origin.acked:
                if each.ledger == at[0] and each.first_entry <= at[1] <= each.last_entry:
                    return 0
            for batch in origin.partial:
                if (batch.ledger, batch.entry) == at:
                    left &= batch.remaining[0]
        return left

    def delivered(self, cluster: str, at: Position) -> int:
        """Its number of failed deliveries."""
        return max(
            (
                each.times
                for part in self.parts
                for origin in part.origins
                for each in origin.delivered
                if origin.cluster == cluster
                and each.entries.ledger == at[0]
                and each.entries.first_entry <= at[1] <= each.entries.last_entry
            ),
            default=0,
        )


class World:
    """A partition with entries of three clusters, and a subscription of it."""

    def __init__(self, site: Site, seed: int) -> None:
        self.site = site
        self.random = random.Random(seed)
        self.log: list[tuple[str, Position]] = []
        self.left: list[int] = []
        self.hidden: set[int] = set()
        self.never: list[tuple[str, Position]] = []  # what its cluster keeps for itself
        self.newest = {"west": Position(7 << 24, -1), "north": Position(9 << 24, -1)}
        self.sent = 0
        self.transactions = 0
        self.told = Told()

    async def start(self) -> None:
        args = {"name": "s", "position": "earliest", "properties": REPLICATED}
        await self.site.call("create_subscription", **args)

    async def publish(self, cluster: str) -> int:
        """Store a batch of a cluster; returns the offset."""
        self.sent += 1
        partition = await self.site.partition()
        metadata = pb.MessageMetadata(
            producer_name="p", sequence_id=self.sent, publish_time=1, num_messages_in_batch=BATCH
        )
        entry, replicated = build_entry(metadata, b"x"), None
        if cluster != "east":
            ledger_id, entry_id = self.newest[cluster]
            step = self.random.choice((1, 1, 1, 3))
            at = Position(ledger_id, entry_id + step)
            if self.random.random() < 0.1:
                at = Position(ledger_id + 1, 0)
            passed = range(1, step) if at.ledger_id == ledger_id else ()
            self.never += [(cluster, Position(ledger_id, entry_id + each)) for each in passed]
            self.newest[cluster] = at
            entry, replicated = stamped(entry, cluster, at), Replicated(cluster, at)
        command = Publish("p", self.sent, 0, BATCH, entry, True, replicated=replicated)
        reply = await partition.publishing.append(command)
        assert isinstance(reply, Published)
        assert reply.offset == len(self.log)
        own = cluster == "east"
        self.log.append((cluster, reply.position if own else self.newest[cluster]))
        self.left.append(ALL)
        return reply.offset

    async def publish_and_fail(self) -> None:
        """In a transaction that is aborted."""
        self.sent += 1
        self.transactions += 1
        partition = await self.site.partition()
        metadata = pb.MessageMetadata(producer_name="q", sequence_id=self.sent, publish_time=1)
        transaction = TransactionId(0, self.transactions)
        command = Publish(
            "q", self.sent, 0, 1, build_entry(metadata, b"x"), True, transaction=transaction
        )
        reply = await partition.publishing.append(command)
        self.log.append(("east", reply.position))
        self.left.append(ALL)
        self.hidden.add(reply.offset)
        await partition.transactions.end_transaction(transaction, None, commit=False, alone=True)

    async def ask(self, request: Request[ReplyT]) -> ReplyT:
        return await (await self.site.partition()).subscriptions.ask_subscription("s", request)

    async def ack(self, first: int, end: int) -> None:
        await self.ask(PassOver(len(self.log), [first, end], []))
        self.left[first:end] = [0] * (end - first)

    async def ack_in_part(self, offset: int) -> None:
        mask = self.random.randrange(ALL)
        await self.ask(PassOver(len(self.log), [], [(offset, mask_to_words(mask))]))
        self.left[offset] &= mask

    async def transact(self, first: int, end: int) -> None:
        """Acknowledge in a transaction, which stays open, or ends."""
        self.transactions += 1
        transaction = [0, self.transactions]
        partition = await self.site.partition()
        channel = await partition.subscriptions.durable_channel("s", 0, {})
        try:
            args = [1, transaction, len(self.log), [first, end], [], False]
            await channel.ask(AckEntriesInTransaction(*args))
        except RemoteError as error:
            assert error.kind == Reason.CONFLICT
            return
        finally:
            partition.subscriptions.drop_if_unused(channel)
        end_it = {
            "coordinator": 0,
            "sequence": self.transactions,
            "subscription": "s",
            "alone": True,
        }
        if self.random.random() < 0.7:
            commit = self.random.random() < 0.6
            await self.site.call("end_transaction", **end_it, commit=commit)
            if commit:
                self.left[first:end] = [0] * (end - first)

    async def seek(self, offset: int) -> None:
        partition = await self.site.partition()
        await partition.cursors.reset_subscription("s", offset, "seek")
        self.told.forget()
        for at in range(len(self.log)):
            self.left[at] = 0 if at < offset else ALL
        await self.note_gone()

    async def trim(self) -> None:
        partition = await self.site.partition()
        partition.runtime.roll_over()
        await self.publish("east")
        await partition.maintenance.once()
        await self.note_gone()

    async def note_gone(self) -> None:
        """Trimmed entries count as acknowledged."""
        partition = await self.site.partition()
        for first, end in partition.runtime.state.table.gone_ranges():
            self.left[first:end] = [0] * (end - first)

    async def crash(self) -> None:
        actor_system, state = self.site.actor_system, (await self.site.partition()).runtime.state
        ref = state.subscriptions["s"].ref
        if self.random.random() < 0.5:
            actor_system.kill(self.site.key)
        else:
            actor_system.kill(self.site.key.of_subscription("s", ref.incarnation))

    async def step(self) -> None:
        roll, end = self.random.randrange(24), len(self.log)
        if roll < 8 or not end:
            await self.publish(self.random.choice(("east", "east", "west", "west", "north")))
            return
        at = self.random.randrange(end)
        stop = min(at + self.random.choice((1, 1, 2, 5, 20)), end)
        if roll < 12:
            await self.ack(at, stop)
        elif roll < 14:
            await self.ack_in_part(at)
        elif roll == 14:
            mark = at // 3
            await self.ask(SkipTo(end, mark))
            self.left[:mark] = [0] * mark
        elif roll == 15:
            await self.publish_and_fail()
        elif roll == 16:
            await self.transact(at, stop)
        elif roll == 17:
            await self.trim()
        elif roll == 18 and self.random.random() < 0.4:
            await self.crash()
        elif roll == 19 and self.random.random() < 0.4:
            await self.seek(at)
        else:
            await self.export(lossy=True)

    async def export(self, *, lossy: bool = False) -> None:
        """Have the other cluster told all there is, or a part."""
        while True:
            args = {"subscription": "s", "cluster": self.told.name, "since": self.told.token}
            found = await self.site.call("export_progress", **args)
            for part in found["parts"]:
                self.told.add(part)  # it may come, and the answer get lost
            if lossy and self.random.random() < 0.3:
                break
            self.told.token = found["token"]
            if not found["more"]:
                break
        came = (await self.site.partition()).runtime.state.origins.by_cluster
        self.check(came, all_of_it=not lossy)

    def check(self, came: Mapping[str, origins.Origin], *, all_of_it: bool) -> None:
        for cluster, at in self.never:
            assert self.told.ack_set(cluster, at) == ALL, (cluster, at)
        for offset, (cluster, at) in enumerate(self.log):
            told = self.told.ack_set(cluster, at)
            if offset in self.hidden:
                continue
            assert told & self.left[offset] == self.left[offset], (offset, cluster, at)
            forgotten = cluster in came and came[cluster].offset_of(at) is None
            if all_of_it and not forgotten:  # its place is unknown
                assert told == self.left[offset], (offset, cluster, at)


def run(scenario: Callable[[Site], Awaitable[None]], roll_records: int = 12) -> None:
    async def main() -> None:
        site = Site("east", 1, maintenance_s=36_000.0)
        site.actor_system.journal_settings = JournalSettings(roll_records=roll_records)
        await site.start()
        try:
            await scenario(site)
        finally:
            await site.actor_system.stop()
        assert not site.actor_system.failures

    asyncio.run(main())


@pytest.mark.parametrize("seed", range(20))
def test_the_union_of_exports_is_the_acknowledged_part(seed: int) -> None:
    async def scenario(site: Site) -> None:
        world = World(site, seed)
        await world.start()
        for _ in range(120):
            await world.step()
        await world.export()

    run(scenario)


async def acked_ranges(world: World, count: int) -> None:
    """Acknowledge every other entry."""
    end = len(world.log)
    flat = [at for offset in range(1, 2 * count, 2) for at in (offset, offset + 1)]
    await world.ask(PassOver(end, flat, []))
    for offset in range(1, 2 * count, 2):
        world.left[offset] = 0


async def once(site: Site, told: Told) -> Any:
    args = {"subscription": "s", "cluster": told.name, "since": told.token}
    found = await site.call("export_progress", **args)
    told.token = found["token"]
    for part in found["parts"]:
        told.add(part)
    return found


async def revision(site: Site, *, everyone: bool = False) -> Any:
    return await site.call("replicated_subscriptions", all=everyone)


async def consumer(site: Site, name: str = "s", **fields: Any) -> Any:
    """A client that consumes, and the messages that it gets."""
    client = await site.client()
    subscribe = pb.CommandSubscribe(
        topic=str(TOPIC), subscription=name, subType=pb.CommandSubscribe.Shared, **fields
    )
    subscribe.consumer_id = subscribe.request_id = 1
    client.say(subscribe)
    await client.answer(pb.CommandSuccess)
    client.say(pb.CommandFlow(consumer_id=1, messagePermits=1000))
    return client


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(30):
        while not await condition():
            await asyncio.sleep(0.01)


def test_parts_are_small_for_any_number_of_acked_ranges(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(progress_exports, "WINDOW", 1 << 10)
    monkeypatch.setattr(progress_export, "PART_BYTES", 4 << 10)
    monkeypatch.setattr(progress_export, "PARTS", 8)

    async def scenario(site: Site) -> None:
        world = World(site, 0)
        await world.start()
        for _ in range(6000):
            await world.publish("east")
        await acked_ranges(world, 3000)
        calls, more = 0, True
        while more:
            found = await once(site, world.told)
            assert len(found["parts"]) <= 8 + 6
            more, calls = found["more"], calls + 1
        assert calls > 1
        world.check({}, all_of_it=True)
        assert (await once(site, world.told))["parts"] == []

    run(scenario, roll_records=100_000)


def test_asking_for_new_progress_activates_no_subscription() -> None:
    async def scenario(site: Site) -> None:
        world = World(site, 0)
        await world.start()
        for name in ("plain", "pulsar.repl.west"):
            partition = await site.partition()
            await partition.subscriptions.create_subscription(name, 0, {})
        await world.publish("east")
        first = await revision(site)
        assert set(first) == {"s"}
        assert set(await revision(site, everyone=True)) == {"s", "plain"}
        awake = [key for key in site.actor_system.actors if key.subscription]
        assert awake == []
        await world.ack(0, 1)
        changed = await revision(site)
        assert changed != first
        site.actor_system.kill(site.key)
        assert (await revision(site)) not in (first, changed)
        await world.export()
        again = await revision(site)
        await world.ask(GetStats(1))
        await world.export()
        assert await revision(site) == again

    run(scenario)


def test_deleted_subscriptions_leave_no_state() -> None:
    async def scenario(site: Site) -> None:
        world = World(site, 0)
        await world.start()
        partition = await site.partition()
        for number in range(5):
            await partition.subscriptions.create_subscription(f"n{number}", 0, {})
            (await consumer(site, f"n{number}")).leave()
            (await consumer(site, f"r{number}", durable=False)).leave()
            await until(lambda: nobody(site))
            await site.call("delete_subscription", name=f"n{number}")
        await world.publish("east")
        await world.ack(0, 1)
        assert set(partition.geo.changes._counts) == {"s"}

    run(scenario)


async def nobody(site: Site) -> bool:
    """Whether no subscription is connected."""
    return not (await site.partition()).subscriptions.channels


def test_acks_and_failed_deliveries_change_the_revision() -> None:
    async def scenario(site: Site) -> None:
        world = World(site, 0)
        await world.start()
        at = [await world.publish("east") for _ in range(3)]
        client = await consumer(site)
        await world.export()
        before = await revision(site)
        await until(lambda: has(client, 3))
        message = pb.CommandAck(consumer_id=1, ack_type=pb.CommandAck.Individual)
        ledger_id, entry_id = world.log[at[1]][1]
        message.message_id.add(ledgerId=ledger_id, entryId=entry_id)
        client.say(message)
        await until(lambda: differs(site, before))
        world.left[at[1]] = 0
        await world.export()
        before = await revision(site)
        client.leave()
        await until(lambda: differs(site, before))
        await until(lambda: counted(site, world, {0: 1, 1: 0, 2: 1}))

    run(scenario)


async def has(client: Any, messages: int) -> bool:
    return len(client.entries) >= messages


async def differs(site: Site, before: Any) -> bool:
    return bool(await revision(site) != before)


async def counted(site: Site, world: World, wanted: dict[int, int]) -> bool:
    await world.export()
    return {at: world.told.delivered(*world.log[at]) for at in wanted} == wanted


def test_held_entries_are_not_exported_as_failed_deliveries() -> None:
    async def scenario(site: Site) -> None:
        world = World(site, 0)
        await world.start()
        for _ in range(2):
            await world.publish("west")
        client = await consumer(site)
        await until(lambda: has(client, 2))
        ask = pb.CommandRedeliverUnacknowledgedMessages(consumer_id=1)
        position = (await site.partition()).log.position_of(1)
        ask.message_ids.add(ledgerId=position.ledger_id, entryId=position.entry_id)
        client.say(ask)
        await until(lambda: has(client, 3))
        await until(lambda: counted(site, world, {0: 0, 1: 1}))
        client.leave()
        await until(lambda: counted(site, world, {0: 1, 1: 2}))
        site.actor_system.kill(await subscription_key(site))
        world.told.forget()
        world.told.token = None
        assert await counted(site, world, {0: 1, 1: 2})

    run(scenario)


def test_entries_acked_in_an_aborted_transaction_are_failed_deliveries() -> None:
    async def scenario(site: Site) -> None:
        world = World(site, 0)
        await world.start()
        for _ in range(2):
            await world.publish("west")
        client = await consumer(site)
        await until(lambda: has(client, 2))
        await world.export()
        channel = (await site.partition()).subscriptions.channels["s"]
        await channel.ask(AckEntriesInTransaction(1, (0, 1), 2, [1, 2], [], False))
        end = {"coordinator": 0, "sequence": 1, "subscription": "s", "commit": False, "alone": True}
        await site.call("end_transaction", **end)
        await until(lambda: counted(site, world, {0: 0, 1: 1}))

    run(scenario)


async def own_place(site: Site, mark: int) -> Position:
    """Up to where all that east stored first is acknowledged."""
    state = (await site.partition()).runtime.state
    return progress_export.Places(state, "east", None).up_to(mark).get("east", Position(-1, -1))


def test_the_position_up_to_which_own_entries_are_acknowledged_is_exported() -> None:
    async def scenario(site: Site) -> None:
        world = World(site, 0)
        assert await own_place(site, 0) == (-1, -1)
        for cluster in ("west", "east", "east", "north", "west"):
            await world.publish(cluster)
        own = {mark: await own_place(site, mark) for mark in range(6)}
        here = [at for _, at in world.log]
        at = [Position(-1, -1), here[1], here[2]]
        assert own == {0: at[0], 1: at[0], 2: at[1], 3: at[2], 4: at[2], 5: at[2]}
        await world.trim()
        assert (await site.partition()).runtime.state.first_offset == 5
        place = await own_place(site, 5)
        assert here[2] < place < (await site.partition()).log.position_of(5)

    run(scenario)


def test_trimmed_entries_between_others_are_exported() -> None:
    async def scenario(site: Site) -> None:
        world = World(site, 0)
        await world.start()
        for _ in range(3):
            await world.publish("east")
            (await site.partition()).runtime.roll_over()
            await world.publish("east")
        await world.ack(1, 4)
        await world.trim()
        state = (await site.partition()).runtime.state
        assert state.table.gone_ranges() == [(1, 3)]
        assert await own_place(site, 3) == world.log[2][1]
        await world.export()

    run(scenario)


async def subscription_key(site: Site) -> ActorKey:
    ref = (await site.partition()).runtime.state.subscriptions["s"].ref
    return site.key.of_subscription("s", ref.incarnation)


def test_entries_of_a_non_peer_are_exported_by_own_positions() -> None:
    async def scenario(site: Site) -> None:
        world = World(site, 0)
        await world.start()
        for cluster in ("west", "north", "east", "north", "west"):
            await world.publish(cluster)
        await world.ack(0, 2)
        await world.ack(3, 5)
        local = [(await site.partition()).log.position_of(offset) for offset in range(5)]
        args = {"subscription": "s", "cluster": "west", "since": None}
        found = await site.call("export_progress", **args, peers=["north"])
        told = Told()
        for part in found["parts"]:
            told.add(part)
        assert [told.ack_set("east", at) for at in local] == [0, ALL, ALL, ALL, 0]
        assert told.ack_set("north", world.log[1][1]) == 0
        assert told.ack_set("north", world.log[3][1]) == 0
        assert told.ack_set("west", world.log[0][1]) == ALL
        args["since"] = found["token"]
        assert (await site.call("export_progress", **args, peers=["north"]))["parts"] == []
        found = await site.call("export_progress", **args)  # it is reported again, by others
        for part in found["parts"]:
            told.add(part)
        assert told.ack_set("west", world.log[0][1]) == 0

    run(scenario)


def test_a_new_subscription_is_exported_and_an_unknown_one_refused() -> None:
    async def scenario(site: Site) -> None:
        world = World(site, 0)
        await world.start()
        assert (await once(site, world.told))["parts"]
        assert world.told.parts[0].subscription == "s"
        assert dict(world.told.parts[0].properties) == REPLICATED
        assert (await once(site, world.told))["parts"] == []
        with pytest.raises(RemoteError) as refused:
            await site.call("export_progress", subscription="x", cluster="west", since=None)
        assert refused.value.kind == Reason.NOT_FOUND

    run(scenario)
