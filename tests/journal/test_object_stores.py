"""Journals in an object store: adoption, unpacking, the floor, and what each costs in requests."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace

import pytest

from tests.journal.testing import (
    KEY,
    ObjectBackend,
    blobs,
    events_of,
    on_loop,
    open_journal,
    started,
    write,
)
from velaray.journal.errors import CorruptJournal, Fenced
from velaray.journal.objects.bodies import Kind, encode_body
from velaray.journal.objects.host_log import log_object
from velaray.journal.objects.housekeeping import HousekeepingSettings
from velaray.journal.objects.journal_record import (
    Status,
    decode_journal_record,
    ledger_prefix,
    record_object,
)
from velaray.journal.objects.ledger_store import ObjectLedgerStore
from velaray.journal.objects.memory_objects import Call, MemoryObjects, Request
from velaray.journal.objects.object_store import StoredObject, StoreUnavailable
from velaray.journal.replay import verify

OTHER = "subscription/public/default/orders/0/1/billing/1"


@pytest.fixture
def objects() -> ObjectBackend:
    return ObjectBackend()


def record(objects: ObjectBackend, journal: str = KEY):
    name = record_object(journal)
    return decode_journal_record(name, "", objects.bucket.objects[name].data)


def parts_of(objects: ObjectBackend, journal: str) -> list[str]:
    """The stored parts of a journal's ledgers."""
    names = (name for name in objects.bucket.objects if name.startswith(ledger_prefix(journal)))
    return sorted(name for name in names if not name.endswith("/index"))


def logs(objects: ObjectBackend) -> dict[str, list[int]]:
    """The numbers of the objects of each log."""
    found: dict[str, list[int]] = {}
    for name in sorted(objects.bucket.objects):
        if name.startswith("hosts/") and not name.endswith("floor"):
            _, incarnation, number = name.split("/")
            found.setdefault(incarnation, []).append(int(number))
    return found


@on_loop
async def test_a_commit_is_one_request_for_any_number_of_journals(objects):
    store = objects.store()
    journals = [await started(store, f"partition/public/default/t{n}/-1/1") for n in range(20)]
    before = replace(store.objects.objects.counters)
    for journal in journals:
        journal.stage(b"event", b"blob")
    await asyncio.gather(*(journal.commit() for journal in journals))
    after = store.objects.objects.counters
    assert after.puts - before.puts <= 2
    assert (after.gets, after.lists) == (before.gets, before.lists)
    await store.close()


@on_loop
async def test_a_journal_that_was_closed_is_taken_without_a_seal(objects):
    journal = await started(objects.store())
    await write(journal, b"a", b"b")
    await journal.close()
    assert record(objects).status is Status.CLOSED
    successor = await started(objects.store())
    assert events_of(await open_journal(objects.store())) == [b"a", b"b"]
    kinds = [obj.data[8] for name, obj in objects.bucket.objects.items() if "hosts" in name]
    assert kinds.count(Kind.SEAL) == 1  # that of the last opening, which found an owner
    assert successor.epoch == 2


@on_loop
async def test_taking_one_journal_of_a_live_process_ends_its_log_and_all_its_journals(objects):
    store = objects.store()
    one, other = await started(store, KEY), await started(store, OTHER)
    await write(one, b"a")
    await write(other, b"b")
    await started(objects.store(), KEY)
    for journal in (one, other):
        with pytest.raises(Fenced):
            await write(journal, b"late")
    # The process goes on with a new log, and may take its other journal again.
    again = await started(store, OTHER)
    await write(again, b"c")
    assert events_of(await open_journal(objects.store(), OTHER)) == [b"b", b"c"]


@on_loop
async def test_all_adoptions_of_a_log_read_it_once(objects):
    keys = [f"partition/public/default/t{n}/-1/1" for n in range(10)]
    lost = objects.store()
    for key in keys:
        await write(await started(lost, key), b"a", b"b")
    heir = objects.store()
    journals = await asyncio.gather(*(open_journal(heir, key) for key in keys))
    assert all(events_of(journal) == [b"a", b"b"] for journal in journals)
    (log,) = [log for log in logs(objects) if log == lost.log.incarnation]
    read = heir.objects.objects.counters.bytes_read
    size = sum(len(o.data) for name, o in objects.bucket.objects.items() if log in name)
    records = sum(len(o.data) for n, o in objects.bucket.objects.items() if n.startswith("jour"))
    assert read <= size + 2 * records


