"""Clients that were moved here, and name messages by the ids that they had elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pulsar
import pytest

from tests.topology.geo import TOPIC, Client, Replicator, Site, run
from tests.topology.replicating import PATIENCE_MS, clusters, replicating
from velaray.broker.partition import remote_ids
from velaray.broker.subscription.messages import GetDetails, GetUnacked
from velaray.events.ids import EARLIEST, LATEST, Position, TransactionId
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.pulsar_pb2 import CommandAck, CommandSubscribe

EXCLUSIVE, SHARED = CommandSubscribe.Exclusive, CommandSubscribe.Shared


class World:
    """West's log: east's 0, own 0, east's 1 and 2, own 1, east's 3; a subscription of it."""

    def __init__(self, east: Site, west: Site) -> None:
        self.east, self.west = east, west
        self.ids: list[Position] = []
        """Of east's entries, at east."""
        self.requests = 0

    async def start(self, messages: int = 1) -> World:
        await self.west.call("create_subscription", name="s", position="earliest")
        replicator = await Replicator(self.east, self.west).connect()
        for number, own in enumerate((True, False, True, False)):
            self.ids.append(await self.east.publish(number, messages))
            await replicator.replicate(number, number + 1)
            if own:
                await self.west.publish(number)
        return self

    async def subscribe(self, kind: Any = SHARED, entries: int = 6) -> Client:
        """A client of west, which has got everything."""
        client = await self.west.client()
        client.say(
            CommandSubscribe(
                topic=str(TOPIC), subscription="s", subType=kind, consumer_id=1, request_id=1
            )
        )
        await client.answer(pb.CommandSuccess)
        client.say(pb.CommandFlow(consumer_id=1, messagePermits=100))
        await until(lambda: len(client.entries) == entries)
        return client

    async def ack(
        self,
        client: Client,
        *ids: Position,
        up_to: bool = False,
        transaction: Mapping[str, int | bool] | None = None,
        **more: Any,
    ) -> Any:
        """The answer, as a receipt is asked for."""
        self.requests += 1
        command = CommandAck(
            consumer_id=1,
            request_id=self.requests,
            ack_type=CommandAck.Cumulative if up_to else CommandAck.Individual,
            **(transaction or {}),
        )
        for ledger_id, entry_id in ids:
            command.message_id.add(ledgerId=ledger_id, entryId=entry_id, **more)
        client.say(command)
        answer = await client.answer(pb.CommandAckResponse)
        assert answer.request_id == self.requests
        return answer

    async def unacked(self) -> list[int]:
        partition = await self.west.partition()
        flat = await partition.subscriptions.ask_subscription(
            "s", GetUnacked(0, 100, partition.log.end_offset)
        )
        ranges = zip(flat[::2], flat[1::2], strict=True)
        return [offset for first, end in ranges for offset in range(first, end)]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.001)


def moved(scenario: Callable[[World], Awaitable[None]], messages: int = 1) -> None:
    async def main(east: Site, west: Site) -> None:
        await scenario(await World(east, west).start(messages))

    run(main)


def unknown(world: World) -> Position:
    """Where east has nothing that ever came."""
    return Position(world.ids[3].ledger_id, 1000)


def test_remote_ids_acknowledge_the_right_messages() -> None:
    async def scenario(world: World) -> None:
        assert await world.unacked() == [0, 1, 2, 3, 4, 5]
        client = await world.subscribe()
        await world.ack(client, world.ids[1], world.ids[3], unknown(world))
        assert await world.unacked() == [0, 1, 3, 4]

    moved(scenario)


def test_a_cumulative_ack_covers_messages_that_the_source_cluster_stored() -> None:
    async def scenario(world: World) -> None:
        client = await world.subscribe(EXCLUSIVE)
        await world.ack(client, world.ids[1], up_to=True)
        assert await world.unacked() == [1, 3, 4, 5]  # own 0 was perhaps never seen at east
        await world.ack(client, Position(world.ids[0].ledger_id, world.ids[2].entry_id), up_to=True)
        assert await world.unacked() == [1, 4, 5]
        await world.ack(client, unknown(world), up_to=True)
        assert await world.unacked() == [1, 4]

    moved(scenario)


