"""Producers and consumers of a tenant that moves, and what they note of every message.

Flights are published by two clients, velaray's and the official one, and read by three
subscriptions. Nothing here knows of clusters: clients are made once, for one address, and never
again.
"""

from __future__ import annotations

import json
import random
import threading
import time
import zlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pulsar
from flights import Flight

import velaray

DELAYED_EVERY = 40
SHORTEST_DELAY_S = 5.0
HELD_EVERY = 25
AT_ONCE = 200
WAIT_MS = 100
OPERATION_TIMEOUT_S = 60


class Published(NamedTuple):
    """A message as its payload tells of it; ``due_ms`` is 0 if it wasn't delayed."""

    number: int
    key: str
    due_ms: int

    @classmethod
    def of(cls, payload: bytes) -> Published:
        """Read a payload."""
        due_ms, number, tail, *_ = json.loads(payload)
        return cls(number, tail, due_ms)


class Publisher(threading.Thread):
    """Publishes flights at an even pace, each keyed by its tail number, until told to stop."""

    def __init__(self, library: ModuleType, client: Any, topic: str, name: str) -> None:
        super().__init__(daemon=True)
        self._library = library
        # The official client sends a delayed message before the batch that it has begun, whose
        # sequence ids are lower: that batch would count as a duplicate.
        self._delays = library is velaray
        self._producer = client.create_producer(
            topic,
            producer_name=name,
            # Without one the official client counts from 0 again if it loses its connection before
            # the first receipt: what it sends then would count as duplicates.
            initial_sequence_id=1,
            send_timeout_millis=0,
            block_if_queue_full=True,
            batching_enabled=True,
            batching_max_messages=20,
            batching_max_publish_delay_ms=50,
            compression_type=library.CompressionType.LZ4,
        )
        self._chance = random.Random()
        self._last_receipt = 0.0
        self.flights: Sequence[Flight] = ()
        self.pause_s = self.longest_delay_s = 0.0
        self.stopping = threading.Event()
        self.confirmed: set[int] = set()
        self.newest_ms: dict[int, float] = {}
        """By partition, when the newest message with a receipt was published."""
        self.silence_s = 0.0
        """The longest time between two receipts."""
        self.failures: list[str] = []

    def run(self) -> None:
        """Publish; when it ends every message has its receipt, or failed."""
        due = self._last_receipt = time.monotonic()
        for flight in self.flights:
            due += self.pause_s
            if self.stopping.wait(max(0.0, due - time.monotonic())):
                break
            self._publish(flight)
        self._producer.flush()

    def _publish(self, flight: Flight) -> None:
        due_ms, more = 0, {}
        if self._delays and flight.number % DELAYED_EVERY == 0:
            delay_s = self._chance.uniform(SHORTEST_DELAY_S, self.longest_delay_s)
            due_ms = int((time.time() + delay_s) * 1000)
            more["deliver_after"] = timedelta(seconds=delay_s)

        sent_ms = time.time() * 1000

        def sent(result: Any, message_id: Any) -> None:
            if result != self._library.Result.Ok:
                self.failures.append(str(result))
                return
            now = time.monotonic()
            self.silence_s = max(self.silence_s, now - self._last_receipt)
            self._last_receipt = now
            self.confirmed.add(flight.number)
            partition = message_id.partition()
            self.newest_ms[partition] = max(sent_ms, self.newest_ms.get(partition, 0.0))

        payload = json.dumps([due_ms, *flight]).encode()
        self._producer.send_async(payload, sent, partition_key=flight.tail, **more)


class Tally:
    """What a subscription delivered, and what of that was acknowledged."""

    def __init__(self, *, in_order: bool = False) -> None:
        """``in_order``: each key's messages are to come in the order of their numbers."""
        self._lock = threading.Lock()
        self._last: dict[str, int] | None = {} if in_order else None
        self._delays_count = not in_order
        self._confirmed: dict[int, float] = {}
        self.seen: set[int] = set()
        self.newest_ms: dict[str, int] = {}
        """By partition, when the newest message that came was published."""
        self.deliveries = 0
        self.duplicates: Counter[int] = Counter()
        """Numbers that were redelivered after their acknowledgement was confirmed."""
        self.out_of_order: list[int] = []
        self.too_early: list[int] = []

    def delivered(self, message: Published, empty_at: float) -> None:
        """A message came to a consumer where nothing waited at ``empty_at``.

        So it isn't a duplicate of a confirmed acknowledgement if that was confirmed later: it may
        have been on its way to that consumer already.
        """
        with self._lock:
            self.deliveries += 1
            if self._confirmed.get(message.number, empty_at) < empty_at:
                self.duplicates[message.number] += 1
            if self._delays_count and time.time() * 1000 < message.due_ms:
                self.too_early.append(message.number)
            if message.number in self.seen:
                return
            self.seen.add(message.number)
            if self._last is not None:
                if message.number < self._last.get(message.key, -1):
                    self.out_of_order.append(message.number)
                self._last[message.key] = message.number

    def published_at(self, partition: str, time_ms: int) -> None:
        """A message came that was published then."""
        with self._lock:
            self.newest_ms[partition] = max(time_ms, self.newest_ms.get(partition, 0))

    def confirmed(self, numbers: Sequence[int]) -> None:
        """Their acknowledgements are durable now."""
        now = time.monotonic()
        with self._lock:
            for number in numbers:
                self._confirmed.setdefault(number, now)

    @property
    def confirmations(self) -> int:
        """How many messages have a confirmed acknowledgement."""
        return len(self._confirmed)


