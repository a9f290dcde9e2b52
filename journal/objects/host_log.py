"""The log of a host: numbered objects with the appended bytes of all its journals.

``hosts/<incarnation>/<number>`` are created one after the other, each once. An object holds what
all journals of the process appended since the one before. A number is *committed* once all
numbers up to it are stored. Another process ends the log by creating a SEAL at its next number;
the names decide who was first, so a commit needs no second look.

After a number is found taken, or its outcome stays unknown, the log is dead and creates nothing
more. Its process opens a new log, with another incarnation.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from crc32c import crc32c

from velaray.journal.errors import CorruptJournal, JournalError, SyncFailed
from velaray.journal.objects.bodies import Chunk, Kind, encode_chunks
from velaray.journal.objects.conditional import ConditionalObjects, Taken

HOSTS: Final = "hosts"
LARGEST_COMMIT: Final = 4 << 20
"""Bytes that are sent at once, without waiting for the interval."""
IN_FLIGHT: Final = 4
"""Objects that are created at the same time."""


@dataclass(frozen=True, slots=True)
class HostLogSettings:
    """``commit_interval_s`` is the least time between two objects, unless much is waiting."""

    commit_interval_s: float = 0.1
    largest_commit: int = LARGEST_COMMIT
    in_flight: int = IN_FLIGHT


def log_prefix(incarnation: str) -> str:
    """The beginning of the names of a log's objects."""
    return f"{HOSTS}/{incarnation}/"


def log_object(incarnation: str, number: int) -> str:
    """The name of a numbered object. Names sort as their numbers do."""
    return f"{log_prefix(incarnation)}{number:012d}"


def floor_object(incarnation: str) -> str:
    """The name of the object that says below which number nothing is needed."""
    return f"{log_prefix(incarnation)}floor"


class LogSealed(JournalError):
    """Another process has ended this log, because it took over a journal of it."""

    def __init__(self, file: str) -> None:
        super().__init__(
            f"{file}: another process sealed this log; nothing more is committed to it"
        )
        self.file = file


class Owner:
    """What appends to the log: one activation of one journal. A *cut* owner's bytes aren't sent any
    more, and nothing of it may be acknowledged."""

    def __init__(self, journal: str, epoch: int) -> None:
        self.journal = journal
        self.epoch = epoch
        self.cut = False


@dataclass(slots=True)
class _Batch:
    """What one object will hold, and the waiters for it."""

    chunks: list[tuple[Owner, Chunk]] = field(default_factory=list)
    size: int = 0
    waiters: list[asyncio.Future[None]] = field(default_factory=list)
    stored: bool = False


