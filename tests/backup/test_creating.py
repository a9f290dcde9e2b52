"""Backups of journals that are written meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from tests.backup.testing import (
    AT_ONCE,
    KEY,
    OTHER,
    RECORDS,
    Clock,
    bytes_of,
    events,
    files_of,
    manifest_of,
    owner,
    segments,
    write,
)
from tests.journal.testing import MemoryBackend, on_loop
from velaray.backup import listing as listings
from velaray.backup.blobs import Blobs, FolderBlobs
from velaray.backup.creating import Copied, Vanished, create_backup
from velaray.backup.cut import ClockWentBack
from velaray.backup.listing import Interrupted, Listing, NoBackup, read_listing
from velaray.backup.moving import copy_journals
from velaray.backup.stored_backup import BackupStore, verify_journal
from velaray.events.codec import encode
from velaray.events.events_pb2 import LedgersUnlisted
from velaray.journal.checkpoint import Checkpoint
from velaray.journal.errors import CorruptJournal, NotStored, StorageFull, UnsupportedFormat
from velaray.journal.garbage_collection import purge
from velaray.journal.journal import Journal
from velaray.journal.memory import MemoryStore
from velaray.journal.scan import Record
from velaray.journal.store import LedgerStore, StoredManifest


async def back_up(
    store: LedgerStore, blobs: Blobs, clock: Clock, former: Listing | None = None
) -> tuple[Listing, Copied]:
    return await create_backup(
        store, blobs, former, clock_ms=clock, records=RECORDS, settings=AT_ONCE
    )


class Counting:
    """A fold whose state is the number of records."""

    def __init__(self) -> None:
        self.count = 0

    def restore(self, checkpoint: Checkpoint) -> None:
        self.count = int(checkpoint.segments["count"])

    def apply(self, record: Record) -> None:
        self.count += 1

    def digest(self) -> bytes:
        return b"digest"


@on_loop
async def test_a_backup_has_the_journals_and_verifies(backend, blobs):
    store, clock = backend.store(), Clock()
    await store.write_manifest("cluster", 0, b"record")
    first, second = await owner(store, clock), await owner(store, clock, OTHER)
    await write(first, b"a", b"b")
    await first.roll(segments(first), b"digest")
    await write(first, b"c")
    await write(second, b"x")
    listing, copied = await back_up(backend.store(), blobs, clock)
    assert copied.bytes == bytes_of(listing)
    saved = BackupStore(blobs, await read_listing(blobs))
    assert saved.listing == listing
    assert await saved.list_journals() == ["cluster", KEY, OTHER]
    assert await events(saved) == [b"a", b"b", b"c"]
    assert await events(saved, OTHER) == [b"x"]
    assert (await saved.read_manifest("cluster")).data == b"record"
    assert all(info.sealed for info in (await manifest_of(saved)).ledgers)
    for key, records in ((KEY, 3), (OTHER, 1)):
        report = await verify_journal(saved, key, Counting())
        assert report.problems == []
        assert report.records == records
    assert listing.numbers == await store.numbers_taken()


@on_loop
async def test_a_second_backup_copies_only_new_bytes(backend, blobs):
    store, clock = backend.store(), Clock()
    journal = await owner(store, clock)
    await write(journal, b"a", b"b")
    first, _ = await back_up(backend.store(), blobs, clock)
    nothing, copied = await back_up(backend.store(), blobs, clock, first)
    assert (copied.parts, bytes_of(nothing)) == (0, bytes_of(first))
    await write(journal, b"c")
    await journal.roll(segments(journal), b"digest")
    await write(journal, b"d")
    third, copied = await back_up(backend.store(), blobs, clock, first)
    assert copied.bytes == bytes_of(third) - bytes_of(first)
    assert [first.number, nothing.number, third.number] == [1, 2, 3]
    for number, found in ((1, [b"a", b"b"]), (2, [b"a", b"b"]), (3, [b"a", b"b", b"c", b"d"])):
        assert await events(BackupStore(blobs, await read_listing(blobs, number))) == found


@on_loop
async def test_sealed_ledgers_that_are_stored_are_not_read_again(folder):
    backend, clock = MemoryBackend(), Clock()
    journal = await owner(backend.store(), clock)
    await write(journal, b"a" * 1000)
    await journal.roll(segments(journal), b"digest")
    first, _ = await back_up(backend.store(), folder, clock)
    again = backend.store()
    await back_up(again, folder, clock, first)
    sealed = (await manifest_of(again)).ledgers[0]
    assert again.counters.bytes_read < sealed.bytes


Event = Callable[[], Awaitable[None]]


class Meanwhile(MemoryStore):
    """A store on which something happens while a backup is made: before the listing ``at``, and
    after the manifest that is read as number ``read``."""

    def __init__(
        self,
        backend: MemoryBackend,
        at: int,
        event: Event,
        read: int = 0,
        before: Event | None = None,
    ) -> None:
        super().__init__(backend.disk)
        self._listings = self._reads = 0
        self._at, self._event = at, event
        self._read, self._before = read, before

    async def list_journals(self, under: str = "") -> list[str]:
        """Sealed ledgers are copied after the first listing; each attempt has two."""
        self._listings += 1
        if self._listings == self._at:
            await self._event()
        return await super().list_journals(under)

    async def read_manifest(self, journal: str) -> StoredManifest | None:
        """Each journal's is read once for its sealed ledgers, and twice in each attempt."""
        found = await super().read_manifest(journal)
        self._reads += 1
        if self._reads == self._read and self._before is not None:
            await self._before()
        return found


