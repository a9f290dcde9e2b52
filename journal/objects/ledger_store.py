"""Journals in an object store; implements `LedgerStore`.

::

    journals/<journal>                         the journal's record (its manifest and its places)
    ledgers/<journal>/<ledger id>/<part>       runs of a ledger's bytes, written once
    hosts/<incarnation>/<number>               the log of one process, see `host_log`
    numbers                                    the next journal number

An append goes to the log of the process, together with those of its other journals, so the number
of requests doesn't grow with the number of journals. Later the bytes are *unpacked* into parts.

Life of an activation: the *take* replaces the record (status opening, the former owner's tail
stays). `sync_ledger` or the first read adopts the tail: it ends the former owner's log and reads
the journal's chunks. The first append copies them to this process's log, before anything else.
When they are committed, the owner lists its first ledger, and the record's tail becomes its own.
Only after that anything is acknowledged.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from velaray.events.backoff import RandomSource
from velaray.journal.encryption.keys import LedgerKeys
from velaray.journal.errors import (
    CorruptJournal,
    JournalError,
    LedgerExists,
    ManifestConflict,
    NotStored,
    SyncFailed,
)
from velaray.journal.objects.activation import Activation, Runs
from velaray.journal.objects.adoption import BeforeSeal, LogReader
from velaray.journal.objects.bodies import Chunk, Kind, decode_body
from velaray.journal.objects.conditional import PATIENCE_S, ConditionalObjects, Replaced, Taken
from velaray.journal.objects.ended_logs import EndedLogs
from velaray.journal.objects.host_log import HostLog, HostLogSettings, LogSealed
from velaray.journal.objects.housekeeping import Housekeeper, HousekeepingSettings
from velaray.journal.objects.journal_record import (
    JOURNALS,
    JournalRecord,
    Status,
    Tail,
    index_object,
    journals_of_records,
    ledger_prefix,
    record_object,
)
from velaray.journal.objects.log_writer import LogWriter
from velaray.journal.objects.numbers import BLOCK, JournalNumbers
from velaray.journal.objects.object_store import ObjectStore
from velaray.journal.objects.reading import Views, end_of, read_bytes, read_record
from velaray.journal.objects.sealing import GONE, AskOwner, SealPatience, incarnation_name
from velaray.journal.store import Counters, Ownership, StoredManifest

READ_RECORDS = 64
"""Records that stay in memory between the read of a manifest and the take of its journal."""


class ObjectLedgerStore:
    """The journals of one process in an object store. Use it from one event loop.

    ``generation`` counts the starts of the cluster: logs of earlier ones are ended at once.
    """

    def __init__(
        self,
        objects: ObjectStore,
        number_base: int = 0,
        settings: HostLogSettings | None = None,
        *,
        generation: int = 0,
        before_seal: BeforeSeal | None = None,
        ask_owner: AskOwner | None = None,
        random_bytes: Callable[[int], bytes] = os.urandom,
        source: RandomSource = random,
        number_block: int = BLOCK,
        housekeeping: HousekeepingSettings | None = None,
        patience_s: float = PATIENCE_S,
        keys: LedgerKeys | None = None,
    ) -> None:
        self.keys = keys
        self.objects = ConditionalObjects(objects, random_bytes, source, patience_s)
        self.counters = Counters()
        patience = SealPatience(self.objects, generation, ask=ask_owner)
        self.logs = LogReader(self.objects, before_seal or patience.wait)
        self._generation = generation
        self._settings = settings or HostLogSettings()
        self._random_bytes = random_bytes
        self._numbers = JournalNumbers(self.objects, number_base, number_block)
        self._log: HostLog | None = None
        self._views = Views(self.objects, self.logs)
        self._read: dict[str, tuple[JournalRecord, str]] = {}
        self.activations: dict[str, Activation] = {}
        self.housekeeper = Housekeeper(
            self, housekeeping or HousekeepingSettings(), EndedLogs(self.objects, self.logs)
        )

    def salt(self) -> bytes:
        """8 random bytes."""
        return self._random_bytes(8)

    def location(self, journal: str, ledger_id: int | None = None) -> str:
        """The address of a journal's record, or where the parts of a ledger begin."""
        if ledger_id is None:
            return self.objects.location(record_object(journal))
        return self.objects.location(ledger_prefix(journal, ledger_id))

    @property
    def log(self) -> HostLog:
        """The log of this process; a new one after the former has failed."""
        if self._log is None or self._log.failure is not None:
            incarnation = incarnation_name(self._generation, self._random_bytes(16).hex())
            self._log = HostLog(self.objects, incarnation, self._settings, self._log_died)
        return self._log

    def _log_died(self, error: JournalError) -> None:
        for activation in self.activations.values():
            if activation.log.failure is not None:
                activation.end_it()

    def _leave(self, activation: Activation) -> None:
        """End an activation; its chunks are kept until no record needs them."""
        activation.end_it()
        self.housekeeper.left(activation)

    # ---------------------------------------------------------------- manifest

    async def read_manifest(self, journal: str) -> StoredManifest | None:
        """The manifest in the journal's record; see `LedgerStore`."""
        found = await read_record(self.objects, journal)
        if found is None:
            return None
        self._read[journal] = found
        if len(self._read) > READ_RECORDS:
            del self._read[next(iter(self._read))]
        self.counters.reads += 1
        self.counters.bytes_read += len(found[0].manifest)
        return StoredManifest(found[0].version, found[0].manifest)

    async def write_manifest(
        self, journal: str, expected: int, data: bytes, owner: Ownership | None = None
    ) -> int:
        """Replace the journal's record; see `LedgerStore`. A higher epoch takes the journal."""
        mine = self.activations.get(journal)
        if (
            mine is not None
            and mine.record.version == expected
            and (owner is None or owner.epoch == mine.epoch)
        ):
            async with mine.lock:
                await self._update(mine, expected, data, owner)
        else:
            await self._take(journal, expected, data, owner)
        self.counters.bytes_written += len(data)
        return expected + 1

    async def _take(
        self, journal: str, expected: int, data: bytes, owner: Ownership | None
    ) -> None:
        # If what was read for the take is out of date, the write is refused.
        found = self._read.pop(journal, None) or await read_record(self.objects, journal)
        if found is None:
            await self._refuse_leftovers(journal)
        former = found[0] if found is not None else None
        if (former.version if former is not None else 0) != expected:
            raise ManifestConflict(journal, expected)
        if former is not None and owner is not None and owner.epoch <= former.epoch:
            # The owner's activation here has ended. A take would list what only its log has.
            raise ManifestConflict(journal, expected)
        epoch = owner.epoch if owner is not None else expected + 1
        log, name = self.log, record_object(journal)
        record = JournalRecord(
            version=expected + 1,
            revision=former.revision + 1 if former is not None else 1,
            epoch=epoch,
            owner=log.incarnation,
            status=Status.OPENING,
            tail=former.tail if former is not None else None,
            listed=former.listed if former is not None else frozenset(),
            parts=former.parts if former is not None else {},
            manifest=data,
        )
        if owner is not None:
            record = record.listing(owner.ledgers)
        try:
            if found is None:
                tag = await self.objects.create(name, Kind.MANIFEST, record.encode())
            else:
                tag = await self.objects.replace(name, Kind.MANIFEST, record.encode(), found[1])
        except (Taken, Replaced):
            raise ManifestConflict(journal, expected) from None
        former_owner = self.activations.get(journal)
        if former_owner is not None and former_owner.epoch > epoch:
            # Another owner in this process took the journal before the store's answer arrived.
            raise ManifestConflict(journal, record.version)
        if former_owner is not None:
            self._leave(former_owner)
        self._views.drop(journal)
        self.activations[journal] = Activation(journal, epoch, log, record, tag)

    async def _refuse_leftovers(self, journal: str) -> None:
        """Raise `CorruptJournal` if a journal without a record has ledgers: the record is lost."""
        if stored := await self.objects.list(ledger_prefix(journal)):
            problem = f"the record is missing, and {stored[0]} is stored"
            raise CorruptJournal(self.location(journal), 0, problem)

    async def _update(
        self, mine: Activation, expected: int, data: bytes, owner: Ownership | None
    ) -> None:
        """Write the owner's next manifest; its first one with a ledger makes the tail its own."""
        if mine.cut or mine.record.version != expected:
            raise ManifestConflict(mine.journal, expected)
        record = replace(mine.record, version=expected + 1, manifest=data)
        if owner is not None:
            record = record.listing(owner.ledgers)
        if record.status is Status.OPENING and mine.first_number >= 0:
            await self._settled(mine, expected)
            tail = Tail(mine.log.incarnation, mine.first_number, mine.epoch)
            record = replace(record, status=Status.OPEN, tail=tail)
        await self.replace_record(mine, record)
        if record.status is Status.OPEN:
            # The copies in the own log are what is read from now on.
            mine.adopted, mine.adoption = Runs(), None

    async def _settled(self, mine: Activation, expected: int) -> None:
        try:
            await mine.settled()
        except LogSealed as error:
            raise ManifestConflict(mine.journal, expected) from error

    async def replace_record(self, mine: Activation, record: JournalRecord) -> None:
        """Write an owner's record; hold its lock. Raises `ManifestConflict` if the journal isn't
        its own any more, `SyncFailed` if that is unknown; both cut it."""
        record = replace(record, revision=mine.record.revision + 1)
        name = record_object(mine.journal)
        mine.is_writing = True
        try:
            mine.tag = await self.objects.replace(name, Kind.MANIFEST, record.encode(), mine.tag)
        except Replaced:
            mine.end_it()
            raise ManifestConflict(mine.journal, mine.record.version) from None
        except SyncFailed:
            mine.end_it()
            raise
        mine.is_writing = False
        mine.record = record
        if mine.cut:
            raise ManifestConflict(mine.journal, record.version)

    async def holds(self, journal: str, version: int, within_s: float = 0.0) -> bool:
        """Look whether another process ended the log of this one; see `LedgerStore`.

        An owner whose tail is in the log is superseded when its successor seals the log, not when
        it takes the journal. All journals of this process share a look.
        """
        mine = self.activations.get(journal)
        if mine is None or mine.cut or mine.record.version != version:
            return False
        if mine.record.status is Status.OPEN:
            alive = await mine.log.is_alive(within_s)
        else:
            found = await read_record(self.objects, journal)
            alive = found is not None and found[0].is_same_write(mine.record)
        return alive and not mine.cut and mine.record.version == version

    async def release(self, journal: str, version: int) -> None:
        """Close the journal, so that the next owner needs no SEAL; see `LedgerStore`."""
        mine = self.activations.get(journal)
        if mine is None or mine.record.version != version:
            return
        async with mine.lock:
            if not mine.cut and mine.record.status is Status.OPEN:
                with suppress(ManifestConflict, SyncFailed, LogSealed):
                    await self._close_record(mine)
            if self.activations.get(journal) is mine:
                del self.activations[journal]
            self._leave(mine)

    async def release_to_successor(self, journal: str, tail: Tail) -> int:
        """Cut this process's activation of a journal that another process has taken.

        Returns the number of the log below which everything of it is, or `GONE` if ``tail`` isn't
        in this process's log, or that log has failed. The activation acknowledges nothing more.
        """
        log = self._log
        if log is None or log.incarnation != tail.incarnation:
            return GONE
        mine = self.activations.get(journal)
        if mine is not None and mine.log is log and mine.epoch <= tail.epoch:
            mine.end_it()
        try:
            await log.wait_for_all()
        except (LogSealed, SyncFailed):
            return GONE
        return log.committed

    async def _close_record(self, mine: Activation) -> None:
        await mine.settled()
        tail = mine.record.tail
        assert tail is not None
        end = max(tail.first, mine.log.committed)
        closed = replace(mine.record, status=Status.CLOSED, tail=tail._replace(end=end))
        # From here on: what is stored at the end or behind it must not be acknowledged.
        mine.end_it()
        await self.replace_record(mine, closed)

    async def claim_number(self, owner: str) -> int:
        """A number of this process's block; see `LedgerStore`."""
        return await self._numbers.claim()

    def write_in_work(self) -> None:
        """None: writes are requests to the object store; see `LedgerStore`."""

    async def numbers_taken(self) -> int:
        """The end of the newest block; see `LedgerStore`."""
        return await self._numbers.taken()

    async def take_numbers(self, until: int) -> None:
        """Begin the next block behind them; see `LedgerStore`."""
        await self._numbers.take(until)

    # ---------------------------------------------------------------- ledgers

    async def create_ledger(
        self, journal: str, ledger_id: int, header: bytes, epoch: int = 0
    ) -> LogWriter:
        """Create a ledger, which is stored with its first append; see `LedgerStore`."""
        mine = self.activations.get(journal)
        if mine is None or mine.cut or epoch not in (0, mine.epoch):
            if await read_record(self.objects, journal) is None:
                raise NotStored(self.location(journal))
            raise ManifestConflict(journal, mine.record.version if mine else 0)
        if ledger_id in mine.created or ledger_id in mine.record.parts:
            raise LedgerExists(self.location(journal, ledger_id))
        mine.created.add(ledger_id)
        return LogWriter(self, mine, ledger_id, header)

    async def adopt(self, mine: Activation) -> None:
        """Read the tail of the former owner of a journal that is opening, once."""
        if mine.record.status is not Status.OPENING or mine.record.tail is None:
            return
        if mine.adoption is None:
            mine.adoption = asyncio.create_task(self._adopt(mine, mine.record.tail))
        mine.adopted = Runs(await asyncio.shield(mine.adoption))

    async def _adopt(self, mine: Activation, tail: Tail) -> list[Chunk]:
        log = self._log
        if log is not None and tail.incarnation == log.incarnation and tail.end < 0:
            # A former activation in this process, which is cut: its log goes on.
            with suppress(LogSealed, SyncFailed):
                await log.wait_for_all()
                tail = tail._replace(end=max(tail.first, log.committed))
        chunks = await self.logs.adopt(mine.journal, tail)
        # The id of a ledger that its creator didn't list may be used again.
        return [chunk for chunk in chunks if chunk.ledger_id in mine.record.listed]

    async def read(self, journal: str, ledger_id: int, offset: int, length: int) -> bytes:
        """Bytes of a ledger, from its parts and from logs; see `LedgerStore`."""
        mine = self.activations.get(journal)
        if mine is None or mine.cut:
            raw = await self._views.read(journal, ledger_id, offset, length)
        else:
            raw = await self._read_own(mine, ledger_id, offset, length)
        self.counters.reads += 1
        self.counters.bytes_read += len(raw)
        return raw

    async def _read_own(self, mine: Activation, ledger_id: int, offset: int, length: int) -> bytes:
        await self.adopt(mine)
        while True:
            record, runs = mine.record, self._runs(mine, ledger_id)
            parts = record.parts.get(ledger_id, ())
            if not parts and ledger_id not in runs.by_ledger and ledger_id not in mine.created:
                raise NotStored(self.location(mine.journal, ledger_id))
            try:
                return await read_bytes(self.objects, parts, runs, ledger_id, offset, length)
            except NotStored:
                if mine.record is record:
                    raise
                # A newer record has another part in its place.

    def _runs(self, mine: Activation, ledger_id: int) -> Runs:
        return mine.runs if ledger_id in mine.runs.by_ledger else mine.adopted

    async def read_mark(self, journal: str, ledger_id: int) -> bytes | None:
        """None: objects are whole or absent, so ledgers need no marks."""
        return None

    async def size(self, journal: str, ledger_id: int) -> int:
        """Bytes of a ledger; see `LedgerStore`."""
        mine = self.activations.get(journal)
        if mine is None or mine.cut:
            return await self._views.size(journal, ledger_id)
        await self.adopt(mine)
        parts, runs = mine.record.parts.get(ledger_id, ()), self._runs(mine, ledger_id)
        if not parts and ledger_id not in runs.by_ledger:
            raise NotStored(self.location(journal, ledger_id))
        return max(end_of(parts), runs.end(ledger_id))

    async def sync_ledger(self, journal: str, ledger_id: int) -> None:
        """End the former owner's log and read what it appended; see `LedgerStore`."""
        mine = self.activations.get(journal)
        if mine is not None and not mine.cut:
            await self.adopt(mine)
        else:
            await self._views.size(journal, ledger_id)

    async def write_index(self, journal: str, ledger_id: int, data: bytes) -> None:
        """Store an index beside the ledger's parts; see `LedgerStore`."""
        mine = self.activations.get(journal)
        if mine is None or mine.cut:
            raise NotStored(self.location(journal))
        with suppress(Taken):
            await self.objects.create(index_object(journal, ledger_id), Kind.INDEX, data)
        self.counters.bytes_written += len(data)

    async def read_index(self, journal: str, ledger_id: int) -> bytes | None:
        """A ledger's index; see `LedgerStore`."""
        name = index_object(journal, ledger_id)
        found = await self.objects.get(name)
        self.counters.reads += 1
        if found is None:
            return None
        return bytes(decode_body(name, self.objects.location(name), found.data, Kind.INDEX).payload)

    async def list_ledgers(self, journal: str) -> list[int]:
        """The ledgers that have parts, are listed, or were created by this owner; see
        `LedgerStore`."""
        prefix = ledger_prefix(journal)
        folders = {name[len(prefix) :].split("/")[0] for name in await self.objects.list(prefix)}
        stored = {int(folder) for folder in folders if folder.isdecimal()}
        mine = self.activations.get(journal)
        if mine is not None and not mine.cut:
            return sorted(stored | mine.created | mine.record.listed)
        found = self._read.get(journal) or await read_record(self.objects, journal)
        return sorted(stored | found[0].listed if found is not None else stored)

    async def has_ledgers(self, journal: str, below: int) -> bool:
        """Whether a ledger below that is stored; see `LedgerStore`."""
        return any(ledger_id < below for ledger_id in await self.list_ledgers(journal))

    async def list_journals(self, under: str = "") -> list[str]:
        """The journals that have a record; see `LedgerStore`."""
        names = await self.objects.list(f"{JOURNALS}/")
        journals = journals_of_records(names)
        return [name for name in journals if not under or f"{name}/".startswith(f"{under}/")]

    async def delete_ledger(self, journal: str, ledger_id: int) -> None:
        """Delete a ledger's parts and index; see `LedgerStore`."""
        await self.objects.delete(await self.objects.list(ledger_prefix(journal, ledger_id)))
        mine = self.activations.get(journal)
        if mine is not None:
            mine.created.discard(ledger_id)

    async def delete_journal(self, journal: str) -> None:
        """Delete everything of a journal; see `LedgerStore`."""
        mine = self.activations.pop(journal, None)
        if mine is not None:
            self._leave(mine)
        await self.objects.delete(await self.objects.list(ledger_prefix(journal)))
        await self.objects.delete([record_object(journal)])
        self._views.drop(journal)

    async def close(self) -> None:
        """Commit what is staged and stop; see `LedgerStore`."""
        await self.housekeeper.close()
        if self._log is not None and self._log.failure is None:
            with suppress(LogSealed, SyncFailed):
                await self._log.close()
        await self.logs.close()
        await self.objects.objects.close()
