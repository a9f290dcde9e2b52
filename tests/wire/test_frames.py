"""Frames come out of any split of the stream; damage is named and does what it must, no more."""

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from velaray.wire import pulsar_pb2 as pb
from velaray.wire.commands import Message, MessageHeaders, Send, command, entry_header
from velaray.wire.errors import (
    CorruptEntryError,
    FrameError,
    FrameTooLargeError,
    MalformedCommandError,
    ServerError,
    TruncatedFrameError,
    UnknownCommandError,
)
from velaray.wire.frames import FRAME_PADDING, Frame, FrameParser, seal_entry

ENTRY = seal_entry(b"\x00\x00\x00\x02mdpayload")
SEND = entry_header(pb.CommandSend(producer_id=1, sequence_id=9), len(ENTRY)) + ENTRY
FLOW = command(pb.CommandFlow(consumer_id=1, messagePermits=5))
STREAM = (
    SEND + FLOW + command(pb.CommandPing()) + MessageHeaders(2, 3).header(4, len(ENTRY)) + ENTRY
)
FRAMES = [
    Frame(Send(1, 9), ENTRY),
    Frame(pb.CommandFlow(consumer_id=1, messagePermits=5), None),
    Frame(pb.CommandPing(), None),
    Frame(Message(2, 3, 4), ENTRY),
]


def drain(parser: FrameParser) -> list:
    """All frames and errors that are there, up to a fatal error."""
    found: list = []
    while True:
        try:
            frame = parser.next_frame()
        except FrameError as error:
            found.append(error)
            if error.fatal:
                return found
            continue
        if frame is None:
            return found
        found.append(frame)


def parse(data: bytes, **settings) -> list:
    parser = FrameParser(**settings)
    parser.feed(data)
    return drain(parser)


def send_with(entry: bytes) -> bytes:
    return entry_header(pb.CommandSend(producer_id=1, sequence_id=9), len(entry)) + entry


def receive(parser: FrameParser, data: bytes) -> list:
    """Put ``data`` in as a transport does, and take out frames after each piece."""
    found = []
    while data:
        buffer = parser.get_buffer()
        size = min(len(buffer), len(data))
        assert size > 0
        buffer[:size] = data[:size]
        parser.buffer_updated(size)
        data = data[size:]
        found += drain(parser)
    return found


def test_golden_entry() -> None:
    assert seal_entry(b"\x00\x00\x00\x02hibody").hex() == ("0e0167fac5d1000000026869626f6479")
    assert crc32c(b"123456789") == 0xE3069283


def test_a_stream_is_cut_into_its_frames() -> None:
    assert parse(STREAM) == FRAMES


def test_a_stream_may_be_split_at_every_byte() -> None:
    for at in range(len(STREAM) + 1):
        parser = FrameParser()
        assert receive(parser, STREAM[:at]) + receive(parser, STREAM[at:]) == FRAMES
        assert parser.buffered == 0


@given(st.lists(st.integers(1, 40)))
def test_a_stream_may_arrive_in_any_pieces(sizes: list[int]) -> None:
    parser = FrameParser()
    found = []
    rest = STREAM * 3
    for size in sizes:
        found += receive(parser, rest[:size])
        rest = rest[size:]
    assert found + receive(parser, rest) == FRAMES * 3


def test_a_parser_takes_memoryviews() -> None:
    parser = FrameParser()
    parser.feed(memoryview(STREAM))
    assert drain(parser) == FRAMES


def test_an_entry_outlives_the_buffer() -> None:
    parser = FrameParser()
    [frame] = receive(parser, SEND)
    receive(parser, SEND.replace(b"payload", b"PAYLOAD"))
    assert frame.entry == ENTRY


def test_the_buffer_grows_to_a_frame_and_shrinks_after() -> None:
    parser = FrameParser()
    assert parser.capacity == 0  # the buffer is made for the first byte
    parser.get_buffer()
    assert parser.capacity == 4 << 10
    entry = seal_entry(b"\x00\x00\x00\x00" + bytes(3_000_000))
    frames = receive(parser, send_with(entry))
    assert frames == [Frame(Send(1, 9), entry)]
    assert 3_000_000 < parser.capacity <= 3_000_200
    parser.get_buffer()
    assert parser.capacity == 64 << 10


def test_the_buffer_doubles_while_it_is_filled() -> None:
    parser = FrameParser()
    sizes = []
    for _ in range(9):
        buffer = parser.get_buffer()
        sizes.append(parser.capacity >> 10)
        parser.buffer_updated(len(buffer))
        parser.take_rest()
    for _ in range(2):
        parser.get_buffer()
        parser.buffer_updated(10)
        parser.take_rest()
    assert sizes == [4, 8, 16, 32, 64, 128, 256, 512, 512]
    assert parser.capacity >> 10 == 512


def test_the_buffer_grows_although_reads_end_within_frames() -> None:
    parser, stream = FrameParser(), send_with(seal_entry(b"\x00\x00\x00\x00" + bytes(7_000))) * 40
    assert len(receive(parser, stream)) == 40
    assert parser.capacity == 64 << 10


