"""Frames: the boundaries of commands, and the opaque entries that some carry.

A frame is ``[u32 size][u32 command size][command]`` and, for SEND and MESSAGE, an *entry*:
``[0x0e01][u32 crc32c][u32 metadata size][metadata][payload]``. The entry keeps this form in
journals, in caches and for consumers. Nothing here reads its metadata.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from velaray.wire.commands import (
    MESSAGE,
    SEND,
    Command,
    Message,
    Send,
    decode_command,
    decode_message,
    decode_send,
)
from velaray.wire.entries import CHECKSUM_MAGIC, ENTRY_HEADER_SIZE
from velaray.wire.errors import (
    CorruptEntryError,
    FrameTooLargeError,
    MalformedCommandError,
    TruncatedFrameError,
)
from velaray.wire.send_runs import SendRun, read_run

MAX_MESSAGE_SIZE = 5 * 1024 * 1024
"""The largest entry, in bytes, that a server accepts unless configured otherwise."""

FRAME_PADDING = 10 * 1024
"""The bytes of a frame beyond the largest entry."""

BROKER_METADATA_MAGIC = 0x0E02

_FRAME_HEAD = Struct(">IIH")
_ENTRY_HEAD = Struct(">HII")
_SIZE = Struct(">I")
_ENTRY_PREFIX = Struct(">HI")

_SMALLEST = _FRAME_HEAD.size - 4
_FIRST_BUFFER = 4 * 1024
"""The buffer of a new connection: most connections are idle. It grows as it is filled."""
_USUAL_BUFFER = 64 * 1024
_ROOMY_BUFFER = 512 * 1024
_RETAINED_BUFFER = 1024 * 1024


_new_tuple = tuple.__new__


class Frame(NamedTuple):
    """A command, and the entry of a SEND or MESSAGE."""

    command: Command
    entry: bytes | None


def seal_entry(body: bytes | memoryview) -> bytes:
    """An entry of ``[u32 metadata size][metadata][payload]``, with its checksum."""
    return _ENTRY_PREFIX.pack(CHECKSUM_MAGIC, crc32c(body)) + body


def check_entry(data: memoryview, command: Command) -> bytes:
    """The entry in ``data``: checksum verified (or added), broker metadata cut off.

    Raises `CorruptEntryError`, which names ``command``.
    """
    if len(data) >= ENTRY_HEADER_SIZE:
        magic, checksum, metadata_size = _ENTRY_HEAD.unpack_from(data)
        if magic == CHECKSUM_MAGIC:
            if crc32c(data[6:]) != checksum:
                raise CorruptEntryError("the checksum of the entry doesn't match", command)
            if metadata_size > len(data) - ENTRY_HEADER_SIZE:
                raise CorruptEntryError("the metadata is larger than the entry", command)
            return bytes(data)
        if magic == BROKER_METADATA_MAGIC:
            skip = 6 + int.from_bytes(data[2:6], "big")
            if skip >= len(data):
                raise CorruptEntryError("the broker metadata is larger than the entry", command)
            if bytes(data[skip : skip + 2]) == b"\x0e\x02":
                raise CorruptEntryError("the entry has broker metadata twice", command)
            return check_entry(data[skip:], command)
    if len(data) < 4 or _SIZE.unpack_from(data)[0] > len(data) - 4:
        raise CorruptEntryError("the metadata is larger than the entry", command)
    return seal_entry(data)


def _without_entry(command: Command, rest: int) -> Frame:
    """The frame of a command that carries no entry; ``rest`` is the number of bytes after it."""
    if rest:
        raise MalformedCommandError(f"{rest} bytes follow a command that carries no entry")
    return Frame(command, None)


class FrameParser:
    """Cuts a stream of bytes into frames. Does no I/O.

    Bytes go into the parser's one buffer, either directly (`get_buffer`, then
    `buffer_updated`, as `asyncio.BufferedProtocol` does) or by `feed`. `next_frame` is then
    called until it returns None. The buffer is made for the first byte. It starts at 4 KiB,
    doubles up to 512 KiB whenever it is filled to its end, grows up to the largest frame and no
    further if frames are taken out before more is put in, and is given back after a frame of over
    1 MiB. ``resized`` is called with each new size.
    """

    __slots__ = (
        "_buffer",
        "_end",
        "_filled",
        "_limit",
        "_needed",
        "_resized",
        "_run_at",
        "_start",
        "_view",
    )

    def __init__(
        self,
        max_message_size: int = MAX_MESSAGE_SIZE,
        resized: Callable[[int], None] | None = None,
    ) -> None:
        self._limit = max_message_size + FRAME_PADDING
        self._resized = resized
        self._start = self._end = self._run_at = 0
        self._needed = 0
        self._filled = False
        self._buffer = bytearray()
        self._view = memoryview(self._buffer)

    def accept(self, max_message_size: int) -> None:
        """Accept frames with entries of up to this size from now on."""
        self._limit = max_message_size + FRAME_PADDING

    @property
    def buffered(self) -> int:
        """The number of bytes in the buffer."""
        return self._end - self._start

    @property
    def capacity(self) -> int:
        """The present capacity of the buffer in bytes."""
        return len(self._buffer)

    def get_buffer(self, sizehint: int = -1) -> memoryview:
        """Free space, at least one byte, to receive into; then call `buffer_updated`."""
        waiting = self._end - self._start
        capacity = len(self._buffer)
        if waiting == 0:
            self._start = self._end = 0
            if not capacity:
                self._replace_buffer(min(_FIRST_BUFFER, self._limit + 4))
            elif capacity > _RETAINED_BUFFER and self._needed <= _RETAINED_BUFFER:
                self._replace_buffer(_USUAL_BUFFER)
            elif self._filled and capacity < _ROOMY_BUFFER:
                # The buffer was filled: more room means fewer calls.
                self._replace_buffer(min(2 * capacity, _ROOMY_BUFFER, self._limit + 4))
            self._filled = False
        else:
            wanted = max(self._needed, waiting + 1)
            if self._filled and capacity < _USUAL_BUFFER:
                # Most reads end within a frame: then this is the only place where it grows.
                wanted = max(wanted, min(2 * capacity, self._limit + 4))
                self._filled = False
            if wanted > capacity:
                self._replace_buffer(max(wanted, min(2 * capacity, self._limit + 4)))
            elif wanted > capacity - self._start or capacity - self._end < capacity // 4:
                self._view[:waiting] = self._view[self._start : self._end]
                self._start, self._end = 0, waiting
        return self._view[self._end :]

    def buffer_updated(self, size: int) -> None:
        """Note that ``size`` bytes were written into the buffer of `get_buffer`."""
        self._end += size
        self._filled |= self._end == len(self._buffer)

    def feed(self, data: bytes | memoryview) -> None:
        """Put ``data`` into the buffer, which grows as needed."""
        waiting = self._end - self._start
        if len(self._buffer) - self._end < len(data):
            self._replace_buffer(max(len(self._buffer), waiting + len(data)))
        self._view[self._end : self._end + len(data)] = data
        self._end += len(data)

    def _replace_buffer(self, size: int) -> None:
        # A new buffer, not a resize: the transport may still hold a view of the old one.
        waiting = self._view[self._start : self._end]
        self._buffer = bytearray(size)
        self._view = memoryview(self._buffer)
        self._view[: len(waiting)] = waiting
        self._start, self._end = 0, len(waiting)
        if self._resized is not None:
            self._resized(size)

    def take_rest(self) -> bytes:
        """Take out all bytes that wait in the buffer, whole frames or not."""
        rest = bytes(self._view[self._start : self._end])
        self._start = self._end = self._needed = 0
        return rest

    def release(self) -> None:
        """Release the buffer and its content. The next byte gets a new one."""
        self._buffer = bytearray()
        self._view = memoryview(self._buffer)
        self._start = self._end = self._needed = 0
        if self._resized is not None:
            self._resized(0)

    def close(self) -> None:
        """Release the buffer at the end of the connection."""
        self.release()
        self._resized = None  # it refers to the connection, which refers to this parser

    @property
    def waits_for_turn(self) -> bool:
        """Whether something is in the buffer that isn't the beginning of a SEND."""
        waiting = self._end - self._start
        if waiting < _FRAME_HEAD.size:
            return waiting > 0
        return bool(_FRAME_HEAD.unpack_from(self._buffer, self._start)[2] != SEND)

    def next_frame(self) -> Frame | None:
        """The next frame, or None if its last byte hasn't come yet.

        Raises a `FrameError`. Unless that is ``fatal``, the frame has been skipped and the
        next call continues after it; a fatal one is raised again by every further call.
        """
        start = self._start
        available = self._end - start
        if available < _FRAME_HEAD.size:
            self._judge_sizes(available)
            return None
        size, command_size, kind = _FRAME_HEAD.unpack_from(self._buffer, start)
        if size > self._limit:
            raise FrameTooLargeError(size, self._limit)
        if size < _SMALLEST or command_size > size - 4:
            raise TruncatedFrameError(size)
        if available < size + 4:
            self._needed = size + 4
            return None
        self._needed = 0
        end = start + 4 + size
        self._start = end
        start += 8
        entry_start = start + command_size
        if kind == SEND:
            command: Command = decode_send(self._buffer, start, entry_start)
        elif kind == MESSAGE:
            command = decode_message(self._buffer, start, entry_start)
        else:
            command = decode_command(bytes(self._view[start:entry_start]))
        if type(command) is not Send and type(command) is not Message:
            return _without_entry(command, end - entry_start)
        if end - entry_start >= ENTRY_HEADER_SIZE:  # the usual entry, in as few steps as can be
            magic, checksum, metadata_size = _ENTRY_HEAD.unpack_from(self._buffer, entry_start)
            if (
                magic == CHECKSUM_MAGIC
                and metadata_size <= end - entry_start - ENTRY_HEADER_SIZE
                and crc32c(self._view[entry_start + 6 : end]) == checksum
            ):
                return _new_tuple(Frame, (command, bytes(self._view[entry_start:end])))
        return Frame(command, check_entry(self._view[entry_start:end], command))

    def next_run(self) -> SendRun | None:
        """The SENDs that come next, if several that are alike follow each other; or else None: call
        `next_frame`. A run of one is possible."""
        if self._end - self._start < self._needed:
            return None  # nearly always if frames are larger than reads
        found = read_run(self._buffer, self._view, self._start, self._end, self._limit)
        if found is None:
            return None
        self._run_at = self._start
        self._needed = 0
        run, self._start = found
        return run

    def put_back(self, kept: int) -> None:
        """Return the last run, except its first ``kept`` frames: they are the next frames again.
        Nothing was put in or taken out since `next_run`."""
        at = self._run_at
        for _ in range(kept):
            at += 4 + _SIZE.unpack_from(self._buffer, at)[0]
        self._start = at

    def _judge_sizes(self, available: int) -> None:
        # Sizes are checked at once: an impossible frame isn't waited for.
        if available < 4:
            self._needed = 0
            return
        size = _SIZE.unpack_from(self._buffer, self._start)[0]
        if size > self._limit:
            raise FrameTooLargeError(size, self._limit)
        if size < _SMALLEST:
            raise TruncatedFrameError(size)
        self._needed = size + 4
