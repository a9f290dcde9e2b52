"""The invariants of every cursor, by the numbers in docs/testing.md.

K1 and K2 (confirmed messages are never redelivered; all others are) are judged from the history:
`tests.sim.checkers.confirmed_acks_hold`. The others are here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from google.protobuf.message import Message
from sortedcontainers import SortedDict

from velaray.actors.machine import Machine
from velaray.actors.sets import acknowledged_ranges
from velaray.actors.sets.ack_segments import decode_segment
from velaray.actors.sets.offset_sets import OffsetSet
from velaray.actors.sets.ranges import RangeSet
from velaray.actors.subscription.cursor import Cursor
from velaray.events.events_pb2 import EntriesAcked, MarkDeleted
from velaray.events.segments import Segment, StoredSegment, digest_of
from velaray.journal.manifest import LedgerInfo

FoundT = TypeVar("FoundT")


def backlog_is_what_is_unacked(cursor: Cursor) -> None:
    """K3: the backlog is the entries after the mark without the acknowledged ranges."""
    end = cursor.untouched_from() + 3
    unacked = cursor.unacked_ranges(cursor.acked_before, end)
    counted = sum(stop - first for first, stop in unacked)
    assert cursor.backlog(end) == counted, "K3: the backlog is what isn't acknowledged"
    assert cursor.acked_count() == end - counted, "K3: what is acknowledged is counted"


def acks_commute_and_repeat(events: Iterable[Message]) -> list[Message]:
    """K4: events that must lead to the same state as ``events`` do: acknowledgements that follow
    each other are the other way round, and each is there twice."""
    others: list[Message] = []
    run: list[Message] = []
    for event in events:
        if isinstance(event, EntriesAcked | MarkDeleted):
            run += (event, event)
        else:
            others += (*reversed(run), event)
            run = []
    return [*others, *reversed(run)]


def in_the_other_form(make: Callable[[], FoundT]) -> FoundT:
    """K5: what ``make`` makes keeps its holes as ranges, to be compared with bitmaps."""
    form, acknowledged_ranges.FORM = acknowledged_ranges.FORM, RangeSet
    try:
        return make()
    finally:
        acknowledged_ranges.FORM = form


def opened(raw: bytes, acked: OffsetSet) -> Any:
    """A stored segment, decoded into ``acked``, for a look that leaves memory as it is."""
    segment = acknowledged_ranges._Segment()
    segment.acked, masks = acked, decode_segment(raw, acked)
    segment.partial = SortedDict(masks)
    return segment


def mark_goes_forward(mark: int, acked: int, after: Cursor, event: object) -> None:
    """K6: only a reset moves the mark back, or takes an acknowledgement back."""
    assert after.acked_before >= mark, f"K6: {event} moves the cursor back"
    assert after.acked_count() >= acked, f"K6: {event} takes an acknowledgement back"


def recovery_gives_what_was_stored(
    machine: Machine[Any],
    segments: Mapping[str, Segment],
    read: Callable[[StoredSegment], bytes],
) -> None:
    """K7: recovery of what was stored of a state is that state; ``read`` reads stored segments."""
    known = {
        name: segment if isinstance(segment, bytes) else read(segment)
        for name, segment in segments.items()
    }
    again = machine.snapshot(machine.restore(known))
    assert again == known, "K7: a snapshot restores to what it was taken of"
    digests = {name: digest_of(segment) for name, segment in segments.items()}
    assert digests == {name: digest_of(body) for name, body in known.items()}, (
        "K7: a segment is where it is said to be"
    )


def only_near_ledgers_are_needed(ledgers: tuple[LedgerInfo, ...], most: int) -> str:
    """No whole checkpoint needs a ledger that isn't among the ``most`` before its own; else says
    so."""
    for at, info in enumerate(ledgers):
        near = [before.ledger_id for before in ledgers[max(at - most, 0) : at + 1]]
        if info.whole and info.refers_from and info.refers_from < near[0]:
            return f"ledger {info.ledger_id} needs {info.refers_from}, {near[0]} is the oldest near"
    return ""
