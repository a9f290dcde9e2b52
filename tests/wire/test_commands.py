"""Commands coded by hand do what protobuf does; what protobuf would let through is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from velaray.events.ids import MessageId
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.commands import (
    Message,
    MessageHeaders,
    Send,
    command,
    decode_command,
    decode_message,
    decode_send,
    encode_command,
    entry_header,
    send_header,
    send_receipt,
)
from velaray.wire.errors import MalformedCommandError, ServerError, UnknownCommandError
from velaray.wire.varint import read_varint, varint

UINT64 = st.one_of(st.integers(0, 300), st.integers(0, 2**64 - 1))
INT32 = st.one_of(st.integers(-2, 300), st.integers(-(2**31), 2**31 - 1))
INT64 = st.integers(-(2**63), 2**63 - 1)


def base(name: str, message) -> pb.BaseCommand:
    envelope = pb.BaseCommand(type=pb.BaseCommand.DESCRIPTOR.fields_by_name[name].number)
    getattr(envelope, name).CopyFrom(message)
    return envelope


def frame(name: str, message, entry_size: int = 0) -> bytes:
    encoded = base(name, message).SerializeToString()
    size = len(encoded)
    return (size + 4 + entry_size).to_bytes(4, "big") + size.to_bytes(4, "big") + encoded


@given(UINT64)
def test_varints_round_trip(number: int) -> None:
    assert read_varint(varint(number) + b"\x05", 0) == (number, len(varint(number)))


def test_a_negative_varint_wraps() -> None:
    assert varint(-1) == b"\xff" * 9 + b"\x01"


def test_an_endless_varint_is_an_error() -> None:
    with pytest.raises(ValueError, match="over ten bytes"):
        read_varint(b"\xff" * 20, 0)


def test_every_command_type_has_the_field_of_its_number() -> None:
    fields = pb.BaseCommand.DESCRIPTOR.fields_by_number
    assert set(pb.BaseCommand.Type.values()) == set(fields) - {1}


def test_server_errors_match_the_protocol() -> None:
    assert {error.name: error.value for error in ServerError} == dict(pb.ServerError.items())


def test_golden_frames() -> None:
    assert command(pb.CommandPing()).hex() == "00000009000000050812920100"
    assert command(pb.CommandFlow(consumer_id=1, messagePermits=1000)).hex() == (
        "0000000d00000009080b5a05080110e807"
    )
    assert send_receipt(3, 300, 5 << 24, 7).hex() == (
        "000000160000001208073a0e080310ac021a0708808080281007"
    )
    assert MessageHeaders(1, 5 << 24, 2).header(7, 110).hex() == (
        "000000830000001108094a0d08011209088080802810071802"
    )


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("connected", pb.CommandConnected(server_version="velaray", protocol_version=20)),
        ("subscribe", pb.CommandSubscribe(
            topic="t", subscription="s", subType=1, consumer_id=1, request_id=2)),
        ("topicMigrated", pb.CommandTopicMigrated(resource_id=1, resource_type=0)),
        ("pong", pb.CommandPong()),
    ],
)  # fmt: skip
def test_a_command_is_framed_as_protobuf_would(name: str, message) -> None:
    assert command(message) == frame(name, message)
    assert entry_header(message, 70) == frame(name, message, 70)
    assert decode_command(encode_command(message)) == message


@st.composite
def sends(draw) -> pb.CommandSend:
    message = pb.CommandSend(producer_id=draw(UINT64), sequence_id=draw(UINT64))
    for name, values in {
        "num_messages": st.integers(1, 40000),
        "txnid_least_bits": UINT64,
        "txnid_most_bits": UINT64,
        "highest_sequence_id": UINT64,
        "is_chunk": st.booleans(),
        "marker": st.booleans(),
    }.items():
        if draw(st.integers(0, 3)) == 0:
            setattr(message, name, draw(values))
    return message


@given(st.integers(0, 127), UINT64, st.integers(1, 40000), st.integers(0, 1 << 20))
def test_the_hand_written_header_of_a_send_equals_protobufs(
    producer_id: int, sequence_id: int, messages: int, size: int
) -> None:
    message = pb.CommandSend(producer_id=producer_id, sequence_id=sequence_id)
    if messages != 1:
        message.num_messages = messages
    header = send_header(producer_id, sequence_id, messages, size)
    assert header == entry_header(message, size)


@given(sends())
def test_a_hand_written_send_equals_protobufs(message: pb.CommandSend) -> None:
    encoded = encode_command(message)
    by_hand = decode_send(bytearray(b"xx" + encoded + b"yy"), 2, 2 + len(encoded))
    assert by_hand == decode_command(encoded)
    assert by_hand.producer_id == message.producer_id
    assert by_hand.sequence_id == message.sequence_id
    assert by_hand.num_messages == message.num_messages
    assert by_hand.is_chunk == message.is_chunk
    assert by_hand.marker == message.marker
    if message.HasField("highest_sequence_id"):
        assert by_hand.highest_sequence_id == message.highest_sequence_id
    else:
        assert by_hand.highest_sequence_id is None
    if message.HasField("txnid_least_bits") or message.HasField("txnid_most_bits"):
        assert by_hand.txn_id == (message.txnid_most_bits, message.txnid_least_bits)
    else:
        assert by_hand.txn_id is None


def test_a_send_may_name_its_source_position() -> None:
    message = pb.CommandSend(producer_id=1, sequence_id=2, message_id=MessageId(3, 4).to_proto())
    assert decode_command(encode_command(message)) == Send(1, 2, message_id=MessageId(3, 4))


def attempt(decode, *arguments):
    try:
        return decode(*arguments)
    except (MalformedCommandError, UnknownCommandError) as error:
        return type(error)


@given(sends(), st.lists(st.tuples(st.integers(0, 60), st.integers(0, 255)), max_size=3))
def test_a_mutated_send_is_parsed_as_protobuf_parses_it(message, changes) -> None:
    encoded = bytearray(encode_command(message))
    for at, value in changes:
        encoded[at % len(encoded)] = value
    by_hand = attempt(decode_send, encoded, 0, len(encoded))
    if encoded[:2] == b"\x08\x06":
        assert by_hand == attempt(decode_command, bytes(encoded))


@st.composite
def messages(draw) -> pb.CommandMessage:
    message = pb.CommandMessage(consumer_id=draw(UINT64))
    message.message_id.ledgerId = draw(UINT64)
    message.message_id.entryId = draw(UINT64)
    if draw(st.booleans()):
        message.message_id.partition = draw(INT32)
    if draw(st.integers(0, 3)) == 0:
        message.message_id.batch_index = draw(INT32)
    if draw(st.integers(0, 3)) == 0:
        message.redelivery_count = draw(st.integers(0, 2**32 - 1))
    if draw(st.integers(0, 3)) == 0:
        message.ack_set.extend(draw(st.lists(INT64, max_size=4)))
    if draw(st.integers(0, 3)) == 0:
        message.consumer_epoch = draw(UINT64)
    return message


@given(messages(), st.lists(st.tuples(st.integers(0, 60), st.integers(0, 255)), max_size=3))
def test_a_hand_parsed_message_equals_protobufs(message, changes) -> None:
    encoded = bytearray(encode_command(message))
    for at, value in changes:
        encoded[at % len(encoded)] = value
    if encoded[:2] == b"\x08\x09":
        by_hand = attempt(decode_message, encoded, 0, len(encoded))
        assert by_hand == attempt(decode_command, bytes(encoded))
    if not changes:
        where = MessageId.from_proto(message.message_id)
        assert by_hand[:4] == (
            message.consumer_id,
            where.ledger_id,
            where.entry_id,
            where.partition,
        )
        assert by_hand.ack_set == tuple(message.ack_set)


@pytest.mark.parametrize("partition", ["ffffffffffffffffff01", "ffffffff0f", "8080808010"])
def test_an_unusual_partition_is_parsed_as_protobuf_parses_it(partition: str) -> None:
    where = bytes.fromhex("0803100418" + partition)
    body = bytes.fromhex("080112") + bytes((len(where),)) + where
    encoded = bytes.fromhex("08094a") + bytes((len(body),)) + body
    by_hand = decode_message(bytearray(encoded), 0, len(encoded))
    assert by_hand == decode_command(encoded)
    assert -(2**31) <= by_hand.partition < 2**31


@given(UINT64, UINT64, UINT64, UINT64, st.none() | UINT64)
def test_a_hand_written_receipt_equals_protobufs(
    producer, sequence, ledger, entry, highest
) -> None:
    message = pb.CommandSendReceipt(
        producer_id=producer, sequence_id=sequence, highest_sequence_id=highest
    )
    message.message_id.ledgerId = ledger
    message.message_id.entryId = entry
    assert send_receipt(producer, sequence, ledger, entry, highest) == frame(
        "send_receipt", message
    )


def test_the_receipt_of_a_duplicate_names_no_position() -> None:
    receipt = decode_command(send_receipt(1, 2, -1, -1)[8:])
    assert MessageId.from_proto(receipt.message_id) == MessageId(-1, -1)


@given(
    UINT64, UINT64, UINT64, INT32, st.integers(0, 2**32 - 1), st.lists(INT64, max_size=20),
    st.none() | UINT64,
)  # fmt: skip
def test_hand_written_message_headers_equal_protobufs(
    consumer, ledger, entry, partition, redeliveries, ack_set, epoch
) -> None:
    message = pb.CommandMessage(consumer_id=consumer, ack_set=ack_set, consumer_epoch=epoch)
    message.message_id.ledgerId = ledger
    message.message_id.entryId = entry
    if partition != -1:
        message.message_id.partition = partition
    if redeliveries:
        message.redelivery_count = redeliveries
    headers = MessageHeaders(consumer, ledger, partition, redeliveries, ack_set, epoch)
    header = headers.header(entry, 99)
    assert headers.header(entry, 99) == header == frame("message", message, 99)
    decoded = decode_message(bytearray(header), 8, len(header))
    assert decoded.ack_set == tuple(ack_set)
    assert decoded.redelivery_count == redeliveries
    assert decoded.batch_index == -1


@given(
    st.sets(st.one_of(st.integers(0, 600), UINT64), max_size=30).map(sorted),
    st.lists(st.binary(max_size=9), min_size=30, max_size=30),
)
def test_frames_are_headers_and_entries(entry_ids: list[int], entries: list[bytes]) -> None:
    headers, others = MessageHeaders(5, 1 << 33, 2), MessageHeaders(5, 1 << 33, 2)
    entries = entries[: len(entry_ids)]
    pairs = zip(entry_ids, entries, strict=True)
    expected = [others.header(entry_id, len(entry)) + entry for entry_id, entry in pairs]
    assert headers.frames(entry_ids, entries) == b"".join(expected)


@given(st.integers(0, 700), st.integers(0, 300))
def test_frames_of_consecutive_entries_take_a_range(first: int, count: int) -> None:
    entries, entry_ids = [b"x" * (at % 7) for at in range(count)], range(first, first + count)
    expected = MessageHeaders(5, 3).frames(list(entry_ids), entries)
    assert MessageHeaders(5, 3).frames(entry_ids, entries) == expected


@given(st.binary(max_size=80))
def test_garbage_is_refused_with_a_named_error(data: bytes) -> None:
    for decode in (
        lambda: decode_command(data),
        lambda: decode_send(bytearray(data), 0, len(data)),
        lambda: decode_message(bytearray(data), 0, len(data)),
    ):
        decoded = attempt(decode)
        assert decoded in (MalformedCommandError, UnknownCommandError) or isinstance(
            decoded, Send | Message
        ) or decoded.IsInitialized()  # fmt: skip


def test_an_unknown_type_is_named() -> None:
    with pytest.raises(UnknownCommandError, match="command type 300 is not known") as caught:
        decode_command(b"\x08\xac\x02")
    assert caught.value.command_type == 300
    assert caught.value.server_error is ServerError.UnsupportedVersionError


def test_an_unknown_type_without_an_end_is_malformed() -> None:
    assert attempt(decode_command, b"\x08" + b"\xff" * 12) is MalformedCommandError


@pytest.mark.parametrize(
    ("data", "text", "request_id"),
    [
        (b"", "without a type", None),
        (b"\xff\xff", "not a command", None),
        (b"\x08\x0d", "success lacks", None),
        (
            base("lookupTopic", pb.CommandLookupTopic(topic="t", request_id=5))
            .SerializeToString().replace(b"\x0a\x01t", b"\x22\x01t"),
            "lookupTopic lacks topic", 5,
        ),
        (
            base("lookupTopic", pb.CommandLookupTopic(topic="t", request_id=6))
            .SerializeToString().replace(b"\x0a\x01t", b"\x0a\x01\xff"),
            "topic is not UTF-8", 6,
        ),
        (
            base("producer", pb.CommandProducer(
                topic="t", producer_id=1, request_id=8,
                metadata=[pb.KeyValue(key="k", value="v")],
            )).SerializeToString().replace(b"\x12\x01v", b"\x12\x01\xff"),
            "value is not UTF-8", 8,
        ),
        (
            base("getTopicsOfNamespaceResponse", pb.CommandGetTopicsOfNamespaceResponse(
                request_id=9, topics=["a", "b"],
            )).SerializeToString().replace(b"\x12\x01b", b"\x12\x01\xff"),
            "topics is not UTF-8", 9,
        ),
    ],
)  # fmt: skip
def test_the_error_of_a_malformed_command_names_the_reason(data, text, request_id) -> None:
    with pytest.raises(MalformedCommandError, match=text) as caught:
        decode_command(data)
    assert caught.value.request_id == request_id


@pytest.mark.parametrize("count", [0, -1])
def test_a_send_of_zero_messages_is_parsed(count: int) -> None:
    encoded = encode_command(pb.CommandSend(producer_id=1, sequence_id=2, num_messages=count))
    assert decode_send(bytearray(encoded), 0, len(encoded)).num_messages == count
