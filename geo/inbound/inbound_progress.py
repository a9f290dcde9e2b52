"""Subscription progress of another cluster, read from the admin statistics of a topic.

Pulsar's ``internalStats`` give the mark-delete position of each cursor and the individually
acknowledged ranges, in whole entries. They don't show partly acknowledged batches.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from velaray.actors.subscription.remote_progress import LAST_ENTRY
from velaray.events.ids import Position
from velaray.wire.replication import PULL_PREFIX, REPLICATOR_PREFIX
from velaray.wire.replication_pb2 import OriginProgress, SubscriptionProgress

RANGES_PER_PART = 10_000
"""The most ranges in one message."""

_SYSTEMS = ("pulsar.dedup", "__compaction")
_POSITION = re.compile(r"(-?\d+):(-?\d+)\Z")
_RANGE = re.compile(r"\((-?\d+):(-?\d+)\.\.(-?\d+):(-?\d+)\]")


class MalformedStats(ValueError):
    """The statistics don't have Pulsar's form; the message says what is wrong."""


class Range(NamedTuple):
    """Entries ``first`` to ``last`` of a ledger."""

    ledger_id: int
    first: int
    last: int


class Cursor(NamedTuple):
    """Acknowledged entries: the mark-delete position (None: nothing), and ranges beyond it."""

    up_to: Position | None
    besides: tuple[Range, ...] = ()


class TopicStats:
    """The parsed ``internalStats`` of one partition."""

    def __init__(self, found: Mapping[str, Any]) -> None:
        """Parse the statistics. Raises `MalformedStats`."""
        try:
            self._entries = {
                int(each["ledgerId"]): int(each["entries"]) for each in found["ledgers"]
            }
            self._cursors = {name: dict(each) for name, each in found["cursors"].items()}
            if self._entries:  # Pulsar reports the size of the open ledger elsewhere
                newest = max(self._entries)
                current = int(found.get("currentLedgerEntries", 0))
                self._entries[newest] = max(self._entries[newest], current)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise MalformedStats(f"internalStats: {type(error).__name__}: {error}") from error

    def cursors(self) -> dict[str, Cursor]:
        """Progress of all user subscriptions, readers included. Raises `MalformedStats`."""
        return {
            name: self._cursor(name)
            for name in sorted(self._cursors)
            if name not in _SYSTEMS and not name.startswith((REPLICATOR_PREFIX, PULL_PREFIX))
        }

    def backlog(self, name: str) -> int | None:
        """The number of entries after the last acknowledged one of a subscription; None if it
        doesn't exist. Raises `MalformedStats`."""
        if name not in self._cursors:
            return None
        ledger_id, entry_id = self._mark(name)
        return sum(
            entries if each > ledger_id else max(entries - 1 - entry_id, 0)
            for each, entries in self._entries.items()
            if each >= ledger_id
        )

    def _mark(self, name: str) -> Position:
        return _position(self._cursors[name].get("markDeletePosition"))

    def _cursor(self, name: str) -> Cursor:
        besides: list[Range] = []
        text = str(self._cursors[name].get("individuallyDeletedMessages", "[]"))
        if _RANGE.sub("", text).strip("[, ]"):
            raise MalformedStats(f"individuallyDeletedMessages of {name!r}: {text[:200]!r}")
        for found in _RANGE.finditer(text):
            besides += self._ranges(*map(int, found.groups()))
        return Cursor(self._up_to(self._mark(name)), tuple(besides))

    def _up_to(self, mark: Position) -> Position | None:
        ledger_id, entry_id = mark
        if entry_id >= 0:
            return mark
        # Before the first entry of a ledger: the last entry of the ledger before it.
        return Position(ledger_id - 1, LAST_ENTRY) if ledger_id > 0 else None

    def _ranges(self, ledger_id: int, before: int, last_ledger: int, last: int) -> Iterator[Range]:
        """The entries behind (ledger, before), up to (last ledger, last)."""
        for each in sorted({ledger_id, last_ledger, *self._entries}):
            if ledger_id <= each <= last_ledger:
                first = before + 1 if each == ledger_id else 0
                end = last if each == last_ledger else self._entries.get(each, 0) - 1
                if first <= end:
                    yield Range(each, first, end)


def _position(text: Any) -> Position:
    found = _POSITION.match(str(text))
    if found is None:
        raise MalformedStats(f"markDeletePosition must be ledger:entry, not {str(text)[:100]!r}")
    return Position(int(found[1]), int(found[2]))


def parts(
    cluster: str, name: str, properties: Mapping[str, str], before: Cursor | None, now: Cursor
) -> list[bytes]:
    """New progress of a subscription, as `SubscriptionProgress` messages. Without a former state
    (None) there is at least one message, which makes the subscription known."""
    known = set() if before is None else set(before.besides)
    new = [each for each in now.besides if each not in known]
    up_to = now.up_to if before is None or now.up_to != before.up_to else None
    found: list[bytes] = []
    if before is not None and up_to is None and not new:
        return found
    for first in range(0, max(len(new), 1), RANGES_PER_PART):
        progress = OriginProgress(cluster=cluster)
        if up_to is not None and first == 0:
            progress.up_to.ledger_id, progress.up_to.entry_id = up_to
        for each in new[first : first + RANGES_PER_PART]:
            progress.acked.add(ledger=each.ledger_id, first_entry=each.first, last_entry=each.last)
        told = SubscriptionProgress(subscription=name, properties=properties, origins=[progress])
        found.append(told.SerializeToString())
    return found