class Taker(threading.Thread, ABC):
    """Receives and acknowledges what a consumer gets, until told to stop."""

    def __init__(self, consumer: Any, tally: Tally) -> None:
        super().__init__(daemon=True)
        self._consumer = consumer
        self._tally = tally
        self._pending: dict[int, Any] = {}
        self.stopping = threading.Event()
        self.failure: Exception | None = None

    @property
    def pending(self) -> int:
        """Messages that were taken, and aren't known to be acknowledged."""
        return len(self._pending)

    def run(self) -> None:
        """Take and acknowledge."""
        empty_at = 0.0
        try:
            while not self.stopping.is_set():
                asked_at = time.monotonic()
                messages = self._consumer.batch_receive()
                for message in messages:
                    found = Published.of(message.data())
                    self._tally.delivered(found, empty_at)
                    self._tally.published_at(message.topic_name(), message.publish_timestamp())
                    self._take(found.number, message)
                if len(messages) < AT_ONCE:
                    empty_at = asked_at
                self._acknowledge()
        except (velaray.client.exceptions.VelarayError, pulsar.PulsarException) as error:
            self.failure = error

    def _take(self, number: int, message: Any) -> None:
        self._pending[number] = message

    @abstractmethod
    def _acknowledge(self) -> None:
        """Acknowledge what is pending."""


class WithGaps(Taker):
    """Acknowledges single messages with receipts, and holds some back until it's told.

    Of those that come again meanwhile it acknowledges every other one by the id of the first time.
    """

    def __init__(self, consumer: velaray.Consumer[bytes], tally: Tally) -> None:
        super().__init__(consumer, tally)
        self._held: dict[int, Any] = {}
        self.release = threading.Event()

    @property
    def held(self) -> int:
        """How many are held back."""
        return len(self._held)

    @property
    def pending(self) -> int:
        """See `Taker`."""
        return len(self._pending) + len(self._held)

    def _take(self, number: int, message: Any) -> None:
        if number % HELD_EVERY or (self.release.is_set() and number not in self._held):
            self._pending[number] = message
        elif number % 2 or number not in self._held:
            self._held[number] = message

    def _acknowledge(self) -> None:
        if self.release.is_set():
            self._pending.update(self._held)
            self._held.clear()
        if not self._pending:
            return
        try:
            self._consumer.acknowledge_many(list(self._pending.values()), receipt=True)
        except velaray.Timeout:
            return  # their acknowledgement is unknown: once more
        self._tally.confirmed(list(self._pending))
        self._pending.clear()


class UpTo(Taker):
    """Acknowledges everything up to the last message of each partition, with receipts."""

    def _acknowledge(self) -> None:
        last: dict[str, Any] = {}
        for message in self._pending.values():
            before = last.get(message.topic_name())
            if before is None or before.message_id() < message.message_id():
                last[message.topic_name()] = message
        try:
            for message in last.values():
                self._consumer.acknowledge_cumulative(message, receipt=True)
        except velaray.Timeout:
            return
        self._tally.confirmed(list(self._pending))
        self._pending.clear()


class Unconfirmed(Taker):
    """Acknowledges single messages as the official client does: nothing tells it whether they
    are acknowledged."""

    def _acknowledge(self) -> None:
        for message in self._pending.values():
            self._consumer.acknowledge(message)
        self._pending.clear()


