"""What recovery costs, what it leaves behind, and what it cleans up."""

import pytest

from tests.journal.testing import (
    KEY,
    blobs,
    events_of,
    on_disks,
    on_loop,
    open_journal,
    started,
    write,
)
from velaray.events.ids import Position
from velaray.journal.errors import LedgerExists, NotStored
from velaray.journal.frames import encode_ledger_header
from velaray.journal.index import SparseIndex, decode_index


async def _rolled(backend, key: str, rolls: int) -> None:
    journal = await started(backend.store(), key)
    for _ in range(rolls):
        await write(journal, b"x", b"y", b"z", blob=bytes(3_000))
        await journal.roll({"state": bytes(10_000)}, b"")
    for _ in range(20):
        await write(journal, b"tail", blob=bytes(3_000))
    await journal.close()


@on_loop
async def test_recovery_reads_no_more_when_history_is_a_hundred_times_longer(backend):
    read = {}
    for rolls in (1, 100):
        key = f"partition/public/default/orders/{rolls}/1"
        await _rolled(backend, key, rolls)
        store = backend.store()
        journal = await open_journal(store, key)
        assert len(journal.recovered.records) == 20
        read[rolls] = store.counters.bytes_read
        await journal.start({}, b"")
        read[f"{rolls} and started"] = store.counters.bytes_read
    assert read[100] <= 2 * read[1]
    assert read["100 and started"] <= 2 * read["1 and started"]


@on_loop
async def test_a_read_in_an_old_ledger_reads_only_near_the_entry(backend):
    journal = await started(backend.store())
    for i in range(200):
        await write(journal, b"e%d" % i, blob=bytes(10_000))
    await journal.roll({}, b"")
    successor = await open_journal(backend.store())
    old = successor.ledgers[0]
    await successor.read(Position(old.ledger_id, 0), 1, 1)
    store = successor._store
    for entry in (150, 3, 199):
        before = store.counters.bytes_read
        (found,) = await successor.read(Position(old.ledger_id, entry), 1, 1)
        assert (found.position, found.event) == (
            Position(old.ledger_id, entry),
            b"e%d" % entry,
        )
        assert store.counters.bytes_read - before < 400_000


@on_disks
@on_loop
async def test_a_lost_or_damaged_index_is_rebuilt_once(backend):
    journal = await started(backend.store())
    for i in range(30):
        await write(journal, b"e%d" % i, blob=bytes(20_000))
    await journal.roll({}, b"")
    store, old = backend.store(), journal.ledgers[0]
    good = await store.read_index(KEY, old.ledger_id)
    assert good is not None and len(decode_index(old.ledger_id, good)) >= 8
    other = decode_index(old.ledger_id, good).encode(old.ledger_id + 1)
    for bad in (b"", good[:-16], good[:-1] + b"\xff", other):
        await store.write_index(KEY, old.ledger_id, bad)
        reader = await open_journal(backend.store())
        (entry,) = await reader.read(Position(old.ledger_id, 17), 1, 1)
        assert entry.event == b"e17"
        assert await store.read_index(KEY, old.ledger_id) == good


def test_an_index_finds_the_last_frame_at_or_before_an_entry():
    index = SparseIndex()
    assert index.find(0) is None
    for number in range(100):
        index.note(number * 10, 500 + number * 40_000)
    assert len(index) == 50
    assert index.find(0) == 500
    assert index.find(999) == 500 + 98 * 40_000
    assert index.find(25) == 500 + 2 * 40_000


async def _orphan(store, ledger_id: int, owner: str = KEY) -> None:
    header = encode_ledger_header(ledger_id, owner, 1, bytes(8))
    await (await store.create_ledger(KEY, ledger_id, header)).append([b""])


@on_disks
@on_loop
async def test_the_next_owner_removes_ledgers_that_were_never_listed(backend):
    journal = await started(backend.store())
    await write(journal, b"a")
    (listed,) = [info.ledger_id for info in journal.ledgers]
    store = backend.store()
    await _orphan(store, listed + 1)
    await _orphan(store, listed + 5)
    await (await store.create_ledger(KEY, listed + 6, b"\x89VL")).close()
    await _orphan(store, listed + 7, owner="partition/public/default/else/0/1")
    assert backend.mark(listed + 5) == b""
    successor = await started(backend.store())
    fresh = successor.ledgers[-1].ledger_id
    assert fresh == listed + 8
    marked = [number for number in range(listed, fresh + 1) if backend.mark(number) is not None]
    assert marked == [listed, listed + 7, fresh]
    assert await store.list_ledgers(KEY) == [listed, listed + 7, fresh]
    assert events_of(await open_journal(backend.store())) == [b"a"]


@on_disks
@on_loop
async def test_a_ledger_name_is_never_reused(backend):
    """A superseded owner may still delete what it created: it must not be ours."""
    former = await open_journal(backend.store())
    stale = backend.store()
    await _orphan(stale, former._manifest.ledger_id(0))
    await open_journal(backend.store())
    assert await stale.list_ledgers(KEY) == []
    latest = await started(backend.store())
    assert latest.ledgers[0].ledger_id == former._manifest.ledger_id(1)


@on_disks
@on_loop
async def test_a_ledger_name_that_is_taken_is_skipped(backend):
    journal = await open_journal(backend.store())
    first = journal._manifest.ledger_id(0)
    await _orphan(backend.store(), first)
    await _orphan(backend.store(), first + 1)
    assert await journal.start({"events": b""}, b"") == first + 2
    with pytest.raises(LedgerExists):
        await _orphan(backend.store(), first + 2)
    assert await write(journal, b"a") == 0
    assert events_of(await open_journal(backend.store())) == [b"a"]
    assert await journal._store.list_ledgers(KEY) == [first + 2]


@on_disks
@on_loop
async def test_a_listed_ledger_that_is_missing_is_named(backend):
    journal = await started(backend.store())
    await write(journal, b"a")
    store = backend.store()
    await store.delete_ledger(KEY, journal.ledgers[0].ledger_id)
    with pytest.raises(NotStored, match=str(journal.ledgers[0].ledger_id)):
        await open_journal(store)


@on_loop
async def test_an_owner_that_dies_before_start_changes_nothing(backend):
    journal = await started(backend.store())
    await write(journal, b"a", b"b")
    for epoch in range(2, 6):
        visitor = await open_journal(backend.store())
        assert (visitor.epoch, events_of(visitor)) == (epoch, [b"a", b"b"])
        assert await blobs(visitor) == [b"aaa", b"bbb"]
