"""The bytes of a ledger.

A ledger is a header, then frames. One group commit writes one frame: a fixed header,
then records. A record is two lengths (event, blob), the event's bytes, the blob's bytes.

Every checksum is salted with 8 bytes that the ledger's header carries and with the offset
of the frame, so that neither a frame inside a payload nor one copied from elsewhere in the
same file passes for a frame of the ledger.

After a frame is synced and the owner's epoch confirmed, the ledger's *commit mark* is
overwritten: one small record, in a file beside the ledger, with the end of its acknowledged part. A
bad frame before that end is damaged or cut off, not torn.

In relaxed mode a frame may be written while earlier ones aren't synced. Its *lag* is the number of
bytes before it that weren't known to be synced. These may be lost in any order, so a bad frame
among them is torn, and a bad frame before them is damaged. The lag is in the upper 24 bits of the
flags, and 0 in a frame that was written after a sync.

The payloads of an encrypted ledger have another form (`velaray.journal.encryption.parts`). All
checksums are those of the stored bytes, so they are checked without the key.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, final

import msgpack
from crc32c import crc32c

from velaray.journal.checksums import joined
from velaray.journal.encryption.keys import LedgerKey
from velaray.journal.errors import CorruptJournal, UnsupportedFormat
from velaray.journal.store import Buffer

FORMAT_VERSION: Final = 3
"""The format of encrypted ledgers. Others have `_PLAIN_VERSION`, which older versions can read."""
_PLAIN_VERSION: Final = 2
NO_BLOB: Final = 0xFFFFFFFF

LARGE: Final = 16 << 10
"""A part of at least this size is written without a copy. Smaller parts are joined, which costs
less than handling each."""

SEAL_MAGIC: Final = 0x0E01
"""The first two bytes of an entry in Pulsar's format; the CRC32C of the bytes behind it follows."""

CHECKPOINT: Final = 1
"""Frame flag: the records are checkpoint segments (or the marker), not history."""
CHECKPOINT_END: Final = 2
"""Frame flag: the frame's one record is the marker that completes a checkpoint."""

_KIND_BITS: Final = 8
MAX_LAG: Final = (1 << 24) - 1
"""The most bytes before a frame that may be unsynced when it is written."""

LEDGER_HEADER_READ: Final = 8192
"""A read of this size from offset 0 holds any ledger's header."""

_LEDGER_MAGIC: Final = b"\x89VLEDGER"
_LEDGER_HEADER: Final = struct.Struct("<8sHHQQ8s")
_CRC: Final = struct.Struct("<I")

_FRAME_MAGIC: Final = b"\x9eVLF"
_MARK_MAGIC: Final = b"\x9eVLM"
_FRAME: Final = struct.Struct("<4sIIIQQIIQ")
_FRAME_TAIL: Final = struct.Struct("<IIQQIIQ")
_MARK: Final = struct.Struct("<4sIQQQ")
_MARK_TAIL: Final = struct.Struct("<QQQ")
_SEAL: Final = struct.Struct(">HI")
_SEED: Final = struct.Struct("<8sQ")
_PLACE: Final = struct.Struct("<QQQIIIQ")
_LENGTHS: Final = struct.Struct("<II")
_KEY_SIZE: Final = struct.Struct("<H")
_pack_lengths = _LENGTHS.pack

FRAME_HEADER_SIZE: Final = _FRAME.size
MARK_SIZE: Final = _MARK.size
RECORD_HEADER_SIZE: Final = _LENGTHS.size

Pair = tuple[memoryview, memoryview | None]
"""The event and the blob of a record."""
LOST: Final = memoryview(b"")
"""This object stands for a blob whose bytes are damaged."""


@dataclass(frozen=True, slots=True)
class LedgerHeader:
    """The content of a ledger's header; ``size`` is the offset of its first frame. ``key`` is None
    for a ledger that isn't encrypted."""

    ledger_id: int
    owner: str
    epoch: int
    salt: bytes
    size: int
    key: LedgerKey | None = None

    @property
    def key_context(self) -> bytes:
        """What the key of an encrypted ledger is derived for."""
        return key_context(self.ledger_id, self.owner, self.epoch, self.salt)


def key_context(ledger_id: int, owner: str, epoch: int, salt: bytes) -> bytes:
    """What the key of an encrypted ledger with such a header is derived for."""
    return _fixed_header(FORMAT_VERSION, owner.encode(), ledger_id, epoch, salt) + owner.encode()


