"""A store whose sealed ledgers of topics may be in an archive instead of the local store.

Everything is written locally. A ledger is read from the archive if it isn't stored locally. Only
`velaray.journal.garbage_collection.dispose` deletes in both. Manifests and marks are always local.
So opening a journal makes no request to the archive.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from velaray.journal.encryption.keys import LedgerKeys
from velaray.journal.errors import NotStored
from velaray.journal.offload.archive import LedgerArchive
from velaray.journal.offload.read_ahead import ReadAhead
from velaray.journal.store import Counters, LedgerStore, LedgerWriter, Ownership, StoredManifest

PARTITIONS: Final = "partition/"
"""The beginning of the names of journals whose ledgers may be offloaded."""


class TieredStore:
    """The local store of a cluster, with its archive; implements `LedgerStore`."""

    def __init__(self, local: LedgerStore, archive: LedgerArchive) -> None:
        self.local = local
        self.archive = archive
        self._ahead = ReadAhead(archive)

    @property
    def counters(self) -> Counters:
        """The operations of the local store so far."""
        return self.local.counters

    @property
    def keys(self) -> LedgerKeys | None:
        """The keys of encrypted ledgers in both tiers."""
        return self.local.keys

    # ---------------------------------------------------------------- both tiers

    async def offload(self, journal: str, ledger_id: int, size: int) -> None:
        """Copy a sealed ledger of ``size`` bytes to the archive, and verify the copy.

        Raises as `LedgerArchive.copy`.
        """
        await self.archive.copy(self.local, journal, ledger_id, size)

    async def delete_local(self, journal: str, ledger_id: int, size: int) -> bool:
        """Delete the local copy of a ledger that is marked as offloaded, unless the archive lacks a
        part of it; returns whether it is deleted.

        Raises what both stores raise; then it may or may not be deleted.
        """
        if not await self.archive.is_complete(journal, ledger_id, size):
            return False
        await self.local.delete_ledger(journal, ledger_id)
        return True

    async def is_local(self, journal: str, ledger_id: int) -> bool:
        """Whether a ledger is stored locally."""
        try:
            await self.local.size(journal, ledger_id)
        except NotStored:
            return False
        return True

    async def read(self, journal: str, ledger_id: int, offset: int, length: int) -> bytes:
        """Bytes of a ledger from either tier; see `LedgerStore`."""
        try:
            return await self.local.read(journal, ledger_id, offset, length)
        except NotStored:
            if not journal.startswith(PARTITIONS):
                raise
        return await self._ahead.read(journal, ledger_id, offset, length)

    async def size(self, journal: str, ledger_id: int) -> int:
        """The stored bytes of a ledger in either tier; see `LedgerStore`."""
        try:
            return await self.local.size(journal, ledger_id)
        except NotStored:
            if not journal.startswith(PARTITIONS):
                raise
        return (await self.archive.end(journal, ledger_id)).size

    async def read_index(self, journal: str, ledger_id: int) -> bytes | None:
        """A ledger's index from either tier; see `LedgerStore`."""
        found = await self.local.read_index(journal, ledger_id)
        if found is not None or not journal.startswith(PARTITIONS):
            return found
        if await self.is_local(journal, ledger_id):
            return None
        return await self.archive.read_index(journal, ledger_id)

    async def delete_archived(self, journal: str, ledger_id: int) -> None:
        """Remove a ledger from the archive, complete or not. Raises what the archive raises; then
        the call may be repeated."""
        if journal.startswith(PARTITIONS):
            self._ahead.forget(journal, ledger_id)
            await self.archive.delete(journal, ledger_id)

    async def close(self) -> None:
        """Close both tiers; see `LedgerStore`."""
        self._ahead.close()
        await self.local.close()
        await self.archive.close()

    # ---------------------------------------------------------------- the local tier

    def salt(self) -> bytes:
        """See `LedgerStore`."""
        return self.local.salt()

    def location(self, journal: str, ledger_id: int | None = None) -> str:
        """The local place; see `LedgerStore`."""
        return self.local.location(journal, ledger_id)

    def write_in_work(self) -> asyncio.Future[Any] | None:
        """A write of the local tier; see `LedgerStore`."""
        return self.local.write_in_work()

    async def read_manifest(self, journal: str) -> StoredManifest | None:
        """See `LedgerStore`."""
        return await self.local.read_manifest(journal)

    async def write_manifest(
        self, journal: str, expected: int, data: bytes, owner: Ownership | None = None
    ) -> int:
        """See `LedgerStore`."""
        return await self.local.write_manifest(journal, expected, data, owner)

    async def holds(self, journal: str, version: int, within_s: float = 0.0) -> bool:
        """See `LedgerStore`."""
        return await self.local.holds(journal, version, within_s)

    async def release(self, journal: str, version: int) -> None:
        """See `LedgerStore`."""
        await self.local.release(journal, version)

    async def claim_number(self, owner: str) -> int:
        """See `LedgerStore`."""
        return await self.local.claim_number(owner)

    async def numbers_taken(self) -> int:
        """See `LedgerStore`."""
        return await self.local.numbers_taken()

    async def take_numbers(self, until: int) -> None:
        """See `LedgerStore`."""
        await self.local.take_numbers(until)

    async def create_ledger(
        self, journal: str, ledger_id: int, header: bytes, epoch: int = 0
    ) -> LedgerWriter:
        """See `LedgerStore`."""
        return await self.local.create_ledger(journal, ledger_id, header, epoch)

    async def read_mark(self, journal: str, ledger_id: int) -> bytes | None:
        """See `LedgerStore`."""
        return await self.local.read_mark(journal, ledger_id)

    async def sync_ledger(self, journal: str, ledger_id: int) -> None:
        """See `LedgerStore`."""
        await self.local.sync_ledger(journal, ledger_id)

    async def write_index(self, journal: str, ledger_id: int, data: bytes) -> None:
        """See `LedgerStore`."""
        await self.local.write_index(journal, ledger_id, data)

    async def delete_ledger(self, journal: str, ledger_id: int) -> None:
        """Remove the local ledger; see `LedgerStore`. `dispose` removes it from the archive too."""
        await self.local.delete_ledger(journal, ledger_id)

    async def list_ledgers(self, journal: str) -> list[int]:
        """The ledgers that are stored locally; `LedgerArchive.list` has the others."""
        return await self.local.list_ledgers(journal)

    async def has_ledgers(self, journal: str, below: int) -> bool:
        """See `LedgerStore`."""
        return await self.local.has_ledgers(journal, below)

    async def list_journals(self, under: str = "") -> list[str]:
        """See `LedgerStore`."""
        return await self.local.list_journals(under)

    async def delete_journal(self, journal: str) -> None:
        """Remove the local part of a journal; its ledgers in the archive have events of their
        own."""
        await self.local.delete_journal(journal)
