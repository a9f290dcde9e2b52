"""Unpacks the log of this process into parts, and deletes its objects that nothing needs.

An unpack writes the committed chunks of a journal as parts, then names them in its record, whose
tail begins later then. The log's *floor* is the lowest number that any record needs. It is raised
by compare-and-set after the records that allow it were won. Only objects below it are deleted.

A journal that left this process, by a close, a failure or another owner, may still need its chunks:
its record tells. A journal that was closed here and that nobody has taken is unpacked, or it would
need them until somebody opens it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, Protocol

from velaray.journal.errors import JournalError, ManifestConflict
from velaray.journal.objects.activation import Activation
from velaray.journal.objects.adoption import read_floor
from velaray.journal.objects.bodies import HEADER_SIZE, Chunk, Kind, encode_record
from velaray.journal.objects.conditional import ConditionalObjects, Replaced, Taken
from velaray.journal.objects.ended_logs import EndedLogs
from velaray.journal.objects.host_log import HostLog, floor_object, log_object
from velaray.journal.objects.journal_record import (
    JournalRecord,
    Part,
    Status,
    Tail,
    part_object,
    record_object,
)
from velaray.journal.objects.reading import read_record

SMALL_PART: Final = 4 << 20
"""A ledger's last part of fewer bytes is written again together with the bytes behind it, so that
a slow journal doesn't get a part a minute."""


@dataclass(frozen=True, slots=True)
class HousekeepingSettings:
    """When the log is unpacked: at so many bytes, after so many objects, and when a chunk is so
    old. Appends wait while the log has twice as many bytes or objects."""

    unpack_bytes: int = 64 << 20
    unpack_objects: int = 600
    unpack_after_s: float = 60.0
    look_s: float = 5.0


class Owners(Protocol):
    """The activations of a process and the writes of their records."""

    @property
    def objects(self) -> ConditionalObjects:
        """The object store."""
        ...

    @property
    def activations(self) -> Mapping[str, Activation]:
        """The activations by journal."""
        ...

    async def replace_record(self, mine: Activation, record: JournalRecord) -> None:
        """Write an owner's record; hold its lock."""
        ...


