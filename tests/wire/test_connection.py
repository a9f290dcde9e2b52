"""Connections over real sockets: any split, slow, silent, half-closed and hostile peers."""

import asyncio
import gc
import socket
import struct
import tracemalloc
from collections.abc import Callable
from unittest.mock import Mock

import pytest

from velaray.wire import pulsar_pb2 as pb
from velaray.wire.commands import Message, MessageHeaders, Send, command, entry_header
from velaray.wire.connection import WireConnection, write_some
from velaray.wire.errors import (
    CorruptEntryError,
    FrameTooLargeError,
    PeerNotReadingError,
    PeerSilentError,
    UnknownCommandError,
)
from velaray.wire.frames import FrameParser, seal_entry
from velaray.wire.guard import ConnectionGuard, ConnectionLimits
from velaray.wire.turns import REQUEST

ENTRY = seal_entry(b"\x00\x00\x00\x02mdpayload")
SEND = entry_header(pb.CommandSend(producer_id=1, sequence_id=9), len(ENTRY)) + ENTRY
PING = command(pb.CommandPing())
PONG = command(pb.CommandPong())


class Recorder:
    """A handler that records its calls; ``on_command`` may react."""

    def __init__(self) -> None:
        self.connection: WireConnection | None = None
        self.frames: list = []
        self.corrupt: list[CorruptEntryError] = []
        self.writable_again = 0
        self.closed: asyncio.Future[Exception | None] = asyncio.Future()
        self.on_command: Callable = lambda connection, command: None
        self._changed = asyncio.Event()

    def on_connected(self, connection: WireConnection) -> None:
        self.connection = connection

    def on_frame(self, connection: WireConnection, command, entry: bytes | None) -> None:
        self.frames.append((command, entry))
        self._changed.set()
        self.on_command(connection, command)

    def on_corrupt_entry(self, connection: WireConnection, error: CorruptEntryError) -> None:
        self.corrupt.append(error)
        self._changed.set()

    def on_writable(self, connection: WireConnection) -> None:
        self.writable_again += 1
        self._changed.set()

    def on_closed(self, connection: WireConnection, error: Exception | None) -> None:
        self.closed.set_result(error)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():
                self._changed.clear()
                await self._changed.wait()


class Clock:
    """Moves the event loop's clock forward without waiting."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        real = loop.time
        self.offset = 0.0
        loop.time = lambda: real() + self.offset

    async def advance(self, seconds: float) -> None:
        self.offset += seconds
        for _ in range(3):
            await asyncio.sleep(0)


class Server:
    """A listening socket; `recorders` holds one handler per accepted connection."""

    def __init__(self, **settings) -> None:
        self.settings = settings
        self.recorders: list[Recorder] = []
        self.writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> "Server":
        self.server = await asyncio.get_running_loop().create_server(self._accept, "127.0.0.1", 0)
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_) -> None:
        for writer in self.writers:
            writer.close()
        for recorder in self.recorders:
            if recorder.connection is not None:
                recorder.connection.abort()
            async with asyncio.timeout(10):
                await recorder.closed
        self.server.close()

    def _accept(self) -> WireConnection:
        self.recorders.append(Recorder())
        return WireConnection(self.recorders[-1], **self.settings)

    async def connect(self, **options):
        """A raw client: its streams, and the recorder of the server's side."""
        before = len(self.recorders)
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, **options)
        self.writers.append(writer)
        async with asyncio.timeout(10):
            while len(self.recorders) == before or self.recorders[before].connection is None:
                await asyncio.sleep(0)
        return reader, writer, self.recorders[before]

    async def wire_client(self, **settings) -> tuple[WireConnection, Recorder]:
        recorder = Recorder()
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            lambda: WireConnection(recorder, server=False, **settings), "127.0.0.1", self.port
        )
        return connection, recorder


async def read(reader: asyncio.StreamReader, size: int) -> bytes:
    async with asyncio.timeout(10):
        return await reader.readexactly(size)


async def closed(recorder: Recorder) -> Exception | None:
    async with asyncio.timeout(10):
        return await recorder.closed


def run(scenario) -> None:
    asyncio.run(scenario)


def test_frames_arrive_for_every_split_of_the_stream() -> None:
    async def scenario() -> None:
        async with Server() as server:
            _, writer, recorder = await server.connect()
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            stream = SEND + command(pb.CommandFlow(consumer_id=1, messagePermits=5))
            for at in range(1, len(stream)):
                writer.write(stream[:at])
                await asyncio.sleep(0)
                writer.write(stream[at:])
                await recorder.until(lambda count=2 * at: len(recorder.frames) == count)
            assert recorder.frames[-2] == (Send(1, 9), ENTRY)
            assert all(frame == recorder.frames[-2] for frame in recorder.frames[::2])
            assert all(frame == recorder.frames[-1] for frame in recorder.frames[1::2])

    run(scenario())