@on_loop
async def test_unpacking_moves_bytes_to_parts_and_the_floor_deletes_the_log(objects):
    store = objects.store()
    journal, other = await started(store, KEY), await started(store, OTHER)
    await write(journal, b"a")
    await write(other, b"b")
    await store.housekeeper.unpack(store.activations[KEY])
    await store.housekeeper.raise_floor(store.log)
    first = logs(objects)[store.log.incarnation][0]
    assert first > 0  # what only the unpacked journal needed is deleted
    await write(journal, b"c")
    await store.housekeeper.unpack(store.activations[OTHER])
    await store.housekeeper.unpack(store.activations[KEY])
    await store.housekeeper.raise_floor(store.log)
    assert store.log.incarnation not in logs(objects)
    assert await blobs(journal) == [b"aaa", b"ccc"]
    await write(journal, b"d")
    successor = await started(objects.store())
    assert events_of(await open_journal(objects.store(), OTHER)) == [b"b"]
    assert await blobs(successor) == [b"aaa", b"ccc", b"ddd"]
    assert not any(report.problems for report in await verify(objects.store(), KEY))


@on_loop
async def test_parts_of_a_slow_journal_are_merged(objects):
    store = objects.store()
    journal = await started(store)
    for n in range(6):
        await write(journal, b"%d" % n)
        await store.housekeeper.unpack(store.activations[KEY])
    (parts,) = record(objects).parts.values()
    assert len(parts) == 1
    stored = [name for name in objects.bucket.objects if name.startswith("ledgers/")]
    assert len(stored) <= 2  # readers may still need the one before
    assert await blobs(journal) == [b"%d" % n * 3 for n in range(6)]


@on_loop
async def test_the_floor_waits_for_journals_that_left_the_process(objects):
    store = objects.store()
    journal, other = await started(store, KEY), await started(store, OTHER)
    await write(journal, b"a")
    await write(other, b"b")
    await journal.close()
    await store.housekeeper.unpack(store.activations[OTHER])
    await store.housekeeper.tidy()
    assert events_of(await open_journal(objects.store(), KEY)) == [b"a"]
    await started(objects.store(), KEY)
    await store.housekeeper.tidy()


@on_loop
async def test_a_closed_journal_is_unpacked_unless_somebody_has_taken_it(objects):
    store = objects.store()
    journal, other = await started(store, KEY), await started(store, OTHER)
    for event in (b"a", b"b"):
        await write(journal, event)
        await store.housekeeper.unpack(store.activations[KEY])
    await write(journal, b"c")
    await write(other, b"c")
    await journal.close()
    await other.close()
    taken = await started(objects.store(), OTHER)
    await store.housekeeper.tidy()
    assert store.log.incarnation not in logs(objects)
    parts = [part for parts in record(objects).parts.values() for part in parts]
    assert [part.name for part in parts] == parts_of(objects, KEY)  # nothing is left over
    await write(taken, b"d")
    assert events_of(await open_journal(objects.store(), KEY)) == [b"a", b"b", b"c"]
    assert events_of(await open_journal(objects.store(), OTHER)) == [b"c", b"d"]


@on_loop
async def test_a_journal_that_is_taken_while_it_is_unpacked_keeps_all(objects):
    taken = []

    async def take_it(call: Call) -> None:
        await asyncio.sleep(0)
        if call.request is Request.CREATE and call.name.startswith("ledgers/") and not taken:
            taken.append(await started(objects.store()))

    store = objects.on(MemoryObjects(objects.bucket, take_it))
    journal = await started(store)
    await write(journal, b"a", b"b")
    await journal.close()
    await store.housekeeper.tidy()
    assert parts_of(objects, KEY) == []
    await write(taken[0], b"c")
    assert events_of(await open_journal(objects.store())) == [b"a", b"b", b"c"]


@on_loop
async def test_a_closed_journal_does_not_stop_the_others(objects):
    store = objects.store()
    store.housekeeper._settings = HousekeepingSettings(unpack_objects=2, look_s=0.001)
    journal, other = await started(store, KEY), await started(store, OTHER)
    await write(journal, b"a")
    await journal.close()  # what it needs stays in the log until somebody opens it
    events = [b"%d" % n for n in range(12)]
    for event in events:
        await asyncio.wait_for(write(other, event), 10)
    await store.close()
    assert events_of(await open_journal(objects.store(), KEY)) == [b"a"]
    assert events_of(await open_journal(objects.store(), OTHER)) == events


@on_loop
async def test_the_same_process_opens_a_failed_journal_again_without_ending_its_log(objects):
    store = objects.store()
    failed, other = await started(store, KEY), await started(store, OTHER)
    await write(failed, b"a")
    again = await started(store, KEY)
    with pytest.raises(Fenced):
        await write(failed, b"late")
    await write(again, b"b")
    await write(other, b"c")
    assert len(logs(objects)) == 1
    assert events_of(await open_journal(objects.store(), KEY)) == [b"a", b"b"]


