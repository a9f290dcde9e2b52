"""Repairs the journals of partitions of a stopped cluster: damaged entries are skipped.

The journal of a partition is opened as its actor opens it. So an actor that runs nevertheless is
fenced, and starts again with the repaired journal.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from velaray.actors.partition.ledger_table import LedgerTable
from velaray.actors.partition.machine import PartitionMachine
from velaray.actors.partition.skipped_entries import SkipEntries, Skipped, UnskipEntries
from velaray.actors.partition.state import PartitionState
from velaray.actors.runtime import Runtime
from velaray.events.ids import ActorKey, ActorKind
from velaray.journal.damage import Damage, find_damage
from velaray.journal.errors import JournalError
from velaray.journal.journal import JournalSettings
from velaray.journal.replay import load_manifest
from velaray.journal.store import LedgerStore
from velaray.offline.journal_events import actors_in


class NotRepairable(JournalError):
    """The journal can't be repaired by skipping entries; the text says why."""


@dataclass(frozen=True, slots=True)
class Repaired:
    """Entries that are newly skipped, or skipped no more: the positions of the first and of the
    last one. Without entries ``why`` says what else is wrong with the journal."""

    key: str
    first: str
    last: str
    entries: int
    why: str


async def repair(store: LedgerStore, key: str | None, *, undo: bool) -> list[Repaired]:
    """Skip the damaged entries of a partition (None: of all), or undo all skips.

    One journal that can't be repaired doesn't stop the repair of others: its row has no entries.
    Journals without damage aren't written. Raises `NotRepairable` if ``key`` isn't a partition.
    """
    keys = [ActorKey.parse(text) for text in ([key] if key else await actors_in(store))]
    if key and keys[0].kind is not ActorKind.PARTITION:
        raise NotRepairable(f"{key} isn't a partition: only entries of partitions are skipped")
    found: list[Repaired] = []
    for each in keys:
        if each.kind is not ActorKind.PARTITION:
            continue
        try:
            found += await _repair_one(store, each, undo=undo)
        except JournalError as error:
            found.append(Repaired(each.text(), "", "", 0, str(error)))
    return found


async def _repair_one(store: LedgerStore, key: ActorKey, *, undo: bool) -> list[Repaired]:
    text = key.text()
    manifest = await load_manifest(store, text)
    if manifest.dead or not manifest.ledgers:
        return []
    damage = [] if undo else await find_damage(store, text, manifest.ledgers)
    if not damage and not undo:
        return []
    failures: list[BaseException] = []
    settings = JournalSettings()
    runtime: Runtime[PartitionState] = await Runtime.recover(
        PartitionMachine(), store, key, _now_ms, settings, failures.append
    )
    try:
        ranges = [part for each in damage for part in _offsets(runtime.state.table, each)]
        done = await runtime.ask(UnskipEntries() if undo else SkipEntries(tuple(ranges)))
        if not isinstance(done, Skipped):
            raise NotRepairable(f"{text}: {done}")
        return [_row(key, runtime.state.table, first, end, damage) for first, end in done.ranges]
    finally:
        await runtime.close()


def _offsets(table: LedgerTable, damage: Damage) -> list[tuple[int, int]]:
    """The offsets of damaged entries; none if they are trimmed."""
    span = table.span(damage.ledger_id)
    first, end = span.first + damage.first, min(span.first + damage.end, span.end)
    return [(first, end)] if first < end else []


def _row(
    key: ActorKey, table: LedgerTable, first: int, end: int, damage: Sequence[Damage]
) -> Repaired:
    start, last = table.position_of(first), table.position_of(end - 1)
    why = next(
        (
            each.why
            for each in damage
            if each.ledger_id == start.ledger_id and each.first <= start.entry_id < each.end
        ),
        "",
    )
    return Repaired(
        key.text(),
        f"{start.ledger_id}:{start.entry_id}",
        f"{last.ledger_id}:{last.entry_id}",
        end - first,
        why,
    )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
