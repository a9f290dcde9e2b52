"""Copies of entries for dead-letter topics."""

from __future__ import annotations

import pytest

from velaray.events.ids import MessageId
from velaray.wire.compression import Compression, compress, decompress
from velaray.wire.dead_letters import ORIGIN_MESSAGE_ID, ORIGIN_MESSAGE_ID_OLD, Courier
from velaray.wire.messages import build_batch, build_entry, iterate_batch, split_entry
from velaray.wire.pulsar_pb2 import MessageMetadata, SingleMessageMetadata


def test_copies_keep_the_message_and_name_its_origin() -> None:
    courier = Courier("courier", "persistent://public/default/t", "s")
    at = MessageId(5, 7, 2)
    original = MessageMetadata(producer_name="p", sequence_id=3, publish_time=1)
    original.deliver_at_time = 99
    original.properties.add(key=ORIGIN_MESSAGE_ID, value="1:2:3")
    entry, messages = courier.copy(build_entry(original, b"payload"), at, 11, None, 50)
    metadata, payload = split_entry(entry)
    assert (bytes(payload), messages) == (b"payload", 1)
    assert (metadata.producer_name, metadata.sequence_id) == ("courier", 11)
    assert metadata.publish_time == 50 and not metadata.HasField("deliver_at_time")
    properties = {pair.key: pair.value for pair in metadata.properties}
    assert properties[ORIGIN_MESSAGE_ID] == "1:2:3"  # it came from a retry topic
    assert properties[ORIGIN_MESSAGE_ID_OLD] == "5:7:2"


@pytest.mark.parametrize("kind", list(Compression))
def test_only_messages_of_a_batch_in_the_mask_are_copied(kind: Compression) -> None:
    courier = Courier("courier", "persistent://public/default/t", "s")
    singles = [SingleMessageMetadata(payload_size=0, partition_key=f"k{at}") for at in range(3)]
    plain = build_batch([(single, b"%d" % at) for at, single in enumerate(singles)])
    original = MessageMetadata(producer_name="p", sequence_id=3, publish_time=1)
    original.num_messages_in_batch, original.compression = 3, int(kind)  # type: ignore[assignment]
    original.uncompressed_size = len(plain)
    batch = build_entry(original, compress(kind, plain))
    entry, messages = courier.copy(batch, MessageId(5, 7), 11, 0b101, 50)
    metadata, payload = split_entry(entry)
    assert messages == metadata.num_messages_in_batch == 2
    unpacked = decompress(metadata.compression, payload, metadata.uncompressed_size)
    found = list(iterate_batch(unpacked, 2))
    assert [(single.partition_key, value) for single, value in found] == [
        ("k0", b"0"),
        ("k2", b"2"),
    ]
    origins = [{pair.key: pair.value for pair in single.properties} for single, _ in found]
    assert [each[ORIGIN_MESSAGE_ID] for each in origins] == ["5:7:-1:0", "5:7:-1:2"]
