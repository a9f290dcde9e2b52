"""Limits of the rate of deliveries: those of a topic, and those of each of its subscriptions.

A consumer that exceeds a limit waits for its turn. Consumers that wait for the same limit are
served one after the other, so each of them gets its share.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from velaray.actors.rates import DispatchLimit, DispatchRate
from velaray.broker.partition.entries import CachedEntry
from velaray.broker.topic_policies import TopicPolicies
from velaray.topology.flow import Flow, Speed

PACE_S = 0.01
"""The least time between two services of those who wait: a high rate delivers many at once."""


class Throttle:
    """One limit, and the consumers that wait for it."""

    def __init__(self, limit: DispatchLimit, published: Callable[[], Speed]) -> None:
        """``published`` returns the rate at which the partition is published to."""
        self._rate = DispatchRate(limit)
        self._published = published if limit.relative else None
        self._waiting: dict[object, Callable[[], None]] = {}
        self._turn: object | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def admits(
        self, consumer: object, run: Sequence[CachedEntry], deliver: Callable[[], None]
    ) -> int:
        """How many entries from the beginning of ``run`` may be written now. If none may,
        ``deliver`` is called at the consumer's next turn."""
        if not self._waiting or consumer is self._turn:
            self._earn()
            if count := self._rate.fit((entry.messages, len(entry.data)) for entry in run):
                return count
        self._waiting.setdefault(consumer, deliver)
        if self._turn is None:
            self._schedule()
        return 0

    def take(self, run: Iterable[CachedEntry]) -> None:
        """Count written entries."""
        for entry in run:
            self._rate.take(entry.messages, len(entry.data))

    def close(self) -> None:
        """Call nobody any more."""
        self._closed = True
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _earn(self) -> float:
        now_s = asyncio.get_running_loop().time()
        published = (0.0, 0.0) if self._published is None else self._published()[:2]
        return self._rate.earn(now_s, published)

    def _schedule(self) -> None:
        if self._timer is None and not self._closed:
            wait_s = max(self._earn(), PACE_S)
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._serve)

    def _serve(self) -> None:
        self._timer = None
        for _ in range(len(self._waiting)):
            if self._earn() > 0:
                break
            self._turn = next(iter(self._waiting), None)
            if self._turn is None:
                break
            deliver = self._waiting.pop(self._turn)
            try:
                deliver()
            finally:
                self._turn = None
        if self._waiting:
            self._schedule()


class Delivery(Protocol):
    """What is throttled."""

    throttles: tuple[Throttle, ...]


class Channel(Protocol):
    """What the limits need of a subscription's channel."""

    name: str

    @property
    def delivery(self) -> Delivery:
        """The deliveries to consumers."""
        ...

    def deliver_all(self) -> None:
        """Deliver to every consumer what may be delivered now."""
        ...


class DispatchRates:
    """The limits on the deliveries of one partition of a topic."""

    def __init__(self, published: Flow, clock_ms: Callable[[], int]) -> None:
        """``published`` counts what is published to the partition."""
        self._published = lambda: published.speed(clock_ms())
        self._topic: Throttle | None = None
        self._topic_limit: DispatchLimit | None = None

    def limit(self, channel: Channel, policies: TopicPolicies) -> None:
        """Apply the limits to a channel. Those of the former policies apply no more."""
        self.forget(channel)
        if policies.dispatch_limit != self._topic_limit:
            self.close()
            self._topic_limit = policies.dispatch_limit
            self._topic = self._throttle(self._topic_limit)
        own = self._throttle(policies.subscription_limit(channel.name))
        throttles = (self._topic, own)
        channel.delivery.throttles = tuple(each for each in throttles if each is not None)

    def apply(self, policies: TopicPolicies, channels: Iterable[Channel]) -> None:
        """Apply changed limits to all channels at once."""
        changed = list(channels)
        for channel in changed:
            self.limit(channel, policies)
        for channel in changed:
            channel.deliver_all()

    def forget(self, channel: Channel) -> None:
        """End the limit of the channel itself."""
        for throttle in channel.delivery.throttles:
            if throttle is not self._topic:
                throttle.close()

    def close(self) -> None:
        """End the limit of the topic."""
        if self._topic is not None:
            self._topic.close()

    def _throttle(self, limit: DispatchLimit | None) -> Throttle | None:
        return None if limit is None else Throttle(limit, self._published)
