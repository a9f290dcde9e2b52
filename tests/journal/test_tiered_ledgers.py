"""Ledgers in an archive: read as if they were local, and never lost or leaked by a kill."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from tests.journal.testing import KEY, blobs, on_loop, open_journal, write
from velaray.journal.errors import CorruptJournal, NotStored, UnsupportedFormat
from velaray.journal.files import FileStore
from velaray.journal.garbage_collection import Fate, dispose, purge
from velaray.journal.journal import Journal
from velaray.journal.manifest import FORMAT_VERSION, decode_manifest
from velaray.journal.memory import MemoryDisk, MemoryStore, Step
from velaray.journal.objects.conditional import ConditionalObjects
from velaray.journal.objects.memory_objects import Call, MemoryBucket, MemoryObjects, Request
from velaray.journal.objects.object_store import ObjectStore, StoreRefused, StoreUnavailable
from velaray.journal.offload import archive as archive_module
from velaray.journal.offload.archive import LedgerArchive, end_name, part_name
from velaray.journal.offload.directory_objects import DirectoryObjects
from velaray.journal.offload.place import OtherArchive, known_place, settle_place
from velaray.journal.offload.read_ahead import BLOCK_BYTES, BLOCKS
from velaray.journal.offload.rounds import (
    delete_local_copies,
    offload_ledger,
    orphans_of,
    sweep_archive,
)
from velaray.journal.offload.tiered_store import TieredStore
from velaray.journal.replay import load_manifest, verify
from velaray.journal.store import LedgerStore

LEDGERS = 5
OTHER = "subscription/public/default/orders/0/1/billing/1"


class Killed(Exception):
    """The process died."""


class World:
    """A disk and a bucket that outlive processes. Each `store` is another process, which dies
    before its step number ``dies_at``, of the disk and the bucket together."""

    def __init__(self) -> None:
        self.disk = MemoryDisk()
        self.bucket = MemoryBucket()
        self.steps = 0
        self.dies_at: int | None = None
        self._stores = 0

    def store(self) -> TieredStore:
        self._stores += 1
        local = MemoryStore(self.disk, hook=self._on_disk, seed=self._stores)
        return TieredStore(local, self.archive(MemoryObjects(self.bucket, self._at_bucket)))

    def archive(self, objects: ObjectStore) -> LedgerArchive:
        random = Random(1)
        return LedgerArchive(ConditionalObjects(objects, random.randbytes, random, 1.0))

    async def _on_disk(self, step: Step, journal: str) -> None:
        self._count()

    async def _at_bucket(self, call: Call) -> None:
        self._count()

    def _count(self) -> None:
        self.steps += 1
        if self.dies_at is not None and self.steps > self.dies_at:
            raise Killed

    def archived(self) -> set[str]:
        return set(self.bucket.objects)


@pytest.fixture
def world(monkeypatch) -> World:
    monkeypatch.setattr(archive_module, "PART_BYTES", 64)  # several parts of each ledger
    return World()


async def history(store: LedgerStore, ledgers: int = LEDGERS) -> Journal:
    """A journal of so many ledgers with three entries each."""
    journal = await open_journal(store)
    await journal.start({"events": b"0"}, b"digest")
    for number in range(ledgers - 1):
        for entry in range(3):
            await write(journal, b"entry %d of %d" % (entry, number))
        await journal.roll({"events": b"%d" % number}, b"digest")
    await write(journal, b"last")
    return journal


def ids(journal: Journal) -> list[int]:
    return [info.ledger_id for info in journal.ledgers]


async def offload(store: TieredStore, journal: Journal) -> None:
    """One round: copy, record, and delete locally, all ledgers that recovery doesn't need."""
    for info in journal.ledgers:
        if info.sealed and not info.offloaded_ms:
            await offload_ledger(store, KEY, info, journal.mark_offloaded)
    going = [info for info in journal.ledgers if info.ledger_id not in journal.needed]
    for info in await delete_local_copies(store, KEY, going):
        await store.offload(KEY, info.ledger_id, info.bytes)


