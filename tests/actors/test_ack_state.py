"""Durable acknowledgements of a subscription persist across kills and losses at any step."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from tests.actors.acknowledging import END, KEY, SMALL, acked, begin, small_segments
from tests.journal.testing import on_loop
from velaray.actors.runtime import Runtime, RuntimeFault
from velaray.actors.subscription.machine import Ack, AckBefore, SubscriptionState
from velaray.events.segments import StoredSegment
from velaray.journal import checkpoint, journal
from velaray.journal.errors import CorruptJournal, JournalError, StorageFull, SyncFailed
from velaray.journal.files import FileStore
from velaray.journal.journal import JournalSettings
from velaray.journal.memory import MemoryDisk, MemoryStore, Step, TornWrite

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    small_segments(monkeypatch.setattr)


class Died(Exception):
    """The process is gone."""


class Trap:
    """A hook that fails at one step of a store's checkpoints, counted from 1."""

    def __init__(self, at: int, error: str) -> None:
        self.left = at
        self.error = error
        self.armed = False
        self.sprung: Step | None = None

    async def __call__(self, step: Step, name: str) -> None:
        self.armed = self.armed or step is Step.CREATE
        if not self.armed or self.sprung is not None:
            return
        self.left -= 1
        if self.left == 0:
            self.sprung = step
            if self.error == "died":
                raise TornWrite(300) if step in (Step.WRITE, Step.MARK) else Died
            raise SyncFailed("disk", "an I/O error")


async def _live(disk: MemoryDisk, trap: Trap, seed: int, confirmed: set[int]) -> set[int]:
    """Acknowledge until the trap springs; what was tried at that moment."""
    ended = asyncio.Event()

    def fatal(error: BaseException) -> None:
        ended.set()

    runtime = await begin(MemoryStore(disk, seed=seed), SMALL, fatal)
    store = runtime.journal._store  # type: ignore[union-attr]
    store.hook = trap
    rng = Random(seed)
    for _ in range(40):
        tried = {rng.randrange(END) for _ in range(rng.randint(1, 6))}
        command = Ack(END, [(offset, offset + 1) for offset in sorted(tried)])
        try:
            await runtime.ask(command)
        except (Died, TornWrite, JournalError, RuntimeFault):
            return tried
        confirmed |= tried
    assert not ended.is_set()
    await runtime.close()
    return set()


@pytest.mark.parametrize("error", ["died", "failed"])
@on_loop
async def test_no_acknowledged_entry_is_redelivered_after_a_crash_at_any_step_of_a_checkpoint(
    error,
) -> None:
    """K1, K2: a crash or a failed disk at each step that storing a checkpoint takes."""
    sprung: set[Step] = set()
    for at in range(1, 70):
        disk, confirmed = MemoryDisk(), set[int]()
        trap = Trap(at, error)
        tried = await _live(disk, trap, at, confirmed)
        disk.power_loss()
        runtime = await begin(MemoryStore(disk, seed=1_000))
        found = await acked(runtime)
        assert confirmed <= found <= confirmed | tried, (at, trap.sprung)
        runtime.state.cursor.check()
        await runtime.close()
        if trap.sprung is not None:
            sprung.add(trap.sprung)
    assert {Step.CREATE, Step.WRITE, Step.SYNC, Step.WRITE_MANIFEST, Step.WRITE_INDEX} <= sprung


@on_loop
async def test_a_full_disk_during_checkpoints_loses_nothing() -> None:
    disk, refuse = MemoryDisk(), False

    async def hook(step: Step, name: str) -> None:
        if refuse and step in (Step.CREATE, Step.WRITE_MANIFEST):
            raise StorageFull("disk", "no space")

    runtime = await begin(MemoryStore(disk, hook=hook))
    expected: set[int] = set()
    for offset in range(1, 200, 2):
        refuse = offset % 40 > 20
        reply = await runtime.ask(Ack(END, [(offset, offset + 1)]))
        if hasattr(reply, "ranges"):
            expected.add(offset)
    assert await acked(runtime) == expected and len(expected) > 50
    await runtime.close()
    again = await begin(MemoryStore(disk))
    assert await acked(again) == expected
    await again.close()


