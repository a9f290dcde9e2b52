"""The permits of a consumer: how many messages of a topic partition the service may send."""

from __future__ import annotations

from typing import Protocol

from velaray.client.connection import Connection
from velaray.wire import pulsar_pb2 as pb


class Subscribed(Protocol):
    """What permits need from the consumer."""

    consumer_id: int
    connection: Connection | None


class Permits:
    """Requests as many messages from the service as the user takes.

    Each subscribing begins a generation. Permits of former generations are invalid. While the
    consumer is paused, permits are withheld.
    """

    def __init__(self, consumer: Subscribed, queue_size: int) -> None:
        """With a ``queue_size`` of 0 each message is requested singly, by `fetch_one`."""
        self.uncredited = 0
        """Messages that the user took and whose permits weren't sent again."""
        self.generation = 0
        self._consumer = consumer
        self._queue_size = queue_size
        self._paused = False
        self._withheld = 0
        self._fetching = False

    @property
    def refill_at(self) -> int:
        """Number of messages that the user takes before permits are sent again."""
        return max(self._queue_size // 2, 1)

    def restart(self) -> None:
        """Begin a new generation, before subscribing."""
        self.generation += 1
        self.uncredited = self._withheld = 0
        self._fetching = False

    def refill(self, permits: int | None = None) -> None:
        """Request ``permits`` messages, by default as many as the queue holds.

        Does nothing without a queue.
        """
        if self._queue_size:
            self.flow(self._queue_size if permits is None else permits)

    def pause(self, paused: bool) -> None:
        """Withhold permits, or send those that were withheld."""
        self._paused = paused
        if not paused:
            permits, self._withheld = self._withheld, 0
            self.flow(permits)

    def flow(self, permits: int) -> None:
        """Send permits, or withhold them during a pause."""
        if self._paused:
            self._withheld += permits
        elif self._consumer.connection is not None and permits > 0:
            self._consumer.connection.send(
                pb.CommandFlow(consumer_id=self._consumer.consumer_id, messagePermits=permits)
            )

    def taken_now(self, count: int) -> int:
        """Count messages that the user took; return the number to `credit` now, or 0."""
        self.uncredited += count
        if self.uncredited < self.refill_at:
            return 0
        due, self.uncredited = self.uncredited, 0
        return due

    def credit(self, count: int, generation: int) -> None:
        """Send permits for ``count`` messages that the user took, unless ``generation`` is over."""
        if generation == self.generation:
            self.flow(count)

    def fetch_one(self) -> None:
        """Request one message for a consumer without a queue, unless a request is open."""
        if not (self._fetching or self._paused) and self._consumer.connection is not None:
            self._fetching = True
            self.flow(1)

    def settle(self, permits: int, delivered: int) -> None:
        """Return the permits of an entry that the user's receiving doesn't return."""
        if self._queue_size:
            self.flow(permits - delivered)
        elif delivered:
            self._fetching = False
            self.flow(permits - 1)
        else:
            self.flow(permits)
