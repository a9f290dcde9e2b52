"""Damage to the bytes of an entry, which has a checksum of its own: only that entry is lost."""

from __future__ import annotations

import asyncio

from tests.journal.testing import (
    KEY,
    MemoryBackend,
    events_of,
    open_journal,
    started,
)
from velaray.events.ids import Position
from velaray.journal import frames
from velaray.journal.damage import find_damage
from velaray.journal.errors import CorruptJournal
from velaray.journal.journal import Journal
from velaray.journal.replay import replay
from velaray.wire.frames import CHECKSUM_MAGIC, seal_entry

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
