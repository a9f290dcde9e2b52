"""Skipped entries of a partition: their bytes are damaged, so they are never delivered.

They keep their offsets. Consumers pass over them as over the entries of aborted transactions, until
the skip is undone.

Commands: `SkipEntries`, `UnskipEntries`. Events: EntriesSkipped, EntriesUnskipped.
"""

from __future__ import annotations

from dataclasses import dataclass

from velaray.actors.machine import Decision, Reason, refuse, require
from velaray.actors.partition.state import PartitionState
from velaray.actors.sets.offset_sets import Range
from velaray.actors.sets.ranges import RangeSet, normalized
from velaray.events.events_pb2 import EntriesSkipped, EntriesUnskipped, SkippedRange

MAX_RANGES = 10_000
"""The most ranges of skipped entries in a partition: they are all in memory."""


@dataclass(frozen=True, slots=True)
class SkipEntries:
    """Skip ranges of offsets (first, last + 1). Reply: `Skipped`, of those that are new; refused
    INVALID if an offset isn't in the log, or beyond `MAX_RANGES`."""

    ranges: tuple[Range, ...]


@dataclass(frozen=True, slots=True)
class UnskipEntries:
    """Deliver all skipped entries again. Reply: `Skipped`, of those that are skipped no more.

    Subscriptions that have passed over them have them acknowledged: those must seek.
    """


@dataclass(frozen=True, slots=True)
class Skipped:
    """The ranges of offsets that the command has changed."""

    ranges: tuple[Range, ...]


def decide(state: PartitionState, command: SkipEntries | UnskipEntries, now_ms: int) -> Decision:
    """The decision on a command."""
    if isinstance(command, UnskipEntries):
        gone = tuple(state.skipped)
        events = (EntriesUnskipped(ranges=_messages(gone), at_ms=now_ms),) if gone else ()
        return Decision(events, Skipped(gone))
    wanted = normalized(command.ranges)
    if wanted and not 0 <= wanted[0][0] < wanted[-1][1] <= state.end_offset:
        return refuse(Reason.INVALID, f"the log has the entries up to {state.end_offset} only")
    new = [
        part
        for first, end in wanted
        for part in state.skipped.missing(max(first, state.first_offset), end)
    ]
    if not new:
        return Decision(reply=Skipped(()))
    if state.skipped.range_count() + len(new) > MAX_RANGES:
        return refuse(Reason.INVALID, f"a partition can skip {MAX_RANGES} ranges of entries")
    return Decision((EntriesSkipped(ranges=_messages(new), at_ms=now_ms),), Skipped(tuple(new)))


def evolve(state: PartitionState, event: EntriesSkipped | EntriesUnskipped) -> None:
    """Apply an event."""
    for each in event.ranges:
        if isinstance(event, EntriesSkipped):
            state.skipped.add(each.first, each.end)
        else:
            state.skipped.discard(each.first, each.end)


def hidden_within(state: PartitionState, first: int, end: int) -> list[Range]:
    """The offsets of a range that consumers don't get: skipped ones, and those of aborted
    transactions. The latter must be in memory."""
    hidden = state.transactions.hidden.within(first, end)
    if not state.skipped:
        return hidden
    return normalized([*hidden, *state.skipped.within(first, end)])


def check(skipped: RangeSet, first_offset: int, end_offset: int) -> None:
    """Raise `InvariantViolation` if an invariant is broken."""
    skipped.check()
    require(skipped.lowest(first_offset) >= first_offset, "what is skipped isn't trimmed")
    require(skipped.end() <= end_offset, "what is skipped is stored", str(skipped.end()))


def _messages(ranges: list[Range] | tuple[Range, ...]) -> list[SkippedRange]:
    return [SkippedRange(first=first, end=end) for first, end in ranges]
