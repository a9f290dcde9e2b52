"""Zeros behind the frames of an open ledger: a clean end, never more, and cut at the close."""

from __future__ import annotations

import errno
import os
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.journal.testing import KEY, events_of, on_disks, on_loop, open_journal, started, write
from velaray.journal.ahead import AHEAD, BLOCK, Ahead
from velaray.journal.errors import CorruptJournal, StorageFull
from velaray.journal.replay import replay, verify


def _behind(backend, journal) -> bytes:
    info = journal.ledgers[-1]
    return backend.content(info.ledger_id)[info.bytes :]


@given(st.lists(st.integers(1, 3 * BLOCK) | st.just(100), max_size=300), st.integers(0, 9_999))
def test_zeros_fill_a_block_and_at_most_double_what_small_frames_wrote(sizes, end):
    ahead, zeros, small = Ahead(end), 0, 0
    for size in sizes:
        more = ahead.zeros(end, size)
        assert more == 0 or (size <= BLOCK and (end + size + more) % BLOCK == 0)
        assert more == 0 or end + size > ahead.reach
        assert more < AHEAD + BLOCK
        end += size
        ahead.reach = max(ahead.reach, end + more)
        zeros += more > 0 and max(0, more - BLOCK)
        small += size if size <= BLOCK else 0
    assert zeros <= 2 * small


def test_few_small_frames_extend_the_file():
    ahead, end, extended = Ahead(300), 300, 0
    for _ in range(10_000):
        more = ahead.zeros(end, 160)
        end += 160
        extended += end > ahead.reach
        ahead.reach = max(ahead.reach, end + more)
    assert extended <= 40


@on_disks
@on_loop
async def test_only_zeros_follow_the_frames_and_commits_overwrite_them(backend):
    journal = await started(backend.store())
    ledger_id = journal.ledgers[-1].ledger_id
    sizes = []
    for number in range(60):
        await write(journal, b"%d" % number, blob=b"x" * 100)
        assert _behind(backend, journal) == bytes(len(_behind(backend, journal)))
        sizes.append(len(backend.content(ledger_id)))
    assert sizes[0] == BLOCK
    assert len(set(sizes)) <= 4
    (report,) = await verify(backend.store(), KEY)
    assert (report.problems, report.records, report.unacknowledged) == ([], 60, 0)
    seen = [record.event async for record in replay(backend.store(), KEY)]
    assert seen == events_of(await open_journal(backend.store())) == [b"%d" % n for n in range(60)]


@on_disks
@on_loop
async def test_a_large_frame_extends_the_ledger_without_zeros(backend):
    journal = await started(backend.store())
    await write(journal, b"small")
    await write(journal, b"large", blob=bytes(BLOCK) + b"end")
    assert _behind(backend, journal) == b""
    await write(journal, b"large", blob=bytes(3 * BLOCK) + b"end")
    assert _behind(backend, journal) == b""
    await write(journal, b"small")
    assert 0 < len(_behind(backend, journal)) < BLOCK
    assert len(events_of(await open_journal(backend.store()))) == 4


@on_disks
@pytest.mark.parametrize("ending", ["roll", "close"])
@on_loop
async def test_closing_a_ledger_cuts_off_the_zeros(backend, ending):
    journal = await started(backend.store())
    await write(journal, b"a")
    info = journal.ledgers[-1]
    assert _behind(backend, journal)
    if ending == "roll":
        await journal.roll({"events": b"a"}, b"")
    else:
        await journal.close()
    assert await backend.store().size(KEY, info.ledger_id) == info.bytes
    assert events_of(await open_journal(backend.store())) == [b"a"]


@on_disks
@on_loop
async def test_zeros_of_a_killed_owner_are_a_clean_end(backend):
    journal = await started(backend.store())
    await write(journal, b"a")
    size = len(backend.content(journal.ledgers[-1].ledger_id))
    successor = await started(backend.store())
    listed, known = successor.ledgers[0], journal.ledgers[0]
    assert listed == replace(known, sealed=True, sealed_ms=listed.sealed_ms)
    await write(successor, b"b")
    reports = await verify(backend.store(), KEY)
    assert [(report.problems, report.unacknowledged) for report in reports] == [([], 0), ([], 0)]
    assert await backend.store().size(KEY, reports[0].ledger_id) == size
    assert events_of(await open_journal(backend.store())) == [b"a", b"b"]


@on_disks
@on_loop
async def test_a_frame_torn_over_zeros_is_cut_and_one_with_a_successor_refused(backend):
    journal = await started(backend.store())
    await write(journal, b"a")
    info = journal.ledgers[-1]
    mark, whole = backend.mark(info.ledger_id), []
    for event in (b"b", b"c"):
        await write(journal, event, blob=b"payload " * 20)
        whole.append(journal.ledgers[-1].bytes)
    content = backend.content(info.ledger_id)
    backend.put_mark(info.ledger_id, mark)
    start, (middle, end) = info.bytes, whole
    for at in range(start, middle, backend.stride * 3):
        torn = content[:at] + bytes(middle - at)
        backend.put(info.ledger_id, torn + bytes(len(content) - middle))
        assert events_of(await open_journal(backend.store())) == [b"a"]
        backend.put(info.ledger_id, torn + content[middle:])
        with pytest.raises(CorruptJournal) as caught:
            await open_journal(backend.store())
        assert caught.value.offset == start
    backend.put(info.ledger_id, content[: end - 1] + bytes(len(content) - end + 1))
    assert events_of(await open_journal(backend.store())) == [b"a", b"b"]


@on_loop
async def test_zeros_without_space_are_omitted_and_existing_ones_are_used(memory):
    journal = await started(memory.store())
    memory.disk.capacity = sum(files.size() for files in memory.disk._journals.values()) + 200
    await write(journal, b"a")
    assert _behind(memory, journal) == b""
    with pytest.raises(StorageFull):
        await write(journal, b"b", blob=bytes(300))
    memory.disk.capacity += 2 * BLOCK
    await write(journal, b"c")
    assert len(_behind(memory, journal)) > 100
    memory.disk.capacity = sum(files.size() for files in memory.disk._journals.values())
    await write(journal, b"d")
    memory.disk.capacity = None
    assert events_of(await open_journal(memory.store())) == [b"a", b"c", b"d"]


@on_loop
async def test_a_disk_without_space_for_zeros_stores_the_frame(files, monkeypatch):
    journal = await started(files.store())
    pwritev, ftruncate, refused, cuts = os.pwritev, os.ftruncate, [], []

    def cut(fd, size):
        cuts.append(size)
        ftruncate(fd, size)

    def fake(fd, buffers, offset):
        if sum(map(len, buffers)) > 1_000:
            refused.append(pwritev(fd, [b"".join(buffers)[:900]], offset))
            raise OSError(errno.ENOSPC, "No space left on device")
        return pwritev(fd, buffers, offset)

    monkeypatch.setattr(os, "pwritev", fake)
    monkeypatch.setattr(os, "ftruncate", cut)
    await write(journal, b"a")
    # Whole as it was, it may have been read already: it's never cut, not even for a moment.
    assert refused == [900]
    assert cuts == [journal.ledgers[-1].bytes]
    assert _behind(files, journal) == b""
    monkeypatch.setattr(os, "pwritev", pwritev)
    await write(journal, b"b")
    assert _behind(files, journal)
    assert events_of(await open_journal(files.store())) == [b"a", b"b"]