def test_frames_arrive_one_byte_at_a_time() -> None:
    async def scenario() -> None:
        async with Server() as server:
            _, writer, recorder = await server.connect()
            for byte in SEND:
                writer.write(bytes((byte,)))
                await asyncio.sleep(0)
            await recorder.until(lambda: recorder.frames == [(Send(1, 9), ENTRY)])

    run(scenario())


def test_server_and_client_talk() -> None:
    async def scenario() -> None:
        async with Server() as server:
            client, answers = await server.wire_client()
            client.writelines([SEND, PING])
            async with asyncio.timeout(10):
                while not server.recorders or not server.recorders[0].frames:
                    await asyncio.sleep(0)
            recorder = server.recorders[0]
            recorder.connection.writelines([MessageHeaders(2, 3).header(4, len(ENTRY)), ENTRY])
            await answers.until(lambda: answers.frames == [(Message(2, 3, 4), ENTRY)])
            assert recorder.frames == [(Send(1, 9), ENTRY)]
            assert recorder.connection.peer.startswith("127.0.0.1:")
            client.close()
            assert await closed(answers) is None
            assert await closed(recorder) is None

    run(scenario())


def test_one_tick_is_one_write() -> None:
    async def scenario() -> None:
        async with Server() as server:
            reader, _, recorder = await server.connect()
            connection = recorder.connection
            transport = connection._transport
            writes: list[bytes] = []
            connection._transport = Mock(wraps=transport, write=writes.append)
            connection._transport.is_closing.return_value = False
            for _ in range(5):
                connection.write(PING)
            assert writes == []
            await asyncio.sleep(0)
            assert writes == [PING * 5]
            connection._transport = transport
            connection.write(writes[0])
            assert await read(reader, len(PING) * 5) == PING * 5

    run(scenario())


def test_large_entries_arrive_completely_at_a_slow_reader() -> None:
    async def scenario() -> None:
        async with Server() as server:
            reader, _, recorder = await server.connect(limit=4096)
            sent = [bytes([number]) * 50_000 + b"." * number for number in range(240)]
            for entry in sent:
                recorder.connection.write_two(b"head", entry)
            expected = b"".join(b"head" + entry for entry in sent)
            assert recorder.connection._transport.get_write_buffer_size() > 0
            assert await read(reader, len(expected)) == expected

    run(scenario())


def test_bytes_that_a_socket_does_not_accept_are_kept() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        buffers = [bytes([number]) * 30_000 for number in range(64)]
        rest = write_some(ours.fileno(), buffers)
        assert write_some(ours.fileno(), rest) is rest, "it is full"
        ours.shutdown(socket.SHUT_WR)
        arrived = b""
        while piece := theirs.recv(1 << 20):
            arrived += piece
        assert 0 < len(arrived) < 64 * 30_000
        assert arrived + b"".join(rest) == b"".join(buffers)


def test_errors_of_a_socket_are_left_to_the_transport() -> None:
    ours, theirs = socket.socketpair()
    theirs.close()
    with ours:
        assert list(write_some(ours.fileno(), [b"one", b"two"])) == [b"one", b"two"]


def test_ping_is_answered() -> None:
    async def scenario() -> None:
        async with Server() as server:
            reader, writer, recorder = await server.connect()
            writer.write(PING + PONG + PING)
            assert await read(reader, len(PONG) * 2) == PONG * 2
            assert recorder.frames == []

    run(scenario())


def test_a_silent_connection_is_pinged_and_then_closed() -> None:
    async def scenario() -> None:
        clock = Clock()
        async with Server() as server:
            reader, writer, recorder = await server.connect()
            for count in range(1, 4):
                await clock.advance(30.1)
                assert await read(reader, len(PING)) == PING
                writer.write(PONG + SEND)
                await recorder.until(lambda count=count: len(recorder.frames) == count)
            await clock.advance(29.0)
            assert recorder.connection._pinged < recorder.connection._heard
            await clock.advance(1.1)
            assert await read(reader, len(PING)) == PING
            await clock.advance(29.0)
            assert not recorder.closed.done()
            await clock.advance(1.1)
            assert isinstance(await closed(recorder), PeerSilentError)

    run(scenario())


