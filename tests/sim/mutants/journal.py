"""Bugs of the journal, its store and the runtime that writes to it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.sim.mutants.mutant import Mutant, always, do_nothing_async
from velaray.actors.runtime import Runtime
from velaray.journal import frames, journal
from velaray.journal.errors import CorruptJournal
from velaray.journal.index import SparseIndex
from velaray.journal.journal import Journal
from velaray.journal.manifest import LedgerInfo, decode_manifest
from velaray.journal.memory import MemoryStore, Step, _MemoryWriter
from velaray.journal.scan import CHUNK, LedgerReader


def _acknowledge_before_sync(original: Any) -> Any:
    async def commit(self: Runtime[Any]) -> None:
        waiting = self._waiting
        self._waiting = [(lambda *_: None, None, ()) for _ in waiting]
        for release, reply, effects in waiting:
            release(reply, effects)
        await original(self)

    return commit


def _skip_sync(original: Any) -> Any:
    async def sync(self: _MemoryWriter) -> None:
        await self._store._step(Step.SYNC, self._journal)

    return sync


def _ignore_the_manifests_version(original: Any) -> Any:
    async def write(
        self: MemoryStore, journal: str, expected: int, data: bytes, owner: Any = None
    ) -> int:
        return await original(self, journal, self.disk._files(journal).version, data, owner)

    return write


def _omit_a_checkpoint_segment(original: Any) -> Any:
    def encode(header: Any, sequence: int, segments: Any, *others: Any) -> Any:
        fewer = {name: segments[name] for name in sorted(segments)[:-1]}
        return original(header, sequence, fewer, *others)

    return encode


def _mark_before_the_frame(original: Any) -> Any:
    async def append(
        self: _MemoryWriter, buffers: Any, *, confirm: int | None = None, mark: bytes = b""
    ) -> bool:
        if mark:
            await self._write(Step.MARK, self._mark, 0, mark)
        return await original(self, buffers, confirm=confirm, mark=mark)

    return append


def _refuse_torn_tails(original: Any) -> Any:
    async def tail(self: LedgerReader, start: int, sequence: int, **options: Any) -> Any:
        at = start
        async for frame in original(self, start, sequence, **options):
            at = frame.end
            yield frame
        if (await self.read(at, CHUNK)).strip(b"\0"):
            raise CorruptJournal(self.file, at, "a torn frame")

    return tail


def _read_before_taking_the_epoch(original: Any) -> Any:
    take_epoch = journal._take_epoch

    async def open_journal(
        cls: type[Journal], store: Any, key: str, settings: Any = None, *, clock_ms: Any
    ) -> Journal:
        stored = await store.read_manifest(key)
        if stored is None:
            return await original(store, key, settings, clock_ms=clock_ms)
        manifest = decode_manifest(store.location(key), stored.data)
        opened = cls(store, key, settings, clock_ms, manifest, stored.version)
        opened.recovered = await opened._recover()
        raised, version = await take_epoch(store, key)
        if raised.ledgers != manifest.ledgers:
            return await original(store, key, settings, clock_ms=clock_ms)
        opened._manifest, opened._version = raised, version
        opened._next_index = raised.next_index
        return opened

    return classmethod(open_journal)


def _list_before_the_checkpoint(original: Any) -> Any:
    """The manifest names a ledger whose checkpoint is written afterwards."""

    class Late:
        def __init__(self, writer: Any) -> None:
            self._writer = writer
            self._waiting: list[Any] = []

        async def append(self, buffers: Any, **options: Any) -> bool:
            if not options:
                self._waiting = list(buffers)
                return True
            if self._waiting:
                waiting, self._waiting = self._waiting, []
                await self._writer.append(waiting)
            return bool(await self._writer.append(buffers, **options))

        async def close(self) -> None:
            await self._writer.close()

    async def create_ledger(self: Journal) -> Any:
        created = await original(self)
        return created._replace(writer=Late(created.writer))

    return create_ledger


def _seal_without_the_last_frame(original: Any) -> Any:
    def sealed_ledgers(self: Journal) -> tuple[LedgerInfo, ...]:
        ledgers = original(self)
        live = self._live
        if live is None or live.sealed or live.records < 2:
            return ledgers
        return (*ledgers[:-1], replace(ledgers[-1], records=live.records - 1))

    return sealed_ledgers


def _index_one_entry_too_late(original: Any) -> Any:
    def encode(self: SparseIndex, ledger_id: int) -> bytes:
        shifted = SparseIndex()
        for at, (entry, offset) in enumerate(zip(self._entries, self._offsets, strict=True)):
            shifted._entries.append(entry)
            shifted._offsets.append(offset if at else offset + frames.FRAME_HEADER_SIZE)
        return original(shifted, ledger_id)

    return encode


def _release_twice(original: Any) -> Any:
    def submit(self: Runtime[Any], command: Any, release: Any) -> None:
        def twice(reply: Any, effects: Any) -> None:
            release(reply, effects)
            release(reply, effects)

        original(self, command, twice)

    return submit


MUTANTS: dict[str, Mutant] = {
    "acknowledge-before-sync": Mutant(
        "replies leave before the frame is written",
        ((Runtime, "_commit", _acknowledge_before_sync),),
        within=100,
    ),
    "skip-the-sync": Mutant(
        "frames are written and never synced", ((_MemoryWriter, "_sync", _skip_sync),), within=100
    ),
    "skip-the-epoch-check": Mutant(
        "an owner doesn't check for its successor before it acknowledges",
        ((MemoryStore, "_holds", always(True)),),
        within=200,
    ),
    "read-before-taking-the-epoch": Mutant(
        "a new owner reads the journal before it fences the former owner",
        ((Journal, "open", _read_before_taking_the_epoch),),
        within=200,
    ),
    "ignore-the-manifests-version": Mutant(
        "a manifest is replaced without comparing its version",
        ((MemoryStore, "write_manifest", _ignore_the_manifests_version),),
        within=200,
    ),
    "trust-the-page-cache": Mutant(
        "a new owner doesn't sync the former owner's records that it reads",
        ((MemoryStore, "sync_ledger", do_nothing_async),),
        within=300,
    ),
    "refuse-torn-tails": Mutant(
        "a frame that was never acknowledged counts as damage",
        ((LedgerReader, "tail", _refuse_torn_tails),),
        within=100,
    ),
    "mark-before-the-frame": Mutant(
        "a ledger's mark covers a frame that isn't written yet",
        ((_MemoryWriter, "append", _mark_before_the_frame),),
        within=100,
    ),
    "list-before-the-checkpoint": Mutant(
        "a ledger is listed before its checkpoint is written",
        ((Journal, "_create_ledger", _list_before_the_checkpoint),),
        within=100,
    ),
    "seal-without-the-last-record": Mutant(
        "a sealed ledger is listed with one record less than it has",
        ((Journal, "_sealed_ledgers", _seal_without_the_last_frame),),
        within=20,
    ),
    "omit-a-checkpoint-segment": Mutant(
        "a checkpoint lacks its last segment",
        ((journal, "encode_checkpoint", _omit_a_checkpoint_segment),),
        within=20,
    ),
    "index-points-behind-a-header": Mutant(
        "the index of a sealed ledger names a place within a frame",
        ((SparseIndex, "encode", _index_one_entry_too_late),),
        within=100,
    ),
    "release-twice": Mutant(
        "every reply is sent twice", ((Runtime, "submit", _release_twice),), within=20
    ),
}
