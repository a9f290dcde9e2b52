"""SENDs that are handled by the run are answered and stored as they are one by one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import Mock, patch

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.topology.test_partition_session import TOPIC, Setting
from velaray.broker.client_session import ClientSession
from velaray.events.codec import decode
from velaray.events.events_pb2 import EntryAppended
from velaray.events.ids import EARLIEST
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.batches import pack_plain
from velaray.wire.commands import command, entry_header, send_header
from velaray.wire.connection import WireConnection
from velaray.wire.frames import FrameParser
from velaray.wire.messages import build_entry

NAMES = "ab"
VERSION = "a test"


class Pipe(asyncio.Transport):
    """The server's end of a connection: parses what is written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.parser = FrameParser()
        self.closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.parser.feed(bytes(data))

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    abort = close

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def commands(self) -> Iterator[Any]:
        while (frame := self.parser.next_frame()) is not None:
            yield frame.command


class Raw:
    """A client that writes bytes to a partition, and keeps the answers."""

    def __init__(self, setting: Setting) -> None:
        self.pipe = Pipe()
        self.connection = WireConnection(ClientSession(setting.partition.listener))
        self.connection.connection_made(self.pipe)
        self.answers: list[Any] = []

    def read(self, data: bytes) -> None:
        """The server reads these bytes at once."""
        self.connection._parser.get_buffer()
        self.connection._parser.feed(data)
        self.connection.buffer_updated(0)

    async def until(self, count: int) -> None:
        """Wait for this many answers; PONG is none."""
        async with asyncio.timeout(10):
            while len(self.answers) < count:
                await asyncio.sleep(0.001)
                found = self.pipe.commands()
                self.answers += (each for each in found if type(each) is not pb.CommandPong)

    async def connect(self, *, generated: bool = False) -> None:
        """Connect a producer of each name; ``generated``: of names that the partition chooses."""
        self.read(command(pb.CommandConnect(client_version=VERSION, protocol_version=20)))
        await self.until(1)
        for number, name in enumerate(NAMES):
            request = pb.CommandProducer(topic=str(TOPIC), producer_id=number, request_id=number)
            if not generated:
                request.producer_name = name
            self.read(command(request))
            await self.until(2 + number)
        self.answers.clear()


def frame(producer: int, sequence_id: int, size: int = 10, **fields: Any) -> bytes:
    """A SEND of one message; ``fields`` are those of the metadata."""
    metadata = pb.MessageMetadata(
        producer_name=NAMES[producer], sequence_id=sequence_id, publish_time=1, **fields
    )
    messages = fields.get("num_messages_in_batch", 1)
    payload = b"x" * size if messages == 1 else pack_plain([b"x" * size] * messages)
    entry = build_entry(metadata, payload)
    return send_header(producer, sequence_id, messages, len(entry)) + entry


def _damaged(producer: int, sequence_id: int) -> bytes:
    return frame(producer, sequence_id)[:-1] + b"y"


def _explicit(producer: int, sequence_id: int, **fields: Any) -> bytes:
    """A SEND with further fields in its command."""
    entry = build_entry(
        pb.MessageMetadata(
            producer_name=NAMES[producer],
            sequence_id=sequence_id,
            publish_time=1,
            uuid="u",
            chunk_id=0,
            num_chunks_from_msg=2,
        ),
        b"x",
    )
    send = pb.CommandSend(producer_id=producer, sequence_id=sequence_id, **fields)
    return entry_header(send, len(entry)) + entry


ODD = {
    "damaged": _damaged,
    "delayed": lambda producer, at: frame(producer, at, deliver_at_time=1 << 50),
    "as if delayed": lambda producer, at: frame(producer, at, partition_key="\x18\x01"),
    "too large": lambda producer, at: frame(producer, at, size=500),
    "wrong count": lambda producer, at: _explicit(producer, at, num_messages=7),
    "chunk": lambda producer, at: _explicit(producer, at, is_chunk=True),
    "highest": lambda producer, at: _explicit(producer, at, highest_sequence_id=at),
    "one message": lambda producer, at: _explicit(producer, at, num_messages=1),
}

Step = tuple[str, int, int]
"""What follows, the index of its producer, and the number of SENDs or of skipped sequence ids."""

plain = st.tuples(st.sampled_from(["plain", "batches"]), st.integers(0, 1), st.integers(1, 40))
moves = st.tuples(st.sampled_from(["again", "gap"]), st.integers(0, 1), st.integers(1, 30))
odd = st.tuples(st.sampled_from(sorted(ODD)), st.integers(0, 1), st.just(1))
steps = st.lists(st.one_of(plain, plain, moves, odd), min_size=1, max_size=12)


def stream(wanted: Sequence[Step], first: int) -> tuple[list[bytes], int]:
    """Frames, and the number of answers to them."""
    frames: list[bytes] = []
    following = [first] * len(NAMES)
    for what, producer, number in wanted:
        at = following[producer]
        if what == "again":
            following[producer] = max(at - number, 0)
        elif what == "gap":
            following[producer] += number
        elif what in ODD:
            frames.append(ODD[what](producer, at))
            following[producer] += 1
        else:
            fields = {"num_messages_in_batch": 3} if what == "batches" else {}
            frames += (frame(producer, each, **fields) for each in range(at, at + number))
            following[producer] += number
    return frames, len(frames)


