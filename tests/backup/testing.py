"""What the tests of backups share: a clock, journals that run by it, and what a store holds."""

from __future__ import annotations

from velaray.backup.blobs import FolderBlobs
from velaray.backup.creating import BackupSettings
from velaray.backup.listing import Listing
from velaray.journal.journal import Journal
from velaray.journal.manifest import Manifest
from velaray.journal.replay import load_manifest, replay
from velaray.journal.store import LedgerStore

KEY = "partition/public/default/orders/0/1"
OTHER = "subscription/public/default/orders/0/1/billing/1"
RECORDS = frozenset({"cluster"})
AT_ONCE = BackupSettings(skew_ms=0, part_bytes=500)
"""The clocks of these tests don't differ, and ledgers have several parts."""


class Clock:
    """A clock that moves by a millisecond with each look."""

    def __init__(self) -> None:
        self.now_ms = 1_000

    def __call__(self) -> int:
        self.now_ms += 1
        return self.now_ms


async def owner(store: LedgerStore, clock: Clock, key: str = KEY) -> Journal:
    """A new owner of a journal. Its checkpoints say how many records there were."""
    journal = await Journal.open(store, key, clock_ms=clock)
    await journal.start(segments(journal), b"digest")
    return journal


def segments(journal: Journal) -> dict[str, bytes]:
    return {"count": b"%d" % journal.next_sequence}


async def write(journal: Journal, *events: bytes) -> None:
    """Commit each event as a frame of its own, with a blob."""
    for event in events:
        journal.stage(event, event * 7)
        await journal.commit()


async def events(store: LedgerStore, key: str = KEY) -> list[bytes]:
    """All events of a journal."""
    return [record.event async for record in replay(store, key)]


async def manifest_of(store: LedgerStore, key: str = KEY) -> Manifest:
    return await load_manifest(store, key)


def bytes_of(listing: Listing) -> int:
    """The bytes of all ledgers in a backup."""
    journals = listing.journals.values()
    return sum(ledger.size for journal in journals for ledger in journal.ledgers.values())


def files_of(blobs: FolderBlobs) -> dict[str, bytes]:
    """Every file of a place of backups."""
    return {
        path.relative_to(blobs.root).as_posix(): path.read_bytes()
        for path in blobs.root.rglob("*")
        if path.is_file()
    }
