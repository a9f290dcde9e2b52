"""Relaxed journals: entries may be lost with the power, from some entry on, and nothing else."""

from __future__ import annotations

import asyncio
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
from velaray.journal import frames
from velaray.journal.errors import CorruptJournal, Fenced, SyncFailed
from velaray.journal.journal import MAX_UNSYNCED, Journal, JournalSettings
from velaray.journal.memory import Step
from velaray.journal.replay import verify

RELAXED = JournalSettings(sync_interval_ms=1000)


def _lags(backend, journal: Journal) -> list[int]:
    """The lag of each frame of the newest ledger, the checkpoint's first."""
    raw = backend.content(journal.ledgers[-1].ledger_id)
    header = frames.decode_ledger_header("", raw)
    at, lags = header.size, []
    while (frame := frames.decode_frame_header(header.salt, at, raw, at)) is not None:
        lags.append(frame.lag)
        at += frames.FRAME_HEADER_SIZE + frame.length
    return lags


def _mark(backend, journal: Journal) -> frames.Mark | None:
    ledger_id = journal.ledgers[-1].ledger_id
    header = frames.decode_ledger_header("", backend.content(ledger_id))
    return frames.decode_mark(header.salt, ledger_id, backend.mark(ledger_id) or b"")


@on_disks
@on_loop
async def test_entries_wait_for_the_sync_and_the_mark_covers_only_synced_ones(backend):
    store = backend.store()
    journal = await started(store, settings=RELAXED)
    syncs, ends = store.counters.syncs, [journal.ledgers[-1].bytes]
    for event in (b"one", b"two", b"three"):
        await write(journal, event)
        ends.append(journal.ledgers[-1].bytes)
        assert (journal.unsynced, journal.synced_offset) == (ends[-1] - ends[0], 0)
    assert store.counters.syncs == syncs
    assert _mark(backend, journal) is None
    assert _lags(backend, journal)[-3:] == [0, ends[1] - ends[0], ends[2] - ends[0]]
    await journal.sync()
    assert store.counters.syncs == syncs + 1
    assert (journal.unsynced, journal.synced_offset) == (0, 3)
    assert _mark(backend, journal) == (2, ends[-1])
    await journal.sync()
    assert store.counters.syncs == syncs + 1
    await write(journal, b"four")
    assert _mark(backend, journal) == (2, ends[-1])
    assert _lags(backend, journal)[-1] == 0


@on_disks
@on_loop
async def test_records_other_than_entries_are_synced_with_all_before_them(backend):
    journal = await started(backend.store(), settings=RELAXED)
    await write(journal, b"one")
    await write(journal, b"two", blob=None)
    assert (journal.unsynced, journal.synced_offset) == (0, 1)
    assert _mark(backend, journal) == (1, journal.ledgers[-1].bytes)
    assert _lags(backend, journal)[-1] > 0
    journal.stage(b"three", b"entry")
    journal.stage(b"four")
    await journal.commit()
    assert journal.unsynced == 0


@on_disks
@on_loop
async def test_the_amount_of_unsynced_data_is_limited(backend):
    chosen = JournalSettings(sync_interval_ms=1000, unsynced_bytes=1000)
    journal = await started(backend.store(), settings=chosen)
    most = 0
    for number in range(50):
        await write(journal, b"%d" % number, blob=b"x" * 100)
        most = max(most, journal.unsynced)
    assert 800 < most <= 1000
    await write(journal, b"large", blob=b"x" * 1000)
    assert journal.unsynced == 0
    assert max(_lags(backend, journal)) <= 1000


@pytest.mark.parametrize("wrong", [{"sync_interval_ms": -1}, {"unsynced_bytes": MAX_UNSYNCED + 1}])
def test_a_frame_must_be_able_to_store_its_lag(wrong):
    assert 2 * MAX_UNSYNCED <= frames.MAX_LAG + 1
    with pytest.raises(ValueError, match=str(next(iter(wrong.values())))):
        JournalSettings(**wrong)


