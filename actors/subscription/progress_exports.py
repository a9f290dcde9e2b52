"""What of a subscription other clusters are to be told: where it changed since they last were.

A subscription's progress goes to each other cluster in *exports*. Each tells what is acknowledged
now at the places that were touched since the export before it; the first one tells of all places.
A place may be touched for nothing: what is told is what the cursor has, and to tell it again
changes nothing. So what is remembered is bounded: beyond `MOST_RANGES` places are rounded.

An export is told in *windows*. A *token* says how far the other cluster has it: which activation of
the subscription made the export, its number, and where it goes on, or `DONE`. Who comes with the
token of a complete export has that, and gets the next one; who comes with it again lost the answer.
With a token that isn't known any more, or without one, it begins with everything.

What moves a cursor back is never told, but what is acknowledged again is told again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from google.protobuf.message import Message

from velaray.actors.sets.ack_segments import Mask
from velaray.actors.sets.offset_sets import Range
from velaray.actors.sets.ranges import RangeSet
from velaray.actors.subscription.cursor import Cursor, unpack_ranges
from velaray.actors.subscription.machine import Acked
from velaray.actors.subscription.pending_acks import AcksEnded
from velaray.actors.subscription.redelivery import CountRun, CountRuns
from velaray.events.events_pb2 import (
    CursorCreated,
    CursorReset,
    CursorRestored,
    DeadLettersMoved,
    EntriesAcked,
    EntriesExpired,
    MarkDeleted,
    TransactionAcksEnded,
)

EVERYWHERE = (0, 1 << 62)
DONE = -1
"""Where a complete export goes on."""
WINDOW = 1 << 16
"""So many touched offsets are looked at together."""
MOST_RANGES = 4096
"""So many ranges are remembered as touched; beyond them they are rounded, to half as many."""
MOST_CLUSTERS = 16
"""Of so many clusters it's remembered what they have; who hasn't asked for longest is forgotten."""

Token = list[Any]


class Touched:
    """Offsets at which something may have changed, in bounded memory: some may not have."""

    __slots__ = ("_grain", "_ranges")

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        self._ranges = RangeSet()
        self._grain = 1
        self.add(ranges)

    def __bool__(self) -> bool:
        return bool(self._ranges)

    def __iter__(self) -> Iterator[Range]:
        """All of it as ascending ranges."""
        return iter(self._ranges)

    def add(self, ranges: Iterable[Range]) -> None:
        """Something changed there."""
        for first, end in ranges:
            self._ranges.add(*self._rounded(first, end))
            if self._ranges.range_count() > MOST_RANGES:
                self._round()

    def _rounded(self, first: int, end: int) -> Range:
        return first - first % self._grain, end + -end % self._grain

    def _round(self) -> None:
        while self._ranges.range_count() > MOST_RANGES // 2:
            self._grain *= 2
            self._ranges = RangeSet(self._rounded(*each) for each in self._ranges)

    def from_on(self, first: int) -> list[Range]:
        """What of it is at or behind an offset."""
        return self._ranges.within(first, EVERYWHERE[1])


@dataclass(slots=True)
class _Told:
    """What one cluster is told: export ``number`` of what was touched before it began, and the next
    of what is touched ``since``; ``confirmed`` is the newest one that it said to have."""

    number: int
    confirmed: int = DONE
    places: Touched = field(default_factory=Touched)
    since: Touched = field(default_factory=Touched)


class Part(NamedTuple):
    """What is to be told next: export ``number``, of these places, from an offset on.

    ``news`` is false if there is nothing to tell.
    """

    number: int
    places: Touched
    at: int
    news: bool = True


class Exports:
    """What is told to which cluster, by one activation of a subscription."""

    def __init__(self, activation: str) -> None:
        """``activation`` is the name of no other one of a subscription that had this one's name."""
        self._activation = activation
        self._told: dict[str, _Told] = {}
        self._number = 0

    def __bool__(self) -> bool:
        """Whether any cluster is told anything."""
        return bool(self._told)

    def touch(self, ranges: Sequence[Range]) -> None:
        """Something changed at these offsets, or is about to."""
        for told in self._told.values():
            told.since.add(ranges)

    def next(self, cluster: str, token: Token | None) -> Part:
        """What a cluster that has all up to this token is to be told next.

        To be told by the state as it is from now on.
        """
        told = self._told.pop(cluster, None)
        found = None if told is None or token is None else self._follow(told, token)
        if found is None:
            self._number += 1
            told = _Told(self._number, places=Touched([EVERYWHERE]))
            found = Part(told.number, told.places, 0)
        assert told is not None
        self._told[cluster] = told  # the last one is who asked last
        while len(self._told) > MOST_CLUSTERS:
            del self._told[next(iter(self._told))]
        return found

    def _follow(self, told: _Told, token: Token) -> Part | None:
        activation, number, at = token
        if activation != self._activation or number not in (told.number, told.confirmed):
            return None
        if at != DONE:
            return Part(number, told.places, at) if number == told.number else None
        if number == told.number:
            told.confirmed = number
            if not told.since:
                return Part(number, told.since, 0, news=False)
            told.places = told.since
        else:
            told.places.add(told.since)
        told.since = Touched()
        self._number += 1
        told.number = self._number
        return Part(told.number, told.places, 0)

    def token(self, part: Part, goes_on: int) -> Token:
        """What a cluster will have that gets this part, which ends there."""
        return [self._activation, part.number, goes_on]


