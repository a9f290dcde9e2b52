"""Makes a backup of all journals of a cluster, which may serve meanwhile.

The backup has every journal as it was at one moment. That is a state that a crash of all processes
at this moment could have left: what an actor writes because of another's frame has a later time
than that frame, since only durable frames have effects elsewhere. So the frames up to a moment
contain the causes of all of them. See docs/decisions/0045-backups.md.

Sealed ledgers are copied first, without a moment. Then the manifests are read, the moment passes,
and the rest is copied up to it. If a ledger that the moment needs is deleted before it was copied,
another moment is taken; what was copied is kept. At the last moment journals that are deleted are
left out, and named: if topics or subscriptions are deleted all the time, no moment has all of them.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Final

from velaray.backup.blobs import BlobExists, Blobs
from velaray.backup.cut import (
    ClockWentBack,
    CutLedger,
    Known,
    Moment,
    cut_ledger,
    removed_between,
    unlisted_by_events,
    with_removed,
)
from velaray.backup.listing import (
    PARTS,
    Listing,
    StoredJournal,
    StoredLedger,
    StoredPart,
    numbers_of,
    write_begun,
    write_listing,
)
from velaray.events.ids import ActorKey, ActorKind
from velaray.journal.errors import Contended, CorruptJournal, JournalError, NotStored
from velaray.journal.manifest import LedgerInfo, Manifest, decode_manifest
from velaray.journal.store import LedgerStore
from velaray.topology.fan_out import each

NUMBER_TRIES: Final = 100


@dataclass(frozen=True, slots=True)
class BackupSettings:
    """``skew_ms`` is the largest difference of the clocks of the cluster's processes and this one.
    A part has at most ``part_bytes``; ``at_once`` journals are copied at the same time.
    ``attempts`` is the number of moments that are tried."""

    skew_ms: int = 1000
    part_bytes: int = 4 << 20
    at_once: int = 8
    attempts: int = 4


@dataclass(slots=True)
class Copied:
    """What a backup copied."""

    parts: int = 0
    bytes: int = 0


class Vanished(JournalError):
    """A ledger was deleted before it was copied, in every attempt."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} was deleted while the backup was made, as happened in every attempt; repeat "
            "the backup when fewer entries are being deleted"
        )


async def create_backup(
    store: LedgerStore,
    blobs: Blobs,
    former: Listing | None,
    *,
    clock_ms: Callable[[], int],
    records: Collection[str] = (),
    settings: BackupSettings | None = None,
) -> tuple[Listing, Copied]:
    """Make a backup and return its listing; on return it is complete and durable.

    ``former`` is an earlier backup in ``blobs`` whose bytes are used again (None: there is none).
    ``records`` are the journals whose manifests aren't those of journals. If it fails, the backup
    stays incomplete, and earlier ones are as they were. Raises `Vanished`, `ClockWentBack`,
    `CorruptJournal`, and what both stores raise.
    """
    began_ms = clock_ms()
    number = await _claim(blobs)
    maker = _Maker(store, blobs, former, clock_ms, frozenset(records), settings or BackupSettings())
    await maker.copy_sealed()
    content = await maker.at_a_moment()
    listing = Listing(
        number=number,
        began_ms=began_ms,
        moment_ms=content.moment_ms,
        completed_ms=clock_ms(),
        numbers=content.numbers,
        records=content.records,
        journals=content.journals,
        left_out=content.left_out,
    )
    await write_listing(blobs, listing)
    return listing, maker.copied


async def _claim(blobs: Blobs) -> int:
    number = max(await numbers_of(blobs), default=0)
    for _ in range(NUMBER_TRIES):
        number += 1
        try:
            await write_begun(blobs, number)
        except BlobExists:
            continue
        return number
    raise Contended(blobs.location(""), NUMBER_TRIES)


@dataclass(frozen=True, slots=True)
class _Content:
    moment_ms: int
    numbers: int
    records: Mapping[str, bytes]
    journals: Mapping[str, StoredJournal]
    left_out: tuple[str, ...]


class _Deleted(JournalError):
    """The journal was deleted before it was copied."""


