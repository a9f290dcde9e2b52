"""Full disks, failing syncs, torn and lost writes."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.journal.testing import (
    KEY,
    FileBackend,
    MemoryBackend,
    blobs,
    events_of,
    on_loop,
    open_journal,
    started,
    write,
)
from velaray.events.ids import EARLIEST
from velaray.journal import frames
from velaray.journal.errors import Fenced, StorageFull, SyncFailed
from velaray.journal.files import FileStore
from velaray.journal.memory import Step, TornWrite

BIG = bytes(200_000)


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """A file system of one MiB, where mounting is allowed."""
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    if sys.platform != "linux" or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting a small file system is not allowed here")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


async def _fill_and_free(backend, free, *, fill=None) -> None:
    journal = await started(backend.store())
    await write(journal, b"a")
    if fill is not None:
        fill(journal)
    accepted = [b"a"]
    with pytest.raises(StorageFull) as caught:
        for i in range(100):
            event = b"big-%d" % i
            await write(journal, event, blob=BIG)
            accepted.append(event)
    assert "free some space" in str(caught.value)
    # Refused again while full; reads go on; the state can be folded anew.
    journal.stage(b"refused", BIG)
    journal.stage(b"refused too")
    with pytest.raises(StorageFull):
        await journal.commit()
    assert journal.next_sequence == len(accepted)
    assert [entry.event for entry in await journal.read(EARLIEST, 99, 1 << 30)] == accepted
    assert [record.event for record in (await journal.reload()).records] == accepted
    with pytest.raises(StorageFull):
        await journal.roll({"events": b"", "big": BIG * 5}, b"")
    assert len(await journal._store.list_ledgers(KEY)) == 1
    free()
    assert await write(journal, b"after") == len(accepted)
    await journal.roll({"events": b"\n".join([*accepted, b"after"])}, b"")
    await write(journal, b"last")
    assert events_of(await open_journal(backend.store())) == [*accepted, b"after", b"last"]


@on_loop
async def test_a_full_disk_refuses_appends_and_serves_reads(small_disk):
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(400_000))
    backend = FileBackend(small_disk)
    try:
        await _fill_and_free(backend, ballast.unlink)
    finally:
        await asyncio.gather(*(store.close() for store in backend._stores))


@on_loop
async def test_a_full_memory_disk_refuses_appends_and_serves_reads(memory):
    memory.disk.capacity = 700_000

    def free() -> None:
        memory.disk.capacity = None

    await _fill_and_free(memory, free)


@on_loop
async def test_a_disk_that_fills_up_in_the_middle_of_a_write_refuses_it(files, monkeypatch):
    """Half of the frame reaches the file before the error, as on a real disk."""
    pwritev = os.pwritev
    full = False

    def fake(fd, buffers, offset):
        if full and sum(map(len, buffers)) > 1_000:
            data = b"".join(buffers)
            if len(data) > 100_000:
                return pwritev(fd, [data[: len(data) // 2]], offset)
            raise OSError(errno.ENOSPC, "No space left on device")
        return pwritev(fd, buffers, offset)

    def fill(journal) -> None:
        nonlocal full
        full = True

    def free() -> None:
        monkeypatch.setattr(os, "pwritev", pwritev)

    monkeypatch.setattr(os, "pwritev", fake)
    await _fill_and_free(files, free, fill=fill)


@on_loop
async def test_a_refused_write_leaves_no_bytes_and_keeps_the_mark(files, monkeypatch):
    journal = await started(files.store())
    await write(journal, b"a")
    ledger_id = journal.ledgers[0].ledger_id
    before = files.content(ledger_id), files.mark(ledger_id)
    pwritev = os.pwritev

    def fake(fd, buffers, offset):
        pwritev(fd, [b"".join(buffers)[:-1]], offset)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwritev", fake)
    with pytest.raises(StorageFull):
        await write(journal, b"refused", blob=BIG)
    assert files.content(ledger_id) == before[0].rstrip(b"\0")
    assert files.mark(ledger_id) == before[1]
    monkeypatch.setattr(os, "pwritev", pwritev)
    assert events_of(await open_journal(files.store())) == [b"a"]


@on_loop
async def test_a_mark_without_space_is_omitted(files, monkeypatch):
    journal = await started(files.store())
    ledger_id = journal.ledgers[0].ledger_id
    await write(journal, b"a")
    older = files.mark(ledger_id)

    def full(fd, data, offset):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        assert await write(journal, b"b") == 1
    assert files.mark(ledger_id) == older
    assert events_of(await open_journal(files.store())) == [b"a", b"b"]


@on_loop
async def test_a_ledger_without_space_for_its_mark_is_not_created(files, monkeypatch):
    journal = await started(files.store())
    await write(journal, b"a")
    call = os.open

    def full(path, *args, **kwargs):
        if str(path).endswith(".mark"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return call(path, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", full)
        with pytest.raises(StorageFull, match=r"\.mark"):
            await journal.roll({"events": b"a"}, b"")
    assert await files.store().list_ledgers(KEY) == [journal.ledgers[0].ledger_id]
    await journal.roll({"events": b"a"}, b"")
    await write(journal, b"b")
    assert events_of(await open_journal(files.store())) == [b"a", b"b"]


@on_loop
async def test_a_power_loss_drops_a_mark_that_was_not_synced(memory):
    journal = await started(memory.store())
    ledger_id = journal.ledgers[0].ledger_id
    marks = []
    for event in (b"a", b"b"):
        await write(journal, event)
        marks.append(memory.mark(ledger_id))
    kept = iter([True, False])
    memory.disk.power_loss(lambda count: range(count) if next(kept) else ())
    assert memory.mark(ledger_id) == marks[0] != marks[1]
    await write(journal, b"c")
    await memory.store().sync_ledger(KEY, ledger_id)
    memory.disk.power_loss()
    assert memory.mark(ledger_id) == marks[0]
    assert events_of(await open_journal(memory.store())) == [b"a", b"b", b"c"]


@on_loop
async def test_a_process_that_dies_in_the_middle_of_a_mark_loses_nothing(memory):
    for kept in range(frames.MARK_SIZE + 1):
        known = events_of(await open_journal(memory.store()))
        journal = await started(memory.store())
        await write(journal, b"a")
        ledger_id = journal.ledgers[-1].ledger_id
        older = memory.mark(ledger_id)
        journal._store.hook = _raise_at(Step.MARK, TornWrite(kept))
        with pytest.raises(TornWrite):
            await write(journal, b"b")
        assert memory.mark(ledger_id)[kept:] == older[kept:]
        assert (memory.mark(ledger_id) == older) == (kept <= 4)  # the magic is the same
        assert events_of(await open_journal(memory.store())) == [*known, b"a", b"b"]


@on_loop
async def test_records_staged_during_a_refused_commit_are_dropped_with_it(memory):
    journal = await started(memory.store())
    await write(journal, b"a")
    journal._store.hook = _raise_at(Step.WRITE, StorageFull("disk", "no space"))
    assert journal.stage(b"refused") == 1
    commit = asyncio.ensure_future(journal.commit())
    await asyncio.sleep(0)
    assert journal.stage(b"built on it") == 2
    with pytest.raises(StorageFull):
        await commit
    journal._store.hook = None
    assert journal.stage(b"b") == 1
    assert await journal.commit() == 1
    assert events_of(await open_journal(memory.store())) == [b"a", b"b"]


def _raise_at(step: Step, error: Exception, skip: int = 0):
    left = skip

    async def hook(at: Step, journal: str) -> None:
        nonlocal left
        await asyncio.sleep(0)
        if at is step:
            left -= 1
            if left < 0:
                raise error

    return hook


async def _fail_a_sync(backend, journal, break_sync, mend) -> None:
    await write(journal, b"a")
    break_sync()
    with pytest.raises(SyncFailed):
        await write(journal, b"unknown")
    mend()
    for _ in range(2):
        with pytest.raises(SyncFailed, match="open the journal again"):
            journal.stage(b"x")
        with pytest.raises(SyncFailed):
            await journal.commit()
        with pytest.raises(SyncFailed):
            await journal.roll({}, b"")
    assert await blobs(journal) == [b"aaa"]
    successor = await started(backend.store())
    await write(successor, b"b")
    events = events_of(await open_journal(backend.store()))
    assert events in ([b"a", b"b"], [b"a", b"unknown", b"b"])


@on_loop
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
async def test_a_failed_sync_kills_the_writer_for_ever(files, monkeypatch, code):
    fdatasync = os.fdatasync
    calls = 0

    def broken(fd):
        nonlocal calls
        calls += 1
        raise OSError(code, os.strerror(code))

    journal = await started(files.store())
    await _fail_a_sync(
        files,
        journal,
        lambda: monkeypatch.setattr(os, "fdatasync", broken),
        lambda: monkeypatch.setattr(os, "fdatasync", fdatasync),
    )
    assert calls == 1


@on_loop
async def test_a_failed_sync_in_memory_loses_the_unsynced_data(memory):
    journal = await started(memory.store())

    def set_hook(hook):
        journal._store.hook = hook

    await _fail_a_sync(
        memory,
        journal,
        lambda: set_hook(_raise_at(Step.SYNC, SyncFailed("disk", "I/O error"))),
        lambda: set_hook(None),
    )
    assert b"unknown" not in events_of(await open_journal(memory.store()))


@on_loop
async def test_a_writer_never_syncs_again_after_a_failed_sync(files, monkeypatch):
    store = files.store()
    await store.write_manifest(KEY, 0, b"m")
    writer = await store.create_ledger(KEY, 7, b"h")
    fdatasync = os.fdatasync

    def broken(fd):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", broken)
    with pytest.raises(SyncFailed):
        await writer.append([b"a"])
    monkeypatch.setattr(os, "fdatasync", fdatasync)
    with pytest.raises(SyncFailed):
        await writer.append([b"b"])
    assert await store.read(KEY, 7, 0, 9) == b"ha"


@on_loop
async def test_records_read_by_a_new_owner_are_durable(memory):
    """The former owner's write, not synced, arrives between the new one's sync and read."""
    former = await started(memory.store())
    await write(former, b"a")
    may_write, written = asyncio.Event(), asyncio.Event()

    async def slow(step: Step, journal: str) -> None:
        if step is Step.WRITE:
            await may_write.wait()
        if step is Step.SYNC:
            written.set()
            await asyncio.Event().wait()

    async def let_it_write(step: Step, journal: str) -> None:
        if step is Step.READ:
            may_write.set()
            await written.wait()

    former._store.hook = slow
    commit = asyncio.ensure_future(write(former, b"late"))
    await asyncio.sleep(0)
    successor = await open_journal(memory.store(let_it_write))
    assert events_of(successor) == [b"a", b"late"]
    commit.cancel()
    memory.disk.power_loss()
    assert events_of(await open_journal(memory.store())) == [b"a", b"late"]


@on_loop
async def test_an_input_output_error_while_writing_kills_the_writer(files, monkeypatch):
    journal = await started(files.store())
    await write(journal, b"a")

    def broken(fd, buffers, offset):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", broken)
        with pytest.raises(SyncFailed):
            await write(journal, b"x")
    with pytest.raises(SyncFailed):
        await write(journal, b"y")
    assert events_of(await open_journal(files.store())) == [b"a"]


@on_loop
async def test_a_failed_sync_of_the_directory_is_fatal_and_deletes_nothing(files, monkeypatch):
    journal = await started(files.store())
    await write(journal, b"a")

    def broken(fd):
        raise OSError(errno.ENOSPC, "No space left on device")

    fsync = os.fsync
    link = os.link

    def link_and_break(source, target):
        link(source, target)
        monkeypatch.setattr(os, "fsync", broken)

    monkeypatch.setattr(os, "link", link_and_break)
    with pytest.raises(SyncFailed):
        await journal.roll({"events": b"a"}, b"")
    monkeypatch.setattr(os, "link", link)
    monkeypatch.setattr(os, "fsync", fsync)
    assert events_of(await open_journal(files.store())) == [b"a"]


class Died(Exception):
    """The process is gone."""


@pytest.mark.parametrize("seed", range(150))
def test_a_crash_at_any_step_with_torn_and_lost_writes_loses_nothing(seed):
    asyncio.run(_crash_and_recover(random.Random(seed)))


async def _crash_and_recover(dice: random.Random) -> None:
    """Several lives of one journal, each ended at a random step, half of them by a power
    failure that loses a random part of what wasn't synced."""
    backend = MemoryBackend()
    acknowledged: list[bytes] = []
    for life in range(6):
        left = dice.randrange(1, 60)

        async def hook(step: Step, journal: str) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                if step is Step.WRITE:
                    raise TornWrite(dice.randrange(2_000))
                raise TornWrite(dice.randrange(frames.MARK_SIZE)) if step is Step.MARK else Died

        acknowledged = await _live(backend, hook, life, acknowledged, dice)
        if dice.random() < 0.5:
            backend.disk.power_loss(lambda count: [i for i in range(count) if dice.random() < 0.5])