def test_a_partial_ack_of_an_unknown_batch_does_not_apply_to_another() -> None:
    async def scenario(world: World) -> None:
        client = await world.subscribe(EXCLUSIVE)
        await world.ack(client, unknown(world), up_to=True, ack_set=[0b10])
        assert await world.unacked() == [1, 4]

    moved(scenario, messages=2)


def test_an_ack_of_many_ranges_is_applied_in_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(remote_ids, "MOST_RUNS", 1)

    async def scenario(world: World) -> None:
        client = await world.subscribe(EXCLUSIVE)
        await world.ack(client, world.ids[3], up_to=True, ack_set=[0b10])
        assert await world.unacked() == [1, 4, 5]
        await world.ack(client, world.ids[3], up_to=True)
        assert await world.unacked() == [1, 4]

    moved(scenario, messages=2)


@pytest.mark.parametrize("number", [0, 1, 3, 9])
def test_ids_of_an_unknown_cluster_acknowledge_nothing(number: int) -> None:
    async def scenario(world: World) -> None:
        client = await world.subscribe(EXCLUSIVE)
        at = Position((number << 52) + (1 << 24), 2)
        await world.ack(client, at)
        assert not (await world.ack(client, at, up_to=True)).HasField("error")
        assert await world.unacked() == [0, 1, 2, 3, 4, 5]

    moved(scenario)


def test_parts_of_batches_are_acknowledged() -> None:
    async def scenario(world: World) -> None:
        client = await world.subscribe(EXCLUSIVE)
        await world.ack(client, world.ids[2], ack_set=[0b101])
        await world.ack(client, world.ids[1], up_to=True, ack_set=[0b110])
        partition = await world.west.partition()
        found = (await partition.subscriptions.ask_subscription("s", GetDetails(6)))[
            "first_partial"
        ]
        assert found == [[2, [0b110]], [3, [0b101]]]
        assert await world.unacked() == [1, 2, 3, 4, 5]

    moved(scenario, messages=3)


def test_requested_messages_are_redelivered() -> None:
    async def scenario(world: World) -> None:
        client = await world.subscribe()
        ask = pb.CommandRedeliverUnacknowledgedMessages(consumer_id=1)
        for ledger_id, entry_id in (world.ids[2], unknown(world)):
            ask.message_ids.add(ledgerId=ledger_id, entryId=entry_id)
        client.entries.clear()
        client.say(ask)
        await until(lambda: bool(client.entries))
        partition = await world.west.partition()
        (message, _), *others = client.entries
        assert not others
        assert (message.ledger_id, message.entry_id) == partition.log.position_of(3)

    moved(scenario)


def test_seeks_by_remote_ids_find_their_position() -> None:
    async def scenario(world: World) -> None:
        places = [*world.ids, unknown(world), Position(1 << 52, 0), Position(9 << 52, 0)]
        for position, offset in zip(places, (0, 2, 3, 5, 6, 0, 0), strict=True):
            await world.west.call("seek", name="s", position=list(position))
            assert await world.unacked() == list(range(offset, 6))
            client = await world.subscribe(entries=6 - offset)
            ledger_id, entry_id = position
            seek = pb.CommandSeek(consumer_id=1, request_id=2)
            seek.message_id.ledgerId, seek.message_id.entryId = ledger_id, entry_id
            client.say(seek)
            await client.answer(pb.CommandSuccess)
            assert await world.unacked() == list(range(offset, 6))
            client.leave()
        for position, left in ((EARLIEST, 6), (LATEST, 0)):
            await world.west.call("seek", name="s", position=list(position))
            assert len(await world.unacked()) == left

    moved(scenario)


def test_a_reader_continues_at_its_position() -> None:
    async def scenario(world: World) -> None:
        client = await world.west.client()
        subscribe = CommandSubscribe(
            topic=str(TOPIC), subscription="r", subType=EXCLUSIVE, consumer_id=1, request_id=1
        )
        subscribe.durable = False
        subscribe.start_message_id.ledgerId, subscribe.start_message_id.entryId = world.ids[2]
        client.say(subscribe)
        await client.answer(pb.CommandSuccess)
        client.say(pb.CommandFlow(consumer_id=1, messagePermits=100))
        await until(lambda: len(client.entries) == 3)

    moved(scenario)


