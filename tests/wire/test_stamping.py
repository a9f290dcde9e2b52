"""What replicators do with single entries."""

from __future__ import annotations

from typing import Any

import pytest

from velaray.events.ids import Position, TransactionId
from velaray.wire.frames import check_entry, seal_entry
from velaray.wire.messages import build_entry, open_entry
from velaray.wire.pulsar_pb2 import MessageMetadata
from velaray.wire.replication import SOURCE_POSITION, Marker
from velaray.wire.stamping import PassedOver, judge, label, stamp, stamped


def metadata(**fields: Any) -> MessageMetadata:
    return MessageMetadata(
        **{"producer_name": "p", "sequence_id": 7, "publish_time": 1000, **fields}
    )


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"marker_type": Marker.UPDATE, "replicated_from": "c"}, PassedOver.MARKER),
        ({"replicated_from": "c", "replicate_to": ["b"]}, PassedOver.FOREIGN),
        ({"replicate_to": ["c", "d"]}, PassedOver.ELSEWHERE),
        ({"replicate_to": ["__local__"]}, PassedOver.ELSEWHERE),
        ({"publish_time": 999}, PassedOver.EXPIRED),
        ({"replicate_to": ["c", "b"]}, None),
        ({}, None),
    ],
)
def test_destinations_of_an_entry(fields: dict[str, Any], why: PassedOver | None) -> None:
    found = judge(build_entry(metadata(**fields), b"payload"), "b", 1000)
    if why is not None:
        assert found is why
    else:
        assert not isinstance(found, PassedOver)
        assert found[0] == metadata(**fields)


@pytest.mark.parametrize(
    "entry",
    [b"", b"short", seal_entry(b"\0\0\0\x03\xff\xff\xffxyz"), seal_entry(b"\0\0\0\0payload")],
)
def test_unreadable_entries_are_skipped(entry: bytes) -> None:
    assert judge(entry, "b", 0) is PassedOver.UNDECODABLE


def test_without_time_to_live_nothing_is_expired() -> None:
    assert not isinstance(judge(build_entry(metadata(publish_time=0), b""), "b", 0), PassedOver)


def test_the_payload_follows_the_metadata() -> None:
    entry = build_entry(metadata(), b"payload")
    found = judge(entry, "b", 0)
    assert not isinstance(found, PassedOver)
    assert entry[found[1] :] == b"payload"


def test_a_stamp_adds_the_source_and_keeps_other_metadata() -> None:
    before = metadata(
        partition_key="k",
        ordering_key=b"o",
        event_time=5,
        deliver_at_time=9,
        null_value=True,
        uuid="u",
        chunk_id=1,
        num_chunks_from_msg=3,
        schema_version=b"\0" * 8,
        encryption_algo="a",
    )
    before.properties.add(key="x", value="y")
    found = MessageMetadata.FromString(before.SerializeToString())
    stamp(found, "a", Position(3, 4))
    assert found.replicated_from == "a"
    assert [(each.key, each.value) for each in found.properties] == [
        ("x", "y"),
        (SOURCE_POSITION, "3:4"),
    ]
    del found.properties[-1]
    found.ClearField("replicated_from")
    assert found == before


def test_stamping_overwrites_replication_fields_and_ends_transactions() -> None:
    found = metadata(txnid_most_bits=1, txnid_least_bits=2)
    for value in ("9:9", "8:8"):
        found.properties.add(key=SOURCE_POSITION, value=value)
    stamp(found, "a", Position(3, 4))
    assert [each.value for each in found.properties] == ["3:4"]
    assert not found.HasField("txnid_most_bits") and not found.HasField("txnid_least_bits")


CLAIM = {"properties": [{"key": SOURCE_POSITION, "value": "9:9"}, {"key": "x", "value": "y"}]}
TRANSACTION = TransactionId(1 << 16, 2)


@pytest.mark.parametrize("position", [Position(3, 0), Position(1 << 62, (1 << 40) + 7)])
@pytest.mark.parametrize(
    ("fields", "transaction", "version"),
    [
        ({}, None, b""),
        ({"properties": [{"key": "x", "value": "y"}], "num_messages_in_batch": 3}, None, b""),
        ({"schema_version": b"same"}, None, b"same"),
        ({"schema_version": b"before"}, None, b"after"),
        ({"txnid_most_bits": 1, "txnid_least_bits": 2}, None, b""),
        ({"txnid_most_bits": 1}, None, b""),
        ({"txnid_least_bits": 2}, None, b""),
        ({"txnid_most_bits": 1, "txnid_least_bits": 2}, TRANSACTION, b""),
        ({}, TRANSACTION, b""),
        ({"replicated_from": "c"}, None, b""),
        (CLAIM, None, b""),
    ],
)
def test_a_stamped_entry_is_one_with_stamped_metadata(
    fields: dict[str, Any],
    transaction: TransactionId | None,
    version: bytes,
    position: Position,
) -> None:
    before, expected = metadata(**fields), metadata(**fields)
    stamp(expected, "a", position)
    if transaction is not None:
        label(expected, transaction)
    if version:
        expected.schema_version = version
    entry = build_entry(before, b"payload")
    start = len(entry) - len(b"payload")
    found = stamped(entry, before, start, "a", position, transaction, version)
    assert check_entry(memoryview(found), None) == found
    said, start = open_entry(found)
    assert (said, found[start:]) == (expected, b"payload")