@on_loop
async def test_a_missing_or_damaged_object_of_a_log_is_named(objects):
    store = objects.store()
    journal = await started(store)
    for event in (b"a", b"b", b"c"):
        await write(journal, event)
    name = log_object(store.log.incarnation, 2)
    whole = objects.bucket.objects[name]
    for flipped in (20, len(whole.data) - 1):
        damaged = bytearray(whole.data)
        damaged[flipped] ^= 1
        objects.bucket.objects[name] = StoredObject(bytes(damaged), whole.tag)
        with pytest.raises(CorruptJournal, match=r"000000000002.*checksum"):
            await open_journal(objects.store())
    objects.bucket.objects[name] = StoredObject(whole.data[:-3], whole.tag)
    with pytest.raises(CorruptJournal, match="000000000002"):
        await open_journal(objects.store())
    foreign = encode_body(name, Kind.PART, bytes(16), b"x")
    objects.bucket.objects[name] = StoredObject(foreign, whole.tag)
    with pytest.raises(CorruptJournal, match=r"000000000002.*kind"):
        await open_journal(objects.store())
    objects.bucket.objects[name] = whole
    assert events_of(await open_journal(objects.store())) == [b"a", b"b", b"c"]


@on_loop
async def test_a_reader_sees_a_journal_that_its_owner_goes_on_writing(objects):
    owner: ObjectLedgerStore = objects.store()
    journal = await started(owner)
    await write(journal, b"a")
    reader = objects.store()
    assert [r.records for r in await verify(reader, KEY)] == [1]
    await write(journal, b"b")
    await owner.housekeeper.unpack(owner.activations[KEY])
    await write(journal, b"c")
    assert [r.records for r in await verify(reader, KEY)] == [3]
    await write(journal, b"d")
    assert await blobs(journal) == [b"aaa", b"bbb", b"ccc", b"ddd"]


@on_loop
async def test_the_log_of_a_dead_process_is_deleted_when_nothing_needs_it(objects):
    lost = objects.store()
    one, other = await started(lost, KEY), await started(lost, OTHER)
    await write(one, b"a")
    await write(other, b"b")
    heir = objects.store()
    await started(heir, KEY)
    await heir.housekeeper.tidy()
    assert lost.log.incarnation in logs(objects)  # the other journal needs it
    await started(heir, OTHER)
    await heir.housekeeper.tidy()
    (seal,) = logs(objects)[lost.log.incarnation]
    assert objects.bucket.objects[log_object(lost.log.incarnation, seal)].data[8] == Kind.SEAL
    assert events_of(await open_journal(objects.store(), OTHER)) == [b"b"]


@on_loop
async def test_a_commit_during_a_close_is_kept_or_not_acknowledged(objects):
    """The commit is stored before the answer to the write of the record comes."""
    closing = asyncio.Event()

    async def answer_records_late(call: Call) -> None:
        await asyncio.sleep(0)
        if closing.is_set() and call.done and call.request is Request.REPLACE:
            await asyncio.sleep(0.2)

    journal = await started(objects.store(answer_records_late))
    await write(journal, b"a")
    journal.stage(b"b")
    commit = asyncio.create_task(journal.commit())
    await asyncio.sleep(0)  # the commit is staged, but not sent
    closing.set()
    await journal.close()
    acknowledged = [b"a"]
    with suppress(Fenced):
        await commit
        acknowledged.append(b"b")
    assert events_of(await open_journal(objects.store()))[: len(acknowledged)] == acknowledged


@on_loop
async def test_what_is_below_the_floor_is_deleted_after_an_unknown_outcome(objects):
    troubles = ["floor", "delete"]

    async def lose(call: Call) -> None:
        await asyncio.sleep(0)
        is_floor = call.done and call.name.endswith("floor") and call.request is Request.CREATE
        if (is_floor and "floor" in troubles) or (
            call.request is Request.DELETE and not call.done and troubles == ["delete"]
        ):
            troubles.remove("floor" if is_floor else "delete")
            raise StoreUnavailable(call.name, "timeout")

    store = objects.on(MemoryObjects(objects.bucket, lose), patience_s=0.0)
    journal = await started(store)
    await write(journal, b"a")
    await store.housekeeper.unpack(store.activations[KEY])
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            await store.housekeeper.raise_floor(store.log)
    await store.housekeeper.raise_floor(store.log)
    assert logs(objects) == {} and not troubles
    assert await blobs(journal) == [b"aaa"]


@on_loop
async def test_the_log_is_empty_after_everything_was_unpacked(objects):
    store = objects.store()
    journal = await started(store)
    await write(journal, b"a")
    store.activations[KEY].kept.since_s = -1e9
    await store.housekeeper.tidy()
    assert logs(objects) == {}
    assert await blobs(journal) == [b"aaa"]
