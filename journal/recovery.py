"""Recovery of a journal: the newest checkpoint and everything after it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace

from velaray.journal.checkpoint import Checkpoint, read_checkpoint
from velaray.journal.errors import CorruptJournal, MissingKey, NotStored
from velaray.journal.index import SparseIndex
from velaray.journal.manifest import LedgerInfo, Manifest
from velaray.journal.scan import Continuity, LedgerReader, Record, decryptor_of, read_header
from velaray.journal.store import LedgerStore


@dataclass(frozen=True, slots=True)
class Recovered:
    """The content of a journal, as recovery read it.

    ``checkpoint`` is None for a journal without history. ``records`` are all records after the
    checkpoint, in order, without their blobs. ``damaged`` lists newer checkpoints that couldn't be
    read; the state is exact nevertheless, since all history after the older checkpoint was read
    instead. An operator should check those files.
    """

    checkpoint: Checkpoint | None = None
    records: list[Record] = field(default_factory=list)
    damaged: tuple[CorruptJournal, ...] = ()


@dataclass(frozen=True, slots=True)
class Tail:
    """The newest ledger as it was found; ``info`` has the counts of its valid records."""

    info: LedgerInfo
    index: SparseIndex


async def check_keys(store: LedgerStore, journal: str, ledgers: tuple[LedgerInfo, ...]) -> None:
    """Find the keys of the encrypted ledgers that recovery may read. It reads and writes nothing
    else. Raises `MissingKey`, and `PlainLedger` for a plain one if keys are required."""
    first = min((info.refers_from for info in ledgers[-2:]), default=0)
    needed = {info.key_id: info.ledger_id for info in ledgers if info.ledger_id >= first}
    for key_id, ledger_id in needed.items():
        if not key_id and not (store.keys is not None and store.keys.required):
            continue
        if store.keys is None:
            raise MissingKey(store.location(journal, ledger_id), key_id)
        with suppress(CorruptJournal, NotStored):  # recovery reports it, or needs it not
            await decryptor_of(store, await read_header(store, journal, ledger_id))


async def recover(
    store: LedgerStore, journal: str, ledgers: tuple[LedgerInfo, ...]
) -> tuple[Recovered, Tail | None]:
    """Read the newest readable checkpoint and the records after it.

    ``ledgers`` are the listed ones; only the last may be unsealed, and its counts are not trusted.
    Raises `CorruptJournal` or `NotStored` if anything needed for an exact state is damaged or
    missing. Blobs aren't needed.
    """
    if not ledgers:
        return Recovered(), None
    first, checkpoint, damaged = await _newest_checkpoint(store, journal, ledgers)
    records: list[Record] = []
    tail: Tail | None = None
    for info in ledgers[first:]:
        reader = await LedgerReader.open(store, journal, info.ledger_id, blobs=False)
        tail = await _read_history(reader, info, records)
    return Recovered(checkpoint, records, tuple(damaged)), tail


async def _newest_checkpoint(
    store: LedgerStore, journal: str, ledgers: tuple[LedgerInfo, ...]
) -> tuple[int, Checkpoint, list[CorruptJournal]]:
    damaged: list[CorruptJournal] = []
    needed: int | None = None
    for at in range(len(ledgers) - 1, -1, -1):
        info = ledgers[at]
        if needed is not None and info.next_sequence != needed:
            break
        try:
            reader = await LedgerReader.open(store, journal, info.ledger_id)
            return at, await read_checkpoint(reader, info), damaged
        except CorruptJournal as error:
            damaged.append(error)
            needed = info.first_sequence
    raise damaged[0]


async def _read_history(reader: LedgerReader, info: LedgerInfo, records: list[Record]) -> Tail:
    continuity = Continuity(reader, info.first_sequence)
    index = SparseIndex()
    end = info.data_offset
    async for frame in reader.history(info, damaged=True):
        index.note(frame.header.entry, frame.offset)
        records.extend(record for record, _ in continuity.records(frame))
        end = frame.end
    count = continuity.next_sequence - info.first_sequence
    found = replace(info, records=count, entries=continuity.next_entry, bytes=end)
    if info.sealed and found != info:
        raise CorruptJournal(
            reader.file,
            end,
            f"the manifest lists {info.records} records with {info.entries} entries, "
            f"{count} with {found.entries} are stored",
        )
    return Tail(found, index)


async def sweep_orphans(store: LedgerStore, journal: str, manifest: Manifest) -> list[int]:
    """Delete ledgers that were created but never listed; returns their ids.

    Only the owner may call this, with the manifest that made it the owner. A ledger is listed by a
    compare-and-set of the manifest by the owner that created it. The creator of an orphan has been
    superseded since, so it can't list it any more. The orphan's index is below the manifest's
    ``next_index``, so no ledger of that name is ever created again, and a superseded owner that
    removes its own orphan can't remove a ledger of the new owner.
    """
    listed = {info.ledger_id for info in manifest.ledgers}
    swept: list[int] = []
    for ledger_id in await store.list_ledgers(journal):
        if ledger_id in listed or ledger_id >= manifest.ledger_id(manifest.next_index):
            continue
        with suppress(NotStored):  # it is being deleted, or only its index exists
            if not await is_owned(store, journal, ledger_id):
                continue
        await store.delete_ledger(journal, ledger_id)
        swept.append(ledger_id)
    return swept


async def is_owned(store: LedgerStore, journal: str, ledger_id: int) -> bool:
    """Whether a stored ledger belongs to the journal, or its header is incomplete. Raises
    `NotStored`."""
    try:
        await read_header(store, journal, ledger_id)
    except CorruptJournal as error:
        # An incomplete header is that of an interrupted creation. A ledger with a complete header
        # that names another journal must stay.
        return not error.detail.startswith("the header names")
    return True