def test_two_sides_keep_each_other_alive() -> None:
    async def scenario() -> None:
        clock = Clock()
        async with Server() as server:
            client, answers = await server.wire_client()
            for _ in range(5):
                await clock.advance(30.1)
                async with asyncio.timeout(10):
                    while client._heard < client._pinged:
                        await asyncio.sleep(0)
            assert client._pinged > 0
            assert not answers.closed.done()
            assert not server.recorders[0].closed.done()

    run(scenario())


def test_a_corrupt_entry_is_reported_and_the_connection_goes_on() -> None:
    async def scenario() -> None:
        async with Server() as server:
            _, writer, recorder = await server.connect()
            writer.write(SEND.replace(b"payload", b"PAYLOAD") + SEND)
            await recorder.until(lambda: bool(recorder.frames))
            assert [error.command for error in recorder.corrupt] == [Send(1, 9)]
            assert recorder.frames == [(Send(1, 9), ENTRY)]

    run(scenario())


def test_a_malformed_request_gets_an_error_with_its_id() -> None:
    async def scenario() -> None:
        async with Server() as server:
            reader, writer, _ = await server.connect()
            lookup = command(pb.CommandLookupTopic(topic="t", request_id=5))
            writer.write(lookup.replace(b"\x0a\x01t", b"\x0a\x01\xff") + PING)
            parser = FrameParser()
            size = int.from_bytes(await read(reader, 4), "big")
            parser.feed(size.to_bytes(4, "big") + await read(reader, size))
            answer = parser.next_frame()[0]
            assert isinstance(answer, pb.CommandError)
            assert answer.request_id == 5
            assert "topic is not UTF-8" in answer.message
            assert await read(reader, len(PONG)) == PONG

    run(scenario())


def test_a_client_answers_malformed_commands_with_no_error() -> None:
    async def scenario() -> None:
        async with Server() as server:
            _, answers = await server.wire_client()
            async with asyncio.timeout(10):
                while not server.recorders or server.recorders[0].connection is None:
                    await asyncio.sleep(0)
            bad = command(pb.CommandProducerSuccess(request_id=5, producer_name="t"))
            server.recorders[0].connection.write(bad.replace(b"\x12\x01t", b"\x12\x01\xff"))
            assert "producer_name is not UTF-8" in str(await closed(answers))
            assert server.recorders[0].frames == []

    run(scenario())


@pytest.mark.parametrize(
    ("garbage", "error"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", FrameTooLargeError),
        (b"\xff" * 10, FrameTooLargeError),
        (b"\0\0\0\x06\0\0\0\2\x08\x63", UnknownCommandError),
    ],
)
def test_garbage_closes_only_its_own_connection(garbage: bytes, error: type) -> None:
    async def scenario() -> None:
        async with Server() as server:
            reader, writer, recorder = await server.connect()
            bad_reader, bad_writer, bad = await server.connect()
            writer.write(SEND[:20])
            bad_writer.write(garbage)
            assert await read(bad_reader, 0) == b""
            assert isinstance(await closed(bad), error)
            writer.write(SEND[20:] + PING)
            assert await read(reader, len(PONG)) == PONG
            assert recorder.frames == [(Send(1, 9), ENTRY)]

    run(scenario())


def test_a_failing_handler_closes_only_its_own_connection() -> None:
    async def scenario() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        async with Server() as server:
            reader, writer, _ = await server.connect()
            _, bad_writer, bad = await server.connect()

            def fail(connection, command) -> None:
                raise ZeroDivisionError

            bad.on_command = fail
            bad_writer.write(SEND)
            assert isinstance(await closed(bad), ZeroDivisionError)
            writer.write(PING)
            assert await read(reader, len(PONG)) == PONG

    run(scenario())


def test_an_os_error_of_a_handler_is_logged() -> None:
    """asyncio is silent about an OSError, which it takes for the socket's."""

    async def scenario() -> None:
        logged: list = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, context: logged.append(context["exception"]))
        async with Server() as server:
            _, writer, recorder = await server.connect()

            def fail(connection, command) -> None:
                raise FileNotFoundError("no such key")

            recorder.on_command = fail
            writer.write(SEND)
            error = await closed(recorder)
        assert "no such key" in str(error)
        assert logged == [error]

    run(scenario())


def test_a_half_closed_peer_gets_its_answers_and_then_the_end() -> None:
    async def scenario() -> None:
        async with Server() as server:
            reader, writer, recorder = await server.connect()
            recorder.on_command = lambda connection, command: connection.write(PONG)
            writer.write(SEND * 3)
            writer.write_eof()
            async with asyncio.timeout(10):
                assert await reader.read() == PONG * 3
            assert await closed(recorder) is None
            recorder.connection.write(PONG)
            recorder.connection.close()

    run(scenario())