@on_loop
async def test_offloaded_ledgers_are_read_as_if_they_were_local(world):
    store = world.store()
    journal = await history(store)
    before = await blobs(journal)
    await offload(store, journal)
    assert await store.local.list_ledgers(KEY) == ids(journal)[-2:]
    assert await blobs(journal) == before
    await journal.close()
    successor = await open_journal(world.store())
    assert await blobs(successor) == before
    assert [bool(info.offloaded_ms) for info in successor.ledgers] == [True] * 4 + [False]
    assert not [each for report in await verify(world.store(), KEY) for each in report.problems]


@on_loop
async def test_opening_a_journal_makes_no_request_to_the_archive(world):
    store = world.store()
    await offload(store, await history(store))
    other = world.store()
    journal = await open_journal(other)
    await journal.start({"events": b""}, b"digest")
    await write(journal, b"more")
    counters = other.archive.counters
    assert (counters.gets, counters.puts, counters.lists, counters.deletes) == (0, 0, 0, 0)


@on_loop
async def test_only_journals_with_offloaded_ledgers_have_the_new_format(world):
    store = world.store()
    journal = await history(store)
    before = await store.read_manifest(KEY)
    await journal.mark_offloaded(ids(journal)[:1])
    after = await store.read_manifest(KEY)
    assert before is not None and after is not None
    versions = [int.from_bytes(each.data[8:10], "little") for each in (before, after)]
    assert versions == [2, 3]
    unknown = after.data[:8] + bytes([FORMAT_VERSION + 1]) + after.data[9:]
    with pytest.raises(UnsupportedFormat):
        decode_manifest("place", unknown)


@on_loop
async def test_open_and_unlisted_ledgers_are_not_marked(world):
    store = world.store()
    journal = await history(store)
    first, *_, last = ids(journal)
    await journal.drop_from_manifest([first])
    await journal.mark_offloaded([first, last])
    assert not (await load_manifest(store, KEY)).offloaded


async def run_until_killed(world: World, dies_at: int) -> bool:
    """Offload in a process that dies; returns whether it came to the end."""
    world.steps, world.dies_at = 0, None
    store = world.store()
    journal = await history(store)
    world.steps, world.dies_at = 0, dies_at
    try:
        await offload(store, journal)
    except Killed:
        return False
    finally:
        world.dies_at = None
    return True


@on_loop
async def test_a_kill_at_any_step_of_an_offload_loses_nothing_and_leaks_nothing(world):
    kills = 0
    expected: list[bytes] = []
    for dies_at in range(2_000):
        world.disk, world.bucket = MemoryDisk(), MemoryBucket()
        done = await run_until_killed(world, dies_at)
        kills += not done
        store = world.store()
        journal = await open_journal(store)
        expected = expected or await blobs(journal)
        assert await blobs(journal) == expected
        assert await sweep_archive(store) == 0  # a copy that isn't complete stays for this owner
        await journal.start({"events": b""}, b"digest")
        await offload(store, journal)
        assert await blobs(journal) == expected
        going = set(ids(journal)) - journal.needed
        assert not going.intersection(await store.local.list_ledgers(KEY))
        if done:
            break
    assert kills > 50


@on_loop
async def test_a_kill_at_any_step_of_a_deletion_leaks_nothing(world):
    for dies_at in range(2_000):
        world.disk, world.bucket = MemoryDisk(), MemoryBucket()
        store = world.store()
        journal = await history(store)
        await offload(store, journal)
        enqueued: list[int] = []

        async def enqueue(ledger_ids, enqueued=enqueued):
            enqueued.extend(ledger_ids)

        world.steps, world.dies_at = 0, dies_at
        done = False
        try:
            await purge(store, KEY, enqueue)
            for ledger_id in enqueued:
                await dispose(store, KEY, ledger_id)
            done = True
        except Killed:
            pass
        world.dies_at = None
        again = world.store()
        if not enqueued or await again.read_manifest(KEY) is not None:
            await purge(again, KEY, enqueue)
        for ledger_id in enqueued:  # events are acknowledged after the deletion
            await dispose(again, KEY, ledger_id)
        assert world.archived() == set()
        assert await again.list_journals() == []
        if done:
            break
    assert dies_at > 20