class _Maker:
    def __init__(
        self,
        store: LedgerStore,
        blobs: Blobs,
        former: Listing | None,
        clock_ms: Callable[[], int],
        records: frozenset[str],
        settings: BackupSettings,
    ) -> None:
        self._store = store
        self._blobs = blobs
        self._clock_ms = clock_ms
        self._records = records
        self._settings = settings
        self._stored: dict[int, StoredLedger] = {}
        self._known: dict[int, Known] = {}
        self.copied = Copied()
        if former is not None:
            self._use(former)

    def _use(self, former: Listing) -> None:
        for key, journal in former.journals.items():
            self._stored.update(journal.ledgers)
            for info in decode_manifest(key, journal.manifest).ledgers:
                salt = journal.ledgers[info.ledger_id].salt
                self._known[info.ledger_id] = Known(salt, info, former.moment_ms)

    # -- before the moment ---------------------------------------------------------

    async def copy_sealed(self) -> None:
        """Copy the sealed ledgers, so that the time between the moment and the end is short."""
        await each(await self._names(), self._copy_sealed, self._settings.at_once)

    async def _copy_sealed(self, key: str) -> None:
        manifest = await self._manifest(key)
        for info in manifest.ledgers if manifest is not None else ():
            if info.sealed:
                try:
                    known = self._known.get(info.ledger_id)
                    cut = await cut_ledger(self._store, key, info, Moment(None), known)
                    await self._copy(key, cut, info.sealed_ms)
                except NotStored:
                    continue  # it was trimmed

    async def _names(self) -> list[str]:
        found = await self._store.list_journals()
        return [key for key in found if key not in self._records]

    async def _manifest(self, key: str) -> Manifest | None:
        found = await self._store.read_manifest(key)
        if found is None:
            return None
        # A backup has all bytes of a ledger that is in an archive.
        return decode_manifest(self._store.location(key), found.data).without_marks()

    # -- the moment ----------------------------------------------------------------

    async def at_a_moment(self) -> _Content:
        """Copy everything as it is at one moment. Raises `Vanished`, `ClockWentBack`."""
        for _ in range(self._settings.attempts - 1):
            try:
                return await self._try(is_last=False)
            except (Vanished, ClockWentBack):
                continue
        return await self._try(is_last=True)

    async def _try(self, *, is_last: bool) -> _Content:
        names, at_once = await self._names(), self._settings.at_once
        manifests = await each(names, self._manifest, at_once)
        before = {key: found for key, found in zip(names, manifests, strict=True) if found}
        # Later than everything that was acknowledged before, by any clock.
        moment = Moment(self._clock_ms() + self._settings.skew_ms, self._settings.skew_ms)
        assert moment.at_ms is not None
        await self._pass(moment.at_ms + self._settings.skew_ms)
        names = sorted({*before, *await self._names()})
        left_out: list[str] = []

        async def copy(key: str) -> StoredJournal | None:
            try:
                return await self._copy_journal(key, before.get(key), moment)
            except _Deleted as error:
                if not is_last:
                    raise Vanished(key) from error
                left_out.append(key)
                return None

        found = await each(names, copy, at_once)
        records = {key: await self._store.read_manifest(key) for key in sorted(self._records)}
        journals = {key: each for key, each in zip(names, found, strict=True) if each is not None}
        left_out += [key for key in journals if _belongs_to(key, left_out)]
        return _Content(
            moment.at_ms,
            await self._store.numbers_taken(),
            {key: each.data for key, each in records.items() if each is not None},
            {key: each for key, each in journals.items() if key not in left_out},
            tuple(sorted(left_out)),
        )

    async def _pass(self, until_ms: int) -> None:
        """Wait until the clock has passed a time."""
        while (left_ms := until_ms - self._clock_ms()) >= 0:
            await asyncio.sleep((left_ms + 1) / 1000)

    async def _copy_journal(
        self, key: str, before: Manifest | None, moment: Moment
    ) -> StoredJournal | None:
        """Copy a journal as it was at the moment; None if it didn't exist."""
        after = await self._manifest(key)
        if before is None and after is None:
            return None
        try:
            manifest, cuts = await self._at(key, before, after, moment)
            if before is None and _is_cut(cuts) and not any(cut.info.records for cut in cuts):
                return None
            at_ms = moment.at_ms or 0
            ledgers = {cut.info.ledger_id: await self._copy(key, cut, at_ms) for cut in cuts}
        except NotStored as error:
            now = await self._manifest(key)
            if now is None or now.dead:
                raise _Deleted(key) from error
            raise Vanished(str(error)) from error
        # What counts is the index behind which ledgers are created: one that the newest owner used.
        indexes = [each.next_index for each in (before, after) if each is not None]
        manifest = replace(
            manifest, ledgers=tuple(cut.info for cut in cuts), next_index=max(indexes)
        )
        return StoredJournal(manifest.encode(), ledgers)

    async def _at(
        self, key: str, before: Manifest | None, after: Manifest | None, moment: Moment
    ) -> tuple[Manifest, list[CutLedger]]:
        """The manifest as it was at the moment, and its ledgers."""
        if after is None or (after.dead and before is not None):
            assert before is not None
            return before, await self._cuts(key, before, moment)
        cuts = await self._cuts(key, after, moment)
        removed = frozenset() if before is None else removed_between(before, after)
        if before is None or not removed or not _is_cut(cuts):
            # Without later frames, no ledger was removed because of one.
            return after, cuts
        # A ledger whose removal is in the state must not be listed again.
        since = before.ledgers[-1].ledger_id
        gone = removed & await unlisted_by_events(self._store, key, cuts, since)
        manifest = with_removed(before, after, gone)
        return manifest, await self._cuts(key, manifest, moment)

    async def _cuts(self, key: str, manifest: Manifest, moment: Moment) -> list[CutLedger]:
        """The ledgers up to the one in which the moment is."""
        cuts: list[CutLedger] = []
        for info in manifest.ledgers:
            known = self._known.get(info.ledger_id)
            cut = await cut_ledger(self._store, key, info, moment, known)
            cuts.append(cut)
            if cut.ends_here:
                break
        return cuts

    # -- bytes ---------------------------------------------------------------------

    async def _copy(self, key: str, cut: CutLedger, at_ms: int) -> StoredLedger:
        """Store the bytes of a ledger, written before ``at_ms``, that aren't stored yet."""
        info, stored = cut.info, self._stored.get(cut.info.ledger_id)
        parts = list(stored.parts) if stored is not None and stored.salt == cut.salt else []
        while (start := parts[-1].end if parts else 0) < info.bytes:
            parts.append(await self._copy_part(key, info, start))
        ledger = StoredLedger(info.ledger_id, cut.salt, info.bytes, tuple(parts))
        self._stored[info.ledger_id] = ledger
        self._known[info.ledger_id] = Known(cut.salt, info, at_ms)
        needed = tuple(part for part in parts if part.start < info.bytes)
        return replace(ledger, parts=needed)

    async def _copy_part(self, key: str, info: LedgerInfo, start: int) -> StoredPart:
        length = min(self._settings.part_bytes, info.bytes - start)
        data = await self._store.read(key, info.ledger_id, start, length)
        if len(data) != length:
            place = self._store.location(key, info.ledger_id)
            raise CorruptJournal(place, start + len(data), f"ends before byte {info.bytes}")
        name = f"{PARTS}/{info.ledger_id}/{start}-{secrets.token_hex(8)}"
        await self._blobs.create(name, data)
        self.copied.parts += 1
        self.copied.bytes += length
        return StoredPart(start, length, name, sha256(data).digest())


def _belongs_to(key: str, left_out: Sequence[str]) -> bool:
    """Whether a journal is that of a subscription, or of a compaction, of a partition that is left
    out: a partition that begins anew must not find it."""
    found = ActorKey.parse(key)
    if found.kind not in (ActorKind.SUBSCRIPTION, ActorKind.COMPACTED):
        return False
    partition = ActorKey.of_partition(found.topic_name, found.topic_incarnation)
    return partition.text() in left_out


def _is_cut(cuts: list[CutLedger]) -> bool:
    return any(cut.ends_here for cut in cuts)