def test_an_oversized_frame_is_refused_before_it_is_sent() -> None:
    async def scenario() -> None:
        async with Server(max_message_size=1000) as server:
            reader, writer, recorder = await server.connect()
            writer.write((20_000).to_bytes(4, "big"))
            async with asyncio.timeout(10):
                assert await reader.read() == b""
            assert isinstance(await closed(recorder), FrameTooLargeError)

    run(scenario())


def fill(recorder: Recorder) -> int:
    """Write entries as long as the connection is writable; how many."""
    entry = seal_entry(b"\x00\x00\x00\x00" + bytes(30_000))
    count = 0
    while recorder.connection.writable:
        recorder.connection.writelines([MessageHeaders(2, 3).header(4, len(entry)), entry])
        count += 1
    return count


def test_a_slow_reader_pauses_the_sender_at_the_bound() -> None:
    async def scenario() -> None:
        async with Server(high_water=100_000) as server:
            reader, writer, recorder = await server.connect(limit=1000)
            writer.transport.pause_reading()
            count = fill(recorder)
            transport = recorder.connection._transport
            assert 100_000 < transport.get_write_buffer_size() < 100_000 + 65536 + 30_100
            writer.write(SEND)
            assert not transport.is_reading()
            writer.transport.resume_reading()
            parser = FrameParser()
            seen = 0
            while seen < count:
                async with asyncio.timeout(10):
                    parser.feed(await reader.read(65536))
                while parser.next_frame() is not None:
                    seen += 1
            await recorder.until(lambda: recorder.frames == [(Send(1, 9), ENTRY)])
            assert recorder.writable_again == 1
            assert recorder.connection.writable

    run(scenario())


def test_answers_for_a_peer_that_does_not_read_are_bounded() -> None:
    async def scenario() -> None:
        async with Server(high_water=100_000) as server:
            _, writer, recorder = await server.connect()
            writer.transport.pause_reading()
            answer = bytes(30_000)
            recorder.on_command = lambda connection, command: connection.write(answer)
            requests = 2000
            writer.write(SEND * requests)
            await recorder.until(lambda: not recorder.connection.writable)
            assert 0 < len(recorder.frames) < requests
            waiting = recorder.connection._transport.get_write_buffer_size()
            assert waiting < 100_000 + 65536 + 30_000
            assert recorder.connection._parser.buffered > 0

    run(scenario())


def test_bytes_written_before_close_are_sent() -> None:
    async def scenario() -> None:
        async with Server() as server:
            reader, _, recorder = await server.connect()
            recorder.connection.write(PONG)
            recorder.connection.close()
            async with asyncio.timeout(10):
                assert await reader.read() == PONG
            assert await closed(recorder) is None

    run(scenario())


def test_a_peer_that_never_reads_is_disconnected() -> None:
    async def scenario() -> None:
        clock = Clock()
        async with Server() as server:
            _, writer, recorder = await server.connect()
            writer.transport.pause_reading()
            fill(recorder)
            await clock.advance(30.1)
            assert not recorder.closed.done()
            await clock.advance(30.1)
            assert isinstance(await closed(recorder), PeerNotReadingError)

    run(scenario())


def test_closing_waits_only_a_bounded_time_for_a_peer_that_never_reads() -> None:
    async def scenario() -> None:
        clock = Clock()
        async with Server() as server:
            _, writer, recorder = await server.connect()
            writer.transport.pause_reading()
            fill(recorder)
            recorder.connection.close()
            await clock.advance(29.0)
            assert not recorder.closed.done()
            await clock.advance(1.1)
            assert await closed(recorder) is None

    run(scenario())


def test_pausing_holds_frames_that_were_received_already() -> None:
    async def scenario() -> None:
        async with Server() as server:
            reader, writer, recorder = await server.connect()
            recorder.on_command = lambda connection, command: connection.pause_reading()
            writer.write(SEND * 3 + PING)
            for count in (1, 2, 3):
                await recorder.until(lambda count=count: len(recorder.frames) == count)
                for _ in range(5):
                    await asyncio.sleep(0)
                assert len(recorder.frames) == count
                recorder.connection.resume_reading()
            assert await read(reader, len(PONG)) == PONG
            recorder.on_command = lambda connection, command: None
            writer.write(SEND)
            await recorder.until(lambda: len(recorder.frames) == 4)

    run(scenario())


