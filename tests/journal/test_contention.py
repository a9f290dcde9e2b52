"""Others get in between, and what is bounded stays bounded."""

from __future__ import annotations

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
from velaray.journal.errors import Contended, StorageFull, SyncFailed
from velaray.journal.frames import encode_ledger_header
from velaray.journal.index import decode_index
from velaray.journal.journal import (
    CACHED_LEDGERS,
    CREATE_TRIES,
    OPEN_TRIES,
    Journal,
    JournalSettings,
)
from velaray.journal.memory import Step


def _overtaken(memory, times: int):
    """A hook by which another owner takes the epoch before each of the first ``times`` tries."""
    others = memory.store()
    left = times

    async def hook(step: Step, journal: str) -> None:
        nonlocal left
        if step is Step.WRITE_MANIFEST and left:
            left -= 1
            await open_journal(others)

    return hook


@pytest.mark.parametrize("existing", [False, True])
@on_loop
async def test_an_opener_that_is_overtaken_takes_the_next_epoch(memory, existing):
    if existing:
        await write(await started(memory.store()), b"a")
    journal = await open_journal(memory.store(_overtaken(memory, 3)))
    assert journal.epoch == 4 + existing
    assert events_of(journal) == [b"a"] * existing
    await journal.start({"events": b""}, b"")
    assert await write(journal, b"b") == existing


@on_loop
async def test_an_opener_that_is_always_overtaken_gives_up(memory):
    with pytest.raises(Contended, match=f"taking the next epoch: lost the race {OPEN_TRIES} times"):
        await open_journal(memory.store(_overtaken(memory, OPEN_TRIES)))
    assert (await open_journal(memory.store())).epoch == OPEN_TRIES + 1


@on_disks
@on_loop
async def test_an_owner_that_finds_every_name_taken_gives_up_and_may_try_again(backend):
    journal = await open_journal(backend.store())
    store = backend.store()
    first = journal._manifest.ledger_id(0)
    for ledger_id in range(first, first + CREATE_TRIES):
        header = encode_ledger_header(ledger_id, KEY, 1, bytes(8))
        await (await store.create_ledger(KEY, ledger_id, header)).close()
    with pytest.raises(Contended, match=f"creating a ledger: lost the race {CREATE_TRIES} times"):
        await journal.start({"events": b""}, b"")
    assert await journal.start({"events": b""}, b"") == first + CREATE_TRIES
    assert await write(journal, b"a") == 0
    assert events_of(await open_journal(backend.store())) == [b"a"]


@on_loop
async def test_a_journal_without_a_ledger_needs_none_rolled_over(memory):
    settings = JournalSettings(roll_records=1)
    journal = await open_journal(memory.store(), settings=settings)
    assert not journal.should_roll
    await journal.start({"events": b""}, b"")
    assert not journal.should_roll
    await write(journal, b"a")
    assert journal.should_roll
    # A successor sees that its predecessor's ledger is full, though it starts one anyway.
    assert (await open_journal(memory.store(), settings=settings)).should_roll


@on_loop
async def test_a_ledger_is_sealed_on_a_full_disk_without_its_index(memory):
    journal = await started(memory.store())
    for number in range(20):
        await write(journal, b"e%d" % number, blob=bytes(20_000))
    old = journal.ledgers[0].ledger_id

    async def full(step: Step, journal: str) -> None:
        if step is Step.WRITE_INDEX:
            raise StorageFull("memory", "no space")

    journal._store.hook = full
    await journal.roll({"events": b""}, b"")
    assert await write(journal, b"after") == 20
    # Read without it, then with the one that is made as soon as there is room.
    for hook, stored in ((full, False), (None, True)):
        reader = await open_journal(memory.store(hook))
        (entry,) = await reader.read(Position(old, 17), 1, 1)
        assert entry.event == b"e17"
        raw = await reader._store.read_index(KEY, old)
        assert (raw is not None and len(decode_index(old, raw)) > 1) == stored


@on_loop
async def test_the_ledger_of_a_killed_owner_gets_its_index_from_the_next_one(backend):
    former = await started(backend.store())
    for number in range(20):
        await write(former, b"e%d" % number, blob=bytes(20_000))
    old = former.ledgers[0].ledger_id
    assert await former._store.read_index(KEY, old) is None
    successor = await started(backend.store())
    raw = await successor._store.read_index(KEY, old)
    assert raw == former._index.encode(old)
    assert len(decode_index(old, raw)) > 3
    (entry,) = await successor.read(Position(old, 17), 1, 1)
    assert entry.event == b"e17"


@on_loop
async def test_headers_and_indexes_of_old_ledgers_are_kept_for_a_few_of_them(memory):
    journal = await started(memory.store())
    names = [b"e%d" % number for number in range(CACHED_LEDGERS + 4)]
    for name in names:
        await write(journal, name)
        await journal.roll({"events": b""}, b"")
    assert await blobs(journal) == [name * 3 for name in names]
    assert len(journal._cache) == CACHED_LEDGERS
    reads = journal._store.counters

    async def cost(ledger: int) -> int:
        before = reads.reads
        await journal.read(Position(journal.ledgers[ledger].ledger_id, 0), 1, 1)
        return reads.reads - before

    kept = await cost(len(names) - 1)
    assert await cost(0) > kept
    assert await cost(0) == kept
    assert await cost(len(names) - 1) == kept, "used last but one"
    assert await cost(4) > kept, "of those kept the one that was used least lately is dropped"


@on_loop
async def test_a_memory_writer_is_dead_after_a_failed_sync_and_after_close(memory):
    store = memory.store()
    await store.write_manifest(KEY, 0, b"m")
    writer = await store.create_ledger(KEY, 7, b"h")

    async def broken(step: Step, journal: str) -> None:
        if step is Step.SYNC:
            raise SyncFailed("memory", "bad disk")

    store.hook = broken
    with pytest.raises(SyncFailed, match="bad disk"):
        await writer.append([b"a"])
    store.hook = None
    with pytest.raises(SyncFailed, match="bad disk"):
        await writer.append([b"b"])
    other = await store.create_ledger(KEY, 8, b"h")
    await other.close()
    with pytest.raises(SyncFailed, match="the writer is closed"):
        await other.append([b"b"])
    assert (memory.content(7), memory.content(8)) == (b"ha", b"h")


@on_loop
async def test_a_closed_memory_store_holds_no_version(memory):
    store = memory.store()
    journal: Journal = await started(store)
    version = journal._version
    assert await store.holds(KEY, version)
    await store.close()
    assert not await store.holds(KEY, version)
