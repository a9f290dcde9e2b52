"""Entries: metadata, payload and batches, there and back."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from velaray.wire.errors import MalformedEntryError
from velaray.wire.frames import check_entry, seal_entry
from velaray.wire.messages import (
    build_batch,
    build_entry,
    is_batch,
    iterate_batch,
    message_count,
    publish_time,
    read_metadata,
    split_entry,
)
from velaray.wire.pulsar_pb2 import MessageMetadata, SingleMessageMetadata


def metadata(**fields) -> MessageMetadata:
    return MessageMetadata(producer_name="p", sequence_id=1, publish_time=1700, **fields)


def test_golden_entry() -> None:
    assert build_entry(metadata(), b"body").hex() == (
        "0e01a2e3399f000000080a0170100118a40d626f6479"
    )


@given(st.binary(max_size=300))
def test_an_entry_splits_into_its_parts(payload: bytes) -> None:
    entry = build_entry(metadata(partition_key="k"), payload)
    found, rest = split_entry(entry)
    assert found == metadata(partition_key="k")
    assert rest == payload
    assert check_entry(memoryview(entry), None) == entry


def test_metadata_that_servers_need_is_read() -> None:
    entry = build_entry(metadata(), b"")
    assert read_metadata(entry) == metadata()
    assert publish_time(memoryview(entry)) == 1700
    assert message_count(entry) == 1
    assert not is_batch(metadata())
    assert is_batch(metadata(num_messages_in_batch=1))
    assert message_count(build_entry(metadata(num_messages_in_batch=7), b"")) == 7


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        (b"", "0 bytes is too short"),
        (b"\x0e\x02" + bytes(20), "begins with 0x0e02"),
        (seal_entry(b"\x00\x00\x00\x05abcd"), "metadata of 5 bytes"),
        (seal_entry(b"\x00\x00\x00\x01\xff"), "can't be decoded"),
        (seal_entry(b"\x00\x00\x00\x00"), "lacks the producer name"),
    ],
)
def test_the_error_of_a_malformed_entry_names_the_reason(entry: bytes, text: str) -> None:
    with pytest.raises(MalformedEntryError, match=text):
        split_entry(entry)


def test_an_empty_batch_is_malformed() -> None:
    with pytest.raises(MalformedEntryError, match="batch of 0 messages"):
        message_count(build_entry(metadata(num_messages_in_batch=0), b""))


@given(st.lists(st.tuples(st.text(max_size=5), st.binary(max_size=50)), max_size=8))
def test_a_batch_iterates_over_its_messages(messages) -> None:
    payload = build_batch(
        (SingleMessageMetadata(partition_key=key), body) for key, body in messages
    )
    found = [
        (one.partition_key, bytes(body)) for one, body in iterate_batch(payload, len(messages))
    ]
    assert found == messages


def test_golden_batch() -> None:
    payload = build_batch([(SingleMessageMetadata(sequence_id=5), b"ab")])
    assert payload.hex() == "00000004180240056162"


BATCH = build_batch([(SingleMessageMetadata(), b"one"), (SingleMessageMetadata(), b"two")])


@pytest.mark.parametrize(
    ("payload", "count", "text"),
    [
        (BATCH, 1, "9 bytes follow a batch of 1"),
        (BATCH, 3, "ends before its message 2"),
        (BATCH[:-1], 2, "message 1 of a batch announces 3 bytes, 2 are left"),
        (b"\0\0\0\x09", 1, "ends in the metadata of its message 0"),
        (b"\0\0\0\1\xff", 1, "message 0 of a batch can't be decoded"),
        (b"\0\0\0\0", 1, "message 0 of a batch has no payload size"),
        (b"\0\0\0\x0b\x18" + b"\xff" * 9 + b"\x01", 1, "announces -1 bytes"),
    ],
)
def test_the_error_of_a_malformed_batch_names_the_reason(
    payload: bytes, count: int, text: str
) -> None:
    with pytest.raises(MalformedEntryError, match=text):
        list(iterate_batch(payload, count))


@given(st.binary(max_size=60), st.integers(0, 4))
def test_garbage_yields_the_given_number_of_messages_or_an_error(
    payload: bytes, count: int
) -> None:
    with suppress(MalformedEntryError):
        assert len(list(iterate_batch(payload, count))) == count
