"""The encrypted parts of frames, with AES-256-GCM.

The payload of a frame begins with the number of its first part and the size of the second one.
The first part has the lengths and the events of all records. Each blob of history is a part of its
own, so one damaged blob is lost alone. So is each segment of a checkpoint, which begins with its
own number, since it is read alone.

The number of a part is its nonce. The `Encryptor` of a ledger counts the parts; a number isn't used
again even if an append had no effect, after which another frame gets the same offset. The
authenticated data of a part is its place: the offset and the header of its frame, or the offset of
the segment. So a part that was moved doesn't open.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from velaray.journal.frames import LOST, NO_BLOB, RECORD_HEADER_SIZE, Pair, lengths_at
from velaray.journal.store import Buffer

TAG_SIZE: Final = 16
_HEAD: Final = struct.Struct("<QI")
_NUMBER: Final = struct.Struct("<Q")
_NONCE: Final = struct.Struct("<4xQ")
_SEGMENT: Final = struct.Struct("<7sQ")

SEGMENT_OVERHEAD: Final = _NUMBER.size + TAG_SIZE
"""Bytes that an encrypted segment has more than a plain one."""


def offset_of_segments(names: int) -> int:
    """Where the segments begin in the payload of a frame whose names and lengths have ``names``
    bytes."""
    return _HEAD.size + names + TAG_SIZE


class Encryptor:
    """Encrypts the frames of one ledger. Only the object that creates the ledger makes one."""

    def __init__(self, key: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # a large library

        self._encrypt = AESGCM(key).encrypt
        self._next = 0

    def frame(
        self, events: Sequence[Buffer], blobs: Sequence[Buffer], place: bytes
    ) -> list[Buffer]:
        """The payload of a frame. ``events`` are the lengths and events of its records, ``place``
        is what `velaray.journal.frames.place_of` returns."""
        number, encrypt = self._next, self._encrypt
        self._next += 1 + len(blobs)
        first = encrypt(_NONCE.pack(number), b"".join(events), place)
        payload: list[Buffer] = [_HEAD.pack(number, len(first)), first]
        for each, blob in enumerate(blobs, number + 1):
            payload.append(encrypt(_NONCE.pack(each), blob, place))
        return payload

    def segment(self, body: bytes, offset: int) -> bytes:
        """A segment of a checkpoint, to be stored at ``offset``."""
        number = self._next
        self._next += 1
        return _NUMBER.pack(number) + self._encrypt(_NONCE.pack(number), body, _at(offset))


class Decryptor:
    """Decrypts the frames of one ledger."""

    def __init__(self, key: bytes) -> None:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._decrypt = AESGCM(key).decrypt
        self._invalid = InvalidTag

    def frame(
        self, payload: memoryview, records: int, place: bytes, *, blobs: bool = True
    ) -> list[Pair] | None:
        """The (event, blob) pairs of a frame of history. A blob that isn't what was encrypted at
        this place is `LOST`. None if that is so for the events. Without ``blobs`` none of them is
        decrypted, and each is `LOST`."""
        found = self._events(payload, records, place)
        if found is None:
            return None
        number, at, pairs = found
        opened: list[Pair] = []
        for event, size in pairs:
            blob: memoryview | None = None
            if size is not None:
                number += 1
                end = at + size + TAG_SIZE
                plain = self._opened(number, payload[at:end], place) if blobs else None
                blob = LOST if plain is None else memoryview(plain)
                at = end
            opened.append((event, blob))
        return opened if at == len(payload) else None

    def segments(
        self, payload: memoryview, records: int, place: bytes, offset: int
    ) -> list[tuple[memoryview, memoryview | None, int]] | None:
        """Of a frame of a checkpoint, whose payload is at ``offset``: the name of each segment, its
        bytes and where they are stored; for the marker its bytes and None. None if any of them
        isn't what was encrypted at this place."""
        found = self._events(payload, records, place)
        if found is None:
            return None
        _, at, pairs = found
        opened: list[tuple[memoryview, memoryview | None, int]] = []
        for name, size in pairs:
            body: memoryview | None = None
            end = at
            if size is not None:
                end = at + size + SEGMENT_OVERHEAD
                plain = self.segment(payload[at:end], offset + at)
                if plain is None:
                    return None
                body = memoryview(plain)
            opened.append((name, body, offset + at))
            at = end
        return opened if at == len(payload) else None

    def segment(self, stored: Buffer, offset: int) -> bytes | None:
        """The bytes of a segment; None if they aren't what was encrypted at this offset."""
        if len(stored) < SEGMENT_OVERHEAD:
            return None
        (number,) = _NUMBER.unpack_from(stored)
        return self._opened(number, memoryview(stored)[_NUMBER.size :], _at(offset))

    def _events(
        self, payload: memoryview, records: int, place: bytes
    ) -> tuple[int, int, list[tuple[memoryview, int | None]]] | None:
        """The number of the first part, the offset after it, and the event and the size of the
        blob of each record."""
        if len(payload) < _HEAD.size:
            return None
        number, size = _HEAD.unpack_from(payload)
        end = _HEAD.size + size
        plain = self._opened(number, payload[_HEAD.size : end], place)
        if plain is None:
            return None
        view, at = memoryview(plain), 0
        pairs: list[tuple[memoryview, int | None]] = []
        for _ in range(records):
            event, blob = lengths_at(view, at)
            at += RECORD_HEADER_SIZE
            pairs.append((view[at : at + event], None if blob == NO_BLOB else blob))
            at += event
        return number, end, pairs

    def _opened(self, number: int, stored: Buffer, place: bytes) -> bytes | None:
        if len(stored) < TAG_SIZE:
            return None
        try:
            return self._decrypt(_NONCE.pack(number), stored, place)
        except self._invalid:
            return None


def _at(offset: int) -> bytes:
    return _SEGMENT.pack(b"segment", offset)