@on_loop
async def test_what_was_written_after_the_moment_is_left_out(folder):
    backend, clock = MemoryBackend(), Clock()
    store = backend.store()
    first, second = await owner(store, clock), await owner(store, clock, OTHER)
    await write(first, b"a")
    await write(second, b"x")

    async def go_on() -> None:
        await write(first, b"b")
        await first.roll(segments(first), b"digest")
        await write(first, b"c")
        await write(second, b"y")
        await write(await owner(store, clock, f"{KEY}0"), b"new")

    listing, _ = await back_up(Meanwhile(backend, 3, go_on), folder, clock)
    saved = BackupStore(folder, listing)
    assert await events(saved) == [b"a"]
    assert await events(saved, OTHER) == [b"x"]
    assert sorted(listing.journals) == [KEY, OTHER]
    (info,) = (await manifest_of(saved)).ledgers
    assert (info.records, info.entries, info.sealed) == (1, 1, True)
    # The next owner doesn't use the id of the ledger that was left out.
    assert (await manifest_of(saved)).next_index == (await manifest_of(store)).next_index
    later, _ = await back_up(backend.store(), folder, clock, listing)
    assert await events(BackupStore(folder, later)) == [b"a", b"b", b"c"]


async def with_three_ledgers(store: LedgerStore, clock: Clock) -> Journal:
    journal = await owner(store, clock)
    for event in (b"a", b"b", b"c"):
        await write(journal, event)
        await journal.roll(segments(journal), b"digest")
    return journal


@on_loop
async def test_a_ledger_that_is_removed_after_the_moment_is_in_the_backup(folder):
    backend, clock = MemoryBackend(), Clock()
    store = backend.store()
    journal = await with_three_ledgers(store, clock)
    oldest = journal.ledgers[0].ledger_id

    async def trim() -> None:
        await write(journal, b"trimmed")
        await journal.drop_from_manifest([oldest])
        await store.delete_ledger(KEY, oldest)

    listing, _ = await back_up(Meanwhile(backend, 3, trim), folder, clock)
    assert await events(BackupStore(folder, listing)) == [b"a", b"b", b"c"]
    assert (await verify_journal(BackupStore(folder, listing), KEY, Counting())).problems == []


@on_loop
async def test_a_ledger_that_was_removed_before_the_moment_is_not_in_the_backup(folder):
    backend, clock = MemoryBackend(), Clock()
    store = backend.store()
    journal = await with_three_ledgers(store, clock)
    oldest = journal.ledgers[0].ledger_id

    async def trim() -> None:
        await write(journal, b"trimmed")
        await journal.drop_from_manifest([oldest])

    listing, _ = await back_up(Meanwhile(backend, 2, trim), folder, clock)
    assert await events(BackupStore(folder, listing)) == [b"b", b"c", b"trimmed"]


