"""A journal: one writer's durable, fenced sequence of events.

Life of an owner::

    journal = await Journal.open(store, key, clock_ms=clock)   # takes the next epoch
    state = fold(journal.recovered)                            # checkpoint, then records
    await journal.start(segments, digest)                      # new ledger, from now on writable
    sequence = journal.stage(event, blob)                      # cheap, not yet durable
    await journal.commit()                                     # one frame, one sync; durable
    if journal.should_roll: await journal.roll(segments, digest)
    await journal.close()

The next process that opens the journal takes a higher epoch. From that moment this owner's commits
raise `Fenced` and none of their records may be acknowledged. The proof: the new owner writes the
epoch, then reads the tail; the old one syncs its frame, then reads the epoch, then acknowledges. So
one of the two always sees the other.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final, NamedTuple

from velaray.events.ids import Position
from velaray.events.segments import Segment, StoredSegment
from velaray.journal import frames
from velaray.journal.checkpoint import MAX_REFERRED, encode_checkpoint, read_segment
from velaray.journal.damage import damaged_entry
from velaray.journal.encryption.parts import Decryptor, Encryptor
from velaray.journal.errors import (
    Contended,
    CorruptJournal,
    Fenced,
    JournalError,
    LedgerExists,
    ManifestConflict,
    Misuse,
    NotStored,
    Purged,
    StorageFull,
    SyncFailed,
)
from velaray.journal.frames import Pair
from velaray.journal.index import SPACING, SparseIndex, decode_index
from velaray.journal.manifest import MAX_LEDGERS, LedgerInfo, Manifest, decode_manifest
from velaray.journal.recovery import Recovered, Tail, check_keys, recover, sweep_orphans
from velaray.journal.scan import EntryRun, Frame, FrameCursor, LedgerReader
from velaray.journal.store import Buffer, LedgerStore, LedgerWriter

OPEN_TRIES: Final = 16
"""The number of attempts of `Journal.open` to win the manifest."""
CREATE_TRIES: Final = 64
"""The number of taken ledger indexes that are skipped."""
MAX_UNSYNCED: Final = 8 << 20
"""The most bytes that a relaxed journal may leave unsynced; a frame's lag can express twice as
much."""
_MANIFEST_MOVES: Final = ("roll", "unlist", "offload")
LARGEST_CHUNK: Final = 4 << 20
"""Bytes that `Journal.read` takes from a file at once, at most, unless a frame is larger."""
CACHED_LEDGERS: Final = 16
"""Sealed ledgers whose header and index stay in memory."""


@dataclass(frozen=True, slots=True)
class JournalSettings:
    """The limits of a ledger (either one starts the next ledger), and of a frame's bytes (further
    records wait for the next frame). An owner that needs a checkpoint to free memory may start a
    ledger after ``early_records``.

    With ``sync_interval_ms`` 0 every commit is synced. Otherwise the journal is *relaxed*: a commit
    of entries alone returns when it is written, and the owner calls `Journal.sync` after that many
    milliseconds. A commit that would leave more than ``unsynced_bytes`` (at most 8 MiB) unsynced is
    synced, and so is one with any record that isn't an entry.
    """

    roll_records: int = 50_000
    roll_bytes: int = 128 << 20
    frame_bytes: int = 2 << 20
    sync_interval_ms: int = 0
    unsynced_bytes: int = MAX_UNSYNCED
    early_records: int = 1_000

    def __post_init__(self) -> None:
        if self.sync_interval_ms < 0:
            raise ValueError(f"a sync interval of {self.sync_interval_ms} ms")
        if not 0 <= self.unsynced_bytes <= MAX_UNSYNCED:
            raise ValueError(f"{self.unsynced_bytes} unsynced bytes: 0 to {MAX_UNSYNCED}")


@dataclass(slots=True)
class _Sealed:
    reader: LedgerReader
    index: SparseIndex


@dataclass(frozen=True, slots=True)
class _Unfinished:
    """The frame in which the last read stopped, before ``entry``; ``pairs`` begin with that."""

    reader: LedgerReader
    frame: Frame
    entry: int
    pairs: Iterator[Pair]


class _Created(NamedTuple):
    """A new ledger."""

    reader: LedgerReader
    writer: LedgerWriter
    encryptor: Encryptor | None


class _Wanted:
    """The remaining limits of a read."""

    def __init__(self, ledger_id: int, first: int, max_entries: int, max_bytes: int) -> None:
        self.run = EntryRun(ledger_id, first)
        self._max_entries = max_entries
        self._left = max_bytes

    @property
    def full(self) -> bool:
        """Whether the number of entries is reached."""
        return len(self.run) == self._max_entries

    def take(
        self, reader: LedgerReader, frame: Frame, begun: _Unfinished | None = None
    ) -> _Unfinished | None:
        """Take entries from a frame, or from what an earlier read left of it.

        Returns what begins with the first entry beyond the limits, or with the first damaged one,
        if any. Raises `CorruptJournal` if the first wanted one is damaged.
        """
        if begun is None:
            entry, pairs = frame.header.entry, reader.pairs(frame)
        else:
            entry, pairs = begun.entry, begun.pairs
        first, events, blobs = self.run.first, self.run.events, self.run.blobs
        left, beyond = self._left, first + self._max_entries
        for event, blob in pairs:
            if blob is None:
                continue
            if entry >= first:
                size = len(event) + len(blob)
                lost = blob is frames.LOST
                if lost and entry == first:
                    raise damaged_entry(reader, frame, Position(self.run.ledger_id, entry))
                if lost or entry == beyond or (size > left and entry > first):
                    return _Unfinished(reader, frame, entry, chain(((event, blob),), pairs))
                left -= size
                events.append(bytes(event))
                blobs.append(blob)
            entry += 1
        self._left = left
        return None


class Journal:
    """The owner's side of a journal; see the module's docstring. Use it from one event loop."""

    def __init__(
        self,
        store: LedgerStore,
        key: str,
        settings: JournalSettings,
        clock_ms: Callable[[], int],
        manifest: Manifest,
        version: int,
    ) -> None:
        self._store = store
        self._settings = settings
        self._clock_ms = clock_ms
        self._manifest = manifest
        self._version = version
        self._failure: JournalError | None = None
        self._writer: LedgerWriter | None = None
        self._reader: LedgerReader | None = None
        self._live: LedgerInfo | None = None
        # The ledger when it was last known to be synced completely; None: it is now.
        self._behind: LedgerInfo | None = None
        self._index = SparseIndex()
        self._next_index = manifest.next_index
        self._busy = ""
        self._encryptor: Encryptor | None = None
        self._decryptors: dict[int, Decryptor | None] = {}
        self._parts: list[Buffer] = []
        self._blobs: list[Buffer] = []
        self._staged_records = 0
        self._staged_entries = 0
        self._staged_sequence = 0
        self._staged_large = False
        self._cache: OrderedDict[int, _Sealed] = OrderedDict()
        self._unfinished: _Unfinished | None = None
        self._stored: Mapping[str, StoredSegment] = {}
        self._stored_before: Mapping[str, StoredSegment] = {}
        self._leaving: frozenset[int] = frozenset()
        self.key = key
        self.recovered = Recovered()

    # ---------------------------------------------------------------- opening

    @classmethod
    async def open(
        cls,
        store: LedgerStore,
        key: str,
        settings: JournalSettings | None = None,
        *,
        clock_ms: Callable[[], int],
    ) -> Journal:
        """Become the owner of journal ``key`` (the text of an actor key) and read it.

        Creates the journal if there is none. Takes the next epoch first, which fences the former
        owner, then reads. The result is durable and is in `recovered` until `start`. Nothing can be
        staged before `start`. ``clock_ms`` stamps frames and sealed ledgers.

        Raises `MissingKey` and `PlainLedger` (nothing changed), `CorruptJournal` (nothing is
        served; the stored ledgers are untouched), `Purged`,
        `StorageFull`, `SyncFailed`, `Contended` if other owners kept winning, `UnsafeKey`.
        """
        manifest, version = await _take_epoch(store, key)
        journal = cls(store, key, settings or JournalSettings(), clock_ms, manifest, version)
        journal.recovered = await journal._recover()
        await sweep_orphans(store, key, manifest)
        return journal

    async def _recover(self) -> Recovered:
        ledgers = self._manifest.ledgers
        last = ledgers[-1] if ledgers else None
        unsealed = last is not None and not last.sealed
        if last is not None and unsealed:
            # Before reading: data that the former owner couldn't write back must not be served #
            # from a cache. After reading: the data read is now part of the history, and the #
            # former owner may have written it in between without a sync.
            await self._store.sync_ledger(self.key, last.ledger_id)
        recovered, tail = await recover(self._store, self.key, ledgers)
        if last is not None and unsealed:
            await self._store.sync_ledger(self.key, last.ledger_id)
        if recovered.checkpoint is not None:
            self._stored = recovered.checkpoint.stored
        self._adopt(tail)
        return recovered

    def _adopt(self, tail: Tail | None) -> None:
        self._live = tail.info if tail else None
        self._index = tail.index if tail else SparseIndex()
        self._staged_sequence = self.next_sequence

    async def reload(self) -> Recovered:
        """Read the journal again as of the last commit, without writing anything.

        For an owner whose state in memory is ahead of a commit that raised `StorageFull`: the
        staged records are dropped, so the state must be folded again. Works on a full disk.

        Raises `CorruptJournal`, `Misuse` while a commit or a roll is running.
        """
        self._check_usable("reload")
        recovered, _ = await recover(self._store, self.key, self._trusted_ledgers())
        return recovered

    async def read_segment(self, place: StoredSegment) -> bytes:
        """The bytes of a segment of a checkpoint.

        Raises `CorruptJournal` if they are damaged or gone, `Fenced` instead if there is a newer
        owner, which removes old ledgers; and what reading raises. If the segment wasn't stored
        elsewhere meanwhile, the journal must be recovered anew.
        """
        try:
            return await self._read_segment(place)
        except CorruptJournal:
            await self.confirm()
            raise

    async def _read_segment(self, place: StoredSegment) -> bytes:
        if len(self._decryptors) > 2 * MAX_REFERRED:
            self._decryptors.clear()
        return await read_segment(self._store, self.key, place, self._decryptors)

    def _trusted_ledgers(self) -> tuple[LedgerInfo, ...]:
        """The listed ledgers with live counts, all with an exact end."""
        return tuple(replace(info, sealed=True) for info in self.ledgers)

    # ---------------------------------------------------------------- properties

    @property
    def epoch(self) -> int:
        """The epoch under which this owner writes."""
        return self._manifest.epoch

    @property
    def ledgers(self) -> tuple[LedgerInfo, ...]:
        """Every ledger, oldest first, with durable counts (staged records don't count)."""
        if self._live is None:
            return self._manifest.ledgers
        return (*self._manifest.ledgers[:-1], self._live)

    @property
    def next_sequence(self) -> int:
        """The sequence after the last durable record."""
        return self._live.next_sequence if self._live else 0

    @property
    def next_offset(self) -> int:
        """The offset (count of entries since creation) after the last durable entry."""
        return self._live.next_offset if self._live else 0

    @property
    def stored(self) -> Mapping[str, StoredSegment]:
        """The places of the segments of this owner's newest checkpoint."""
        return self._stored

    @property
    def referred(self) -> frozenset[int]:
        """The ids of all ledgers that have a part of that checkpoint."""
        return frozenset(place.ledger_id for place in self._stored.values())

    @property
    def needed(self) -> frozenset[int]:
        """The ids of the ledgers that recovery may need: the last two, and those that their
        checkpoints refer to. If the newer of the two is damaged, the other one suffices."""
        before = (place.ledger_id for place in self._stored_before.values())
        return self.referred.union(before, (info.ledger_id for info in self.ledgers[-2:]))

    def leave(self, ledger_ids: Iterable[int]) -> None:
        """Make later checkpoints independent of these ledgers, which will be removed."""
        self._leaving = frozenset(ledger_ids)

    @property
    def unsynced(self) -> int:
        """Bytes that a loss of power may remove: 0 unless the journal is relaxed."""
        if self._behind is None or self._live is None:
            return 0
        return self._live.bytes - self._behind.bytes

    @property
    def synced_offset(self) -> int:
        """The offset after the last entry that survives a loss of power."""
        known = self._behind or self._live
        return known.next_offset if known else 0

    @property
    def should_roll(self) -> bool:
        """Whether the current ledger has reached the size at which to call `roll`."""
        live = self._live
        if live is None:
            return False
        return (
            live.records >= self._settings.roll_records or live.bytes >= self._settings.roll_bytes
        )

    @property
    def should_roll_for_memory(self) -> bool:
        """Whether the current ledger has enough records for an early checkpoint."""
        return self._live is not None and self._live.records >= self._settings.early_records

    @property
    def failure(self) -> JournalError | None:
        """The error after which this owner can't write any more; None if it can."""
        return self._failure

    # ---------------------------------------------------------------- writing

    def stage(self, event: bytes, blob: Buffer | None = None) -> int:
        """Add a record to the next commit; returns its sequence.

        The memory of ``blob`` must stay unchanged until its commit is over, because a large blob is
        written without a copy. If it begins as an entry in Pulsar's format does, the checksum that
        it states must be right. Raises `Misuse` before `start` and during `start` or `roll`,
        otherwise the error that made the journal unusable.
        """
        sequence = self._staged_sequence
        self.stage_all(((event, blob),))
        return sequence

    def stage_all(self, records: Iterable[frames.Record | frames.RecordRun]) -> int:
        """`stage` every record (event and blob), in order; returns their number."""
        if self._writer is None or self._failure is not None or self._busy == "roll":
            self._check_writable("stage")
        if self._encryptor is None:
            count, entries, large = frames.stage_records(self._parts, records)
            self._staged_large |= large
        else:
            count, entries = frames.stage_apart(self._parts, self._blobs, records)
        self._staged_records += count
        self._staged_entries += entries
        self._staged_sequence += count
        return count

    async def commit(self) -> int:
        """Make everything staged durable, as one frame; returns the last durable sequence.

        On return the records are synced and the epoch was confirmed after the sync: they may be
        acknowledged. In a relaxed journal a commit of entries alone may be left `unsynced`: it is
        written, and the epoch was confirmed after that, but a power loss or a failed sync may
        remove any part of it. Without staged records the call does nothing. Records that are staged
        meanwhile belong to the next commit. Run one commit at a time.

        Raises `StorageFull`: the frame has no effect. All staged records, including those staged
        meanwhile, are dropped and their sequences will be reused; the owner's state must return to
        what is durable (`reload`). The journal stays readable and a later commit may succeed.

        Raises `Fenced` or `SyncFailed`: fatal, acknowledge nothing, close. After `SyncFailed` the
        next owner may or may not find the records. A cancelled commit leaves the journal unusable,
        for the same reason.
        """
        self._check_writable("commit")
        if not self._staged_records:
            return self.next_sequence - 1
        assert self._live is not None and self._writer is not None and self._reader is not None
        former = self._live
        live, buffers, mark = self._frame()
        wait = self._may_wait(former, live)
        version, writer = self._version, self._writer
        try:
            await self._write(
                writer.append_unsynced(buffers, confirm=version)
                if wait
                else writer.append(buffers, confirm=version, mark=mark),
                "commit",
            )
        except StorageFull:
            self._drop_staged()
            raise
        self._index.note(former.entries, former.bytes)
        self._behind = self._behind or former if wait else None
        self._live = live
        return live.next_sequence - 1

    def _may_wait(self, before: LedgerInfo, after: LedgerInfo) -> bool:
        """Whether a commit with these records may be left unsynced."""
        settings, known = self._settings, self._behind or before
        return (
            settings.sync_interval_ms > 0
            and after.records - before.records == after.entries - before.entries
            and after.bytes - known.bytes <= settings.unsynced_bytes
        )

    async def sync(self) -> None:
        """Make `unsynced` commits durable. Don't call it during a commit.

        Raises `Fenced` or `SyncFailed`: fatal, as for `commit`.
        """
        self._check_writable("sync")
        live = self._live
        if self._behind is None:
            return
        assert live is not None and self._writer is not None and self._reader is not None
        mark = frames.encode_mark(
            self._reader.header.salt, live.ledger_id, live.next_sequence - 1, live.bytes
        )
        await self._write(self._writer.sync(confirm=self._version, mark=mark), "sync")
        self._behind = None

    async def _write(self, work: Coroutine[Any, Any, bool], what: str) -> None:
        """Run ``work`` of the writer; every failure except a full disk is permanent."""
        assert self._reader is not None
        self._busy = what
        try:
            held = await work
        except SyncFailed as error:
            self._failure = error
            raise
        except asyncio.CancelledError:
            self._failure = SyncFailed(self._reader.file, f"a {what} was cancelled")
            raise
        finally:
            self._busy = ""
        if not held:
            self._failure = Fenced(self.key, self.epoch)
            raise self._failure

    def _frame(self) -> tuple[LedgerInfo, list[Buffer], bytes]:
        """The staged records as a frame, and the ledger's state after it."""
        assert self._live is not None and self._reader is not None
        live, salt = self._live, self._reader.header.salt
        lag, at_ms = self.unsynced, self._clock_ms()
        payload = self._payload(live, lag, at_ms)
        header = frames.encode_frame(
            *(salt, live.bytes, live.next_sequence, live.entries, self._staged_records, payload),
            flags=0,
            lag=lag,
            at_ms=at_ms,
            encrypted=self._encryptor is not None,
        )
        end = live.bytes + len(header) + sum(map(len, payload))
        after = live.grown(self._staged_records, self._staged_entries, end)
        self._clear_staged()
        mark = frames.encode_mark(salt, live.ledger_id, after.next_sequence - 1, end)
        return after, [header, *payload], mark

    def _payload(self, live: LedgerInfo, lag: int, at_ms: int) -> list[Buffer]:
        if self._encryptor is not None:
            place = frames.place_of(
                *(live.bytes, live.next_sequence, live.entries, self._staged_records),
                *(0, lag, at_ms),
            )
            return frames.gather(self._encryptor.frame(self._parts, self._blobs, place))
        # Most frames are small, and joining them at once costs the least.
        return frames.gather(self._parts) if self._staged_large else [b"".join(self._parts)]

    def _clear_staged(self) -> None:
        self._parts, self._blobs = [], []
        self._staged_records = self._staged_entries = 0
        self._staged_large = False

    def _drop_staged(self) -> None:
        self._clear_staged()
        self._staged_sequence = self.next_sequence

    def _check_writable(self, what: str) -> None:
        self._check_usable(what)
        if self._writer is None:
            raise Misuse(f"journal {self.key}: {what} before start")

    def _check_usable(self, what: str) -> None:
        if self._failure is not None:
            raise self._failure
        if self._busy == "roll" or (self._busy and what != "stage"):
            raise Misuse(f"journal {self.key}: {what} during a {self._busy}")

    # ---------------------------------------------------------------- ledgers

    async def start(self, segments: Mapping[str, Segment], digest: bytes) -> int:
        """Start the first ledger of this owner, with its state as checkpoint.

        ``segments`` is the state after everything in `recovered`, ``digest`` the caller's digest of
        it. Stored segments (in `recovered`, or in `stored` after the last checkpoint) stay where
        they are, except those that are too old. Returns the new ledger's id. On return the
        predecessor is sealed, `stored` has the places of the segments, and records may be staged.

        Raises `StorageFull` (nothing changed, try again later), `Fenced`, `SyncFailed` (both
        fatal), `Contended`; `CorruptJournal` if a segment can't be read for copying (nothing
        changed).
        """
        if self._writer is not None:
            raise Misuse(f"journal {self.key}: started already; use roll")
        return await self._new_ledger(segments, digest)

    async def roll(self, segments: Mapping[str, Segment], digest: bytes) -> int:
        """Seal the current ledger and start the next one; returns its id.

        ``segments`` is the state after the last durable record: nothing may be staged and no commit
        running. Unsynced entries are synced first. Guarantees and errors are those of `start`;
        after `StorageFull` the current ledger continues.
        """
        self._check_writable("roll")
        await self.sync()
        return await self._new_ledger(segments, digest)

    async def _new_ledger(self, segments: Mapping[str, Segment], digest: bytes) -> int:
        self._check_usable("roll")
        if self._staged_records:
            raise Misuse(f"journal {self.key}: {self._staged_records} records are staged")
        self._busy = "roll"
        try:
            return await self._create_and_list(segments, digest)
        except (SyncFailed, Fenced) as error:
            self._failure = error
            raise
        except (ManifestConflict, NotStored) as error:  # NotStored: the journal was deleted
            self._failure = Fenced(self.key, self.epoch)
            raise self._failure from error
        except asyncio.CancelledError:
            self._failure = SyncFailed(
                self._store.location(self.key), "starting a ledger was cancelled"
            )
            raise
        finally:
            self._busy = ""

    async def _create_and_list(self, segments: Mapping[str, Segment], digest: bytes) -> int:
        segments = await self._with_copies(segments)
        created = await self._create_ledger()
        header, writer = created.reader.header, created.writer
        image = encode_checkpoint(header, self.next_sequence, segments, digest, created.encryptor)
        info = LedgerInfo(
            ledger_id=header.ledger_id,
            first_sequence=self.next_sequence,
            first_offset=self.next_offset,
            data_offset=image.end,
            records=0,
            entries=0,
            bytes=image.end,
            sealed=False,
            refers_from=image.refers_from,
            key_id=header.key.key_id if header.key else "",
        )
        sealed = self._sealed_ledgers()
        manifest = replace(self._manifest, next_index=self._next_index, ledgers=(*sealed, info))
        try:
            await writer.append(image.buffers)
            version = await self._write_manifest(manifest)
        except StorageFull:
            # It isn't listed, and only this owner could list it. Its name is never used again: the
            # next attempt, and any owner that sees or saw it, takes a higher index.
            await writer.close()
            await self._store.delete_ledger(self.key, header.ledger_id)
            raise
        except (ManifestConflict, SyncFailed):
            await writer.close()
            raise
        await self._switch(manifest, version, created)
        self._stored, self._stored_before = image.stored, self._stored
        self.recovered = Recovered()
        return header.ledger_id

    async def _with_copies(self, segments: Mapping[str, Segment]) -> Mapping[str, Segment]:
        """The segments, with those in old or removed ledgers as bytes."""
        near = {info.ledger_id for info in self.ledgers[-MAX_REFERRED:]} - self._leaving
        try:
            return {
                name: segment
                if isinstance(segment, bytes) or segment.ledger_id in near
                else await self._read_segment(segment)
                for name, segment in segments.items()
            }
        except CorruptJournal as error:
            # `confirm` doesn't look during a roll; here the manifest isn't being written yet.
            if await self._store.holds(self.key, self._version):
                raise
            raise Fenced(self.key, self.epoch) from error

    async def drop_from_manifest(self, ledger_ids: Collection[int]) -> None:
        """Remove these sealed ledgers from the manifest: they are no longer part of the journal.

        Their names are never reused or listed again, so their files may be deleted. Not during a
        commit. Raises `Misuse` for ledgers that aren't listed or that are `needed`; `StorageFull`
        (nothing changed); `Fenced`, `SyncFailed` (fatal; then the next owner may find them
        unlisted).
        """
        self._check_writable("unlist")
        known = {info.ledger_id for info in self.ledgers} - self.needed
        if wrong := sorted(set(ledger_ids) - known):
            raise Misuse(f"journal {self.key}: ledgers {wrong} can't be dropped from the manifest")
        manifest = replace(self._manifest, next_index=self._next_index).without(ledger_ids)
        await self._change_manifest("unlist", manifest, "dropping ledgers from the manifest")
        for ledger_id in ledger_ids:
            self._cache.pop(ledger_id, None)
        self._unfinished = None

    async def mark_offloaded(self, ledger_ids: Collection[int]) -> None:
        """Note in the manifest that the archive has verified copies of these ledgers.

        Those that are open or aren't listed any more are left out. Not during a commit. Raises as
        `drop_from_manifest`.
        """
        self._check_writable("offload")
        sealed = {info.ledger_id for info in self.ledgers if info.sealed}
        manifest = replace(self._manifest, next_index=self._next_index)
        manifest = manifest.with_offloaded(sealed.intersection(ledger_ids), self._clock_ms())
        await self._change_manifest("offload", manifest, "marking ledgers as offloaded")

    async def _change_manifest(self, busy: str, manifest: Manifest, what: str) -> None:
        """Write the manifest; ``what`` is the change in the error of a cancellation."""
        self._busy = busy
        try:
            self._version = await self._write_manifest(manifest)
        except SyncFailed as error:
            self._failure = error
            raise
        except (ManifestConflict, NotStored) as error:
            self._failure = Fenced(self.key, self.epoch)
            raise self._failure from error
        except asyncio.CancelledError:
            self._failure = SyncFailed(self._store.location(self.key), f"{what} was cancelled")
            raise
        finally:
            self._busy = ""
        self._manifest = manifest

    async def _create_ledger(self) -> _Created:
        for _ in range(CREATE_TRIES):
            index = self._next_index
            if index >= MAX_LEDGERS:
                raise JournalError(f"journal {self.key}: all {MAX_LEDGERS} ledger ids are used up")
            self._next_index = index + 1
            ledger_id = self._manifest.ledger_id(index)
            salt, key = self._store.salt(), None
            encryptor, decryptor = None, None
            if self._store.keys is not None:
                context = frames.key_context(ledger_id, self.key, self.epoch, salt)
                file = self._store.location(self.key, ledger_id)
                key, secret = await self._store.keys.make(file, context)
                encryptor, decryptor = Encryptor(secret), Decryptor(secret)
            raw = frames.encode_ledger_header(ledger_id, self.key, self.epoch, salt, key)
            try:
                writer = await self._store.create_ledger(self.key, ledger_id, raw, self.epoch)
            except LedgerExists:
                continue
            header = frames.LedgerHeader(ledger_id, self.key, self.epoch, salt, len(raw), key)
            reader = LedgerReader(self._store, self.key, header, decryptor)
            return _Created(reader, writer, encryptor)
        raise Contended(f"journal {self.key}: creating a ledger", CREATE_TRIES)

    async def _write_manifest(self, manifest: Manifest) -> int:
        return await self._store.write_manifest(
            self.key, self._version, manifest.encode(), manifest.ownership
        )

    def _sealed_ledgers(self) -> tuple[LedgerInfo, ...]:
        ledgers = self.ledgers
        if not ledgers or ledgers[-1].sealed:
            return ledgers
        last = replace(ledgers[-1], sealed=True, sealed_ms=self._clock_ms())
        return (*ledgers[:-1], last)

    async def _switch(self, manifest: Manifest, version: int, created: _Created) -> None:
        former, index, old_writer = self._live, self._index, self._writer
        self._manifest, self._version, self._writer = manifest, version, created.writer
        self._live, self._index = manifest.ledgers[-1], SparseIndex()
        self._reader, self._encryptor = created.reader, created.encryptor
        self._staged_sequence = self.next_sequence
        if old_writer is not None:
            await old_writer.close()
        if former is not None and not former.sealed:
            await self._write_index(former.ledger_id, index)

    async def _write_index(self, ledger_id: int, index: SparseIndex) -> None:
        try:
            await self._store.write_index(self.key, ledger_id, index.encode(ledger_id))
        except StorageFull:
            # The index contains nothing that isn't in the ledger: it is rebuilt when needed.
            return

    # ---------------------------------------------------------------- reading

    async def read(self, first: Position, max_entries: int, max_bytes: int) -> EntryRun:
        """Durable entries from ``first`` on, in order, up to both limits.

        ``max_bytes`` counts events and blobs; one entry is returned even if it is larger.
        ``first`` may be any position; one in a removed ledger stands for the first entry of the
        next ledger. The result may be shorter than requested, because a call reads from one ledger
        and stops before damage; it is empty only if there is nothing at or after ``first``. Blobs
        are slices of one read buffer, so keeping one keeps the whole buffer in memory. The journal
        itself keeps the frame in which a read stopped until the next read.

        Raises `CorruptJournal` if the entry at ``first`` is damaged, `NotStored`. Works on a
        full disk, and after `Fenced`
        (then the entries are those known until then).
        """
        for info in self.ledgers:
            if info.ledger_id < first.ledger_id:
                continue
            entry = max(0, first.entry_id) if info.ledger_id == first.ledger_id else 0
            if entry < info.entries:
                return await self._read_ledger(info, entry, max_entries, max_bytes)
        return EntryRun(first.ledger_id, first.entry_id)

    async def _read_ledger(
        self, info: LedgerInfo, first: int, max_entries: int, max_bytes: int
    ) -> EntryRun:
        reader, index = await self._readable(info)
        last, self._unfinished = self._unfinished, None
        # About as much as the entries need: the cost of a call is more than that of its bytes.
        needed = min(max_bytes, max_entries * (info.bytes // max(info.entries, 1)))
        chunk = min(LARGEST_CHUNK, needed + SPACING)
        begun: _Unfinished | None = None
        if last and last.reader is reader and last.frame.header.entry <= first <= last.entry:
            # Otherwise each small read within a big frame would read and verify the whole frame.
            begun = last if first == last.entry else None
            frame: Frame | None = last.frame
            cursor = reader.cursor(last.frame.end, info.bytes, chunk, damaged=True)
        else:
            start = index.find(first)
            start = info.data_offset if start is None else start
            cursor = reader.cursor(start, info.bytes, chunk, damaged=True)
            frame = await _frame_before(cursor, first)
        wanted = _Wanted(info.ledger_id, first, max_entries, max_bytes)
        while frame is not None:
            stopped = wanted.take(reader, frame, begun)
            if stopped is not None:
                self._unfinished = stopped
                break
            begun = None
            if wanted.full:
                break
            if not wanted.run:
                frame = await _frame_before(cursor, first)
                continue
            try:
                frame = await cursor.next()
            except CorruptJournal:
                break  # raised by a read that begins there
        return wanted.run

    async def _readable(self, info: LedgerInfo) -> tuple[LedgerReader, SparseIndex]:
        if self._live is not None and info.ledger_id == self._live.ledger_id:
            if self._reader is None or self._reader.header.ledger_id != info.ledger_id:
                self._reader = await LedgerReader.open(self._store, self.key, info.ledger_id)
            return self._reader, self._index
        cached = self._cache.get(info.ledger_id)
        if cached is None:
            reader = await LedgerReader.open(self._store, self.key, info.ledger_id)
            cached = _Sealed(reader, await self._sealed_index(reader, info))
            self._cache[info.ledger_id] = cached
            if len(self._cache) > CACHED_LEDGERS:
                self._cache.popitem(last=False)
        self._cache.move_to_end(info.ledger_id)
        return cached.reader, cached.index

    async def _sealed_index(self, reader: LedgerReader, info: LedgerInfo) -> SparseIndex:
        raw = await self._store.read_index(self.key, info.ledger_id)
        index = decode_index(info.ledger_id, raw) if raw is not None else None
        if index is not None:
            return index
        index = SparseIndex()
        cursor = reader.cursor(info.data_offset, info.bytes, damaged=True)
        while True:
            try:
                frame = await cursor.next()
            except CorruptJournal:
                if await cursor.skip_damage():
                    continue
                return index
            if frame is None:
                break
            index.note(frame.header.entry, frame.offset)
        await self._write_index(info.ledger_id, index)
        return index

    async def confirm(self, within_s: float = 0.0) -> bool:
        """Check, without writing, whether this owner is still the newest one.

        For owners that write rarely: every commit checks it anyway. True: it was the newest owner
        at a moment after the call, or at most ``within_s`` before it. False: unknown, because the
        manifest is being written, which checks as well, or because the journal has failed. Raises
        `Fenced`, after which nothing can be staged any more.
        """
        if self._failure is not None or self._busy in _MANIFEST_MOVES:
            return False
        version = self._version
        held = await self._store.holds(self.key, version, within_s)
        if held or self._busy in _MANIFEST_MOVES or self._version != version:
            return held
        self._failure = Fenced(self.key, self.epoch)
        raise self._failure

    async def close(self) -> None:
        """Stop writing and drop the staged records. Idempotent. The store stays open.

        Unsynced entries stay unsynced until the next owner opens the journal: `sync` first.
        """
        if self._failure is None:
            self._failure = Misuse(f"journal {self.key} is closed")
        if self._writer is not None:
            await self._writer.close()
            self._writer = None
        await self._store.release(self.key, self._version)


async def _frame_before(cursor: FrameCursor, first: int) -> Frame | None:
    """The next frame, up to the one with the entry ``first``; damaged frames before that are
    skipped. Raises `CorruptJournal` if the entry itself is in a damaged one."""
    damage: CorruptJournal | None = None
    while True:
        try:
            frame = await cursor.next()
        except CorruptJournal as error:
            damage = damage or error
            if not await cursor.skip_damage():
                raise damage from error
            continue
        if damage is not None and (frame is None or frame.header.entry > first):
            raise damage
        return frame


async def _take_epoch(store: LedgerStore, key: str) -> tuple[Manifest, int]:
    for _ in range(OPEN_TRIES):
        stored = await store.read_manifest(key)
        if stored is None:
            version = 0
            manifest = Manifest(key, await store.claim_number(key), 1, 0)
        else:
            version = stored.version
            manifest = decode_manifest(store.location(key), stored.data)
            if manifest.owner != key:
                raise CorruptJournal(
                    store.location(key), 0, f"the manifest names another owner, {manifest.owner}"
                )
            if manifest.dead:
                raise Purged(key)
            await check_keys(store, key, manifest.ledgers)
            manifest = manifest.raise_epoch(await _free_index(store, key, manifest))
        try:
            return manifest, await store.write_manifest(
                key, version, manifest.encode(), manifest.ownership
            )
        except ManifestConflict:
            continue
    raise Contended(f"journal {key}: taking the next epoch", OPEN_TRIES)


async def _free_index(store: LedgerStore, key: str, manifest: Manifest) -> int:
    """An index above every ledger that is stored or was ever listed. So the names of orphans, which
    are swept once this index is in the manifest, are never used again."""
    first = manifest.ledger_id(0)
    taken = [ledger_id - first for ledger_id in await store.list_ledgers(key)]
    return max([manifest.next_index, *(index + 1 for index in taken if 0 <= index < MAX_LEDGERS)])
