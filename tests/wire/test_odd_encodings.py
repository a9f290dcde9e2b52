"""Commands that are framed well and filled oddly: by hand they are read as protobuf reads them."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from velaray.wire import commands
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.commands import (
    Message,
    MessageHeaders,
    Send,
    decode_command,
    decode_message,
    decode_send,
    encode_command,
)
from velaray.wire.errors import MalformedCommandError
from velaray.wire.varint import varint

# Fields in any order, known or not, repeated, of a wrong kind, with padded and endless numbers.
TAGS = st.sampled_from([0, 8, 16, 18, 24, 32, 40, 48, 64, 9, 13, 15])
PADDED = st.tuples(st.integers(0, 300), st.integers(0, 9)).map(
    lambda drawn: bytes((drawn[0] & 127 | 128,)) + b"\x80" * drawn[1] + b"\x00"
)
NUMBERS = st.one_of(
    st.integers(0, 300).map(varint),
    st.sampled_from([2**14, 2**31 - 1, 2**31, 2**63 - 1, 2**63, 2**64 - 1]).map(varint),
    PADDED,
    st.sampled_from([b"\xff" * 11, b"\xff" * 9 + b"\x7f"]),
    st.just(b""),
)
FIELDS = st.lists(st.tuples(TAGS.map(varint), NUMBERS).map(b"".join), max_size=5).map(b"".join)
USUAL = st.tuples(st.integers(0, 300), st.integers(0, 300)).map(
    lambda drawn: b"\x08" + varint(drawn[0]) + b"\x10" + varint(drawn[1])
)
BODIES = st.one_of(FIELDS, st.tuples(USUAL, FIELDS).map(b"".join))


def sized(data: bytes) -> bytes:
    return varint(len(data)) + data


def attempt(decode, *arguments) -> object:
    try:
        return decode(*arguments)
    except MalformedCommandError as error:
        return str(error)


def by_hand(decode, encoded: bytes) -> object:
    """A value read from the middle of a buffer."""
    return attempt(decode, bytearray(b"xx" + encoded + b"\0\0"), 2, 2 + len(encoded))


@given(BODIES)
@example(b"\x08\x01\x10\x02\x18\x80\x80\x01")
@example(b"\x08\x01\x10\x02\x18\x05\x20")
@example(b"\x08\x01\x10\x02\x18")
@example(b"\x08\x01\x10" + b"\xff" * 9 + b"\x01")
@example(b"\x08\x01\x10" + b"\xff" * 12)
@example(b"\x08\x01\x10\x02\x18\x05\x00")
def test_an_unusual_send_is_parsed_as_protobuf_parses_it(body: bytes) -> None:
    encoded = b"\x08\x06\x32" + sized(body)
    assert by_hand(decode_send, encoded) == attempt(decode_command, encoded)


@given(BODIES, FIELDS)
@example(b"\x08\x01\x10\x02\x18\x03\x00", b"")
@example(b"\x09\x01\x10\x02", b"")
@example(b"\x08" + b"\xff" * 9 + b"\x7f\x10\x02", b"")
@example(b"\x08\x01\x10\x02\x18\x03", b"\x00")
def test_an_unusual_message_is_parsed_as_protobuf_parses_it(position: bytes, rest: bytes) -> None:
    encoded = b"\x08\x09\x4a" + sized(b"\x08\x01\x12" + sized(position) + rest)
    assert by_hand(decode_message, encoded) == attempt(decode_command, encoded)


@pytest.mark.parametrize("count", [1, 127, 128, 16_383, 16_384, 40_000])
def test_a_send_may_have_any_number_of_messages(count: int) -> None:
    encoded = b"\x08\x06\x32" + sized(b"\x08\x01\x10\x02\x18" + varint(count))
    assert by_hand(decode_send, encoded) == Send(1, 2, count)


LARGE = 2**63 - 1


@pytest.mark.parametrize("producer_id", [0, 127])
@pytest.mark.parametrize("sequence_id", [0, 127, 128, 2**31, LARGE])
@pytest.mark.parametrize("count", [1, 2, 128, 16_383])
def test_usual_sends_are_parsed_without_protobuf(
    monkeypatch, producer_id, sequence_id, count
) -> None:
    message = pb.CommandSend(producer_id=producer_id, sequence_id=sequence_id)
    if count > 1:
        message.num_messages = count
    encoded = encode_command(message)
    monkeypatch.setattr(commands, "decode_command", None)
    assert by_hand(decode_send, encoded) == Send(producer_id, sequence_id, count)


@pytest.mark.parametrize("consumer_id", [0, 127])
@pytest.mark.parametrize("ledger_id", [1 << 24, 2**40, LARGE])
@pytest.mark.parametrize("entry_id", [0, 128, LARGE])
@pytest.mark.parametrize("partition", [-1, 0, 2**31 - 1])
def test_usual_messages_are_parsed_without_protobuf(
    monkeypatch, consumer_id, ledger_id, entry_id, partition
) -> None:
    header = MessageHeaders(consumer_id, ledger_id, partition).header(entry_id, 9)
    monkeypatch.setattr(commands, "decode_command", None)
    found = by_hand(decode_message, header[8:])
    assert found == Message(consumer_id, ledger_id, entry_id, partition)


def test_field_number_zero_behind_a_position_is_malformed() -> None:
    position = b"\x08\x05\x10\x06\x18\x07"
    whole = b"\x08\x09\x4a" + sized(b"\x08\x01\x12" + sized(position))
    assert by_hand(decode_message, whole) == Message(1, 5, 6, 7)
    spoiled = b"\x08\x09\x4a" + sized(b"\x08\x01\x12" + sized(position + b"\0"))
    with pytest.raises(MalformedCommandError, match="not a command"):
        decode_message(bytearray(spoiled), 0, len(spoiled))
    with pytest.raises(MalformedCommandError):
        decode_command(spoiled)
    assert pb.BaseCommand.MESSAGE == 9
