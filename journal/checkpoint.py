"""Checkpoints: a state, in segments, at the start of a ledger.

The frames of new segments come first and the marker last; the marker names every segment of the
state with its address and digest, so segments without a marker are no checkpoint. An address
includes a ledger id: an unchanged segment stays in the ledger of an earlier checkpoint, one of the
last `MAX_REFERRED`; segments in older ledgers are copied.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgpack

from velaray.events.segments import Segment, StoredSegment, segment_digest
from velaray.journal import frames
from velaray.journal.encryption.parts import (
    SEGMENT_OVERHEAD,
    Decryptor,
    Encryptor,
    offset_of_segments,
)
from velaray.journal.errors import CorruptJournal, NotStored, UnsupportedFormat
from velaray.journal.manifest import LedgerInfo
from velaray.journal.scan import Frame, LedgerReader, decryptor_of, read_header
from velaray.journal.store import Buffer, LedgerStore

FORMAT_VERSION: Final = 2
FRAME_BYTES: Final = 4 << 20
"""Segments share a frame up to this size."""
MAX_REFERRED: Final = 16
"""The most ledgers before its own that a checkpoint refers to. It bounds the history that must be
kept: old ledgers are deletable after as many roll-overs."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state before the record ``sequence``; ``digest`` is the caller's. ``stored`` has the
    places of the segments."""

    sequence: int
    digest: bytes
    segments: dict[str, bytes]
    stored: dict[str, StoredSegment]


@dataclass(frozen=True, slots=True)
class EncodedCheckpoint:
    """The buffers to write after a ledger's header; history starts at ``end``. Once written, the
    segments are at the places in ``stored``, in ledgers from ``refers_from`` on."""

    buffers: list[Buffer]
    end: int
    stored: dict[str, StoredSegment]
    refers_from: int


async def read_segment(
    store: LedgerStore,
    journal: str,
    place: StoredSegment,
    known: dict[int, Decryptor | None] | None = None,
) -> bytes:
    """The bytes of a segment. ``known`` keeps what decrypts each ledger (None: it isn't encrypted),
    so that its header is read once. Raises `CorruptJournal`, also if the ledger is gone;
    `MissingKey`."""
    decryptor: Decryptor | None = None
    known = {} if known is None else known

    def corrupt(what: str) -> CorruptJournal:
        file = store.location(journal, place.ledger_id)
        return CorruptJournal(file, place.offset, f"checkpoint segment {place.name!r} {what}")

    try:
        # Without keys no ledger of a journal that can be read is encrypted.
        if store.keys is not None:
            if place.ledger_id not in known:
                header = await read_header(store, journal, place.ledger_id)
                known[place.ledger_id] = await decryptor_of(store, header)
            decryptor = known[place.ledger_id]
        size = place.size + (SEGMENT_OVERHEAD if decryptor is not None else 0)
        raw: bytes | None = await store.read(journal, place.ledger_id, place.offset, size)
    except NotStored as error:
        raise corrupt("is gone") from error
    if decryptor is not None and raw is not None:
        raw = decryptor.segment(raw, place.offset)
    if raw is None or segment_digest(raw) != place.digest:
        raise corrupt("is damaged")
    return raw


def encode_checkpoint(
    header: frames.LedgerHeader,
    sequence: int,
    segments: Mapping[str, Segment],
    digest: bytes,
    encryptor: Encryptor | None = None,
) -> EncodedCheckpoint:
    """The frames of a checkpoint at the start of a new ledger; stored segments are included by
    reference."""
    buffers: list[Buffer] = []
    at = header.size

    def write(parts: list[Buffer], records: int, flags: int, bodies: list[bytes]) -> None:
        nonlocal at
        payload = parts
        if encryptor is not None:
            place = frames.place_of(at, sequence, 0, records, flags, 0, 0)
            payload = [*encryptor.frame(parts, (), place), *bodies]
        payload = frames.gather(payload)
        buffers.append(frames.encode_frame(header.salt, at, sequence, 0, records, payload, flags))
        buffers.extend(payload)
        at += frames.FRAME_HEADER_SIZE + sum(map(len, payload))

    stored = {name: kept for name, kept in segments.items() if isinstance(kept, StoredSegment)}
    new = {name: body for name, body in segments.items() if isinstance(body, bytes)}
    for group in _groups(new):
        parts: list[Buffer] = []
        start = at + frames.FRAME_HEADER_SIZE
        if encryptor is None:
            bodies: list[bytes] = []
            offsets = _stage_plain(parts, group, start)
        else:
            bodies, offsets = _stage_encrypted(parts, group, start, encryptor)
        for (name, body), offset in zip(group, offsets, strict=True):
            digested = segment_digest(body)
            stored[name] = StoredSegment(name, header.ledger_id, offset, len(body), digested)
        write(parts, len(group), frames.CHECKPOINT, bodies)
    rows = [
        [name, kept.ledger_id, kept.offset, kept.size, kept.digest]
        for name, kept in sorted(stored.items())
    ]
    marker: list[Buffer] = []
    frames.stage_records(marker, [(msgpack.packb([FORMAT_VERSION, sequence, digest, rows]), None)])
    write(marker, 1, frames.CHECKPOINT | frames.CHECKPOINT_END, [])
    refers_from = min([header.ledger_id, *(kept.ledger_id for kept in stored.values())])
    return EncodedCheckpoint(buffers, at, stored, refers_from)


def _stage_plain(
    parts: list[Buffer], group: Sequence[tuple[str, bytes]], start: int
) -> Sequence[int]:
    """Add the segments of a frame whose payload begins at ``start``; returns their offsets."""
    offsets = []
    for name, body in group:
        frames.stage_records(parts, [(name.encode(), body)])
        start += frames.RECORD_HEADER_SIZE + len(name.encode()) + len(body)
        offsets.append(start - len(body))
    return offsets


def _stage_encrypted(
    parts: list[Buffer], group: Sequence[tuple[str, bytes]], start: int, encryptor: Encryptor
) -> tuple[list[bytes], Sequence[int]]:
    """Add the names of the segments; returns the encrypted segments and their offsets."""
    frames.stage_apart(parts, [], ((name.encode(), body) for name, body in group))
    at = start + offset_of_segments(sum(map(len, parts)))
    bodies, offsets = [], []
    for _, body in group:
        bodies.append(encryptor.segment(body, at))
        offsets.append(at)
        at += len(bodies[-1])
    return bodies, offsets


def _groups(segments: Mapping[str, bytes]) -> Iterable[list[tuple[str, bytes]]]:
    group: list[tuple[str, bytes]] = []
    size = 0
    for name, body in sorted(segments.items()):
        if group and size + len(body) > FRAME_BYTES:
            yield group
            group, size = [], 0
        group.append((name, body))
        size += len(body)
    if group:
        yield group


async def read_checkpoint(reader: LedgerReader, info: LedgerInfo) -> Checkpoint:
    """The checkpoint at the start of a listed ledger, with the segments that it refers to in
    earlier ones.

    Raises `CorruptJournal`: a ledger is listed only after its checkpoint is durable.
    """
    found: dict[int, tuple[str, bytes]] = {}
    marker: Frame | None = None
    async for frame in reader.whole(reader.header.size, info.data_offset):
        if marker is not None or frame.header.sequence != info.first_sequence:
            raise CorruptJournal(reader.file, frame.offset, "this frame belongs to no checkpoint")
        if frame.header.flags & frames.CHECKPOINT_END:
            marker = frame
            continue
        for raw_name, body, offset in reader.segments(frame):
            if body is not None:
                found[offset] = (str(raw_name, "utf-8"), bytes(body))
    if marker is None:
        raise CorruptJournal(reader.file, reader.header.size, "the checkpoint has no marker")
    sequence, digest, rows = _decode_marker(reader, marker)
    stored = {row[0]: StoredSegment(*row) for row in rows}
    segments: dict[str, bytes] = {}
    known: dict[int, Decryptor | None] = {}
    for name, place in stored.items():
        if place.ledger_id != reader.header.ledger_id:
            segments[name] = await read_segment(reader.store, reader.journal, place, known)
            continue
        own, raw = found.get(place.offset, ("", b""))
        if own != name or len(raw) != place.size or segment_digest(raw) != place.digest:
            raise CorruptJournal(
                reader.file,
                marker.offset,
                f"checkpoint segment {name!r} is not at ledger {place.ledger_id}, "
                f"byte {place.offset}",
            )
        segments[name] = raw
    return Checkpoint(sequence, digest, segments, stored)


def _decode_marker(reader: LedgerReader, marker: Frame) -> tuple[int, bytes, list[Any]]:
    ((raw, _, _),) = reader.segments(marker)
    version, *fields = msgpack.unpackb(raw)
    if version != FORMAT_VERSION:
        raise UnsupportedFormat(reader.file, version)
    sequence, digest, rows = fields
    return sequence, digest, rows