async def _live(backend, hook, life, acknowledged, dice) -> list[bytes]:
    """One life until it dies; what is acknowledged when it is over."""
    known = list(acknowledged)
    doubtful: list[bytes] = []
    try:
        journal = await open_journal(backend.store(hook))
        found = events_of(journal)
        assert found[: len(acknowledged)] == acknowledged
        assert len(found) - len(acknowledged) in (0, 1, 2, 3)
        known = found
        await journal.start({"events": b"\n".join(known)}, b"")
        for number in range(30):
            doubtful = [b"%d-%d-%d" % (life, number, i) for i in range(dice.randrange(1, 4))]
            await write(journal, *doubtful, blob=bytes(dice.randrange(1_500)))
            known = known + doubtful
            if number % 7 == 6:
                await journal.roll({"events": b"\n".join(known)}, b"")
    except (Died, TornWrite):
        return known
    return known


@on_loop
async def test_a_stale_owner_in_the_middle_of_each_step_acknowledges_nothing(memory):
    """The new owner opens exactly before each step of the old one's commit."""
    for step in (Step.WRITE, Step.SYNC, Step.CONFIRM, Step.MARK, Step.RETURN):
        former = await started(memory.store())
        known = events_of(await open_journal(memory.store()))
        former = await started(memory.store())
        successors = []

        async def hook(at, journal, step=step, successors=successors):
            if at is step and not successors:
                successors.append(await started(memory.store()))

        former._store.hook = hook
        held = True
        try:
            await write(former, b"at " + step.encode())
        except Fenced:
            held = False
        (successor,) = successors
        await write(successor, b"new")
        events = events_of(await open_journal(memory.store()))
        # The epoch was confirmed before MARK: acknowledged, and the new owner has it.
        assert held == (step in (Step.MARK, Step.RETURN))
        expected = [*known, b"at " + step.encode(), b"new"]
        assert events == expected if held else events in (expected, [*known, b"new"])
        with pytest.raises(Fenced):
            await write(former, b"again")


@on_loop
async def test_keys_become_safe_directories(files):
    store = files.store()
    for key in (
        "catalog",
        "partition/../%2F/a%2Fb/-1/3",
        "subscription/t/n/...//x/.hidden/0",
        "partition/" + "x" * 200 + "/n/t/0/1",
    ):
        await (await started(store, key)).close()
        assert key in await FileStore(files.root).list_journals()
    assert {path.name for path in files.root.iterdir()} == {"journals", "numbers"}


@on_loop
async def test_keys_that_cannot_be_file_names_are_refused(files):
    from velaray.journal.errors import UnsafeKey

    store = files.store()
    for part in ("x" * 201, "a b", "a\\b", "nul\0", "+manifest", "%2E%2E"):
        with pytest.raises(UnsafeKey) as caught:
            await started(store, f"partition/{part}/n/t/0/1")
        assert caught.value.part == part
    assert list(files.root.iterdir()) == []
