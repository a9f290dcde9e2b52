"""The interface of the storage of journals.

A store is like an object store: named objects per journal, a manifest that is replaced by
compare-and-set, ledgers with one writer and any number of readers. Other modules define the
formats; a store sees bytes.

``journal`` is always the text of an actor key. No journal's text is a path prefix of another's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from velaray.journal.encryption.keys import LedgerKeys

Buffer = bytes | bytearray | memoryview


class StoredManifest(NamedTuple):
    """The newest manifest and its version (1, 2, ...)."""

    version: int
    data: bytes


class Ownership(NamedTuple):
    """The owner that a manifest names, and the ledgers that it lists. A higher ``epoch`` than the
    stored manifest's means that the writer takes the journal."""

    epoch: int
    ledgers: frozenset[int]


@dataclass(slots=True)
class Counters:
    """The operations of a store object so far; bytes are those of ledgers, manifests and indexes,
    without marks."""

    bytes_read: int = 0
    bytes_written: int = 0
    reads: int = 0
    syncs: int = 0


class LedgerWriter(Protocol):
    """Appends to a ledger; obtained by creating the ledger."""

    async def append(
        self, buffers: Sequence[Buffer], *, confirm: int | None = None, mark: bytes = b""
    ) -> bool:
        """Write ``buffers`` at the end and sync; returns only when they are durable.

        With ``confirm``, zeros may be written after them, which the next append overwrites. Then,
        after the sync, check whether that manifest version is still the newest and return the
        result: False means that nothing may be acknowledged. If it is, overwrite the ledger's
        former mark with ``mark`` (always of the same size), without a sync and without risk for the
        ledger; if there is no room for it, it is not written. Only the first append may be without
        ``confirm``; its result is True and no mark is written.

        Run one append at a time. Raises `StorageFull`: the append has no effect, and later appends
        may succeed. Raises `SyncFailed`: the writer is dead, every later append raises it too.
        """
        ...

    async def append_unsynced(self, buffers: Sequence[Buffer], *, confirm: int) -> bool:
        """`append` without the sync, and without a mark.

        Written bytes survive the death of the process. After a loss of power any part of the bytes
        since the last sync may be missing.
        """
        ...

    async def sync(self, *, confirm: int, mark: bytes) -> bool:
        """Make everything appended durable; then check the version and write the mark, as `append`
        does. Don't call it during an append. Raises `SyncFailed`, as `append` does."""
        ...

    async def close(self) -> None:
        """Release the file, and cut off zeros after its end. Unsynced bytes stay unsynced.
        Idempotent."""
        ...


class LedgerStore(Protocol):
    """The storage of journals. Any method may raise `StorageFull` (when it writes) or `SyncFailed`
    (an I/O error)."""

    @property
    def counters(self) -> Counters:
        """The operations of this store object so far."""
        ...

    @property
    def keys(self) -> LedgerKeys | None:
        """The keys of encrypted ledgers; new ledgers are encrypted unless it is None."""
        ...

    def salt(self) -> bytes:
        """8 unguessable bytes (in simulation, determined by the seed)."""
        ...

    def location(self, journal: str, ledger_id: int | None = None) -> str:
        """The location of a ledger (or the journal), for people: a path or an address."""
        ...

    def write_in_work(self) -> asyncio.Future[Any] | None:
        """A write that a thread does for the running loop and that hasn't ended, if there is one.
        The thread needs Python's lock for it."""
        ...

    async def read_manifest(self, journal: str) -> StoredManifest | None:
        """The newest manifest, or None if the journal doesn't exist."""
        ...

    async def write_manifest(
        self, journal: str, expected: int, data: bytes, owner: Ownership | None = None
    ) -> int:
        """Replace version ``expected`` (0: there is none yet); returns the new version.

        ``owner`` says what the manifest does (None: it is a record without ledgers).

        Durable on return. Raises `ManifestConflict` if ``expected`` is not the newest, or if the
        written version has been superseded already; `StorageFull` only if nothing was written.
        """
        ...

    async def holds(self, journal: str, version: int, within_s: float = 0.0) -> bool:
        """Whether ``version``, which this store object wrote, is still the newest.

        A version that this store object did not write is not held. Never True once a newer
        version was written ``within_s`` or more before the call, even if it has been cleaned up
        since. A store whose looks cost requests may use a look that is at most that old.
        """
        ...

    async def release(self, journal: str, version: int) -> None:
        """Release the resources of `holds` for ``version``, which isn't checked any more."""
        ...

    async def claim_number(self, owner: str) -> int:
        """A unique journal number (1, 2, ..., after the store's base), never given twice. A crash
        right after leaves a gap."""
        ...

    async def numbers_taken(self) -> int:
        """The highest number that may have been given so far, counted without the store's base;
        0 if there is none."""
        ...

    async def take_numbers(self, until: int) -> None:
        """Take all numbers up to ``until``, counted without the base, so none of them is ever
        given. Idempotent, but not atomic: repeat it after an error."""
        ...

    async def create_ledger(
        self, journal: str, ledger_id: int, header: bytes, epoch: int = 0
    ) -> LedgerWriter:
        """Create a ledger that starts with ``header``; synced with the first append. ``epoch`` is
        the owner's (0: that of the last write of the manifest by this store object).

        Raises `LedgerExists`; `NotStored` if the journal has no manifest: it was deleted;
        `ManifestConflict` if the store sees that another owner has the journal.
        """
        ...

    async def read(self, journal: str, ledger_id: int, offset: int, length: int) -> bytes:
        """Up to ``length`` bytes from ``offset``; fewer only at the end of the ledger.

        Raises `NotStored`.
        """
        ...

    async def read_mark(self, journal: str, ledger_id: int) -> bytes | None:
        """A ledger's mark as it was last written; after a crash perhaps an older one, a torn one or
        None. It never covers an append that isn't durable."""
        ...

    async def size(self, journal: str, ledger_id: int) -> int:
        """The stored bytes, including torn writes and zeros after the end. Raises `NotStored`."""
        ...

    async def sync_ledger(self, journal: str, ledger_id: int) -> None:
        """Make the unsynced bytes of a former writer durable, and drop caches, so that the next
        read returns what is stored. Raises `NotStored`."""
        ...

    async def write_index(self, journal: str, ledger_id: int, data: bytes) -> None:
        """Store a ledger's index beside it. It may be lost in a crash, never half-written.

        Raises `NotStored` if the journal was deleted."""
        ...

    async def read_index(self, journal: str, ledger_id: int) -> bytes | None:
        """A ledger's index, or None."""
        ...

    async def list_ledgers(self, journal: str) -> list[int]:
        """Every stored ledger of the journal, listed in its manifest or not, ascending."""
        ...

    async def has_ledgers(self, journal: str, below: int) -> bool:
        """Whether `list_ledgers` would return an id smaller than ``below``; cheap if so, for any
        number of ledgers."""
        ...

    async def list_journals(self, under: str = "") -> list[str]:
        """Every journal with any stored object, sorted; only those whose names begin with the whole
        parts ``under``, such as "partition/public/default/t", if it isn't empty. Its cost then
        depends on their number alone."""
        ...

    async def delete_ledger(self, journal: str, ledger_id: int) -> None:
        """Remove a ledger, its mark and its index. Idempotent. The caller has checked the owner."""
        ...

    async def delete_journal(self, journal: str) -> None:
        """Remove everything of a journal, its manifest last. Idempotent."""
        ...

    async def close(self) -> None:
        """Release threads and files. Idempotent; the store can't be used afterwards."""
        ...