def _fixed_header(version: int, name: bytes, ledger_id: int, epoch: int, salt: bytes) -> bytes:
    return _LEDGER_HEADER.pack(_LEDGER_MAGIC, version, len(name), ledger_id, epoch, salt)


def encode_ledger_header(
    ledger_id: int, owner: str, epoch: int, salt: bytes, key: LedgerKey | None = None
) -> bytes:
    """The first bytes of a ledger; with ``key`` of an encrypted one."""
    name = owner.encode()
    version = _PLAIN_VERSION if key is None else FORMAT_VERSION
    raw = _fixed_header(version, name, ledger_id, epoch, salt) + name
    if key is not None:
        packed = msgpack.packb([key.key_id, key.wrapped, key.seed])
        raw += _KEY_SIZE.pack(len(packed)) + packed
    return raw + _CRC.pack(crc32c(raw))


def decode_ledger_header(file: str, raw: bytes) -> LedgerHeader:
    """Read what `encode_ledger_header` wrote.

    Raises `CorruptJournal`, or `UnsupportedFormat` for a newer version's ledger.
    """
    if len(raw) < _LEDGER_HEADER.size or not raw.startswith(_LEDGER_MAGIC):
        raise CorruptJournal(file, 0, "no ledger header")
    _, version, length, ledger_id, epoch, salt = _LEDGER_HEADER.unpack_from(raw)
    name_end = end = _LEDGER_HEADER.size + length
    if version == FORMAT_VERSION and len(raw) >= end + _KEY_SIZE.size:
        end += _KEY_SIZE.size + _KEY_SIZE.unpack_from(raw, end)[0]
    if len(raw) < end + _CRC.size or _CRC.unpack_from(raw, end)[0] != crc32c(raw[:end]):
        raise CorruptJournal(file, 0, "the ledger header's checksum is wrong")
    if version not in (_PLAIN_VERSION, FORMAT_VERSION):
        raise UnsupportedFormat(file, version)
    owner = raw[_LEDGER_HEADER.size : name_end].decode()
    key = None
    if version == FORMAT_VERSION:
        key = LedgerKey(*msgpack.unpackb(raw[name_end + _KEY_SIZE.size : end]))
    return LedgerHeader(ledger_id, owner, epoch, salt, end + _CRC.size, key)


class FrameHeader(NamedTuple):
    """The content of a frame's header. ``sequence`` and ``entry`` are those of its first record
    (for a checkpoint: of the first record after it). ``at_ms`` is the time on the writer's clock,
    in milliseconds since 1970: a label for people, on which nothing depends."""

    length: int
    payload_crc: int
    sequence: int
    entry: int
    records: int
    flags: int
    at_ms: int

    @property
    def kind(self) -> int:
        """The flags without the lag: 0 for history."""
        return self.flags & (1 << _KIND_BITS) - 1

    @property
    def lag(self) -> int:
        """The number of bytes before the frame that weren't known to be synced when it was
        written."""
        return self.flags >> _KIND_BITS


class Mark(NamedTuple):
    """The part of a ledger that was certainly acknowledged: the sequence of its last record, and
    the end offset of that record's frame."""

    sequence: int
    end: int


def _seed(salt: bytes, offset: int) -> int:
    return crc32c(_SEED.pack(salt, offset))


def encode_frame(
    salt: bytes,
    offset: int,
    sequence: int,
    entry: int,
    records: int,
    payload: Sequence[Buffer],
    flags: int,
    lag: int = 0,
    at_ms: int = 0,
    *,
    encrypted: bool = False,
) -> bytes:
    """The header of a frame at ``offset``; the buffers of ``payload`` must follow it.

    ``lag`` (at most `MAX_LAG`) is the number of bytes before ``offset`` that aren't known to be
    synced; ``at_ms`` is the time. Every second buffer of history is a `LARGE` one, as `gather`
    makes them. The checksum that such an entry in Pulsar's format states isn't computed again: it
    was checked when the entry arrived. If the entry's memory has changed since, the frame's
    checksum proves that. An ``encrypted`` entry states none, whatever its first bytes are.
    """
    size, crc, joins = 0, _seed(salt, offset), not flags and not encrypted
    for number, buffer in enumerate(payload):
        size += len(buffer)
        stated = _stated_checksum(buffer) if number & 1 and joins else None
        if stated is None:
            crc = crc32c(buffer, crc)
        else:
            crc = crc32c(memoryview(buffer)[: _SEAL.size], crc)
            crc = joined(crc, stated, len(buffer) - _SEAL.size)
    kind = flags | lag << _KIND_BITS
    tail = _FRAME_TAIL.pack(size, crc, sequence, entry, records, kind, at_ms)
    return _FRAME_MAGIC + _CRC.pack(crc32c(tail, _seed(salt, offset))) + tail


