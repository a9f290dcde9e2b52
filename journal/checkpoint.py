"""Checkpoints: a state, in segments, at the start of a ledger.

The segments' frames come first and the marker last; the marker names every segment with
its address, so a set without its marker is no checkpoint. Addresses carry the ledger id:
a segment that didn't change may stay where an earlier checkpoint put it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import msgpack

from velaray.journal import frames
from velaray.journal.errors import CorruptJournal, UnsupportedFormat
from velaray.journal.manifest import LedgerInfo
from velaray.journal.scan import Frame, LedgerReader
from velaray.journal.store import Buffer

FORMAT_VERSION: Final = 1
FRAME_BYTES: Final = 4 << 20
"""Segments share a frame up to this size."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A state as it was before the record ``sequence``; ``digest`` is the caller's."""

    sequence: int
    digest: bytes
    segments: dict[str, bytes]


@dataclass(frozen=True, slots=True)
class EncodedCheckpoint:
    """What is to be written behind a ledger's header; history starts at ``end``."""

    buffers: list[Buffer]
    end: int


def encode_checkpoint(
    ledger_id: int,
    salt: bytes,
    start: int,
    sequence: int,
    segments: Mapping[str, bytes],
    digest: bytes,
) -> EncodedCheckpoint:
    """The frames of a checkpoint that starts at ``start`` of a new ledger."""
    buffers: list[Buffer] = []
    at = start

    def write(parts: list[Buffer], records: int, flags: int) -> None:
        nonlocal at
        payload = frames.gather(parts)
        buffers.append(frames.encode_frame(salt, at, sequence, 0, records, payload, flags))
        buffers.extend(payload)
        at += frames.FRAME_HEADER_SIZE + sum(map(len, payload))

    addresses: list[list[object]] = []
    for group in _groups(segments):
        parts: list[Buffer] = []
        for index, (name, body) in enumerate(group):
            frames.stage_records(parts, [(name.encode(), body)])
            addresses.append([name, ledger_id, at, index, len(body)])
        write(parts, len(group), frames.CHECKPOINT)
    marker: list[Buffer] = []
    body = msgpack.packb([FORMAT_VERSION, sequence, digest, addresses])
    frames.stage_records(marker, [(body, None)])
    write(marker, 1, frames.CHECKPOINT | frames.CHECKPOINT_END)
    return EncodedCheckpoint(buffers, at)


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
    """The checkpoint at the start of a listed ledger.

    Raises `CorruptJournal`: a ledger is listed only after its checkpoint is durable.
    """
    stored: dict[tuple[int, int, int], tuple[str, bytes]] = {}
    ledger_id = reader.header.ledger_id
    marker: Frame | None = None
    async for frame in reader.whole(reader.header.size, info.data_offset):
        if marker is not None or frame.header.sequence != info.first_sequence:
            raise CorruptJournal(reader.file, frame.offset, "this frame belongs to no checkpoint")
        if frame.header.flags & frames.CHECKPOINT_END:
            marker = frame
            continue
        for index, (name, body) in enumerate(reader.pairs(frame)):
            if body is not None:
                stored[(ledger_id, frame.offset, index)] = (str(name, "utf-8"), bytes(body))
    if marker is None:
        raise CorruptJournal(reader.file, reader.header.size, "the checkpoint has no marker")
    return _assemble(reader, marker, stored)


def _assemble(
    reader: LedgerReader, marker: Frame, stored: dict[tuple[int, int, int], tuple[str, bytes]]
) -> Checkpoint:
    ((raw, _),) = reader.pairs(marker)
    version, *fields = msgpack.unpackb(raw)
    if version != FORMAT_VERSION:
        raise UnsupportedFormat(reader.file, version)
    sequence, digest, addresses = fields
    segments: dict[str, bytes] = {}
    for name, ledger_id, offset, index, size in addresses:
        found = stored.get((ledger_id, offset, index))
        if found is None or found[0] != name or len(found[1]) != size:
            raise CorruptJournal(
                reader.file,
                marker.offset,
                f"checkpoint segment {name!r} is not at ledger {ledger_id}, byte {offset}",
            )
        segments[name] = found[1]
    return Checkpoint(sequence, digest, segments)
