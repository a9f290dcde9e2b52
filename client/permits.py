"""How many messages of one topic partition the service may send to a consumer."""

from __future__ import annotations

from typing import Protocol

from velaray.client.connection import Connection
from velaray.wire import pulsar_pb2 as pb


class Subscribed(Protocol):
    """What permits need of the consumer."""

    consumer_id: int
    connection: Connection | None


class Permits:
    """Asks the service for as many messages as the user takes.

    Each subscribing begins a generation; the permits of former generations are void. While the
    consumer is paused, permits are withheld.
    """

    def __init__(self, consumer: Subscribed, queue_size: int) -> None:
        """With a ``queue_size`` of 0 each message is asked for by itself, by `fetch_one`."""
        self.uncredited = 0
        """Messages that the user took and that the service wasn't asked for again."""
        self.generation = 0
        self._consumer = consumer
        self._queue_size = queue_size
        self._paused = False
        self._withheld = 0
        self._fetching = False

    @property
    def refill_at(self) -> int:
        """How many messages the user takes before the service is asked for as many more."""
        return max(self._queue_size // 2, 1)

    def restart(self) -> None:
        """Begin a new generation, before subscribing."""
        self.generation += 1
        self.uncredited = self._withheld = 0
        self._fetching = False

    def refill(self, permits: int | None = None) -> None:
        """Ask for as many messages as the queue holds, or ``permits``; nothing without a queue."""
        if self._queue_size:
            self.flow(self._queue_size if permits is None else permits)

    def pause(self, paused: bool) -> None:
        """Ask for no more messages, or for all that were not asked for meanwhile."""
        self._paused = paused
        if not paused:
            permits, self._withheld = self._withheld, 0
            self.flow(permits)

    def flow(self, permits: int) -> None:
        """Ask for so many messages."""
        if self._paused:
            self._withheld += permits
        elif self._consumer.connection is not None and permits > 0:
            self._consumer.connection.send(
                pb.CommandFlow(consumer_id=self._consumer.consumer_id, messagePermits=permits)
            )

    def taken_now(self, count: int) -> int:
        """Count what the user took: how many to `credit` now, 0 if that can wait."""
        self.uncredited += count
        if self.uncredited < self.refill_at:
            return 0
        due, self.uncredited = self.uncredited, 0
        return due

    def credit(self, count: int, generation: int) -> None:
        """The user took ``count`` messages that came in ``generation``: ask for as many."""
        if generation == self.generation:
            self.flow(count)

    def fetch_one(self) -> None:
        """Ask for one message, unless one was asked for: consumers without a queue do that."""
        if not (self._fetching or self._paused) and self._consumer.connection is not None:
            self._fetching = True
            self.flow(1)

    def settle(self, permits: int, delivered: int) -> None:
        """Give back the permits of an entry that the user won't give back by receiving."""
        if self._queue_size:
            self.flow(permits - delivered)
        elif delivered:
            self._fetching = False
            self.flow(permits - 1)
        else:
            self.flow(permits)
