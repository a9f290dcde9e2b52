"""Damage to the bytes of an entry, which has a checksum of its own: only that entry is lost."""

from __future__ import annotations

import asyncio

from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from tests.journal.testing import (
    KEY,
    MemoryBackend,
    events_of,
    open_journal,
    started,
)
from velaray.events.ids import Position
from velaray.journal import frames
from velaray.journal.checksums import joined
from velaray.journal.damage import find_damage
from velaray.journal.errors import CorruptJournal
from velaray.journal.journal import Journal
from velaray.journal.replay import replay
from velaray.journal.store import Buffer
from velaray.wire.entries import CHECKSUM_MAGIC
from velaray.wire.frames import seal_entry

EVENTS = [b"event-%d" % number for number in range(6)]
BLOBS = [seal_entry(b"\0\0\0\0" + b"%d" % number * 8) for number in range(5)]


async def _write(backend: MemoryBackend) -> int:
    """One frame of five entries and an event, and a later frame. Returns the id of the ledger."""
    journal = await started(backend.store())
    for event, blob in zip(EVENTS, [*BLOBS, None], strict=True):
        journal.stage(event, blob)
    await journal.commit()
    journal.stage(b"later", seal_entry(b"\0\0\0\0later"))
    await journal.commit()
    return journal.ledgers[-1].ledger_id


async def _read(journal: Journal, ledger_id: int, entry: int) -> bytes | None:
    try:
        found = await journal.read(Position(ledger_id, entry), 1, 1 << 20)
    except CorruptJournal as error:
        assert f"entry {ledger_id}:{entry}" in str(error)
        return None
    return bytes(found[0].blob)


async def _check(backend: MemoryBackend, ledger_id: int, damaged: int) -> None:
    journal = await open_journal(backend.store())
    assert events_of(journal) == [*EVENTS, b"later"]
    await journal.start({"events": b""}, b"digest")
    for entry, blob in enumerate(BLOBS):
        expected = None if entry == damaged else blob
        assert await _read(journal, ledger_id, entry) == expected
    assert len(await journal.read(Position(ledger_id, damaged + 1), 9, 1 << 20)) == 5 - damaged
    (found,) = await find_damage(backend.store(), KEY, journal.ledgers)
    assert (found.ledger_id, found.first, found.end) == (ledger_id, damaged, damaged + 1)
    replayed = [each.blob is None async for each in replay(backend.store(), KEY, ledger_id)]
    assert replayed == [entry in (damaged, 5) for entry in range(7)]


@given(
    st.lists(st.tuples(st.integers(0, 2 * frames.LARGE), st.booleans()), max_size=6), st.binary()
)
def test_the_stated_checksums_of_entries_give_the_checksum_of_all_bytes(
    sizes: list[tuple[int, bool]], event: bytes
) -> None:
    bodies = [(bytes([number]) * size, sealed) for number, (size, sealed) in enumerate(sizes)]
    parts: list[Buffer] = []
    frames.stage_records(
        parts, [(event, seal_entry(body) if sealed else body) for body, sealed in bodies]
    )
    payload = b"".join(parts)
    head = frames.encode_frame(b"8 bytes.", 77, 1, 0, len(sizes), frames.gather(parts), flags=0)
    assert head == frames.encode_frame(b"8 bytes.", 77, 1, 0, len(sizes), [payload], flags=0)


@given(st.binary(max_size=40), st.binary(max_size=5), st.integers(0, 3_000_000))
def test_checksums_of_parts_are_joined(before: bytes, first: bytes, size: int) -> None:
    after = first + bytes(size)
    assert joined(crc32c(before), crc32c(after), len(after)) == crc32c(before + after)


def test_a_large_entry_that_changes_before_it_is_written_is_damaged() -> None:
    asyncio.run(_change_a_large_entry(MemoryBackend()))


async def _change_a_large_entry(backend: MemoryBackend) -> None:
    journal = await started(backend.store())
    entries = [bytearray(seal_entry(bytes([number]) * frames.LARGE)) for number in range(3)]
    for entry in entries:
        journal.stage(b"event", memoryview(entry))
    entries[1][1000] ^= 1
    await journal.commit()
    (found,) = await find_damage(backend.store(), KEY, journal.ledgers)
    assert (found.first, found.end) == (1, 2)


def test_the_magic_is_that_of_entries() -> None:
    assert frames.SEAL_MAGIC == CHECKSUM_MAGIC


def test_every_byte_of_a_frame() -> None:
    """A damaged byte is in one entry's content, which alone is lost; or the journal is refused."""
    outcomes = asyncio.run(_each_byte())
    assert outcomes.count("entry") == sum(len(blob) - 6 for blob in BLOBS)


async def _each_byte() -> list[str]:
    outcomes = []
    clean = MemoryBackend()
    ledger_id = await _write(clean)
    whole = clean.content(ledger_id)
    start = whole.index(EVENTS[0]) - frames.RECORD_HEADER_SIZE - frames.FRAME_HEADER_SIZE
    end = whole.index(b"later") - frames.RECORD_HEADER_SIZE - frames.FRAME_HEADER_SIZE
    for at in range(start, end):
        backend = MemoryBackend()
        await _write(backend)
        backend.put(ledger_id, whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        inside = [
            number
            for number, blob in enumerate(BLOBS)
            if whole.index(blob) + 6 <= at < whole.index(blob) + len(blob)
        ]
        if inside:
            await _check(backend, ledger_id, inside[0])
            outcomes.append("entry")
            continue
        try:
            await open_journal(backend.store())
        except CorruptJournal:
            outcomes.append("refused")
    assert len(outcomes) == end - start
    return outcomes
