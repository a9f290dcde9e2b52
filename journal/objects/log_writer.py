"""Appends to one ledger through the log of the process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from velaray.journal.errors import ManifestConflict, SyncFailed
from velaray.journal.objects.activation import Activation
from velaray.journal.objects.bodies import Chunk
from velaray.journal.objects.host_log import LogSealed
from velaray.journal.objects.housekeeping import Housekeeper
from velaray.journal.store import Buffer, Counters


class LogStore(Protocol):
    """What the writer needs of its store."""

    counters: Counters
    housekeeper: Housekeeper

    def location(self, journal: str, ledger_id: int | None = None) -> str:
        """Where a ledger is, for people."""
        ...

    async def adopt(self, mine: Activation) -> None:
        """Read the tail of the former owner."""
        ...


class LogWriter:
    """Appends to one ledger through the log of the process; implements `LedgerWriter`."""

    def __init__(self, store: LogStore, owner: Activation, ledger_id: int, header: bytes) -> None:
        self._store = store
        self._owner = owner
        self._ledger_id = ledger_id
        self._header = header
        self._end = 0
        self._closed = False

    async def append(
        self, buffers: Sequence[Buffer], *, confirm: int | None = None, mark: bytes = b""
    ) -> bool:
        """Add to the log and wait until it is committed; see `LedgerWriter`. Marks aren't
        needed."""
        owner = self._owner
        place = self._store.location(owner.journal, self._ledger_id)
        if self._closed:
            raise SyncFailed(place, "the writer is closed")
        data = b"".join(buffers)
        await self._store.housekeeper.room()
        if self._end == 0:
            await self._store.adopt(owner)
            data = self._header + data
        if owner.cut:
            return self._cut(confirm)
        chunks = [Chunk(owner.journal, owner.epoch, self._ledger_id, self._end, data)]
        if not owner.copied:
            owner.copied = True
            copies = [c for each in owner.adopted.by_ledger.values() for c in each]
            chunks = [*(replace(chunk, epoch=owner.epoch) for chunk in copies), *chunks]
        try:
            number = owner.stage(chunks)
            self._end += len(data)
            self._store.housekeeper.wake(number)
            await owner.log.wait(number)
        except LogSealed:
            return self._cut(confirm)
        self._store.counters.syncs += 1
        self._store.counters.bytes_written += len(data)
        if confirm is None:
            return True
        return not owner.cut and owner.record.version == confirm

    def _cut(self, confirm: int | None) -> bool:
        if confirm is None:
            raise ManifestConflict(self._owner.journal, self._owner.record.version)
        return False

    async def append_unsynced(self, buffers: Sequence[Buffer], *, confirm: int) -> bool:
        """The same as `append`: what isn't in the store doesn't survive the process."""
        return await self.append(buffers, confirm=confirm)

    async def sync(self, *, confirm: int, mark: bytes) -> bool:
        """Whether the owner still is; everything appended is committed. See `LedgerWriter`."""
        return not self._owner.cut and self._owner.record.version == confirm

    async def close(self) -> None:
        """Accept no more appends. Idempotent."""
        self._closed = True
