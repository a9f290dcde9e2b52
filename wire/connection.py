"""One connection that speaks Pulsar's protocol over asyncio, for servers and for clients."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any, Protocol, cast, runtime_checkable

from google.protobuf.message import Message as ProtobufMessage

from velaray.wire import pulsar_pb2 as pb
from velaray.wire.commands import Command, Send, command
from velaray.wire.errors import (
    CorruptEntryError,
    FrameError,
    HandshakeError,
    MalformedCommandError,
    PeerNotReadingError,
    PeerSilentError,
    TooMuchBufferedError,
)
from velaray.wire.frames import MAX_MESSAGE_SIZE, FrameParser
from velaray.wire.guard import ConnectionGuard, address_of
from velaray.wire.send_runs import SendRun
from velaray.wire.turns import FRAME, Turns

KEEP_ALIVE = 30.0
"""Seconds of silence before a PING, and again before the connection is given up."""

HIGH_WATER = 1024 * 1024
"""Unsent bytes from which on a connection is not `writable`."""

HANDSHAKE_SIZE = 64 * 1024
"""The bytes of a frame before the connection is established, without the padding."""

_FLUSH_AT = 64 * 1024
_LARGE = 4 * 1024
"""Buffers of at least this average size aren't joined: passing each to the system costs less than a
copy."""
_TLS_PIECE = 128 * 1024
"""The bytes that TLS gets in a call. It encrypts all of them before they are sent. More would not
stay in the processor's cache until then."""
_MOST_BUFFERS = 1024
"""The most buffers that the system accepts in one call."""
_TURN = "turn"
"""The reason to pause while others have their turns."""
_PING = command(pb.CommandPing())
_PONG = command(pb.CommandPong())


def _plain_socket(transport: asyncio.BaseTransport) -> int:
    """The descriptor of a socket that takes bytes as they are; -1 if there is none."""
    socket = transport.get_extra_info("socket")
    if socket is None or transport.get_extra_info("sslcontext") is not None:
        return -1
    return int(socket.fileno())


def write_some(fd: int, buffers: Sequence[bytes | memoryview]) -> Sequence[bytes | memoryview]:
    """Write to a socket without waiting; returns what it didn't take."""
    try:
        written = os.writev(fd, buffers[:_MOST_BUFFERS])
    except OSError:
        return buffers  # full; or broken, which the transport will find and report
    for number, buffer in enumerate(buffers):
        if written < len(buffer):
            return (memoryview(buffer)[written:], *buffers[number + 1 :])
        written -= len(buffer)
    return ()


def pieces(buffers: Iterable[bytes | memoryview], size: int) -> Iterator[memoryview]:
    """The same bytes in pieces of ``size``; the last one has the rest. A piece is copied only if it
    has bytes of several buffers."""
    begun: list[memoryview] = []
    room = size
    for buffer in buffers:
        view = memoryview(buffer)
        while len(view) >= room:
            yield _joined([*begun, view[:room]])
            view, room = view[room:], size
            begun.clear()
        if len(view):
            begun.append(view)
            room -= len(view)
    if begun:
        yield _joined(begun)


def _joined(views: list[memoryview]) -> memoryview:
    return views[0] if len(views) == 1 else memoryview(b"".join(views))


class ConnectionHandler(Protocol):
    """The handler of a `WireConnection`. All calls come from the event loop, one at a time.

    An exception that a handler raises closes that connection and no other.
    """

    def on_connected(self, connection: WireConnection) -> None:
        """Handle the opened connection; the first call."""

    def on_frame(self, connection: WireConnection, command: Command, entry: bytes | None) -> None:
        """Handle a command; only a `Send` or a `Message` has an ``entry``."""

    def on_corrupt_entry(self, connection: WireConnection, error: CorruptEntryError) -> None:
        """Handle the damaged entry of ``error.command``. The connection stays open.

        A server answers SEND_ERROR in the order of its receipts; a client discards the
        message and acknowledges it with a validation error.
        """

    def on_writable(self, connection: WireConnection) -> None:
        """Handle that the connection is writable again."""

    def on_closed(self, connection: WireConnection, error: Exception | None) -> None:
        """Handle the end of the connection; the last call. ``error`` is the reason, unless it was
        closed."""


@runtime_checkable
class RunHandler(ConnectionHandler, Protocol):
    """A handler that takes SENDs by the run."""

    def on_sends(self, connection: WireConnection, run: SendRun) -> bool:
        """Handle a run of SENDs at once, as `on_frame` would one by one; or return False, having
        done nothing: then each of them goes to `on_frame`."""
        ...