async def outcome(
    reads: Sequence[bytes], answers: int, *, deduplicate: bool, generated: bool
) -> tuple[list[Any], list[Any]]:
    """The answers to what is read, and the records that are stored."""
    setting = Setting()
    await setting.start()
    publishing = setting.partition.publishing
    publishing.policies = replace(
        publishing.policies, deduplicate=deduplicate, max_message_size=400
    )
    client = Raw(setting)
    await client.connect(generated=generated)
    for data in reads:
        client.read(data)
        await asyncio.sleep(0)
    await client.until(answers)
    journal, records = setting.partition.runtime.journal, []
    start = setting.partition.log.position_of(0) if setting.partition.log.end_offset else EARLIEST
    if setting.partition.log.end_offset:
        for _, event, blob in await journal.read(start, 1 << 20, 1 << 30):  # type: ignore[union-attr]
            found = decode(bytes(event))
            assert isinstance(found, EntryAppended)
            found.at_ms = 0
            records.append((found, bytes(blob)))
    state = setting.partition.runtime.state
    producers = [(each.name, each.last_sequence_id) for each in state.by_index.values()]
    await setting.actor_system.stop()
    return client.answers, [*records, producers]


@contextmanager
def one_by_one() -> Iterator[None]:
    """Frames come one at a time."""
    with patch.object(FrameParser, "next_run", lambda _: None):
        yield


@given(
    steps,
    st.sampled_from([0, 100, 16_370, (1 << 63) - 60]),
    st.lists(st.integers(1, 4000), min_size=1, max_size=8),
    st.booleans(),
    st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_any_split_into_reads_gives_the_answers_of_single_sends(
    wanted: list[Step], first: int, sizes: list[int], deduplicate: bool, generated: bool
) -> None:
    frames, answers = stream(wanted, first)
    with one_by_one():
        expected = asyncio.run(
            outcome(frames, answers, deduplicate=deduplicate, generated=generated)
        )
    data, reads = b"".join(frames), []
    while data:
        size = sizes[len(reads) % len(sizes)]
        reads.append(data[:size])
        data = data[size:]
    found = asyncio.run(outcome(reads, answers, deduplicate=deduplicate, generated=generated))
    assert found == expected


def scene(scenario: Callable[[Setting, Raw], Awaitable[None]]) -> None:
    """Run a scenario with a client whose producers have published one message each."""

    async def main() -> None:
        setting = Setting()
        await setting.start()
        client = Raw(setting)
        await client.connect()
        client.read(frame(0, 0) + frame(1, 0))
        await client.until(2)
        client.answers.clear()
        await scenario(setting, client)
        await setting.actor_system.stop()

    asyncio.run(main())


def frames_of(producer: int, first: int, count: int, **fields: Any) -> bytes:
    return b"".join(frame(producer, at, **fields) for at in range(first, first + count))


def test_the_sends_of_a_read_are_decided_at_once() -> None:
    async def scenario(setting: Setting, client: Raw) -> None:
        runtime = setting.partition.runtime
        with patch.object(type(runtime), "submit", side_effect=AssertionError("one by one")):
            client.read(
                frames_of(0, 1, 200)
                + frames_of(1, 1, 20, num_messages_in_batch=3)
                + frames_of(0, 201, 20)
            )
        await client.until(240)
        assert [each.sequence_id for each in client.answers] == [
            *(*range(1, 201), *range(1, 21), *range(201, 221))
        ]
        assert runtime.decided == 2 + 240 + 2  # with those that found the producers' ids
        assert setting.partition.publishing.pending_bytes == 0
        assert setting.partition.publishing.published.messages == 2 + 220 + 60

    scene(scenario)


def test_a_full_disk_refuses_each_send_of_a_run() -> None:
    async def scenario(setting: Setting, client: Raw) -> None:
        setting.disk.capacity = 0
        client.read(frames_of(0, 1, 50))
        await client.until(50)
        assert [each.sequence_id for each in client.answers] == [*range(1, 51)]
        assert {each.error for each in client.answers} == {pb.PersistenceError}
        assert setting.partition.runtime.stats.refused_full == 50
        assert setting.partition.publishing.pending_bytes == 0
        setting.disk.capacity = None
        client.read(frames_of(0, 1, 1))  # while the disk was full, one entry is tried at a time
        await client.until(51)
        client.read(frames_of(0, 2, 49))
        await client.until(100)
        assert all(type(each) is pb.CommandSendReceipt for each in client.answers[50:])
        assert setting.partition.log.end_offset == 52

    scene(scenario)


def test_a_publish_rate_pauses_a_client_within_what_was_read() -> None:
    async def scenario(setting: Setting, client: Raw) -> None:
        policies = setting.partition.publishing.policies
        setting.partition.publishing.apply(replace(policies, publish_rate=(10, 0)))
        client.read(frames_of(0, 1, 50))
        await client.until(10)
        assert len(client.answers) < 15
        setting.partition.publishing.apply(replace(policies, publish_rate=(0, 0)))
        await client.until(50)
        assert [each.sequence_id for each in client.answers] == [*range(1, 51)]

    scene(scenario)


def test_a_run_of_an_unknown_producer_closes_the_connection() -> None:
    async def scenario(setting: Setting, client: Raw) -> None:
        client.read(
            frames_of(0, 1, 5) + frames_of(1, 1, 5).replace(b"\x08\x01\x10", b"\x08\x07\x10")
        )
        assert client.connection.closed
        assert setting.partition.runtime.decided == 2 + 2 + 5

    scene(scenario)


def test_a_server_that_traces_sees_each_send_of_a_run() -> None:
    async def scenario(setting: Setting, client: Raw) -> None:
        spans = Mock()
        spans.watch.side_effect = lambda entry, release: release
        setting.partition.publishing._spans = spans
        client.read(frames_of(0, 1, 20))
        await client.until(20)
        assert spans.watch.call_count == 20

    scene(scenario)