def decode_frame_header(salt: bytes, offset: int, raw: Buffer, at: int = 0) -> FrameHeader | None:
    """The header at ``raw[at:]``, which was stored at ``offset``; None if it isn't a header."""
    if len(raw) - at < _FRAME.size or raw[at : at + 4] != _FRAME_MAGIC:
        return None
    _, crc, *fields = _FRAME.unpack_from(raw, at)
    if crc != crc32c(raw[at + 8 : at + _FRAME.size], _seed(salt, offset)):
        return None
    return FrameHeader(*fields)


def place_of(
    offset: int, sequence: int, entry: int, records: int, flags: int, lag: int, at_ms: int
) -> bytes:
    """What an encrypted frame's parts are bound to: its offset and the fields of its header."""
    return _PLACE.pack(offset, sequence, entry, records, flags, lag, at_ms)


def place_of_stored(offset: int, header: FrameHeader) -> bytes:
    """The same of a stored frame."""
    return place_of(
        *(offset, header.sequence, header.entry, header.records),
        *(header.kind, header.lag, header.at_ms),
    )


def payload_is_whole(salt: bytes, offset: int, header: FrameHeader, payload: Buffer) -> bool:
    """Whether ``payload`` is the written payload of the frame at ``offset``."""
    return crc32c(payload, _seed(salt, offset)) == header.payload_crc


def blob_is_whole(blob: Buffer) -> bool:
    """Whether a blob has a checksum of its own, as entries in Pulsar's format do, and it is
    right."""
    stated = _stated_checksum(blob)
    return stated is not None and crc32c(memoryview(blob)[_SEAL.size :]) == stated


def _stated_checksum(blob: Buffer) -> int | None:
    if len(blob) < _SEAL.size:
        return None
    magic, stated = _SEAL.unpack_from(blob)
    return stated if magic == SEAL_MAGIC else None


def only_blobs_are_damaged(salt: bytes, offset: int, header: FrameHeader, payload: Buffer) -> bool:
    """Whether everything in a payload of history is as it was written, except the content of blobs
    that have checksums of their own.

    The proof is the frame's checksum. It is computed with the checksum that each blob states
    instead of its bytes.
    """
    if header.kind or len(payload) != header.length:
        return False
    crc = _seed(salt, offset)
    view = memoryview(payload)
    at = 0
    for _ in range(header.records):
        if at + _LENGTHS.size > len(view):
            return False
        event_length, blob_length = _LENGTHS.unpack_from(view, at)
        end = at + _LENGTHS.size + event_length
        crc = crc32c(view[at:end], crc)
        at = end
        if blob_length == NO_BLOB:
            continue
        at = end + blob_length
        stated = _stated_checksum(view[end:at])
        if at > len(view) or stated is None:
            crc = crc32c(view[end:at], crc)
            continue
        crc = crc32c(view[end : end + _SEAL.size], crc)
        crc = joined(crc, stated, blob_length - _SEAL.size)
    return at == len(view) and crc == header.payload_crc


def encode_mark(salt: bytes, ledger_id: int, sequence: int, end: int) -> bytes:
    """The commit mark of a ledger acknowledged up to the record ``sequence``, whose frame
    ends at ``end``."""
    tail = _MARK_TAIL.pack(ledger_id, sequence, end)
    return _MARK_MAGIC + _CRC.pack(crc32c(tail, _seed(salt, 0))) + tail


def decode_mark(salt: bytes, ledger_id: int, raw: bytes) -> Mark | None:
    """Read what `encode_mark` wrote; None if ``raw`` isn't this ledger's mark.

    A mark is written without a sync, so a missing, torn or damaged one proves nothing about the
    ledger.
    """
    if len(raw) != _MARK.size or not raw.startswith(_MARK_MAGIC):
        return None
    _, crc, owner, sequence, end = _MARK.unpack(raw)
    if owner != ledger_id or crc != crc32c(raw[8:], _seed(salt, 0)):
        return None
    return Mark(sequence, end)


