"""Objects in a local directory, for archives without an object store.

Objects are only created, read and deleted: nothing replaces one, so a directory needs no
compare-and-set. A file gets its name when its content is durable.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from velaray.journal.errors import Misuse, NotStored, StorageFull
from velaray.journal.objects.object_store import (
    ObjectCounters,
    ObjectExists,
    StoredObject,
    StoreUnavailable,
)
from velaray.journal.private import make_private, private_opener
from velaray.journal.worker import Worker

_TEMPORARY = ".new-"


class DirectoryObjects:
    """The objects in ``root``, which is created with the first one; implements `ObjectStore`
    without `replace`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.counters = ObjectCounters()
        self._worker = Worker("archive")

    def location(self, name: str) -> str:
        """The path of an object."""
        return str(self.root / name)

    async def create(self, name: str, data: bytes) -> str:
        """Link a complete file to the name; see `ObjectStore`."""
        return await self._worker.run(lambda: self._create(name, data))

    def _create(self, name: str, data: bytes) -> str:
        self.counters.puts += 1
        self.counters.bytes_written += len(data)
        path = self.root / name
        temporary = path.with_name(f"{_TEMPORARY}{os.urandom(8).hex()}")
        try:
            make_private(path.parent)
            with open(temporary, "xb", opener=private_opener) as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(temporary, path)
            except FileExistsError as error:
                raise ObjectExists(str(path)) from error
            finally:
                temporary.unlink()
            for directory in (path.parent, *self._parents(path.parent), self.root.parent):
                sync_directory(directory)
        except OSError as error:
            _fail(path, error)
        return ""

    def _parents(self, directory: Path) -> Iterator[Path]:
        while directory != self.root:
            directory = directory.parent
            yield directory

    async def replace(self, name: str, data: bytes, tag: str) -> NoReturn:
        """Never called. Raises `Misuse`."""
        raise Misuse(f"{self.location(name)}: objects in a directory aren't replaced")

    async def get(self, name: str) -> StoredObject | None:
        """A file's content; see `ObjectStore`."""
        return await self._worker.run(lambda: self._get(name))

    def _get(self, name: str) -> StoredObject | None:
        self.counters.gets += 1
        path = self.root / name
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            _fail(path, error)
        self.counters.bytes_read += len(data)
        return StoredObject(data, "")

    async def get_range(self, name: str, start: int, length: int) -> bytes:
        """Bytes of a file; see `ObjectStore`."""
        return await self._worker.run(lambda: self._get_range(name, start, length))

    def _get_range(self, name: str, start: int, length: int) -> bytes:
        self.counters.gets += 1
        path = self.root / name
        try:
            with open(path, "rb") as file:
                data = os.pread(file.fileno(), length, start)
        except FileNotFoundError as error:
            raise NotStored(str(path)) from error
        except OSError as error:
            _fail(path, error)
        self.counters.bytes_read += len(data)
        return data

    async def list(self, prefix: str) -> list[str]:
        """The names, with those of files that were never completed; see `ObjectStore`."""
        self.counters.lists += 1
        return await self._worker.run(lambda: _names(self.root, prefix))

    async def delete(self, names: Sequence[str]) -> None:
        """Delete files, and the directories that become empty; see `ObjectStore`."""
        await self._worker.run(lambda: self._delete(names))

    def _delete(self, names: Sequence[str]) -> None:
        self.counters.deletes += 1
        for path in (self.root / name for name in names):
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                _fail(path, error)
            for directory in (path.parent, *self._parents(path.parent)):
                with suppress(OSError):
                    directory.rmdir()

    async def close(self) -> None:
        """End the thread. Idempotent."""
        await self._worker.end()


def _names(root: Path, prefix: str) -> list[str]:
    names: list[str] = []
    for directory, _, files in os.walk(root / prefix.rpartition("/")[0]):
        names += [str((Path(directory) / file).relative_to(root)) for file in files]
    return sorted(name for name in names if name.startswith(prefix))


def sync_directory(directory: Path) -> None:
    """Make the entries of a directory durable. Raises `OSError`."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _fail(path: Path, error: OSError) -> NoReturn:
    cause = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        raise StorageFull(str(path), cause) from error
    raise StoreUnavailable(str(path), cause) from error
