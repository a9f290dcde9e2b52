"""Conditional writes whose outcome is certain, over requests whose answers may be lost.

A request is repeated with back-off. If a repeated write finds the name taken or the object
replaced, the write id in the stored object tells whether an earlier attempt had succeeded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from velaray.events.backoff import Backoff, RandomSource
from velaray.events.portable import PortableError
from velaray.journal.objects.bodies import WRITE_ID_SIZE, Kind, decode_body, encode_body
from velaray.journal.objects.object_store import (
    ObjectChanged,
    ObjectExists,
    ObjectStore,
    StoredObject,
    StoreUnavailable,
)

PATIENCE_S: Final = 60.0
"""How long a request is repeated while the store is unavailable."""
FIRST_DELAY_S: Final = 0.05
LONGEST_DELAY_S: Final = 5.0

T = TypeVar("T")
_ANY: Final = tuple(Kind)


class Taken(PortableError):
    """The name of a new object is taken by another writer's object ``found`` (None: it existed, but
    was deleted before it could be read)."""

    def __init__(self, found: StoredObject | None) -> None:
        super().__init__("the name is taken")
        self.found = found


class Replaced(PortableError):
    """Another writer replaced or deleted the object."""


class ConditionalObjects:
    """The requests of one process to an object store, repeated until their outcome is known.

    ``random_bytes`` gives the write ids, ``source`` the jitter.
    """

    def __init__(
        self,
        objects: ObjectStore,
        random_bytes: Callable[[int], bytes],
        source: RandomSource,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.objects = objects
        self._random_bytes = random_bytes
        self._source = source
        self._patience_s = patience_s

    def location(self, name: str) -> str:
        """The address of an object, for people."""
        return self.objects.location(name)

    def new_write_id(self) -> bytes:
        """An id for one write."""
        return self._random_bytes(WRITE_ID_SIZE)

    async def create(self, name: str, kind: Kind, payload: bytes) -> str:
        """Store a new object; returns its tag. Raises `Taken`, and `StoreUnavailable` if the
        outcome stays unknown."""
        write_id = self.new_write_id()
        body = encode_body(name, kind, write_id, payload)
        try:
            return await self.repeated(lambda: self.objects.create(name, body))
        except ObjectExists:
            found = await self.get(name)
            if found is not None and self._wrote(name, found, write_id):
                return found.tag
            raise Taken(found) from None

    async def replace(self, name: str, kind: Kind, payload: bytes, tag: str) -> str:
        """Replace the version ``tag`` of an object; returns the new tag. Raises `Replaced`, and
        `StoreUnavailable` if the outcome stays unknown."""
        write_id = self.new_write_id()
        body = encode_body(name, kind, write_id, payload)
        try:
            return await self.repeated(lambda: self.objects.replace(name, body, tag))
        except ObjectChanged:
            found = await self.get(name)
            if found is not None and self._wrote(name, found, write_id):
                return found.tag
            raise Replaced from None

    def _wrote(self, name: str, found: StoredObject, write_id: bytes) -> bool:
        return decode_body(name, self.location(name), found.data, *_ANY).write_id == write_id

    async def get(self, name: str) -> StoredObject | None:
        """An object, or None."""
        return await self.repeated(lambda: self.objects.get(name))

    async def get_range(self, name: str, start: int, length: int) -> bytes:
        """Bytes of an object. Raises `NotStored`."""
        return await self.repeated(lambda: self.objects.get_range(name, start, length))

    async def list(self, prefix: str) -> list[str]:
        """The names that begin with ``prefix``; recent changes may be missing."""
        return await self.repeated(lambda: self.objects.list(prefix))

    async def delete(self, names: Sequence[str]) -> None:
        """Delete these objects, those that exist."""
        if names:
            await self.repeated(lambda: self.objects.delete(names))

    async def repeated(self, request: Callable[[], Awaitable[T]]) -> T:
        """Repeat a request while the store is unavailable, for a limited time."""
        until = asyncio.get_running_loop().time() + self._patience_s
        backoff = Backoff(FIRST_DELAY_S, LONGEST_DELAY_S, self._source)
        while True:
            try:
                return await request()
            except StoreUnavailable:
                if not await backoff.wait(until):
                    raise