@on_loop
async def test_batched_acknowledgements_report_each_entry_once_and_lose_none() -> None:
    """Individual and cumulative ones race with roll-overs: every order is one after the other."""
    disk, rng = MemoryDisk(), Random(5)
    runtime = await begin(MemoryStore(disk))
    told: list[int] = []
    asked: set[int] = set()
    for step in range(0, 200, 10):
        whole = [rng.randrange(step, END) for _ in range(12)]
        masks = [(rng.randrange(400, END), rng.randrange(4)) for _ in range(4)]
        commands = [
            *(Ack(END, [(offset, offset + 1)]) for offset in whole),
            *(Ack(END, (), [mask]) for mask in masks),
            AckBefore(END, step),
        ]
        rng.shuffle(commands)
        asked |= {*whole, *range(step)}
        told_before = await acked(runtime)
        for reply in await asyncio.gather(*map(runtime.ask, commands)):
            told += [at for first, end in reply.ranges for at in range(first, end)]
        assert await acked(runtime) >= told_before | asked
    individually = [at for at in told if at >= 200]
    assert len(individually) == len(set(individually))
    found = await acked(runtime)
    assert found == asked | set(told)
    assert runtime.stats.rolls > 5
    runtime.abort()
    disk.power_loss()
    again = await begin(MemoryStore(disk))
    assert await acked(again) == found
    await again.close()


@on_loop
async def test_memory_stays_within_the_budget_by_early_checkpoints() -> None:
    """Without a roll for size, checkpoints are taken when too much is dirty, and not else."""
    settings = JournalSettings(early_records=6)
    runtime = await begin(MemoryStore(MemoryDisk()), settings)
    acked_ranges = runtime.state.cursor.beyond
    for offset in range(1, 16):
        await runtime.ask(Ack(END, [(offset, offset + 1)]))
    assert runtime.stats.rolls == 0 and acked_ranges.cold_count() == 0
    rng, most = Random(7), 0
    for _ in range(150):
        offset = rng.randrange(1, END)
        await runtime.ask(Ack(END, [(offset, offset + 1)]))
        most = max(most, acked_ranges.memory())
    assert runtime.stats.rolls > 5 and acked_ranges.cold_count() > 10
    assert most < 3_000 + 8 * 1_000  # the budget, and six acknowledgements of a segment each
    await runtime.ask(AckBefore(END, END))
    assert runtime.state.cursor.acked_before == END and not acked_ranges
    await runtime.close()


async def _with_cold_segments(
    store: MemoryStore, fatal: list[BaseException]
) -> Runtime[SubscriptionState]:
    runtime = await begin(store, SMALL, fatal.append)
    for offset in range(1, END, 3):
        await runtime.ask(Ack(END, [(offset, offset + 1)]))
    assert runtime.state.cursor.beyond.cold_count() > 20
    return runtime


async def _lose_a_cold_segment(disk: MemoryDisk) -> tuple[set[int], StoredSegment]:
    """An actor comes across a damaged segment, and ends; what was acknowledged, and its place."""
    fatal: list[BaseException] = []
    runtime = await _with_cold_segments(MemoryStore(disk), fatal)
    known = set(range(1, END, 3))
    acked_ranges = runtime.state.cursor.beyond
    cold = min(number for number in acked_ranges._segments if number not in acked_ranges._recent)
    place = acked_ranges._segments[cold].stored
    assert place is not None
    file = disk._file(KEY.text(), place.ledger_id)
    for content in (file.seen, file.durable):
        content[place.offset + 1] ^= 1
    with pytest.raises(CorruptJournal, match=f"holes/{cold}"):
        await runtime.ask(Ack(END, [(cold * 16 + 3, cold * 16 + 4)]))
    assert isinstance(fatal[0], CorruptJournal)
    await runtime.close()
    return known, place


@on_loop
async def test_a_lost_segment_ends_the_actor_and_recovery_replays_older_events() -> None:
    """K3, K4: the checkpoint before and all events since give the same state, and it is said."""
    disk = MemoryDisk()
    known, place = await _lose_a_cold_segment(disk)
    runtime = await begin(MemoryStore(disk))
    assert await acked(runtime) == known
    location = MemoryStore(disk).location(KEY.text(), place.ledger_id)
    assert {damage.file for damage in runtime.damaged} == {location}
    await runtime.close()
    again = await begin(MemoryStore(disk))  # what recovery wrote needs nothing damaged
    assert await acked(again) == known and not again.damaged
    await again.close()


