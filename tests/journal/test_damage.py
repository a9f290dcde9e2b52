"""Torn and damaged ledgers: everything acknowledged comes back, or the journal is refused
with file and offset. Never a wrong record."""

import asyncio
import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
from velaray.events.ids import EARLIEST, Position
from velaray.journal import frames
from velaray.journal.checkpoint import read_checkpoint
from velaray.journal.errors import CorruptJournal, UnsupportedFormat
from velaray.journal.memory import Step
from velaray.journal.replay import replay, verify
from velaray.journal.scan import LedgerReader


class ZerosBehind(MemoryBackend):
    """The written bytes of a ledger have zeros behind them, as a killed owner leaves them."""

    def __init__(self) -> None:
        super().__init__()
        self._lengths: dict[int, int] = {}

    def content(self, ledger_id: int, journal: str = KEY) -> bytes:
        return super().content(ledger_id, journal)[: self._lengths.get(ledger_id)]

    def put(self, ledger_id: int, data: bytes, journal: str = KEY) -> None:
        self._lengths[ledger_id] = len(data)
        super().put(ledger_id, data + bytes(5_000), journal)


@pytest.fixture(params=["memory", "memory, zeros behind", "files"])
def backend(request, tmp_path) -> Iterator[MemoryBackend | FileBackend]:
    if request.param == "files":
        chosen = FileBackend(tmp_path)
        yield chosen
        chosen.close()
    else:
        yield MemoryBackend() if request.param == "memory" else ZerosBehind()


ACKNOWLEDGED = [b"one", b"two", b"three", b"four", b"five"]


class History(NamedTuple):
    """A journal with five acknowledged frames whose owner was killed. ``ends`` are where the
    frames end (the first is the end of the checkpoint), ``marks`` the mark after each."""

    ledger_id: int
    content: bytes
    ends: list[int]
    marks: list[bytes]

    def whole(self, cut: int) -> int:
        """How many frames a cut leaves whole."""
        return sum(end <= cut for end in self.ends[1:])


async def _history(backend) -> History:
    journal = await started(backend.store())
    ledger_id = journal.ledgers[-1].ledger_id
    ends = [journal.ledgers[-1].data_offset]
    marks = [backend.mark(ledger_id)]
    for event in ACKNOWLEDGED:
        await write(journal, event)
        ends.append(journal.ledgers[-1].bytes)
        marks.append(backend.mark(ledger_id))
    content, end = backend.content(ledger_id), ends[-1]
    # Zeros are laid behind the end again where a test wants them.
    return History(ledger_id, content[:end] + content[end:].strip(b"\0"), ends, marks)


async def _recovered(backend) -> list[bytes] | CorruptJournal:
    """What the next owner gets."""
    try:
        return events_of(await open_journal(backend.store()))
    except CorruptJournal as error:
        return error


async def _seen(store) -> list[bytes] | CorruptJournal:
    """What a reader gets: all, or a refusal. Cheap, since it writes nothing."""
    try:
        return [record.event async for record in replay(store, KEY)]
    except CorruptJournal as error:
        return error


def _refused(outcome, backend, history: History, offset: int) -> bool:
    file = backend.store().location(KEY, history.ledger_id)
    return isinstance(outcome, CorruptJournal) and (outcome.file, outcome.offset) == (file, offset)


def _flipped(content: bytes, at: int, bits: int) -> bytes:
    return content[:at] + bytes([content[at] ^ bits]) + content[at + 1 :]


def _salt(content: bytes) -> bytes:
    return frames.decode_ledger_header("", content).salt


@on_loop
async def test_a_ledger_holds_only_frames_and_the_mark_has_their_end(backend):
    ledger_id, content, ends, marks = await _history(backend)
    assert len(content) == ends[-1]
    assert marks[0] == b""
    for number, mark in enumerate(marks[1:]):
        assert len(mark) == frames.MARK_SIZE
        expected = frames.Mark(number, ends[number + 1])
        assert frames.decode_mark(_salt(content), ledger_id, mark) == expected


