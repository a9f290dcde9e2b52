"""Traffic on many topics, and a record of the receipts and deliveries.

Each topic has a producer with one keyed message under way and a consumer that acknowledges each
message, both of the official client. Some topics also have a consumer of velaray's client, which
waits for the receipt of each acknowledgement: the official one in Python has no such receipts.
"""

from __future__ import annotations

import math
import threading
import time
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pulsar

import velaray

KEYS = 4
PACE_S = 1.0
CONFIRMED_OF = 10
"""Of so many topics one has a consumer that waits for receipts of its acknowledgements."""
OPENED_AT_ONCE = 8
SETTLED_WITHIN_S = 180.0
_CLIENTS = 4
_LOOK_S = 0.01
_SETTLING_LOOK_S = 0.5
_OPERATION_S = 60


class Topic:
    """A topic with its producer, and a record of its messages."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.producer: pulsar.Producer | None = None
        self.acknowledged: list[int] = []
        """The numbers of the messages that have a receipt."""
        self.received: set[int] = set()
        self.problems: list[str] = []
        self._numbers = 0
        self._last_of: dict[str, int] = {}
        self._free = True
        self._sent_s = 0.0
        self._served: list[tuple[float, float]] = []

    def publish_if_due(self, now_s: float) -> None:
        """Send the next message if the one before has a receipt and its time is over."""
        if self.producer is None or not self._free or now_s < self._sent_s + PACE_S:
            return
        number, self._numbers = self._numbers, self._numbers + 1
        self._sent_s, self._free = now_s, False

        def answered(result: pulsar.Result, message_id: Any) -> None:
            if result == pulsar.Result.Ok:
                self._served.append((now_s, time.monotonic()))
                self.acknowledged.append(number)
            else:
                self.problems.append(f"{self.name}: message {number} was refused: {result}")
            self._free = True

        key = str(number % KEYS)
        self.producer.send_async(str(number).encode(), answered, partition_key=key)

    def unsettled(self) -> str:
        """A message that has no answer, or those that have a receipt and weren't received; "" if
        there is none."""
        if not self._free:
            return f"{self.name}: no answer to message {self._numbers - 1}"
        return _missing(self.name, self.acknowledged, self.received)

    def served_s(self, after_s: float) -> float | None:
        """When the first message that was sent after this moment got its receipt."""
        at = bisect_right(self._served, (after_s, math.inf))
        return self._served[at][1] if at < len(self._served) else None

    def take(self, consumer: pulsar.Consumer, message: pulsar.Message) -> None:
        """Note a message and acknowledge it."""
        number, key = int(message.data()), message.partition_key()
        if number not in self.received:
            self.received.add(number)
            last = self._last_of.get(key, -1)
            if number < last:
                self.problems.append(f"{self.name}: {number} came after {last}, both of key {key}")
            self._last_of[key] = number
        consumer.acknowledge(message)


class Confirming(threading.Thread):
    """Consumes one topic and waits for the receipt of each acknowledgement."""

    def __init__(self, client: velaray.Client, topic: Topic) -> None:
        super().__init__(name=f"confirming {topic.name}")
        self.topic = topic
        self.received: set[int] = set()
        self.confirmed: set[int] = set()
        self.stopping = threading.Event()
        self._consumer = client.subscribe(
            topic.name,
            "confirming",
            velaray.ConsumerType.Shared,
            initial_position=velaray.InitialPosition.Earliest,
        )

    def run(self) -> None:
        """Consume until stopped."""
        while not self.stopping.is_set():
            try:
                message = self._consumer.receive(500)
            except velaray.Timeout:
                continue
            number = int(message.data())
            self.received.add(number)
            if number in self.confirmed:
                self.topic.problems.append(f"{self.topic.name}: {number} came after its receipt")
            try:
                self._consumer.acknowledge(message, receipt=True)
            except velaray.Timeout:
                continue  # the outcome is unknown, and a redelivery is correct
            self.confirmed.add(number)

    def unsettled(self) -> str:
        """The messages that have a receipt and weren't received; "" if there is none."""
        return _missing(f"{self.topic.name}, confirming", self.topic.acknowledged, self.received)


def _missing(where: str, acknowledged: Iterable[int], received: set[int]) -> str:
    missing = sorted(set(acknowledged) - received)
    return f"{where}: {missing} not received" if missing else ""


class Traffic:
    """Use as a context manager: `open` topics, and `check` at the end."""

    def __init__(self, service_url: str) -> None:
        self.topics: dict[str, Topic] = {}
        self._service_url = service_url
        self._confirming: list[Confirming] = []
        self._stopping = threading.Event()
        self._publisher = threading.Thread(target=self._publish, name="publisher")
        self.pool = ThreadPoolExecutor(OPENED_AT_ONCE)

    def __enter__(self) -> Traffic:
        self._clients = [
            pulsar.Client(
                self._service_url,
                operation_timeout_seconds=_OPERATION_S,
                logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
            )
            for _ in range(_CLIENTS)
        ]
        self._own_client = velaray.Client(self._service_url)
        self._publisher.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stopping.set()
        self._publisher.join()
        for each in self._confirming:
            each.stopping.set()
        self.pool.shutdown(wait=True, cancel_futures=True)
        for each in self._confirming:
            each.join()
        for client in self._clients:
            client.shutdown()
        self._own_client.close()

    def open(self, name: str) -> Topic:
        """Begin traffic on a topic, as soon as it has its producer; returns when it has its
        consumers too."""
        topic = Topic(name)
        number = len(self.topics)
        self.topics[name] = topic
        client = self._clients[number % _CLIENTS]
        topic.producer = client.create_producer(name, batching_enabled=False, send_timeout_millis=0)
        client.subscribe(
            name,
            "reader",
            pulsar.ConsumerType.KeyShared,
            initial_position=pulsar.InitialPosition.Earliest,
            message_listener=topic.take,
        )
        if number % CONFIRMED_OF == 0:
            confirming = Confirming(self._own_client, topic)
            self._confirming.append(confirming)
            confirming.start()
        return topic

    def open_all(self, names: Iterable[str]) -> None:
        """Begin traffic on topics, some at a time."""
        list(self.pool.map(self.open, names))

    def _publish(self) -> None:
        pause = threading.Event()
        while not self._stopping.is_set():
            now_s = time.monotonic()
            for topic in list(self.topics.values()):
                topic.publish_if_due(now_s)
            pause.wait(_LOOK_S)

    def check(self) -> None:
        """Stop publishing. Fails if a message with a receipt isn't received, if messages of a key
        change their order, or if a message is delivered after its acknowledgement had a receipt."""
        self._stopping.set()
        self._publisher.join()
        every: Sequence[Topic | Confirming] = [*self.topics.values(), *self._confirming]
        deadline, pause = time.monotonic() + SETTLED_WITHIN_S, threading.Event()
        while unsettled := [text for each in every if (text := each.unsettled())]:
            assert time.monotonic() < deadline, unsettled
            pause.wait(_SETTLING_LOOK_S)
        assert [problem for topic in self.topics.values() for problem in topic.problems] == []
