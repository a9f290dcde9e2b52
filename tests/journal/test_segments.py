"""Checkpoints in segments: what didn't change stays where it is, and is found there again."""

from __future__ import annotations

import pytest

from tests.journal.testing import KEY, MemoryBackend, on_disks, on_loop, open_journal, write
from velaray.events.segments import Segment
from velaray.journal import journal as module
from velaray.journal.checkpoint import read_segment
from velaray.journal.errors import CorruptJournal, Fenced, NotStored, StorageFull, SyncFailed
from velaray.journal.journal import Journal
from velaray.journal.memory import Step, TornWrite
from velaray.journal.replay import checkpoint_of, verify

SIZE = 1_000
STATE = {f"part/{number}": bytes([number]) * SIZE for number in range(6)}


def changed(journal: Journal, **new: bytes) -> dict[str, Segment]:
    """The last checkpoint's segments by place, except some new ones."""
    return {**journal.stored, **{f"part/{name[1:]}": body for name, body in new.items()}}


async def begun(backend, **options) -> Journal:
    journal = await open_journal(backend.store(**options))
    await journal.start(STATE, b"digest")
    await write(journal, b"event")
    return journal


async def holds(backend, stored, segments) -> None:
    """Each segment is where it is said to be."""
    assert stored.keys() == segments.keys()
    for name, place in stored.items():
        assert await read_segment(backend.store(), KEY, place) == segments[name]


async def state_of(backend) -> dict[str, bytes]:
    checkpoint = (await open_journal(backend.store())).recovered.checkpoint
    assert checkpoint is not None
    await holds(backend, checkpoint.stored, checkpoint.segments)
    return checkpoint.segments


@on_loop
async def test_only_new_segments_are_written(backend):
    journal = await begun(backend)
    first = journal.ledgers[0].ledger_id
    before = journal._store.counters.bytes_written
    second = await journal.roll(changed(journal, p2=b"new" * 10), b"digest")
    # A marker row is a name, an address and a digest.
    assert journal._store.counters.bytes_written - before < 30 + 60 * len(STATE) + 600
    assert journal.referred == {first, second}
    assert journal.ledgers[-1].refers_from == first
    assert await state_of(backend) == {**STATE, "part/2": b"new" * 10}


@on_loop
async def test_a_segment_that_is_no_longer_named_is_dropped(backend):
    journal = await begun(backend)
    left = {name: place for name, place in journal.stored.items() if name > "part/3"}
    second = await journal.roll(left, b"digest")
    found = await checkpoint_of(backend.store(), KEY, second)
    assert found.segments == {name: STATE[name] for name in left}
    third = await journal.roll({"part/9": b"nine"}, b"digest")
    assert journal.referred == {third} and journal.ledgers[-1].refers_from == third
    assert await state_of(backend) == {"part/9": b"nine"}


@on_loop
async def test_no_ledger_is_referred_to_for_ever(backend, monkeypatch):
    """What lies in the oldest ledgers is copied, so that they can be deleted one day."""
    monkeypatch.setattr(module, "MAX_REFERRED", 3)
    journal = await begun(backend)
    state: dict[str, bytes] = dict(STATE)
    for number in range(12):
        await write(journal, b"event")
        state["part/0"] = b"%d" % number
        await journal.roll(changed(journal, p0=state["part/0"]), b"digest")
        listed = [info.ledger_id for info in journal.ledgers]
        assert journal.referred <= set(listed[-4:])
        assert journal.ledgers[-1].refers_from == min(journal.referred)
        await holds(backend, journal.stored, state)
    for ledger_id in [info.ledger_id for info in journal.ledgers][:-4]:
        await journal._store.delete_ledger(KEY, ledger_id)
    assert await state_of(backend) == state


@on_loop
async def test_the_next_owner_refers_to_what_the_former_one_wrote(backend):
    journal = await begun(backend)
    first = journal.ledgers[0].ledger_id
    successor = await open_journal(backend.store())
    recovered = successor.recovered.checkpoint
    await successor.start(recovered.stored, b"digest")
    assert successor.referred == {first}
    assert (await checkpoint_of(backend.store(), KEY, first)).segments == STATE
    assert await state_of(backend) == STATE


def _damage(backend, journal: Journal, name: str) -> tuple[str, int]:
    """Change a byte of a stored segment; returns where that is."""
    place = journal.stored[name]
    content = bytearray(backend.content(place.ledger_id))
    content[place.offset + 5] ^= 1
    backend.put(place.ledger_id, bytes(content))
    return backend.store().location(KEY, place.ledger_id), place.offset


@on_disks
@on_loop
async def test_a_missing_segment_falls_back_to_the_previous_checkpoint_and_its_events(backend):
    """Not the earliest state, and not one that lacks something: the same, in another way."""
    journal = await begun(backend)
    await journal.roll(changed(journal, p1=b"one"), b"digest")
    await write(journal, b"second", b"third")
    file, _ = _damage(backend, journal, "part/1")
    recovered = (await open_journal(backend.store())).recovered
    assert recovered.checkpoint.segments == STATE
    assert [record.event for record in recovered.records] == [b"event", b"second", b"third"]
    assert [damage.file for damage in recovered.damaged] == [file]


