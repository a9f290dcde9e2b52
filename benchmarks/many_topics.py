"""Many topics at once: from new topics to their first receipts, then publishing and consuming."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import pulsar
import ray

from benchmarks.model import Result, Samples
from benchmarks.options import Options
from benchmarks.placements import LOCAL, SETTINGS, SHARED, Placed, placed
from benchmarks.processes import usage
from benchmarks.systems.official_client import connected

TOPICS = (1, 16, 100, 1000)
MESSAGES = 50_000
PAYLOAD = b"x" * 100
WITHIN_MS = 120_000


def run(options: Options) -> Result:
    """A new cluster for each placement and round; the numbers of topics one after the other."""
    samples = Samples()
    for _ in range(options.rounds):
        for placement in (SHARED, LOCAL):
            with placed(placement) as cluster, connected(cluster.service_url) as client:
                for count in TOPICS:
                    _measure(samples, placement, cluster, client, count)
    return Result(
        name="many_topics",
        settings={
            "what": f"{MESSAGES} messages of {len(PAYLOAD)} bytes over all topics, one official "
            "client, batched; a subscription and a consumer on each topic",
            **{name: SETTINGS[name] for name in (SHARED, LOCAL)},
            "server CPU": "of all processes of the cluster without Ray's own",
            "ray": ray.__version__,
        },
        baseline=LOCAL,
        rows=samples.rows(),
    )


def _measure(
    samples: Samples, placement: str, cluster: Placed, client: pulsar.Client, count: int
) -> None:
    case = f"{count} topics"
    names = [f"many-{count}-{number}" for number in range(count)]

    def add(measure: str, unit: str, value: float) -> None:
        samples.add(case, placement, measure, unit, value)

    took_s, producers = _timed(lambda: [_first(client, name) for name in names])
    add("all first receipts", "s", took_s)
    consumers = [client.subscribe(name, "s") for name in names]
    each = max(1, MESSAGES // count)
    before = usage(cluster.pids())
    took_s, _ = _timed(lambda: _publish(producers, each))
    after = usage(cluster.pids())
    add("publish", "msg/s", each * count / took_s)
    add("publish, server CPU", "s/M", (after - before).cpu_s / (each * count) * 1e6)
    took_s, _ = _timed(lambda: _consume(consumers, each))
    add("consume", "msg/s", each * count / took_s)
    add("consume, server CPU", "s/M", (usage(cluster.pids()) - after).cpu_s / (each * count) * 1e6)
    add("private memory", "MiB", cluster.private_bytes() / (1 << 20))
    for closing in (*producers, *consumers):
        closing.close()


def _timed(work: Callable[[], list[pulsar.Producer]]) -> tuple[float, list[pulsar.Producer]]:
    began = time.perf_counter()
    found = work()
    return time.perf_counter() - began, found


def _first(client: pulsar.Client, name: str) -> pulsar.Producer:
    """Create a producer on a new topic, and wait for the receipt of its first message."""
    producer = client.create_producer(name, block_if_queue_full=True, send_timeout_millis=0)
    producer.send(b"first")
    return producer


def _publish(producers: Sequence[pulsar.Producer], each: int) -> list[pulsar.Producer]:
    for _ in range(each):
        for producer in producers:
            producer.send_async(PAYLOAD, _ignore)
    for producer in producers:
        producer.flush()
    return list(producers)


def _ignore(result: pulsar.Result, message_id: pulsar.MessageId) -> None:
    if result != pulsar.Result.Ok:
        raise RuntimeError(f"a message wasn't stored: {result}")


def _consume(consumers: Sequence[pulsar.Consumer], each: int) -> list[pulsar.Producer]:
    for consumer in consumers:
        for _ in range(each):
            consumer.acknowledge(consumer.receive(timeout_millis=WITHIN_MS))
    return []
