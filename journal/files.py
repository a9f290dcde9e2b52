"""A store in a local directory.

::

    numbers/<n>                             one file per journal number, naming its owner
    journals/<key part>/.../                one directory per journal
        +manifest/<version>                 the newest few versions of the manifest
        <ledger id>.ledger, <ledger id>.mark, <ledger id>.index

Files have mode 0600 and directories 0700, whatever the umask.

There are no locks, so a stopped or dead process blocks no other. A manifest version is
claimed by linking a complete file to its name, which succeeds for one process only.

Two threads do the I/O: one for everything that writes, one for reads, so that a read never
waits for a sync. The event loop is never blocked.

Zeros may follow the last frame of an open ledger (`velaray.journal.ahead`). The writer cuts them
off when it is closed; after a crash they stay.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from secrets import randbelow
from time import monotonic, time_ns
from typing import Any, Final, NamedTuple, NoReturn
from zlib import crc32

from velaray.journal.ahead import BLOCK, ZEROS, Ahead
from velaray.journal.encryption.keys import LedgerKeys
from velaray.journal.errors import (
    Contended,
    JournalError,
    LedgerExists,
    ManifestConflict,
    Misuse,
    NotStored,
    StorageFull,
    SyncFailed,
)
from velaray.journal.paths import directory_of, journal_of
from velaray.journal.private import FILE_MODE, make_private
from velaray.journal.store import Buffer, Counters, Ownership, StoredManifest
from velaray.journal.worker import Worker

KEPT_VERSIONS: Final = 3
"""The number of manifest versions that are kept, so that a reader finds the one that it listed."""
READ_TRIES: Final = 100
"""The number of times that a reader repeats its look after a clean-up removed the version that it
listed."""
MAKE_TRIES: Final = 100
"""The number of attempts to create a journal's directory while another process removes its
parents."""
REMOVE_TRIES: Final = 100
"""The number of attempts to empty a journal while a former owner still creates files in it."""

IDLE_S: Final = 5.0
"""A ledger that isn't written for so long has no open files until the next write."""
MOST_OPEN: Final = 512
"""If so many ledgers of one worker have open files, all that are synced are closed."""

JOURNALS: Final = "journals"
NUMBERS: Final = "numbers"

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_IOV_MAX: Final = 1024
_MANIFEST: Final = "+manifest"
_LISTED_AT_ONCE: Final = 64
"""The number of directories that a list of journals reads at once; a cancelled list ends there."""


@contextmanager
def _io(path: Path) -> Iterator[None]:
    """Turn an operating system's error into the package's."""
    try:
        yield
    except FileNotFoundError as error:
        raise NotStored(str(path)) from error
    except FileExistsError as error:
        raise LedgerExists(str(path)) from error
    except OSError as error:
        raise _translate(path, error) from error


def _translate(path: Path, error: OSError) -> JournalError:
    cause = error.strerror or str(error)
    if error.errno in _FULL:
        return StorageFull(str(path), cause)
    return SyncFailed(str(path), cause)


def _fsync_directory(path: Path) -> None:
    """Sync a directory. A failure is never `StorageFull`: the change is visible already."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as error:
        raise SyncFailed(str(path), f"syncing the directory: {error.strerror}") from error


def _fsync_if_there(path: Path) -> None:
    """Sync a directory that another process may remove."""
    try:
        _fsync_directory(path)
    except SyncFailed:
        if path.exists():
            raise


def _remove_directory(path: Path) -> bool:
    """Remove a directory unless it has content; another process may remove it first. Returns
    whether it no longer exists."""
    try:
        path.rmdir()
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno == errno.ENOTEMPTY:
            return False
        raise _translate(path, error) from error
    return True


def _create_file(path: Path, data: bytes) -> int:
    """Create a file with this content, unsynced; returns its descriptor, or leaves nothing."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE)
    try:
        _write_all(fd, [data], 0)
    except OSError:
        os.close(fd)
        os.unlink(path)
        raise
    return fd


