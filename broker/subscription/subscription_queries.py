"""Queries about a subscription's cursor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from velaray.actors.subscription.machine import SubscriptionState
from velaray.actors.subscription.remote_progress import NOWHERE
from velaray.broker.subscription.dispatch_state import pairs
from velaray.broker.subscription.messages import Point, Progress
from velaray.broker.subscription.progress_form import ahead_to
from velaray.events.ids import Position

_AT_ONCE = 1 << 16
"""The approximate number of ranges of remote progress in one answer."""
_WINDOW = 1 << 16
"""The number of offsets that are searched in one step: there may be millions of acknowledged
ranges."""


def holdings(state: SubscriptionState, ranges: Sequence[int]) -> tuple[int, list[int]]:
    """The mark, and the indexes of the ranges that are wholly acknowledged."""
    cursor = state.cursor
    numbered = enumerate(pairs(ranges))
    whole = [number for number, (first, end) in numbered if cursor.next_unacked(first) >= end]
    return cursor.acked_before, whole


def find_unacked(state: SubscriptionState, number: int, end: int) -> int | None:
    """The offset of the ``number``-th (from 1) unacknowledged entry before ``end``. Segments before
    that one are only counted."""
    cursor = state.cursor
    size, at = cursor.beyond.segment_size, cursor.acked_before
    while at < end:
        begin = at - at % size  # nothing before the mark is in its segment
        stop = min(begin + size, end)
        here = stop - at - cursor.beyond.count(begin, stop)
        if number <= here:
            break
        number, at = number - here, stop
    for first, behind in cursor.unacked_ranges(at, stop) if at < end else ():
        if number <= behind - first:
            return first + number - 1
        number -= behind - first
    return None


def unacked(state: SubscriptionState, first: int, most: int, end: int) -> list[int]:
    """The first ``most`` unacknowledged offsets between ``first`` and ``end``, as a flat list."""
    found: list[int] = []
    cursor = state.cursor
    for start in range(max(first, cursor.acked_before), end, _WINDOW):
        for one, behind in cursor.unacked_ranges(start, min(start + _WINDOW, end)):
            found += [one, min(behind, one + most)]
            most -= behind - one
            if most <= 0:
                return found
    return found


def waiting(
    state: SubscriptionState, came: Mapping[str, Point]
) -> tuple[dict[str, tuple[Point, Progress]], list[str]]:
    """By origin, the remote progress that waited for entries up to ``came``, and the position up to
    which the answer is complete; also all origins for which anything waits."""
    due: dict[str, tuple[Point, Progress]] = {}
    for origin, each in state.remote.waiting.items():
        newest = Position(*came.get(origin, NOWHERE))
        if each.concerns(newest):
            border = each.border(newest, _AT_ONCE)
            due[origin] = border, ahead_to(each.due(border))
    return due, sorted(state.remote.waiting)