@on_disks
@on_loop
async def test_a_damaged_segment_that_all_checkpoints_need_is_refused(backend):
    """Never silently back to the earliest: file and byte are named, nothing is changed."""
    journal = await begun(backend)
    await journal.roll(changed(journal, p1=b"one"), b"digest")
    await journal.roll(changed(journal, p1=b"two"), b"digest")
    file, offset = _damage(backend, journal, "part/4")
    for _ in range(2):
        with pytest.raises(CorruptJournal, match="segment 'part/4' is damaged") as caught:
            await open_journal(backend.store())
        assert (caught.value.file, caught.value.offset) == (file, offset)


@on_disks
@on_loop
async def test_a_lost_ledger_that_has_a_segment_is_refused(backend):
    journal = await begun(backend)
    first = journal.ledgers[0].ledger_id
    await journal.roll(changed(journal, p1=b"one"), b"digest")
    await backend.store().delete_ledger(KEY, first)
    # The newest checkpoint needs it, and so does every other way to the state.
    with pytest.raises(NotStored, match=str(first)):
        await open_journal(backend.store())


@on_loop
async def test_a_lost_ledger_before_the_needed_one_does_no_harm(backend):
    journal = await begun(backend)
    await journal.roll(STATE, b"digest")
    await journal.roll(changed(journal, p1=b"one"), b"digest")
    await backend.store().delete_ledger(KEY, journal.ledgers[0].ledger_id)
    assert await state_of(backend) == {**STATE, "part/1": b"one"}


@on_disks
@on_loop
async def test_reading_a_lost_segment_raises(backend):
    journal = await begun(backend)
    _damage(backend, journal, "part/3")
    assert await journal.read_segment(journal.stored["part/2"]) == STATE["part/2"]
    with pytest.raises(CorruptJournal, match="segment 'part/3' is damaged"):
        await journal.read_segment(journal.stored["part/3"])
    await backend.store().delete_ledger(KEY, journal.stored["part/2"].ledger_id)
    with pytest.raises(CorruptJournal, match="segment 'part/2' is gone"):
        await journal.read_segment(journal.stored["part/2"])


@on_disks
@on_loop
async def test_a_segment_that_a_newer_owner_removed_is_not_damage(backend):
    journal = await begun(backend)
    place = journal.stored["part/2"]
    newer = await open_journal(backend.store())
    await newer.start(STATE, b"digest")
    await backend.store().delete_ledger(KEY, place.ledger_id)
    with pytest.raises(Fenced):
        await journal.read_segment(place)
    with pytest.raises(Fenced):
        await write(journal, b"event")


@on_disks
@on_loop
async def test_a_former_owner_that_copies_a_removed_segment_is_fenced(backend, monkeypatch):
    monkeypatch.setattr(module, "MAX_REFERRED", 1)
    journal = await begun(backend)
    await journal.roll(changed(journal, p1=b"one"), b"digest")
    newer = await open_journal(backend.store())
    await newer.start(STATE, b"digest")
    await backend.store().delete_ledger(KEY, journal.stored["part/2"].ledger_id)
    with pytest.raises(Fenced):
        await journal.roll(journal.stored, b"digest")


@on_disks
@on_loop
async def test_a_segment_that_cannot_be_copied_stops_the_roll(backend, monkeypatch):
    monkeypatch.setattr(module, "MAX_REFERRED", 1)
    journal = await begun(backend)
    await journal.roll(changed(journal, p1=b"one"), b"digest")
    _damage(backend, journal, "part/3")
    with pytest.raises(CorruptJournal, match="segment 'part/3'"):
        await journal.roll(journal.stored, b"digest")
    assert len(journal.ledgers) == 2


@on_disks
@on_loop
async def test_verifying_reads_what_checkpoints_refer_to(backend):
    journal = await begun(backend)
    await journal.roll(changed(journal, p1=b"one"), b"digest")
    reports = await verify(backend.store(), KEY)
    assert [(report.segments, report.kept_segments) for report in reports] == [(6, 0), (6, 5)]
    _damage(backend, journal, "part/4")
    first, second = await verify(backend.store(), KEY)
    assert first.problems and "segment 'part/4'" in second.problems[0]


class Died(Exception):
    """The process is gone."""


FAULTS = {
    "full": lambda step: StorageFull("disk", "no space"),
    "failed": lambda step: SyncFailed("disk", "an I/O error"),
    "died": lambda step: TornWrite(700) if step in (Step.WRITE, Step.MARK) else Died(),
}
WRITES = (Step.CREATE, Step.WRITE, Step.WRITE_MANIFEST, Step.WRITE_INDEX)


@pytest.mark.parametrize("fault", FAULTS)
@on_loop
async def test_each_step_of_a_checkpoint_may_fail(fault):
    """K7. After any failure the state is the former or the new one, and commands continue."""
    steps = 0
    for failing in range(1, 40):
        backend = MemoryBackend()
        journal = await begun(backend)
        steps = 0

        async def hook(step: Step, name: str, failing: int = failing) -> None:
            nonlocal steps
            steps += 1
            if steps == failing and (fault != "full" or step in WRITES):
                raise FAULTS[fault](step)

        journal._store.hook = hook
        after = {**STATE, "part/1": b"one"}
        try:
            await journal.roll(changed(journal, p1=b"one"), b"digest")
        except StorageFull:
            journal._store.hook = None
            await write(journal, b"goes on")
            await journal.roll(changed(journal, p1=b"one"), b"digest")
            assert await state_of(backend) == after
        except (SyncFailed, Died, TornWrite):
            backend.disk.power_loss()
        assert await state_of(backend) in (STATE, after)
        if steps < failing:
            break
    assert 5 < steps < 30
