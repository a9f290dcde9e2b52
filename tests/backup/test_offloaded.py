"""Backups and copies of journals whose ledgers are in an archive are independent of it."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.backup.testing import AT_ONCE, KEY, RECORDS, Clock, events, owner, segments, write
from tests.journal.testing import on_loop
from velaray.backup.blobs import FolderBlobs
from velaray.backup.creating import create_backup
from velaray.backup.listing import read_listing
from velaray.backup.moving import copy_journals
from velaray.backup.stored_backup import BackupStore
from velaray.journal.memory import MemoryDisk, MemoryStore
from velaray.journal.objects.conditional import ConditionalObjects
from velaray.journal.objects.memory_objects import MemoryBucket, MemoryObjects
from velaray.journal.offload.archive import LedgerArchive
from velaray.journal.offload.rounds import delete_local_copies, offload_ledger
from velaray.journal.offload.tiered_store import TieredStore
from velaray.journal.replay import load_manifest


class Tiers:
    """A disk and a bucket, and a journal whose older ledgers are only in the bucket."""

    def __init__(self) -> None:
        self.disk, self.bucket = MemoryDisk(), MemoryBucket()
        self.clock = Clock()
        self.expected = [b"%d" % number for number in range(6)]

    def store(self) -> TieredStore:
        objects = ConditionalObjects(MemoryObjects(self.bucket), os.urandom, random)
        return TieredStore(MemoryStore(self.disk), LedgerArchive(objects))

    async def fill(self, *, offloaded: bool = True) -> None:
        store = self.store()
        journal = await owner(store, self.clock)
        for event in self.expected:
            await write(journal, event)
            await journal.roll(segments(journal), b"digest")
        if offloaded:
            await self.offload()

    async def offload(self) -> None:
        store = self.store()
        journal = await owner(store, self.clock)
        for info in journal.ledgers[:4]:
            await offload_ledger(store, KEY, info, journal.mark_offloaded)
        assert await delete_local_copies(store, KEY, journal.ledgers[:4]) == []
        await journal.close()

    def lose_archive(self) -> None:
        self.bucket.objects.clear()


@pytest.fixture
def tiers() -> Tiers:
    return Tiers()


@on_loop
async def test_a_backup_has_the_bytes_of_offloaded_ledgers_and_no_marks(
    tiers: Tiers, tmp_path: Path
) -> None:
    await tiers.fill()
    blobs = FolderBlobs(tmp_path)
    await create_backup(
        tiers.store(), blobs, None, clock_ms=tiers.clock, records=RECORDS, settings=AT_ONCE
    )
    tiers.lose_archive()
    saved = BackupStore(blobs, await read_listing(blobs))
    assert await events(saved) == tiers.expected
    restored = MemoryStore()
    await copy_journals(saved, restored, RECORDS)
    assert await events(restored) == tiers.expected
    assert not (await load_manifest(restored, KEY)).offloaded
    assert (await load_manifest(tiers.store(), KEY)).offloaded


@on_loop
async def test_a_ledger_that_is_in_a_backup_is_not_fetched_from_the_archive(
    tiers: Tiers, tmp_path: Path
) -> None:
    await tiers.fill(offloaded=False)
    blobs = FolderBlobs(tmp_path)
    settings = {"clock_ms": tiers.clock, "records": RECORDS, "settings": AT_ONCE}
    first, _ = await create_backup(tiers.store(), blobs, None, **settings)
    await tiers.offload()
    store = tiers.store()
    await create_backup(store, blobs, first, **settings)
    assert store.archive.counters.gets == 0


@on_loop
async def test_a_copy_of_a_data_directory_needs_no_archive(tiers: Tiers) -> None:
    await tiers.fill()
    target = MemoryStore()
    await copy_journals(tiers.store(), target, RECORDS)
    tiers.lose_archive()
    assert await events(target) == tiers.expected
    assert not (await load_manifest(target, KEY)).offloaded