@on_loop
async def test_a_request_that_takes_effect_after_the_deletion_is_swept(world):
    store = world.store()
    journal = await history(store)
    await offload(store, journal)
    first = ids(journal)[0]
    late = world.bucket.objects[part_name(KEY, first, 1)]
    await journal.drop_from_manifest([first])
    assert await dispose(store, KEY, first) is Fate.DELETED
    world.bucket.objects[part_name(KEY, first, 1)] = late
    assert await orphans_of(store) == [(KEY, first)]
    assert await sweep_archive(store) == 1
    assert not any(name.startswith(part_name(KEY, first, 0)[:-6]) for name in world.archived())
    assert await orphans_of(store) == []
    assert len(await blobs(journal)) == 3 * (LEDGERS - 2) + 1


@on_loop
async def test_the_sweep_keeps_ledgers_that_are_being_copied_or_created(world):
    store = world.store()
    journal = await history(store)
    first = journal.ledgers[0]
    await store.archive.copy(store.local, KEY, first.ledger_id, first.bytes)
    del world.bucket.objects[end_name(KEY, first.ledger_id)]
    manifest = await load_manifest(store, KEY)
    future = manifest.ledger_id(manifest.next_index + 1)
    world.bucket.objects[part_name(KEY, future, 0)] = world.bucket.objects[
        part_name(KEY, first.ledger_id, 0)
    ]
    before = world.archived()
    await sweep_archive(store)
    assert world.archived() == before


@on_loop
async def test_a_local_copy_stays_until_the_archive_has_every_part(world):
    store = world.store()
    journal = await history(store)
    first = journal.ledgers[0]
    await offload_ledger(store, KEY, first, journal.mark_offloaded)
    marked = journal.ledgers[0]
    for name in (part_name(KEY, first.ledger_id, 1), end_name(KEY, first.ledger_id)):
        lost = world.bucket.objects.pop(name)
        assert await delete_local_copies(store, KEY, [marked]) == [marked]
        assert await store.is_local(KEY, first.ledger_id)
        world.bucket.objects[name] = lost
    longer = replace(marked, bytes=marked.bytes + 1)
    assert await delete_local_copies(store, KEY, [longer]) == [longer]
    assert await delete_local_copies(store, KEY, [marked]) == []
    assert not await store.is_local(KEY, first.ledger_id)


@on_loop
async def test_a_ledger_that_is_not_recorded_is_not_deleted_locally(world):
    store = world.store()
    journal = await history(store)
    first = journal.ledgers[0]
    await store.offload(KEY, first.ledger_id, first.bytes)
    assert await delete_local_copies(store, KEY, [first]) == []
    assert await store.is_local(KEY, first.ledger_id)


@on_loop
async def test_a_damaged_copy_is_found_before_it_is_recorded(world):
    store = world.store()
    journal = await history(store)
    first = journal.ledgers[0]
    name = part_name(KEY, first.ledger_id, 1)

    async def damage(call: Call) -> None:
        if call.request is Request.CREATE and call.name == name and call.done:
            found = world.bucket.objects[name]
            flipped = found.data[:-1] + bytes([found.data[-1] ^ 1])
            world.bucket.objects[name] = found._replace(data=flipped)

    store = TieredStore(store.local, world.archive(MemoryObjects(world.bucket, damage)))
    with pytest.raises(CorruptJournal, match="checksum"):
        await offload_ledger(store, KEY, first, journal.mark_offloaded)
    assert not journal.ledgers[0].offloaded_ms


