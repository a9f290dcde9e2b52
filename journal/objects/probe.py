"""A check of an object store before journals are kept in it: real races, not promises.

A store whose conditional writes are wrong loses acknowledged messages, and some servers' are wrong
only under races. The objects of a check are deleted afterwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Final

from velaray.events.backoff import RandomSource
from velaray.journal.errors import CorruptJournal, JournalError, UnsupportedFormat
from velaray.journal.objects.bodies import Kind, decode_body, encode_body
from velaray.journal.objects.conditional import ConditionalObjects, Replaced
from velaray.journal.objects.object_store import (
    ObjectChanged,
    ObjectExists,
    ObjectStore,
    StoredObject,
    StoreRefused,
    StoreUnavailable,
)

PROBES: Final = "probes"
WRITERS: Final = 32
ROUNDS: Final = 5
PATIENCE_S: Final = 30.0
"""How long a request is repeated while the store is unavailable."""
_PAYLOAD: Final = bytes(range(256)) * 4


class Check(StrEnum):
    """What a store must do."""

    CREATE = "of concurrent creations of an object, one succeeds and the others are refused"
    REPLACE = "of concurrent replacements of a version, one succeeds and the others are refused"
    OUTDATED = "the replacement of a version that was replaced is refused"
    DELETED = "the replacement of a deleted object is refused"
    READ = "a read returns what was written last"
    RANGE = "a part of an object can be read"
    REPEATED = "a repeated write is refused, and the object has the id of the first"


class UnfitStore(JournalError):
    """The object store failed a check; journals in it could lose messages."""

    def __init__(self, file: str, check: Check, detail: str) -> None:
        super().__init__(
            f"{file}: not fit for journals: it failed the check that {check} ({detail}); use "
            f"another store, or a newer version of its server"
        )
        self.file = file
        self.check = check
        self.detail = detail


async def check_store(
    objects: ObjectStore,
    random_bytes: Callable[[int], bytes],
    source: RandomSource,
    writers: int = WRITERS,
    rounds: int = ROUNDS,
) -> None:
    """Check that a store is fit for journals.

    ``random_bytes`` gives names and write ids, ``source`` the jitter. Raises `UnfitStore`, and
    `StoreUnavailable` and `StoreRefused` as requests do.
    """
    probe = _Probe(objects, random_bytes, source, writers)
    try:
        for number in range(rounds):
            await probe.create_at_once(f"created-{number}")
        await probe.replace_at_once("replaced", rounds)
        await probe.refuse_outdated("outdated")
        await probe.refuse_deleted("deleted")
        await probe.recognize_repeated("repeated")
        await probe.read_ranges("range")
        await probe.list_and_delete()
    except (StoreRefused, UnfitStore):
        with suppress(StoreUnavailable, StoreRefused):
            await objects.delete(probe.names)
        raise


@dataclass(slots=True)
class _Race:
    """The outcomes of a race, by write id."""

    won: dict[bytes, str] = field(default_factory=dict)
    refused: set[bytes] = field(default_factory=set)
    unsure: set[bytes] = field(default_factory=set)
    """Refused after an attempt whose outcome is unknown."""


class _Probe:
    """The requests of one check, with names of their own."""

    def __init__(
        self,
        objects: ObjectStore,
        random_bytes: Callable[[int], bytes],
        source: RandomSource,
        writers: int,
    ) -> None:
        self._objects = objects
        self._sure = ConditionalObjects(objects, random_bytes, source, PATIENCE_S)
        self._writers = writers
        self.prefix = f"{PROBES}/{random_bytes(16).hex()}/"
        self.names: list[str] = []

    # ---------------------------------------------------------------- checks

    async def create_at_once(self, name: str) -> None:
        """Check `Check.CREATE`."""
        path = self._new(name)
        race = await self._race(path, lambda body: self._objects.create(path, body))
        await self._judged(Check.CREATE, path, race)

    async def replace_at_once(self, name: str, rounds: int) -> None:
        """Check `Check.REPLACE`."""
        path, tag = await self._created(name)
        for _ in range(rounds):
            race = await self._race(path, partial(self._replace, path, tag))
            tag = await self._judged(Check.REPLACE, path, race)

    async def refuse_outdated(self, name: str) -> None:
        """Check `Check.OUTDATED`."""
        path, first = await self._created(name)
        await self._sure.replace(path, Kind.PROBE, b"second", first)
        await self._is_refused(Check.OUTDATED, path, first)

    async def refuse_deleted(self, name: str) -> None:
        """Check `Check.DELETED`."""
        path, tag = await self._created(name)
        await self._sure.delete([path])
        if await self._sure.get(path) is not None:
            raise self._unfit(path, Check.READ, "it returned a deleted object")
        await self._is_refused(Check.DELETED, path, tag)

    async def recognize_repeated(self, name: str) -> None:
        """Check `Check.REPEATED`: repeat writes as if their answers were lost."""
        path = self._new(name)
        (_, first), (_, second) = self._write(path), self._write(path)
        await self._write_twice(path, lambda: self._objects.create(path, first))
        tag = await self._tag_of(path, first)
        await self._write_twice(path, lambda: self._objects.replace(path, second, tag))
        await self._tag_of(path, second)

    async def read_ranges(self, name: str) -> None:
        """Check `Check.RANGE`."""
        path, _ = await self._created(name)
        stored = await self._sure.get(path)
        body = stored.data if stored is not None else b""
        for start, length in ((0, 1), (100, 300), (len(body) - 50, 100)):
            found = await self._sure.get_range(path, start, length)
            if not found or found != body[start : start + length]:
                detail = f"bytes {start} to {start + length} of {len(body)} were others"
                raise self._unfit(path, Check.RANGE, detail)

    async def list_and_delete(self) -> None:
        """Make the requests that garbage collection needs. A listing may lag behind, so it isn't
        compared."""
        await self._sure.repeated(lambda: self._objects.list(self.prefix))
        await self._sure.delete(self.names)

    # ---------------------------------------------------------------- races

    async def _race(self, path: str, write: Callable[[bytes], Awaitable[str]]) -> _Race:
        """Let all writers write at once, each an object of its own."""
        start, race = asyncio.Barrier(self._writers), _Race()

        async def one() -> None:
            write_id, body = self._write(path)
            attempts = 0

            async def write_once() -> str:
                nonlocal attempts
                attempts += 1
                return await write(body)

            await start.wait()
            try:
                race.won[write_id] = await self._sure.repeated(write_once)
            except (ObjectExists, ObjectChanged):
                (race.refused if attempts == 1 else race.unsure).add(write_id)

        writers = [one() for _ in range(self._writers)]
        for outcome in await asyncio.gather(*writers, return_exceptions=True):
            if outcome is not None:
                raise outcome
        return race

    async def _judged(self, check: Check, path: str, race: _Race) -> str:
        """The tag of the winner's version. Raises `UnfitStore` unless there is one winner, whose
        object is stored."""
        if len(race.won) > 1:
            detail = f"{len(race.won)} of {self._writers} succeeded"
            raise self._unfit(path, check, detail)
        stored = await self._sure.get(path)
        writer = self._writer(path, stored)
        if writer in race.refused:
            raise self._unfit(path, check, "the object of a refused writer is stored")
        if writer in race.won:
            return race.won[writer]
        if stored is not None and writer in race.unsure and not race.won:
            return stored.tag
        if not race.won and not race.unsure:
            raise self._unfit(path, check, f"none of {self._writers} succeeded")
        raise self._unfit(path, Check.READ, "it missed the write that succeeded")

    # ---------------------------------------------------------------- requests

    def _new(self, name: str) -> str:
        self.names.append(f"{self.prefix}{name}")
        return self.names[-1]

    def _write(self, path: str) -> tuple[bytes, bytes]:
        """The id of a write, and its object."""
        write_id = self._sure.new_write_id()
        return write_id, encode_body(path, Kind.PROBE, write_id, _PAYLOAD)

    async def _created(self, name: str) -> tuple[str, str]:
        """The path and the tag of a new object."""
        path = self._new(name)
        return path, await self._sure.create(path, Kind.PROBE, _PAYLOAD)

    async def _replace(self, path: str, tag: str, body: bytes) -> str:
        return await self._objects.replace(path, body, tag)

    async def _is_refused(self, check: Check, path: str, tag: str) -> None:
        with suppress(Replaced):
            await self._sure.replace(path, Kind.PROBE, _PAYLOAD, tag)
            raise self._unfit(path, check, "it succeeded")

    async def _write_twice(self, path: str, write: Callable[[], Awaitable[str]]) -> None:
        with suppress(ObjectExists, ObjectChanged):  # the first answer may be lost, too
            await self._sure.repeated(write)
        with suppress(ObjectExists, ObjectChanged):
            await self._sure.repeated(write)
            raise self._unfit(path, Check.REPEATED, "it succeeded again")

    async def _tag_of(self, path: str, body: bytes) -> str:
        """The tag of the stored object. Raises `UnfitStore` if it isn't this one."""
        stored = await self._sure.get(path)
        if stored is None or stored.data != body:
            raise self._unfit(path, Check.REPEATED, "another object is stored, or none")
        return stored.tag

    def _writer(self, path: str, stored: StoredObject | None) -> bytes | None:
        """The write id of a stored object."""
        if stored is None:
            return None
        try:
            return decode_body(path, path, stored.data, Kind.PROBE).write_id
        except (CorruptJournal, UnsupportedFormat) as error:
            raise self._unfit(path, Check.READ, f"other bytes: {error}") from error

    def _unfit(self, path: str, check: Check, detail: str) -> UnfitStore:
        return UnfitStore(self._objects.location(path), check, detail)