class Transaction:
    """One that its coordinator has said to be open, of a subscription here."""

    def __init__(self, world: World, sequence: int) -> None:
        self.world = world
        self.id = TransactionId(0, sequence)

    async def open(self) -> Transaction:
        partition = await self.world.west.partition()
        partition.publishing.admission._open.add((self.id, "s"))
        return self

    async def ack(self, client: Client, *ids: Position, repeated: bool = False, **more: Any) -> Any:
        named = {
            "txnid_most_bits": self.id.coordinator,
            "txnid_least_bits": self.id.sequence,
            "repeated_attempt": repeated,
        }
        return await self.world.ack(client, *ids, transaction=named, **more)

    async def commit(self) -> None:
        end = {"coordinator": 0, "sequence": self.id.sequence, "subscription": "s", "alone": True}
        await self.world.west.call("end_transaction", **end, commit=True)


def test_transactions_acknowledge_the_right_messages() -> None:
    async def scenario(world: World) -> None:
        client = await world.subscribe()
        transaction = await Transaction(world, 1).open()
        assert not (await transaction.ack(client, world.ids[1], world.ids[3])).HasField("error")
        other = await Transaction(world, 2).open()
        for each, unsuited in (
            (transaction, unknown(world)),
            (other, world.ids[1]),
            (transaction, world.ids[1]),
        ):
            answer = await each.ack(client, unsuited)
            assert answer.error == pb.TransactionConflict
        repeated = await transaction.ack(client, world.ids[1], repeated=True)
        assert not repeated.HasField("error")
        assert await world.unacked() == [0, 1, 2, 3, 4, 5]
        await transaction.commit()
        assert await world.unacked() == [0, 1, 3, 4]

    moved(scenario)


def test_a_transaction_acknowledges_up_to_a_message_if_nothing_else_is_before_it() -> None:
    async def scenario(world: World) -> None:
        client = await world.subscribe(EXCLUSIVE)
        transaction = await Transaction(world, 1).open()
        answer = await transaction.ack(client, world.ids[1], up_to=True)
        assert answer.error == pb.NotAllowedError and "one by one" in answer.message
        own = (await world.west.partition()).log.position_of(1)
        await world.ack(client, own)
        answer = await transaction.ack(client, world.ids[2], up_to=True, ack_set=[0b100])
        assert not answer.HasField("error")
        await transaction.commit()
        assert await world.unacked() == [3, 4, 5]
        found = await (await world.west.partition()).subscriptions.ask_subscription(
            "s", GetDetails(6)
        )
        assert found["first_partial"] == [[3, [0b100]]]
        second = await Transaction(world, 2).open()
        answer = await second.ack(client, world.ids[0], up_to=True)
        assert answer.error == pb.TransactionConflict

    moved(scenario, messages=3)


def test_the_official_client_acknowledges_messages_of_the_other_cluster(tmp_path: Path) -> None:
    with clusters(tmp_path, "a", "b") as (a, b):
        topic = "persistent://public/default/moved"
        for each in (a, b):
            each.subscribe(topic, "s").close()
        a.replicate(topic, {"b": b.describe()})
        replicating(a, topic, "b")  # the topic exists, so its replicator begins at its end
        payloads = [b"%d" % number for number in range(6)]
        a.publish(topic, payloads, batching_enabled=False)
        there = a.subscribe(topic, "s")
        got = [there.receive(PATIENCE_MS) for _ in payloads]
        there.close()
        here = b.subscribe(topic, "s")
        again = [here.receive(PATIENCE_MS) for _ in payloads]
        assert [message.data() for message in again] == payloads
        for number in (1, 4):
            here.acknowledge(got[number].message_id())
        here.close()
        rest = b.subscribe(topic, "s")
        left = [rest.receive(PATIENCE_MS).data() for _ in range(4)]
        assert left == [b"0", b"2", b"3", b"5"]
        rest.acknowledge_cumulative(got[3].message_id())
        rest.close()
        last = b.subscribe(topic, "s")
        assert last.receive(PATIENCE_MS).data() == b"5"
        with pytest.raises(pulsar.Timeout):
            last.receive(300)
