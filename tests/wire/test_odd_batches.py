"""Batches of any shape are read as protobuf reads them, message by message, or refused."""

from __future__ import annotations

import struct

import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st

from velaray.wire.batches import BatchLayout, pack, plain_head
from velaray.wire.errors import MalformedEntryError
from velaray.wire.messages import build_batch, iterate_batch
from velaray.wire.pulsar_pb2 import SingleMessageMetadata

Found = list[tuple[SingleMessageMetadata, bytes]]


def by_protobuf(payload: bytes, count: int) -> Found | None:
    """What the layout says, read in the plainest way; None for a payload that isn't sound."""
    found: Found = []
    at = 0
    for _ in range(count):
        if len(payload) < at + 4:
            return None
        (size,) = struct.unpack_from(">I", payload, at)
        start = at + 4 + size
        if start > len(payload):
            return None
        try:
            single = SingleMessageMetadata.FromString(payload[at + 4 : start])
        except DecodeError:
            return None
        at = start + single.payload_size
        if not single.HasField("payload_size") or single.payload_size < 0 or at > len(payload):
            return None
        found.append((single, payload[start:at]))
    return found if at == len(payload) and count >= 0 else None


def by_layout(payload: bytes, count: int) -> Found | None:
    try:
        return list(iterate_batch(payload, count))
    except MalformedEntryError:
        return None


@pytest.mark.parametrize(
    "values",
    [
        [b"a", b"bb", b"", b"ccc" * 100],
        [b"a", None, b"bb", None],
        [None, None],
        [None],
        [b"x" * size for size in (0, 1, 127, 128, 16_383, 16_384)],
    ],
)
def test_values_without_keys_of_any_size_are_found(values: list[bytes | None]) -> None:
    payload = pack(values, None)
    found = by_layout(payload, len(values))
    assert found == by_protobuf(payload, len(values))
    assert [value for _, value in found or ()] == [value or b"" for value in values]
    assert [single.null_value for single, _ in found or ()] == [value is None for value in values]


SINGLES = st.builds(
    SingleMessageMetadata,
    partition_key=st.none() | st.text(max_size=3) | st.just("k" * 300),
    sequence_id=st.none() | st.integers(0, 3),
    null_value=st.none() | st.booleans(),
)
MESSAGES = st.lists(st.tuples(SINGLES, st.sampled_from([b"", b"a", b"b", b"c" * 140])), max_size=6)


@given(MESSAGES, st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), max_size=2))
def test_a_mutated_batch_is_parsed_as_protobuf_parses_it(messages, changes) -> None:
    payload = bytearray(build_batch(messages))
    for at, value in changes if payload else ():
        payload[at % len(payload)] = value
    for count in {len(messages), len(messages) + 1, max(0, len(messages) - 1)}:
        assert by_layout(bytes(payload), count) == by_protobuf(bytes(payload), count)


@given(st.lists(st.sampled_from([plain_head(size) for size in (0, 1, 2, 127, 128, 129)])
                | st.binary(max_size=9), max_size=6), st.integers(-1, 6))  # fmt: skip
@example([plain_head(128), bytes(127)], 1)
@example([plain_head(128), bytes(129)], 1)
@example([], -1)
@example([], 1)
def test_garbage_is_parsed_as_protobuf_parses_it(pieces: list[bytes], count: int) -> None:
    payload = b"".join(pieces)
    assert by_layout(payload, count) == by_protobuf(payload, count)


def test_a_refusal_names_the_reason() -> None:
    for payload, count, text in (
        (b"", -1, "a batch of -1 messages"),
        (b"\0\0", 1, "ends before its message 0"),
        (plain_head(128) + bytes(127), 1, "message 0 of a batch announces 128 bytes, 127 are left"),
        (plain_head(1) + b"ab", 1, "1 bytes follow a batch of 1 messages"),
        (b"\0\0\0\x09\x18", 1, "ends in the metadata of its message 0"),
        (b"\0\0\0\1\xff", 1, "the metadata of message 0 of a batch can't be decoded"),
        (b"\0\0\0\0", 1, "message 0 of a batch has no payload size"),
    ):
        with pytest.raises(MalformedEntryError, match=text):
            BatchLayout(payload, 0, count)


@pytest.mark.parametrize(("first", "end"), [(0, 5), (1, 4), (4, 5), (2, 2)])
def test_messages_with_equal_heads_form_one_run(first: int, end: int) -> None:
    values = [b"value-%d" % n for n in range(5)]
    found = BatchLayout(b"front" + pack(values, None), 5, 5).uniform(first, end)
    assert found is not None
    view, stride, head = found
    assert (bytes(view), stride, head) == (pack(values, None)[first * 13 : end * 13], 13, 6)


def test_long_metadata_is_parsed_for_each_message() -> None:
    keys = ["k" * 300, "m" * 300, "k" * 300, "k" * 255, "short"]
    payload = pack([b"%d" % n for n in range(5)], keys)
    layout = BatchLayout(b"front" + payload, 5, 5)
    assert [layout.single(n).partition_key for n in range(5)] == keys  # type: ignore[union-attr]
    assert layout.values(1, 4) == [b"1", b"2", b"3"]
    assert layout.uniform(0, 5) is None


@pytest.mark.parametrize("payload", [b"", b"payload", plain_head(3) + b"abc"])
def test_a_payload_without_a_batch_is_one_message(payload: bytes) -> None:
    layout = BatchLayout.whole(b"front" + payload, 5)
    assert layout.count == 1 and layout.plain and layout.single(0) is None
    assert layout.values(0, 1) == [payload]
    assert (layout.size(0, 1), layout.size(1, 1), layout.values(1, 1)) == (len(payload), 0, [])
    assert layout.uniform(0, 1) is None
    assert BatchLayout.whole(payload).values(0, 1) == [payload]
