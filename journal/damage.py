"""The damaged entries of a journal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from velaray.events.ids import Position
from velaray.journal.errors import CorruptJournal, JournalError, NotStored
from velaray.journal.frames import LOST
from velaray.journal.manifest import LedgerInfo
from velaray.journal.scan import CHUNK, Frame, LedgerReader
from velaray.journal.store import LedgerStore


def damaged_entry(reader: LedgerReader, frame: Frame, position: Position) -> CorruptJournal:
    """The error for an entry whose bytes alone are damaged."""
    return CorruptJournal(
        reader.file,
        frame.offset,
        f"the bytes of entry {position.ledger_id}:{position.entry_id} in this frame are damaged",
    )


@dataclass(frozen=True, slots=True)
class Damage:
    """Consecutive entries of one ledger that can't be read, the last one is ``end`` - 1; ``why`` is
    the text of the error of a read."""

    ledger_id: int
    first: int
    end: int
    why: str


async def find_damage(
    store: LedgerStore, journal: str, ledgers: tuple[LedgerInfo, ...]
) -> list[Damage]:
    """Read the ledgers, and return the entries that can't be read, in order.

    A missing or damaged sealed ledger is damage of all its entries. Raises `CorruptJournal` if the
    open ledger is damaged elsewhere than in its entries' bytes, and what the store raises if it
    fails.
    """
    found: list[Damage] = []
    for info in ledgers:
        try:
            reader = await LedgerReader.open(store, journal, info.ledger_id)
            found += await (_in_sealed if info.sealed else _in_open)(reader, info)
        except (CorruptJournal, NotStored) as error:
            if not info.sealed:
                raise
            if info.entries:
                found.append(_damage(info.ledger_id, 0, info.entries, error))
    return found


async def _in_open(reader: LedgerReader, info: LedgerInfo) -> list[Damage]:
    return [
        each async for frame in reader.history(info, damaged=True) for each in _in(reader, frame)
    ]


def _in(reader: LedgerReader, frame: Frame) -> Iterator[Damage]:
    """The damaged entries of a frame that is whole otherwise."""
    if not frame.damaged:
        return
    entry = frame.header.entry
    for _, blob in reader.pairs(frame):
        if blob is not None:
            if blob is LOST:
                position = Position(reader.header.ledger_id, entry)
                yield _damage(*position, entry + 1, damaged_entry(reader, frame, position))
            entry += 1


async def _in_sealed(reader: LedgerReader, info: LedgerInfo) -> list[Damage]:
    found: list[Damage] = []
    cursor = reader.cursor(info.data_offset, info.bytes, CHUNK, damaged=True)
    entry, problem = 0, None
    while True:
        try:
            frame = await cursor.next()
        except CorruptJournal as error:
            problem = problem or error
            if await cursor.skip_damage():
                continue
            frame = None
        start = info.entries if frame is None else frame.header.entry
        if problem is not None and entry < start:
            found.append(_damage(info.ledger_id, entry, start, problem))
        problem = None
        if frame is None:
            return found
        found += _in(reader, frame)
        entry = start + sum(blob is not None for _, blob in reader.pairs(frame))


def _damage(ledger_id: int, first: int, end: int, error: JournalError) -> Damage:
    return Damage(ledger_id, first, end, error.told)
