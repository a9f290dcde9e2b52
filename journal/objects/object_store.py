"""The interface of an object store: named objects, created once or replaced by compare-and-set.

Only these two primitives decide anything. Listing serves garbage collection alone, since a store's
listing may lag behind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from velaray.journal.errors import JournalError, SyncFailed


class ObjectExists(JournalError):
    """An object of this name exists already."""

    def __init__(self, file: str) -> None:
        super().__init__(f"{file}: exists already")
        self.file = file


class ObjectChanged(JournalError):
    """The object isn't the expected version: it was replaced or deleted."""

    def __init__(self, file: str) -> None:
        super().__init__(f"{file}: was replaced or deleted meanwhile")
        self.file = file


class StoreUnavailable(SyncFailed):
    """The store didn't answer, or answered that it can't serve now.

    The request may have had an effect, or may have it later.
    """


class StoreRefused(SyncFailed):
    """The store refuses the requests of this process: settings must change.

    The request had no effect. ``remedy`` says what to do.
    """

    def __init__(self, file: str, cause: str, remedy: str) -> None:
        JournalError.__init__(self, f"{file}: {cause}; {remedy}")
        self.file = file
        self.cause = cause
        self.remedy = remedy


class StoredObject(NamedTuple):
    """An object's content and the tag of this version of it."""

    data: bytes
    tag: str


@dataclass(slots=True)
class ObjectCounters:
    """The requests of a store object so far, failed ones included, and the bytes of bodies."""

    puts: int = 0
    gets: int = 0
    lists: int = 0
    deletes: int = 0
    bytes_written: int = 0
    bytes_read: int = 0


class ObjectStore(Protocol):
    """An object store. Each call is one request. Any method may raise `StoreUnavailable` and
    `StoreRefused`."""

    @property
    def counters(self) -> ObjectCounters:
        """The requests of this store object so far."""
        ...

    def location(self, name: str) -> str:
        """The address of an object, for people."""
        ...

    async def create(self, name: str, data: bytes) -> str:
        """Store a new object; returns its tag. Raises `ObjectExists`."""
        ...

    async def replace(self, name: str, data: bytes, tag: str) -> str:
        """Replace the version ``tag`` of an object; returns the new version's tag. Raises
        `ObjectChanged` if another version is stored, or none."""
        ...

    async def get(self, name: str) -> StoredObject | None:
        """An object, or None if there is none."""
        ...

    async def get_range(self, name: str, start: int, length: int) -> bytes:
        """Up to ``length`` bytes (at least 1) of an object from ``start``; fewer only at its end.

        Raises `NotStored`.
        """
        ...

    async def list(self, prefix: str) -> list[str]:
        """The names of objects that begin with ``prefix``, sorted; recent changes may be missing.

        It may take several requests.
        """
        ...

    async def delete(self, names: Sequence[str]) -> None:
        """Delete these objects, those that exist. It may take several requests."""
        ...

    async def close(self) -> None:
        """Release connections. Idempotent."""
        ...
