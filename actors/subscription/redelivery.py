"""Counts of failed deliveries: deliveries of entries that weren't acknowledged.

The state counts the *begun* deliveries of each entry, minus those that ended in order (the consumer
left, or another one became active). When a delivery of an entry with count n ends without
acknowledgement, even by a crash, the next delivery has redelivery count n. So nothing is written
when a delivery fails; a delivery with a count above 0 is written before it is sent.

The counts of acknowledged entries are meaningless. Ranges are therefore joined across acknowledged
entries, which keeps them few, and counts before the mark are dropped when the next delivery is
counted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from google.protobuf.message import Message

from velaray.actors.machine import Decision
from velaray.actors.sets.holdings import Holdings
from velaray.actors.sets.ranges import Range, normalized
from velaray.actors.subscription.cursor import Cursor, pack_ranges
from velaray.events.events_pb2 import DeliveriesReturned, EntriesDelivered


@dataclass(slots=True)
class NoteDeliveries:
    """Count deliveries, in this order: ``begun`` ones that aren't counted yet, those that were
    ``returned`` in order, and those that are ``begun_again``.

    Reply: `Noted`. Acknowledged entries aren't counted.
    """

    begun: Sequence[Range] = ()
    returned: Sequence[Range] = ()
    begun_again: Sequence[Range] = ()


@dataclass(frozen=True, slots=True)
class Noted:
    """The deliveries are counted."""


class CountRun(NamedTuple):
    """The count of offsets ``first`` to ``end`` - 1, at least 1."""

    first: int
    end: int
    times: int


class CountRuns:
    """Counts by offset, kept as runs of equal counts; 0 elsewhere."""

    __slots__ = ("_runs", "end")

    def __init__(self, runs: Iterable[tuple[int, int, int]] = ()) -> None:
        self._runs: Holdings[int] = Holdings()
        self.end = 0
        """Nothing at or beyond this offset was ever counted."""
        for first, end, count in runs:
            self._put(first, end, count)

    def __bool__(self) -> bool:
        return self.end > 0

    def __iter__(self) -> Iterator[CountRun]:
        """All runs, ascending."""
        return (CountRun(*run) for run in self._runs)

    def _put(self, first: int, end: int, count: int) -> None:
        if first < end and count > 0:
            self._runs.give(first, end, count)
            self.end = max(self.end, end)

    def add(self, ranges: Iterable[Range], by: int) -> None:
        """Change the counts of disjoint ranges; none falls below 0."""
        for first, end in ranges:
            parts = self._runs.within(first, end)
            self._runs.take(first, end)
            for start, stop, count in parts:
                self._put(first, start, by)
                self._put(start, stop, count + by)
                first = stop
            self._put(first, end, by)

    def get(self, offset: int) -> int:
        """The count of one offset."""
        return self._runs.owner_of(offset) or 0

    def alike(self, first: int, end: int) -> tuple[int, int]:
        """The count at ``first``, and the offset, at most ``end``, up to which it is the same."""
        parts = self._runs.within(first, end)
        if not parts:
            return 0, end
        if parts[0].first > first:
            return 0, parts[0].first
        return parts[0].owner, parts[0].end

    def below(self, first: int, end: int, times: int) -> list[Range]:
        """The parts of a range with a count below ``times``, ascending."""
        found: list[Range] = []
        while first < end:
            count, stop = self.alike(first, end)
            if count < times:
                found.append((first, stop))
            first = stop
        return found

    def raise_to(self, first: int, end: int, times: int) -> None:
        """Raise the counts of a range to at least ``times``."""
        for start, stop in self.below(first, end, times):
            self._runs.take(start, stop)
            self._put(start, stop, times)

    def forget(self, first: int, end: int) -> None:
        """Set the counts of a range to 0."""
        self._runs.take(first, end)

    def beyond(self, offset: int) -> list[list[int]]:
        """The runs from ``offset`` on, cut there, as lists of plain numbers."""
        return [list(run) for run in self._runs.within(offset, self.end)]

    def within(self, first: int, end: int) -> list[CountRun]:
        """The runs of a range, ascending, cut to it."""
        return [CountRun(*run) for run in self._runs.within(first, end)] if first < end else []

    def copy(self) -> CountRuns:
        """An independent copy."""
        return CountRuns(self._runs)

    def clear(self) -> None:
        """Set all counts to 0."""
        self._runs.clear()
        self.end = 0

    def check(self) -> None:
        """Raise `InvariantViolation` if an invariant is broken."""
        self._runs.check()


def worth_counting(cursor: Cursor, ranges: Iterable[Range]) -> list[Range]:
    """The ranges without acknowledged entries, joined where only acknowledged entries lie
    between."""
    found: list[Range] = []
    for first, end in normalized(ranges):
        first = cursor.next_unacked(first)
        if first >= end:
            continue
        if found and cursor.next_unacked(found[-1][1]) >= first:
            found[-1] = (found[-1][0], end)
        else:
            found.append((first, end))
    return found


def decide(cursor: Cursor, command: NoteDeliveries) -> Decision:
    """The decision on `NoteDeliveries`."""
    events: list[Message] = []
    if begun := worth_counting(cursor, command.begun):
        events.append(EntriesDelivered(ranges=pack_ranges(begun)))
    if returned := worth_counting(cursor, command.returned):
        events.append(DeliveriesReturned(ranges=pack_ranges(returned)))
    if again := worth_counting(cursor, command.begun_again):
        events.append(EntriesDelivered(ranges=pack_ranges(again)))
    return Decision(tuple(events), Noted())


def snapshot(counts: CountRuns, cursor: Cursor) -> bytes | None:
    """The counts beyond the mark as a segment; None if there are none."""
    runs = counts.beyond(cursor.acked_before) if counts else []
    return json.dumps(runs, separators=(",", ":")).encode() if runs else None


def restore(segment: bytes | None) -> CountRuns:
    """The inverse of `snapshot`."""
    return CountRuns(json.loads(segment)) if segment else CountRuns()
