"""Limits of un-acknowledged messages, per consumer and per subscription.

A consumer that holds as many messages as its limit is *blocked*: it gets no more until it holds
less than half of the limit. The same holds for a subscription with all its consumers. As with
permits the last entry may exceed a limit by its size. 0 is no limit. Limits apply to Shared and
Key_Shared.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from velaray.actors.dispatch.consumers import Attached
from velaray.actors.machine import require

UNLIMITED = 1 << 62


class UnackedLimits:
    """Counts what consumers hold, and blocks those that hold too much."""

    def __init__(self) -> None:
        self.total = 0
        self.blocked = False
        self.changed = False  # a consumer may be unblocked since the last dispatch
        self._per_consumer = 0
        self._per_subscription = 0

    def set(
        self, per_consumer: int, per_subscription: int, consumers: Collection[Attached]
    ) -> None:
        """Set limits, in messages; block exactly the consumers that exceed them."""
        self._per_consumer, self._per_subscription = per_consumer, per_subscription
        for consumer in consumers:
            consumer.blocked = 0 < per_consumer <= consumer.unacked
        self.blocked = 0 < per_subscription <= self.total
        self.changed = True

    def room(self, consumer: Attached) -> int:
        """The number of messages that the consumer may still get; 0 or less if none."""
        if consumer.blocked or self.blocked:
            return 0
        room = UNLIMITED
        if self._per_consumer:
            room = self._per_consumer - consumer.unacked
        if self._per_subscription:
            room = min(room, self._per_subscription - self.total)
        return room

    def room_of_all(self) -> int:
        """The number of messages that all consumers together may still get; 0 or less if none."""
        if not self._per_subscription:
            return UNLIMITED
        return 0 if self.blocked else self._per_subscription - self.total

    def gave(self, consumer: Attached, messages: int) -> None:
        """Add messages to those that the consumer holds."""
        consumer.unacked += messages
        self.total += messages
        if 0 < self._per_consumer <= consumer.unacked:
            consumer.blocked = True
        if 0 < self._per_subscription <= self.total:
            self.blocked = True

    def took(self, consumer: Attached, messages: int) -> None:
        """Subtract messages from those that the consumer holds."""
        consumer.unacked -= messages
        self.total -= messages
        if consumer.blocked and 2 * consumer.unacked < self._per_consumer:
            consumer.blocked = False
            self.changed = True
        if self.blocked and 2 * self.total < self._per_subscription:
            self.blocked = False
            self.changed = True

    def reset(self, consumers: Collection[Attached]) -> None:
        """Set all counters to 0."""
        for consumer in consumers:
            consumer.unacked, consumer.blocked = 0, False
        self.total, self.blocked, self.changed = 0, False, True

    def check(self, consumers: Collection[Attached], held: Mapping[int, int]) -> None:
        """Raise `InvariantViolation` if an invariant is broken; ``held``: messages per consumer."""
        for consumer in consumers:
            name, limit = consumer.spec.name, self._per_consumer
            require(
                consumer.unacked == held.get(consumer.spec.consumer_id, 0),
                "un-acknowledged messages are the held ones",
                f"{name}: {consumer.unacked}, holds {held}",
            )
            _check_block(name, consumer.blocked, consumer.unacked, limit)
        require(
            self.total == sum(held.values()),
            "a subscription's un-acknowledged messages are its consumers'",
            f"{self.total}, they hold {held}",
        )
        _check_block("the subscription", self.blocked, self.total, self._per_subscription)


def _check_block(name: str, blocked: bool, unacked: int, limit: int) -> None:
    require(
        blocked or not limit or unacked < limit,
        "consumers over the limit are blocked",
        f"{name}: {unacked} of {limit}",
    )
    require(
        not blocked or 2 * unacked >= limit > 0,
        "consumers below half of the limit aren't blocked",
        f"{name}: {unacked} of {limit}",
    )
