"""Deleted data of a simulated disk, kept for the checkers: they read all that ever was.

Deleting itself is judged here as well, at the moment when it happens: nothing that a manifest
lists is deleted, nor what a creation may yet list.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from velaray.journal.errors import NotStored
from velaray.journal.manifest import LedgerInfo, Manifest, decode_manifest
from velaray.journal.memory import MemoryDisk, MemoryStore
from velaray.journal.store import StoredManifest


@dataclass
class Attic:
    """Deleted ledgers by journal: their entries in the manifest, and their contents."""

    infos: dict[str, dict[int, LedgerInfo]] = field(default_factory=dict)
    contents: dict[str, dict[int, bytes]] = field(default_factory=dict)


class SimDisk(MemoryDisk):
    """A disk with an attic."""

    takes_foreign_ledgers = True
    """Whether another journal's ledger can lie among those of a journal."""

    def __init__(self) -> None:
        super().__init__()
        self.attic = Attic()
        #: So many times more is deleting refused.
        self.refusals = 0
        #: The number of further ledgers whose deletion fails at every attempt.
        self.to_stick = 0
        self.stubborn: set[tuple[str, int]] = set()
        #: Ledgers of others that lie where deleted ones were, for the end of a run.
        self.planted: set[tuple[str, int]] = set()
        #: Deletions that mustn't have happened.
        self.faults: list[str] = []

    def refuses(self, journal: str, ledger_id: int, *, collector: bool) -> bool:
        """Whether a ledger can't be deleted now."""
        if self.refusals > 0:
            self.refusals -= 1
            return True
        if collector and self.to_stick and (journal, ledger_id) not in self.stubborn:
            self.to_stick -= 1
            self.stubborn.add((journal, ledger_id))
        return collector and (journal, ledger_id) in self.stubborn

    def manifest(self, journal: str) -> Manifest | None:
        """A journal's manifest as it is."""
        files = self._files(journal)
        return decode_manifest(journal, files.manifest) if files.version else None

    def note_dropped(self, journal: str, data: bytes) -> None:
        """A manifest is about to be replaced by another one."""
        before, after = self.manifest(journal), decode_manifest(journal, data)
        kept = {info.ledger_id for info in after.ledgers}
        for info in before.ledgers if before is not None else ():
            if info.ledger_id not in kept:
                self.attic.infos.setdefault(journal, {})[info.ledger_id] = info

    def note_deleted(self, journal: str, ledger_id: int) -> None:
        """A ledger is about to be deleted."""
        manifest, file = self.manifest(journal), self._files(journal).ledgers.get(ledger_id)
        if file is not None:
            self.attic.contents.setdefault(journal, {})[ledger_id] = bytes(file.seen)
        if manifest is not None and any(info.ledger_id == ledger_id for info in manifest.ledgers):
            self.faults.append(f"{journal}: ledger {ledger_id} is deleted and listed")


class HistoryStore(MemoryStore):
    """Reads what is there and what was: journals list every ledger that they ever had."""

    disk: SimDisk

    def __init__(self, disk: SimDisk) -> None:
        super().__init__(disk)
        self._attic = disk.attic

    async def read_manifest(self, journal: str) -> StoredManifest | None:
        """The manifest, with what isn't listed any more."""
        stored = await super().read_manifest(journal)
        former = self._attic.infos.get(journal)
        if stored is None or former is None:
            return stored
        manifest = decode_manifest(journal, stored.data)
        rows = {**former, **{info.ledger_id: info for info in manifest.ledgers}}
        ledgers = tuple(replace(rows[ledger_id], whole=True) for ledger_id in sorted(rows))
        return stored._replace(data=replace(manifest, ledgers=ledgers).encode())

    async def read(self, journal: str, ledger_id: int, offset: int, length: int) -> bytes:
        """Bytes of a ledger, stored or not."""
        try:
            if (journal, ledger_id) not in self.disk.planted:
                return await super().read(journal, ledger_id, offset, length)
        except NotStored:
            if ledger_id not in self._attic.contents.get(journal, {}):
                raise
        return self._attic.contents[journal][ledger_id][offset : offset + length]