class WireConnection(asyncio.BufferedProtocol):
    """Frames in and out of one socket, with keep-alive and bounded memory.

    Memory: the receive buffer never exceeds the largest frame (``max_message_size`` plus 10 KiB).
    Unsent bytes stay below ``high_water`` plus 64 KiB plus one frame, if unrequested frames
    (deliveries) are sent only while `writable`: while the peer doesn't read, nothing is read from
    it either, so answers can't pile up.

    PING is sent after ``keep_alive`` seconds without input; after as many more the connection
    closes with `PeerSilentError`. A peer that takes none of the unsent bytes during one such
    interval (the intervals follow each other) is closed with `PeerNotReadingError`.

    A ``guard`` has admitted the connection, which it must know of until `release`. Before
    `establish` frames are small, and a connection that isn't established after ``keep_alive``
    seconds is closed. PING is no first command. Commands other than SENDs are handled in `Turns`
    with those of other connections; ``group`` says whose turns these are.

    On the server's side a frame that can't be served is answered with ERROR if its request id could
    be read; else it closes the connection with that `FrameError`.
    """

    def __init__(
        self,
        handler: ConnectionHandler,
        *,
        server: bool = True,
        max_message_size: int = MAX_MESSAGE_SIZE,
        keep_alive: float = KEEP_ALIVE,
        high_water: int = HIGH_WATER,
        guard: ConnectionGuard | None = None,
    ) -> None:
        self.handler = handler
        self._run_handler = handler if isinstance(handler, RunHandler) else None
        self.peer = ""
        self.writable = False
        self.closed = False
        self._server = server
        self._keep_alive = keep_alive
        self._high_water = high_water
        self._guard = guard
        self._max_message_size = max_message_size
        self.group: Hashable = None
        """Whose turns the connection takes: those of its address, or of its client's role."""
        self._turns: Turns | None = None
        self._established = guard is None
        self._parser = (
            FrameParser(max_message_size)
            if guard is None
            else FrameParser(min(max_message_size, HANDSHAKE_SIZE), self._resized)
        )
        self._error: Exception | None = None
        self._gone = False
        self._pauses: set[Hashable] = set()
        self._pending: list[bytes | memoryview] = []
        self._pending_size = 0
        self._heard = self._pinged = 0.0
        self._flushed = 0
        self._taken = 0
        self._timer: asyncio.TimerHandle
        self._loop: asyncio.AbstractEventLoop
        self._transport: asyncio.Transport
        self._fd = -1
        self._tls = False

    def transport_info(self, name: str) -> Any:
        """What asyncio's transport says about itself, such as "peercert"; None: nothing."""
        return self._transport.get_extra_info(name)

    # --- the guard --------------------------------------------------------------------------

    def establish(self) -> None:
        """Accept frames of any allowed size: the handshake has succeeded."""
        self._established = True
        self._parser.accept(self._max_message_size)

    def release(self) -> None:
        """Tell the guard that the socket is closed. Idempotent."""
        guard, self._guard = self._guard, None
        if guard is not None:
            guard.received.resized(self, 0, self._reclaim_received)
            guard.unsent.resized(self, 0, self._reclaim_unsent)
            guard.left(address_of(self._transport))

    def _resized(self, size: int) -> None:
        if self._guard is not None:
            self._guard.received.resized(self, size, self._reclaim_received)

    def _reclaim_received(self, force: bool) -> None:
        if force:
            self.abort(TooMuchBufferedError(f"{self.peer} holds a buffer of received bytes"))
        if force or not self._parser.buffered:
            self._parser.release()

    def _reclaim_unsent(self, force: bool) -> None:
        if force:
            self.abort(TooMuchBufferedError(f"{self.peer} leaves bytes unread"))
            if self._guard is not None:
                self._guard.unsent.resized(self, 0, self._reclaim_unsent)

    # --- turns ------------------------------------------------------------------------------

    def _wait_for_turn(self, turns: Turns) -> None:
        self.pause_reading(_TURN)
        turns.wait(self.group, self._begin_turn)

    def _begin_turn(self) -> None:
        self._pauses.discard(_TURN)
        if not self._pauses:
            self._resume()

    # --- sending ---------------------------------------------------------------------------

    def send(self, message: ProtobufMessage) -> None:
        """Send a command that carries no entry."""
        self.write(command(message))

    def write(self, frame: bytes | memoryview) -> None:
        """Send bytes: all of one tick of the event loop go to the socket together.

        Does nothing once the connection is closed, which `on_closed` reports.
        """
        if self.closed:
            return
        if not self._pending:
            self._loop.call_soon(self._flush)
        self._pending.append(frame)
        self._pending_size += len(frame)
        if self._pending_size >= _FLUSH_AT:
            self._flush()

    def write_two(self, head: bytes, rest: bytes | memoryview) -> None:
        """`write` twice."""
        if self.closed:
            return
        pending = self._pending
        if not pending:
            self._loop.call_soon(self._flush)
        pending.append(head)
        pending.append(rest)
        self._pending_size = size = self._pending_size + len(head) + len(rest)
        if size >= _FLUSH_AT:
            self._flush()

    @property
    def bytes_written(self) -> int:
        """The bytes ever passed to `write` and similar methods, without those after the end."""
        return self._flushed + self._pending_size

    def writelines(self, frames: Iterable[bytes | memoryview]) -> None:
        """`write` several buffers, such as a header and its entry, in this order."""
        for frame in frames:
            self.write(frame)

    def _flush(self) -> None:
        pending = self._pending
        if pending and not self._transport.is_closing():
            self._flushed += self._pending_size
            if self._tls:
                for piece in pieces(pending, _TLS_PIECE):
                    self._transport.write(piece)
            elif len(pending) == 1:
                self._transport.write(pending[0])
            elif self._pending_size < len(pending) * _LARGE:
                self._transport.write(b"".join(pending))
            else:
                self._write_large(pending)
        pending.clear()
        self._pending_size = 0

    def _write_large(self, buffers: Sequence[bytes | memoryview]) -> None:
        """Write to the socket without a copy; copy only the rest that it doesn't take."""
        transport = self._transport
        if self._fd >= 0 and not transport.get_write_buffer_size():
            buffers = write_some(self._fd, buffers)
        for buffer in buffers:
            transport.write(buffer)

    # --- closing ---------------------------------------------------------------------------

    def close(self, error: Exception | None = None) -> None:
        """Send the unsent bytes, then close; ``error`` goes to `on_closed`.

        A peer that doesn't take them is cut off after ``keep_alive`` seconds.
        """
        if self.closed:
            return
        self._flush()
        self.closed = True
        self._error = error
        self._timer.cancel()
        self._transport.close()
        self._timer = self._loop.call_later(self._keep_alive, self._transport.abort)

    def abort(self, error: Exception | None = None) -> None:
        """Close at once and drop unsent bytes; no effect on a closed connection."""
        if not self.closed:
            self.closed = True
            self._error = error
        self._pending.clear()
        if not self._gone:  # asyncio's transport fails if it has closed already
            self._transport.abort()

    def detach(self, protocol: asyncio.Protocol) -> asyncio.Transport:
        """Hand the socket over to ``protocol``, paused; returns its transport.

        Unsent bytes are sent first. Bytes that were received and not handled are passed to
        ``protocol.data_received`` before this returns. The handler gets no more calls for this
        connection, not even `on_closed`.
        """
        self._flush()
        self.closed = True
        self._timer.cancel()
        self._transport.pause_reading()
        self._transport.set_protocol(protocol)
        rest = self._parser.take_rest()
        self._parser.release()
        if rest:
            protocol.data_received(rest)
        return self._transport

    # --- receiving -------------------------------------------------------------------------

    def pause_reading(self, reason: Hashable = None) -> None:
        """Handle no more frames, including received ones, until `resume_reading` is called.

        Reading resumes when every ``reason`` that paused it has ended. While paused, PING isn't
        answered either: the peer gives up after a minute or so.
        """
        self._pauses.add(reason)
        self._transport.pause_reading()

    def resume_reading(self, reason: Hashable = None) -> None:
        """End ``reason`` to pause. If it was the last one, continue with the frames that were
        received already."""
        if reason in self._pauses:
            self._pauses.discard(reason)
            if not self._pauses:
                self._loop.call_soon(self._resume)

    def _resume(self) -> None:
        self._heard = self._loop.time()
        handled = False
        try:
            self._handle_frames()
            handled = True
        finally:
            if not handled:
                self.abort()
        if not self._pauses and self.writable and not self.closed:
            self._transport.resume_reading()

    def _handle_frames(self) -> None:
        parser, runs, turns = self._parser, self._run_handler, self._turns
        least = 0 if turns is None else turns.least
        while self.writable and not self._pauses and not self.closed:
            if runs is not None and self._established and (run := parser.next_run()) is not None:
                if not runs.on_sends(self, run):
                    self._handle_one_by_one(run)
                continue
            if turns is not None and turns.left <= least and parser.waits_for_turn:
                self._wait_for_turn(turns)
                return
            try:
                frame = parser.next_frame()
            except CorruptEntryError as error:
                self.handler.on_corrupt_entry(self, error)
                continue
            except FrameError as error:
                if turns is not None:
                    turns.spend(FRAME)
                self._refuse(error)
                continue
            if frame is None:
                return
            received, entry = frame
            if turns is not None and type(received) is not Send:
                turns.spend(FRAME)
            if not self._established and type(received) is not pb.CommandConnect:
                self.close(HandshakeError(f"{self.peer} began with another command than CONNECT"))
            elif type(received) is pb.CommandPing:
                self.write(_PONG)
            elif type(received) is not pb.CommandPong:
                self.handler.on_frame(self, received, entry)

    def _handle_one_by_one(self, run: SendRun) -> None:
        producer_id, sequence_id, messages, *_ = run
        for done, entry in enumerate(run.entries):
            if self.closed:
                return
            if not self.writable or self._pauses:
                self._parser.put_back(done)
                return
            self.handler.on_frame(self, Send(producer_id, sequence_id + done, messages), entry)

    def _refuse(self, error: FrameError) -> None:
        request_id = error.request_id if isinstance(error, MalformedCommandError) else None
        if request_id is None or not self._server or not self._established:
            self.close(error)
            return
        self.send(
            pb.CommandError(
                request_id=request_id,
                error=cast(pb.ServerError, int(error.server_error)),
                message=error.message,
            )
        )

    # --- keep-alive ------------------------------------------------------------------------

    def _check_peer(self) -> None:
        now = self._loop.time()
        delay = self._keep_alive
        if not self._established:
            self.abort(HandshakeError(f"{self.peer} sent no CONNECT for {delay:.0f} s"))
            return
        if not self.writable:
            waiting = self._transport.get_write_buffer_size()
            if self._flushed - waiting == self._taken:
                self.abort(PeerNotReadingError(f"{self.peer} leaves {waiting} bytes unread"))
                return
            self._taken = self._flushed - waiting
        elif not self._pauses:
            if self._pinged > self._heard:
                silence = now - self._heard
                self.abort(PeerSilentError(f"{self.peer} was silent for {silence:.1f} s"))
                return
            delay = self._heard + self._keep_alive - now
            if delay <= 0:
                self._pinged = now
                self.write(_PING)
                delay = self._keep_alive
        self._timer = self._loop.call_later(delay, self._check_peer)

    # --- what the transport calls ----------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is open."""
        self._transport = cast(asyncio.Transport, transport)
        self._loop = asyncio.get_running_loop()
        self._transport.set_write_buffer_limits(high=self._high_water)
        self._fd = _plain_socket(transport)
        self._tls = transport.get_extra_info("sslcontext") is not None
        if self._guard is not None:
            self._turns = self._guard.turns
            self.group = address_of(transport)
        address = transport.get_extra_info("peername")
        self.peer = ":".join(map(str, address[:2])) if isinstance(address, tuple) else str(address)
        self.writable = True
        self._heard = self._loop.time()
        self._timer = self._loop.call_later(self._keep_alive, self._check_peer)
        self.handler.on_connected(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """The buffer for the socket's next bytes."""
        return self._parser.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes came."""
        self._heard = self._loop.time()
        self._parser.buffer_updated(nbytes)
        try:
            self._handle_frames()
        except OSError as error:
            # asyncio takes an OSError for the socket's, and closes the connection without logging.
            raise RuntimeError(f"handling what {self.peer} sent failed: {error}") from error

    def eof_received(self) -> None:
        """The peer has closed its side: send it the unsent bytes, then close the connection."""
        self.close()

    def pause_writing(self) -> None:
        """Too much waits to be sent."""
        self.writable = False
        self._taken = -1
        self._transport.pause_reading()
        if self._guard is not None:
            size = self._transport.get_write_buffer_size()
            self._guard.unsent.resized(self, size, self._reclaim_unsent)

    def resume_writing(self) -> None:
        """Enough has been sent."""
        self.writable = True
        if self._guard is not None:
            self._guard.unsent.resized(self, 0, self._reclaim_unsent)
        if self.closed:
            return
        self._loop.call_soon(self._resume)
        self.handler.on_writable(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is gone."""
        self.closed = self._gone = True
        self.writable = False
        self._pending.clear()
        self._parser.close()
        self.release()
        self._timer.cancel()
        self.handler.on_closed(self, self._error or exc)
        # The handler refers to the connection. Cycles of many short connections would be left to
        # Python's cycle collection, which stops the process for 0.1 s and more.
        del self.handler
        self._run_handler = None