def _link_file(directory: Path, name: str, data: bytes, prefix: str) -> os.stat_result:
    """Link a synced file to ``name``, atomically, unless the name exists.

    Returns the file's status; its only name is ``name`` then. Its time has random nanoseconds, so
    a later file with this inode has another time. Raises `LedgerExists`.
    """
    temporary = directory / f"{prefix}{os.urandom(16).hex()}"
    with _io(temporary):
        fd = _create_file(temporary, data)
    try:
        with _io(directory / name):
            now_ns, nonce = time_ns() // 1_000_000 * 1_000_000, randbelow(1_000_000)
            os.utime(fd, ns=(now_ns, now_ns + nonce))
            os.fsync(fd)
            status = os.fstat(fd)
            os.link(temporary, directory / name)
    except JournalError:
        with suppress(OSError):
            temporary.unlink()
        raise
    finally:
        os.close(fd)
    try:
        temporary.unlink(missing_ok=True)
    except OSError as error:
        # Never `StorageFull`, which would mean that nothing appeared.
        raise SyncFailed(str(temporary), f"removing: {error.strerror}") from error
    return status


def _write_all(fd: int, buffers: Sequence[Buffer], offset: int) -> None:
    """Write every buffer."""
    pending = [memoryview(buffer).cast("B") for buffer in buffers if len(buffer)]
    at = offset
    while pending:
        written = os.pwritev(fd, pending[:_IOV_MAX], at)
        at += written
        while pending and written >= len(pending[0]):
            written -= len(pending.pop(0))
        if written:
            pending[0] = pending[0][written:]