@on_loop
async def test_a_relaxed_journal_synced_each_time_equals_a_strict_one():
    contents = []
    for settings_ in (JournalSettings(), RELAXED):
        backend = MemoryBackend()
        journal = await started(backend.store(), settings=settings_)
        for event in (b"one", b"two", b"three"):
            await write(journal, event)
            await journal.sync()
        ledger_id = journal.ledgers[-1].ledger_id
        contents.append((backend.content(ledger_id), backend.mark(ledger_id)))
    assert contents[0] == contents[1]


@on_loop
async def test_a_killed_process_loses_nothing(backend):
    journal = await started(backend.store(), settings=RELAXED)
    for number in range(20):
        await write(journal, b"%d" % number)
    heir = await started(backend.store(), settings=RELAXED)
    assert await blobs(heir) == [b"%d" % number * 3 for number in range(20)]
    journal.stage(b"late", b"late")
    with pytest.raises(Fenced):
        await journal.commit()
    with pytest.raises(Fenced):
        await journal.sync()
    if isinstance(backend, MemoryBackend):
        backend.disk.power_loss()
    assert len(await blobs(await open_journal(backend.store()))) == 20


@on_loop
async def test_a_roll_over_syncs_first(memory):
    journal = await started(memory.store(), settings=RELAXED)
    for number in range(5):
        await write(journal, b"%d" % number)
    known = b"\n".join(b"%d" % number for number in range(5))
    await journal.roll({"events": known}, b"digest")
    assert (journal.unsynced, journal.synced_offset) == (0, 5)
    memory.disk.power_loss()
    again = await open_journal(memory.store())
    assert events_of(again) == known.split(b"\n")
    assert all(not report.problems for report in await verify(memory.store(), KEY))


@on_loop
async def test_a_stale_owner_notices_its_successor_at_its_next_sync(memory):
    journal = await started(memory.store(), settings=RELAXED)
    await write(journal, b"one")
    heir = await started(memory.store(), settings=RELAXED)
    with pytest.raises(Fenced):
        await journal.sync()
    assert (journal.unsynced > 0, journal.synced_offset) == (True, 0)
    assert await blobs(heir) == [b"oneoneone"]


@on_loop
async def test_a_failed_sync_is_fatal_and_may_lose_unsynced_entries(memory):
    failing = False

    async def hook(step: Step, journal: str) -> None:
        if failing and step is Step.SYNC:
            raise SyncFailed(journal, "I/O error")

    journal = await started(memory.store(hook), settings=RELAXED)
    await write(journal, b"one")
    await journal.sync()
    await write(journal, b"two")
    failing = True
    with pytest.raises(SyncFailed):
        await journal.sync()
    failing = False
    with pytest.raises(SyncFailed):
        journal.stage(b"three", b"three")
    with pytest.raises(SyncFailed):
        await journal.sync()
    assert await blobs(await open_journal(memory.store())) == [b"oneoneone"]


