"""Frames of a stream: four bytes of length, then a msgpack value.

`msgpack.Unpacker` also splits streams, but takes 41 KiB for each connection, and a host has
thousands of quiet ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Any

import msgspec

from velaray.topology.messages import encode

_LENGTH = 4
_read_length = Struct(">I").unpack_from
_decode = msgspec.msgpack.Decoder().decode


class FrameError(ValueError):
    """The stream isn't one of frames."""


def frame(value: Any) -> bytes:
    """The frame of a value. Raises `TypeError` for values that msgpack can't express."""
    body = encode(value)
    return len(body).to_bytes(_LENGTH, "big") + body


class FrameReader:
    """Splits what arrives into values."""

    def __init__(self, limit: int) -> None:
        """``limit`` is the largest frame that is accepted, in bytes."""
        self.limit = limit
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[Any]:
        """Take bytes, and yield the values of the frames that are complete.

        Raises `FrameError` for a frame that is too long or isn't msgpack; the stream is of no use
        any more.
        """
        came: bytes | bytearray = data
        if self._rest:
            self._rest += data
            if self._is_short():
                return
            came, self._rest = self._rest, bytearray()
        view = memoryview(came)
        start, end = _LENGTH, len(came)
        while start <= end:
            stop = start + self._length(came, start - _LENGTH)
            if stop > end:
                break
            try:
                value = _decode(view[start:stop])
            except msgspec.DecodeError as error:
                raise FrameError(f"a frame is damaged: {error}") from error
            start = stop + _LENGTH
            yield value
        self._rest += view[start - _LENGTH :]

    def _is_short(self) -> bool:
        """Whether a part of the first frame is missing. Raises `FrameError` if it is too long."""
        size = len(self._rest)
        return size < _LENGTH or size < _LENGTH + self._length(self._rest, 0)

    def _length(self, data: bytes | bytearray, at: int) -> int:
        """The length in the header at ``data[at:]``. Raises `FrameError` if it is too large."""
        length: int = _read_length(data, at)[0]
        if length > self.limit:
            raise FrameError(f"a frame has {length} bytes, and {self.limit} are allowed")
        return length