class HostLog:
    """The writer of one incarnation. Use it from one event loop."""

    def __init__(
        self,
        objects: ConditionalObjects,
        incarnation: str,
        settings: HostLogSettings,
        on_dead: Callable[[JournalError], None],
    ) -> None:
        """``on_dead`` is called once, when the log has failed and before any waiter learns it."""
        self._objects = objects
        self._settings = settings
        self._on_dead = on_dead
        self._batch = _Batch()
        self._flying: deque[_Batch] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._last_sent_s = self._looked_s = self._alive_s = -1e9
        self._checksum = 0
        self.incarnation = incarnation
        self.next_number = 0
        """The number of the object that the next staged chunk goes into."""
        self.committed = 0
        """Every number below is stored."""
        self.failure: JournalError | None = None
        self._looking: asyncio.Task[bool] | None = None
        self._queued: asyncio.Task[bool] | None = None

    def stage(self, owner: Owner, chunks: list[Chunk]) -> int:
        """Add the chunks to the next object; returns its number. Raises the log's failure."""
        if self.failure is not None:
            raise self.failure
        number = self.next_number
        self._batch.chunks.extend((owner, chunk) for chunk in chunks)
        self._batch.size += sum(len(chunk.data) for chunk in chunks)
        self._send_when_due()
        return number

    async def wait(self, number: int) -> None:
        """Return when ``number``, which `stage` returned, is committed. Raises the failure."""
        if number < self.committed:
            return
        if self.failure is not None:
            raise self.failure
        batch = self._batch if number == self.next_number else self._flying[number - self.committed]
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        batch.waiters.append(waiter)
        await waiter

    async def wait_for_all(self) -> None:
        """Return when everything that was staged before is committed. Raises the failure."""
        if self._batch.chunks:
            await self.wait(self.next_number)
        elif self._flying:
            await self.wait(self.next_number - 1)

    async def is_alive(self, within_s: float = 0.0) -> bool:
        """Whether the log had no SEAL at a moment after the call, or less than ``within_s`` before
        it. If it was ended, it fails here.

        Calls share looks, at most one for each commit interval: the number of requests doesn't grow
        with that of the journals.
        """
        if self.failure is None and self._alive_s + within_s > asyncio.get_running_loop().time():
            return True
        return await asyncio.shield(self._next_look())

    def _next_look(self) -> asyncio.Task[bool]:
        if self._queued is None:
            self._queued = asyncio.create_task(self._look_after(self._looking))
        return self._queued

    async def _look_after(self, former: asyncio.Task[bool] | None) -> bool:
        if former is not None:
            await asyncio.wait({former})
        loop = asyncio.get_running_loop()
        await asyncio.sleep(self._looked_s + self._settings.commit_interval_s - loop.time())
        began_s = self._looked_s = loop.time()
        # Callers from here on need another look.
        self._looking, self._queued = self._queued, None
        try:
            alive = await self._look()
        except (LogSealed, SyncFailed):
            return False
        if alive:
            self._alive_s = began_s
        return alive

    async def _look(self) -> bool:
        number = self.next_number
        if number > self.committed:
            await self.wait(number - 1)
        found = None
        if self.next_number == number:
            found = await self._objects.get(log_object(self.incarnation, number))
        if self.next_number > number:
            # It was sent after the call. So if it is stored, the log was alive then.
            await self.wait(number)
        elif found is not None:
            self._fail(LogSealed(self._location(number)))
        return self.failure is None

    async def close(self) -> None:
        """Commit what is staged, and stop. Raises the failure."""
        try:
            await self.wait_for_all()
        finally:
            self._stop_timer()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    # ---------------------------------------------------------------- sending

    def _send_when_due(self) -> None:
        if not self._batch.chunks or len(self._flying) >= self._settings.in_flight:
            return
        loop = asyncio.get_running_loop()
        wait_s = self._last_sent_s + self._settings.commit_interval_s - loop.time()
        if self._batch.size >= self._settings.largest_commit:
            self._stop_timer()
            self._send()
        elif self._timer is None:
            # Even if it is due: what the process appends in this turn of the loop goes along.
            self._timer = loop.call_later(max(0.0, wait_s), self._at_interval)

    def _at_interval(self) -> None:
        self._timer = None
        if self._batch.chunks and len(self._flying) < self._settings.in_flight:
            self._send()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _send(self) -> None:
        batch, self._batch = self._batch, _Batch()
        number, self.next_number = self.next_number, self.next_number + 1
        self._flying.append(batch)
        loop = asyncio.get_running_loop()
        self._last_sent_s = loop.time()
        payload = encode_chunks(_sendable(batch), self._checksum, self.committed)
        self._checksum = crc32c(payload)
        task = loop.create_task(self._create(number, payload, batch))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _create(self, number: int, payload: bytes, batch: _Batch) -> None:
        name = log_object(self.incarnation, number)
        try:
            await self._objects.create(name, Kind.FRAMES, payload)
        except Taken:
            # A SEAL, or the object was deleted, which follows a SEAL too.
            self._fail(LogSealed(self._location(number)))
            return
        except CorruptJournal as error:
            self._fail(error)
            return
        except JournalError as error:
            self._fail(SyncFailed(self._location(number), f"its outcome is unknown: {error}"))
            return
        batch.stored = True
        self._advance()

    def _advance(self) -> None:
        if self.failure is not None:
            return
        while self._flying and self._flying[0].stored:
            batch = self._flying.popleft()
            self.committed += 1
            for waiter in batch.waiters:
                if not waiter.done():
                    waiter.set_result(None)
        self._send_when_due()

    def _fail(self, error: JournalError) -> None:
        if self.failure is not None:
            return
        self.failure = error
        self._stop_timer()
        self._on_dead(error)
        for batch in (*self._flying, self._batch):
            for waiter in batch.waiters:
                if not waiter.done():
                    waiter.set_exception(error)

    def _location(self, number: int) -> str:
        return self._objects.location(log_object(self.incarnation, number))


def _sendable(batch: _Batch) -> list[Chunk]:
    """The chunks of owners that aren't cut: a cut owner's must never appear."""
    return [chunk for owner, chunk in batch.chunks if not owner.cut]
