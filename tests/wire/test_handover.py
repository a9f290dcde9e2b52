"""A connection that is handed over, paused for long, or closed while its peer doesn't read."""

import asyncio

import pytest

from tests.wire.test_connection import (
    ENTRY,
    PING,
    PONG,
    SEND,
    Clock,
    Recorder,
    Server,
    closed,
    fill,
    read,
    run,
)
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.commands import Send, command
from velaray.wire.connection import WireConnection
from velaray.wire.frames import FrameParser


class Taker(asyncio.Protocol):
    """The new owner of the socket."""

    def __init__(self) -> None:
        self.taken = b""
        self.calls = 0
        self.lost: asyncio.Future[Exception | None] = asyncio.Future()

    def data_received(self, data: bytes) -> None:
        self.calls += 1
        self.taken += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set_result(exc)

    async def until(self, data: bytes) -> None:
        async with asyncio.timeout(10):
            while self.taken != data:
                await asyncio.sleep(0)


async def never_told(recorder: Recorder) -> None:
    """The handler of a connection that was handed over hears no end; let the server go on."""
    assert not recorder.closed.done()
    recorder.closed.set_result(None)


@pytest.mark.parametrize("behind", [b"", SEND, SEND + SEND[:30], b"\xff" * 9])
def test_received_unhandled_bytes_go_to_the_new_owner_of_the_socket(behind: bytes) -> None:
    async def scenario() -> None:
        async with Server() as server:
            reader, writer, recorder = await server.connect()
            taker = Taker()
            transports: list[asyncio.Transport] = []

            def hand_over(connection: WireConnection, received: object) -> None:
                connection.write(PONG)
                transports.append(connection.detach(taker))
                transports[0].write(b"answer")

            recorder.on_command = hand_over
            writer.write(SEND + behind)
            await recorder.until(lambda: bool(transports))
            (transport,) = transports
            assert recorder.frames == [(Send(1, 9), ENTRY)]
            assert (taker.taken, taker.calls) == (behind, 1 if behind else 0)
            # Until the new owner resumes, nothing more comes.
            assert not transport.is_reading()
            writer.write(b"later")
            for _ in range(5):
                await asyncio.sleep(0)
            assert taker.taken == behind
            transport.resume_reading()
            await taker.until(behind + b"later")
            # What waited to be sent has gone out before what the new owner sends.
            assert await read(reader, len(PONG) + 6) == PONG + b"answer"
            recorder.connection.write(PONG)
            recorder.connection.close()
            transport.close()
            assert await taker.lost is None
            await never_told(recorder)

    run(scenario())


def test_a_connection_that_was_handed_over_sends_no_ping() -> None:
    async def scenario() -> None:
        clock = Clock()
        async with Server() as server:
            reader, _, recorder = await server.connect()
            transport = recorder.connection.detach(Taker())
            await clock.advance(300)
            transport.write(b"end")
            transport.close()
            async with asyncio.timeout(10):
                assert await reader.read() == b"end"
            await never_told(recorder)

    run(scenario())


def test_frames_held_by_a_pause_are_handed_over_too() -> None:
    async def scenario() -> None:
        async with Server() as server:
            _, writer, recorder = await server.connect()
            recorder.on_command = lambda connection, received: connection.pause_reading()
            writer.write(SEND * 3)
            await recorder.until(lambda: len(recorder.frames) == 1)
            taker = Taker()
            recorder.connection.resume_reading()
            transport = recorder.connection.detach(taker)
            for _ in range(5):
                await asyncio.sleep(0)
            assert taker.taken == SEND * 2
            assert len(recorder.frames) == 1
            assert not transport.is_reading()
            transport.close()
            await never_told(recorder)

    run(scenario())


def test_silence_is_measured_from_when_reading_resumes() -> None:
    async def scenario() -> None:
        clock = Clock()
        async with Server() as server:
            reader, writer, recorder = await server.connect()
            recorder.connection.pause_reading()
            writer.write(PING)
            for _ in range(20):
                await clock.advance(30.1)
            assert not recorder.closed.done()
            recorder.connection.resume_reading()
            assert await read(reader, len(PONG)) == PONG  # and no PING came before it
            await clock.advance(30.1)
            assert await read(reader, len(PING)) == PING
            assert not recorder.closed.done()

    run(scenario())


def test_resuming_without_a_pause_changes_nothing() -> None:
    async def scenario() -> None:
        async with Server() as server:
            _, writer, recorder = await server.connect()
            recorder.connection.resume_reading()
            recorder.connection.resume_reading()
            writer.write(SEND * 2)
            await recorder.until(lambda: len(recorder.frames) == 2)
            assert recorder.frames == [(Send(1, 9), ENTRY)] * 2

    run(scenario())


def test_a_closing_connection_sends_its_buffer_and_never_becomes_writable() -> None:
    async def scenario() -> None:
        async with Server(high_water=100_000) as server:
            reader, writer, recorder = await server.connect(limit=1000)
            writer.transport.pause_reading()
            count = fill(recorder)
            recorder.connection.close()
            assert not recorder.closed.done()
            writer.transport.resume_reading()
            parser = FrameParser()
            seen = 0
            async with asyncio.timeout(10):
                while data := await reader.read(65536):
                    parser.feed(data)
                    while parser.next_frame() is not None:
                        seen += 1
            assert seen == count
            assert await closed(recorder) is None
            assert recorder.writable_again == 0
            assert not recorder.connection.writable

    run(scenario())


def test_closing_and_aborting_again_keeps_the_first_reason() -> None:
    async def scenario() -> None:
        async with Server() as server:
            _, _, recorder = await server.connect()
            first = ConnectionAbortedError("fenced")
            recorder.connection.close(first)
            recorder.connection.close(ConnectionAbortedError("again"))
            recorder.connection.abort(ConnectionAbortedError("at last"))
            assert await closed(recorder) is first

    run(scenario())


def test_a_parser_returns_its_remaining_bytes_and_starts_again() -> None:
    parser = FrameParser()
    flow = command(pb.CommandFlow(consumer_id=1, messagePermits=5))
    parser.feed(SEND + flow[:7])
    assert parser.next_frame() == (Send(1, 9), ENTRY)
    assert parser.next_frame() is None
    assert parser.take_rest() == flow[:7]
    assert parser.take_rest() == b""
    assert parser.buffered == 0
    parser.feed(SEND)
    assert parser.next_frame() == (Send(1, 9), ENTRY)
