"""What every store promises, on every backend."""

import asyncio

import pytest

from tests.journal.testing import KEY, on_disks, on_loop
from velaray.journal.errors import LedgerExists, ManifestConflict, NotStored

OTHER = "subscription/public/default/orders/0/1/billing/1"


@on_loop
async def test_a_manifest_is_replaced_by_compare_and_set(backend):
    store = backend.store()
    assert await store.read_manifest(KEY) is None
    assert await store.write_manifest(KEY, 0, b"one") == 1
    assert await store.write_manifest(KEY, 1, b"two") == 2
    assert await store.read_manifest(KEY) == (2, b"two")
    for stale in (0, 1, 3):
        with pytest.raises(ManifestConflict):
            await store.write_manifest(KEY, stale, b"lost")
    assert await backend.store().read_manifest(KEY) == (2, b"two")


@on_loop
async def test_only_the_writer_of_the_newest_version_holds_it(backend):
    ours, theirs = backend.store(), backend.store()
    assert not await ours.holds(KEY, 0)
    await ours.write_manifest(KEY, 0, b"one")
    assert await ours.holds(KEY, 1)
    assert not await theirs.holds(KEY, 1)
    for version in range(1, 12):
        await theirs.write_manifest(KEY, version, b"theirs")
        assert not await ours.holds(KEY, 1)
        assert not await ours.holds(KEY, version + 1)
        assert await theirs.holds(KEY, version + 1)


@on_loop
async def test_one_of_many_concurrent_writers_of_a_version_wins(backend):
    stores = [backend.store() for _ in range(6)]
    for version in range(5):
        attempts = [store.write_manifest(KEY, version, b"%d" % i) for i, store in enumerate(stores)]
        results = await asyncio.gather(*attempts, return_exceptions=True)
        winners = [i for i, result in enumerate(results) if result == version + 1]
        assert len(winners) == 1
        assert all(isinstance(r, ManifestConflict) for r in results if r != version + 1)
        assert await stores[0].read_manifest(KEY) == (version + 1, b"%d" % winners[0])
        assert [await store.holds(KEY, version + 1) for store in stores].count(True) == 1


@on_loop
async def test_numbers_are_unique(backend):
    stores = [backend.store() for _ in range(4)]
    claims = [store.claim_number(f"{KEY}{i}") for i, store in enumerate(stores * 8)]
    numbers = await asyncio.gather(*claims)
    assert sorted(numbers) == list(range(1, 33))
    assert await backend.store().claim_number(KEY) == 33


@on_loop
async def test_numbers_that_were_taken_are_not_given(backend):
    store = backend.store()
    assert await store.numbers_taken() == 0
    await store.take_numbers(5)
    await store.take_numbers(3)
    assert await backend.store().numbers_taken() == 5
    assert await store.claim_number(KEY) == 6
    assert await backend.store().claim_number(KEY) == 7
    assert await store.numbers_taken() == 7


@on_disks
@on_loop
async def test_a_ledger_is_created_once_appended_to_and_read(backend):
    store = backend.store()
    await store.write_manifest(KEY, 0, b"m")
    writer = await store.create_ledger(KEY, 7, b"head")
    with pytest.raises(LedgerExists):
        await backend.store().create_ledger(KEY, 7, b"other")
    assert await writer.append([b"abc", memoryview(b"def"), b""])
    assert await writer.append([b"ghi"])
    assert await store.read(KEY, 7, 0, 100) == b"headabcdefghi"
    assert await backend.store().read(KEY, 7, 4, 3) == b"abc"
    assert await store.read(KEY, 7, 13, 5) == b""
    assert await store.size(KEY, 7) == 13
    await store.sync_ledger(KEY, 7)
    await writer.close()
    await writer.close()


@on_loop
async def test_an_append_of_many_buffers_is_stored_completely(backend):
    store = backend.store()
    await store.write_manifest(KEY, 0, b"m")
    writer = await store.create_ledger(KEY, 7, b"")
    buffers = [b"%d," % i for i in range(5000)]
    await writer.append(buffers)
    assert await store.read(KEY, 7, 0, 1 << 20) == b"".join(buffers)


@on_disks
@on_loop
async def test_an_append_confirms_the_version_and_only_then_overwrites_the_mark(backend):
    store = backend.store()
    await store.write_manifest(KEY, 0, b"m")
    writer = await store.create_ledger(KEY, 7, b"h")
    assert await store.read_mark(KEY, 7) == b""
    assert await writer.append([b"abc"], confirm=1, mark=b"MARK")
    assert (await store.read(KEY, 7, 0, 100)).rstrip(b"\0") == b"habc"
    assert await store.read_mark(KEY, 7) == b"MARK"
    assert await writer.append([b"defgh"], confirm=1, mark=b"ANEW")
    assert await writer.append([b"ij"], mark=b"LOST")
    assert (await store.read(KEY, 7, 0, 100)).rstrip(b"\0") == b"habcdefghij"
    assert await backend.store().read_mark(KEY, 7) == b"ANEW"
    await backend.store().write_manifest(KEY, 1, b"theirs")
    assert not await writer.append([b"xyz"], confirm=1, mark=b"LATE")
    assert (await store.read(KEY, 7, 0, 100)).rstrip(b"\0") == b"habcdefghijxyz"
    assert await store.read_mark(KEY, 7) == b"ANEW"


