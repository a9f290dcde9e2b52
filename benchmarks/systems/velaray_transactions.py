"""velaray's transactions, through its own asyncio client."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import velaray
from benchmarks.contract import LISTS, NOTHING_LEFT_S, Transacted, transacted
from velaray.aio import Client, Consumer, Producer
from velaray.broker.coordinator.coordinators import DEFAULT_COORDINATORS
from velaray.client.enums import ConsumerType

SUBSCRIPTION = "source"
QUEUE = 10_000
_WAIT_MS = round(1000 * NOTHING_LEFT_S)


@contextmanager
def transactor(
    service_url: str, source: str, target: str, way: str, most_at_once: int
) -> Iterator[Transactor]:
    """One client, one Shared consumer, and a producer for each transaction in flight."""
    with asyncio.Runner() as runner:
        made = Transactor(runner, way)
        runner.run(made.connect(service_url, source, target, most_at_once))
        try:
            yield made
        finally:
            runner.run(made.close())


class Transactor:
    """See `benchmarks.contract.Transactor`."""

    def __init__(self, runner: asyncio.Runner, way: str) -> None:
        self._runner = runner
        self._copy = self._copy_lists if way == LISTS else self._copy_each
        self._client: Client
        self._consumer: Consumer
        self._producers: list[Producer] = []

    async def connect(self, url: str, source: str, target: str, most_at_once: int) -> None:
        """Connect; makes both topics."""
        self._client = Client(url, operation_timeout_seconds=60)
        self._consumer = await self._client.subscribe(
            source, SUBSCRIPTION, ConsumerType.Shared, receiver_queue_size=QUEUE
        )
        for _ in range(most_at_once):
            producer = await self._client.create_producer(
                target, batching_enabled=True, batching_max_publish_delay_ms=1
            )
            self._producers.append(producer)
        # Transactions go to the coordinators in turn: have them all started.
        async with asyncio.TaskGroup() as group:
            for _ in range(DEFAULT_COORDINATORS):
                group.create_task(self._begin_and_abort())

    async def _begin_and_abort(self) -> None:
        txn = await self._client.new_transaction()
        await txn.abort()

    async def close(self) -> None:
        """Close everything."""
        await self._client.close()

    def run(self, each: int, at_once: int, seconds: float) -> Transacted:
        """See `benchmarks.contract.Transactor`."""
        return self._runner.run(self._run(each, at_once, seconds))

    async def _run(self, each: int, at_once: int, seconds: float) -> Transacted:
        commits: list[tuple[float, float]] = []
        began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for producer in self._producers[:at_once]:
                group.create_task(self._repeat(producer, each, began + seconds, commits))
        return transacted(each, began, commits)

    async def _repeat(
        self, producer: Producer, each: int, until: float, commits: list[tuple[float, float]]
    ) -> None:
        while time.perf_counter() < until:
            txn = await self._client.new_transaction()
            try:
                await self._copy(producer, each, txn)
            except velaray.Timeout:
                await txn.abort()
                return
            began = time.perf_counter()
            await txn.commit()
            commits.append((began, time.perf_counter()))

    async def _copy_each(self, producer: Producer, each: int, txn: Any) -> None:
        messages = [await self._consumer.receive(_WAIT_MS) for _ in range(each)]
        async with asyncio.TaskGroup() as group:
            for message in messages:
                group.create_task(producer.send(message.data(), txn=txn))
            group.create_task(self._consumer.acknowledge_many(messages, txn=txn))

    async def _copy_lists(self, producer: Producer, each: int, txn: Any) -> None:
        left = each
        while left:
            batch = await self._consumer.receive_many(left, _WAIT_MS)
            left -= len(batch)
            await asyncio.gather(
                producer.send_many(batch.values(), txn=txn),
                self._consumer.acknowledge_many(batch, txn=txn),
            )