@on_loop
async def test_a_truncation_before_the_acknowledged_end_is_refused_at_every_byte(backend):
    history = await _history(backend)
    ledger_id, content, ends, _ = history
    store = backend.store()
    for cut in range(ends[-1]):
        chosen = cut % backend.stride == 0 or cut in ends
        for rest in (b"", bytes(3000)) if chosen else (b"",):
            backend.put(ledger_id, content[:cut] + rest)
            outcomes = [await _seen(store)]
            if chosen and (not rest or backend.stride == 1):
                outcomes.append(await _recovered(backend))
            for outcome in outcomes:
                if cut < ends[0]:
                    assert isinstance(outcome, CorruptJournal) and outcome.offset <= ends[0], cut
                else:
                    assert _refused(outcome, backend, history, ends[history.whole(cut)]), cut
            assert backend.content(ledger_id) == content[:cut] + rest
    for rest in (b"", bytes(3000), b"\x9eVLF" + b"torn" * 20):
        backend.put(ledger_id, content + rest)
        assert await _recovered(backend) == ACKNOWLEDGED


@on_loop
async def test_a_truncation_keeps_all_that_either_mark_covers(backend):
    """Power was lost: the mark is an older one, or none. Readers see the same."""
    history = await _history(backend)
    ledger_id, content, ends, marks = history
    store = backend.store()
    for marked, mark in (*enumerate(marks), (0, None)):
        backend.put_mark(ledger_id, mark)
        for cut in range(ends[0], len(content) + 1, backend.stride):
            whole = history.whole(cut)
            for rest in (b"", bytes(3000)):
                backend.put(ledger_id, content[:cut] + rest)
                outcome = await _seen(store)
                if whole < marked:
                    assert _refused(outcome, backend, history, ends[whole]), (marked, cut)
                else:
                    assert outcome == ACKNOWLEDGED[:whole], (marked, cut)


@on_loop
async def test_the_previous_ledger_does_not_replace_one_truncated_after_a_roll(backend):
    """Without its checkpoint a ledger's history is read after the one before: not less of it."""
    journal = await started(backend.store())
    await write(journal, *ACKNOWLEDGED)
    await journal.roll({"events": b"\n".join(ACKNOWLEDGED)}, b"")
    await write(journal, b"six")
    info = journal.ledgers[-1]
    content = backend.content(info.ledger_id)[: info.bytes]
    for cut in range(0, len(content), backend.stride):
        backend.put(info.ledger_id, content[:cut])
        error = await _recovered(backend)
        assert isinstance(error, CorruptJournal), cut
        assert error.file == backend.store().location(KEY, info.ledger_id)
    backend.put(info.ledger_id, content)
    assert await _recovered(backend) == [*ACKNOWLEDGED, b"six"]
    # As it was before the commit: of this ledger nothing is missing but the checkpoint.
    backend.put_mark(info.ledger_id, b"")
    header = len(frames.encode_ledger_header(info.ledger_id, KEY, 1, bytes(8)))
    for cut in range(header, info.data_offset, backend.stride):
        backend.put(info.ledger_id, content[:cut])
        assert await _recovered(backend) == ACKNOWLEDGED, cut


@pytest.mark.parametrize("kind", ["lost", "empty", "of the frame before"])
@on_loop
async def test_an_owner_truncates_behind_the_mark_that_survived(backend, kind):
    history = await _history(backend)
    ledger_id, content, ends, marks = history
    backend.put_mark(ledger_id, {"lost": None, "empty": b""}.get(kind, marks[-2]))
    for cut in range(ends[-2], len(content) + 1, backend.stride):
        backend.put(ledger_id, content[:cut])
        assert await _recovered(backend) == ACKNOWLEDGED[: history.whole(cut)], cut


@on_loop
async def test_a_truncation_is_reported(backend):
    ledger_id, content, ends, _ = await _history(backend)
    backend.put(ledger_id, content[: ends[3]])
    (report,) = await verify(backend.store(), KEY)
    assert (report.records, report.bytes) == (3, ends[3])
    (problem,) = report.problems
    assert f"{ledger_id}.ledger: corrupt at byte {ends[3]}" in problem
    assert f"acknowledged up to sequence 4, byte {ends[-1]}" in problem


