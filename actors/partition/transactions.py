"""The transactions with entries in a partition: part of its state.

An entry of a transaction is appended like any other and takes the next offset. The transaction is
*ongoing* here from its first entry until its end. A commit makes its entries count as any others;
an abort *hides* them: they are never delivered, neither by re-reading, nor at their delivery time,
nor by compaction. Everything below the *max-read offset* is decided: it is the first offset of the
ongoing transaction that began first, or the end of the log. It never decreases, and nothing at or
beyond it is delivered.

Only hidden entries are kept of ended transactions. So the publisher of a transaction's first entry
must know from its coordinator that it is open and has this partition as a participant. Ending a
transaction that isn't ongoing, or ending it again, changes nothing.

The end takes no entry of the log: its event is the marker. Hidden entries are kept in segments
(`velaray.actors.sets.acknowledged_ranges`); a checkpoint writes those that changed.

Command: `EndTransaction`. Events: TransactionEnded, and EntryAppended of a transaction's entry.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeVar

from velaray.actors.machine import Decision, require
from velaray.actors.sets.acknowledged_ranges import AcknowledgedRanges
from velaray.actors.sets.offset_sets import Range
from velaray.events.events_pb2 import EntryAppended, TransactionEnded
from velaray.events.ids import TransactionId
from velaray.events.segments import Segment, StoredSegment

SegmentT = TypeVar("SegmentT")

_HIDDEN = "hidden/"


@dataclass(frozen=True, slots=True)
class EndTransaction:
    """Apply the coordinator's verdict. Reply: `Ended`; a repetition changes nothing.

    The verdict must be durable at the coordinator. A terminated topic accepts it as well.
    ``alone``: no other partition is a participant.
    """

    transaction: TransactionId
    commit: bool
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Ended:
    """The transaction isn't ongoing here any more. ``ranges`` are its entries as ascending (first,
    last + 1), if it was; ``max_read_offset`` is the one after the event. ``clusters`` are those
    that it goes to from here, while its participants there are unknown."""

    ranges: tuple[Range, ...]
    max_read_offset: int
    clusters: tuple[str, ...] = ()


@dataclass(slots=True)
class Transactions:
    """``ongoing``: the ascending ranges of each transaction's entries, in the order of their first
    entries; ``hidden``: the entries of aborted ones, unless they are trimmed."""

    ongoing: OrderedDict[TransactionId, list[Range]] = field(default_factory=OrderedDict)
    hidden: AcknowledgedRanges = field(default_factory=AcknowledgedRanges)

    def max_read_offset(self, end_offset: int) -> int:
        """The offset below which everything is decided; ``end_offset`` is the log's."""
        for ranges in self.ongoing.values():
            return ranges[0][0]
        return end_offset


def decide(
    state: Transactions, end_offset: int, command: EndTransaction, clusters: Sequence[str] = ()
) -> Decision:
    """The decision on the command; ``end_offset`` is the log's. A commit goes to ``clusters``."""
    transaction = command.transaction
    if transaction not in state.ongoing:
        return Decision(reply=Ended((), state.max_read_offset(end_offset)))
    left = (ranges[0][0] for other, ranges in state.ongoing.items() if other != transaction)
    going = tuple(clusters) if command.commit else ()
    event = TransactionEnded(
        coordinator=transaction.coordinator,
        sequence=transaction.sequence,
        commit=command.commit,
        clusters=going,
        alone=command.alone and bool(going),
    )
    ranges = tuple(state.ongoing[transaction])
    unnamed = () if command.alone else going
    return Decision((event,), Ended(ranges, next(left, end_offset), unnamed))


def appended(state: Transactions, event: EntryAppended, offset: int) -> None:
    """Record an entry of a transaction at ``offset``."""
    transaction = TransactionId(event.txn_coordinator, event.txn_sequence)
    ranges = state.ongoing.setdefault(transaction, [])
    if ranges and ranges[-1][1] == offset:
        ranges[-1] = (ranges[-1][0], offset + 1)
    else:
        ranges.append((offset, offset + 1))


