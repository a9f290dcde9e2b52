"""Reads the newest bytes of a journal from the log of its former owner, after ending that log.

The log is read from the tail's first number on, without a gap, up to the first SEAL. Where there is
no object, this process creates the SEAL. Then it reads the log's floor: objects
below it may be deleted, since no record needs them. So a SEAL below the floor isn't the end, and
reading goes on at the floor. What wasn't read is never taken for absent. An object that is missing
although a later one says that it was committed is damage: nothing is sealed then.

All adoptions of one log share the objects that they read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Final

from crc32c import crc32c

from velaray.journal.errors import CorruptJournal
from velaray.journal.objects.bodies import (
    Chunk,
    Kind,
    decode_body,
    decode_chunks,
    decode_record,
)
from velaray.journal.objects.conditional import ConditionalObjects, Taken
from velaray.journal.objects.host_log import floor_object, log_object
from velaray.journal.objects.journal_record import Tail
from velaray.journal.objects.object_store import StoredObject

AHEAD: Final = 16
"""Objects that are requested before they are needed."""
LATER: Final = 8
"""The objects behind a missing one that are asked whether it was committed: no fewer than a log has
under way at once."""
CACHED_BYTES: Final = 256 << 20
"""Bytes of other processes' logs that stay in memory for further adoptions."""

BeforeSeal = Callable[[str, Tail, int], Awaitable[int | None]]
"""Waits until the log of a journal's tail may be ended at a number: its process has ended, or
doesn't answer. If the process has released the journal instead, it returns the number below which
the activation's bytes are; its log isn't ended then."""


@dataclass(frozen=True, slots=True)
class LogPage:
    """One object of a log: its chunks, or a SEAL. ``before`` is the checksum of the payload before
    it. All objects below ``committed`` were stored when it was sent."""

    sealed: bool
    chunks: tuple[Chunk, ...] = ()
    before: int = 0
    committed: int = 0
    checksum: int = 0
    size: int = 0


class _Walk:
    """The chunks of one journal, collected from pages in order."""

    def __init__(self, journal: str, tail: Tail) -> None:
        self.tail = tail
        self.chunks: list[Chunk] = []
        self._journal = journal
        self._next = -1
        self._checksum = 0

    def add(self, number: int, page: LogPage) -> bool:
        """Take a page's chunks; False if it doesn't follow the page before it."""
        if number == self._next and page.before != self._checksum:
            return False
        self._next, self._checksum = number + 1, page.checksum
        # Copies, since a slice would keep the whole page in memory.
        self.chunks += [
            replace(chunk, data=bytes(chunk.data))
            for chunk in page.chunks
            if (chunk.journal, chunk.epoch) == (self._journal, self.tail.epoch)
        ]
        return True


