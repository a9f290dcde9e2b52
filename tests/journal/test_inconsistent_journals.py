"""Ledgers and manifests with right checksums and wrong content: a newer format, a writer's bug, a
manual edit. The error names the file and the fault; the content is never guessed."""

from __future__ import annotations

import dataclasses
import struct

import msgpack
import pytest
from crc32c import crc32c

from tests.journal.testing import (
    KEY,
    MemoryBackend,
    events_of,
    on_disks,
    on_loop,
    open_journal,
    started,
    write,
)
from velaray.events.ids import EARLIEST
from velaray.events.segments import segment_digest
from velaray.journal import frames
from velaray.journal.checkpoint import read_checkpoint
from velaray.journal.errors import CorruptJournal, JournalError, UnsupportedFormat
from velaray.journal.journal import Journal
from velaray.journal.manifest import MAX_LEDGERS, LedgerInfo, Manifest, decode_manifest
from velaray.journal.replay import verify
from velaray.journal.scan import CHUNK, LedgerReader

SALT = b"8 bytes."
LEDGER = 7
HEADER = frames.encode_ledger_header(LEDGER, KEY, 1, SALT)


def _frame(at: int, *records: tuple[bytes, bytes | None], flags: int, sequence: int = 0) -> bytes:
    parts: list[bytes] = []
    frames.stage_records(parts, records)
    payload = b"".join(parts)
    return frames.encode_frame(SALT, at, sequence, 0, len(records), [payload], flags) + payload


async def _checkpoint(*described: tuple[int, tuple[tuple[bytes, bytes | None], ...], int]):
    """Read the checkpoint made of these frames: (flags, records, sequence) each."""
    image = HEADER
    for flags, records, sequence in described:
        image += _frame(len(image), *records, flags=flags, sequence=sequence)
    backend = MemoryBackend()
    store = backend.store()
    await store.write_manifest(KEY, 0, b"m")
    await (await store.create_ledger(KEY, LEDGER, image)).close()
    reader = await LedgerReader.open(store, KEY, LEDGER)
    info = LedgerInfo(LEDGER, 0, 0, len(image), 0, 0, len(image), sealed=False)
    return await read_checkpoint(reader, info)


def _marker(*addresses: list, version: int = 2):
    body = msgpack.packb([version, 0, b"digest", list(addresses)])
    return frames.CHECKPOINT | frames.CHECKPOINT_END, ((body, None),), 0


AT = len(HEADER)
SEGMENT = (frames.CHECKPOINT, ((b"name", b"body"),), 0)
BODY_AT = AT + frames.FRAME_HEADER_SIZE + frames.RECORD_HEADER_SIZE + len(b"name")
KNOWN = segment_digest(b"body")
PLACE = ["name", LEDGER, BODY_AT, 4, KNOWN]


@on_loop
async def test_a_checkpoint_holds_the_segments_that_its_marker_names():
    found = await _checkpoint(SEGMENT, _marker(PLACE))
    assert (found.sequence, found.digest, found.segments) == (0, b"digest", {"name": b"body"})
    assert (await _checkpoint(SEGMENT, _marker())).segments == {}


@pytest.mark.parametrize(
    "place",
    [
        ["name", LEDGER, BODY_AT, 5, KNOWN],
        ["name", LEDGER, BODY_AT, 4, segment_digest(b"else")],
        ["name", LEDGER, BODY_AT + 1, 4, KNOWN],
        ["other", LEDGER, BODY_AT, 4, KNOWN],
    ],
    ids=["size", "digest", "offset", "name"],
)
@on_loop
async def test_a_marker_that_names_a_missing_segment_is_refused(place):
    with pytest.raises(CorruptJournal, match=f"segment {place[0]!r} is not at ledger") as caught:
        await _checkpoint(SEGMENT, _marker(place))
    assert caught.value.offset == AT + len(_frame(AT, *SEGMENT[1], flags=SEGMENT[0]))


@on_loop
async def test_a_marker_that_names_a_segment_missing_in_another_ledger_is_refused():
    with pytest.raises(CorruptJournal, match="segment 'name' is gone") as caught:
        await _checkpoint(SEGMENT, _marker(["name", LEDGER + 1, 55, 4, KNOWN]))
    assert caught.value.offset == 55 and f"/{LEDGER + 1}.ledger" in caught.value.file


@on_loop
async def test_a_segment_without_a_body_is_ignored():
    with pytest.raises(CorruptJournal, match="segment 'name' is not at"):
        await _checkpoint((frames.CHECKPOINT, ((b"name", None),), 0), _marker(PLACE))


@on_loop
async def test_segments_behind_a_marker_or_with_another_sequence_are_ignored():
    with pytest.raises(CorruptJournal, match="belongs to no checkpoint") as caught:
        await _checkpoint(_marker(), SEGMENT)
    assert caught.value.offset > AT
    with pytest.raises(CorruptJournal, match="belongs to no checkpoint") as caught:
        await _checkpoint((*SEGMENT[:2], 1), _marker(PLACE))
    assert caught.value.offset == AT


@on_loop
async def test_a_checkpoint_of_a_newer_format_asks_for_an_upgrade():
    with pytest.raises(UnsupportedFormat, match="format version 3 is unknown here; upgrade"):
        await _checkpoint(SEGMENT, _marker(PLACE, version=3))


@on_disks
@on_loop
async def test_a_ledger_of_a_newer_format_asks_for_an_upgrade(backend):
    journal = await started(backend.store())
    await write(journal, b"a")
    info = journal.ledgers[0]
    content = bytearray(backend.content(info.ledger_id))
    size = len(frames.encode_ledger_header(info.ledger_id, KEY, 1, SALT))
    struct.pack_into("<H", content, 8, frames.FORMAT_VERSION + 1)
    struct.pack_into("<I", content, size - 4, crc32c(bytes(content[: size - 4])))
    backend.put(info.ledger_id, bytes(content))
    with pytest.raises(UnsupportedFormat, match=r"format version \d is unknown here; upgrade"):
        await open_journal(backend.store())
    assert backend.content(info.ledger_id) == content