@on_disks
@on_loop
async def test_a_mark_is_deleted_with_its_ledger_and_needs_one(backend):
    store = backend.store()
    await store.write_manifest(KEY, 0, b"m")
    for ledger_id in (5, 9):
        writer = await store.create_ledger(KEY, ledger_id, b"h")
        await writer.append([b"a"], confirm=1, mark=b"M%d" % ledger_id)
        await writer.close()
    assert [await store.read_mark(KEY, n) for n in (5, 9, 10)] == [b"M5", b"M9", None]
    for _ in range(2):
        await store.delete_ledger(KEY, 5)
    assert [await store.read_mark(KEY, n) for n in (5, 9)] == [None, b"M9"]
    backend.put_mark(700, b"stray")
    assert await store.list_ledgers(KEY) == [9]
    writer = await store.create_ledger(KEY, 700, b"h")
    assert await store.read_mark(KEY, 700) == b""
    await writer.close()
    backend.put_mark(701, b"stray")
    await store.delete_journal(KEY)
    assert await store.list_journals() == []
    assert [await store.read_mark(KEY, n) for n in (9, 700, 701)] == [None] * 3


@on_loop
async def test_journals_are_listed_below_whole_parts_of_their_names(backend):
    store = backend.store()
    names = [
        "partition/a/b/t",
        "partition/a/b/t/1/1",
        "partition/a/b/t/2/1",
        "partition/a/b/t2/1/1",
    ]
    for name in [*names, "partition/a/./t/1/1"]:
        await store.write_manifest(name, 0, b"m")
    assert await store.list_journals("partition/a/b/t") == names[:3]
    assert await store.list_journals("partition/a/b") == names
    assert await store.list_journals("partition/a/.") == ["partition/a/./t/1/1"]
    assert await store.list_journals("partition/a/b/nothing") == []


@on_loop
async def test_journals_and_ledgers_are_listed_and_deleted(backend):
    store = backend.store()
    assert await store.list_journals() == []
    assert await store.list_ledgers(KEY) == []
    for key in (KEY, OTHER):
        await store.write_manifest(key, 0, b"m")
        for ledger_id in (9, 5, 700):
            await (await store.create_ledger(key, ledger_id, b"h")).close()
    assert await store.has_ledgers(KEY, 6) and not await store.has_ledgers(KEY, 5)
    await store.write_index(KEY, 5, b"index")
    assert await store.read_index(KEY, 5) == b"index"
    assert await store.read_index(KEY, 9) is None
    assert await store.list_journals() == sorted([KEY, OTHER])
    assert await store.list_ledgers(KEY) == [5, 9, 700]
    for _ in range(2):
        await store.delete_ledger(KEY, 5)
    assert await store.list_ledgers(KEY) == [9, 700]
    assert await store.read_index(KEY, 5) is None
    with pytest.raises(NotStored):
        await store.read(KEY, 5, 0, 1)
    with pytest.raises(NotStored):
        await store.size(KEY, 5)
    for _ in range(2):
        await store.delete_journal(KEY)
    assert await store.list_journals() == [OTHER]
    assert await store.read_manifest(KEY) is None
    assert not await store.has_ledgers(KEY, 1000)
    assert await store.list_ledgers(OTHER) == [5, 9, 700]


@on_disks
@on_loop
async def test_a_deleted_journal_stays_deleted_until_it_is_created_again(backend):
    store = backend.store()
    with pytest.raises(NotStored):
        await store.create_ledger(KEY, 7, b"h")
    await store.write_manifest(KEY, 0, b"m")
    writer = await store.create_ledger(KEY, 7, b"h")
    await backend.store().delete_journal(KEY)
    with pytest.raises(NotStored):
        await store.create_ledger(KEY, 8, b"h")
    with pytest.raises(NotStored):
        await store.write_index(KEY, 7, b"index")
    with pytest.raises(ManifestConflict):
        await store.write_manifest(KEY, 1, b"m")
    assert not await writer.append([b"abc"], confirm=1, mark=b"MARK")
    await writer.close()
    assert await store.list_journals() == []
    assert await store.list_ledgers(KEY) == []


@on_loop
async def test_a_journal_deleted_and_created_anew_is_not_held_by_the_former_owner(backend):
    former, latter = backend.store(), backend.store()
    await former.write_manifest(KEY, 0, b"m")
    await latter.delete_journal(KEY)
    assert not await former.holds(KEY, 1)
    await latter.write_manifest(KEY, 0, b"m")
    assert not await former.holds(KEY, 1)
    assert await latter.holds(KEY, 1)


@on_loop
async def test_counters_count_bytes_and_syncs(backend):
    store = backend.store()
    await store.write_manifest(KEY, 0, b"m")
    writer = await store.create_ledger(KEY, 7, b"")
    before = store.counters.bytes_written, store.counters.syncs
    await writer.append([bytes(1000)])
    assert store.counters.bytes_written - before[0] == 1000
    assert store.counters.syncs - before[1] == 1
    read = store.counters.bytes_read
    await store.read(KEY, 7, 100, 200)
    assert store.counters.bytes_read - read == 200


@on_loop
async def test_salts_differ(backend):
    store = backend.store()
    assert len({store.salt() for _ in range(50)} | {backend.store().salt()}) == 51
