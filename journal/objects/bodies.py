"""The bytes of the objects: a header with kind, write id and checksum, then the payload.

Each write has an id of its own, so the writer of an object recognizes it after a lost answer, and
equal bytes never recur under a name. The checksum covers the object's name, so an object that was
copied to another name is refused.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import msgpack
from crc32c import crc32c

from velaray.journal.errors import CorruptJournal, UnsupportedFormat

FORMAT_VERSION: Final = 1
WRITE_ID_SIZE: Final = 16

_MAGIC: Final = b"\x89VOBJEC"
_HEADER: Final = struct.Struct("<7sBHH16sI")
_LENGTH: Final = struct.Struct("<I")


class Kind(IntEnum):
    """The kind of an object."""

    MANIFEST = 1
    FRAMES = 2
    SEAL = 3
    FLOOR = 4
    PART = 5
    NUMBERS = 6
    INDEX = 7
    PROBE = 8
    BACKUP = 9
    END = 10
    SECRETS = 11


@dataclass(frozen=True, slots=True)
class Body:
    """A decoded object."""

    kind: Kind
    write_id: bytes
    payload: memoryview
    checksum: int


def encode_body(name: str, kind: Kind, write_id: bytes, payload: bytes) -> bytes:
    """The stored form of an object. ``name`` is its name in the store, without the prefix."""
    checksum = crc32c(payload, _seed(name, kind, write_id))
    return _HEADER.pack(_MAGIC, FORMAT_VERSION, kind, 0, write_id, checksum) + payload


def _seed(name: str, kind: int, write_id: bytes) -> int:
    return int(crc32c(name.encode(), crc32c(write_id, kind)))


HEADER_SIZE: Final = _HEADER.size
"""The bytes of an object before its payload."""


def decode_body(name: str, place: str, raw: bytes, *kinds: Kind) -> Body:
    """Read what `encode_body` wrote under ``name``. ``place`` is its address for people.

    Raises `CorruptJournal`, also if the object is of no kind in ``kinds``; `UnsupportedFormat`.
    """
    if len(raw) < _HEADER.size or not raw.startswith(_MAGIC):
        raise CorruptJournal(place, 0, "not an object of velaray")
    _, version, kind, _, write_id, checksum = _HEADER.unpack_from(raw)
    if version != FORMAT_VERSION:
        raise UnsupportedFormat(place, version)
    payload = memoryview(raw)[_HEADER.size :]
    if crc32c(payload, _seed(name, kind, write_id)) != checksum:
        problem = "the object's checksum is wrong: it is damaged, or was written under another name"
        raise CorruptJournal(place, 0, problem)
    if kind not in kinds:
        expected = " or ".join(each.name.lower() for each in kinds)
        raise CorruptJournal(place, 0, f"an object of kind {kind}, expected {expected}")
    return Body(Kind(kind), write_id, payload, checksum)


@dataclass(frozen=True, slots=True)
class Chunk:
    """A run of a ledger's bytes that its owner appended. ``epoch`` is the owner's."""

    journal: str
    epoch: int
    ledger_id: int
    offset: int
    data: bytes | memoryview

    @property
    def end(self) -> int:
        """The offset after its last byte."""
        return self.offset + len(self.data)


def encode_chunks(chunks: list[Chunk], before: int, committed: int) -> bytes:
    """The payload of an object of frames: an index, then the bytes.

    ``before`` is the checksum of the log's object before it. When this one was sent, all objects of
    the log below the number ``committed`` were stored.
    """
    rows = [[c.journal, c.epoch, c.ledger_id, c.offset, len(c.data)] for c in chunks]
    index: bytes = msgpack.packb([before, committed, rows])
    return b"".join((_LENGTH.pack(len(index)), index, *(chunk.data for chunk in chunks)))


def decode_chunks(place: str, payload: memoryview) -> tuple[list[Chunk], int, int]:
    """Read what `encode_chunks` wrote; the data are slices of ``payload``. Raises
    `CorruptJournal`."""
    try:
        (size,) = _LENGTH.unpack_from(payload)
        at = _LENGTH.size + size
        before, committed, rows = msgpack.unpackb(payload[_LENGTH.size : at])
        chunks: list[Chunk] = []
        for journal, epoch, ledger_id, offset, length in rows:
            chunks.append(Chunk(journal, epoch, ledger_id, offset, payload[at : at + length]))
            at += length
    except (ValueError, TypeError, struct.error, msgpack.UnpackException) as error:
        raise CorruptJournal(place, 0, f"the index of the object is damaged: {error}") from error
    if at != len(payload):
        raise CorruptJournal(place, 0, f"{len(payload) - at} bytes are not in the index")
    return chunks, before, committed


def encode_record(*fields: Any) -> bytes:
    """The payload of a small object."""
    packed: bytes = msgpack.packb(fields)
    return packed


def decode_record(place: str, payload: memoryview) -> list[Any]:
    """Read what `encode_record` wrote. Raises `CorruptJournal`."""
    try:
        fields: list[Any] = msgpack.unpackb(payload)
    except (ValueError, msgpack.UnpackException) as error:
        raise CorruptJournal(place, 0, f"the record is damaged: {error}") from error
    return fields