@on_disks
@pytest.mark.parametrize(
    ("payload", "count", "problem"),
    [
        (b"\1\0\0\0\xff\xff\xff\xffa" + b"\0\0\0", 2, "starts beyond"),
        (b"\2\0\0\0\xff\xff\xff\xffa", 1, "ends beyond"),
        (b"\1\0\0\0\2\0\0\0a" + b"b", 1, "ends beyond"),
        (b"\1\0\0\0\xff\xff\xff\xffa" + b"rest", 1, "4 bytes after the frame's last record"),
    ],
)
@on_loop
async def test_records_that_do_not_fill_their_frame_are_refused(backend, payload, count, problem):
    journal = await started(backend.store())
    await write(journal, b"a")
    info = journal.ledgers[0]
    content = backend.content(info.ledger_id)[: info.bytes]
    salt = frames.decode_ledger_header("", content).salt
    header = frames.encode_frame(salt, info.bytes, 1, 1, count, [payload], 0)
    backend.put(info.ledger_id, content + header + payload)
    with pytest.raises(CorruptJournal, match=problem) as caught:
        await open_journal(backend.store())
    assert caught.value.offset == info.bytes


@pytest.mark.parametrize("ahead", [*range(-2, frames.FRAME_HEADER_SIZE + 2, 5), 500_000])
@on_loop
async def test_a_later_frame_is_found_at_any_distance_behind_the_damage(memory, ahead):
    """``ahead``: how far before the end of one read its header starts."""
    journal = await started(memory.store())
    await write(journal, b"a")
    info = journal.ledgers[0]
    overhead = frames.FRAME_HEADER_SIZE + 8 + len(b"big")
    await write(journal, b"big", blob=bytes(CHUNK - ahead - overhead))
    assert journal.ledgers[0].bytes == info.bytes + CHUNK - ahead
    await write(journal, b"later")
    memory.put_mark(info.ledger_id, None)
    content = memory.content(info.ledger_id)
    damaged = bytearray(content)
    damaged[info.bytes + 100] ^= 1
    memory.put(info.ledger_id, bytes(damaged))
    with pytest.raises(CorruptJournal, match=f"the later one at byte {info.bytes + CHUNK - ahead}"):
        await open_journal(memory.store())
    memory.put(info.ledger_id, content)
    assert events_of(await open_journal(memory.store())) == [b"a", b"big", b"later"]


# ------------------------------------------------------------------------ manifests


async def _rewritten(backend, change) -> Manifest:
    """A journal of two ledgers whose manifest was changed by hand. Returns what it was."""
    journal = await started(backend.store())
    await write(journal, b"a", b"b")
    await journal.roll({"events": b"a\nb"}, b"")
    await write(journal, b"c")
    await journal.close()
    store = backend.store()
    version, raw = await store.read_manifest(KEY)
    manifest = decode_manifest("", raw)
    first, last = change(*manifest.ledgers)
    changed = dataclasses.replace(manifest, ledgers=(first, last))
    await store.write_manifest(KEY, version, changed.encode())
    return manifest


def _damage_checkpoint(backend, info: LedgerInfo) -> None:
    content = bytearray(backend.content(info.ledger_id))
    content[info.data_offset - 1] ^= 1
    backend.put(info.ledger_id, bytes(content))


@on_disks
@on_loop
async def test_a_sealed_ledger_whose_counts_differ_from_the_manifest_is_refused(backend):
    manifest = await _rewritten(
        backend, lambda first, last: (dataclasses.replace(first, entries=3), last)
    )
    first, last = await verify(backend.store(), KEY)
    assert "the manifest lists 2 records with 3 entries, 2 with 2 are stored" in first.problems[0]
    assert last.problems == []
    # The state needs only the newest ledger, until its checkpoint can't be read.
    assert events_of(await open_journal(backend.store())) == [b"a", b"b", b"c"]
    _damage_checkpoint(backend, manifest.ledgers[1])
    with pytest.raises(CorruptJournal, match="lists 2 records with 3 entries, 2 with 2 are stored"):
        await open_journal(backend.store())


@on_disks
@on_loop
async def test_ledgers_that_are_not_adjacent_do_not_replace_each_other(backend):
    manifest = await _rewritten(
        backend, lambda first, last: (dataclasses.replace(first, records=3), last)
    )
    reports = await verify(backend.store(), KEY)
    assert "starts at sequence 2, not 3" in reports[1].problems[0]
    _damage_checkpoint(backend, manifest.ledgers[1])
    with pytest.raises(CorruptJournal) as caught:
        await open_journal(backend.store())
    assert caught.value.file == backend.store().location(KEY, manifest.ledgers[1].ledger_id)


@on_loop
async def test_a_journal_without_free_ledger_ids_reports_it_and_stays_readable(backend):
    journal = await started(backend.store())
    await write(journal, b"a")
    await journal.close()
    store = backend.store()
    version, raw = await store.read_manifest(KEY)
    former = decode_manifest("", raw)
    full = dataclasses.replace(former, epoch=former.epoch + 1, next_index=MAX_LEDGERS)
    await store.write_manifest(KEY, version, full.encode(), full.ownership)
    journal: Journal = await open_journal(backend.store())
    with pytest.raises(JournalError, match="all 16777216 ledger ids are used up"):
        await journal.start({"events": b"a"}, b"")
    (entry,) = await journal.read(EARLIEST, 9, 999)
    assert entry.event == b"a"
