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
"""Messages that a Shared consumer gets before it is the next one's turn (at least an entry)."""


class SharedDispatch:
    """Every priority level has a queue of the consumers that can take something."""

    def __init__(self, books: InFlightTracker) -> None:
        self._books = books
        self._levels: SortedDict = SortedDict()  # priority -> queue of consumers

    def refusal(self, spec: ConsumerSpec) -> Refusal | None:
        """Everybody may join."""
        return None

    def joined(self, consumer: Attached) -> list[ActiveChange]:
        """It has no permits yet."""
        return []

    def left(self, consumer: Attached) -> list[ActiveChange]:
        """It leaves its queue."""
        queue = self._levels.get(consumer.spec.priority, ())
        if consumer.queued:
            queue.remove(consumer)
        if not queue:
            self._levels.pop(consumer.spec.priority, None)
        return []

    def waits(self, ranges: Sequence[Range]) -> None:
        """Nothing to note: what waits is taken from the books."""

    def reset(self) -> None:
        """Nothing to forget."""

    def can_take(self, consumer: Attached) -> None:
        """It queues, if it can take anything."""
        if not consumer.queued and self._books.can_take(consumer):
            consumer.queued = True
            self._levels.setdefault(consumer.spec.priority, deque()).append(consumer)

    def candidates(self) -> Iterable[Attached]:
        """All of them."""
        return self._books.consumers.values()

    def only_candidate(self) -> Attached | None:
        """The one there is, if there are no others."""
        consumers = self._books.consumers
        return next(iter(consumers.values())) if len(consumers) == 1 else None

    def returned(self, consumer: Attached, named: Sequence[Range]) -> Sequence[Range]:
        """Those and no others."""
        return named

    def stood(self, consumer: Attached, chunk_keys: Mapping[int, str]) -> None:
        """What is missing of the chunks' messages goes to the same consumer."""
        for offset, key in chunk_keys.items():
            if not self._books.cursor.is_acked(offset):
                self._books.chunks.bind(key, consumer.spec.consumer_id)

    def is_active(self, consumer: Attached) -> bool:
        """Always."""
        return True

    def dispatch(self, out: list[Delivery]) -> None:
        """Give out suspects to those who may try them, then all else, in turns."""
        books = self._books
        if books.chunks:
            self._give_reserved(out)
        while True:
            books.unearth()
            if books.suspects or any(each.draining for each in books.consumers.values()):
                self._try_suspects(out)
            self._give_fresh(out)
            if not books.unearth():
                return

    def _give_fresh(self, out: list[Delivery]) -> None:
        """Give out what waits, then what is new, suspects aside."""
        books = self._books
        while True:
            consumer = self._next_consumer()
            if consumer is None:
                return
            front = books.fresh_front()
            if front is None:
                return
            first, end = front
            if books.chunks:
                end = books.chunks.next_chunk(first, end)
                if end == first:
                    self._serve_chunk(consumer, first, out)
                    continue
            limit = min(consumer.permits, TURN, books.limits.room(consumer))
            books.passed(first, books.deliver(consumer, first, end, limit, out))
            self._end_turn(consumer)

    def _try_suspects(self, out: list[Delivery]) -> None:
        """Give suspects to consumers that have room for them; if none has, the one that holds least
        gets nothing else until it has."""
        books = self._books
        consumers = sorted(books.consumers.values(), key=lambda known: known.spec.priority)
        for consumer in consumers:
            consumer.draining = False
            while (found := books.suspects.first_of(books.waiting)) and books.can_try(consumer):
                first, end, losses = found
                if (most := room(consumer, losses)) <= 0:
                    break
                limit = min(consumer.permits, books.limits.room(consumer))
                stop = books.deliver(consumer, first, min(end, first + most), limit, out)
                books.passed(first, stop)
        if books.suspects.first_of(books.waiting) and not any(each.suspects for each in consumers):
            able = [consumer for consumer in consumers if books.can_try(consumer)]
            if able:
                min(able, key=lambda known: known.entries).draining = True
        for consumer in consumers:
            self.can_take(consumer)

    def _next_consumer(self) -> Attached | None:
        for queue in self._levels.values():
            while queue:
                consumer: Attached = queue[0]
                if self._books.can_take(consumer):
                    return consumer
                queue.popleft()
                consumer.queued = False
        return None

    def _end_turn(self, consumer: Attached) -> None:
        """The first of its queue goes to the queue's end."""
        self._levels[consumer.spec.priority].rotate(-1)

    def _serve_chunk(self, consumer: Attached, offset: int, out: list[Delivery]) -> None:
        """Deliver a chunk to the consumer that its message is bound to; reserve it, if that
        one has no permits. The first chunk binds the message to ``consumer``.
        """
        books = self._books
        key = books.chunks.key_of(offset)
        assert key is not None
        owner = books.chunks.owner_of(key)
        if owner is None:
            books.chunks.bind(key, consumer.spec.consumer_id)
            bound = consumer
        else:
            bound = books.consumers[owner]
        if books.can_take(bound):
            books.deliver(bound, offset, offset + 1, 1, out)
        else:
            bound.reserved.add(offset, offset + 1)
        books.passed(offset, offset + 1)
        if bound is consumer:
            self._end_turn(consumer)

    def _give_reserved(self, out: list[Delivery]) -> None:
        books = self._books
        for consumer in books.consumers.values():
            while books.can_take(consumer) and (lowest := consumer.reserved.first()) is not None:
                first, _ = lowest
                books.deliver(consumer, first, first + 1, 1, out)
                consumer.reserved.discard(first, first + 1)

    def check(self) -> None:
        """Raise `InvariantViolation` if an invariant is broken."""
        for consumer in self._books.consumers.values():
            name = consumer.spec.name
            queued = consumer in self._levels.get(consumer.spec.priority, ())
            require(queued == consumer.queued, "consumers know where they queue", name)
            idle = not self._books.can_take(consumer) or self._books.limits.changed
            require(queued or idle, "who has permits has a turn", name)
