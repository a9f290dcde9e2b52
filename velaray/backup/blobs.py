"""The place of backups: named objects that are created once, in a directory or an object store."""

from __future__ import annotations

import asyncio
import errno
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol, TypeVar

from velaray.journal.errors import JournalError, NotStored, StorageFull
from velaray.journal.objects.bodies import HEADER_SIZE, Kind, decode_body
from velaray.journal.objects.conditional import ConditionalObjects, Taken
from velaray.journal.objects.object_store import ObjectStore
from velaray.journal.private import FILE_MODE, make_private

_TEMPORARY: Final = ".new-"
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

T = TypeVar("T")


class BlobExists(JournalError):
    """Another backup has created an object of this name."""

    def __init__(self, file: str) -> None:
        super().__init__(f"{file}: exists already")
        self.file = file


class PlaceFailed(JournalError):
    """A directory of backups can't be read or written."""

    def __init__(self, file: str, cause: str) -> None:
        super().__init__(f"{file}: {cause}")
        self.file = file


class Blobs(Protocol):
    """Objects that never change. Any method may raise `PlaceFailed`, `SyncFailed` (of an object
    store) or `StorageFull`."""

    def location(self, name: str) -> str:
        """The path or the address of an object, for people."""
        ...

    async def create(self, name: str, data: bytes) -> None:
        """Store a new object, durably. Raises `BlobExists`."""
        ...

    async def get(self, name: str) -> bytes | None:
        """An object, None if there is none. Raises `CorruptJournal` if it is damaged and the place
        can tell."""
        ...

    async def get_range(self, name: str, start: int, length: int) -> bytes:
        """Up to ``length`` bytes from ``start``; fewer only at the end. Raises `NotStored`."""
        ...

    async def list(self, prefix: str) -> list[str]:
        """The names that begin with the folder ``prefix``, sorted; "" for all."""
        ...

    async def close(self) -> None:
        """Release connections. Idempotent."""
        ...


class FolderBlobs:
    """Objects as files of a directory, which is created if need be; implements `Blobs`.

    A file gets its name when its content is synced. Files are for their owner alone.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root).absolute()

    def location(self, name: str) -> str:
        """The path of an object's file."""
        return str(self.root / name)

    async def create(self, name: str, data: bytes) -> None:
        """Link a synced file to the name; see `Blobs`."""
        await self._run(name, lambda path: _create(self.root, path, data))

    async def get(self, name: str) -> bytes | None:
        """The content of a file; see `Blobs`."""
        try:
            return await self._run(name, Path.read_bytes)
        except NotStored:
            return None

    async def get_range(self, name: str, start: int, length: int) -> bytes:
        """A part of a file; see `Blobs`."""
        return await self._run(name, lambda path: _read(path, start, length))

    async def list(self, prefix: str) -> list[str]:
        """The files in a folder; see `Blobs`."""
        return await self._run(prefix, lambda path: _names(self.root, path))

    async def close(self) -> None:
        """Do nothing."""

    async def _run(self, name: str, work: Callable[[Path], T]) -> T:
        """Run ``work`` in a thread, with the errors of this package."""
        return await asyncio.to_thread(_guarded, self.root / name, work)


class ObjectBlobs:
    """Objects of an object store; implements `Blobs`."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = ConditionalObjects(objects, os.urandom, random)

    def location(self, name: str) -> str:
        """The address of an object."""
        return self._objects.location(name)

    async def create(self, name: str, data: bytes) -> None:
        """Create the object; see `Blobs`."""
        try:
            await self._objects.create(name, Kind.BACKUP, data)
        except Taken:
            raise BlobExists(self.location(name)) from None

    async def get(self, name: str) -> bytes | None:
        """The payload of an object; see `Blobs`."""
        found = await self._objects.get(name)
        if found is None:
            return None
        body = decode_body(name, self.location(name), found.data, Kind.BACKUP)
        return bytes(body.payload)

    async def get_range(self, name: str, start: int, length: int) -> bytes:
        """A part of the payload; see `Blobs`."""
        return await self._objects.get_range(name, HEADER_SIZE + start, length)

    async def list(self, prefix: str) -> list[str]:
        """The names in a folder; see `Blobs`."""
        return await self._objects.list(f"{prefix}/" if prefix else "")

    async def close(self) -> None:
        """Close the connections; see `Blobs`."""
        await self._objects.objects.close()


def _guarded(path: Path, work: Callable[[Path], T]) -> T:
    try:
        return work(path)
    except FileNotFoundError as error:
        raise NotStored(str(path)) from error
    except FileExistsError as error:
        if not path.parent.is_dir():  # a file has the name of a folder
            raise PlaceFailed(str(path.parent), os.strerror(errno.ENOTDIR)) from error
        raise BlobExists(str(path)) from error
    except OSError as error:
        cause = error.strerror or str(error)
        if error.errno in _FULL:
            raise StorageFull(str(path), cause) from error
        raise PlaceFailed(str(path), cause) from error


def _create(root: Path, path: Path, data: bytes) -> None:
    folder = path.parent
    if not folder.is_dir():
        make_private(folder)
        for above in folder.parents:
            _sync_directory(above)
            if above == root.parent:
                break
    temporary = folder / f"{_TEMPORARY}{os.urandom(16).hex()}"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.link(temporary, path)
    finally:
        temporary.unlink()
    _sync_directory(folder)


def _sync_directory(path: Path) -> None:
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _read(path: Path, start: int, length: int) -> bytes:
    with path.open("rb") as file:
        file.seek(start)
        return file.read(length)


def _names(root: Path, folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    return sorted(
        path.relative_to(root).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith(_TEMPORARY)
    )