@on_loop
async def test_an_object_of_another_content_is_refused_by_name(world):
    store = world.store()
    journal = await history(store)
    first, second = journal.ledgers[:2]
    await store.offload(KEY, first.ledger_id, first.bytes)
    await store.offload(KEY, first.ledger_id, first.bytes)  # the same bytes again
    name = part_name(KEY, first.ledger_id, 0)
    longer = replace(first, bytes=first.bytes - 1)
    with pytest.raises(CorruptJournal, match=f"{first.ledger_id}/.*taken by another object"):
        await store.offload(KEY, first.ledger_id, longer.bytes)
    copied = world.bucket.objects[name]
    world.bucket.objects[part_name(KEY, second.ledger_id, 0)] = copied  # of another name
    with pytest.raises(CorruptJournal, match="written under another name"):
        await store.offload(KEY, second.ledger_id, second.bytes)
    assert world.bucket.objects[name] == copied


@on_loop
async def test_damage_in_the_archive_is_an_error_of_its_readers(world):
    store = world.store()
    journal = await history(store)
    await offload(store, journal)
    first = ids(journal)[0]
    for name in (name for name in world.archived() if f"/{first}/0" in name):
        found = world.bucket.objects[name]
        world.bucket.objects[name] = found._replace(data=bytes(len(found.data)))
    with pytest.raises(CorruptJournal):
        await blobs(await open_journal(world.store()))
    reports = await verify(world.store(), KEY)
    assert [bool(report.problems) for report in reports] == [True, *[False] * 4]


@on_loop
async def test_only_ledgers_of_partitions_are_looked_for_in_the_archive(world):
    store = world.store()
    journal = await open_journal(store, OTHER)
    await journal.start({"events": b""}, b"digest")
    for work in (store.read(OTHER, 7, 0, 10), store.size(OTHER, 7)):
        with pytest.raises(NotStored):
            await work
    assert await store.read_index(OTHER, 7) is None
    await store.delete_ledger(OTHER, ids(journal)[0])
    assert world.bucket.objects == {} and store.archive.counters.gets == 0
    assert store.archive.counters.lists == 0


@on_loop
async def test_an_archive_that_fails_keeps_the_ledger_and_the_event(world):
    store = world.store()
    journal = await history(store)
    await offload(store, journal)
    first = ids(journal)[0]
    await journal.drop_from_manifest([first])

    async def fail(call: Call) -> None:
        raise StoreUnavailable(call.name, "down")

    failing = TieredStore(store.local, world.archive(MemoryObjects(world.bucket, fail)))
    with pytest.raises(StoreUnavailable):
        await dispose(failing, KEY, first)
    assert await dispose(world.store(), KEY, first) is Fate.DELETED
    assert await orphans_of(store) == []


