"""Bugs of the offload of ledgers that the simulation of `tests.sim.offload` finds."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from typing import Any

from tests.sim.mutants.mutant import Mutant, do_nothing_async
from velaray.broker.partition import offloader
from velaray.journal import manifest
from velaray.journal.garbage_collection import Fate
from velaray.journal.manifest import LedgerInfo
from velaray.journal.objects.conditional import Taken
from velaray.journal.offload import rounds
from velaray.journal.offload.archive import LedgerArchive
from velaray.journal.offload.read_ahead import ReadAhead
from velaray.journal.offload.tiered_store import TieredStore


def _record_first(original: Any) -> Any:
    async def offload_ledger(store: TieredStore, journal: str, info: LedgerInfo, mark: Any) -> None:
        await mark([info.ledger_id])
        await store.offload(journal, info.ledger_id, info.bytes)

    return offload_ledger


def _delete_unchecked(original: Any) -> Any:
    async def delete_local(self: TieredStore, journal: str, ledger_id: int, size: int) -> bool:
        await self.local.delete_ledger(journal, ledger_id)
        return True

    return delete_local


def _delete_before_the_copy(original: Any) -> Any:
    async def copy(self: LedgerArchive, source: Any, journal: str, ledger_id: int, n: int) -> None:
        await original(self, source, journal, ledger_id, n - 1)

    return copy


def _delete_what_is_unrecorded(original: Any) -> Any:
    async def offload(self: TieredStore, journal: str, ledger_id: int, size: int) -> None:
        data = await self.local.read(journal, ledger_id, 0, size)
        await self.local.delete_ledger(journal, ledger_id)

        class Source:
            async def read(self, journal: str, ledger_id: int, start: int, length: int) -> bytes:
                return data[start : start + length]

            read_index = do_nothing_async(None)

        await self.archive.copy(Source(), journal, ledger_id, size)  # type: ignore[arg-type]

    return offload


def _sweep_what_is_listed(original: Any) -> Any:
    async def dispose(store: TieredStore, journal: str, ledger_id: int) -> Fate:
        await store.archive.delete(journal, ledger_id)
        return Fate.DELETED

    return dispose


def _list_nothing(original: Any) -> Any:
    async def orphans_of(store: TieredStore) -> list[tuple[str, int]]:
        found = await store.archive.list()
        return [(journal, each) for journal in sorted(found) for each in sorted(found[journal])]

    return orphans_of


def _leave_parts(original: Any) -> Any:
    async def delete(self: LedgerArchive, journal: str, ledger_id: int) -> None:
        names = await self._objects.list(archive_prefix(journal, ledger_id))
        await self._objects.delete([name for name in names if name.endswith("end")])

    return delete


def archive_prefix(journal: str, ledger_id: int) -> str:
    """The beginning of the names of a ledger's objects."""
    return f"ledgers/{journal}/{ledger_id}/"


def _taken_is_stored(original: Any) -> Any:
    async def put(self: LedgerArchive, name: str, kind: Any, payload: bytes) -> None:
        with suppress(Taken):
            await self._objects.create(name, kind, payload)

    return put


def _drop_marks(original: Any) -> Any:
    return lambda ledger: original(ledger)[:11]


def _no_orphans(original: Any) -> Any:
    async def orphans_of(store: TieredStore) -> list[tuple[str, int]]:
        return []

    return orphans_of


def _mark_all(original: Any) -> Any:
    def with_offloaded(self: Any, ledger_ids: Collection[int], at_ms: int) -> Any:
        return original(self, {info.ledger_id for info in self.ledgers if info.sealed}, at_ms)

    return with_offloaded


def _read_the_next_block(original: Any) -> Any:
    async def read(self: ReadAhead, block: Any) -> bytes:
        data: bytes = await original(self, block._replace(number=block.number + 1))
        return data or bytes(await original(self, block))

    return read


OFFLOAD_MUTANTS: dict[str, Mutant] = {
    "recorded-before-the-copy": Mutant(
        "A ledger is recorded before it is copied, and deleted without another look.",
        (
            (offloader, "offload_ledger", _record_first),
            (TieredStore, "delete_local", _delete_unchecked),
        ),
        20,
    ),
    "not-verified": Mutant(
        "A copy isn't read back.", ((LedgerArchive, "verify", do_nothing_async),), 40
    ),
    "deleted-before-recorded": Mutant(
        "A ledger is deleted here before its copy is complete.",
        ((TieredStore, "offload", _delete_what_is_unrecorded),),
        20,
    ),
    "copied-in-part": Mutant(
        "A copy lacks the last byte, and nobody looks at its size.",
        (
            (LedgerArchive, "copy", _delete_before_the_copy),
            (TieredStore, "delete_local", _delete_unchecked),
        ),
        20,
    ),
    "sweep-of-listed-ledgers": Mutant(
        "A sweep takes every ledger for an orphan and doesn't check it.",
        (
            (rounds, "orphans_of", _list_nothing),
            (rounds, "dispose", _sweep_what_is_listed),
        ),
        20,
    ),
    "no-sweep": Mutant("Orphans are never looked for.", ((rounds, "orphans_of", _no_orphans),), 40),
    "deleted-here-only": Mutant(
        "A ledger is deleted here and not in the archive.",
        ((TieredStore, "delete_archived", do_nothing_async),),
        20,
    ),
    "parts-are-left": Mutant(
        "Only the end of a copy is deleted.", ((LedgerArchive, "delete", _leave_parts),), 20
    ),
    "marks-are-lost": Mutant(
        "The manifest doesn't keep the marks.", ((manifest, "_ledger_row", _drop_marks),), 20
    ),
    "another-block": Mutant(
        "A block that was read ahead is taken for the one before.",
        ((ReadAhead, "_read", _read_the_next_block),),
        20,
    ),
    "other-parts-are-the-same": Mutant(
        "An object that has the name of a part is taken for it, and the copy isn't read back.",
        (
            (LedgerArchive, "_put", _taken_is_stored),
            (LedgerArchive, "verify", do_nothing_async),
        ),
        40,
    ),
    "marks-too-many": Mutant(
        "All sealed ledgers are marked with one, and nobody looks again.",
        (
            (manifest.Manifest, "with_offloaded", _mark_all),
            (TieredStore, "delete_local", _delete_unchecked),
        ),
        20,
    ),
}
