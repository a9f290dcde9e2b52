"""The places of a subscription that changed since other clusters were informed.

A subscription's progress goes to each other cluster in *exports*. An export has the
acknowledgements, as they are now, at the places that were touched since the previous export; the
first export covers all places. A place may be touched without a change: exports report the present
cursor, so a repetition changes nothing. This bounds the memory: beyond `MOST_RANGES` places are
rounded.

An export is sent in *windows*. A *token* says how much of it a cluster has: the activation of the
subscription that made the export, the export's number, and the offset at which it continues, or
`DONE`. A cluster that shows the token of a complete export has it and gets the next one. A cluster
that shows it twice has lost the answer. With an unknown token, or without one, the export starts
with all places.

Moves of the cursor backwards aren't exported; later acknowledgements of the same entries are.
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
"""The offset in the token of a complete export."""
WINDOW = 1 << 16
"""The touched offsets in one window."""
MOST_RANGES = 4096
"""The most touched ranges that are kept; above it they are rounded to half as many."""
MOST_CLUSTERS = 16
"""The most clusters whose exports are tracked; above it the one that asked longest ago is
dropped."""

Token = list[Any]


class Touched:
    """Offsets that may have changed, in bounded memory."""

    __slots__ = ("_grain", "_ranges")

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        self._ranges = RangeSet()
        self._grain = 1
        self.add(ranges)

    def __bool__(self) -> bool:
        return bool(self._ranges)

    def __iter__(self) -> Iterator[Range]:
        """The ranges, ascending."""
        return iter(self._ranges)

    def add(self, ranges: Iterable[Range]) -> None:
        """Add ranges."""
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
        """The ranges from offset ``first`` on."""
        return self._ranges.within(first, EVERYWHERE[1])


@dataclass(slots=True)
class _Told:
    """The exports to one cluster: ``number`` covers ``places``, which were touched before it began,
    and the next one those touched ``since``. ``confirmed`` is the newest export that the cluster
    has confirmed."""

    number: int
    confirmed: int = DONE
    places: Touched = field(default_factory=Touched)
    since: Touched = field(default_factory=Touched)


class Part(NamedTuple):
    """The next part of an export: its ``number``, its ``places``, and the offset it starts ``at``.

    ``news`` is false if there is nothing to export.
    """

    number: int
    places: Touched
    at: int
    news: bool = True


class Exports:
    """The exports of one activation of a subscription to all clusters."""

    def __init__(self, activation: str) -> None:
        """``activation`` must be unique among all activations of subscriptions of this name."""
        self._activation = activation
        self._told: dict[str, _Told] = {}
        self._number = 0

    def __bool__(self) -> bool:
        """Whether any cluster gets exports."""
        return bool(self._told)

    def touch(self, ranges: Sequence[Range]) -> None:
        """Add offsets that may have changed."""
        for told in self._told.values():
            told.since.add(ranges)

    def next(self, cluster: str, token: Token | None) -> Part:
        """The next part for a cluster that has everything up to ``token``.

        The part must be read from the state as it is from now on.
        """
        told = self._told.pop(cluster, None)
        found = None if told is None or token is None else self._follow(told, token)
        if found is None:
            self._number += 1
            told = _Told(self._number, places=Touched([EVERYWHERE]))
            found = Part(told.number, told.places, 0)
        assert told is not None
        self._told[cluster] = told  # the last cluster in the table asked last
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
        """The token of a cluster that has this part, which ends at ``goes_on``."""
        return [self._activation, part.number, goes_on]


class Window(NamedTuple):
    """A subscription's progress at touched places: the mark, and the places before it; beyond it
    the acknowledged entries, what remains of partly acknowledged batches, and the counts of failed
    deliveries of other entries.

    The export continues ``at`` an offset, or is `DONE`.
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
    """The progress at the next touched places from offset ``at`` on, without those before the mark
    and ``known_from``. It ends before the second stored segment that isn't in memory."""
    mark = cursor.acked_before
    found = Window(mark, [], [], [], [], DONE)
    limit, left = max(cursor.untouched_from(), counts.end), WINDOW
    for first, end in places.from_on(max(at, min(mark, known_from))):
        if first >= limit:
            break
        if not left:
            return found._replace(at=first)
        stop = min(end, limit, first + left)
        known = cursor.beyond.known_until(first, stop)
        if known == first and left < WINDOW:
            return found._replace(at=first)
        stop = known if known > first else stop
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
    """The offsets at which a decision's events change the exported progress.

    ``reply`` is the decision's reply; it has the ranges that the events don't name.
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
