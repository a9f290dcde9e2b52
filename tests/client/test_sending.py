"""Batches, routing and outgoing messages, without any I/O."""

from datetime import timedelta

import pytest

from velaray.client.batcher import EntryBuilder
from velaray.client.blocks import Block
from velaray.client.entries import EntryReader
from velaray.client.enums import BatchingType, CompressionType, PartitionsRoutingMode
from velaray.client.exceptions import InvalidMessage, MessageTooBig
from velaray.client.message import OutgoingMessage
from velaray.client.message_id import MessageId
from velaray.client.options import ProducerOptions
from velaray.client.routing import Router
from velaray.wire.commands import Message as Delivery
from velaray.wire.messages import split_entry


def builder(max_size=5 << 20, **options):
    return EntryBuilder(ProducerOptions("t", **options), "me", max_size)


def ignore(error, message_id):
    pass


def read_back(entries):
    reader = EntryReader("t", -1, 10)
    messages = []
    for number, entry in enumerate(entries):
        opened = reader.read(Delivery(0, 1, number), entry.data)
        if opened is not None:
            block = Block(None, opened.info, opened.layout, opened.indexes)
            messages += block.messages(0, len(block))
    return messages


def described(message):
    return (
        message.data(),
        message.partition_key(),
        message.ordering_key(),
        message.properties(),
        message.event_timestamp(),
        message.has_null_value(),
        message.producer_name(),
    )


FULL = OutgoingMessage(b"v", {"a": "1", "b": ""}, "key", "order", event_timestamp=123)
EXPECTED = (b"v", "key", "order", {"a": "1", "b": ""}, 123, False, "me")


@pytest.mark.parametrize("compression", list(CompressionType))
@pytest.mark.parametrize("batching", [True, False])
def test_all_fields_of_a_message_survive(compression, batching):
    build = builder(batching_enabled=batching, compression_type=compression)
    entries = build.add(FULL, 0, ignore) + build.add(OutgoingMessage(None), 1, ignore)
    messages = read_back(entries + build.flush())
    assert described(messages[0]) == EXPECTED
    assert messages[1].data() == b"" and messages[1].has_null_value()
    assert len({m.message_id().entry_id() for m in messages}) == (1 if batching else 2)


def test_a_batch_ends_by_count():
    build = builder(batching_enabled=True, batching_max_messages=3)
    made = [build.add(OutgoingMessage(b"x"), n, ignore) for n in range(7)]
    assert [[entry.messages for entry in entries] for entries in made] == [
        [], [], [3], [], [], [3], [],
    ]  # fmt: skip
    assert (build.count, build.open) == (1, True)
    (last,) = build.flush()
    assert (last.first_sequence_id, last.last_sequence_id, last.messages) == (6, 6, 1)
    assert not build.open


def test_a_batch_ends_by_size_and_never_exceeds_it():
    build = builder(batching_enabled=True, batching_max_allowed_size_in_bytes=1000)
    entries = []
    for number in range(20):
        entries += build.add(OutgoingMessage(b"x" * 300), number, ignore)
    entries += build.flush()
    assert [entry.messages for entry in entries] == [3] * 6 + [2]
    assert all(len(split_entry(entry.data)[1]) <= 1000 for entry in entries)


def test_highest_sequence_id_and_keys_are_in_the_batch_metadata():
    build = builder(batching_enabled=True)
    build.add(OutgoingMessage(b"1", partition_key="k"), 4, ignore)
    build.add(OutgoingMessage(b"2", sequence_id=9), 9, ignore)
    (entry,) = build.flush()
    metadata, _ = split_entry(entry.data)
    assert (metadata.sequence_id, metadata.highest_sequence_id) == (4, 9)
    assert (metadata.num_messages_in_batch, metadata.partition_key) == (2, "k")


def test_key_based_batches_hold_one_key_each_in_order():
    build = builder(batching_enabled=True, batching_type=BatchingType.KeyBased)
    for number, key in enumerate("abcabc"):
        build.add(OutgoingMessage(f"{key}{number}".encode(), partition_key=key), number, ignore)
    messages = read_back(build.flush())
    assert [m.data() for m in messages] == [b"a0", b"a3", b"b1", b"b4", b"c2", b"c5"]


def test_a_delayed_message_is_sent_alone_and_in_order():
    build = builder(batching_enabled=True)
    build.add(OutgoingMessage(b"1"), 0, ignore)
    late = OutgoingMessage(b"2", deliver_after=timedelta(seconds=5))
    first, second = build.add(late, 1, ignore)
    assert split_entry(second.data)[0].deliver_at_time == late.deliver_at
    assert [m.data() for m in read_back([first, second])] == [b"1", b"2"]


