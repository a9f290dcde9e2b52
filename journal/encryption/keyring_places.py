"""Where a keyring is stored: small objects that are replaced by compare-and-set.

An object store has them as objects. `KeyringFiles` has them in a directory: a lock makes a
comparison and the replacement that follows it one step, for all processes of the machine.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Final, Protocol, TypeVar

from velaray.journal.errors import StorageFull
from velaray.journal.objects.object_store import (
    ObjectChanged,
    ObjectExists,
    StoredObject,
    StoreUnavailable,
)
from velaray.journal.offload.directory_objects import sync_directory
from velaray.journal.private import make_private, private_opener

_LOCK: Final = ".lock"
_NEW: Final = ".new"

T = TypeVar("T")


class KeyringObjects(Protocol):
    """The part of `velaray.journal.objects.object_store.ObjectStore` that a keyring needs."""

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

    async def list(self, prefix: str) -> list[str]:
        """The names of objects that begin with ``prefix``, sorted."""
        ...


class KeyringFiles:
    """The objects of a keyring in the directory ``root``; implements `KeyringObjects`.

    A write is durable when it returns. The replaced file is unlinked; the file system may keep its
    blocks. Raises `StorageFull` and `StoreUnavailable`.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def location(self, name: str) -> str:
        """The path of a file."""
        return str(self.root / name)

    async def create(self, name: str, data: bytes) -> str:
        """Store a new file; see `KeyringObjects`."""
        return await self._run(name, lambda: self._write(name, data, None))

    async def replace(self, name: str, data: bytes, tag: str) -> str:
        """Replace a file; see `KeyringObjects`."""
        return await self._run(name, lambda: self._write(name, data, tag))

    async def get(self, name: str) -> StoredObject | None:
        """A file's content; see `KeyringObjects`."""
        return await self._run(name, lambda: self._read(name))

    async def list(self, prefix: str) -> list[str]:
        """The names of files; see `KeyringObjects`."""
        return [*await self._run(prefix, lambda: self._names(prefix))]

    async def _run(self, name: str, call: Callable[[], T]) -> T:
        try:
            return await asyncio.to_thread(call)
        except OSError as error:
            path, cause = self.location(name), error.strerror or str(error)
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StorageFull(path, cause) from error
            raise StoreUnavailable(path, cause) from error

    def _read(self, name: str) -> StoredObject | None:
        try:
            data = (self.root / name).read_bytes()
        except FileNotFoundError:
            return None
        return StoredObject(data, _tag(data))

    def _names(self, prefix: str) -> Sequence[str]:
        folder = self.root / prefix
        found = os.listdir(folder) if folder.is_dir() else ()
        return sorted(prefix + name for name in found if not name.startswith("."))

    def _write(self, name: str, data: bytes, tag: str | None) -> str:
        path = self.root / name
        new = path.with_name(_NEW)
        make_private(path.parent)
        with open(path.with_name(_LOCK), "wb", opener=private_opener) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            found = self._read(name)
            if tag is None and found is not None:
                raise ObjectExists(str(path))
            if tag is not None and (found is None or found.tag != tag):
                raise ObjectChanged(str(path))
            try:
                with open(new, "wb", opener=private_opener) as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(new, path)
            except OSError:
                with suppress(FileNotFoundError):
                    new.unlink()
                raise
            sync_directory(path.parent)
            sync_directory(self.root)
        return _tag(data)


def _tag(data: bytes) -> str:
    return sha256(data).hexdigest()
