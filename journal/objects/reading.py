"""Reads the ledgers of journals that this process doesn't own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from velaray.journal.errors import NotStored
from velaray.journal.objects.activation import Runs
from velaray.journal.objects.adoption import LogReader
from velaray.journal.objects.bodies import HEADER_SIZE
from velaray.journal.objects.conditional import ConditionalObjects
from velaray.journal.objects.journal_record import (
    JournalRecord,
    Part,
    decode_journal_record,
    ledger_prefix,
    record_object,
)
from velaray.journal.objects.object_store import StoredObject

VIEWS: Final = 64
"""Journals of other owners whose records stay in memory."""


class View:
    """A journal as it was at one moment: the parts of its record and the chunks in the tail."""

    def __init__(self, record: JournalRecord, runs: Runs) -> None:
        self.record = record
        self.runs = runs

    def end(self, ledger_id: int) -> int | None:
        """The bytes of a ledger; None if nothing of it is stored."""
        parts = self.record.parts.get(ledger_id, ())
        if not parts and ledger_id not in self.record.listed & self.runs.by_ledger.keys():
            return None
        return max(end_of(parts), self.runs.end(ledger_id))


def end_of(parts: Sequence[Part]) -> int:
    """The offset after the last byte of a ledger's parts."""
    return parts[-1].start + parts[-1].length if parts else 0


async def read_parts(
    objects: ConditionalObjects, parts: Sequence[Part], offset: int, length: int
) -> bytes:
    """Up to ``length`` bytes from ``offset``, as far as the parts have them. Raises `NotStored` if
    a part was deleted, because a newer record has another in its place."""
    found: list[bytes] = []
    end = offset + length
    for part in parts:
        if part.start <= offset < min(end, part.start + part.length):
            size = min(end, part.start + part.length) - offset
            at = HEADER_SIZE + offset - part.start
            found.append(await objects.get_range(part.name, at, size))
            offset += size
    return b"".join(found)


async def read_record(
    objects: ConditionalObjects, journal: str
) -> tuple[JournalRecord, str] | None:
    """A journal's record and its tag, or None."""
    name = record_object(journal)
    found: StoredObject | None = await objects.get(name)
    if found is None:
        return None
    return decode_journal_record(name, objects.location(name), found.data), found.tag


class Views:
    """The views of journals of other owners. A view is renewed when it has less than is asked."""

    def __init__(self, objects: ConditionalObjects, logs: LogReader) -> None:
        self._objects = objects
        self._logs = logs
        self._views: dict[str, View] = {}

    async def read(self, journal: str, ledger_id: int, offset: int, length: int) -> bytes:
        """Bytes of a ledger; fewer only at its end. Raises `NotStored`."""
        view = self._views.get(journal)
        if view is not None:
            raw = await self._read(view, ledger_id, offset, length)
            if raw is not None and len(raw) == length:
                return raw
        while True:
            former, view = view, await self._renew(journal)
            raw = await self._read(view, ledger_id, offset, length)
            if raw is not None:
                return raw
            if view.end(ledger_id) is None or (
                former is not None and former.record.revision == view.record.revision
            ):
                raise self._not_stored(journal, ledger_id)

    async def size(self, journal: str, ledger_id: int) -> int:
        """The stored bytes of a ledger. Raises `NotStored`."""
        end = (await self._renew(journal)).end(ledger_id)
        if end is None:
            raise self._not_stored(journal, ledger_id)
        return end

    def drop(self, journal: str) -> None:
        """Drop the view of a journal."""
        self._views.pop(journal, None)

    async def _renew(self, journal: str) -> View:
        found = await read_record(self._objects, journal)
        if found is None:
            self.drop(journal)
            raise NotStored(self._objects.location(record_object(journal)))
        record, _ = found
        chunks = await self._logs.read(journal, record.tail) if record.tail else []
        view = View(record, Runs(chunks))
        self._views.pop(journal, None)
        self._views[journal] = view
        if len(self._views) > VIEWS:
            del self._views[next(iter(self._views))]
        return view

    async def _read(self, view: View, ledger_id: int, offset: int, length: int) -> bytes | None:
        """The bytes that a view has; None if it has no such ledger or is out of date."""
        if view.end(ledger_id) is None:
            return None
        try:
            return await read_bytes(
                self._objects,
                view.record.parts.get(ledger_id, ()),
                view.runs,
                ledger_id,
                offset,
                length,
            )
        except NotStored:
            return None

    def _not_stored(self, journal: str, ledger_id: int) -> NotStored:
        return NotStored(self._objects.location(ledger_prefix(journal, ledger_id)))


async def read_bytes(
    objects: ConditionalObjects,
    parts: Sequence[Part],
    runs: Runs,
    ledger_id: int,
    offset: int,
    length: int,
) -> bytes:
    """Bytes of a ledger from its parts and, behind them, its chunks. Raises `NotStored` if a part
    was deleted."""
    raw = b""
    if offset < end_of(parts):
        raw = await read_parts(objects, parts, offset, length)
    if len(raw) < length:
        raw += runs.read(ledger_id, offset + len(raw), length - len(raw))
    return raw
