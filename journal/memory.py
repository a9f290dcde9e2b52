"""A store in memory, with the failures of real storage on demand.

A `MemoryDisk` survives; each process of a simulation has its own `MemoryStore` on it. Unsynced
writes are visible to all stores, as in an operating system's page cache, until
`MemoryDisk.power_loss`. The ``hook`` of a store is awaited before each step and may wait, raise
`StorageFull`, `SyncFailed` or `TornWrite`, or any exception of its own that stands for the death of
the process.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import blake2b
from typing import Final

from velaray.events.portable import PortableError
from velaray.journal.ahead import Ahead
from velaray.journal.encryption.keys import LedgerKeys
from velaray.journal.errors import (
    LedgerExists,
    ManifestConflict,
    NotStored,
    StorageFull,
    SyncFailed,
)
from velaray.journal.store import Buffer, Counters, Ownership, StoredManifest

SECTOR: Final = 512
"""Bytes that reach the disk together or not at all."""


class Step(StrEnum):
    """The points at which a hook is awaited: before the step of that name."""

    READ_MANIFEST = "read manifest"
    WRITE_MANIFEST = "write manifest"
    MANIFEST_WRITTEN = "return from writing the manifest"
    CREATE = "create ledger"
    WRITE = "write to a ledger"
    SYNC = "sync a ledger"
    CONFIRM = "confirm the version"
    MARK = "write a mark"
    RETURN = "return from an append"
    READ_MARK = "read a mark"
    READ = "read a ledger"
    RECLAIM = "sync a former writer's ledger"
    WRITE_INDEX = "write an index"
    DELETE = "delete a ledger"


Hook = Callable[[Step, str], Awaitable[None]]


class TornWrite(PortableError):
    """Raised by a hook at ``WRITE`` or ``MARK``: the process dies after writing ``kept`` bytes."""

    def __init__(self, kept: int) -> None:
        super().__init__(f"died after writing {kept} bytes")
        self.kept = kept


@dataclass(slots=True)
class _File:
    seen: bytearray
    durable: bytearray = field(default_factory=bytearray)
    pending: list[tuple[int, bytes]] = field(default_factory=list)

    def write(self, offset: int, data: bytes) -> None:
        _put(self.seen, offset, data)
        self.pending.append((offset, data))

    def sync(self) -> None:
        for offset, data in self.pending:
            _put(self.durable, offset, data)
        self.pending.clear()

    def cut(self, end: int) -> None:
        """Shorten the file, which has no unsynced bytes."""
        del self.seen[end:], self.durable[end:]


def _put(target: bytearray, offset: int, data: bytes) -> None:
    if len(target) < offset:
        target.extend(bytes(offset - len(target)))
    target[offset : offset + len(data)] = data


def _sectors(offset: int, data: bytes) -> list[tuple[int, bytes]]:
    pieces = []
    at = 0
    while at < len(data):
        end = at + SECTOR - (offset + at) % SECTOR
        pieces.append((offset + at, data[at:end]))
        at = end
    return pieces


@dataclass(slots=True)
class _Files:
    version: int = 0
    manifest: bytes = b""
    written_as: int = 0
    ledgers: dict[int, _File] = field(default_factory=dict)
    marks: dict[int, _File] = field(default_factory=dict)
    indexes: dict[int, bytes] = field(default_factory=dict)

    def size(self) -> int:
        return len(self.manifest) + sum(len(file.seen) for file in self.ledgers.values())


class MemoryDisk:
    """The content that several stores share and that outlives them. ``capacity`` (bytes of ledgers
    and manifests; None: no limit) may be changed at any time."""

    def __init__(self, capacity: int | None = None) -> None:
        self.capacity = capacity
        self.numbers: list[str] = []
        self._journals: dict[str, _Files] = {}
        self._writes = 0

    def power_loss(self, keep: Callable[[int], Iterable[int]] = lambda count: ()) -> None:
        """Lose unsynced writes, except the sectors that ``keep`` chooses.

        ``keep`` gets the number of sectors of one unsynced write, in the order of writing, and
        returns the indexes of those that had reached the disk.
        """
        for files in self._journals.values():
            files.indexes.clear()
            for file in (*files.ledgers.values(), *files.marks.values()):
                for offset, data in file.pending:
                    sectors = _sectors(offset, data)
                    for index in keep(len(sectors)):
                        _put(file.durable, *sectors[index])
                file.pending.clear()
                file.seen = bytearray(file.durable)

    def content(self, journal: str, ledger_id: int) -> bytearray:
        """The bytes of a ledger as readers see them; tests may change them."""
        return self._file(journal, ledger_id).seen

    def _files(self, journal: str) -> _Files:
        return self._journals.get(journal) or _Files()

    def _files_for_writing(self, journal: str) -> _Files:
        return self._journals.setdefault(journal, _Files())

    def _files_of_existing(self, journal: str) -> _Files:
        files = self._files(journal)
        if not files.version:
            raise NotStored(_location(journal, None))
        return files

    def _file(self, journal: str, ledger_id: int) -> _File:
        file = self._files(journal).ledgers.get(ledger_id)
        if file is None:
            raise NotStored(_location(journal, ledger_id))
        return file

    def _require_space(self, place: str, size: int) -> None:
        if self.capacity is None:
            return
        used = sum(files.size() for files in self._journals.values())
        if used + size > self.capacity:
            raise StorageFull(place, f"{used} of {self.capacity} bytes used")

    def _next_write(self) -> int:
        self._writes += 1
        return self._writes


def _location(journal: str, ledger_id: int | None) -> str:
    return f"memory:{journal}" if ledger_id is None else f"memory:{journal}/{ledger_id}.ledger"


class _MemoryWriter:
    def __init__(
        self, store: MemoryStore, journal: str, ledger_id: int, file: _File, mark: _File
    ) -> None:
        self._store = store
        self._journal = journal
        self._file = file
        self._mark = mark
        self._end = len(file.seen)
        self._ahead = Ahead(self._end)
        self._place = _location(journal, ledger_id)
        self._dead: SyncFailed | None = None

    async def append(
        self, buffers: Sequence[Buffer], *, confirm: int | None = None, mark: bytes = b""
    ) -> bool:
        size = await self._write_frame(buffers, with_zeros=confirm is not None)
        await self._sync()
        self._grow(size)
        held = True
        if confirm is not None:
            held = await self._confirm(confirm, mark)
        await self._store._step(Step.RETURN, self._journal)
        return held

    async def append_unsynced(self, buffers: Sequence[Buffer], *, confirm: int) -> bool:
        self._grow(await self._write_frame(buffers, with_zeros=True))
        held = await self._confirm(confirm)
        await self._store._step(Step.RETURN, self._journal)
        return held

    async def sync(self, *, confirm: int, mark: bytes) -> bool:
        if self._dead is not None:
            raise self._dead
        await self._sync()
        held = await self._confirm(confirm, mark)
        await self._store._step(Step.RETURN, self._journal)
        return held

    async def _write_frame(self, buffers: Sequence[Buffer], with_zeros: bool) -> int:
        if self._dead is not None:
            raise self._dead
        data = b"".join(buffers)
        self._require_space(len(data))
        zeros = self._zeros(len(data)) if with_zeros else 0
        await self._write(Step.WRITE, self._file, self._end, data + bytes(zeros))
        self._ahead.reach = max(self._ahead.reach, self._end + len(data) + zeros)
        return len(data)

    def _grow(self, size: int) -> None:
        self._store.counters.bytes_written += size
        self._end += size

    async def _confirm(self, version: int, mark: bytes = b"") -> bool:
        await self._store._step(Step.CONFIRM, self._journal)
        held = self._store._holds(self._journal, version)
        if held and mark:
            await self._write(Step.MARK, self._mark, 0, mark)
        return held

    def _require_space(self, size: int) -> None:
        longer = self._end + size - len(self._file.seen)
        self._store.disk._require_space(self._place, longer)

    def _zeros(self, size: int) -> int:
        zeros = self._ahead.zeros(self._end, size)
        try:
            self._require_space(size + zeros)
        except StorageFull:
            return 0  # indexes only speed up reads
        return zeros

    async def _write(self, step: Step, file: _File, offset: int, data: bytes) -> None:
        try:
            await self._store._step(step, self._journal)
        except TornWrite as torn:
            file.write(offset, data[: torn.kept])
            raise
        file.write(offset, data)

    async def _sync(self) -> None:
        try:
            await self._store._step(Step.SYNC, self._journal)
        except SyncFailed as error:
            # As Linux does: the pages count as clean, the data may never arrive.
            self._file.pending.clear()
            self._dead = error
            raise
        self._store.counters.syncs += 1
        self._file.sync()

    async def close(self) -> None:
        if self._dead is None:
            self._file.cut(self._end)
            self._dead = SyncFailed(self._place, "the writer is closed")


class MemoryStore:
    """One process's view of a `MemoryDisk`; implements `LedgerStore`."""

    def __init__(
        self,
        disk: MemoryDisk | None = None,
        *,
        hook: Hook | None = None,
        seed: int = 0,
        number_base: int = 0,
        keys: LedgerKeys | None = None,
    ) -> None:
        self.disk = disk or MemoryDisk()
        self.keys = keys
        self.hook = hook
        self._number_base = number_base
        self.counters = Counters()
        self._seed = seed
        self._salts = 0
        self._written: dict[str, tuple[int, int]] = {}

    async def _step(self, step: Step, journal: str) -> None:
        if self.hook is not None:
            await self.hook(step, journal)

    def salt(self) -> bytes:
        """8 bytes determined by the seed."""
        self._salts += 1
        return blake2b(f"{self._seed}:{self._salts}".encode(), digest_size=8).digest()

    def location(self, journal: str, ledger_id: int | None = None) -> str:
        """A name for error messages."""
        return _location(journal, ledger_id)

    async def read_manifest(self, journal: str) -> StoredManifest | None:
        """The manifest; see `LedgerStore`."""
        await self._step(Step.READ_MANIFEST, journal)
        files = self.disk._files(journal)
        self.counters.reads += 1
        self.counters.bytes_read += len(files.manifest)
        return StoredManifest(files.version, files.manifest) if files.version else None

    async def write_manifest(
        self, journal: str, expected: int, data: bytes, owner: Ownership | None = None
    ) -> int:
        """Replace the manifest; see `LedgerStore`."""
        await self._step(Step.WRITE_MANIFEST, journal)
        if self.disk._files(journal).version != expected:
            raise ManifestConflict(journal, expected)
        self.disk._require_space(_location(journal, None), len(data))
        files = self.disk._files_for_writing(journal)
        files.version, files.manifest = expected + 1, data
        files.written_as = self.disk._next_write()
        self._written[journal] = (files.version, files.written_as)
        self.counters.bytes_written += len(data)
        self.counters.syncs += 1
        await self._step(Step.MANIFEST_WRITTEN, journal)
        return expected + 1

    async def holds(self, journal: str, version: int, within_s: float = 0.0) -> bool:
        """Compare with the disk, now; see `LedgerStore`."""
        await self._step(Step.CONFIRM, journal)
        return self._holds(journal, version)

    def _holds(self, journal: str, version: int) -> bool:
        files = self.disk._files(journal)
        ours = (version, files.written_as)
        return files.version == version and self._written.get(journal) == ours

    async def release(self, journal: str, version: int) -> None:
        """Drop the record that this store wrote the version; see `LedgerStore`."""
        if self._written.get(journal, (0, 0))[0] == version:
            del self._written[journal]

    async def claim_number(self, owner: str) -> int:
        """The next number; see `LedgerStore`."""
        self.disk.numbers.append(owner)
        return self._number_base + len(self.disk.numbers)

    def write_in_work(self) -> None:
        """None: there is no thread; see `LedgerStore`."""

    async def numbers_taken(self) -> int:
        """The number of claims; see `LedgerStore`."""
        return len(self.disk.numbers)

    async def take_numbers(self, until: int) -> None:
        """Claim numbers for nobody; see `LedgerStore`."""
        self.disk.numbers += [""] * (until - len(self.disk.numbers))

    async def create_ledger(
        self, journal: str, ledger_id: int, header: bytes, epoch: int = 0
    ) -> _MemoryWriter:
        """Create a ledger; see `LedgerStore`."""
        await self._step(Step.CREATE, journal)
        place = _location(journal, ledger_id)
        self.disk._require_space(place, len(header))
        files = self.disk._files_of_existing(journal)
        if ledger_id in files.ledgers:
            raise LedgerExists(place)
        file = files.ledgers[ledger_id] = _File(bytearray())
        mark = files.marks[ledger_id] = _File(bytearray())
        file.write(0, header)
        self.counters.bytes_written += len(header)
        return _MemoryWriter(self, journal, ledger_id, file, mark)

    async def read(self, journal: str, ledger_id: int, offset: int, length: int) -> bytes:
        """Bytes of a ledger, unsynced ones too; see `LedgerStore`."""
        await self._step(Step.READ, journal)
        return self.read_now(journal, ledger_id, offset, length)

    def read_now(self, journal: str, ledger_id: int, offset: int, length: int) -> bytes:
        """Bytes of a ledger, at once; see `LedgerStore`."""
        data = bytes(self.disk._file(journal, ledger_id).seen[offset : offset + length])
        self.counters.reads += 1
        self.counters.bytes_read += len(data)
        return data

    async def read_mark(self, journal: str, ledger_id: int) -> bytes | None:
        """A ledger's mark, unsynced as it is; see `LedgerStore`."""
        await self._step(Step.READ_MARK, journal)
        mark = self.disk._files(journal).marks.get(ledger_id)
        return bytes(mark.seen) if mark is not None else None

    async def size(self, journal: str, ledger_id: int) -> int:
        """Bytes of a ledger; see `LedgerStore`."""
        return len(self.disk._file(journal, ledger_id).seen)

    async def sync_ledger(self, journal: str, ledger_id: int) -> None:
        """Sync a ledger and show only what is durable; see `LedgerStore`."""
        await self._step(Step.RECLAIM, journal)
        file = self.disk._file(journal, ledger_id)
        file.sync()
        file.seen = bytearray(file.durable)
        self.counters.syncs += 1

    async def write_index(self, journal: str, ledger_id: int, data: bytes) -> None:
        """Keep an index until the next power loss; see `LedgerStore`."""
        await self._step(Step.WRITE_INDEX, journal)
        self.disk._files_of_existing(journal).indexes[ledger_id] = data
        self.counters.bytes_written += len(data)

    async def read_index(self, journal: str, ledger_id: int) -> bytes | None:
        """A ledger's index; see `LedgerStore`."""
        data = self.disk._files(journal).indexes.get(ledger_id)
        self.counters.reads += 1
        self.counters.bytes_read += len(data or b"")
        return data

    async def list_ledgers(self, journal: str) -> list[int]:
        """The stored ledgers; see `LedgerStore`."""
        files = self.disk._files(journal)
        return sorted(files.ledgers.keys() | files.indexes.keys())

    async def has_ledgers(self, journal: str, below: int) -> bool:
        """Whether a ledger below that is stored; see `LedgerStore`."""
        return any(ledger_id < below for ledger_id in await self.list_ledgers(journal))

    async def list_journals(self, under: str = "") -> list[str]:
        """The stored journals; see `LedgerStore`."""
        names = sorted(self.disk._journals)
        return [name for name in names if not under or f"{name}/".startswith(f"{under}/")]

    async def delete_ledger(self, journal: str, ledger_id: int) -> None:
        """Remove a ledger; see `LedgerStore`."""
        await self._step(Step.DELETE, journal)
        files = self.disk._files(journal)
        files.indexes.pop(ledger_id, None)
        files.marks.pop(ledger_id, None)
        files.ledgers.pop(ledger_id, None)

    async def delete_journal(self, journal: str) -> None:
        """Remove a journal; see `LedgerStore`."""
        await self._step(Step.DELETE, journal)
        self.disk._journals.pop(journal, None)

    async def close(self) -> None:
        """Drop the record of the versions that this store wrote; see `LedgerStore`."""
        self._written.clear()
