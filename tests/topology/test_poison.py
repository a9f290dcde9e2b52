"""Impossible numbers are refused by name, without effect on other clients."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.topology.test_partition_session import TOPIC, Client, Setting, run
from velaray.broker.partition.partition_actor import PartitionActor
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.commands import Send
from velaray.wire.frames import seal_entry
from velaray.wire.messages import build_batch, build_entry
from velaray.wire.pulsar_pb2 import MessageMetadata, SingleMessageMetadata

TEN = build_batch([(SingleMessageMetadata(), b"")] * 10)


def metadata(**fields: Any) -> MessageMetadata:
    return MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, **fields)


ONE = build_entry(metadata(), b"x")
BATCH = build_entry(metadata(num_messages_in_batch=10), TEN)
UNREADABLE = [seal_entry(b"\0\0\0\x02\xff\xffpayload"), seal_entry(b"\0\0\0\0payload")]


class Neighbour(Client):
    """A client with a consumer of each kind, which keeps the entries that it's sent."""

    def __init__(self, partition: PartitionActor) -> None:
        super().__init__(partition)
        self.written: list[bytes] = []
        self.bytes_written = 0

    def write(self, frame: bytes) -> None:
        self.written.append(frame)

    def write_two(self, head: bytes, rest: bytes) -> None:
        self.written.append(bytes(rest))
        self.bytes_written += len(head) + len(rest)

    async def subscribe(self, number: int, kind: Any, **fields: Any) -> None:
        self.say(
            pb.CommandSubscribe(
                topic=str(TOPIC),
                subscription=f"s{number}",
                subType=kind,
                consumer_id=number,
                request_id=number,
                initialPosition=pb.CommandSubscribe.Earliest,
                **fields,
            )
        )
        await self.answer(pb.CommandSuccess)
        self.say(pb.CommandFlow(consumer_id=number, messagePermits=100))

    async def produce(self, name: str) -> None:
        self.say(
            pb.CommandProducer(topic=str(TOPIC), producer_id=1, request_id=9, producer_name=name)
        )
        await self.answer(pb.CommandProducerSuccess)

    def publish(self, entry: bytes, **fields: Any) -> None:
        send = Send(**({"producer_id": 1, "sequence_id": 0} | fields))
        self.session.on_frame(self, send, entry)  # type: ignore[arg-type]

    async def until_it_has(self, entry: bytes, times: int) -> None:
        async with asyncio.timeout(10):
            while self.written.count(entry) < times:
                await asyncio.sleep(0.001)


async def everybody_is_served(setting: Setting) -> None:
    """Other consumers of the topic get what another producer sends, and it gets its receipt."""
    other, entry = Neighbour(setting.partition), build_entry(metadata(), b"of another one")
    await other.subscribe(1, pb.CommandSubscribe.Shared)
    await other.subscribe(2, pb.CommandSubscribe.Key_Shared)
    await other.produce("another")
    other.publish(entry)
    await other.until_it_has(entry, times=2)


BAD: list[tuple[str, dict[str, Any], bytes]] = [
    ("sequence_id 18446744073709551615 is above", {"sequence_id": (1 << 64) - 1}, ONE),
    ("sequence_id 9223372036854775808 is above", {"sequence_id": 1 << 63}, ONE),
    ("highest_sequence_id 9223372036854775808", {"highest_sequence_id": 1 << 63}, ONE),
    ("num_messages is 0", {"num_messages": 0}, ONE),
    (
        "num_messages is 2147483647: an entry holds 1048576 messages at most",
        {"num_messages": (1 << 31) - 1},
        ONE,
    ),
    ("num_messages_in_batch of the entry is 10", {"num_messages": 9}, BATCH),
    (
        "1 bytes can't hold so many messages",
        {"num_messages": 1 << 20},
        build_entry(metadata(num_messages_in_batch=1 << 20), b"x"),
    ),
    (
        "uncompressed_size 4294967295 of a payload of 1 bytes",
        {"num_messages": 1000},
        build_entry(
            metadata(
                num_messages_in_batch=1000, compression=pb.LZ4, uncompressed_size=(1 << 32) - 1
            ),
            b"x",
        ),
    ),
    (
        "50 bytes can't hold so many messages",
        {"num_messages": 10},
        build_entry(
            metadata(num_messages_in_batch=10, compression=pb.LZ4, uncompressed_size=50), b"x" * 60
        ),
    ),
    ("the metadata of the entry can't be decoded", {"is_chunk": True}, UNREADABLE[0]),
    ("the metadata lacks", {"is_chunk": True}, UNREADABLE[1]),
]


