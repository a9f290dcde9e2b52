"""What a replicator takes from the receipts of the other cluster."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from velaray.events.ids import MessageId, TopicName
from velaray.geo.replication.replicator_target import PRODUCER_ID, Target
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.replication import Marker

DUPLICATE = MessageId(-1, -1)


class Connection:
    """Takes everything, and leads to itself."""

    closed = False

    def __init__(self) -> None:
        self.producers: dict[int, Any] = {}
        self.sent: list[bytes] = []

    async def connect(self) -> Connection:
        return self

    async def request(self, command: Any, timeout: float) -> pb.CommandProducerSuccess:
        return pb.CommandProducerSuccess(request_id=1, producer_name="p", last_sequence_id=-1)

    def send_entry(self, header: bytes, entry: bytes) -> None:
        self.sent.append(header + entry)

    def answer(self, sequence_id: int, at: MessageId) -> None:
        receipt = pb.CommandSendReceipt(producer_id=PRODUCER_ID, sequence_id=sequence_id)
        receipt.message_id.CopyFrom(at.to_proto())
        self.producers[PRODUCER_ID].on_receipt(receipt)


class World:
    def __init__(self) -> None:
        self.connection = Connection()
        self.confirmed: list[tuple[int, bool]] = []
        topic = TopicName.parse("persistent://public/default/t")
        way: Any = self.connection
        self.target = Target(way, topic, "a", "b", 1, self.confirm, lambda error: None)

    def confirm(self, *what: Any) -> None:
        self.confirmed.append(what)

    def send(self, count: int) -> None:
        for _ in range(count):
            self.target.send(b"entry", 1, is_chunk=False)


@pytest.fixture
def world() -> World:
    world = World()
    asyncio.run(world.target.open())
    return world


def test_a_receipt_confirms_all_entries_up_to_its_own(world: World) -> None:
    world.send(5)
    world.connection.answer(0, MessageId(1, 0))
    world.connection.answer(2, DUPLICATE)
    world.connection.answer(4, MessageId(1, 1))
    assert world.confirmed == [(1, False), (2, True), (2, False)]


def test_nothing_is_confirmed_twice(world: World) -> None:
    world.send(3)
    for sequence_id in (1, 1, 0, 7):
        world.connection.answer(sequence_id, MessageId(1, 0))
    assert world.confirmed == [(2, False)]


def test_a_confirmed_marker_does_not_confirm_earlier_entries() -> None:
    async def scenario(world: World) -> None:
        await world.target.open()
        world.send(2)
        sent = [
            asyncio.ensure_future(world.target.send_marker(Marker.UPDATE, b"", 1)) for _ in range(2)
        ]
        await asyncio.sleep(0)
        world.send(1)
        world.connection.answer(2, DUPLICATE)
        await sent[0]
        sent[1].cancel()
        await asyncio.wait(sent)
        world.connection.answer(3, DUPLICATE)
        assert world.confirmed == []
        world.connection.answer(4, MessageId(1, 2))
        assert world.confirmed == [(3, False)]

    asyncio.run(scenario(World()))