class _FileWriter:
    """Appends to one ledger file.

    Its files are closed while nothing is written (`release_if_idle`), but only when everything is
    synced: Linux reports a failed write-back to descriptors that were open at that time.
    """

    def __init__(
        self, store: FileStore, journal: str, path: Path, fd: int, mark_fd: int, end: int
    ) -> None:
        self._store = store
        self._number = store._number_of_writer(journal)
        self._worker = store._writers[self._number]
        #: The ledgers of the same worker that have open files.
        self._with_files = store._with_files[self._number]
        self._journal = journal
        self._path = path
        self._fd = fd
        self._mark_fd = mark_fd
        self._inode = 0
        self._used_s = monotonic()
        self._unsynced = True
        self._end = end
        self._ahead = Ahead(end)
        self._dead: SyncFailed | None = None
        self._with_files.add(self)

    async def append(
        self, buffers: Sequence[Buffer], *, confirm: int | None = None, mark: bytes = b""
    ) -> bool:
        return await self._worker.run(lambda: self._append(buffers, confirm, mark))

    async def append_unsynced(self, buffers: Sequence[Buffer], *, confirm: int) -> bool:
        return await self._worker.run(lambda: self._append_unsynced(buffers, confirm))

    async def sync(self, *, confirm: int, mark: bytes) -> bool:
        return await self._worker.run(lambda: self._sync_and_mark(confirm, mark))

    def _append(self, buffers: Sequence[Buffer], confirm: int | None, mark: bytes) -> bool:
        if not self._ready(confirm):
            return False
        # Zeros are only for commits, which come in a row; a checkpoint is a single write.
        size = self._write(buffers, with_zeros=confirm is not None)
        self._sync()
        self._grow(size)
        if confirm is None:
            return True
        if not self._confirm(confirm):
            return False
        self._write_mark(mark)
        return True

    def _append_unsynced(self, buffers: Sequence[Buffer], confirm: int) -> bool:
        if not self._ready(confirm):
            return False
        self._grow(self._write(buffers, with_zeros=True))
        return self._confirm(confirm)

    def _sync_and_mark(self, confirm: int, mark: bytes) -> bool:
        if not self._ready(confirm):
            return False
        self._sync()
        if not self._confirm(confirm):
            return False
        self._write_mark(mark)
        return True

    def _ready(self, confirm: int | None) -> bool:
        """Open the files unless they are open. False: they are gone, with the journal."""
        if self._dead is not None:
            raise self._dead
        self._used_s = monotonic()
        if self._fd >= 0:
            return True
        if confirm is None:
            raise Misuse(f"{self._path}: an append to a ledger that was synced needs a version")
        try:
            self._reopen()
        except OSError as error:
            if not self._confirm(confirm):
                return False
            self._die(f"opening it again: {error.strerror}", error)
        # A journal is deleted ledgers first. So the file is ours if the version is held now, after
        # opening it; another owner's may have the same name and even the same inode.
        if self._confirm(confirm):
            return True
        self._close_files()
        return False

    def _reopen(self) -> None:
        if len(self._with_files) >= MOST_OPEN:
            self._store._tidy(self._number, idle_s=0.0)
        fd = os.open(self._path, os.O_WRONLY)
        try:
            if os.fstat(fd).st_ino != self._inode:
                raise OSError(errno.ESTALE, "another file has its name")
            self._mark_fd = os.open(self._path.with_suffix(".mark"), os.O_WRONLY)
        except OSError:
            os.close(fd)
            raise
        self._fd = fd
        self._with_files.add(self)

    def release_if_idle(self, before_s: float) -> bool:
        """Close the files if everything was written before then, and is synced; returns whether
        they are closed."""
        if self._fd >= 0 and not self._unsynced and self._used_s <= before_s:
            with suppress(OSError):  # a later look tries again
                self._inode = os.fstat(self._fd).st_ino
                self._cut_zeros()
                self._close_files()
        return self._fd < 0

    def _cut_zeros(self) -> None:
        """Remove the zeros after the last frame, which has no effect on the ledger."""
        if self._dead is None and self._ahead.reach > self._end:
            os.ftruncate(self._fd, self._end)
            self._ahead = Ahead(self._end)

    def _close_files(self) -> None:
        fds, self._fd, self._mark_fd = (self._fd, self._mark_fd), -1, -1
        for fd in fds:
            os.close(fd)

    def _grow(self, size: int) -> None:
        self._end += size
        self._store.counters.bytes_written += size

    def _confirm(self, version: int) -> bool:
        try:
            return self._store._holds(self._journal, version)
        except SyncFailed as error:
            self._dead = error
            raise

    def _write(self, buffers: Sequence[Buffer], with_zeros: bool) -> int:
        """Write at the end, followed by zeros if they fit; return the buffers' size."""
        self._unsynced = True
        size = sum(map(len, buffers))
        zeros = self._ahead.zeros(self._end, size) if with_zeros else 0
        try:
            if zeros:
                self._write_with_zeros(buffers, self._end + size, zeros)
            else:
                _write_all(self._fd, buffers, self._end)
        except OSError as error:
            if error.errno not in _FULL:
                self._die(f"writing: {error.strerror}", error)
            self._cut_or_keep(size, zeros, error)
            zeros = 0
        self._ahead.reach = max(self._ahead.reach, self._end + size + zeros)
        return size

    def _write_with_zeros(self, buffers: Sequence[Buffer], at: int, zeros: int) -> None:
        """Write the buffers, which end at ``at``, and zeros from there on."""
        rest = zeros % BLOCK
        _write_all(self._fd, (*buffers, ZEROS[:rest]), self._end)
        # Block by block: for one large write Linux may count all of it as dirty again when a part
        # is rewritten, and throttle the writer.
        for start in range(at + rest, at + zeros, BLOCK):
            _write_all(self._fd, (ZEROS,), start)

    def _cut_or_keep(self, size: int, zeros: int, error: OSError) -> None:
        """Remove the remains of a refused write after the end. A whole frame that lacks only its
        zeros stays: a newer owner may have counted it already."""
        end = self._end
        try:
            # Zeros are only written with a frame that ends beyond the former end.
            whole = zeros > 0 and os.fstat(self._fd).st_size >= end + size
            os.ftruncate(self._fd, end + size if whole else end)
        except OSError as failure:
            self._die(f"removing a refused write: {failure.strerror}", failure)
        if not whole:
            self._ahead.reach = end
            raise StorageFull(str(self._path), error.strerror or str(error)) from error

    def _sync(self) -> None:
        # Out of space counts as failed here as well: the frame is complete in the page cache,
        # a newer owner may have read it, so it must stay.
        try:
            os.fdatasync(self._fd)
        except OSError as error:
            self._die(f"syncing: {error.strerror}", error)
        self._unsynced = False
        self._store.counters.syncs += 1

    def _write_mark(self, mark: bytes) -> None:
        # The mark is evidence about frames that are durable without it; if there is no room
        # for it, the only risk is that later damage to the newest ones is taken for a torn write.
        with suppress(OSError):
            os.pwrite(self._mark_fd, mark, 0)

    def _die(self, cause: str, error: OSError) -> NoReturn:
        self._dead = SyncFailed(str(self._path), cause)
        raise self._dead from error

    async def close(self) -> None:
        if self in self._store._open:
            await self._worker.run(self._close)

    def _close(self) -> None:
        if self in self._store._open:
            if self._fd >= 0:
                with suppress(OSError):  # nothing depends on it
                    self._cut_zeros()
                self._close_files()
            self._with_files.discard(self)
            self._store._open.discard(self)
        self._dead = self._dead or SyncFailed(str(self._path), "the writer is closed")