@pytest.mark.parametrize(("text", "fields", "entry"), BAD, ids=[each[0] for each in BAD])
def test_an_inconsistent_send_is_refused_by_name(
    text: str, fields: dict[str, Any], entry: bytes
) -> None:
    async def scenario(setting: Setting) -> None:
        client = Neighbour(setting.partition)
        await client.produce("p")
        client.publish(entry, **fields)
        refused = await client.answer(pb.CommandSendError)
        assert refused.error == pb.NotAllowedError
        assert refused.sequence_id == fields.get("sequence_id", 0)
        assert text in refused.message
        assert "producer 'p'" in refused.message
        assert setting.partition.log.end_offset == 0
        client.publish(ONE, sequence_id=1)  # the name is as good as before
        async with asyncio.timeout(10):
            while setting.partition.log.end_offset == 0:
                await asyncio.sleep(0.001)
        await everybody_is_served(setting)

    run(scenario)


@pytest.mark.parametrize(
    ("fields", "entry"),
    [
        ({"num_messages": 10}, BATCH),
        (
            {"num_messages": 10, "sequence_id": (1 << 63) - 1},
            build_entry(
                metadata(num_messages_in_batch=10, compression=pb.ZSTD, uncompressed_size=60),
                b"compressed",
            ),
        ),
    ],
)
def test_a_consistent_batch_is_stored(fields: dict[str, Any], entry: bytes) -> None:
    async def scenario(setting: Setting) -> None:
        client = Neighbour(setting.partition)
        await client.subscribe(1, pb.CommandSubscribe.Exclusive)
        await client.produce("p")
        client.publish(entry, **fields)
        await client.until_it_has(entry, times=1)
        assert (await setting.partition.log.entry(0)).messages == 10

    run(scenario)


@pytest.mark.parametrize("entry", UNREADABLE)
def test_unreadable_metadata_does_not_block_other_entries(entry: bytes) -> None:
    async def scenario(setting: Setting) -> None:
        client = Neighbour(setting.partition)
        await client.produce("p")
        client.publish(entry)
        await client.subscribe(3, pb.CommandSubscribe.Exclusive)
        await client.until_it_has(entry, times=1)
        client.say(pb.CommandGetLastMessageId(consumer_id=3, request_id=30))
        last = await client.answer(pb.CommandGetLastMessageIdResponse)
        assert last.last_message_id.entryId == 0
        client.say(pb.CommandSeek(consumer_id=3, request_id=31, message_publish_time=1))
        assert (await client.answer(pb.CommandSuccess)).request_id == 31
        await everybody_is_served(setting)

    run(scenario)


def test_an_ack_set_of_more_words_than_the_batch_has_is_refused() -> None:
    async def scenario(setting: Setting) -> None:
        client = Neighbour(setting.partition)
        await client.subscribe(3, pb.CommandSubscribe.Exclusive)
        await client.produce("p")
        client.publish(BATCH, num_messages=10)
        await client.until_it_has(BATCH, times=1)
        ledger_id = setting.partition.log.position_of(0).ledger_id
        for kind in (pb.CommandAck.Individual, pb.CommandAck.Cumulative):
            ack = pb.CommandAck(consumer_id=3, ack_type=kind, request_id=40)
            ack.message_id.add(ledgerId=ledger_id, entryId=0, ack_set=[1] * 2)
            client.say(ack)
            refused = await client.answer(pb.CommandAckResponse)
            assert refused.error == pb.NotAllowedError
            assert "an ack_set of 2 words" in refused.message
            del ack.message_id[0].ack_set[1:]
            client.say(ack)
            assert not (await client.answer(pb.CommandAckResponse)).HasField("error")

    run(scenario)