class Load:
    """All clients of the tenant."""

    def __init__(
        self,
        service_url: str,
        topic: str,
        log: Path,
        token: str | None = None,
        operation_timeout_s: int = OPERATION_TIMEOUT_S,
    ) -> None:
        """Make the clients and connect them; this is done once. ``log`` is the official one's."""
        self._own = velaray.Client(
            service_url,
            operation_timeout_seconds=operation_timeout_s,
            authentication=velaray.AuthenticationToken(token) if token else None,
        )
        self._official = pulsar.Client(
            service_url,
            operation_timeout_seconds=operation_timeout_s,
            logger=pulsar.FileLogger(pulsar.LoggerLevel.Info, str(log)),
            authentication=pulsar.AuthenticationToken(token) if token else None,
        )
        self.counted, self.ordered, self.official = Tally(), Tally(in_order=True), Tally()
        shared = {"batch_index_ack_enabled": True}
        self.with_gaps = [
            WithGaps(self._consumer(velaray, topic, "counted", "Shared", **shared), self.counted)
            for _ in range(2)
        ]
        self.takers: list[Taker] = [
            *self.with_gaps,
            *(
                UpTo(self._consumer(velaray, topic, "ordered", "Failover"), self.ordered)
                for _ in range(2)
            ),
            Unconfirmed(
                self._consumer(pulsar, topic, "official", "Shared", **shared), self.official
            ),
        ]
        self.publishers = [
            Publisher(velaray, self._own, topic, "own"),
            Publisher(pulsar, self._official, topic, "official"),
        ]

    def _consumer(
        self, library: ModuleType, topic: str, subscription: str, kind: str, **options: Any
    ) -> Any:
        client: Any = self._own if library is velaray else self._official
        return client.subscribe(
            topic,
            subscription,
            consumer_type=getattr(library.ConsumerType, kind),
            initial_position=library.InitialPosition.Earliest,
            batch_receive_policy=library.ConsumerBatchReceivePolicy(AT_ONCE, -1, WAIT_MS),
            **options,
        )

    def start(self, flights: Sequence[Flight], per_second: float, longest_delay_s: float) -> None:
        """Begin to publish and to consume. Each key has one producer."""
        share = len(self.publishers)
        for index, publisher in enumerate(self.publishers):
            publisher.flights = [
                each for each in flights if zlib.crc32(each.tail.encode()) % share == index
            ]
            publisher.pause_s = share / per_second
            publisher.longest_delay_s = longest_delay_s
        for thread in (*self.publishers, *self.takers):
            thread.start()

    @property
    def tallies(self) -> tuple[Tally, Tally, Tally]:
        """Of all subscriptions."""
        return self.counted, self.ordered, self.official

    @property
    def published(self) -> int:
        """How many messages have a receipt."""
        return sum(len(each.confirmed) for each in self.publishers)

    def confirmed(self) -> set[int]:
        """The numbers of all messages that have a receipt; once they are published."""
        return set().union(*(each.confirmed for each in self.publishers))

    def lost(self) -> int:
        """Messages with a receipt that a subscription never delivered, summed up."""
        wanted = self.confirmed()
        return sum(len(wanted - tally.seen) for tally in self.tallies)

    def serves(self, client: str, since_ms: float, partitions: int) -> bool:
        """Whether a client, "own" or "official", has a receipt and a delivery to each subscription
        of each partition, of messages that were published since then."""
        own, official = self.publishers
        newest: list[list[float]] = (
            [[*own.newest_ms.values()], *([*t.newest_ms.values()] for t in self.tallies[:2])]
            if client == "own"
            else [[*official.newest_ms.values()], [*self.official.newest_ms.values()]]
        )
        return all(len(found) == partitions and min(found) >= since_ms for found in newest)

    def failures(self) -> list[str]:
        """What clients can't get over: there may be none of it."""
        failed = [f"a consumer: {each.failure}" for each in self.takers if each.failure]
        return failed + [failure for each in self.publishers for failure in each.failures]

    def finish_publishing(self, timeout_s: float) -> bool:
        """Stop publishing; whether every message has its receipt by then."""
        for publisher in self.publishers:
            publisher.stopping.set()
        deadline = time.monotonic() + timeout_s
        for publisher in self.publishers:
            publisher.join(max(0.0, deadline - time.monotonic()))
        return not any(each.is_alive() for each in self.publishers)

    def release(self) -> None:
        """Have everything acknowledged that is held back."""
        for taker in self.with_gaps:
            taker.release.set()

    def is_drained(self) -> bool:
        """Whether every subscription had everything, and everything is acknowledged."""
        return not self.lost() and not any(taker.pending for taker in self.takers)

    def close(self) -> None:
        """End all clients."""
        for taker in self.takers:
            taker.stopping.set()
        for taker in self.takers:
            taker.join(OPERATION_TIMEOUT_S)
        closing: tuple[Callable[[], object], ...] = (self._own.close, self._official.close)
        for close in closing:
            close()
