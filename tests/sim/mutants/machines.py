"""Bugs of joining machines and of backups, with the journals in an object store."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from tests.sim.mutants.mutant import Mutant, do_nothing, do_nothing_async
from velaray.backup import creating
from velaray.backup.creating import _Maker
from velaray.backup.cut import Moment
from velaray.journal.errors import JournalError
from velaray.journal.objects.ledger_store import ObjectLedgerStore
from velaray.journal.objects.numbers import JournalNumbers
from velaray.topology.placement import PlacementTable


def _take_what_was_read(original: Any) -> Any:
    async def advance(self: JournalNumbers, end_of: Any) -> tuple[int, int]:
        first, _ = await self._read()
        with suppress(JournalError):
            await original(self, end_of)
        return first, end_of(first)

    return advance


def _cut_nowhere(original: Any) -> Any:
    async def cut(store: Any, journal: str, info: Any, moment: Moment, known: Any) -> Any:
        return await original(store, journal, info, Moment(None), known)

    return cut


MUTANTS: dict[str, Mutant] = {
    "machines-no-place-in-joined-hosts": Mutant(
        "the directory places nothing in hosts that joined",
        ((PlacementTable, "add_host", do_nothing),),
        within=20,
        machines=True,
    ),
    "machines-numbers-without-comparing": Mutant(
        "a process takes the journal numbers that it has read, whoever took them meanwhile",
        ((JournalNumbers, "_advance", _take_what_was_read),),
        within=20,
        machines=True,
    ),
    "machines-backup-of-several-moments": Mutant(
        "a backup has each journal as it is when it is copied",
        ((creating, "cut_ledger", _cut_nowhere),),
        within=20,
        machines=True,
    ),
    "machines-backup-before-its-moment": Mutant(
        "a backup doesn't wait until its moment has passed",
        ((_Maker, "_pass", do_nothing_async),),
        within=40,
        machines=True,
    ),
    "machines-restore-without-numbers": Mutant(
        "the restored data gives numbers of journals again",
        ((ObjectLedgerStore, "take_numbers", do_nothing_async),),
        within=20,
        machines=True,
    ),
}
