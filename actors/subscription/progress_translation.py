"""Translation of progress from positions of origins to local offsets.

`here` splits another cluster's progress into the offsets of entries that this partition has, and
the progress of entries that it doesn't have yet. Positions of this cluster are those of the
partition's own ledgers; they name only entries that no other cluster stored first. Entries that are
trimmed, or never arrived because they aren't replicated here, have no offset.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from velaray.actors.partition.origins import NOWHERE, Origin
from velaray.actors.sets.offset_sets import Range
from velaray.actors.sets.ranges import normalized
from velaray.actors.subscription.remote_progress import (
    Ahead,
    EntryCount,
    EntryMask,
    EntryRange,
    beyond,
)
from velaray.events.ids import Position

if TYPE_CHECKING:
    from velaray.actors.partition.state import PartitionState


@dataclass(slots=True)
class Here:
    """Progress that a partition has, by offset, and progress ``ahead`` of it, by origin.

    ``end_offset`` is the end of the log at the time of the translation.
    """

    end_offset: int
    ranges: list[Range] = field(default_factory=list)
    partial: list[tuple[int, int]] = field(default_factory=list)
    counts: list[tuple[int, int, int]] = field(default_factory=list)
    ahead: dict[str, Ahead] = field(default_factory=dict)

    @property
    def last(self) -> int:
        """The offset after its last entry."""
        ends = [end for _, end in self.ranges[-1:]] + [at + 1 for at, _ in self.partial]
        return max([*ends, *(end for _, end, _ in self.counts)], default=0)


def here(
    state: PartitionState,
    own: str,
    told: Mapping[str, Ahead],
    since: Mapping[str, Position] | None = None,
) -> Here:
    """The local offsets of the entries in ``told``, which is by origin. ``own`` is this cluster's
    name.

    "All up to" leaves out everything up to ``since``.
    """
    found = Here(state.end_offset)
    for cluster, progress in told.items():
        passed = (since or {}).get(cluster, NOWHERE)
        if cluster == own:
            _own(state, progress, passed, found)
        else:
            origin = state.origins.by_cluster.get(cluster, Origin())
            _came(origin, progress, passed, found)
            if ahead := _ahead(progress, origin.last):
                found.ahead[cluster] = ahead
    found.ranges = normalized(found.ranges)
    return found


def _came(origin: Origin, told: Ahead, passed: Position, found: Here) -> None:
    if told.up_to > passed:
        after = Position(passed.ledger_id, passed.entry_id + 1)
        found.ranges += origin.offsets(after, told.up_to)
    for ledger_id, first, end in told.ranges:
        found.ranges += _offsets(origin, ledger_id, first, end)
    for ledger_id, entry_id, ack_set in told.partial:
        offset = origin.offset_of(Position(ledger_id, entry_id))
        if offset is not None:
            found.partial.append((offset, ack_set))
    for ledger_id, first, end, times in told.counts:
        found.counts += [(*part, times) for part in _offsets(origin, ledger_id, first, end)]


def _offsets(origin: Origin, ledger_id: int, first: int, end: int) -> list[Range]:
    return origin.offsets(Position(ledger_id, first), Position(ledger_id, end - 1))


def _ahead(told: Ahead, last: Position) -> Ahead | None:
    """The progress behind the newest entry that arrived; None if there is none."""
    up_to = told.up_to if told.up_to > last else NOWHERE
    ranges = tuple(
        EntryRange(ledger_id, start, end)
        for ledger_id, first, end in told.ranges
        if (start := beyond(last, ledger_id, first)) < end
    )
    partial = tuple(EntryMask(*each) for each in told.partial if each[:2] > last)
    counts = tuple(
        EntryCount(ledger_id, start, end, times)
        for ledger_id, first, end, times in told.counts
        if (start := beyond(last, ledger_id, first)) < end
    )
    return Ahead(up_to, ranges, partial, counts) or None


def _own(state: PartitionState, told: Ahead, passed: Position, found: Here) -> None:
    found.ranges += _own_up_to(state, passed, told.up_to)
    for ledger_id, first, end in told.ranges:
        found.ranges += _own_within(state, ledger_id, first, end)
    for ledger_id, entry_id, ack_set in told.partial:
        for offset, _ in _own_within(state, ledger_id, entry_id, entry_id + 1):
            found.partial.append((offset, ack_set))
    for ledger_id, first, end, times in told.counts:
        found.counts += [(*part, times) for part in _own_within(state, ledger_id, first, end)]


def _own_up_to(state: PartitionState, passed: Position, up_to: Position) -> list[Range]:
    if not state.table.may_hold(up_to.ledger_id):
        return []
    first, end = state.first_offset, state.table.at_or_before(up_to) + 1
    if state.table.may_hold(passed.ledger_id):
        first = max(first, state.table.at_or_before(passed) + 1)
    return state.origins.own(first, end)


def _own_within(state: PartitionState, ledger_id: int, first: int, end: int) -> Iterator[Range]:
    span = state.table.span(ledger_id)
    stop = min(span.first + end, span.end)
    if span.first + first < stop:
        yield from state.origins.own(span.first + first, stop)
