"""Reads a backup as a store of journals, and verifies it."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final, NoReturn

from velaray.backup.blobs import Blobs
from velaray.backup.listing import Listing, StoredLedger, StoredPart
from velaray.journal.encryption.keys import LedgerKeys
from velaray.journal.errors import CorruptJournal, JournalError, Misuse, NotStored
from velaray.journal.manifest import decode_manifest
from velaray.journal.replay import Fold, verify
from velaray.journal.scan import CHUNK
from velaray.journal.store import Counters, LedgerStore, LedgerWriter, Ownership, StoredManifest

CACHED_PARTS: Final = 8
"""Parts that stay in memory."""


class BackupStore:
    """The journals of a backup; implements the reading part of `LedgerStore`.

    The digest of each part is compared before any of its bytes is returned: a read raises
    `CorruptJournal` if it differs, and `NotStored` if the part is missing.
    """

    def __init__(self, blobs: Blobs, listing: Listing, keys: LedgerKeys | None = None) -> None:
        self.counters = Counters()
        self.keys = keys
        self.listing = listing
        self._blobs = blobs
        self._cache: OrderedDict[str, bytes] = OrderedDict()

    def salt(self) -> bytes:
        """Refused: nothing is written."""
        self._refuse()

    def location(self, journal: str, ledger_id: int | None = None) -> str:
        """The place of the backup, with the journal and the ledger."""
        ledger = "" if ledger_id is None else f", ledger {ledger_id}"
        place = self._blobs.location(f"backups/{self.listing.number:08}")
        return f"{place} ({journal}{ledger})"

    async def read_manifest(self, journal: str) -> StoredManifest | None:
        """The manifest in the backup; see `LedgerStore`."""
        record = self.listing.records.get(journal)
        if record is not None:
            return StoredManifest(1, record)
        found = self.listing.journals.get(journal)
        return None if found is None else StoredManifest(1, found.manifest)

    async def read(self, journal: str, ledger_id: int, offset: int, length: int) -> bytes:
        """Bytes of a ledger; see `LedgerStore`."""
        ledger = self._ledger(journal, ledger_id)
        end = min(offset + length, ledger.size)
        found: list[bytes] = []
        for part in ledger.parts:
            if part.start <= offset < min(end, part.end):
                data = await self._part(part)
                found.append(data[offset - part.start : end - part.start])
                offset += len(found[-1])
        self.counters.reads += 1
        return b"".join(found)

    def _ledger(self, journal: str, ledger_id: int) -> StoredLedger:
        found = self.listing.journals.get(journal)
        ledger = None if found is None else found.ledgers.get(ledger_id)
        if ledger is None:
            raise NotStored(self.location(journal, ledger_id))
        return ledger

    async def _part(self, part: StoredPart) -> bytes:
        data = self._cache.get(part.name)
        if data is None:
            data = await self._blobs.get(part.name)
            if data is None:
                raise NotStored(self._blobs.location(part.name))
            if len(data) != part.length or sha256(data).digest() != part.digest:
                place = self._blobs.location(part.name)
                raise CorruptJournal(place, 0, "the bytes aren't those that the backup lists")
            self.counters.bytes_read += len(data)
            self._cache[part.name] = data
            if len(self._cache) > CACHED_PARTS:
                self._cache.popitem(last=False)
        return data

    async def read_mark(self, journal: str, ledger_id: int) -> bytes | None:
        """None: all ledgers of a backup are sealed."""
        return None

    async def read_index(self, journal: str, ledger_id: int) -> bytes | None:
        """None: indexes are created again when they are needed."""
        return None

    async def size(self, journal: str, ledger_id: int) -> int:
        """The bytes of a ledger; see `LedgerStore`."""
        return self._ledger(journal, ledger_id).size

    async def list_ledgers(self, journal: str) -> list[int]:
        """The ledgers in the backup; see `LedgerStore`."""
        found = self.listing.journals.get(journal)
        return [] if found is None else sorted(found.ledgers)

    async def has_ledgers(self, journal: str, below: int) -> bool:
        """Whether it has a ledger below that; see `LedgerStore`."""
        return any(ledger_id < below for ledger_id in await self.list_ledgers(journal))

    async def list_journals(self, under: str = "") -> list[str]:
        """The journals and records in the backup; see `LedgerStore`."""
        names = sorted({*self.listing.journals, *self.listing.records})
        return [name for name in names if not under or f"{name}/".startswith(f"{under}/")]

    def write_in_work(self) -> None:
        """None: nothing is written; see `LedgerStore`."""

    async def numbers_taken(self) -> int:
        """The numbers that were taken at the time of the backup; see `LedgerStore`."""
        return self.listing.numbers

    async def close(self) -> None:
        """Close the place of the backup."""
        await self._blobs.close()

    # -- writing -------------------------------------------------------------------

    def _refuse(self) -> NoReturn:
        raise Misuse(f"{self.location('')}: a backup is never written to")

    async def write_manifest(
        self, journal: str, expected: int, data: bytes, owner: Ownership | None = None
    ) -> int:
        """Refused."""
        self._refuse()

    async def holds(self, journal: str, version: int, within_s: float = 0.0) -> bool:
        """False: nobody owns it."""
        return False

    async def release(self, journal: str, version: int) -> None:
        """Do nothing."""

    async def claim_number(self, owner: str) -> int:
        """Refused."""
        self._refuse()

    async def take_numbers(self, until: int) -> None:
        """Refused."""
        self._refuse()

    async def create_ledger(
        self, journal: str, ledger_id: int, header: bytes, epoch: int = 0
    ) -> LedgerWriter:
        """Refused."""
        self._refuse()

    async def sync_ledger(self, journal: str, ledger_id: int) -> None:
        """Do nothing: everything is durable."""

    async def write_index(self, journal: str, ledger_id: int, data: bytes) -> None:
        """Refused."""
        self._refuse()

    async def delete_ledger(self, journal: str, ledger_id: int) -> None:
        """Refused."""
        self._refuse()

    async def delete_journal(self, journal: str) -> None:
        """Refused."""
        self._refuse()


@dataclass(slots=True)
class JournalReport:
    """The findings on a journal of a backup; ``problems`` is empty for a sound one."""

    key: str
    ledgers: int = 0
    records: int = 0
    bytes: int = 0
    problems: list[str] = field(default_factory=list)


async def verify_journal(store: BackupStore, key: str, fold: Fold) -> JournalReport:
    """Read every byte and every record of a journal: sizes, digests, checksums and states.

    Problems are in the report, none is raised.
    """
    report, stored = JournalReport(key), store.listing.journals[key]
    try:
        manifest = decode_manifest(store.location(key), stored.manifest)
        listed = [(info.ledger_id, info.bytes) for info in manifest.ledgers]
        if listed != [(each.ledger_id, each.size) for each in stored.ledgers.values()]:
            report.problems.append("the manifest and the listing differ")
        await _read_checkpoints(store, key, listed)
        for each in await verify(store, key, fold):
            report.ledgers += 1
            report.records += each.records
            report.bytes += each.bytes
            report.problems += each.problems
    except JournalError as error:
        report.problems.append(str(error))
    return report


async def _read_checkpoints(store: LedgerStore, key: str, listed: list[tuple[int, int]]) -> None:
    """Read all bytes of the ledgers: `verify` skips checkpoints with removed parts."""
    for ledger_id, size in listed:
        for at in range(0, size, CHUNK):
            length = min(CHUNK, size - at)
            if len(await store.read(key, ledger_id, at, length)) != length:
                raise CorruptJournal(store.location(key, ledger_id), at, f"ends before byte {size}")
