"""An object store in memory, linearizable, with faults for tests and simulation."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from typing import NamedTuple

from velaray.events.portable import PortableError
from velaray.journal.errors import NotStored
from velaray.journal.objects.object_store import (
    ObjectChanged,
    ObjectCounters,
    ObjectExists,
    StoredObject,
    StoreUnavailable,
)


class Request(StrEnum):
    """The kinds of requests."""

    CREATE = "create"
    REPLACE = "replace"
    GET = "get"
    LIST = "list"
    DELETE = "delete"


class Call(NamedTuple):
    """A moment of a request: before it has its effect, or after that and before its answer."""

    request: Request
    name: str
    done: bool


CallHook = Callable[[Call], Awaitable[None]]
"""Runs at each moment of each request. It may wait, and it may raise: `StoreUnavailable` before the
effect prevents it, and after the effect loses the answer."""


class Late(PortableError):
    """Raised by a hook before the effect of a write: the caller gets `StoreUnavailable` at once,
    and the request has its effect, if it still can, after ``delay_s``."""

    def __init__(self, delay_s: float) -> None:
        super().__init__(f"{delay_s} s late")
        self.delay_s = delay_s


class MemoryBucket:
    """The objects that several stores share and that outlive them."""

    def __init__(self) -> None:
        self.objects: dict[str, StoredObject] = {}
        self._writes = 0

    def next_tag(self) -> str:
        """A tag that no version has had."""
        self._writes += 1
        return f"v{self._writes}"

    def create(self, name: str, data: bytes) -> str:
        """Store a new object."""
        if name in self.objects:
            raise ObjectExists(f"memory:{name}")
        return self._store(name, data)

    def replace(self, name: str, data: bytes, tag: str) -> str:
        """Replace the version ``tag``."""
        found = self.objects.get(name)
        if found is None or found.tag != tag:
            raise ObjectChanged(f"memory:{name}")
        return self._store(name, data)

    def _store(self, name: str, data: bytes) -> str:
        tag = self.next_tag()
        self.objects[name] = StoredObject(data, tag)
        return tag


class MemoryObjects:
    """One process's connection to a `MemoryBucket`; implements `ObjectStore`."""

    def __init__(self, bucket: MemoryBucket | None = None, hook: CallHook | None = None) -> None:
        self.bucket = bucket or MemoryBucket()
        self.hook = hook
        self.counters = ObjectCounters()

    def location(self, name: str) -> str:
        """A name for error messages."""
        return f"memory:{name}"

    async def create(self, name: str, data: bytes) -> str:
        """Store a new object; see `ObjectStore`."""
        return await self._write(Request.CREATE, name, data, lambda: self.bucket.create(name, data))

    async def replace(self, name: str, data: bytes, tag: str) -> str:
        """Replace a version; see `ObjectStore`."""
        return await self._write(
            Request.REPLACE, name, data, lambda: self.bucket.replace(name, data, tag)
        )

    async def _write(
        self, request: Request, name: str, data: bytes, effect: Callable[[], str]
    ) -> str:
        self.counters.puts += 1
        self.counters.bytes_written += len(data)
        try:
            await self._moment(request, name, done=False)
        except Late as late:
            # In a context of its own: it happens even if the caller's process ends meanwhile.
            asyncio.get_running_loop().call_later(
                late.delay_s, _try, effect, context=contextvars.Context()
            )
            raise StoreUnavailable(self.location(name), "timeout") from late
        tag = effect()
        await self._moment(request, name, done=True)
        return tag

    async def get(self, name: str) -> StoredObject | None:
        """An object; see `ObjectStore`."""
        self.counters.gets += 1
        await self._moment(Request.GET, name, done=False)
        found = self.bucket.objects.get(name)
        await self._moment(Request.GET, name, done=True)
        self.counters.bytes_read += len(found.data) if found is not None else 0
        return found

    async def get_range(self, name: str, start: int, length: int) -> bytes:
        """Bytes of an object; see `ObjectStore`."""
        self.counters.gets += 1
        await self._moment(Request.GET, name, done=False)
        found = self.bucket.objects.get(name)
        await self._moment(Request.GET, name, done=True)
        if found is None:
            raise NotStored(self.location(name))
        data = found.data[start : start + length]
        self.counters.bytes_read += len(data)
        return data

    async def list(self, prefix: str) -> list[str]:
        """The names; see `ObjectStore`."""
        self.counters.lists += 1
        await self._moment(Request.LIST, prefix, done=False)
        return sorted(name for name in self.bucket.objects if name.startswith(prefix))

    async def delete(self, names: Sequence[str]) -> None:
        """Delete objects; see `ObjectStore`."""
        self.counters.deletes += 1
        for name in names:
            await self._moment(Request.DELETE, name, done=False)
            self.bucket.objects.pop(name, None)
            await self._moment(Request.DELETE, name, done=True)

    async def close(self) -> None:
        """Do nothing."""

    async def _moment(self, request: Request, name: str, *, done: bool) -> None:
        if self.hook is not None:
            await self.hook(Call(request, name, done))


def _try(effect: Callable[[], str]) -> None:
    try:
        effect()
    except (ObjectExists, ObjectChanged):
        return
