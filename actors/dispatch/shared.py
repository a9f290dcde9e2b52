"""Shared: consumers take turns while they have permits; a better priority level comes first.

The chunks of one message all go to one consumer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from sortedcontainers import SortedDict

from velaray.actors.dispatch.consumers import ActiveChange, Attached, ConsumerSpec, Delivery
from velaray.actors.dispatch.in_flight import InFlightTracker
from velaray.actors.dispatch.suspects import room
from velaray.actors.machine import Refusal, require
from velaray.actors.sets.ranges import Range

TURN = 20
"""Messages that a Shared consumer gets before the next one's turn (at least an entry)."""


class SharedDispatch:
    """Serves consumers in turns: every priority level has a queue of consumers that can take
    entries."""

    def __init__(self, in_flight: InFlightTracker) -> None:
        self._in_flight = in_flight
        self._levels: SortedDict = SortedDict()  # priority -> queue of consumers

    def refusal(self, spec: ConsumerSpec) -> Refusal | None:
        """None: any consumer may join."""
        return None

    def joined(self, consumer: Attached) -> list[ActiveChange]:
        """Nothing to do: it has no permits yet."""
        return []

    def left(self, consumer: Attached) -> list[ActiveChange]:
        """Remove the consumer from its queue."""
        queue = self._levels.get(consumer.spec.priority, ())
        if consumer.queued:
            queue.remove(consumer)
        if not queue:
            self._levels.pop(consumer.spec.priority, None)
        return []

    def waits(self, ranges: Sequence[Range]) -> None:
        """Nothing to note: waiting entries are read from the in-flight tracker."""

    def reset(self) -> None:
        """Nothing to reset."""

    def can_take(self, consumer: Attached) -> None:
        """Queue the consumer, if it can take anything."""
        if not consumer.queued and self._in_flight.can_take(consumer):
            consumer.queued = True
            self._levels.setdefault(consumer.spec.priority, deque()).append(consumer)

    def candidates(self) -> Iterable[Attached]:
        """All consumers."""
        return self._in_flight.consumers.values()

    def only_candidate(self) -> Attached | None:
        """The only consumer, if there is exactly one."""
        consumers = self._in_flight.consumers
        return next(iter(consumers.values())) if len(consumers) == 1 else None

    def returned(self, consumer: Attached, named: Sequence[Range]) -> Sequence[Range]:
        """Exactly the named entries."""
        return named

    def lease_report(self, consumer: Attached, chunk_keys: Mapping[int, str]) -> None:
        """Bind the chunks' messages to the consumer, which gets their other chunks too."""
        for offset, key in chunk_keys.items():
            if not self._in_flight.cursor.is_acked(offset):
                self._in_flight.chunks.bind(key, consumer.spec.consumer_id)

    def is_active(self, consumer: Attached) -> bool:
        """Always true."""
        return True

    def dispatch(self, out: list[Delivery]) -> None:
        """Deliver suspects to consumers that may try them, then all other entries, in turns."""
        in_flight = self._in_flight
        if in_flight.chunks:
            self._give_reserved(out)
        while True:
            in_flight.unearth()
            if in_flight.suspects or any(each.draining for each in in_flight.consumers.values()):
                self._try_suspects(out)
            self._give_fresh(out)
            if not in_flight.unearth():
                return

    def _give_fresh(self, out: list[Delivery]) -> None:
        """Deliver waiting entries, then new ones, without suspects."""
        in_flight = self._in_flight
        while True:
            consumer = self._next_consumer()
            if consumer is None:
                return
            front = in_flight.fresh_front()
            if front is None:
                return
            first, end = front
            if in_flight.chunks:
                end = in_flight.chunks.next_chunk(first, end)
                if end == first:
                    self._serve_chunk(consumer, first, out)
                    continue
            limit = min(consumer.permits, TURN, in_flight.limits.room(consumer))
            in_flight.passed(first, in_flight.deliver(consumer, first, end, limit, out))
            self._end_turn(consumer)

    def _try_suspects(self, out: list[Delivery]) -> None:
        """Deliver suspects to consumers with room for them. If there is none, the consumer that
        holds least gets nothing else until it has room."""
        in_flight = self._in_flight
        consumers = sorted(in_flight.consumers.values(), key=lambda known: known.spec.priority)
        for consumer in consumers:
            consumer.draining = False
            while (found := in_flight.suspects.first_of(in_flight.waiting)) and in_flight.can_try(
                consumer
            ):
                first, end, losses = found
                if (most := room(consumer, losses)) <= 0:
                    break
                limit = min(consumer.permits, in_flight.limits.room(consumer))
                stop = in_flight.deliver(consumer, first, min(end, first + most), limit, out)
                in_flight.passed(first, stop)
        if in_flight.suspects.first_of(in_flight.waiting) and not any(
            each.suspects for each in consumers
        ):
            able = [consumer for consumer in consumers if in_flight.can_try(consumer)]
            if able:
                min(able, key=lambda known: known.entries).draining = True
        for consumer in consumers:
            self.can_take(consumer)

    def _next_consumer(self) -> Attached | None:
        for queue in self._levels.values():
            while queue:
                consumer: Attached = queue[0]
                if self._in_flight.can_take(consumer):
                    return consumer
                queue.popleft()
                consumer.queued = False
        return None

    def _end_turn(self, consumer: Attached) -> None:
        """Move the first consumer of its queue to the queue's end."""
        self._levels[consumer.spec.priority].rotate(-1)

    def _serve_chunk(self, consumer: Attached, offset: int, out: list[Delivery]) -> None:
        """Deliver a chunk to the consumer that its message is bound to, or reserve it if that has
        no permits. The first chunk binds the message to ``consumer``."""
        in_flight = self._in_flight
        key = in_flight.chunks.key_of(offset)
        assert key is not None
        owner = in_flight.chunks.owner_of(key)
        if owner is None:
            in_flight.chunks.bind(key, consumer.spec.consumer_id)
            bound = consumer
        else:
            bound = in_flight.consumers[owner]
        if in_flight.can_take(bound):
            in_flight.deliver(bound, offset, offset + 1, 1, out)
        else:
            bound.reserved.add(offset, offset + 1)
        in_flight.passed(offset, offset + 1)
        if bound is consumer:
            self._end_turn(consumer)

    def _give_reserved(self, out: list[Delivery]) -> None:
        in_flight = self._in_flight
        for consumer in in_flight.consumers.values():
            while (
                in_flight.can_take(consumer) and (lowest := consumer.reserved.first()) is not None
            ):
                first, _ = lowest
                in_flight.deliver(consumer, first, first + 1, 1, out)
                consumer.reserved.discard(first, first + 1)

    def check(self) -> None:
        """Raise `InvariantViolation` if an invariant is broken."""
        for consumer in self._in_flight.consumers.values():
            name = consumer.spec.name
            queued = consumer in self._levels.get(consumer.spec.priority, ())
            require(queued == consumer.queued, "consumers know where they queue", name)
            idle = not self._in_flight.can_take(consumer) or self._in_flight.limits.changed
            require(queued or idle, "consumers with permits are queued", name)