@on_loop
async def test_a_write_torn_at_every_byte_loses_nothing_acknowledged(backend):
    ledger_id, content, ends, marks = await _history(backend)
    before, torn = content[: ends[-2]], content[ends[-2] : ends[-1]]
    backend.put_mark(ledger_id, marks[-2])
    for written in range(0, len(torn), backend.stride):
        backend.put(ledger_id, before + torn[:written])
        assert await _recovered(backend) == ACKNOWLEDGED[:-1], written
    for lost in range(1, len(torn), backend.stride):
        backend.put(ledger_id, before + bytes(lost) + torn[lost:])
        assert await _recovered(backend) == ACKNOWLEDGED[:-1], f"the first {lost} bytes lost"


@on_loop
async def test_every_flipped_byte_of_a_frame_is_refused_with_file_and_offset(backend):
    history = await _history(backend)
    ledger_id, content, ends, _ = history
    for at in range(ends[0], ends[-1], backend.stride):
        damaged = _flipped(content, at, 1 << at % 8)
        backend.put(ledger_id, damaged)
        start = max(end for end in ends if end <= at)
        assert _refused(await _recovered(backend), backend, history, start), at
        assert backend.content(ledger_id) == damaged
    backend.put(ledger_id, content)
    assert await _recovered(backend) == ACKNOWLEDGED


@on_loop
async def test_a_flipped_byte_before_the_last_frame_is_refused_without_a_mark(backend):
    history = await _history(backend)
    ledger_id, content, ends, _ = history
    backend.put_mark(ledger_id, None)
    store = backend.store()
    for at in range(ends[0], ends[-1]):
        backend.put(ledger_id, _flipped(content, at, 1 << at % 8))
        outcome = await _seen(store)
        if at < ends[-2]:
            assert _refused(outcome, backend, history, max(e for e in ends if e <= at)), at
        else:
            assert outcome == ACKNOWLEDGED[:-1], at


@on_loop
async def test_a_damaged_last_frame_before_a_header_torn_anywhere_is_refused(backend):
    history = await _history(backend)
    ledger_id, content, ends, _ = history
    parts: list[bytes] = []
    frames.stage_records(parts, [(b"six", b"blob")])
    header = frames.encode_frame(_salt(content), ends[-1], 5, 5, 1, parts, 0)
    store = backend.store()
    for written in range(frames.FRAME_HEADER_SIZE):
        for at in range(ends[-2], ends[-1], 5):
            damaged = _flipped(content, at, 1 << at % 8)
            backend.put(ledger_id, damaged + header[:written])
            assert _refused(await _seen(store), backend, history, ends[-2]), (at, written)
        backend.put(ledger_id, content + header[:written])
        assert await _seen(store) == ACKNOWLEDGED
    backend.put(ledger_id, damaged + header[:20])
    assert _refused(await _recovered(backend), backend, history, ends[-2])


@on_loop
async def test_a_flipped_byte_of_the_mark_loses_nothing(backend):
    ledger_id, content, ends, marks = await _history(backend)
    store = backend.store()
    for at in range(frames.MARK_SIZE):
        backend.put_mark(ledger_id, _flipped(marks[-1], at, 1 << at % 8))
        for end, events in ((ends[-1], ACKNOWLEDGED), (ends[-1] - 1, ACKNOWLEDGED[:-1])):
            backend.put(ledger_id, content[:end])
            assert await _seen(store) == events, at
    backend.put(ledger_id, content)
    assert await _recovered(backend) == ACKNOWLEDGED


@on_loop
async def test_a_torn_mark_is_no_evidence(backend):
    """One that was cut short, and one that is half the former one: never a wrong end."""
    ledger_id, content, ends, marks = await _history(backend)
    store = backend.store()
    for written in range(frames.MARK_SIZE):
        for older in (b"", bytes(frames.MARK_SIZE), marks[-2]):
            torn = marks[-1][:written] + older[written:]
            known = {marks[-1]: 5, marks[-2]: 4}.get(torn, 0)
            backend.put_mark(ledger_id, torn)
            for whole in (5, 4, 3):
                backend.put(ledger_id, content[: ends[whole]])
                outcome = await _seen(store)
                if whole < known:
                    assert isinstance(outcome, CorruptJournal)
                else:
                    assert outcome == ACKNOWLEDGED[:whole]
    backend.put_mark(ledger_id, marks[-1] + b"\0")
    assert await _seen(store) == ACKNOWLEDGED[:3]


