"""Kafka's transactions, through confluent-kafka: a producer and a partition for each in flight."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from benchmarks.contract import NOTHING_LEFT_S, Transacted, transacted

_CALL_WITHIN_S = 60.0


@contextmanager
def transactor(
    connect: dict[str, Any], source: str, target: str, most_at_once: int
) -> Iterator[Transactor]:
    """A thread for each transaction in flight, with a consumer of its partition and a producer."""
    with ExitStack() as stack:
        workers = [
            Worker(connect, source, target, number, stack.callback)
            for number in range(most_at_once)
        ]
        yield Transactor(workers)


class Transactor:
    """See `benchmarks.contract.Transactor`."""

    def __init__(self, workers: list[Worker]) -> None:
        self._workers = workers

    def run(self, each: int, at_once: int, seconds: float) -> Transacted:
        """See `benchmarks.contract.Transactor`."""
        began = time.perf_counter()
        with ThreadPoolExecutor(at_once) as pool:
            done = [
                pool.submit(worker.repeat, each, began + seconds)
                for worker in self._workers[:at_once]
            ]
            commits = [commit for future in done for commit in future.result()]
        return transacted(each, began, commits)


class Worker:
    """One transaction after the other; a partition of the source is its own."""

    def __init__(
        self,
        connect: dict[str, Any],
        source: str,
        target: str,
        number: int,
        finally_do: Callable[..., Any],
    ) -> None:
        self._target = target
        self._consumer = Consumer(
            {**connect, "group.id": source, "enable.auto.commit": False, "fetch.wait.max.ms": 100}
        )
        finally_do(self._consumer.close)
        self._consumer.assign([TopicPartition(source, number, 0)])
        self._producer = Producer(
            {
                **connect,
                "transactional.id": f"{source}-{number}",
                "retry.backoff.ms": 1,
                "retry.backoff.max.ms": 10,
            }
        )
        self._producer.init_transactions(_CALL_WITHIN_S)

    def repeat(self, each: int, until: float) -> list[tuple[float, float]]:
        """Until then, or nothing is left; when each commit began and ended."""
        commits: list[tuple[float, float]] = []
        while time.perf_counter() < until:
            messages = self._consumer.consume(each, NOTHING_LEFT_S)
            if len(messages) < each:
                break
            self._producer.begin_transaction()
            for message in messages:
                if message.error() is not None:
                    raise KafkaException(message.error())
                self._producer.produce(self._target, message.value())
            self._producer.send_offsets_to_transaction(
                self._consumer.position(self._consumer.assignment()),
                self._consumer.consumer_group_metadata(),
                _CALL_WITHIN_S,
            )
            began = time.perf_counter()
            self._producer.commit_transaction(_CALL_WITHIN_S)
            commits.append((began, time.perf_counter()))
        return commits