class _Written(NamedTuple):
    """The newest version of a manifest that this store wrote, and what identifies its file."""

    version: int
    path: str
    identity: tuple[int, int]
    """Its inode and the time of its last change in nanoseconds."""
    next_path: str


class FileStore:
    """Journals in the directory ``root``, which is created if need be; implements
    `LedgerStore`. ``root`` must be on a file system with hard links. The numbers of journals that
    it creates begin after ``number_base``, which only matters for creating journals.

    Each of ``writers`` threads writes a part of the journals, so that a sync of one journal doesn't
    delay those of other threads' journals. With more than one, `counters` may miss operations that
    end at the same time.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        number_base: int = 0,
        writers: int = 1,
        keys: LedgerKeys | None = None,
    ) -> None:
        self.root = Path(root).absolute()
        self.keys = keys
        self._number_base = number_base
        self.counters = Counters()
        self._journals = self.root / JOURNALS
        self._numbers = self.root / NUMBERS
        self._number_hint = 0
        self._written: dict[str, _Written] = {}
        self._open: set[_FileWriter] = set()
        self._unlinked: set[Path] = set()
        self._closed = False
        self._writers = [Worker("journal-write", partial(self._tidy, n)) for n in range(writers)]
        self._with_files: list[set[_FileWriter]] = [set() for _ in self._writers]
        self._reader = Worker("journal-read")
        self._lister = Worker("journal-list")

    def _number_of_writer(self, journal: str) -> int:
        return crc32(journal.encode()) % len(self._writers)

    def _writer_of(self, journal: str) -> Worker:
        """The worker that executes all writes of a journal, one after the other."""
        return self._writers[self._number_of_writer(journal)]

    def write_in_work(self) -> asyncio.Future[Any] | None:
        """The newest write of a thread; see `LedgerStore`."""
        found = (writer.job_in_work() for writer in self._writers)
        return next((each for each in found if each is not None), None)

    def _tidy(self, number: int, idle_s: float | None = None) -> bool:
        """Close the files of a worker's ledgers that are idle for ``idle_s`` (default: `IDLE_S`)
        seconds; returns whether any are open."""
        before_s = monotonic() - (IDLE_S if idle_s is None else idle_s)
        writers = self._with_files[number]
        writers -= {each for each in writers if each.release_if_idle(before_s)}
        return bool(writers)

    def _directory(self, journal: str) -> Path:
        return self._journals / directory_of(journal)

    def _ledger(self, journal: str, ledger_id: int) -> Path:
        return self._directory(journal) / f"{ledger_id}.ledger"

    def _mark(self, journal: str, ledger_id: int) -> Path:
        return self._directory(journal) / f"{ledger_id}.mark"

    def _index(self, journal: str, ledger_id: int) -> Path:
        return self._directory(journal) / f"{ledger_id}.index"

    def salt(self) -> bytes:
        """8 random bytes."""
        return os.urandom(8)

    def location(self, journal: str, ledger_id: int | None = None) -> str:
        """The path of a ledger, or of the journal's manifests."""
        if ledger_id is None:
            return str(self._directory(journal) / _MANIFEST)
        return str(self._ledger(journal, ledger_id))

    # ---------------------------------------------------------------- manifest

    async def read_manifest(self, journal: str) -> StoredManifest | None:
        """The highest version; see `LedgerStore`."""
        return await self._reader.run(lambda: self._read_manifest(journal))

    def _read_manifest(self, journal: str) -> StoredManifest | None:
        directory = self._directory(journal) / _MANIFEST
        for _ in range(READ_TRIES):
            newest = _newest(directory)
            if not newest:
                return None
            try:
                with _io(directory):
                    data = (directory / str(newest)).read_bytes()
            except NotStored:
                continue
            self.counters.reads += 1
            self.counters.bytes_read += len(data)
            return StoredManifest(newest, data)
        raise Contended(str(directory), READ_TRIES)

    async def write_manifest(
        self, journal: str, expected: int, data: bytes, owner: Ownership | None = None
    ) -> int:
        """Link a complete file to the next version's name; see `LedgerStore`."""
        return await self._writer_of(journal).run(
            lambda: self._write_manifest(journal, expected, data)
        )

    def _write_manifest(self, journal: str, expected: int, data: bytes) -> int:
        directory = self._directory(journal) / _MANIFEST
        if expected == 0:
            self._make_directories(directory)
        if _newest(directory) != expected:
            raise ManifestConflict(journal, expected)
        version = expected + 1
        try:
            status = _link_file(directory, str(version), data, f"new-{version}-")
        except (LedgerExists, NotStored) as error:
            # Another process was first, the journal was deleted, or a later version's clean-up #
            # removed our file.
            raise ManifestConflict(journal, expected) from error
        try:
            _fsync_directory(directory)
            # If others wrote and cleaned up while this process was suspended, the linked name was #
            # free again. But they always leave newer versions.
            if _newest(directory) != version:
                raise ManifestConflict(journal, expected)
        except StorageFull as error:  # which would mean that nothing was written
            raise SyncFailed(str(directory), error.cause) from error
        self.counters.bytes_written += len(data)
        self.counters.syncs += 2
        path, next_path = str(directory / str(version)), str(directory / str(version + 1))
        self._written[journal] = _Written(
            version, path, (status.st_ino, status.st_mtime_ns), next_path
        )
        # The version is written even if the clean-up fails; the next write repeats it.
        with suppress(OSError, JournalError):
            _clean_up(directory, version)
        return version

    async def holds(self, journal: str, version: int, within_s: float = 0.0) -> bool:
        """Look at the directory twice, now; see `LedgerStore`.

        Not behind the writes of other journals, whose syncs take long. During a write of this
        journal's manifest the answer may be False; the journal knows of that write.
        """
        return await self._reader.run(lambda: self._holds(journal, version))

    def _holds(self, journal: str, version: int) -> bool:
        """Check first that the next version doesn't exist, then that ours still does.

        Clean-up removes the lowest version first. So while ours exists, the next one wasn't
        removed: if it didn't exist before, it was never written. Ours exists while its name leads
        to the same file, last written at the same time. The name alone isn't enough: a process that
        was suspended during a write can link again a name that was cleaned up long ago. Nor is the
        inode, which the system uses again. The file stays closed, so an idle actor has no open one.
        """
        ours = self._written.get(journal)
        if ours is None or ours.version != version:
            return False
        try:
            if _status(ours.next_path) is not None:
                return False
            found = _status(ours.path)
            return found is not None and (found.st_ino, found.st_mtime_ns) == ours.identity
        except OSError as error:
            # The outcome is unknown: neither confirm it nor report a full disk.
            cause = f"looking for a newer version: {error.strerror}"
            raise SyncFailed(ours.next_path, cause) from error

    async def release(self, journal: str, version: int) -> None:
        """Forget the version; see `LedgerStore`."""
        if not self._closed:
            await self._writer_of(journal).run(lambda: self._release(journal, version))

    def _release(self, journal: str, version: int) -> None:
        ours = self._written.get(journal)
        if ours is not None and ours.version == version:
            del self._written[journal]

    # ---------------------------------------------------------------- numbers

    async def claim_number(self, owner: str) -> int:
        """The lowest number that is free; see `LedgerStore`."""
        return await self._writers[0].run(lambda: self._claim_number(owner))

    def _claim_number(self, owner: str) -> int:
        self._make_directories(self._numbers)
        number = self._first_free_number()
        while True:
            try:
                _link_file(self._numbers, str(number), owner.encode(), "new-")
                break
            except LedgerExists:
                # Each failed attempt means that another process took the number.
                number += 1
        _fsync_directory(self._numbers)
        self._number_hint = number
        return self._number_base + number

    async def numbers_taken(self) -> int:
        """The highest number that has a file; see `LedgerStore`."""
        return await self._writers[0].run(lambda: self._first_free_number() - 1)

    async def take_numbers(self, until: int) -> None:
        """Create the missing files, with one sync for all; see `LedgerStore`."""
        await self._writers[0].run(lambda: self._take_numbers(until))

    def _take_numbers(self, until: int) -> None:
        self._make_directories(self._numbers)
        for number in range(self._first_free_number(), until + 1):
            path = self._numbers / str(number)
            with suppress(LedgerExists), _io(path):
                os.close(_create_file(path, b""))
        _fsync_directory(self._numbers)

    def _first_free_number(self) -> int:
        """The lowest free number, by doubling and bisection: numbers are never given back, so the
        taken ones are 1 to n."""
        taken, step = self._number_hint, 1
        while (self._numbers / str(taken + step)).exists():
            taken, step = taken + step, step * 2
        free = taken + step
        while free - taken > 1:
            middle = (free + taken) // 2
            if (self._numbers / str(middle)).exists():
                taken = middle
            else:
                free = middle
        return free

    # ---------------------------------------------------------------- ledgers

    async def create_ledger(
        self, journal: str, ledger_id: int, header: bytes, epoch: int = 0
    ) -> _FileWriter:
        """Create the ledger's file and its mark's, and make their names durable; see
        `LedgerStore`."""
        return await self._writer_of(journal).run(
            lambda: self._create_ledger(journal, ledger_id, header)
        )

    def _create_ledger(self, journal: str, ledger_id: int, header: bytes) -> _FileWriter:
        path = self._ledger(journal, ledger_id)
        with _io(path):
            fd = _create_file(path, header)
        mark_fd = self._create_mark(journal, ledger_id, fd)
        try:
            _fsync_directory(path.parent)
        except SyncFailed:
            os.close(fd)
            os.close(mark_fd)
            raise
        self.counters.bytes_written += len(header)
        self.counters.syncs += 1
        if len(self._with_files[self._number_of_writer(journal)]) >= MOST_OPEN:
            self._tidy(self._number_of_writer(journal), idle_s=0.0)
        writer = _FileWriter(self, journal, path, fd, mark_fd, len(header))
        self._open.add(writer)
        return writer

    def _create_mark(self, journal: str, ledger_id: int, ledger_fd: int) -> int:
        """Create the empty file of a ledger's mark; return its descriptor. On failure the ledger is
        removed."""
        path = self._mark(journal, ledger_id)
        try:
            with _io(path):
                # The creation of the ledger decided its owner.
                return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, FILE_MODE)
        except JournalError:
            os.close(ledger_fd)
            with suppress(OSError):
                self._ledger(journal, ledger_id).unlink()
            raise

    async def read(self, journal: str, ledger_id: int, offset: int, length: int) -> bytes:
        """Bytes of a ledger's file; see `LedgerStore`."""
        return await self._reader.run(lambda: self._read(journal, ledger_id, offset, length))

    def _read(self, journal: str, ledger_id: int, offset: int, length: int) -> bytes:
        path = self._ledger(journal, ledger_id)
        with _io(path):
            fd = os.open(path, os.O_RDONLY)
            try:
                data = os.pread(fd, length, offset)
            finally:
                os.close(fd)
        self.counters.reads += 1
        self.counters.bytes_read += len(data)
        return data

    async def read_mark(self, journal: str, ledger_id: int) -> bytes | None:
        """The content of a mark's file; see `LedgerStore`."""
        return await self._reader.run(lambda: self._read_mark(journal, ledger_id))

    def _read_mark(self, journal: str, ledger_id: int) -> bytes | None:
        path = self._mark(journal, ledger_id)
        try:
            with _io(path):
                return path.read_bytes()
        except NotStored:
            return None

    async def size(self, journal: str, ledger_id: int) -> int:
        """The size of a ledger's file; see `LedgerStore`."""
        return await self._reader.run(lambda: self._size(journal, ledger_id))

    def _size(self, journal: str, ledger_id: int) -> int:
        path = self._ledger(journal, ledger_id)
        with _io(path):
            return path.stat().st_size

    async def sync_ledger(self, journal: str, ledger_id: int) -> None:
        """Sync a ledger's file and drop it from the page cache; see `LedgerStore`."""
        await self._writer_of(journal).run(lambda: self._sync_ledger(journal, ledger_id))

    def _sync_ledger(self, journal: str, ledger_id: int) -> None:
        path = self._ledger(journal, ledger_id)
        with _io(path):
            fd = os.open(path, os.O_RDONLY)
            try:
                os.fsync(fd)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            except OSError as error:
                raise SyncFailed(str(path), f"syncing: {error.strerror}") from error
            finally:
                os.close(fd)
        self.counters.syncs += 1

    async def write_index(self, journal: str, ledger_id: int, data: bytes) -> None:
        """Replace a ledger's index file; see `LedgerStore`."""
        await self._writer_of(journal).run(lambda: self._write_index(journal, ledger_id, data))

    def _write_index(self, journal: str, ledger_id: int, data: bytes) -> None:
        path = self._index(journal, ledger_id)
        temporary = path.with_name(f"new-{os.urandom(16).hex()}")
        with _io(path):
            os.close(_create_file(temporary, data))
            try:
                os.replace(temporary, path)
            except OSError:
                temporary.unlink()
                raise
        self.counters.bytes_written += len(data)

    async def read_index(self, journal: str, ledger_id: int) -> bytes | None:
        """A ledger's index file; see `LedgerStore`."""
        return await self._reader.run(lambda: self._read_index(journal, ledger_id))

    def _read_index(self, journal: str, ledger_id: int) -> bytes | None:
        path = self._index(journal, ledger_id)
        try:
            with _io(path):
                data = path.read_bytes()
        except NotStored:
            return None
        self.counters.reads += 1
        self.counters.bytes_read += len(data)
        return data

    async def list_ledgers(self, journal: str) -> list[int]:
        """The ledgers whose files are in the journal's directory; see `LedgerStore`."""
        return await self._reader.run(lambda: _ledgers(self._directory(journal)))

    async def has_ledgers(self, journal: str, below: int) -> bool:
        """Whether the journal's directory has such a ledger's file; see `LedgerStore`."""
        return await self._reader.run(
            lambda: any(each < below for each in _ledger_files(self._directory(journal)))
        )

    async def list_journals(self, under: str = "") -> list[str]:
        """The journals whose directories exist; see `LedgerStore`."""
        walk = os.walk(self._directory(under) if under else self._journals)
        found: list[str] = []
        more = True
        while more:  # on a thread of its own: reads don't wait for thousands of directories
            more = await self._lister.run(lambda: self._list_some(walk, found))
        return sorted(found)

    def _list_some(
        self, walk: Iterator[tuple[str, list[str], list[str]]], found: list[str]
    ) -> bool:
        """Add the journals of the next directories. Returns whether there may be more."""
        left = _LISTED_AT_ONCE
        for directory, subdirectories, files in islice(walk, left):
            left -= 1
            if has_manifest := _MANIFEST in subdirectories:
                subdirectories.remove(_MANIFEST)  # nothing below it is a journal
            if has_manifest or any(name.endswith(".ledger") for name in files):
                found.append(journal_of(str(Path(directory).relative_to(self._journals))))
        return not left

    # ---------------------------------------------------------------- deletion

    async def delete_ledger(self, journal: str, ledger_id: int) -> None:
        """Remove a ledger's files; see `LedgerStore`."""
        await self._writer_of(journal).run(lambda: self._unlink_ledger(journal, ledger_id))
        await self._writer_of(journal).run(lambda: self._sync_unlinked(self._directory(journal)))

    def _unlink_ledger(self, journal: str, ledger_id: int) -> None:
        path = self._ledger(journal, ledger_id)
        with _io(path):
            self._index(journal, ledger_id).unlink(missing_ok=True)
            self._mark(journal, ledger_id).unlink(missing_ok=True)
            path.unlink(missing_ok=True)
        self._unlinked.add(path.parent)

    def _sync_unlinked(self, directory: Path) -> None:
        """Sync the directory, once for all ledgers that are deleted at the same time."""
        if directory in self._unlinked:
            _fsync_if_there(directory)
            self._unlinked.discard(directory)

    async def delete_journal(self, journal: str) -> None:
        """Remove a journal's directory; see `LedgerStore`."""
        await self._writer_of(journal).run(lambda: self._delete_journal(journal))

    def _delete_journal(self, journal: str) -> None:
        directory = self._directory(journal)
        if not directory.exists():
            return
        for _ in range(REMOVE_TRIES):
            self._empty(journal, directory)
            # Not empty: an owner that wasn't fenced yet created something meanwhile. Without the
            # directory it can't.
            if _remove_directory(directory / _MANIFEST) and _remove_directory(directory):
                break
        else:
            raise Contended(str(directory), REMOVE_TRIES)
        self._written.pop(journal, None)
        directory = directory.parent
        # Stops at the first directory that other journals live in.
        while directory != self._journals and _remove_directory(directory):
            directory = directory.parent
        _fsync_if_there(directory)

    def _empty(self, journal: str, directory: Path) -> None:
        with _io(directory):
            for ledger_id in _ledgers(directory):
                self._unlink_ledger(journal, ledger_id)
            self._sync_unlinked(directory)
            for name in (*directory.glob("new-*"), *directory.glob("*.mark")):
                name.unlink(missing_ok=True)
            manifest = directory / _MANIFEST
            _clean_up(manifest, KEPT_VERSIONS + _newest(manifest))

    async def close(self) -> None:
        """Close every file and end the threads; see `LedgerStore`."""
        if self._closed:
            return
        self._closed = True
        for worker in self._writers:
            await worker.run(partial(self._close_writers, worker))
        for worker in (*self._writers, self._reader, self._lister):
            await worker.end()

    def _close_writers(self, worker: Worker) -> None:
        """Close the files that this worker writes to."""
        for writer in [each for each in list(self._open) if each._worker is worker]:
            writer._close()

    def _make_directories(self, directory: Path) -> None:
        """Create a directory and make it and its parents durable."""
        for _ in range(MAKE_TRIES):
            with suppress(NotStored), _io(directory):
                make_private(directory)
                break
        else:
            raise Contended(str(directory), MAKE_TRIES)
        while directory != self.root:
            directory = directory.parent
            _fsync_directory(directory)