@pytest.mark.parametrize("wrong", ["salt", "ledger id"])
@on_loop
async def test_the_mark_of_another_ledger_is_no_evidence(backend, wrong):
    ledger_id, content, _, _ = await _history(backend)
    salt = bytes(8) if wrong == "salt" else _salt(content)
    owner = ledger_id + 1 if wrong == "ledger id" else ledger_id
    backend.put_mark(ledger_id, frames.encode_mark(salt, owner, 1_000, 1 << 40))
    assert await _recovered(backend) == ACKNOWLEDGED


@pytest.mark.parametrize(("sequence", "beyond"), [(4, 1), (5, 0)])
@on_loop
async def test_frames_must_reach_the_sequence_and_the_place_of_the_mark(backend, sequence, beyond):
    history = await _history(backend)
    ledger_id, content, ends, _ = history
    ahead = frames.encode_mark(_salt(content), ledger_id, sequence, ends[-1] + beyond)
    backend.put_mark(ledger_id, ahead)
    assert _refused(await _recovered(backend), backend, history, ends[-1])


@on_loop
async def test_a_sealed_ledger_needs_no_mark(backend):
    ledger_id, _, _, marks = await _history(backend)
    successor = await started(backend.store())
    assert backend.mark(ledger_id) == marks[-1]
    for mark in (None, frames.encode_mark(bytes(8), ledger_id, 0, 1)):
        backend.put_mark(ledger_id, mark)
        assert await _recovered(backend) == ACKNOWLEDGED
        assert await blobs(successor) == [event * 3 for event in ACKNOWLEDGED]


@on_loop
async def test_every_flipped_byte_of_the_first_checkpoint_or_header_is_refused(backend):
    ledger_id, content, ends, _ = await _history(backend)
    for at in range(0, ends[0], backend.stride):
        backend.put(ledger_id, _flipped(content, at, 0x40))
        assert isinstance(await _recovered(backend), CorruptJournal), at


@on_loop
async def test_a_damaged_checkpoint_is_replaced_by_the_previous_ledger(backend):
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
async def test_a_damaged_checkpoint_behind_a_damaged_ledger_is_refused(backend):
    journal = await started(backend.store())
    await write(journal, *ACKNOWLEDGED)
    await journal.roll({"events": b"\n".join(ACKNOWLEDGED)}, b"")
    before, newest = journal.ledgers
    for info, at in ((newest, newest.data_offset - 1), (before, before.bytes - 1)):
        content = backend.content(info.ledger_id)
        backend.put(info.ledger_id, _flipped(content, at, 1))
    assert isinstance(await _recovered(backend), CorruptJournal)


@on_loop
async def test_only_reads_refuse_damage_in_a_sealed_ledger(backend):
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
    await _history(backend)
    journal = await started(backend.store())
    await write(journal, b"six")
    await write(journal, b"seven")
    ledger_id = journal.ledgers[-1].ledger_id
    start = journal.ledgers[-1].bytes
    copied = backend.content(ledger_id)[:start]
    mark = backend.mark(ledger_id)
    await write(journal, b"trap", blob=copied[journal.ledgers[-1].data_offset :] + copied)
    content = backend.content(ledger_id)
    acknowledged = [*ACKNOWLEDGED, b"six", b"seven"]
    assert await _recovered(backend) == [*acknowledged, b"trap"]
    backend.put_mark(ledger_id, mark)
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
    ledger_id, content, ends, marks = await _history(backend)
    marked = data.draw(st.integers(0, 5))
    backend.put_mark(ledger_id, marks[marked])
    at = data.draw(st.integers(0, len(content) - 1))
    garbage = data.draw(st.binary(min_size=1, max_size=len(content) - at))
    backend.put(ledger_id, content[:at] + garbage + content[at + len(garbage) :])
    outcome = await _recovered(backend)
    if not isinstance(outcome, CorruptJournal):
        assert outcome == ACKNOWLEDGED[: len(outcome)]
        assert len(outcome) >= marked
        assert len(outcome) == 5 or at + len(garbage) > ends[-2]