@on_loop
async def test_a_ledger_whose_removal_was_noted_before_the_moment_is_not_in_the_backup(folder):
    backend, clock = MemoryBackend(), Clock()
    store = backend.store()
    journal = await with_three_ledgers(store, clock)
    first, second = (info.ledger_id for info in journal.ledgers[:2])

    async def note(ledger_id: int) -> None:
        await journal.drop_from_manifest([ledger_id])
        journal.stage(encode(LedgersUnlisted(ledger_ids=[ledger_id])))
        await journal.commit()

    # The first removal is between the first look and the moment, the other one behind the moment.
    busy = Meanwhile(backend, 3, lambda: note(second), 2, lambda: note(first))
    listing, _ = await back_up(busy, folder, clock)
    manifest = await manifest_of(BackupStore(folder, listing))
    assert first not in manifest.ownership.ledgers
    assert second in manifest.ownership.ledgers


ONCE = replace(AT_ONCE, attempts=1)


@on_loop
async def test_another_moment_is_taken_if_what_one_needs_is_gone(folder):
    backend, clock = MemoryBackend(), Clock()
    store = backend.store()
    journal = await with_three_ledgers(store, clock)
    second = await owner(store, clock, OTHER)
    await write(second, b"x")

    async def delete() -> None:
        """Remove a ledger that was sealed after the sealed ones were copied."""
        newest = journal.ledgers[-1].ledger_id
        for event in (b"d", b"e", b"f"):
            await write(journal, event)
            await journal.roll(segments(journal), b"digest")
        await journal.drop_from_manifest([newest])
        await store.delete_ledger(KEY, newest)
        await store.delete_journal(OTHER)

    with pytest.raises(Vanished, match="was deleted while the backup was made"):
        await create_backup(
            Meanwhile(backend, 3, delete), folder, None, clock_ms=clock, settings=ONCE
        )
    await write(await owner(store, clock, OTHER), b"y")
    listing, _ = await back_up(Meanwhile(backend, 3, delete), folder, clock)
    assert sorted(listing.journals) == [KEY]
    assert listing.left_out == ()
    report = await verify_journal(BackupStore(folder, listing), KEY, Counting())
    assert report.problems == []


@on_loop
async def test_journals_that_are_deleted_at_the_last_moment_are_left_out(folder):
    backend, clock = MemoryBackend(), Clock()
    store = backend.store()
    for key in (KEY, OTHER, f"{KEY}0"):
        await write(await owner(store, clock, key), b"x")
    busy = Meanwhile(backend, 3, lambda: store.delete_journal(KEY))
    listing, _ = await create_backup(busy, folder, None, clock_ms=clock, settings=ONCE)
    # The subscription is left out as well: a new partition of this name must not find it.
    assert listing.left_out == (KEY, OTHER)
    assert sorted(listing.journals) == [f"{KEY}0"]
    assert (await read_listing(folder)) == listing


@on_loop
async def test_a_journal_that_is_purged_after_the_moment_is_in_the_backup(folder):
    backend, clock = MemoryBackend(), Clock()
    store = backend.store()
    await write(await owner(store, clock, OTHER), b"x")

    async def nothing(_) -> None:
        return

    listing, _ = await back_up(
        Meanwhile(backend, 3, lambda: purge(store, OTHER, nothing)), folder, clock
    )
    assert await events(BackupStore(folder, listing), OTHER) == [b"x"]
    later, _ = await back_up(backend.store(), folder, clock, listing)
    assert (await manifest_of(BackupStore(folder, later), OTHER)).dead


@on_loop
async def test_a_clock_that_goes_back_is_noticed(folder):
    backend, clock = MemoryBackend(), Clock()
    journal = await owner(backend.store(), clock)
    await write(journal, b"a")

    async def go_back() -> None:
        clock.now_ms += 100
        await write(journal, b"b")
        clock.now_ms -= 200
        await write(journal, b"c")
        clock.now_ms += 200

    listing, _ = await back_up(Meanwhile(backend, 3, go_back), folder, clock)
    assert await events(BackupStore(folder, listing)) == [b"a", b"b", b"c"]

    with pytest.raises(ClockWentBack):
        await create_backup(
            Meanwhile(backend, 3, go_back), folder, None, clock_ms=clock, settings=ONCE
        )


