"""Frames of a stream: four bytes of length, then a msgpack value.

`msgpack.Unpacker` also splits streams, but takes 41 KiB for each connection, and a host has
thousands of quiet ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from velaray.topology.messages import encode

_LENGTH = 4
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
            if self._first_end(self._rest) > len(self._rest):
                return
            came, self._rest = self._rest, bytearray()
        rest = memoryview(came)
        while (end := self._first_end(rest)) <= len(rest):
            try:
                value = _decode(rest[_LENGTH:end])
            except msgspec.DecodeError as error:
                raise FrameError(f"a frame is damaged: {error}") from error
            rest = rest[end:]
            yield value
        self._rest += rest

    def _first_end(self, data: bytearray | memoryview) -> int:
        """The length of the first frame with its header; that of a header if it isn't there yet.

        Raises `FrameError` if the frame is too long.
        """
        if len(data) < _LENGTH:
            return _LENGTH
        length = int.from_bytes(data[:_LENGTH], "big")
        if length > self.limit:
            raise FrameError(f"a frame has {length} bytes, and {self.limit} are allowed")
        return _LENGTH + length
