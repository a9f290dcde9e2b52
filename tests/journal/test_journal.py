"""A journal's own behaviour, on every backend."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.journal.testing import (
    KEY,
    MemoryBackend,
    blobs,
    events_of,
    on_loop,
    open_journal,
    started,
)
from tests.journal.testing import write as write_events
from velaray.events.ids import EARLIEST, LATEST, Position
from velaray.journal import frames
from velaray.journal.errors import CorruptJournal, Fenced, Misuse
from velaray.journal.journal import Journal, JournalSettings
from velaray.journal.memory import MemoryStore

OTHER = "subscription/public/default/orders/0/1/billing/1"


@on_loop
async def test_a_new_journal_is_empty(backend):
    journal = await open_journal(backend.store())
    assert journal.recovered.checkpoint is None and journal.recovered.records == []
    assert (journal.epoch, journal.ledgers, journal.next_sequence) == (1, (), 0)
    with pytest.raises(Misuse, match="before start"):
        journal.stage(b"e")
    with pytest.raises(Misuse, match="before start"):
        await journal.commit()
    assert not await journal.read(EARLIEST, 10, 1000)


@on_loop
async def test_committed_records_are_recovered(backend):
    journal = await started(backend.store())
    assert [journal.stage(b"a", b"A"), journal.stage(b"b"), journal.stage(b"", b"")] == [0, 1, 2]
    assert await journal.commit() == 2
    assert await journal.commit() == 2
    assert await write_events(journal, b"d") == 3
    journal.stage(b"never committed")
    successor = await open_journal(backend.store())
    first = journal.ledgers[0].ledger_id
    assert successor.recovered.records == [
        (0, Position(first, 0), b"a"),
        (1, None, b"b"),
        (2, Position(first, 1), b""),
        (3, Position(first, 2), b"d"),
    ]
    assert successor.recovered.checkpoint.segments == {"events": b""}
    assert (successor.next_sequence, successor.next_offset, successor.epoch) == (4, 3, 2)


@on_loop
async def test_a_checkpoint_carries_the_state_and_the_digest(backend):
    journal = await started(backend.store())
    await write_events(journal, b"a", b"b")
    segments = {"x": b"1" * 3_000_000, "y": b"2" * 3_000_000, "z": b"", "ü": b"4" * 9_000_000}
    await journal.roll(segments, b"the digest")
    await write_events(journal, b"c")
    recovered = (await open_journal(backend.store())).recovered
    assert recovered.checkpoint.segments == segments
    assert (recovered.checkpoint.digest, recovered.checkpoint.sequence) == (b"the digest", 2)
    assert [(r.sequence, r.event) for r in recovered.records] == [(2, b"c")]


@on_loop
async def test_ledgers_are_numbered_counted_and_sealed(backend):
    store = backend.store()
    journal = await started(store)
    await write_events(journal, b"a", b"b")
    await write_events(journal, b"no entry", blob=None)
    await journal.roll({}, b"")
    await write_events(journal, b"c")
    first, second = journal.ledgers
    assert second.ledger_id == first.ledger_id + 1
    assert first.ledger_id >> 24 >= 1
    assert (first.records, first.entries, first.sealed, first.sealed_ms) == (3, 2, True, 1_000)
    assert (second.first_sequence, second.first_offset, second.sealed) == (3, 2, False)
    assert (second.records, second.entries) == (1, 1)
    other = await started(store, "partition/public/default/orders/1/1")
    assert other.ledgers[0].ledger_id >> 24 != first.ledger_id >> 24


@on_loop
async def test_should_roll_by_records_and_by_bytes(backend):
    by_records = await started(backend.store(), settings=JournalSettings(roll_records=3))
    await write_events(by_records, b"a", b"b")
    assert not by_records.should_roll
    await write_events(by_records, b"c")
    assert by_records.should_roll
    await by_records.roll({"events": b"a\nb\nc"}, b"")
    assert not by_records.should_roll
    by_bytes = await started(backend.store(), settings=JournalSettings(roll_bytes=5_000))
    assert not by_bytes.should_roll
    await write_events(by_bytes, b"big", blob=bytes(5_000))
    assert by_bytes.should_roll


@on_loop
async def test_reads_by_position_within_limits_and_across_ledgers(backend):
    journal = await started(backend.store())
    names = [b"e%03d" % i for i in range(60)]
    for start in range(0, 60, 5):
        await write_events(journal, *names[start : start + 5])
        await write_events(journal, b"between", blob=None)
        if start in (20, 40):
            await journal.roll({}, b"")
    ids = [info.ledger_id for info in journal.ledgers]
    assert [info.entries for info in journal.ledgers] == [25, 20, 15]
    assert await blobs(journal) == [name * 3 for name in names]
    entries = await journal.read(Position(ids[1], 3), 2, 1 << 20)
    assert [(e.position, e.event, bytes(e.blob)) for e in entries] == [
        (Position(ids[1], 3), b"e028", b"e028" * 3),
        (Position(ids[1], 4), b"e029", b"e029" * 3),
    ]
    # An entry is 4 bytes of event and 12 of blob.
    assert len(await journal.read(Position(ids[0], 0), 100, 3 * 16)) == 3
    assert len(await journal.read(Position(ids[0], 0), 100, 3 * 16 + 15)) == 3
    assert len(await journal.read(Position(ids[0], 0), 100, 1)) == 1
    assert (await journal.read(Position(ids[0], 25), 1, 99))[0].position == Position(ids[1], 0)
    assert (await journal.read(Position(ids[1], -1), 1, 99))[0].position == Position(ids[1], 0)
    assert not await journal.read(Position(ids[2], 15), 1, 99)
    assert not await journal.read(LATEST, 1, 99)


@on_loop
async def test_small_reads_through_big_frames_in_any_order(backend):
    journal = await started(backend.store())
    for start in range(0, 30, 10):
        await write_events(journal, *[b"%d" % i for i in range(start, start + 10)])
    ledger_id = journal.ledgers[0].ledger_id
    for first in (15, 17, 3, 5, 5, 4, 29, 12, 0, 9, 10, 11, 20):
        entries = await journal.read(Position(ledger_id, first), 2, 1 << 20)
        assert [int(entry.event) for entry in entries] == list(range(first, min(first + 2, 30)))


@on_loop
async def test_a_run_of_entries_is_a_sequence(backend):
    journal = await started(backend.store())
    await write_events(journal, b"a", b"b", b"c")
    ledger_id = journal.ledgers[0].ledger_id
    run = await journal.read(Position(ledger_id, 1), 9, 1 << 20)
    assert (run.ledger_id, run.first, run.events) == (ledger_id, 1, [b"b", b"c"])
    assert [bytes(blob) for blob in run.blobs] == [b"bbb", b"ccc"]
    assert [entry.position.entry_id for entry in run] == [1, 2]
    assert run[-1] == run[1] == run[1:][0]
    with pytest.raises(IndexError):
        run[2]


@on_loop
async def test_a_read_needs_few_calls_and_few_bytes_more_than_its_entries(backend):
    store = backend.store()
    journal = await started(store)
    for _ in range(12):
        journal.stage(b"large", bytes(300_000))
        await journal.commit()
    large = journal.ledgers[-1].ledger_id
    await journal.roll({}, b"")
    for _ in range(10):
        journal.stage_all((b"small", bytes(200)) for _ in range(1000))
        await journal.commit()
    small = journal.ledgers[-1].ledger_id
    before, read = store.counters.reads, store.counters.bytes_read
    assert len(await journal.read(Position(large, 0), 100, 8 << 20)) == 12
    assert store.counters.reads - before <= 4
    assert store.counters.bytes_read - read < 2 * 12 * 300_000
    read = store.counters.bytes_read
    assert len(await journal.read(Position(small, 0), 100, 8 << 20)) == 100
    assert store.counters.bytes_read - read < 500_000


@on_loop
async def test_staged_and_uncommitted_entries_are_not_read(backend):
    journal = await started(backend.store())
    await write_events(journal, b"a")
    journal.stage(b"b", b"B")
    assert await blobs(journal) == [b"aaa"]


@on_loop
async def test_records_staged_during_a_commit_belong_to_the_next(backend):
    journal = await started(backend.store())
    journal.stage(b"a")
    commit = asyncio.ensure_future(journal.commit())
    await asyncio.sleep(0)
    assert journal.stage(b"b") == 1
    with pytest.raises(Misuse, match="during a commit"):
        await journal.commit()
    assert await commit == 0
    assert await journal.commit() == 1
    assert events_of(await open_journal(backend.store())) == [b"a", b"b"]


@on_loop
async def test_calls_out_of_order_are_refused_and_harmless(backend):
    journal = await started(backend.store())
    with pytest.raises(Misuse, match="use roll"):
        await journal.start({}, b"")
    journal.stage(b"a")
    with pytest.raises(Misuse, match="1 records are staged"):
        await journal.roll({}, b"")
    await journal.commit()
    roll = asyncio.ensure_future(journal.roll({"events": b"a"}, b""))
    await asyncio.sleep(0)
    with pytest.raises(Misuse, match="during a roll"):
        journal.stage(b"x")
    with pytest.raises(Misuse, match="during a roll"):
        await journal.commit()
    await roll
    await write_events(journal, b"b")
    await journal.close()
    await journal.close()
    with pytest.raises(Misuse, match="closed"):
        journal.stage(b"x")
    with pytest.raises(Misuse, match="closed"):
        await journal.start({}, b"")
    assert events_of(await open_journal(backend.store())) == [b"a", b"b"]


@on_loop
async def test_a_cancelled_commit_leaves_the_journal_unusable(backend):
    journal = await started(backend.store())
    journal.stage(b"a")
    commit = asyncio.ensure_future(journal.commit())
    await asyncio.sleep(0)
    commit.cancel()
    outcome = await asyncio.gather(commit, return_exceptions=True)
    if outcome != [0]:
        assert journal.failure is not None
        with pytest.raises(type(journal.failure)):
            await journal.commit()
    await journal.close()
    assert events_of(await open_journal(backend.store())) in ([], [b"a"])


@on_loop
async def test_any_operation_of_the_former_owner_is_fenced(backend):
    for action in ("commit", "roll", "start"):
        former = await open_journal(backend.store())
        if action != "start":
            await former.start({"events": b""}, b"")
        latter = await open_journal(backend.store())
        if action == "commit":
            former.stage(b"never acknowledged")
        with pytest.raises(Fenced):
            await (former.commit() if action == "commit" else getattr(former, action)({}, b""))
        with pytest.raises(Fenced):
            await former.roll({}, b"")
        assert latter.epoch == former.epoch + 1
        await latter.start({"events": b""}, b"")
        await write_events(latter, b"mine")
        await latter.roll({"events": b""}, b"")


@on_loop
async def test_reload_returns_the_durable_state_without_writing(backend):
    store = backend.store()
    journal = await started(store)
    await write_events(journal, b"a", b"b")
    await journal.roll({"events": b"a\nb"}, b"d2")
    await write_events(journal, b"c")
    journal.stage(b"ahead")
    written = store.counters.bytes_written
    recovered = await journal.reload()
    assert recovered.checkpoint.segments == {"events": b"a\nb"}
    assert [record.event for record in recovered.records] == [b"c"]
    assert store.counters.bytes_written == written


@on_loop
async def test_a_manifest_of_another_owner_is_refused(backend):
    store = backend.store()
    await started(store)
    stored = await store.read_manifest(KEY)
    await store.write_manifest("partition/public/default/other/0/1", 0, stored.data)
    with pytest.raises(CorruptJournal, match="another owner"):
        await open_journal(store, "partition/public/default/other/0/1")


record = st.tuples(st.binary(max_size=40), st.none() | st.binary(max_size=200))
action = st.one_of(
    st.lists(record, min_size=1, max_size=8), st.just("roll"), st.just("reopen"), st.just("crash")
)


@given(st.lists(action, max_size=14))
def test_any_history_is_kept_exactly(actions):
    asyncio.run(_history(actions))


async def _history(actions) -> None:
    backend = MemoryBackend()
    expected: list[tuple[bytes, bytes | None]] = []
    journal = await _open_and_check(backend.store(), expected)
    for step in actions:
        if step == "roll":
            await journal.roll({"n": b"%d" % len(expected)}, b"")
        elif step == "reopen":
            await journal.close()
            journal = await _open_and_check(backend.store(), expected)
        elif step == "crash":
            journal.stage(b"lost")
            backend.disk.power_loss()
            journal = await _open_and_check(backend.store(), expected)
        else:
            for event, blob in step:
                journal.stage(event, blob)
            expected += step
            assert await journal.commit() == len(expected) - 1
    assert await blobs(journal) == [blob for _, blob in expected if blob is not None]


async def _open_and_check(store: MemoryStore, expected) -> Journal:
    journal = await open_journal(store)
    checkpoint = journal.recovered.checkpoint
    known = int(checkpoint.segments["n"]) if checkpoint else 0
    events = [event for event, _ in expected]
    assert [r.event for r in journal.recovered.records] == events[known:]
    assert journal.next_sequence == len(expected)
    assert journal.next_offset == sum(blob is not None for _, blob in expected)
    assert await blobs(journal) == [blob for _, blob in expected if blob is not None]
    await journal.start({"n": b"%d" % len(expected)}, b"")
    return journal


@on_loop
async def test_the_owner_of_a_deleted_journal_is_superseded(backend):
    store = backend.store()
    journals = [await started(store), await Journal.open(store, OTHER, clock_ms=lambda: 0)]
    await write_events(journals[0], b"one")
    for key in (KEY, OTHER):
        await backend.store().delete_journal(key)
    for write in (journals[0].roll, journals[1].start):
        with pytest.raises(Fenced):
            await write({"events": b"one"}, b"digest")
    assert await store.list_journals() == []
    for journal in journals:
        await journal.close()


@on_loop
async def test_an_owner_can_check_whether_it_was_superseded(backend):
    first = await started(backend.store())
    assert await first.confirm()
    await write_events(first, b"one")
    _, known = await asyncio.gather(first.roll({"events": b"one"}, b"digest"), first.confirm())
    assert not known
    assert await first.confirm()
    second = await started(backend.store())
    with pytest.raises(Fenced):
        await first.confirm()
    assert not await first.confirm()
    with pytest.raises(Fenced):
        first.stage(b"event", None)
    assert await second.confirm()
    await first.close()
    await second.close()


@on_loop
async def test_large_blobs_are_written_without_copies_and_read_back_among_small_ones(backend):
    journal = await started(backend.store())
    sizes = [0, 1, frames.LARGE - 1, frames.LARGE, 100, 70_000, 70_000, 3]
    stored = [bytes([number + 1]) * size for number, size in enumerate(sizes)]
    for blob in stored:
        journal.stage(b"event", memoryview(blob))
    journal.stage(b"no blob")
    assert await journal.commit() == len(stored)
    assert await blobs(journal) == stored
    recovered = await open_journal(backend.store())
    assert events_of(recovered) == [b"event"] * len(stored) + [b"no blob"]
    assert await blobs(recovered) == stored


@given(st.lists(st.integers(0, 3 * frames.LARGE), max_size=20))
def test_gathering_keeps_the_bytes_and_copies_no_large_part(sizes):
    parts = [bytes([number]) * size for number, size in enumerate(sizes)]
    gathered = frames.gather(parts)
    assert b"".join(gathered) == b"".join(parts)
    for part in parts:
        assert len(part) < frames.LARGE or any(part is buffer for buffer in gathered)
    assert len(gathered) <= 2 * sum(size >= frames.LARGE for size in sizes) + 1
