"""Suspects: messages that may have killed their consumer, and the rules of their redelivery.

A lost consumer may have been killed by a message that it was processing. The protocol doesn't tell
which messages it was processing. Two rules narrow it down:

- Clients hand messages to the application in the order of delivery. They return the permits of
  these messages at the latest when half a receiver queue is gathered. So the messages that were
  delivered last are partly still in the queue: these didn't fail (`failed_of`).
- The others are *suspects* in Shared and Key_Shared subscriptions. A consumer that holds suspects
  gets nothing else: up to `GROUP` of them after the first loss, one at a time after more losses
  (`room`). The suspicion ends when the consumer acknowledges the message or asks for it again.

After a few losses in a row a single message remains. Applications that acknowledge many messages
together, or slowly, get more suspects with time (`relieve`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from velaray.actors.dispatch.consumers import Attached
from velaray.actors.sets.ranges import Range, RangeSet, normalized
from velaray.actors.subscription.redelivery import CountRuns

GROUP = 32
"""Entries that a consumer may hold when it gets one of those that one consumer was lost with."""

MOST_SINGLE = 128
"""The most entries with two failed deliveries that are delivered one by one after a start of the
subscription's actor. More of them are delivered in groups: most were refused by their consumers,
and one by one they would take long."""

_MOST_RELIEF = 20


class Suspects:
    """Counts, for each entry, with how many consumers in a row it was lost."""

    def __init__(self, counts: Iterable[tuple[int, int, int]] = ()) -> None:
        """``counts`` are failed deliveries before a start: (first, last + 1, times). How these
        deliveries ended isn't known."""
        runs = list(counts)
        single = sum(end - first for first, end, times in runs if times > 1) <= MOST_SINGLE
        self._losses = CountRuns(
            (first, end, min(times, 2) if single else 1) for first, end, times in runs
        )

    def __bool__(self) -> bool:
        return bool(self._losses)

    def losses(self, offset: int) -> int:
        """The number of consumers in a row that were lost with the entry."""
        return self._losses.get(offset)

    def alike(self, first: int, end: int) -> tuple[int, int]:
        """The `losses` of ``first``, and how far, up to ``end``, they are the same."""
        return self._losses.alike(first, end)

    def lost(self, ranges: Iterable[Range]) -> None:
        """Count the loss of one more consumer for these."""
        self._losses.add(ranges, 1)

    def clear(self, first: int, end: int) -> None:
        """End the suspicion of these."""
        self._losses.forget(first, end)
        if next(iter(self._losses), None) is None:
            self._losses.clear()

    def forget(self) -> None:
        """End all suspicions."""
        self._losses.clear()

    def first_of(self, waiting: RangeSet) -> tuple[int, int, int] | None:
        """The first waiting suspects: (first, last + 1, losses)."""
        for run in self._losses:
            for first, end in waiting.within(run.first, run.end):
                return first, end, run.times
        return None

    def first_but(self, waiting: RangeSet) -> Range | None:
        """The first waiting entries that are no suspects."""
        for first, end in waiting:
            while first < end:
                losses, stop = self._losses.alike(first, end)
                if not losses:
                    return first, stop
                first = stop
        return None


def room(consumer: Attached, losses: int) -> int:
    """The number of suspects with that many losses that the consumer may get now; 0 or less if
    none."""
    window = GROUP if losses == 1 else 1
    return (window << consumer.relief) - consumer.entries


def relieve(consumer: Attached) -> None:
    """Double a consumer's room for suspects, and deliver other entries to it again, if it finished
    nothing since the last call."""
    if (consumer.suspects or consumer.draining) and not consumer.progressed:
        consumer.relief = min(consumer.relief + 1, _MOST_RELIEF)
    consumer.progressed = False


def failed_of(
    consumer: Attached, held: list[Range], suspects: Suspects, messages_of: Callable[[int], int]
) -> list[Range]:
    """The entries of ``held`` that a lost consumer can have been processing.

    If it held suspects of several losses, that is the first of these; if it held other suspects,
    that is all of them. ``messages_of`` returns the number of messages of an entry that it held.
    """
    if consumer.suspects:
        worst = [offset for offset in consumer.suspects if suspects.losses(offset) > 1]
        return normalized((offset, offset + 1) for offset in worst[:1] or consumer.suspects)
    failed, oldest = RangeSet(held), None
    queued = consumer.queue - consumer.queue // 2 - consumer.permits
    for first, end, _ in reversed(consumer.sent):
        for start, stop in reversed(failed.within(first, end)):
            oldest = start
            for offset in range(stop - 1, start - 1, -1):
                queued -= messages_of(offset)
                if queued < 0:
                    return list(failed)
                failed.discard(offset, offset + 1)
    if not failed and oldest is not None:
        failed.add(oldest, oldest + 1)
    return list(failed)