class Housekeeper:
    """The unpacking of one process's logs. It runs only while there is something to do."""

    def __init__(self, owners: Owners, settings: HousekeepingSettings, ended: EndedLogs) -> None:
        self._owners = owners
        self._ended = ended
        self._settings = settings
        self._left: list[Activation] = []
        self._floors: dict[str, tuple[int, str]] = {}
        self._deleted: dict[str, int] = {}
        """The number below which the objects of a log are deleted."""
        self._merged: dict[str, list[str]] = {}
        self._newest = -1
        self._task: asyncio.Task[None] | None = None
        self._room = asyncio.Event()
        self._room.set()

    def left(self, activation: Activation) -> None:
        """Account for an activation that ended: its record may need its chunks."""
        if activation.kept.chunks:
            self._left.append(activation)

    def wake(self, number: int) -> None:
        """Look after the log while it has chunks; the newest one is in the object ``number``."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        if number != self._newest:  # once for each object, not for each append
            self._newest = number
            if self._is_over(2):
                self._room.clear()

    async def room(self) -> None:
        """Wait while too much of the log isn't unpacked."""
        await self._room.wait()

    async def close(self) -> None:
        """Stop. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while self._kept():
            await asyncio.sleep(self._settings.look_s)
            with suppress(JournalError):  # the next round tries again
                await self.tidy()
            if not self._is_over(2):
                self._room.set()

    def _kept(self) -> list[Activation]:
        every = (*self._owners.activations.values(), *self._left)
        return [activation for activation in every if activation.kept.chunks]

    def _is_over(self, times: int) -> bool:
        """Whether the log has so many times the bytes or objects at which it is unpacked.

        Only what can be unpacked counts: a journal that left may need its chunks for ever.
        """
        owned = [a for a in self._owners.activations.values() if a.kept.chunks and _is_open(a)]
        size = sum(activation.kept.size for activation in owned)
        oldest: dict[HostLog, int] = {}
        for activation in owned:
            log, first = activation.log, activation.kept.chunks[0][0]
            oldest[log] = min(first, oldest.get(log, first))
        held = sum(log.committed - first for log, first in oldest.items())
        settings = self._settings
        return size >= times * settings.unpack_bytes or held >= times * settings.unpack_objects

    async def tidy(self) -> None:
        """Unpack what is due, and delete what isn't needed any more. Raises what the store
        raises."""
        over, logs = self._is_over(1), {a.log.incarnation: a.log for a in self._kept()}
        now_s = asyncio.get_running_loop().time()
        for activation in list(self._owners.activations.values()):
            age_s = now_s - activation.kept.since_s
            if activation.kept.chunks and (over or age_s >= self._settings.unpack_after_s):
                with suppress(ManifestConflict):
                    await self.unpack(activation)
        await self._look_at_those_that_left()
        await self._ended.tidy()
        for log in logs.values():
            await self.raise_floor(log)

    # ---------------------------------------------------------------- unpacking

    async def unpack(self, mine: Activation) -> None:
        """Write the committed chunks of a journal as parts. Raises `ManifestConflict` if it isn't
        this process's any more."""
        async with mine.lock:
            if not _is_open(mine):
                return
            below = _below_new_ledgers(mine)
            chunks = mine.kept.below(below)
            if not chunks:
                return
            parts, merged = dict(mine.record.parts), list[str]()
            for ledger_id, run in _by_ledger(chunks).items():
                if ledger_id not in mine.record.listed:
                    continue
                former = parts.get(ledger_id, ())
                if former and former[-1].length < SMALL_PART:
                    merged.append(former[-1].name)
                parts[ledger_id] = await self._write_part(mine, ledger_id, former, run)
            tail = Tail(mine.log.incarnation, below, mine.epoch)
            await self._owners.replace_record(mine, replace(mine.record, parts=parts, tail=tail))
            mine.unpacked(below)
            # Those of the last time: readers that began before have finished with them.
            unneeded = self._merged.pop(mine.journal, [])
            self._merged[mine.journal] = merged
        await self._owners.objects.delete(unneeded)

    async def _unpack_closed(self, left: Activation, record: JournalRecord, tag: str) -> None:
        """Unpack a journal that its owner here has closed, unless somebody takes it meanwhile."""
        objects, tail = self._owners.objects, record.tail
        assert tail is not None
        parts, merged, written = dict(record.parts), list[str](), list[str]()
        for ledger_id, run in _by_ledger(left.kept.below(tail.end)).items():
            if ledger_id in record.listed:
                former = parts.get(ledger_id, ())
                parts[ledger_id] = await self._write_part(left, ledger_id, former, run)
                written.append(parts[ledger_id][-1].name)
                merged += [part.name for part in former if part not in parts[ledger_id]]
        after = replace(
            record, revision=record.revision + 1, parts=parts, tail=tail._replace(first=tail.end)
        )
        try:
            await objects.replace(record_object(left.journal), Kind.MANIFEST, after.encode(), tag)
        except Replaced:
            # The write may have had its effect before somebody took the journal: its answer was
            # lost. Then the successor's record names these parts.
            newest = await read_record(objects, left.journal)
            named = (
                {part.name for each in newest[0].parts.values() for part in each} if newest else ()
            )
            await objects.delete([name for name in written if name not in named])
            return  # the next look tells what is needed
        left.kept.keep(0, 0)
        await objects.delete([*merged, *self._merged.pop(left.journal, [])])

    async def _write_part(
        self, mine: Activation, ledger_id: int, former: tuple[Part, ...], run: list[Chunk]
    ) -> tuple[Part, ...]:
        objects = self._owners.objects
        start, data = run[0].offset, b"".join(chunk.data for chunk in run)
        if former and former[-1].length < SMALL_PART:
            last, former = former[-1], former[:-1]
            data = await objects.get_range(last.name, HEADER_SIZE, last.length) + data
            start = last.start
        name = part_object(mine.journal, ledger_id, mine.epoch, start, objects.new_write_id())
        await objects.create(name, Kind.PART, data)
        return (*former, Part(start, len(data), name))

    # ---------------------------------------------------------------- floor

    async def _look_at_those_that_left(self) -> None:
        """Drop the chunks that the records of journals without an owner here don't need."""
        for activation in self._left:
            found = await read_record(self._owners.objects, activation.journal)
            if (
                found is not None
                and activation.is_writing
                and found[0].is_same_write(activation.record)
            ):
                continue  # its last write may still take effect
            tail = found[0].tail if found is not None else None
            if tail is None or (tail.incarnation, tail.epoch) != (
                activation.log.incarnation,
                activation.epoch,
            ):
                activation.kept.keep(0, 0)
                continue
            activation.kept.keep(tail.first, tail.end if tail.end >= 0 else 1 << 62)
            if found is not None and found[0].status is Status.CLOSED and activation.kept.chunks:
                await self._unpack_closed(activation, *found)
        self._left = [activation for activation in self._left if activation.kept.chunks]

    def _floor(self, log: HostLog) -> int:
        return self._floors.get(log.incarnation, (0, ""))[0]

    async def raise_floor(self, log: HostLog) -> None:
        """Raise the floor of a log to the lowest needed number, and delete what is below."""
        needed = [
            a.kept.first_number
            for a in self._kept()
            if a.log is log and a.kept.first_number is not None
        ]
        floor = min([log.committed, *needed])
        if floor > self._floor(log):
            await self._write_floor(log, floor)
        await self._delete_below_the_floor(log)

    async def _write_floor(self, log: HostLog, floor: int) -> None:
        objects, name = self._owners.objects, floor_object(log.incarnation)
        tag, payload = self._floors.get(log.incarnation, (0, ""))[1], encode_record(floor)
        try:
            if tag:
                tag = await objects.replace(name, Kind.FLOOR, payload, tag)
            else:
                tag = await objects.create(name, Kind.FLOOR, payload)
            self._floors[log.incarnation] = (floor, tag)
        except (Taken, Replaced):
            # A former write had its effect after all, or the log was sealed and another process
            # raised its floor.
            self._floors[log.incarnation] = read_floor(
                *(name, objects.location(name), await objects.get(name))
            )

    async def _delete_below_the_floor(self, log: HostLog) -> None:
        floor = self._floor(log)
        numbers = range(self._deleted.get(log.incarnation, 0), floor)
        await self._owners.objects.delete([log_object(log.incarnation, n) for n in numbers])
        self._deleted[log.incarnation] = floor


def _is_open(mine: Activation) -> bool:
    return not mine.cut and mine.record.status is Status.OPEN


def _below_new_ledgers(mine: Activation) -> int:
    """The committed number up to which nothing belongs to a ledger that may still be listed."""
    newest = max(mine.record.listed, default=-1)
    new = [number for number, chunk in mine.kept.chunks if chunk.ledger_id > newest]
    return min([mine.log.committed, *new])


def _by_ledger(chunks: list[Chunk]) -> dict[int, list[Chunk]]:
    found: dict[int, list[Chunk]] = {}
    for chunk in chunks:
        found.setdefault(chunk.ledger_id, []).append(chunk)
    return found