@pytest.mark.parametrize("compression", [CompressionType.NONE, CompressionType.ZSTD])
def test_a_large_message_becomes_chunks(compression):
    payload = bytes(n * n % 251 for n in range(100_000))
    build = builder(20_000, chunking_enabled=True, compression_type=compression)
    waiting = []
    entries = build.add(OutgoingMessage(payload, {"a": "b"}), 3, waiting.append)
    assert all(len(entry.data) <= 20_000 for entry in entries)
    assert {entry.first_sequence_id for entry in entries} == {3}
    assert [len(entry.waiting) for entry in entries] == [0] * (len(entries) - 1) + [1]
    (message,) = read_back(entries)
    assert message.data() == payload and message.properties() == {"a": "b"}
    if len(entries) > 1:
        assert message.message_id().first_chunk.entry_id == 0


@pytest.mark.parametrize("batching", [True, False])
def test_a_message_that_is_too_big_does_not_affect_the_batch(batching):
    build = builder(10_000, batching_enabled=batching)
    build.add(OutgoingMessage(b"first"), 0, ignore)
    with pytest.raises(MessageTooBig, match="chunking_enabled"):
        build.add(OutgoingMessage(b"x" * 20_000), 1, ignore)
    if batching:
        assert [m.data() for m in read_back(build.flush())] == [b"first"]


@pytest.mark.parametrize(
    "arguments",
    [
        {"content": "text"},
        {"content": b"", "properties": {"a": 1}},
        {"content": b"", "partition_key": b"bytes"},
        {"content": b"", "sequence_id": -1},
        {"content": b"", "event_timestamp": 1.5},
    ],
)
def test_wrong_arguments_are_named(arguments):
    with pytest.raises(InvalidMessage):
        OutgoingMessage(**arguments)


def routes(count, batch_open=lambda partition: False, **options):
    router = Router(ProducerOptions("t", **options), 4)
    return [
        router.choose(OutgoingMessage(b"", partition_key=None), 4, batch_open) for _ in range(count)
    ]


def test_round_robin_takes_every_partition_in_turn():
    chosen = routes(8)
    assert sorted(chosen[:4]) == [0, 1, 2, 3] and chosen[:4] == chosen[4:]


def test_round_robin_stays_while_a_batch_is_open():
    assert len(set(routes(10, batch_open=lambda partition: True))) == 1


def test_single_partition_mode_uses_one_partition():
    mode = PartitionsRoutingMode.UseSinglePartition
    assert len(set(routes(10, message_routing_mode=mode))) == 1


def test_a_key_has_one_partition_in_every_mode():
    for mode in (
        PartitionsRoutingMode.UseSinglePartition,
        PartitionsRoutingMode.RoundRobinDistribution,
    ):
        router = Router(ProducerOptions("t", message_routing_mode=mode), 4)
        message = OutgoingMessage(b"", partition_key="N14228")
        assert len({router.choose(message, 4, lambda _: False) for _ in range(10)}) == 1


def test_a_custom_router_decides_and_is_checked():
    router = Router(ProducerOptions("t", message_router=lambda m, n: int(m.properties()["p"])), 4)
    assert router.choose(OutgoingMessage(b"", {"p": "3"}), 4, lambda _: False) == 3
    with pytest.raises(InvalidMessage, match="returned 4"):
        router.choose(OutgoingMessage(b"", {"p": "4"}), 4, lambda _: False)


def test_a_start_position_skips_earlier_messages():
    build = builder(batching_enabled=True)
    for number in range(5):
        build.add(OutgoingMessage(str(number).encode()), number, ignore)
    (entry,) = build.flush()
    for inclusive, first in ((False, 3), (True, 2)):
        reader = EntryReader("t", -1, 10)
        reader.skip_until(MessageId(-1, 1, 7, 2, batch_size=5), inclusive)
        opened = reader.read(Delivery(0, 1, 7), entry.data)
        assert list(opened.indexes) == list(range(first, 5))
        assert len(opened.skipped) == first
        assert reader.read(Delivery(0, 1, 8), entry.data).skipped == []


def test_an_unreadable_entry_is_logged_and_not_delivered(caplog):
    build = builder(batching_enabled=True, compression_type=CompressionType.ZSTD)
    build.add(OutgoingMessage(b"x" * 100), 0, ignore)
    (entry,) = build.flush()
    assert EntryReader("t", -1, 10).read(Delivery(0, 1, 7), entry.data[:-3]) is None
    assert "1:7" in caplog.text