class LogReader:
    """Reads the logs of other processes, and ends them."""

    def __init__(self, objects: ConditionalObjects, before_seal: BeforeSeal) -> None:
        self._objects = objects
        self._before_seal = before_seal
        self._pages: dict[tuple[str, int], LogPage] = {}
        self._cached_bytes = 0
        self.adopted_from: dict[str, None] = {}
        """The logs that were ended for an adoption, until nothing of them is needed."""
        self._requests: dict[tuple[str, int], asyncio.Task[LogPage | None]] = {}

    async def close(self) -> None:
        """Stop the requests under way."""
        tasks = list(self._requests.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def adopt(self, journal: str, tail: Tail) -> list[Chunk]:
        """The journal's chunks. Unless the journal was closed or its owner releases it, the log of
        ``tail`` is ended.

        Raises `CorruptJournal` if an object that may be needed is missing or damaged.
        """
        if tail.end >= 0:
            return await self.read(journal, tail)
        walk = _Walk(journal, tail)
        number = max(tail.first, await self.floor(tail.incarnation))
        while True:
            page, end = await self._page_or_seal(journal, tail, number)
            if end is not None:
                return await self.read(journal, tail._replace(end=end))
            if page is not None and not page.sealed:
                self._add(walk, number, page)
                number += 1
                continue
            # Not before: the floor must be read after the SEAL exists.
            floor = await self.floor(tail.incarnation)
            if floor <= number:
                if page is None:
                    raise self._missing(tail.incarnation, number)
                self.adopted_from[tail.incarnation] = None
                return walk.chunks
            number = floor

    async def read(self, journal: str, tail: Tail) -> list[Chunk]:
        """The journal's chunks as far as they are stored, without ending the log. Raises as
        `adopt` does."""
        walk = _Walk(journal, tail)
        number = max(tail.first, await self.floor(tail.incarnation))
        while tail.end < 0 or number < tail.end:
            page, is_end = await self.page(tail.incarnation, number), tail.end < 0
            if page is None and await self._was_committed(tail.incarnation, number):
                page, is_end = await self._get(tail.incarnation, number), False
            if page is not None and not page.sealed:
                self._add(walk, number, page)
                number += 1
                continue
            # Objects below the floor may be deleted while they are read.
            floor = await self.floor(tail.incarnation)
            if floor > number:
                number = floor
            elif is_end:
                break
            elif await self._get(tail.incarnation, number) is None:
                raise self._missing(tail.incarnation, number)
        return walk.chunks

    def _add(self, walk: _Walk, number: int, page: LogPage) -> None:
        if not walk.add(number, page):
            place = self._objects.location(log_object(walk.tail.incarnation, number))
            raise CorruptJournal(place, 0, "it doesn't follow the object before it")

    async def floor(self, incarnation: str) -> int:
        """The number below which nothing of a log is needed."""
        name = floor_object(incarnation)
        found = await self._objects.get(name)
        return read_floor(name, self._objects.location(name), found)[0]

    async def _page_or_seal(
        self, journal: str, tail: Tail, number: int
    ) -> tuple[LogPage | None, int | None]:
        """The object of a number; a SEAL is created if there is none, unless the owner releases the
        journal and so tells its end. Neither: it was committed, and is deleted or missing."""
        incarnation = tail.incarnation
        page = await self.page(incarnation, number)
        if page is not None:
            return page, None
        if await self._was_committed(incarnation, number):
            return await self._get(incarnation, number), None
        end = await self._before_seal(journal, tail, number)
        if end is not None:
            return None, end
        try:
            await self._objects.create(log_object(incarnation, number), Kind.SEAL, b"")
        except Taken as taken:
            found = taken.found
            return (self._keep(incarnation, number, found) if found else None), None
        sealed = LogPage(sealed=True)
        self._pages[incarnation, number] = sealed
        return sealed, None

    async def _was_committed(self, incarnation: str, number: int) -> bool:
        """Whether a later object shows that the object of a number was committed. A SEAL shows it,
        since it is created where the first object is missing."""
        for later in range(number + 1, number + 1 + LATER):
            known = self._pages.get((incarnation, later))
            page = known or await asyncio.shield(self._ask(incarnation, later))
            if page is not None and (page.sealed or page.committed > number):
                return True
        return False

    async def page(self, incarnation: str, number: int) -> LogPage | None:
        """The object of a number, or None; the next ones are requested too."""
        known = self._pages.get((incarnation, number))
        if known is not None:
            return known
        asked = self._ask(incarnation, number)
        if self._pages.get((incarnation, number - 1)) is not None:
            for later in range(number + 1, number + AHEAD):
                if (incarnation, later) not in self._pages:
                    self._ask(incarnation, later)
        return await asyncio.shield(asked)

    def _ask(self, incarnation: str, number: int) -> asyncio.Task[LogPage | None]:
        key = (incarnation, number)
        task = self._requests.get(key)
        if task is None:
            task = asyncio.create_task(self._get(incarnation, number))
            self._requests[key] = task
            task.add_done_callback(lambda done: self._forget(key, done))
        return task

    def _forget(self, key: tuple[str, int], task: asyncio.Task[LogPage | None]) -> None:
        self._requests.pop(key, None)
        if not task.cancelled():
            task.exception()  # the one who waits gets it, if anybody does

    async def _get(self, incarnation: str, number: int) -> LogPage | None:
        found = await self._objects.get(log_object(incarnation, number))
        return self._keep(incarnation, number, found) if found is not None else None

    def _keep(self, incarnation: str, number: int, found: StoredObject) -> LogPage:
        """Decode an object and remember it: what is stored under a number never changes."""
        name = log_object(incarnation, number)
        page = decode_page(name, self._objects.location(name), found)
        if (incarnation, number) not in self._pages:
            self._pages[incarnation, number] = page
            self._cached_bytes += page.size
        while self._cached_bytes > CACHED_BYTES and len(self._pages) > 1:
            oldest = next(iter(self._pages))
            self._cached_bytes -= self._pages.pop(oldest).size
        return page

    def _missing(self, incarnation: str, number: int) -> CorruptJournal:
        place = self._objects.location(log_object(incarnation, number))
        return CorruptJournal(place, 0, "the object is missing, and it may be needed")


def decode_page(name: str, place: str, found: StoredObject) -> LogPage:
    """An object of a log. Raises `CorruptJournal`."""
    body = decode_body(name, place, found.data, Kind.FRAMES, Kind.SEAL)
    if body.kind is Kind.SEAL:
        return LogPage(sealed=True)
    chunks, before, committed = decode_chunks(place, body.payload)
    checksum, size = crc32c(body.payload), len(found.data)
    return LogPage(False, tuple(chunks), before, committed, checksum, size)


def read_floor(name: str, place: str, found: StoredObject | None) -> tuple[int, str]:
    """A log's floor and the tag of its object (0 and "" if there is none)."""
    if found is None:
        return 0, ""
    (floor,) = decode_record(place, decode_body(name, place, found.data, Kind.FLOOR).payload)
    return int(floor), found.tag
