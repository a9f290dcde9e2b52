"""Ledgers are dropped from the manifest, then deleted: no ledger in use, none of other journals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.journal.testing import (
    KEY,
    MemoryBackend,
    blobs,
    events_of,
    on_disks,
    on_loop,
    open_journal,
    started,
    write,
)
from velaray.journal.errors import Fenced, Misuse, Purged, StorageFull
from velaray.journal.garbage_collection import Fate, dispose, purge
from velaray.journal.journal import Journal
from velaray.journal.memory import Step
from velaray.journal.replay import checkpoint_of, load_manifest, verify

OTHER = "partition/public/default/payments/0/2"


async def history(store, ledgers: int = 5, key: str = KEY) -> Journal:
    """A journal of so many ledgers of one event each, with its events as state."""
    journal = await started(store, key)
    for number in range(1, ledgers):
        await write(journal, b"e%d" % number)
        events = b"\n".join(b"e%d" % each for each in range(1, number + 1))
        await journal.roll({"events": events}, b"digest")
    return journal


def ids(journal: Journal) -> list[int]:
    return [info.ledger_id for info in journal.ledgers]


class Announced:
    """Records the enqueued deletions; raises ``error`` instead, if there is one."""

    def __init__(self) -> None:
        self.ledgers: list[int] = []
        self.error: Exception | None = None

    async def __call__(self, ledger_ids: Sequence[int]) -> None:
        if self.error is not None:
            raise self.error
        self.ledgers += ledger_ids


@on_loop
async def test_a_ledger_dropped_from_the_manifest_is_not_part_of_the_journal(backend):
    store = backend.store()
    journal = await history(store)
    first, second, *rest = ids(journal)
    await write(journal, b"last")
    await journal.drop_from_manifest([first, second])
    assert ids(journal) == rest
    assert await store.list_ledgers(KEY) == [first, second, *rest]
    assert await blobs(journal) == [b"e3" * 3, b"e4" * 3, b"last" * 3]
    await write(journal, b"more")  # the manifest's new version is what commits look at
    await journal.roll({"events": b"x"}, b"digest")
    await write(journal, b"and more")
    await journal.close()
    successor = await open_journal(backend.store())
    assert ids(successor)[:-1] == rest
    assert successor.recovered.records[-1].event == b"and more"
    reports = await verify(backend.store(), KEY)
    assert [problem for report in reports for problem in report.problems] == []


@on_loop
async def test_ledgers_that_recovery_may_need_are_not_dropped(backend):
    journal = await history(backend.store(), 6)
    listed = ids(journal)
    state = {"old": b"o" * 100, "events": b""}
    await journal.roll(state, b"digest")
    await write(journal, b"event")
    for _ in range(3):
        await journal.roll({**journal.stored, "events": b""}, b"digest")
    refers = ids(journal)[6]
    assert journal.needed == {refers, *ids(journal)[-2:]}
    for needless in (refers, ids(journal)[-1], ids(journal)[-2], 7):
        with pytest.raises(Misuse, match="can't be dropped from the manifest"):
            await journal.drop_from_manifest([listed[0], needless])
    journal.leave([refers])
    await journal.roll({**journal.stored, "events": b""}, b"digest")
    assert refers in journal.needed  # of the checkpoint that is the fall-back now
    await journal.roll({**journal.stored, "events": b""}, b"digest")
    await journal.drop_from_manifest([*listed[:2], refers])
    checkpoint = (await open_journal(backend.store())).recovered.checkpoint
    assert checkpoint is not None and checkpoint.segments["old"] == state["old"]


@on_loop
async def test_a_checkpoint_is_incomplete_without_the_ledgers_that_it_refers_to(backend):
    journal = await history(backend.store(), 2)
    first, second = ids(journal)
    await write(journal, b"event")
    third = await journal.roll({**journal.stored, "new": b"n"}, b"digest")
    assert journal.ledgers[-1].refers_from == second
    await write(journal, b"event")
    for _ in range(3):
        await journal.roll({"events": b""}, b"digest")
    assert (await checkpoint_of(backend.store(), KEY, third)).segments["new"] == b"n"
    await journal.drop_from_manifest([second])
    assert [info.whole for info in journal.ledgers] == [True, False, True, True, True]
    assert ids(journal)[:2] == [first, third]
    with pytest.raises(Exception, match="all of the checkpoint"):
        await checkpoint_of(backend.store(), KEY, third)
    assert not any(report.problems for report in await verify(backend.store(), KEY))


@on_loop
async def test_a_superseded_owner_drops_no_ledger(backend):
    journal = await history(backend.store())
    await open_journal(backend.store())
    with pytest.raises(Fenced):
        await journal.drop_from_manifest(ids(journal)[:1])
    assert len((await load_manifest(backend.store(), KEY)).ledgers) == 5


@on_loop
async def test_a_full_disk_leaves_everything_listed(memory):
    journal = await history(memory.store())
    listed, memory.disk.capacity = ids(journal), 0
    with pytest.raises(StorageFull):
        await journal.drop_from_manifest(listed[:1])
    memory.disk.capacity = None
    assert ids(journal) == listed
    await journal.drop_from_manifest(listed[:1])
    assert ids(journal) == listed[1:]


# -- deleting --------------------------------------------------------------------------


@on_disks
@on_loop
async def test_only_unlisted_ledgers_are_deleted(backend):
    journal, store = await history(backend.store()), backend.store()
    first, *rest = ids(journal)
    assert [await dispose(store, KEY, each) for each in (first, *rest)] == [Fate.LISTED] * 5
    await journal.drop_from_manifest([first])
    assert await dispose(store, KEY, first) is Fate.DELETED
    assert await dispose(store, KEY, first) is Fate.GONE
    assert await store.list_ledgers(KEY) == rest
    assert not any(report.problems for report in await verify(store, KEY))


@on_loop
async def test_a_ledger_that_is_being_created_is_not_deleted(backend):
    """Its event can only be forged: ledgers that aren't listed yet aren't enqueued."""
    store = backend.store()
    journal = await history(store, 2)
    created = journal._manifest.ledger_id(journal._next_index)
    writer = await store.create_ledger(KEY, created, b"header")
    assert await dispose(backend.store(), KEY, created) is Fate.LISTED
    await writer.close()
    assert created in await store.list_ledgers(KEY)


@on_disks
@on_loop
async def test_ledgers_of_others_are_not_deleted(backend):
    store = backend.store()
    mine, other = await history(store), await history(store, key=OTHER)
    await other.drop_from_manifest(ids(other)[:1])
    assert await dispose(store, KEY, ids(other)[0]) is Fate.FOREIGN
    assert await dispose(store, OTHER, ids(mine)[0]) is Fate.FOREIGN
    assert await dispose(store, "cursor/public/default/orders/0/1/s/9", 77) is Fate.GONE
    # A file that names another owner, wherever it lies.
    first = ids(mine)[0]
    await mine.drop_from_manifest([first])
    backend.put(first, backend.content(ids(other)[1], OTHER))
    assert await dispose(store, KEY, first) is Fate.FOREIGN
    assert first in await store.list_ledgers(KEY)


@on_disks
@on_loop
async def test_a_ledger_with_an_incomplete_header_belongs_to_no_journal(backend):
    store = backend.store()
    journal = await history(store)
    first = ids(journal)[0]
    await journal.drop_from_manifest([first])
    backend.put(first, backend.content(first)[:9])
    assert await dispose(store, KEY, first) is Fate.DELETED


@on_disks
@on_loop
async def test_an_index_without_its_ledger_is_deleted(backend):
    """A slow owner wrote it after the ledger was dropped from the manifest and deleted."""
    store = backend.store()
    journal = await history(store)
    first, second, *rest = ids(journal)
    await journal.drop_from_manifest([first, second])
    for ledger_id in (first, second):
        await store.delete_ledger(KEY, ledger_id)
        await store.write_index(KEY, ledger_id, b"index")
    assert await dispose(store, KEY, first) is Fate.GONE
    assert await store.list_ledgers(KEY) == [second, *rest]
    await open_journal(backend.store())
    assert await store.list_ledgers(KEY) == rest


@on_loop
async def test_a_garbage_collector_may_delete_before_the_sweep_of_an_owner(memory):
    journal = await history(memory.store())
    first, second, *rest = ids(journal)
    await journal.drop_from_manifest([first, second])

    found = await memory.store().list_ledgers(KEY)

    async def list_and_lose(key: str) -> list[int]:
        for ledger_id in (first, second):
            await memory.store().delete_ledger(key, ledger_id)
        return found

    store = memory.store()
    store.list_ledgers = list_and_lose
    await open_journal(store)
    assert await memory.store().list_ledgers(KEY) == rest


# -- journals of deleted actors --------------------------------------------------------


@on_disks
@on_loop
async def test_a_purged_journal_is_deleted_ledger_by_ledger(backend):
    store, enqueued = backend.store(), Announced()
    journal = await history(store)
    listed = ids(journal)
    await purge(backend.store(), KEY, enqueued)
    assert enqueued.ledgers == listed == await store.list_ledgers(KEY)
    with pytest.raises(Fenced):
        await write(journal, b"late")
    with pytest.raises(Purged):
        await open_journal(backend.store())
    await purge(backend.store(), KEY, enqueued)  # harmless
    for ledger_id in reversed(listed):
        assert KEY in await store.list_journals()
        assert await dispose(store, KEY, ledger_id) is Fate.DELETED
    assert await store.list_journals() == []
    await purge(store, KEY, enqueued)
    assert await dispose(store, KEY, listed[0]) is Fate.GONE


@on_loop
async def test_a_journal_is_not_purged_if_its_deletion_cannot_be_enqueued(backend):
    store, enqueued = backend.store(), Announced()
    journal = await history(store)
    enqueued.error = ConnectionError("nobody is there")
    with pytest.raises(ConnectionError):
        await purge(store, KEY, enqueued)
    await write(journal, b"still the owner")
    assert not (await load_manifest(store, KEY)).dead
    enqueued.error = None
    await purge(store, KEY, enqueued)
    assert (await load_manifest(store, KEY)).dead


@on_loop
async def test_a_purged_journal_without_ledgers_is_deleted_at_once(backend):
    store, enqueued = backend.store(), Announced()
    await open_journal(backend.store())
    await purge(store, KEY, enqueued)
    assert await store.list_journals() == [] and not enqueued.ledgers


@on_loop
async def test_a_purge_covers_ledgers_that_an_owner_creates_meanwhile(memory):
    enqueued = Announced()
    journal = await history(memory.store())
    former = await journal._store.read_manifest(KEY)
    rolled: list[int] = []

    async def roll_first(step: Step, key: str) -> None:
        if step is Step.WRITE_MANIFEST and not rolled:
            rolled.append(0)
            rolled[0] = await journal.roll({"events": b""}, b"digest")

    await purge(memory.store(roll_first), KEY, enqueued)
    assert former is not None and rolled[0] in enqueued.ledgers
    assert set(enqueued.ledgers) == set(await memory.store().list_ledgers(KEY))


CRASHES = range(1, 40)


async def purge_until(memory: Any, crash: int, purging: Any, enqueued: Announced) -> set[int]:
    """Purge a journal and delete its ledgers, up to a crash at this step of the store. Returns the
    stored ledgers that are neither listed nor enqueued then."""
    left = crash

    async def crashing(step: Step, key: str) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise ConnectionAbortedError("crash")

    await history(memory.store())
    store = memory.store(crashing)
    try:
        await purging(store, KEY, enqueued)
        for ledger_id in list(enqueued.ledgers):
            await dispose(store, KEY, ledger_id)
    except ConnectionAbortedError:
        assert left == 0
    fresh = memory.store()
    if await fresh.read_manifest(KEY) is None:
        return set()
    listed = {info.ledger_id for info in (await load_manifest(fresh, KEY)).ledgers}
    return set(await fresh.list_ledgers(KEY)) - listed - set(enqueued.ledgers)


@pytest.mark.parametrize("crash", CRASHES)
@on_loop
async def test_a_crash_at_any_step_leaves_no_unlisted_ledger_without_an_event(memory, crash):
    """Every ledger is listed or enqueued at every moment. A repetition deletes them all."""
    enqueued = Announced()
    assert await purge_until(memory, crash, purge, enqueued) == set()
    fresh = memory.store()
    await purge(fresh, KEY, enqueued)
    for ledger_id in enqueued.ledgers:
        assert await dispose(fresh, KEY, ledger_id) in (Fate.DELETED, Fate.GONE)
    assert await fresh.list_journals() == []


async def purge_before_enqueueing(store: Any, journal: str, enqueue: Any) -> None:
    """A wrong purge: the journal is dead before its ledgers are enqueued."""
    gone = Announced()
    await purge(store, journal, gone)
    await enqueue(gone.ledgers)


@on_loop
async def test_crashes_find_a_purge_that_enqueues_last():
    found = [
        await purge_until(MemoryBackend(), crash, purge_before_enqueueing, Announced())
        for crash in CRASHES
    ]
    assert any(found)


@on_loop
async def test_late_files_of_a_superseded_owner_do_not_keep_the_directory(backend):
    store, enqueued = backend.store(), Announced()
    journal = await history(store, 2)
    await purge(backend.store(), KEY, enqueued)
    late = max(enqueued.ledgers) + 7
    await (await store.create_ledger(KEY, late, b"header")).close()
    for ledger_id in enqueued.ledgers:
        await dispose(backend.store(), KEY, ledger_id)
    assert await store.list_journals() == []
    assert events_of(journal) == []