@on_loop
async def test_reading_on_reads_ahead_and_the_blocks_in_memory_are_bounded(world, monkeypatch):
    monkeypatch.setattr(archive_module, "PART_BYTES", 4 * BLOCK_BYTES)
    store = world.store()
    journal = await open_journal(store)
    await journal.start({"events": b""}, b"digest")
    blob = bytes(BLOCK_BYTES // 4)
    for _ in range(160):
        await write(journal, b"big", blob=blob)
    for _ in range(3):
        await journal.roll({"events": b""}, b"digest")
    await offload(store, journal)
    first = journal.ledgers[0]
    reader = world.store()
    data = b""
    asked = 0
    while len(data) < first.bytes:
        data += await reader.read(KEY, first.ledger_id, len(data), BLOCK_BYTES // 2)
        asked += 1
    counters = reader.archive.counters
    blocks = -(-first.bytes // BLOCK_BYTES)
    assert len(data) == first.bytes and asked > blocks
    assert counters.gets == blocks + 1  # and the end
    assert len(reader._ahead._blocks) == BLOCKS < blocks
    await reader.read(KEY, first.ledger_id, 0, 10)
    assert counters.gets == blocks + 2
    await reader.close()


# -- the place of the archive -------------------------------------------------------


@on_loop
async def test_a_directory_is_an_archive(tmp_path: Path):
    url = f"file://{tmp_path}/archive"
    await settle_place(tmp_path / "data", url)
    place = known_place(tmp_path / "data")
    assert place is not None and place.url == url
    store = TieredStore(FileStore(tmp_path / "data"), place.archive())
    journal = await history(store)
    before = await blobs(journal)
    await offload(store, journal)
    assert await store.local.list_ledgers(KEY) == ids(journal)[-2:]
    assert await blobs(journal) == before
    for file in (tmp_path / "archive").rglob("*"):
        assert file.stat().st_mode & 0o077 == 0
    (tmp_path / "archive" / place.id / end_name(KEY, ids(journal)[0])).with_name(".new-1").touch()
    going = ids(journal)[:2]
    await journal.drop_from_manifest(going)
    for ledger_id in going:
        await dispose(store, KEY, ledger_id)
    stored = await store.archive.list()
    assert stored == {KEY: set(ids(journal)[:-1])}
    left = [path.name for path in (tmp_path / "archive").rglob(".new-*")]
    assert left == []
    await store.close()


@on_loop
async def test_the_place_of_an_archive_is_settled_once(tmp_path: Path):
    data = tmp_path / "data"
    assert known_place(data) is None
    await settle_place(data, f"file://{tmp_path}/one/")
    place = known_place(data)
    await settle_place(data, f"file://{tmp_path}/one")
    assert known_place(data) == place
    with pytest.raises(OtherArchive, match=f"offloaded to file://{tmp_path}/one, not to"):
        await settle_place(data, f"file://{tmp_path}/two")
    for url in ("ftp://host/x", "file://host/x", "s3:///x"):
        with pytest.raises(StoreRefused):
            await settle_place(tmp_path / "new", url)
    assert known_place(tmp_path / "new") is None
    (data / "offload").write_bytes(b"\xc1")
    with pytest.raises(CorruptJournal, match="the place of the archive"):
        known_place(data)


@on_loop
async def test_two_clusters_with_one_url_do_not_meet(tmp_path: Path):
    url = f"file://{tmp_path}/archive"
    stores = []
    for name in ("a", "b"):
        await settle_place(tmp_path / name, url)
        place = known_place(tmp_path / name)
        assert place is not None
        store = TieredStore(FileStore(tmp_path / name), place.archive())
        await offload(store, await history(store))
        stores.append(store)
    assert await sweep_archive(stores[0]) == 0
    for store in stores:
        assert len(await blobs(await open_journal(store))) == 3 * (LEDGERS - 1) + 1
        await store.close()


@on_loop
async def test_objects_in_a_directory_are_created_once(tmp_path: Path):
    objects = DirectoryObjects(tmp_path / "root")
    assert await objects.list("") == [] and await objects.get("a/b") is None
    await objects.create("a/b", b"12345")
    with pytest.raises(Exception, match="exists already"):
        await objects.create("a/b", b"other")
    assert await objects.get_range("a/b", 1, 2) == b"23"
    with pytest.raises(NotStored):
        await objects.get_range("a/c", 0, 1)
    assert await objects.list("a/") == ["a/b"]
    (tmp_path / "root" / "file").write_bytes(b"")
    with pytest.raises(StoreUnavailable):
        await objects.create("file/x", b"")
    await objects.delete(["a/b", "a/c"])
    assert await objects.list("") == ["file"] and not (tmp_path / "root" / "a").exists()
    await objects.close()


@on_loop
async def test_a_look_at_the_local_store_may_be_as_old_as_the_caller_says(world) -> None:
    store, ages = world.store(), []

    async def holds(journal: str, version: int, within_s: float = 0.0) -> bool:
        ages.append(within_s)
        return True

    store.local.holds = holds
    assert await store.holds(KEY, 1, 2.5)
    assert ages == [2.5]
