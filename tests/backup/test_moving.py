"""Copies of journals into an empty store."""

from __future__ import annotations

import pytest

from tests.backup.testing import (
    AT_ONCE,
    OTHER,
    RECORDS,
    Clock,
    events,
    manifest_of,
    owner,
    segments,
    write,
)
from tests.journal.testing import FileBackend, MemoryBackend, ObjectBackend, on_loop
from velaray.backup.creating import create_backup
from velaray.backup.moving import copy_journals
from velaray.backup.stored_backup import BackupStore
from velaray.journal.errors import ManifestConflict, Purged
from velaray.journal.garbage_collection import purge
from velaray.journal.objects.conditional import Taken
from velaray.journal.store import LedgerStore

DELETED = f"{OTHER}0"


@pytest.fixture(params=["memory", "files", "objects"])
def target(request, tmp_path):
    match request.param:
        case "memory":
            chosen = MemoryBackend()
        case "files":
            chosen = FileBackend(tmp_path / "target")
        case _:
            chosen = ObjectBackend()
    yield chosen
    chosen.close()


async def filled(store: LedgerStore, clock: Clock) -> None:
    """Two journals, one of them with several ledgers, and a deleted one; nobody owns them."""

    async def nothing(_) -> None:
        return

    first, second = await owner(store, clock), await owner(store, clock, OTHER)
    await write(first, b"a", b"b" * 5000)
    await first.roll(segments(first), b"digest")
    await write(first, b"c")
    await write(second, b"x")
    await write(await owner(store, clock, DELETED), b"y")
    await purge(store, DELETED, nothing)
    for journal in (first, second):
        await journal.close()


@on_loop
async def test_a_copy_has_everything_and_can_be_used(backend, target, monkeypatch):
    monkeypatch.setattr("velaray.backup.moving.PART_BYTES", 1000)
    source, clock = backend.store(), Clock()
    await filled(source, clock)
    moved = await copy_journals(backend.store(), target.store(), RECORDS)
    copied, names = target.store(), await source.list_journals()
    assert (moved.journals, moved.ledgers) == (len(names), 3)
    assert await copied.list_journals() == names
    assert await events(copied) == [b"a", b"b" * 5000, b"c"]
    assert await events(copied, OTHER) == [b"x"]
    if DELETED in names:  # a store without its ledgers deletes it at once
        with pytest.raises(Purged):
            await owner(target.store(), clock, DELETED)
    taken = await source.numbers_taken()
    assert await target.store().claim_number("new") == taken + 1
    again = await owner(target.store(), clock)
    assert again.epoch > (await manifest_of(source)).epoch
    await write(again, b"d")
    await again.roll(segments(again), b"digest")
    await write(again, b"e")
    assert await events(target.store()) == [b"a", b"b" * 5000, b"c", b"d", b"e"]
    ids = [info.ledger_id for info in (await manifest_of(target.store())).ledgers]
    assert len(set(ids)) == len(ids) == 4


@on_loop
async def test_a_backup_is_restored_into_any_store(folder, target):
    backend, clock = MemoryBackend(), Clock()
    await filled(backend.store(), clock)
    listing, _ = await create_backup(
        backend.store(), folder, None, clock_ms=clock, records=RECORDS, settings=AT_ONCE
    )
    await copy_journals(BackupStore(folder, listing), target.store(), RECORDS)
    assert await events(target.store()) == [b"a", b"b" * 5000, b"c"]
    journal = await owner(target.store(), clock, OTHER)
    await write(journal, b"z")
    assert await events(target.store(), OTHER) == [b"x", b"z"]


@on_loop
async def test_a_journal_in_the_target_is_not_overwritten(backend, target):
    clock = Clock()
    await filled(backend.store(), clock)
    await write(await owner(target.store(), clock), b"mine")
    with pytest.raises((ManifestConflict, Taken)):
        await copy_journals(backend.store(), target.store(), RECORDS)
    assert await events(target.store()) == [b"mine"]


@on_loop
async def test_a_copy_back_and_forth_is_the_same(tmp_path):
    disk, clock = FileBackend(tmp_path / "data"), Clock()
    await filled(disk.store(), clock)
    before = await manifest_of(disk.store())
    bucket, back = ObjectBackend(), FileBackend(tmp_path / "back")
    await copy_journals(disk.store(), bucket.store(), RECORDS)
    await copy_journals(bucket.store(), back.store(), RECORDS)
    after = await manifest_of(back.store())
    assert [info.ledger_id for info in after.ledgers] == [i.ledger_id for i in before.ledgers]
    for info in after.ledgers:
        assert disk.content(info.ledger_id) == back.content(info.ledger_id)
    assert await back.store().numbers_taken() >= await disk.store().numbers_taken()
