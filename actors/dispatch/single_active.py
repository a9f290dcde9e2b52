"""Exclusive and Failover: one consumer, the active one, gets all entries in order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from velaray.actors.dispatch.consumers import (
    ActiveChange,
    Attached,
    ConsumerSpec,
    Delivery,
    SubscriptionType,
)
from velaray.actors.dispatch.in_flight import InFlightTracker
from velaray.actors.machine import Reason, Refusal, require
from velaray.actors.sets.ranges import Range


class SingleActive:
    """The active consumer has the best priority level; among several there, partitions take them in
    turn, by name."""

    def __init__(self, in_flight: InFlightTracker, partition: int, kind: SubscriptionType) -> None:
        self._in_flight = in_flight
        self._partition = partition
        self._kind = kind
        self._active: Attached | None = None

    def refusal(self, spec: ConsumerSpec) -> Refusal | None:
        """BUSY for a second Exclusive one."""
        if self._kind is SubscriptionType.EXCLUSIVE and self._active is not None:
            return Refusal(Reason.BUSY, "the Exclusive subscription has a consumer already")
        return None

    def joined(self, consumer: Attached) -> list[ActiveChange]:
        """Elect: the new consumer may become the active one."""
        return self._elect(consumer)

    def left(self, consumer: Attached) -> list[ActiveChange]:
        """Elect: another consumer may become the active one."""
        return self._elect(None)

    def _elect(self, joined: Attached | None) -> list[ActiveChange]:
        """Choose the active consumer; returns notices to consumers.

        Entries of the previous one return: its successor must get them before newer entries.
        """
        consumers, previous = self._in_flight.consumers.values(), self._active
        if not consumers:
            self._active = None
            return []
        best = min(consumer.spec.priority for consumer in consumers)
        level = sorted(
            (known for known in consumers if known.spec.priority == best),
            key=lambda known: known.spec.name,
        )
        self._active = elected = level[self._partition % len(level)]
        if previous is not elected and previous is not None:
            self._in_flight.give_back(previous)
        if self._kind is SubscriptionType.EXCLUSIVE:
            return []
        return [
            ActiveChange(known.spec.consumer_id, known is elected)
            for known in consumers
            if previous is not elected or known is joined
        ]

    def waits(self, ranges: Sequence[Range]) -> None:
        """Nothing to note: waiting entries are read from the in-flight tracker."""

    def reset(self) -> None:
        """Nothing to reset."""

    def can_take(self, consumer: Attached) -> None:
        """Nothing to note: only the active consumer is tried."""

    def candidates(self) -> Iterable[Attached]:
        """The active consumer."""
        return () if self._active is None else (self._active,)

    def only_candidate(self) -> Attached | None:
        """The active consumer."""
        return self._active

    def returned(self, consumer: Attached, named: Sequence[Range]) -> Sequence[Range]:
        """All entries that it holds, to keep the order."""
        return self._in_flight.held.of(consumer.spec.consumer_id)

    def lease_report(self, consumer: Attached, chunk_keys: Mapping[int, str]) -> None:
        """Nothing to note: chunks go to the active consumer as all entries do."""

    def is_active(self, consumer: Attached) -> bool:
        """Whether it is the active consumer."""
        return consumer is self._active

    def dispatch(self, out: list[Delivery]) -> None:
        """Deliver waiting entries to the active consumer, then new ones."""
        consumer, in_flight = self._active, self._in_flight
        while consumer is not None and consumer.permits > 0:
            front = in_flight.front()
            if front is None:
                return
            first, end = front
            in_flight.passed(first, in_flight.deliver(consumer, first, end, consumer.permits, out))

    def check(self) -> None:
        """Raise `InvariantViolation` if an invariant is broken."""
        consumers, active = self._in_flight.consumers, self._active
        require(
            active is not None and active in consumers.values(),
            "one active consumer in Exclusive and Failover",
        )
        assert active is not None
        if self._kind is SubscriptionType.EXCLUSIVE:
            require(len(consumers) == 1, "an Exclusive consumer is alone")
        for first, _, owner in self._in_flight.held:
            require(
                active.spec.consumer_id == owner,
                "only the active consumer holds entries",
                f"{first}: {owner}",
            )
