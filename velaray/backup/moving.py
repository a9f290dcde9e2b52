"""Copies journals without an active owner into an empty store."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Final

from velaray.backup.cut import Moment, cut_ledger
from velaray.journal.errors import CorruptJournal, ManifestConflict
from velaray.journal.frames import LEDGER_HEADER_READ, decode_ledger_header
from velaray.journal.manifest import LedgerInfo, Manifest, decode_manifest
from velaray.journal.objects.bodies import Kind
from velaray.journal.objects.journal_record import (
    JournalRecord,
    Part,
    Status,
    part_object,
    record_object,
)
from velaray.journal.objects.ledger_store import ObjectLedgerStore
from velaray.journal.store import LedgerStore, Ownership
from velaray.topology.fan_out import each

PART_BYTES: Final = 4 << 20
"""Bytes of a ledger that are in memory at once, and in one object of an object store."""
AT_ONCE: Final = 8
"""Journals that are copied at the same time."""


@dataclass(slots=True)
class Moved:
    """What was copied."""

    journals: int = 0
    ledgers: int = 0
    bytes: int = 0


async def copy_journals(
    source: LedgerStore, target: LedgerStore, records: Collection[str]
) -> Moved:
    """Copy all journals except ``records``, and take the numbers that were given in the source.

    All ledgers in the target are sealed. If it fails, the target has a part of the journals.
    Raises `CorruptJournal` if anything is damaged at the end of a journal, `ManifestConflict` if
    the target isn't empty, and what both stores raise.
    """
    moved = Moved()
    names = [key for key in await source.list_journals() if key not in records]
    await target.take_numbers(await source.numbers_taken())
    await each(names, lambda key: _copy_journal(source, target, key, moved), AT_ONCE)
    return moved


async def _copy_journal(source: LedgerStore, target: LedgerStore, key: str, moved: Moved) -> None:
    found = await source.read_manifest(key)
    if found is None:
        return  # a journal whose creation or deletion was interrupted
    manifest = decode_manifest(source.location(key), found.data).without_marks()
    cuts = [await cut_ledger(source, key, info, Moment(None), None) for info in manifest.ledgers]
    manifest = replace(manifest, ledgers=tuple(cut.info for cut in cuts))
    if isinstance(target, ObjectLedgerStore):
        await _write_objects(source, target, key, manifest)
    else:
        await _write_ledgers(source, target, key, manifest)
    moved.journals += 1
    moved.ledgers += len(manifest.ledgers)
    moved.bytes += sum(info.bytes for info in manifest.ledgers)


async def _write_ledgers(
    source: LedgerStore, target: LedgerStore, key: str, manifest: Manifest
) -> None:
    """Write a journal as an owner does, through the store."""
    bare = replace(manifest, ledgers=())
    version = await target.write_manifest(
        key, 0, bare.encode(), Ownership(manifest.epoch, frozenset())
    )
    for info in manifest.ledgers:
        first = await _read(source, key, info, 0, min(LEDGER_HEADER_READ, info.bytes))
        header = decode_ledger_header(source.location(key, info.ledger_id), first)
        writer = await target.create_ledger(
            key, info.ledger_id, first[: header.size], manifest.epoch
        )
        at = header.size
        while at < info.bytes:
            end = min(at - at % PART_BYTES + PART_BYTES, info.bytes)
            data = await _read(source, key, info, at, end - at)
            if not await writer.append([data], confirm=None if at == header.size else version):
                raise ManifestConflict(key, version)
            at += len(data)
        await writer.close()
    if manifest.ledgers:
        version = await target.write_manifest(key, version, manifest.encode(), manifest.ownership)
    await target.release(key, version)


async def _write_objects(
    source: LedgerStore, target: ObjectLedgerStore, key: str, manifest: Manifest
) -> None:
    """Write the parts of a journal, then its record as after an orderly close: it needs no log."""
    places: dict[int, tuple[Part, ...]] = {}
    for info in manifest.ledgers:
        parts: list[Part] = []
        for at in range(0, info.bytes, PART_BYTES):
            data = await _read(source, key, info, at, min(PART_BYTES, info.bytes - at))
            write_id = target.objects.new_write_id()
            name = part_object(key, info.ledger_id, manifest.epoch, at, write_id)
            await target.objects.create(name, Kind.PART, data)
            parts.append(Part(at, len(data), name))
        places[info.ledger_id] = tuple(parts)
    record = JournalRecord(
        version=1,
        revision=1,
        epoch=manifest.epoch,
        owner="",
        status=Status.CLOSED,
        tail=None,
        listed=manifest.ownership.ledgers,
        parts=places,
        manifest=manifest.encode(),
    )
    await target.objects.create(record_object(key), Kind.MANIFEST, record.encode())


async def _read(source: LedgerStore, key: str, info: LedgerInfo, start: int, length: int) -> bytes:
    data = await source.read(key, info.ledger_id, start, length)
    if len(data) != length:
        place = source.location(key, info.ledger_id)
        raise CorruptJournal(place, start + len(data), f"ends before byte {info.bytes}")
    return data