def evolve(state: Transactions, event: TransactionEnded) -> None:
    """End a transaction."""
    ranges = state.ongoing.pop(TransactionId(event.coordinator, event.sequence))
    if not event.commit:
        for first, end in ranges:
            state.hidden.add(first, end)


def check(state: Transactions, first_offset: int, end_offset: int) -> None:
    """Raise `InvariantViolation` if an invariant is broken; the offsets are the log's."""
    hidden, taken = state.hidden, []
    for transaction, ranges in state.ongoing.items():
        require(transaction.sequence > 0, "a transaction has a number", str(transaction))
        apart = all(a[1] < b[0] for a, b in pairwise(ranges))
        full = bool(ranges) and all(first < end for first, end in ranges)
        require(apart and full, "an ongoing transaction has entries, in order", str(transaction))
        decided = any(hidden.within(first, end) for first, end in ranges)
        require(not decided, "what is hidden is decided", str(transaction))
        taken += ranges
    firsts = [ranges[0][0] for ranges in state.ongoing.values()]
    require(firsts == sorted(firsts), "ongoing transactions are in the order of the log")
    taken.sort()
    shared = any(a[1] > b[0] for a, b in pairwise(taken))
    require(not shared, "an entry is of one transaction at most", repr(taken[:9]))
    kept = not taken or (first_offset <= taken[0][0] and taken[-1][1] <= end_offset)
    require(kept, "entries of ongoing transactions are kept", repr(taken[:1]))
    hidden.check(first_offset - 1)
    require(hidden.end() <= end_offset, "what is hidden is stored", str(hidden.end()))


def snapshot(state: Transactions) -> dict[str, Segment]:
    """Segments, if there is anything: ``transactions``, and ``hidden/<n>``, which are those of
    `velaray.actors.sets.acknowledged_ranges`.
    """
    if not state.ongoing and not state.hidden:
        return {}
    ongoing = [[*transaction, ranges] for transaction, ranges in state.ongoing.items()]
    about = [state.hidden.segment_size, ongoing]
    segments: dict[str, Segment] = {
        f"{_HIDDEN}{number}": segment for number, segment in state.hidden.snapshot().items()
    }
    segments["transactions"] = json.dumps(about, separators=(",", ":")).encode()
    return segments


def restore(segments: Mapping[str, bytes]) -> Transactions:
    """The inverse of `snapshot`; other segments are ignored."""
    state = Transactions()
    if "transactions" not in segments:
        return state
    size, ongoing = json.loads(segments["transactions"])
    state.hidden.restore(size, _numbered(segments))
    for coordinator, sequence, ranges in ongoing:
        state.ongoing[TransactionId(coordinator, sequence)] = [(at, end) for at, end in ranges]
    return state


def on_checkpoint(state: Transactions, stored: Mapping[str, StoredSegment]) -> None:
    """Note where a durable checkpoint of the state has its segments."""
    state.hidden.on_checkpoint(_numbered(stored))


def needs(state: Transactions, transaction: TransactionId) -> list[StoredSegment]:
    """The cold segments of hidden entries that the end of the transaction may change."""
    ranges = state.ongoing.get(transaction, ())
    return [place for first, end in ranges for place in state.hidden.cold_within(first, end)]


def provide(state: Transactions, name: str, raw: bytes) -> None:
    """Take the bytes of a stored segment of hidden entries into memory; others are ignored."""
    for number in _numbered({name: raw}):
        state.hidden.provide(number, raw)


def _numbered(segments: Mapping[str, SegmentT]) -> dict[int, SegmentT]:
    """The segments of hidden entries by their numbers."""
    return {
        int(name.removeprefix(_HIDDEN)): segment
        for name, segment in segments.items()
        if name.startswith(_HIDDEN)
    }
