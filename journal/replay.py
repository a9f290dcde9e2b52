"""Reads a journal without owning it, for tools, tests and people.

Nothing here writes or disturbs an owner that is writing meanwhile. Records of an open ledger after
its last acknowledged one may or may not be visible.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from velaray.events.ids import Position
from velaray.journal.checkpoint import Checkpoint, read_checkpoint
from velaray.journal.damage import damaged_entry
from velaray.journal.errors import CorruptJournal, JournalError, NotStored
from velaray.journal.frames import LOST
from velaray.journal.manifest import LedgerInfo, Manifest, decode_manifest
from velaray.journal.scan import CHUNK, Continuity, LedgerReader, Record
from velaray.journal.store import LedgerStore


class HistoryRecord(NamedTuple):
    """One journaled event with its blob; ``position`` and ``blob`` are None without one. A damaged
    blob is None.

    ``at_ms`` is the time of the write, by its owner's clock (milliseconds since 1970).
    """

    sequence: int
    position: Position | None
    event: bytes
    blob: memoryview | None
    at_ms: int


class Fold(Protocol):
    """Recomputes a state from history, for comparison with the checkpoints."""

    def restore(self, checkpoint: Checkpoint) -> None:
        """Start from this state."""
        ...

    def apply(self, record: Record) -> None:
        """Apply one record."""
        ...

    def digest(self) -> bytes:
        """The digest of the state, computed as for a checkpoint."""
        ...


@dataclass(slots=True)
class LedgerReport:
    """The findings on one verified ledger. ``problems`` is empty for a sound one;
    ``unacknowledged`` counts the bytes after the last whole frame, without zeros at the end;
    ``kept_segments`` counts the checkpoint's ``segments`` that are in earlier ledgers;
    ``damaged_entries`` are the ids of entries whose bytes are damaged, while the events are whole:
    each is a problem, too. Of an encrypted ledger that wasn't ``opened`` the events weren't read,
    and ``entries`` are those that the manifest lists."""

    ledger_id: int
    file: str
    sealed: bool
    first_sequence: int
    records: int = 0
    entries: int = 0
    bytes: int = 0
    unacknowledged: int = 0
    checkpoint_sequence: int | None = None
    segments: int = 0
    kept_segments: int = 0
    damaged_entries: list[int] = field(default_factory=list)
    opened: bool = True
    problems: list[str] = field(default_factory=list)


async def load_manifest(store: LedgerStore, key: str) -> Manifest:
    """The newest manifest of a journal.

    Raises `NotStored` if there is no such journal, `CorruptJournal`, `UnsupportedFormat`.
    """
    stored = await store.read_manifest(key)
    if stored is None:
        raise NotStored(f"journal {key}")
    return decode_manifest(store.location(key), stored.data)


async def replay(
    store: LedgerStore, key: str, from_ledger: int | None = None
) -> AsyncIterator[HistoryRecord]:
    """Every record of the journal in order, from ledger ``from_ledger`` on (None: all).

    The numbers of records have gaps where ledgers were removed. Raises `NotStored` if the
    journal or the ledger isn't listed, `CorruptJournal`.
    """
    manifest = await load_manifest(store, key)
    listed = [info.ledger_id for info in manifest.ledgers]
    if from_ledger is not None and from_ledger not in listed:
        raise NotStored(f"journal {key}: ledger {from_ledger}")
    for info in manifest.ledgers:
        if from_ledger is not None and info.ledger_id < from_ledger:
            continue
        reader = await LedgerReader.open(store, key, info.ledger_id)
        continuity = Continuity(reader, info.first_sequence)
        async for frame in reader.history(info, damaged=True):
            for record, blob in continuity.records(frame):
                if blob is LOST:
                    blob = None
                yield HistoryRecord(*record, blob, frame.header.at_ms)


async def checkpoint_of(store: LedgerStore, key: str, ledger_id: int) -> Checkpoint:
    """The state at the start of a ledger.

    Raises `NotStored` if the ledger, or one with a part of its checkpoint, isn't listed;
    `CorruptJournal`.
    """
    manifest = await load_manifest(store, key)
    for info in manifest.ledgers:
        if info.ledger_id == ledger_id and not info.whole:
            raise NotStored(f"journal {key}: all of the checkpoint of ledger {ledger_id}")
        if info.ledger_id == ledger_id:
            return await read_checkpoint(await LedgerReader.open(store, key, ledger_id), info)
    raise NotStored(f"journal {key}: ledger {ledger_id}")


async def verify(
    store: LedgerStore, key: str, fold: Fold | None = None, *, keyless: bool = False
) -> list[LedgerReport]:
    """Check every checksum and number of a journal; one report per listed ledger.

    With ``fold``, history is applied to it and its digest is compared with each checkpoint's,
    except across removed ledgers. Checkpoints with parts in removed ledgers are skipped. With
    ``keyless`` a store without keys checks the frames of encrypted ledgers, and doesn't open them.
    Problems are in the reports. Raises `NotStored` or `CorruptJournal` if the manifest itself can't
    be read.
    """
    manifest = await load_manifest(store, key)
    reports: list[LedgerReport] = []
    expected = manifest.ledgers[0].first_sequence if manifest.ledgers else 0
    folded = False
    for info in manifest.ledgers:
        file = store.location(key, info.ledger_id)
        report = LedgerReport(info.ledger_id, file, info.sealed, info.first_sequence)
        reports.append(report)
        if info.first_sequence < expected:
            report.problems.append(f"starts at sequence {info.first_sequence}, not {expected}")
        folded = folded and info.first_sequence == expected
        try:
            reader = await LedgerReader.open(
                store, key, info.ledger_id, keyless=keyless and store.keys is None
            )
            report.opened = reader.opens
            if reader.opens:
                await _verify_ledger(reader, info, report, fold, folded)
            else:
                await _verify_frames(reader, info, report)
        except JournalError as error:
            report.problems.append(str(error))
        sound = len(report.problems) == len(report.damaged_entries)
        folded = fold is not None and sound and report.opened and (folded or info.whole)
        expected = info.next_sequence
    return reports


async def _verify_frames(reader: LedgerReader, info: LedgerInfo, report: LedgerReport) -> None:
    """Check what needs no key: the checksums of all frames, and the numbers of their records."""
    async for _ in reader.whole(reader.header.size, info.data_offset):
        pass
    expected, report.bytes, report.entries = info.first_sequence, info.data_offset, info.entries
    async for frame in reader.history(info):
        if frame.header.kind or frame.header.sequence != expected:
            raise CorruptJournal(
                reader.file,
                frame.offset,
                f"expected sequence {expected}; the frame says {frame.header.sequence} "
                f"(flags {frame.header.flags})",
            )
        expected, report.bytes = frame.next_sequence, frame.end
        report.records = expected - info.first_sequence
    report.unacknowledged = await _size_behind(reader, report.bytes)
    _check_counts(reader, info, report)


def _check_counts(reader: LedgerReader, info: LedgerInfo, report: LedgerReport) -> None:
    if info.sealed and (report.records, report.entries) != (info.records, info.entries):
        raise CorruptJournal(
            reader.file,
            report.bytes,
            f"the manifest lists {info.records} records with {info.entries} entries, "
            f"{report.records} with {report.entries} are stored",
        )


async def _verify_ledger(
    reader: LedgerReader,
    info: LedgerInfo,
    report: LedgerReport,
    fold: Fold | None,
    folded: bool,
) -> None:
    if info.whole:
        _verify_checkpoint(await read_checkpoint(reader, info), report, fold, folded)
    continuity = Continuity(reader, info.first_sequence)
    report.bytes = info.data_offset
    async for frame in reader.history(info, damaged=True):
        for record, blob in continuity.records(frame):
            if blob is LOST:
                assert record.position is not None
                report.damaged_entries.append(record.position.entry_id)
                report.problems.append(damaged_entry(reader, frame, record.position).told)
            if fold is not None and (folded or info.whole):
                fold.apply(record)
        report.bytes = frame.end
        report.records = continuity.next_sequence - info.first_sequence
        report.entries = continuity.next_entry
    report.unacknowledged = await _size_behind(reader, report.bytes)
    _check_counts(reader, info, report)


def _verify_checkpoint(
    checkpoint: Checkpoint, report: LedgerReport, fold: Fold | None, folded: bool
) -> None:
    report.checkpoint_sequence = checkpoint.sequence
    report.segments = len(checkpoint.stored)
    report.kept_segments = sum(
        place.ledger_id != report.ledger_id for place in checkpoint.stored.values()
    )
    if fold is None:
        return
    if folded and fold.digest() != checkpoint.digest:
        report.problems.append(
            f"at sequence {checkpoint.sequence} history gives the digest "
            f"{fold.digest().hex()}, the checkpoint says {checkpoint.digest.hex()}"
        )
    fold.restore(checkpoint)


async def _size_behind(reader: LedgerReader, end: int) -> int:
    at = behind = end
    while raw := await reader.read(at, CHUNK):
        written = len(raw.rstrip(b"\0"))
        behind = at + written if written else behind
        at += len(raw)
    return behind - end
