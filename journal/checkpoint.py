"""Checkpoints: a state, in segments, at the start of a ledger.

The frames of new segments come first and the marker last; the marker names every segment of the
state with its address and digest, so segments without a marker are no checkpoint. An address
includes a ledger id: an unchanged segment stays in the ledger of an earlier checkpoint, one of the
last `MAX_REFERRED`; segments in older ledgers are copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import msgpack

from velaray.events.segments import Segment, StoredSegment, segment_digest
from velaray.journal import frames
from velaray.journal.errors import CorruptJournal, JournalError, NotStored, UnsupportedFormat
from velaray.journal.manifest import LedgerInfo
from velaray.journal.scan import Frame, LedgerReader
from velaray.journal.store import Buffer, LedgerStore

FORMAT_VERSION: Final = 2
FRAME_BYTES: Final = 4 << 20
"""Segments share a frame up to this size."""
MAX_REFERRED: Final = 16
"""The most ledgers before its own that a checkpoint refers to. It bounds the history that must be
kept: old ledgers are deletable after as many roll-overs."""

Unreadable = Callable[[JournalError], None]
"""Called with the error of a segment that can't be read any more, before the reader gets it."""


def _nobody(error: JournalError) -> None:
    """The default of `Unreadable`: only the reader gets the error."""


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


class Places:
    """Makes the `StoredSegment` of a journal's ledgers."""

    def __init__(self, store: LedgerStore, journal: str, unreadable: Unreadable) -> None:
        self._store = store
        self._journal = journal
        self._unreadable = unreadable

    def place(
        self, name: str, ledger_id: int, offset: int, size: int, known: bytes
    ) -> StoredSegment:
        """A segment of digest ``known`` at a ledger's byte ``offset``."""
        read = partial(self._read_now, name, ledger_id, offset, size, known)
        return StoredSegment(name, ledger_id, offset, size, known, read)

    async def read(self, place: StoredSegment) -> bytes:
        """The bytes of a segment. Raises `CorruptJournal`, also if its ledger is gone."""
        ledger_id, offset = place.ledger_id, place.offset
        try:
            raw = await self._store.read(self._journal, ledger_id, offset, place.size)
        except NotStored as error:
            raise self._corrupt(place.name, ledger_id, offset, "is gone") from error
        return self._verified(raw, place.name, ledger_id, offset, place.digest)

    def _read_now(self, name: str, ledger_id: int, offset: int, size: int, known: bytes) -> bytes:
        try:
            raw = self._store.read_now(self._journal, ledger_id, offset, size)
            return self._verified(raw, name, ledger_id, offset, known)
        except JournalError as error:
            self._unreadable(error)
            raise

    def _verified(self, raw: bytes, name: str, ledger_id: int, offset: int, known: bytes) -> bytes:
        if segment_digest(raw) != known:
            raise self._corrupt(name, ledger_id, offset, "is damaged")
        return raw

    def _corrupt(self, name: str, ledger_id: int, offset: int, what: str) -> CorruptJournal:
        file = self._store.location(self._journal, ledger_id)
        return CorruptJournal(file, offset, f"checkpoint segment {name!r} {what}")


def encode_checkpoint(
    header: frames.LedgerHeader,
    sequence: int,
    segments: Mapping[str, Segment],
    digest: bytes,
    places: Places,
) -> EncodedCheckpoint:
    """The frames of a checkpoint at the start of a new ledger; stored segments are included by
    reference."""
    buffers: list[Buffer] = []
    at = header.size

    def write(parts: list[Buffer], records: int, flags: int) -> None:
        nonlocal at
        payload = frames.gather(parts)
        buffers.append(frames.encode_frame(header.salt, at, sequence, 0, records, payload, flags))
        buffers.extend(payload)
        at += frames.FRAME_HEADER_SIZE + sum(map(len, payload))

    stored = {name: kept for name, kept in segments.items() if isinstance(kept, StoredSegment)}
    new = {name: body for name, body in segments.items() if isinstance(body, bytes)}
    for group in _groups(new):
        parts: list[Buffer] = []
        end = at + frames.FRAME_HEADER_SIZE
        for name, body in group:
            frames.stage_records(parts, [(name.encode(), body)])
            end += frames.RECORD_HEADER_SIZE + len(name.encode()) + len(body)
            digested = segment_digest(body)
            offset = end - len(body)
            stored[name] = places.place(name, header.ledger_id, offset, len(body), digested)
        write(parts, len(group), frames.CHECKPOINT)
    rows = [
        [name, kept.ledger_id, kept.offset, kept.size, kept.digest]
        for name, kept in sorted(stored.items())
    ]
    marker: list[Buffer] = []
    frames.stage_records(marker, [(msgpack.packb([FORMAT_VERSION, sequence, digest, rows]), None)])
    write(marker, 1, frames.CHECKPOINT | frames.CHECKPOINT_END)
    refers_from = min([header.ledger_id, *(kept.ledger_id for kept in stored.values())])
    return EncodedCheckpoint(buffers, at, stored, refers_from)


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


async def read_checkpoint(
    reader: LedgerReader, info: LedgerInfo, unreadable: Unreadable = _nobody
) -> Checkpoint:
    """The checkpoint at the start of a listed ledger, with the segments that it refers to in
    earlier ones.

    ``unreadable`` is called if a segment can't be read again later. Raises `CorruptJournal`: a
    ledger is listed only after its checkpoint is durable.
    """
    found: dict[int, tuple[str, bytes]] = {}
    marker: Frame | None = None
    async for frame in reader.whole(reader.header.size, info.data_offset):
        if marker is not None or frame.header.sequence != info.first_sequence:
            raise CorruptJournal(reader.file, frame.offset, "this frame belongs to no checkpoint")
        if frame.header.flags & frames.CHECKPOINT_END:
            marker = frame
            continue
        end = frame.offset + frames.FRAME_HEADER_SIZE
        for name, body in reader.pairs(frame):
            size = len(body) if body is not None else 0
            end += frames.RECORD_HEADER_SIZE + len(name) + size
            if body is not None:
                found[end - size] = (str(name, "utf-8"), bytes(body))
    if marker is None:
        raise CorruptJournal(reader.file, reader.header.size, "the checkpoint has no marker")
    sequence, digest, rows = _decode_marker(reader, marker)
    places = Places(reader.store, reader.journal, unreadable)
    stored = {row[0]: places.place(*row) for row in rows}
    segments: dict[str, bytes] = {}
    for name, place in stored.items():
        if place.ledger_id != reader.header.ledger_id:
            segments[name] = await places.read(place)
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
    ((raw, _),) = reader.pairs(marker)
    version, *fields = msgpack.unpackb(raw)
    if version != FORMAT_VERSION:
        raise UnsupportedFormat(reader.file, version)
    sequence, digest, rows = fields
    return sequence, digest, rows