@on_loop
async def test_a_lost_segment_without_the_events_before_it_is_refused() -> None:
    """K3: never back to the earliest; file and byte are named, and nothing is changed."""
    disk = MemoryDisk()
    _, place = await _lose_a_cold_segment(disk)
    for number in disk._files(KEY.text()).ledgers:
        if number < place.ledger_id:
            file = disk._file(KEY.text(), number)
            for content in (file.seen, file.durable):
                content[200] ^= 1
    before = {number: bytes(file.seen) for number, file in disk._files(KEY.text()).ledgers.items()}
    for _ in range(2):
        with pytest.raises(CorruptJournal) as caught:
            await begin(MemoryStore(disk))
        assert caught.value.file == MemoryStore(disk).location(KEY.text(), place.ledger_id)
        assert caught.value.offset == place.offset
    after = {number: bytes(file.seen) for number, file in disk._files(KEY.text()).ledgers.items()}
    assert after == before


@on_loop
async def test_more_acked_ranges_than_pulsar_would_keep_survive_a_crash(monkeypatch) -> None:
    """30,000 holes, three times what Pulsar stores of a cursor: none is dropped."""
    monkeypatch.undo()  # with segments as they are
    disk, end = MemoryDisk(), 60_000
    runtime = await begin(MemoryStore(disk))
    await runtime.ask(Ack(end, [(offset, offset + 1) for offset in range(1, end, 2)]))
    for _ in range(2):
        runtime.abort()
        disk.power_loss()
        runtime = await begin(MemoryStore(disk))
        cursor = runtime.state.cursor
        assert cursor.acked_range_count() == 30_000 and cursor.backlog(end) == 30_000
        assert all(cursor.is_acked(offset) == bool(offset % 2) for offset in range(end))
    await runtime.close()


@on_loop
async def test_one_more_acknowledgement_writes_one_segment_and_the_marker(monkeypatch) -> None:
    written: list[dict[str, int]] = []
    original = checkpoint.encode_checkpoint

    def encode(header, sequence, segments, *others):
        sizes = {name: len(kept) for name, kept in segments.items() if isinstance(kept, bytes)}
        written.append(sizes)
        return original(header, sequence, segments, *others)

    monkeypatch.setattr(journal, "encode_checkpoint", encode)
    monkeypatch.setattr(journal, "MAX_REFERRED", 16)
    disk = MemoryDisk()
    runtime = await begin(MemoryStore(disk))
    await runtime.ask(Ack(END, [(offset, offset + 1) for offset in range(1, END, 2)]))
    await runtime.close()
    runtime = await begin(MemoryStore(disk))
    await runtime.ask(Ack(END, [(302, 303)]))
    await runtime.close()
    runtime = await begin(MemoryStore(disk))
    assert set(written[-1]) == {"cursor", f"holes/{302 // 16}"}
    await runtime.close()
    await (await begin(MemoryStore(disk))).close()
    assert set(written[-1]) == {"cursor"}


def test_no_confirmed_ack_is_redelivered_after_sigkill(tmp_path: Path) -> None:
    """Real files, a real process, killed in the middle of what it does."""
    confirmed: set[int] = set()
    for life in range(2):
        arguments = [sys.executable, "-m", "tests.actors.acker_process", str(tmp_path), str(life)]
        process = subprocess.Popen(
            arguments, cwd=ROOT, stdout=subprocess.PIPE, text=True, env=dict(os.environ)
        )
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n"
            for _ in range(60 + 17 * life):  # more checkpoints than a marker may refer to
                confirmed.add(int(process.stdout.readline()))
        finally:
            process.kill()
            rest = process.communicate()[0]
        confirmed |= {int(line) for line in rest.splitlines()}
        found = asyncio.run(_found(tmp_path))
        assert confirmed <= found and len(found - confirmed) <= 1
        confirmed = found
    assert len(confirmed) > 130


async def _found(directory: Path) -> set[int]:
    store = FileStore(directory)
    runtime = await begin(store)
    try:
        return await acked(runtime)
    finally:
        await runtime.close()
        await store.close()
