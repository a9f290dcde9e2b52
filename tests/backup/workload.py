"""A load of messages and transactions on a cluster, and a judge of what a restored one has.

Numbers are published to ``source``. Two consumers carry them on:

- ``moved``: a transaction acknowledges some, and publishes them to ``left`` and to ``right``. Some
  transactions are aborted, and some are left open. So a number is in both or in none, and is
  acknowledged if and only if it is there.
- ``copied``: each is published to ``copy``, then acknowledged. So none is acknowledged that isn't
  there.

With *churn*, subscriptions of ``gone`` come and go, and its entries are trimmed when they were
received, so ledgers and journals are deleted all the time.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from velaray.client.exceptions import VelarayError
from velaray.client.message_id import MessageId
from velaray.sync.client import Client

TRANSACTION_S = 3.0
"""The time after which a transaction that was left open is aborted."""
RECEIVE_MS = 30_000
AT_ONCE = 5


@dataclass(slots=True)
class Acknowledged:
    """The acknowledged work of clients: numbers that were published, numbers whose transaction
    was committed, and numbers that were published to ``copy``."""

    published: int = 0
    moved: set[int] = field(default_factory=set)
    copied: int = 0


class Load:
    """Publishes and consumes until it is stopped. It survives restarts of actors."""

    def __init__(self, service_url: str, seed: int, *, churn: bool = False) -> None:
        self._client = Client(service_url, operation_timeout_seconds=60)
        self._random = random.Random(seed)
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._acknowledged = Acknowledged()
        self._threads = [
            threading.Thread(target=self._run, args=(work,), daemon=True)
            for work in (self._publish, self._move, self._copy, *([self._churn] if churn else []))
        ]
        self.failures: list[BaseException] = []

    def __enter__(self) -> Load:
        for name in ("moved", "copied"):
            self._client.subscribe("source", name).close()
        for topic in ("source", "left", "right", "copy"):
            self._client.subscribe(topic, "keeps everything").close()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()
        self._client.shutdown()

    def acknowledged(self) -> Acknowledged:
        """The work that is acknowledged by now."""
        with self._lock:
            now = self._acknowledged
            return Acknowledged(now.published, set(now.moved), now.copied)

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except VelarayError as error:
            self.failures.append(error)

    def _publish(self) -> None:
        producer = self._client.create_producer("source", batching_enabled=False)
        for number in itertools.count(1):
            if self._stopped.wait(0.002):
                return
            producer.send(b"%d" % number)
            with self._lock:
                self._acknowledged.published = number

    def _move(self) -> None:
        consumer = self._client.subscribe("source", "moved")
        producers = [self._client.create_producer(name) for name in ("left", "right")]
        while not self._stopped.is_set():
            messages = [consumer.receive(RECEIVE_MS) for _ in range(AT_ONCE)]
            self._move_some(consumer, producers, messages)

    def _move_some(self, consumer: Any, producers: Sequence[Any], messages: Sequence[Any]) -> None:
        transaction = self._client.transaction(TRANSACTION_S)
        try:
            for message in messages:
                for producer in producers:
                    producer.send(message.data(), txn=transaction)
                consumer.acknowledge(message, txn=transaction)
            fate = self._random.random()
            if fate < 0.1:
                transaction.abort()
            elif fate > 0.15:
                transaction.commit()
                with self._lock:
                    self._acknowledged.moved.update(int(each.data()) for each in messages)
                return
        except VelarayError:
            pass  # the deadline aborts it unless it was committed
        for message in messages:
            consumer.negative_acknowledge(message)

    def _copy(self) -> None:
        consumer = self._client.subscribe("source", "copied")
        producer = self._client.create_producer("copy")
        while not self._stopped.is_set():
            message = consumer.receive(RECEIVE_MS)
            producer.send(message.data())
            consumer.acknowledge(message, receipt=True)
            with self._lock:
                self._acknowledged.copied = int(message.data())

    def _churn(self) -> None:
        producer = self._client.create_producer("gone")
        for number in itertools.count():
            if self._stopped.wait(0.2):
                return
            with self._client.subscribe("gone", f"passing-{number}") as consumer:
                for _ in range(AT_ONCE):
                    producer.send(b"passing")
                    consumer.acknowledge(consumer.receive(RECEIVE_MS), receipt=True)
                consumer.unsubscribe()


def judge(service_url: str, before: Acknowledged) -> int:
    """Fail unless a cluster has all of ``before``, and a state that a crash could have left.

    Returns how many numbers it has. The transactions that are open in it must have ended, so it
    waits for them.
    """
    with Client(service_url, operation_timeout_seconds=60) as client:
        published = read(client, "source")
        assert published == list(range(1, len(published) + 1))
        assert len(published) >= before.published
        left, right = read(client, "left"), read(client, "right")
        assert len(set(left)) == len(left)
        assert sorted(left) == sorted(right), set(left) ^ set(right)
        assert before.moved <= set(left)
        remaining = rest(client, "moved", set(published) - set(left))
        assert set(left).isdisjoint(remaining)
        copied = read(client, "copy")
        assert before.copied <= max(copied, default=0)
        received = rest(client, "copied", set(published) - set(copied))
        assert set(copied) | received == set(published)
    return len(published)


def read(client: Client, topic: str) -> list[int]:
    """All numbers in a topic; waits until no transaction is open there."""
    client.create_producer(topic).send(b"0")
    found = []
    with client.create_reader(topic, MessageId.earliest) as reader:
        while (number := int(reader.read_next(RECEIVE_MS).data())) != 0:
            found.append(number)
    return found


def rest(client: Client, subscription: str, least: set[int]) -> set[int]:
    """The numbers that a subscription hasn't acknowledged; fails unless those of ``least`` are
    among them."""
    found: set[int] = set()
    with client.subscribe("source", subscription) as consumer:
        # The newest message is the one that the read of the topic added.
        while not (0 in found and least <= found):
            found.add(int(consumer.receive(RECEIVE_MS).data()))
    return found - {0}