def _status(path: str) -> os.stat_result | None:
    """The status of a file, None if there is no file of this name."""
    try:
        return os.lstat(path)
    except FileNotFoundError:
        return None


def _versions(directory: Path) -> list[int]:
    """The stored versions of the manifest, ascending."""
    try:
        with _io(directory):
            return sorted(int(name) for name in os.listdir(directory) if name.isdigit())
    except NotStored:
        return []


def _newest(directory: Path) -> int:
    """The newest version of the manifest, 0 if there is none."""
    return max(_versions(directory), default=0)


def _ledgers(directory: Path) -> list[int]:
    return sorted(set(_ledger_files(directory)))


def _ledger_files(directory: Path) -> Iterator[int]:
    """The id of each ledger's file and of each index; reads the directory lazily."""
    with suppress(NotStored), _io(directory), os.scandir(directory) as found:
        for entry in found:
            stem, _, kind = entry.name.partition(".")
            if kind in ("ledger", "index"):
                yield int(stem)


def _clean_up(directory: Path, newest: int) -> None:
    """Remove old versions, lowest first (`FileStore._holds` depends on it), and the files of
    attempts that can't succeed any more."""
    for version in _versions(directory):
        if version <= newest - KEPT_VERSIONS:
            (directory / str(version)).unlink(missing_ok=True)
    for name in directory.glob("new-*"):
        if int(name.name.split("-")[1]) <= newest:
            name.unlink(missing_ok=True)
