"""What consumers held when they were lost, noted in the history.

``lost with``: a subscription dispatcher lost a consumer, with the size of its receiver queue, its
permits, and what it held in the order of delivery: offset, count, messages, and losses with
earlier consumers. ``again``: an entry that a lost consumer held is delivered again. ``counts``
is a number that changes when counts may begin anew: after a move of the cursor, after a crash,
and after a full disk kept counts from being stored.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from tests.sim.history import History
from velaray.actors.dispatch.consumers import ActiveChange, Delivery
from velaray.actors.dispatch.dispatcher import Dispatcher
from velaray.actors.machine import Refusal
from velaray.actors.runtime import Runtime
from velaray.actors.subscription.cursor import Cursor
from velaray.actors.subscription.redelivery import NoteDeliveries
from velaray.broker.subscription.dispatcher import SubscriptionDispatcher

Replace = Callable[[Any, str, Any], None]


@dataclass(eq=False)
class _Counts:
    """The counts of a subscription's actor between two moves of its cursor.

    The next dispatcher doesn't have them if a full disk kept them from being ``stored``, or if the
    cursor was moved while there was no dispatcher.
    """

    number: int
    cursor: Cursor
    stored: bool = True
    lost: set[int] = field(default_factory=set)


@dataclass
class _Watched:
    """A dispatcher: what it delivered to each consumer, last delivery last, with the counts."""

    runtime: Runtime[Any]
    sent: dict[int, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))


class _Watch:
    """Notes losses of consumers and later deliveries of what they held."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._numbers = itertools.count(1)
        self._counts: WeakKeyDictionary[Runtime[Any], _Counts] = WeakKeyDictionary()
        self._dispatchers: WeakKeyDictionary[Dispatcher, _Watched] = WeakKeyDictionary()

    def opened(self, dispatcher: Dispatcher, runtime: Runtime[Any]) -> None:
        """A dispatcher begins, with the counts of its runtime's state."""
        counts, cursor = self._counts.get(runtime), runtime.state.cursor
        if counts is None or counts.cursor is not cursor or not counts.stored:
            self._counts[runtime] = _Counts(next(self._numbers), cursor)
        self._dispatchers[dispatcher] = _Watched(runtime)

    def not_stored(self, runtime: Runtime[Any]) -> None:
        """The disk was full: the next dispatcher begins with other counts."""
        if runtime in self._counts:
            self._counts[runtime].stored = False

    def moved(self, cursor: Cursor) -> None:
        """The cursor was moved: a dispatcher that begins afterwards has other counts."""
        for counts in self._counts.values():
            if counts.cursor is cursor:
                counts.stored = False

    def reset(self, dispatcher: Dispatcher) -> None:
        """All counts begin anew."""
        if dispatcher in self._dispatchers:
            watched = self._dispatchers[dispatcher]
            counts = _Counts(next(self._numbers), watched.runtime.state.cursor)
            self._counts[watched.runtime] = counts

    def delivered(self, dispatcher: Dispatcher, deliveries: Sequence[Delivery]) -> None:
        """Entries are delivered."""
        if dispatcher not in self._dispatchers:
            return
        watched = self._dispatchers[dispatcher]
        counts = self._counts[watched.runtime]
        for each in deliveries:
            sent = watched.sent[each.consumer_id]
            for offset in range(each.first, each.end):
                sent.pop(offset, None)
                sent[offset] = each.redelivery_count
                if offset in counts.lost:
                    count = each.redelivery_count
                    self._history.add("again", counts=counts.number, offset=offset, count=count)

    def lost(self, dispatcher: Dispatcher, consumer_id: int) -> None:
        """A consumer is about to be removed, as lost."""
        if dispatcher not in self._dispatchers:
            return
        watched, in_flight = self._dispatchers[dispatcher], dispatcher._in_flight
        counts, consumer = self._counts[watched.runtime], in_flight.consumers[consumer_id]
        unacked = {at for first, end in in_flight.held.of(consumer_id) for at in range(first, end)}
        held = []
        for offset, count in watched.sent.pop(consumer_id, {}).items():
            if offset in unacked:
                losses = in_flight.suspects.losses(offset) if offset in consumer.suspects else 0
                messages = in_flight._messages_held(offset, offset + 1)
                held.append((offset, count, messages, losses))
        if held:
            counts.lost.update(unacked)
            self._history.add(
                "lost with",
                subscription=watched.runtime._actor,
                counts=counts.number,
                queue=consumer.queue,
                permits=consumer.permits,
                held=held,
            )


def watch_losses(replace: Replace, history: History) -> None:
    """Make every dispatcher note the consumers that it loses."""
    watch = _Watch(history)
    _watch_counts(replace, watch)
    detach, cut_off, dispatch, stood = (
        Dispatcher.detach,
        Dispatcher.cut_off,
        Dispatcher.dispatch,
        Dispatcher.lease_report,
    )

    def detached(self: Dispatcher, consumer_id: int, lost: bool = False) -> list[ActiveChange]:
        if lost and consumer_id in self._in_flight.consumers:
            watch.lost(self, consumer_id)
        return detach(self, consumer_id, lost)

    def was_cut_off(self: Dispatcher) -> None:
        for consumer_id in self._in_flight.consumers:
            watch.lost(self, consumer_id)
        cut_off(self)

    def dispatched(self: Dispatcher) -> list[Delivery]:
        deliveries = dispatch(self)
        watch.delivered(self, deliveries)
        return deliveries

    def has_stood(self: Dispatcher, first: int, sizes: Sequence[int], *more: Any) -> None:
        assert self._leased is not None
        owner = self._leased.spec.consumer_id
        stood(self, first, sizes, *more)
        watch.delivered(self, [Delivery(owner, first, first + len(sizes), sum(sizes), 0)])

    replace(Dispatcher, "detach", detached)
    replace(Dispatcher, "cut_off", was_cut_off)
    replace(Dispatcher, "dispatch", dispatched)
    replace(Dispatcher, "lease_report", has_stood)


def _watch_counts(replace: Replace, watch: _Watch) -> None:
    """Have the watch know with which counts a dispatcher begins."""
    opened, submit = SubscriptionDispatcher._open, Runtime.submit
    reset, move = Dispatcher.reset, Cursor.reset

    async def has_opened(self: SubscriptionDispatcher, *arguments: Any) -> int:
        mark = await opened(self, *arguments)
        watch.opened(self._state.dispatcher, self._state.runtime)
        return mark

    def submitted(self: Runtime[Any], command: Any, release: Any) -> None:
        def released(reply: Any, effects: Any) -> None:
            if isinstance(reply, Refusal):
                watch.not_stored(self)
            release(reply, effects)

        submit(self, command, released if isinstance(command, NoteDeliveries) else release)

    def was_reset(self: Dispatcher, next_offset: int) -> None:
        watch.reset(self)
        reset(self, next_offset)

    def was_moved(self: Cursor, next_offset: int) -> None:
        watch.moved(self)
        move(self, next_offset)

    replace(SubscriptionDispatcher, "_open", has_opened)
    replace(Runtime, "submit", submitted)
    replace(Dispatcher, "reset", was_reset)
    replace(Cursor, "reset", was_moved)