@on_loop
async def test_a_failed_sync_of_a_file_kills_its_writer(files, monkeypatch):
    journal = await started(files.store(), settings=RELAXED)
    await write(journal, b"one")

    def fail(fd: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(SyncFailed):
        await journal.sync()
    monkeypatch.undo()
    with pytest.raises(SyncFailed):
        await journal._writer.append_unsynced([b"x"], confirm=1)
    with pytest.raises(SyncFailed):
        await journal._writer.sync(confirm=1, mark=b"")


@on_loop
async def test_a_cancelled_sync_leaves_the_journal_unusable(memory):
    gate = asyncio.Event()

    async def hook(step: Step, journal: str) -> None:
        if step is Step.SYNC and gate.is_set():
            await asyncio.Event().wait()

    journal = await started(memory.store(hook), settings=RELAXED)
    await write(journal, b"one")
    gate.set()
    syncing = asyncio.ensure_future(journal.sync())
    await asyncio.sleep(0)
    syncing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await syncing
    with pytest.raises(SyncFailed, match="cancelled"):
        journal.stage(b"two")


DEEDS = st.lists(
    st.one_of(st.integers(0, 2_000), st.just("sync"), st.just("name")), min_size=1, max_size=25
)


async def _life(backend: MemoryBackend, deeds: list[int | str]) -> tuple[Journal, int]:
    """A relaxed journal's first ledger; returns how many records were synced, too."""
    chosen = JournalSettings(sync_interval_ms=1000, unsynced_bytes=6_000)
    journal = await started(backend.store(), settings=chosen)
    synced = 0
    for number, deed in enumerate(deeds):
        if deed == "sync":
            await journal.sync()
        elif deed == "name":
            await write(journal, b"%d" % number, blob=None)
        else:
            await write(journal, b"%d" % number, blob=b"%d," % number * (int(deed) // 3))
        synced = synced if journal.unsynced else journal.next_sequence
    return journal, synced


@given(DEEDS, st.randoms(use_true_random=False), st.sampled_from([0.1, 0.5, 0.9]))
@settings(max_examples=150, deadline=None)
def test_a_power_loss_removes_a_suffix_of_unsynced_entries(deeds, dice, share):
    asyncio.run(_lose_power(deeds, dice, share))


async def _lose_power(deeds, dice, share) -> None:
    backend = MemoryBackend()
    _, synced = await _life(backend, deeds)
    written = [b"%d" % number for number, deed in enumerate(deeds) if deed != "sync"]
    backend.disk.power_loss(lambda count: [n for n in range(count) if dice.random() < share])
    journal = await open_journal(backend.store(), settings=RELAXED)
    kept = events_of(journal)
    await journal.start({"events": b"\n".join(kept)}, b"digest")
    assert kept == written[: len(kept)]
    assert len(kept) >= synced
    # The next data is of another ledger, and intact.
    await write(journal, b"next")
    await journal.sync()
    backend.disk.power_loss()
    assert events_of(await open_journal(backend.store())) == [*kept, b"next"]
    assert all(not report.problems for report in await verify(backend.store(), KEY))


@given(DEEDS, st.data())
@settings(max_examples=150, deadline=None)
def test_damage_in_synced_data_is_refused(deeds, data):
    asyncio.run(_damage(deeds, data))


async def _damage(deeds, data) -> None:
    """A bit flips in a frame; the mark, or what a later frame says, tells whether it was synced."""
    backend = MemoryBackend()
    journal, _ = await _life(backend, deeds)
    ledger = journal.ledgers[-1]
    if ledger.bytes == ledger.data_offset:
        return
    mark = _mark(backend, journal)
    if data.draw(st.booleans()):
        backend.put_mark(ledger.ledger_id, None)
        mark = None
    raw = bytearray(backend.content(ledger.ledger_id))
    flipped = data.draw(st.integers(ledger.data_offset, ledger.bytes - 1))
    raw[flipped] ^= 1 << data.draw(st.integers(0, 7))
    backend.put(ledger.ledger_id, bytes(raw))
    synced = max(mark.end if mark is not None else 0, _said_to_be_synced(bytes(raw)))
    if flipped < synced:
        with pytest.raises(CorruptJournal):
            await open_journal(backend.store())
        assert backend.content(ledger.ledger_id) == bytes(raw)
        return
    kept = events_of(await open_journal(backend.store()))
    written = [b"%d" % number for number, deed in enumerate(deeds) if deed != "sync"]
    assert kept == written[: len(kept)]


def _said_to_be_synced(raw: bytes) -> int:
    """How far the frame headers that there are say that the ledger was synced."""
    header = frames.decode_ledger_header("", raw)
    synced, at = 0, raw.find(b"\x9eVLF")
    while at >= 0:
        found = frames.decode_frame_header(header.salt, at, raw, at)
        if found is not None:
            synced = max(synced, at - found.lag)
        at = raw.find(b"\x9eVLF", at + 1)
    return synced