# -- interruption and damage -------------------------------------------------------


class Full(FolderBlobs):
    """A place that takes so many objects."""

    def __init__(self, folder: FolderBlobs, room: int) -> None:
        super().__init__(folder.root)
        self.room = room

    async def create(self, name: str, data: bytes) -> None:
        if self.room == 0:
            raise StorageFull(self.location(name), "no space")
        self.room -= 1
        await super().create(name, data)


@on_loop
async def test_an_interrupted_backup_is_refused_and_the_former_one_stays(folder):
    backend, clock = MemoryBackend(), Clock()
    journal = await owner(backend.store(), clock)
    await write(journal, b"a")
    with pytest.raises(NoBackup, match="there is no backup"):
        await read_listing(folder)
    with pytest.raises(StorageFull):
        await back_up(backend.store(), Full(folder, 1), clock)
    with pytest.raises(Interrupted, match=r"backup 1 was interrupted.*no complete one"):
        await read_listing(folder)
    complete, _ = await back_up(backend.store(), folder, clock)
    await write(journal, b"b")
    for room in (1, 2):
        with pytest.raises(StorageFull):
            await back_up(backend.store(), Full(folder, room), clock, complete)
    with pytest.raises(Interrupted, match=r"backup 4 was interrupted.* complete one is 2"):
        await read_listing(folder, 4)
    with pytest.raises(NoBackup, match="no backup 9; the complete ones: 2"):
        await read_listing(folder, 9)
    assert await read_listing(folder) == complete
    assert await events(BackupStore(folder, complete)) == [b"a"]


@on_loop
async def test_two_backups_at_the_same_time_have_two_numbers(blobs):
    backend, clock = MemoryBackend(), Clock()
    await write(await owner(backend.store(), clock), b"a")
    made = [back_up(backend.store(), blobs, clock) for _ in range(2)]
    found = await asyncio.gather(*made)
    assert sorted(listing.number for listing, _ in found) == [1, 2]
    assert await events(BackupStore(blobs, await read_listing(blobs, 1))) == [b"a"]


@on_loop
async def test_every_damage_is_found(folder):
    backend, clock = MemoryBackend(), Clock()
    journal = await owner(backend.store(), clock)
    await write(journal, b"a" * 50, b"b" * 50)
    listing, _ = await back_up(backend.store(), folder, clock)
    for name, whole in files_of(folder).items():
        path = folder.root / name
        for damaged in (None, whole[:-1], whole + b"x", bytes([whole[0] ^ 1]) + whole[1:]):
            if name.endswith("/begun"):
                continue
            path.unlink(missing_ok=True)
            if damaged is not None:
                path.write_bytes(damaged)
            await finds_damage(folder)
        path.write_bytes(whole)
    assert (await verify_journal(BackupStore(folder, listing), KEY, Counting())).problems == []


async def finds_damage(folder: FolderBlobs) -> None:
    """Neither verification nor a restore takes the backup for a sound one."""
    try:
        saved = BackupStore(folder, await read_listing(folder))
    except (CorruptJournal, Interrupted):
        return
    assert (await verify_journal(saved, KEY, Counting())).problems != []
    with pytest.raises((CorruptJournal, NotStored)):
        await copy_journals(saved, MemoryBackend().store(), RECORDS)


@on_loop
async def test_a_listing_of_a_newer_version_is_refused(folder, monkeypatch):
    backend, clock = MemoryBackend(), Clock()
    await write(await owner(backend.store(), clock), b"a")
    monkeypatch.setattr(listings, "FORMAT_VERSION", 2)
    await back_up(backend.store(), folder, clock)
    monkeypatch.undo()
    with pytest.raises(UnsupportedFormat, match="format version 2"):
        await read_listing(folder)


@on_loop
async def test_a_folder_of_other_things_is_no_place_of_backups(folder):
    await folder.create("backups/readme", b"text")
    with pytest.raises(NoBackup, match="readme: not a file of backups"):
        await read_listing(folder)