def find_later(salt: bytes, base: int, raw: bytes, sequence: int, at_least: int) -> int | None:
    """The offset of the first frame header in ``raw`` (stored at ``base``) that proves the frame
    of the record ``sequence``, at offset ``at_least``, to have been synced.

    It was written after that frame, with a lag that doesn't extend back to it. A header suffices as
    proof, because it was written only after everything before its lag was synced.
    """
    at = raw.find(_FRAME_MAGIC)
    while at >= 0:
        header = decode_frame_header(salt, base + at, raw, at)
        if header is not None and header.sequence > sequence and base + at - header.lag > at_least:
            return base + at
        at = raw.find(_FRAME_MAGIC, at + 1)
    return None


@final
@dataclass(frozen=True, slots=True)
class RecordRun:
    """Consecutive records with blobs, none of them `LARGE`."""

    events: Sequence[bytes]
    blobs: Sequence[bytes]


Record = tuple[bytes, Buffer | None]
"""An event and its blob, if any."""


def _lengths(run: RecordRun) -> list[bytes]:
    return list(map(_pack_lengths, map(len, run.events), map(len, run.blobs)))


def stage_records(
    parts: list[Buffer], records: Iterable[Record | RecordRun]
) -> tuple[int, int, bool]:
    """Add records to ``parts``; return their number, the number of those with a blob, and whether a
    blob is `LARGE`."""
    count = entries = 0
    large = False
    append = parts.append
    for record in records:
        if type(record) is RecordRun:
            run: list[Buffer] = [b""] * (3 * len(record.events))
            run[0::3] = _lengths(record)
            run[1::3] = record.events
            run[2::3] = record.blobs
            parts += run
            count += len(record.events)
            entries += len(record.events)
            continue
        event, blob = record
        count += 1
        if blob is None:
            append(_pack_lengths(len(event), NO_BLOB))
            append(event)
            continue
        size = len(blob)
        append(_pack_lengths(len(event), size))
        append(event)
        append(blob)
        entries += 1
        if size >= LARGE:
            large = True
    return count, entries, large


def stage_apart(
    parts: list[Buffer], blobs: list[Buffer], records: Iterable[Record | RecordRun]
) -> tuple[int, int]:
    """Add the lengths and events of records to ``parts``, and their blobs to ``blobs``; return the
    numbers of both. It is for encrypted frames."""
    count, before = 0, len(blobs)
    for record in records:
        if type(record) is RecordRun:
            run = [b""] * (2 * len(record.events))
            run[0::2] = _lengths(record)
            run[1::2] = record.events
            parts += run
            blobs += record.blobs
            count += len(record.events)
            continue
        event, blob = record
        count += 1
        parts.append(_pack_lengths(len(event), NO_BLOB if blob is None else len(blob)))
        parts.append(event)
        if blob is not None:
            blobs.append(blob)
    return count, len(blobs) - before


def lengths_at(payload: memoryview, at: int) -> tuple[int, int]:
    """The lengths of the event and the blob (or `NO_BLOB`) of the record at ``at``."""
    event, blob = _LENGTHS.unpack_from(payload, at)
    return event, blob


def gather(parts: Sequence[Buffer]) -> list[Buffer]:
    """The same bytes in fewer buffers: adjacent small ones are joined, large ones stay.

    Every second buffer of the result is a large one; before, between and behind them are joined
    ones, which may be empty.
    """
    gathered: list[Buffer] = []
    small: list[Buffer] = []
    for part in parts:
        if len(part) < LARGE:
            small.append(part)
            continue
        gathered += (b"".join(small), part)
        small = []
    gathered.append(b"".join(small))
    return gathered


def records(
    payload: memoryview, count: int, fault: Callable[[str], Exception] = ValueError
) -> Iterator[Pair]:
    """The (event, blob) pairs of a frame, as slices of ``payload``.

    Raises ``fault`` of a text if the lengths don't add up.
    """
    at = 0
    end = len(payload)
    lengths, size = _LENGTHS.unpack_from, _LENGTHS.size
    for _ in range(count):
        event_at = at + size
        if event_at > end:
            raise fault("a record starts beyond the frame's end")
        event_length, blob_length = lengths(payload, at)
        at = blob_at = event_at + event_length
        blob: memoryview | None = None
        if blob_length != NO_BLOB:
            at += blob_length
            blob = payload[blob_at:at]
        if at > end:
            raise fault("a record ends beyond the frame's end")
        yield payload[event_at:blob_at], blob
    if at != end:
        raise fault(f"{end - at} bytes after the frame's last record")