def test_reading_resumes_when_every_reason_to_pause_has_ended() -> None:
    async def scenario() -> None:
        async with Server() as server:
            _, writer, recorder = await server.connect()
            connection = recorder.connection
            connection.pause_reading("one partition")
            connection.pause_reading("another partition")
            writer.write(SEND)
            for ended in ("another partition", "another partition", "a third partition"):
                connection.resume_reading(ended)
                for _ in range(5):
                    await asyncio.sleep(0)
                assert not recorder.frames
            connection.resume_reading("one partition")
            await recorder.until(lambda: len(recorder.frames) == 1)

    run(scenario())


def test_a_failure_after_a_pause_closes_the_connection() -> None:
    async def scenario() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        async with Server() as server:
            _, writer, recorder = await server.connect()
            recorder.on_command = lambda connection, command: connection.pause_reading()
            writer.write(SEND * 2)
            await recorder.until(lambda: len(recorder.frames) == 1)

            def fail(connection, command) -> None:
                raise ZeroDivisionError

            recorder.on_command = fail
            recorder.connection.resume_reading()
            await closed(recorder)

    run(scenario())


def test_a_lost_connection_keeps_no_buffer() -> None:
    size = 5 * 1024 * 1024
    unfinished = struct.pack(">II", size, 20) + bytes(size // 2)

    async def scenario() -> None:
        async with Server() as server:
            _, writer, recorder = await server.connect()
            writer.write(unfinished)
            await writer.drain()
            parser = recorder.connection._parser
            async with asyncio.timeout(10):
                while parser.buffered < len(unfinished):
                    await asyncio.sleep(0.001)
            held, _ = tracemalloc.get_traced_memory()
            writer.transport.abort()
            await closed(recorder)
            left, _ = tracemalloc.get_traced_memory()
            assert held - left > size * 0.9
            assert parser.capacity == 0

    tracemalloc.start()
    gc.disable()  # the connection is in a cycle of references
    try:
        run(scenario())
    finally:
        gc.enable()
        tracemalloc.stop()


def test_abort_reports_its_reason() -> None:
    async def scenario() -> None:
        async with Server() as server:
            _, _, recorder = await server.connect()
            reason = ConnectionAbortedError("fenced")
            recorder.connection.abort(reason)
            assert await closed(recorder) is reason
            assert recorder.connection.closed

    run(scenario())


def test_a_message_passes_the_commands_of_other_connections() -> None:
    async def scenario() -> None:
        guard = ConnectionGuard(ConnectionLimits())
        async with Server(guard=guard) as server:
            flooding = [await server.connect() for _ in range(10)]
            _, publishing, publisher = await server.connect()
            connect = command(pb.CommandConnect(client_version="raw"))
            requests = command(pb.CommandLookupTopic(topic="t", request_id=1)) * 500
            for _, writer, recorder in flooding:
                recorder.on_command = lambda connection, frame: (
                    connection.establish(),
                    guard.turns.spend(REQUEST),
                )
                writer.write(connect + requests)
            publisher.on_command = lambda connection, frame: connection.establish()
            publishing.write(connect)
            await publisher.until(lambda: len(publisher.frames) == 1)
            publishing.write(SEND)
            await publisher.until(lambda: len(publisher.frames) == 2)
            handled = [len(recorder.frames) for _, _, recorder in flooding]
            assert sum(handled) < 2_500  # the flood has 5,000
            assert max(handled) - min(handled) <= 500 // 5  # its connections take turns
            for _, _, recorder in flooding:
                await recorder.until(lambda: len(recorder.frames) == 501)  # noqa: B023
            assert publisher.connection.group == "127.0.0.1"

    run(scenario())


def test_commands_keep_their_order_when_a_connection_waits_for_its_turn() -> None:
    async def scenario() -> None:
        guard = ConnectionGuard(ConnectionLimits())
        async with Server(guard=guard) as server:
            _, writer, recorder = await server.connect()
            recorder.on_command = lambda connection, frame: (
                connection.establish(),
                guard.turns.spend(REQUEST),
            )
            numbers = [
                command(pb.CommandLookupTopic(topic="t", request_id=number)) + SEND
                for number in range(100)
            ]
            writer.write(command(pb.CommandConnect(client_version="raw")) + b"".join(numbers))
            await recorder.until(lambda: len(recorder.frames) == 201)
            found = [getattr(frame, "request_id", None) for frame, _ in recorder.frames[1:]]
            assert found == [each for number in range(100) for each in (number, None)]

    run(scenario())
