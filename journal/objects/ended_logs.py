"""Deletes the objects of logs that have ended.

The process that adopted a journal of a log looks after that log. Once its journals have a tail of
their own, or none, the log's floor is raised to the lowest number that a record still needs, at
most to the SEAL. The SEAL and the floor stay for ever: an object that a stalled writer creates
below the floor is never read.
"""

from __future__ import annotations

from dataclasses import dataclass

from velaray.journal.objects.adoption import LogReader, read_floor
from velaray.journal.objects.bodies import Kind, encode_record
from velaray.journal.objects.conditional import ConditionalObjects, Replaced, Taken
from velaray.journal.objects.host_log import floor_object, log_object
from velaray.journal.objects.journal_record import JournalRecord, Status
from velaray.journal.objects.reading import read_record


@dataclass(frozen=True, slots=True)
class _Content:
    """The numbers of a sealed log at which each activation has chunks."""

    seal: int
    numbers: dict[tuple[str, int], list[int]]


class EndedLogs:
    """The logs of other processes that this one has adopted from."""

    def __init__(self, objects: ConditionalObjects, logs: LogReader) -> None:
        self._objects = objects
        self._logs = logs

    async def tidy(self) -> None:
        """Delete what isn't needed of every log that was adopted from. Raises what requests
        raise."""
        for incarnation in list(self._logs.adopted_from):
            if await self._sweep(incarnation):
                del self._logs.adopted_from[incarnation]

    async def _sweep(self, incarnation: str) -> bool:
        """Raise a log's floor, and delete what is below; returns whether nothing is left."""
        name = floor_object(incarnation)
        place = self._objects.location(name)
        floor, tag = read_floor(name, place, await self._objects.get(name))
        content = await self._content(incarnation, floor)
        if content is None:
            return False
        needed = await self._needed(incarnation, content)
        if needed is None:
            return False
        if needed > floor:
            payload = encode_record(needed)
            try:
                if tag:
                    await self._objects.replace(name, Kind.FLOOR, payload, tag)
                else:
                    await self._objects.create(name, Kind.FLOOR, payload)
            except (Taken, Replaced):
                return False  # another process does the same
            await self._objects.delete([log_object(incarnation, n) for n in range(floor, needed)])
        return needed == content.seal

    async def _content(self, incarnation: str, floor: int) -> _Content | None:
        """What a log has from its floor on; None if it has no SEAL."""
        numbers: dict[tuple[str, int], list[int]] = {}
        number = floor
        while True:
            page = await self._logs.page(incarnation, number)
            if page is None:
                return None
            if page.sealed:
                return _Content(number, numbers)
            for chunk in page.chunks:
                numbers.setdefault((chunk.journal, chunk.epoch), []).append(number)
            number += 1

    async def _needed(self, incarnation: str, content: _Content) -> int | None:
        """The lowest number that a record needs; None if that can't be said now."""
        needed = content.seal
        for journal in sorted({journal for journal, _ in content.numbers}):
            found = await read_record(self._objects, journal)
            if found is None:
                continue
            record = found[0]
            if record.status is Status.OPENING and record.owner == incarnation:
                return None  # a late write of its owner may still make this log its tail
            needed = min([needed, *_needed_by(record, incarnation, journal, content)])
        return needed


def _needed_by(
    record: JournalRecord, incarnation: str, journal: str, content: _Content
) -> list[int]:
    tail = record.tail
    if tail is None or tail.incarnation != incarnation:
        return []
    end = tail.end if tail.end >= 0 else content.seal
    return [n for n in content.numbers.get((journal, tail.epoch), []) if tail.first <= n < end]
