"""Reading a journal without owning it."""

import hashlib

import pytest

from tests.journal.testing import KEY, on_disks, on_loop, started, write
from velaray.events.ids import Position
from velaray.journal.errors import CorruptJournal, NotStored
from velaray.journal.journal import Journal
from velaray.journal.replay import checkpoint_of, load_manifest, replay, verify


class Hashing:
    """A machine whose state is a hash chain over its events."""

    def __init__(self) -> None:
        self.state = b""

    def restore(self, checkpoint) -> None:
        self.state = checkpoint.segments.get("state", b"")

    def apply(self, record) -> None:
        self.state = hashlib.sha256(self.state + record.event).digest()

    def digest(self) -> bytes:
        return self.state[:8]


async def _journal(backend, *, wrong_digest: bool = False):
    journal = await started(backend.store())
    live = Hashing()
    await journal.roll({"state": live.state}, live.digest())
    for i in range(12):
        event = b"e%d" % i
        journal.stage(event, event * 2 if i % 3 else None)
        live.state = hashlib.sha256(live.state + event).digest()
        if i % 2:
            await journal.commit()
        if i in (5, 9):
            digest = b"wrong!!!" if wrong_digest and i == 9 else live.digest()
            await journal.roll({"state": live.state}, digest)
    return journal


@on_loop
async def test_replay_returns_the_whole_history_with_blobs(backend):
    journal = await _journal(backend)
    store = backend.store()
    found = [record async for record in replay(store, KEY)]
    assert [(r.sequence, r.event) for r in found] == [(i, b"e%d" % i) for i in range(12)]
    assert [bytes(r.blob) if r.blob is not None else None for r in found] == [
        b"e%d" % i * 2 if i % 3 else None for i in range(12)
    ]
    ids = [info.ledger_id for info in journal.ledgers]
    assert found[1].position == Position(ids[1], 0) and found[0].position is None
    late = [record.sequence async for record in replay(store, KEY, ids[2])]
    assert late == list(range(6, 12))
    assert (await checkpoint_of(store, KEY, ids[2])).sequence == 6
    await write(journal, b"the owner was not disturbed")


@on_loop
async def test_a_missing_journal_or_ledger_is_named(backend):
    await _journal(backend)
    store = backend.store()
    with pytest.raises(NotStored, match="nobody"):
        await load_manifest(store, "partition/public/default/nobody/0/1")
    with pytest.raises(NotStored, match="ledger 5"):
        await checkpoint_of(store, KEY, 5)
    with pytest.raises(NotStored, match="ledger 5"):
        [record async for record in replay(store, KEY, 5)]


@on_loop
async def test_verify_finds_a_sound_journal_sound(backend):
    journal = await _journal(backend)
    reports = await verify(backend.store(), KEY, None)
    assert [report.problems for report in reports] == [[], [], [], []]
    assert [(r.records, r.entries, r.bytes) for r in reports] == [
        (info.records, info.entries, info.bytes) for info in journal.ledgers
    ]
    assert [report.checkpoint_sequence for report in reports] == [0, 0, 6, 10]


@on_loop
async def test_verify_compares_digests_through_a_fold(backend):
    await _journal(backend)
    reports = await verify(backend.store(), KEY, Hashing())
    assert [report.problems for report in reports] == [[], [], [], []]


@on_disks
@on_loop
async def test_verify_names_a_divergence_and_a_damaged_frame(backend):
    journal = await _journal(backend, wrong_digest=True)
    reports = await verify(backend.store(), KEY, Hashing())
    assert [len(report.problems) for report in reports] == [0, 0, 0, 1]
    assert "at sequence 10" in reports[3].problems[0]
    info = journal.ledgers[1]
    content = bytearray(backend.content(info.ledger_id))
    content[info.bytes - 1] ^= 1
    backend.put(info.ledger_id, bytes(content))
    reports = await verify(backend.store(), KEY, None)
    assert [len(report.problems) for report in reports] == [0, 1, 0, 0]
    assert f"{info.ledger_id}.ledger: corrupt at byte" in reports[1].problems[0]
    with pytest.raises(CorruptJournal):
        [record async for record in replay(backend.store(), KEY)]


@on_loop
async def test_history_includes_the_times_of_events(backend):
    clock = [0]
    journal = await Journal.open(backend.store(), KEY, clock_ms=lambda: clock[0])
    await journal.start({}, b"digest")
    for clock[0] in (1_000, 2_500, 2_400):
        await write(journal, b"first", b"second of the same frame")
    times = [record.at_ms async for record in replay(backend.store(), KEY)]
    assert times == [1_000, 1_000, 2_500, 2_500, 2_400, 2_400]
    await journal.close()
