"""The first bytes of each message: which run sent it, and when that was intended."""

from __future__ import annotations

import os
import struct

from velaray.bench.load import STAMP_SIZE

_MAGIC = b"vlrb"
_FORM = struct.Struct(">4s4sq")
assert _FORM.size == STAMP_SIZE


class Stamps:
    """Makes and reads the payloads of a run."""

    def __init__(self, size: int) -> None:
        """``size``: bytes of a payload, at least `STAMP_SIZE`."""
        self._run = os.urandom(4)
        self._rest = os.urandom(size - STAMP_SIZE)

    def payload(self, intended_ns: int) -> bytes:
        """A payload that doesn't compress, as those of real messages often don't."""
        return _FORM.pack(_MAGIC, self._run, intended_ns) + self._rest

    def read(self, payload: bytes | None) -> tuple[int | None, bool]:
        """When the message was intended (None: another program sent it), and whether this run sent
        it."""
        if payload is None or len(payload) < STAMP_SIZE:
            return None, False
        magic, run, intended_ns = _FORM.unpack_from(payload)
        return (intended_ns, run == self._run) if magic == _MAGIC else (None, False)
