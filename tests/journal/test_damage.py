"""Torn and damaged ledgers: everything acknowledged comes back, or the journal is refused
with file and offset. Never a wrong record."""

import asyncio
import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.journal.kit import (
    KEY,
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
from velaray.journal.checkpoint import read_checkpoint
from velaray.journal.errors import CorruptJournal, UnsupportedFormat
from velaray.journal.memory import Step
from velaray.journal.replay import replay
from velaray.journal.scan import LedgerReader

ACKNOWLEDGED = [b"one", b"two", b"three", b"four", b"five"]


async def _history(backend) -> tuple[int, bytes, list[int]]:
    """A journal with five acknowledged frames whose owner was killed: ledger id, content,
    and where its frames end (the first is the end of the checkpoint)."""
    journal = await started(backend.store())
    ends = [journal.ledgers[-1].data_offset]
    for event in ACKNOWLEDGED:
        await write(journal, event)
        ends.append(journal.ledgers[-1].bytes)
    ledger_id = journal.ledgers[-1].ledger_id
    return ledger_id, backend.content(ledger_id), ends


async def _recovered(backend) -> list[bytes] | CorruptJournal:
    try:
        return events_of(await open_journal(backend.store()))
    except CorruptJournal as error:
        return error


def _flipped(content: bytes, at: int, bits: int) -> bytes:
    return content[:at] + bytes([content[at] ^ bits]) + content[at + 1 :]


@on_loop
async def test_the_content_ends_with_a_mark(backend):
    _, content, ends = await _history(backend)
    assert len(content) == ends[-1] + frames.MARK_SIZE


@on_loop
async def test_cut_at_every_byte_keeps_every_frame_before_the_cut(backend):
    ledger_id, content, ends = await _history(backend)
    for cut in range(ends[0], len(content) + 1, backend.stride):
        backend.put(ledger_id, content[:cut])
        whole = sum(end <= cut for end in ends[1:])
        assert await _recovered(backend) == ACKNOWLEDGED[:whole], cut
        backend.put(ledger_id, content[:cut] + bytes(3000))
        assert await _recovered(backend) == ACKNOWLEDGED[:whole], f"{cut}, zeros follow"


@on_loop
async def test_a_write_cut_short_at_every_byte_takes_nothing_acknowledged_with_it(backend):
    ledger_id, content, ends = await _history(backend)
    before, torn = content[: ends[-2]], content[ends[-2] : ends[-1]]
    mark = frames.encode_mark(_salt(content), ends[-2], len(ACKNOWLEDGED) - 1)
    for written in range(0, len(torn), backend.stride):
        backend.put(ledger_id, before + torn[:written] + mark[written:])
        assert await _recovered(backend) == ACKNOWLEDGED[:-1], written
    for lost in range(0, len(torn), backend.stride):
        backend.put(ledger_id, before + bytes(lost) + torn[lost:] if lost else before)
        assert await _recovered(backend) == ACKNOWLEDGED[:-1], f"the first {lost} bytes lost"


def _salt(content: bytes) -> bytes:
    return frames.decode_ledger_header("", content).salt


@on_loop
async def test_every_flipped_byte_of_a_frame_is_refused_with_file_and_offset(backend):
    ledger_id, content, ends = await _history(backend)
    for at in range(ends[0], ends[-1], backend.stride):
        backend.put(ledger_id, _flipped(content, at, 1 << at % 8))
        error = await _recovered(backend)
        assert isinstance(error, CorruptJournal), at
        assert error.file == backend.store().location(KEY, ledger_id)
        assert error.offset == max(end for end in ends if end <= at)
        assert backend.content(ledger_id) == _flipped(content, at, 1 << at % 8)
    backend.put(ledger_id, content)
    assert await _recovered(backend) == ACKNOWLEDGED


@on_loop
async def test_a_flipped_byte_of_the_mark_loses_nothing(backend):
    ledger_id, content, ends = await _history(backend)
    for at in range(ends[-1], len(content)):
        backend.put(ledger_id, _flipped(content, at, 0xFF))
        assert await _recovered(backend) == ACKNOWLEDGED, at


@on_loop
async def test_every_flipped_byte_of_the_first_checkpoint_or_header_is_refused(backend):
    ledger_id, content, ends = await _history(backend)
    for at in range(0, ends[0], backend.stride):
        backend.put(ledger_id, _flipped(content, at, 0x40))
        assert isinstance(await _recovered(backend), CorruptJournal), at


@on_loop
async def test_a_damaged_checkpoint_is_made_up_for_by_the_ledger_before(backend):
    journal = await started(backend.store())
    await write(journal, *ACKNOWLEDGED)
    await journal.roll({"events": b"\n".join(ACKNOWLEDGED)}, b"")
    await write(journal, b"six")
    info = journal.ledgers[-1]
    content = backend.content(info.ledger_id)
    header = len(frames.encode_ledger_header(info.ledger_id, KEY, 1, bytes(8)))
    for at in range(0, info.data_offset, backend.stride):
        backend.put(info.ledger_id, _flipped(content, at, 0x10))
        if at < header:
            assert isinstance(await _recovered(backend), CorruptJournal), at
            continue
        successor = await open_journal(backend.store())
        assert events_of(successor) == [*ACKNOWLEDGED, b"six"]
        (damage,) = successor.recovered.damaged
        assert damage.file == backend.store().location(KEY, info.ledger_id)


@on_loop
async def test_a_damaged_checkpoint_with_a_damaged_ledger_before_is_refused(backend):
    journal = await started(backend.store())
    await write(journal, *ACKNOWLEDGED)
    await journal.roll({"events": b"\n".join(ACKNOWLEDGED)}, b"")
    before, newest = journal.ledgers
    for info, at in ((newest, newest.data_offset - 1), (before, before.bytes - 1)):
        content = backend.content(info.ledger_id)
        backend.put(info.ledger_id, _flipped(content, at, 1))
    assert isinstance(await _recovered(backend), CorruptJournal)


@on_loop
async def test_damage_in_a_sealed_ledger_is_refused_by_reads_only(backend):
    journal = await started(backend.store())
    await write(journal, *ACKNOWLEDGED)
    await journal.roll({"events": b"\n".join(ACKNOWLEDGED)}, b"")
    await write(journal, b"six")
    info = journal.ledgers[0]
    content = backend.content(info.ledger_id)
    for at in range(info.data_offset, info.bytes, backend.stride):
        backend.put(info.ledger_id, _flipped(content, at, 2))
        with pytest.raises(CorruptJournal) as caught:
            await journal.read(EARLIEST, 100, 1 << 20)
        assert caught.value.offset == info.data_offset
    backend.put(info.ledger_id, content[: info.bytes - 1])
    with pytest.raises(CorruptJournal):
        await journal.read(EARLIEST, 100, 1 << 20)
    assert await _recovered(backend) == [*ACKNOWLEDGED, b"six"]


@on_loop
async def test_frames_inside_a_payload_are_never_taken_for_frames(backend):
    """The payload is a copy of the ledger itself, so that its frames carry the right salt."""
    ledger_id, _, _ = await _history(backend)
    journal = await started(backend.store())
    await write(journal, b"six")
    await write(journal, b"seven")
    ledger_id = journal.ledgers[-1].ledger_id
    copied = backend.content(ledger_id)
    start = journal.ledgers[-1].bytes
    later = frames.encode_mark(_salt(copied), 0, 1_000) + copied[journal.ledgers[-1].data_offset :]
    await write(journal, b"trap", blob=later + copied)
    content = backend.content(ledger_id)
    acknowledged = [*ACKNOWLEDGED, b"six", b"seven"]
    assert await _recovered(backend) == [*acknowledged, b"trap"]
    end = journal.ledgers[-1].bytes
    for lost in range(1, frames.FRAME_HEADER_SIZE + 12, backend.stride):
        backend.put(ledger_id, content[:start] + bytes(lost) + content[start + lost : end])
        assert await _recovered(backend) == acknowledged, lost
    for cut in range(start, end, backend.stride):
        backend.put(ledger_id, content[:cut])
        assert await _recovered(backend) == acknowledged, cut


@given(st.data())
def test_any_one_overwritten_range_never_gives_a_wrong_record(data):
    asyncio.run(_overwrite_and_recover(data))


async def _overwrite_and_recover(data) -> None:
    backend = MemoryBackend()
    ledger_id, content, _ = await _history(backend)
    at = data.draw(st.integers(0, len(content) - 1))
    garbage = data.draw(st.binary(min_size=1, max_size=len(content) - at))
    backend.put(ledger_id, content[:at] + garbage + content[at + len(garbage) :])
    outcome = await _recovered(backend)
    if not isinstance(outcome, CorruptJournal):
        assert outcome == ACKNOWLEDGED[: len(outcome)]
        assert len(outcome) == 5 or at + len(garbage) > len(content) - frames.MARK_SIZE


@on_loop
async def test_unacknowledged_garbage_is_cut_and_stays_cut(backend):
    ledger_id, content, ends = await _history(backend)
    backend.put(ledger_id, content[: ends[-1]] + b"\x9eVLF" + b"garbage" * 50)
    journal = await started(backend.store())
    assert journal.ledgers[0].bytes == ends[-1]
    await write(journal, b"six")
    assert await _recovered(backend) == [*ACKNOWLEDGED, b"six"]
    assert await blobs(journal) == [event * 3 for event in [*ACKNOWLEDGED, b"six"]]


@on_loop
async def test_a_damaged_manifest_is_refused(memory):
    await _history(memory)
    files = memory.disk._journals[KEY]
    manifest = files.manifest
    for at in range(len(manifest)):
        files.manifest = _flipped(manifest, at, 4)
        with pytest.raises((CorruptJournal, UnsupportedFormat)):
            await open_journal(memory.store())


@on_loop
async def test_a_checkpoint_without_its_marker_is_none(backend):
    journal = await started(backend.store())
    info = journal.ledgers[0]
    reader = await LedgerReader.open(backend.store(), KEY, info.ledger_id)
    cursor = reader.cursor(reader.header.size, info.data_offset)
    segments = await cursor.next()
    with pytest.raises(CorruptJournal, match="no marker"):
        await read_checkpoint(reader, dataclasses.replace(info, data_offset=segments.end))


@pytest.mark.parametrize("wrong", ["sequence", "entry", "flags", "records"])
@on_loop
async def test_a_sound_frame_in_the_wrong_place_is_refused(backend, wrong):
    ledger_id, content, ends = await _history(backend)
    parts: list[bytes] = []
    frames.stage_record(parts, b"six", b"blob")
    fields = {"sequence": 5, "entry": 5, "records": 1, "flags": 0}
    fields[wrong] += 1
    payload = b"".join(parts)
    header = frames.encode_frame(_salt(content), ends[-1], payload=payload, **fields)
    backend.put(ledger_id, content[: ends[-1]] + header + payload)
    error = await _recovered(backend)
    assert isinstance(error, CorruptJournal) and error.offset == ends[-1]


@on_loop
async def test_a_frame_completed_between_two_looks_of_a_reader_is_no_damage(memory):
    ledger_id, content, ends = await _history(memory)
    memory.put(ledger_id, content[: ends[-2] + 50])
    reads = 0

    async def complete(step: Step, journal: str) -> None:
        nonlocal reads
        reads += step is Step.READ
        if reads == 4:
            memory.put(ledger_id, content)

    found = [record.event async for record in replay(memory.store(complete), KEY)]
    assert found == ACKNOWLEDGED
    assert reads > 4