@on_loop
async def test_unacknowledged_garbage_is_truncated_for_good(backend):
    ledger_id, content, ends, _ = await _history(backend)
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
async def test_a_checkpoint_without_its_marker_is_ignored(backend):
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
    ledger_id, content, ends, _ = await _history(backend)
    parts: list[bytes] = []
    frames.stage_records(parts, [(b"six", b"blob")])
    fields = {"sequence": 5, "entry": 5, "records": 1, "flags": 0}
    fields[wrong] += 1
    payload = b"".join(parts)
    header = frames.encode_frame(_salt(content), ends[-1], payload=[payload], **fields)
    backend.put(ledger_id, content[: ends[-1]] + header + payload)
    error = await _recovered(backend)
    assert isinstance(error, CorruptJournal) and error.offset == ends[-1]


@pytest.mark.parametrize(("hole", "last_look"), [(False, 4), (True, 3)])
@on_loop
async def test_a_frame_completed_between_two_looks_of_a_reader_is_no_damage(
    memory, hole, last_look
):
    ledger_id, content, ends, marks = await _history(memory)
    rest = bytes(ends[4] - ends[3] - 50) if hole else b""
    memory.put(ledger_id, content[: ends[3] + 50] + rest)
    memory.put_mark(ledger_id, marks[3])
    reads = 0

    async def complete(step: Step, journal: str) -> None:
        nonlocal reads
        reads += step is Step.READ
        if reads == last_look:
            memory.put(ledger_id, content)

    assert await _seen(memory.store(complete)) == ACKNOWLEDGED
    assert reads > last_look


@pytest.mark.parametrize("moment", range(1, 6))
@on_loop
async def test_an_owner_that_commits_while_a_reader_reads_is_no_damage(memory, moment):
    """At each of the reader's steps, from the one after it has read the header on."""
    ledger_id, content, ends, marks = await _history(memory)
    memory.put(ledger_id, content[: ends[3]])
    memory.put_mark(ledger_id, marks[3])
    steps: list[Step] = []

    async def complete(step: Step, journal: str) -> None:
        steps.append(step)
        if len(steps) == moment:
            memory.put(ledger_id, content)
            memory.put_mark(ledger_id, marks[5])

    outcome = await _seen(memory.store(complete))
    assert outcome in (ACKNOWLEDGED, ACKNOWLEDGED[:3])
    assert steps.count(Step.READ_MARK) == 1 and len(steps) >= moment


@pytest.mark.parametrize("sealed", ["open", "sealed", "without its index"])
@pytest.mark.parametrize("part", ["header", "payload"])
def test_a_read_returns_the_undamaged_entries_on_both_sides(backend, sealed, part) -> None:
    @on_loop
    async def scenario() -> None:
        journal = await started(backend.store())
        ledger_id, ends = journal.ledgers[-1].ledger_id, []
        for event in ACKNOWLEDGED:
            await write(journal, event, blob=event * 20)
            ends.append(journal.ledgers[-1].bytes)
        if sealed != "open":
            await journal.roll({}, b"digest")
        if sealed == "without its index":
            journal._cache.clear()
            await journal._store.write_index(KEY, ledger_id, b"")
        content = bytearray(backend.content(ledger_id))
        at = ends[1] if part == "header" else ends[2] - 1
        content[at] ^= 0xFF  # of the frame of the third entry
        backend.put(ledger_id, bytes(content))

        async def read(entry: int) -> list[bytes]:
            found = await journal.read(Position(ledger_id, entry), 100, 1 << 20)
            return [each.event for each in found if each.position.ledger_id == ledger_id]

        assert await read(0) == ACKNOWLEDGED[:2]
        assert await read(1) == ACKNOWLEDGED[1:2]
        for _ in range(2):
            with pytest.raises(CorruptJournal) as damage:
                await read(2)
            assert damage.value.offset == ends[1]
            assert f"{ledger_id}.ledger" in damage.value.file
        assert await read(3) == ACKNOWLEDGED[3:]
        assert await read(4) == ACKNOWLEDGED[4:]
        await write(journal, b"six", blob=b"six")  # the journal goes on
        await journal.close()

    scenario()