class Window(NamedTuple):
    """What a subscription has at touched places: the mark, and which places are before it; beyond
    it entries that are acknowledged, what remains of batches that are in part, and how often others
    were delivered in vain.

    It goes on ``at``, or is `DONE`.
    """

    mark: int
    before: list[Range]
    ranges: list[Range]
    partial: list[Mask]
    counts: list[CountRun]
    at: int


def window(
    cursor: Cursor, counts: CountRuns, places: Touched, at: int, known_from: int = EVERYWHERE[1]
) -> Window:
    """Look at the next places that were touched, from offset ``at`` on; not at those before the
    mark and ``known_from``."""
    mark = cursor.acked_before
    found = Window(mark, [], [], [], [], DONE)
    limit, left = max(cursor.untouched_from(), counts.end), WINDOW
    for first, end in places.from_on(max(at, min(mark, known_from))):
        if first >= limit:
            break
        if not left:
            return found._replace(at=first)
        stop = min(end, limit, first + left)
        if first < mark:
            found.before.append((first, min(stop, mark)))
        found.ranges.extend(cursor.beyond.within(first, stop))
        found.partial.extend(cursor.partials(first, stop))
        for start, run_end, times in counts.within(first, stop):
            unacked = cursor.unacked_ranges(start, run_end)
            found.counts.extend(CountRun(*part, times) for part in unacked)
        if stop < min(end, limit):
            return found._replace(at=stop)
        left -= stop - first
    return found


def touched_by(events: Iterable[Message], reply: Any) -> list[Range]:
    """The offsets at which a decision's events change what other clusters are told.

    ``reply`` is the decision's reply; it has the ranges that the events themselves don't name.
    """
    return [each for event in events for each in _touched_by(event, reply)]


def _touched_by(event: Message, reply: Any) -> list[Range]:
    match event:
        case EntriesAcked():
            return [
                *unpack_ranges(event.ranges),
                *((p.offset, p.offset + 1) for p in event.partial),
            ]
        case MarkDeleted():
            assert isinstance(reply, Acked | AcksEnded)
            partial = [event.partial.offset] if event.HasField("partial") else []
            return [*reply.ranges, *((offset, offset + 1) for offset in partial)]
        case EntriesExpired() | DeadLettersMoved():
            return unpack_ranges(event.ranges)
        case TransactionAcksEnded(commit=False):
            assert isinstance(reply, AcksEnded)
            return list(reply.returned)
        case CursorCreated() | CursorReset() | CursorRestored():
            return [EVERYWHERE]
    return []
