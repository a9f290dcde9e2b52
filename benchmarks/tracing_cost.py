"""What tracing deliveries costs: CPU of a cluster's thread per message, with and without, in turns.

Run as ``python -m benchmarks.tracing_cost [consumers] [messages] [rounds]``.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import pulsar

from tests.support.local_cluster import LocalCluster
from velaray.broker.subscription import subscription_actor
from velaray.broker.subscription.tracing import Trace


class NoTrace:
    """A trace that takes nothing down."""

    def __init__(self, *_: Any) -> None:
        pass

    def number_of(self, consumer: int) -> int:
        """Nobody has a number."""
        return 0

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


async def _cpu() -> float:
    return time.thread_time()


def _drain(consumers: list[Any], messages: int) -> None:
    received = 0
    while received < messages:
        for consumer in consumers:
            try:
                while received < messages:
                    consumer.acknowledge(consumer.receive(200))
                    received += 1
            except pulsar.Timeout:
                continue


def measure(trace: type, consumers: int, messages: int) -> float:
    """Microseconds per message that is delivered and acknowledged by itself."""
    subscription_actor.Trace = trace  # type: ignore[assignment, misc]
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    with tempfile.TemporaryDirectory() as folder, LocalCluster(Path(folder)) as cluster:
        client = pulsar.Client(cluster.service_url, logger=quiet)
        shared = pulsar.ConsumerType.Shared
        connected = [client.subscribe("t", "s", consumer_type=shared) for _ in range(consumers)]
        producer = client.create_producer("t", batching_enabled=False, block_if_queue_full=True)
        for _ in range(messages):
            producer.send_async(b"x" * 100, lambda *_: None)
        producer.flush()
        before = cluster.run(_cpu())
        _drain(connected, messages)
        used = cluster.run(_cpu()) - before
        client.close()
    return float(used / messages * 1e6)


def main(consumers: int = 2, messages: int = 40_000, rounds: int = 7) -> None:
    """Measure in turns, and print both medians and their ratio."""
    found: dict[type, list[float]] = {Trace: [], NoTrace: []}
    for number in range(rounds):
        for trace in (Trace, NoTrace) if number % 2 else (NoTrace, Trace):
            found[trace].append(measure(trace, consumers, messages))
    traced, untraced = median(found[Trace]), median(found[NoTrace])
    print(f"{consumers} consumers: {traced:.2f} µs traced, {untraced:.2f} µs not: ", end="")
    print(f"{traced / untraced:.3f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