def test_the_buffer_never_exceeds_the_largest_frame() -> None:
    limit = 200_000
    entry = seal_entry(b"\x00\x00\x00\x00" + bytes(limit - 10))
    assert len(entry) == limit
    half = send_with(seal_entry(b"\x00\x00\x00\x00" + bytes(limit // 2)))
    stream = half + (send_with(entry) + FLOW) * 5
    for size in (1000, 65536, 190_001):
        parser = FrameParser(limit)
        found = []
        for at in range(0, len(stream), size):
            found += receive(parser, stream[at : at + size])
            assert parser.capacity <= limit + FRAME_PADDING + 4
        assert len(found) == 11
        assert found[1].entry == entry


def test_an_oversized_frame_is_refused_by_its_first_four_bytes() -> None:
    limit = 1000 + FRAME_PADDING
    assert parse(limit.to_bytes(4, "big"), max_message_size=1000) == []
    [error] = parse((limit + 1).to_bytes(4, "big"), max_message_size=1000)
    assert isinstance(error, FrameTooLargeError)
    assert f"{limit + 1} bytes is over the limit of {limit}" in str(error)


def test_a_fatal_error_is_permanent() -> None:
    parser = FrameParser()
    parser.feed(b"\xff" * 4 + STREAM)
    for _ in range(2):
        with pytest.raises(FrameTooLargeError):
            parser.next_frame()


@pytest.mark.parametrize(
    "head",
    [b"\0\0\0\0", b"\0\0\0\5\0\0\0\5", b"\0\0\0\x10\0\0\0\x0d" + bytes(13), bytes(20)],
)
def test_sizes_that_contradict_each_other_are_refused(head: bytes) -> None:
    [error] = parse(head)
    assert isinstance(error, TruncatedFrameError)
    assert error.fatal


def test_a_command_of_no_bytes_is_skipped() -> None:
    error, *frames = parse(b"\0\0\0\x06\0\0\0\0\x08\x06" + STREAM)
    assert isinstance(error, MalformedCommandError)
    assert frames == FRAMES


def test_an_unknown_command_is_skipped() -> None:
    error, *frames = parse(b"\0\0\0\x06\0\0\0\2\x08\x63" + STREAM)
    assert isinstance(error, UnknownCommandError)
    assert frames == FRAMES


def test_a_malformed_command_is_skipped() -> None:
    error, *frames = parse(b"\0\0\0\x06\0\0\0\2\x08\x0d" + STREAM)
    assert isinstance(error, MalformedCommandError)
    assert frames == FRAMES


def test_bytes_after_a_command_without_an_entry_are_an_error() -> None:
    error, *frames = parse(entry_header(pb.CommandPing(), 3) + b"abc" + STREAM)
    assert isinstance(error, MalformedCommandError)
    assert frames == FRAMES


def test_every_flipped_bit_of_an_entry_is_detected() -> None:
    for at in range(2, len(ENTRY)):
        damaged = bytearray(ENTRY)
        damaged[at] ^= 1 << at % 8
        error, *frames = parse(send_with(bytes(damaged)) + STREAM)
        assert isinstance(error, CorruptEntryError)
        assert error.command == Send(1, 9)
        assert error.server_error is ServerError.ChecksumError
        assert frames == FRAMES


@pytest.mark.parametrize(
    "entry",
    [
        b"",
        b"\x0e",
        ENTRY[:9],
        b"\0\0\0\1",
        seal_entry(b"\x00\x00\x00\x03md"),
        b"\x0e\x02\x00\x00\x00\x02\x08\x01",
        b"\x0e\x02\xff\xff\xff\xff" + ENTRY,
        b"\x0e\x02\x00\x00\x00\x00" * 2 + ENTRY,
    ],
)
def test_an_invalid_entry_is_refused(entry: bytes) -> None:
    error, *frames = parse(send_with(entry) + STREAM)
    assert isinstance(error, CorruptEntryError)
    assert frames == FRAMES


def test_an_entry_without_a_checksum_gets_one() -> None:
    for body in (b"\x00\x00\x00\x02mdpayload", b"\x00\x00\x00\x00", b"\x00\x00\x00\x01m"):
        assert parse(send_with(body)) == [Frame(Send(1, 9), seal_entry(body))]


def test_broker_metadata_is_cut_off() -> None:
    metadata = pb.BrokerEntryMetadata(broker_timestamp=5, index=6).SerializeToString()
    prefix = b"\x0e\x02" + len(metadata).to_bytes(4, "big") + metadata
    header = MessageHeaders(2, 3).header(4, len(prefix + ENTRY))
    assert parse(header + prefix + ENTRY) == [Frame(Message(2, 3, 4), ENTRY)]
    bare = ENTRY[6:]
    header = MessageHeaders(2, 3).header(4, len(prefix + bare))
    assert parse(header + prefix + bare) == [Frame(Message(2, 3, 4), ENTRY)]


@given(st.binary(max_size=400))
def test_garbage_yields_frames_or_named_errors(data: bytes) -> None:
    parser = FrameParser(1000)
    parser.feed(data)
    drain(parser)


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), min_size=1, max_size=6))
def test_a_mutated_stream_parses_the_same_whole_or_in_pieces(changes) -> None:
    stream = bytearray(STREAM * 2)
    for at, value in changes:
        stream[at % len(stream)] = value
    whole = parse(bytes(stream))
    parser = FrameParser()
    pieces = []
    for byte in stream:
        pieces += receive(parser, bytes((byte,)))
        if pieces and isinstance(pieces[-1], FrameError) and pieces[-1].fatal:
            break
    assert [str(found) for found in pieces] == [str(found) for found in whole]


def test_a_frame_after_a_large_one_survives_growth() -> None:
    entry = seal_entry(b"\x00\x00\x00\x00" + bytes(range(256)) * 600)
    stream = SEND + send_with(entry) + STREAM
    for first in (1, 50, len(SEND) + 20, len(stream) - 30):
        parser = FrameParser()
        frames = receive(parser, stream[:first]) + receive(parser, stream[first:])
        assert frames == [FRAMES[0], Frame(Send(1, 9), entry), *FRAMES]
