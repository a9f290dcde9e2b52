"""How much memory active topics take: a producer and a subscription with its consumer on each.

At the end each topic has ten subscriptions, and then nothing is sent until the number of open files
has levelled off.
"""

from __future__ import annotations

import os
import time

import pulsar
import ray

from benchmarks.model import Result, Samples
from benchmarks.options import Options
from benchmarks.placements import DEDICATED, PLACEMENTS, SETTINGS, Placed, placed
from benchmarks.systems.official_client import connected

TOPICS = (1, 10, 100, 1000)
MOST = {DEDICATED: 10}
"""The most topics by placement: more processes don't fit a small machine."""
SUBSCRIPTIONS = 10
LEVEL_S = 10.0
"""The number of open files counts when it hasn't fallen for so long."""


def run(options: Options) -> Result:
    """A new cluster for each placement and round."""
    samples = Samples()
    for _ in range(options.rounds):
        for placement in PLACEMENTS:
            with placed(placement) as cluster, connected(cluster.service_url) as client:
                clients: list[pulsar.Producer | pulsar.Consumer] = []

                def add(case: str, measure: str, unit: str, value: float) -> None:
                    samples.add(case, placement, measure, unit, value)  # noqa: B023

                for count in TOPICS:
                    if count > MOST.get(placement, count):
                        break
                    for number in range(len(clients) // 2, count):
                        clients += use(client, f"topic-{number}")
                    case = f"{count} active topics"
                    add(case, "private memory", "MiB", cluster.private_bytes() / (1 << 20))
                    add(case, "processes", "", len(cluster.pids()))
                if placement in MOST:
                    continue
                for topic in range(count):
                    clients += [
                        client.subscribe(f"topic-{topic}", f"s-{number}")
                        for number in range(1, SUBSCRIPTIONS)
                    ]
                case = f"{count} topics, {SUBSCRIPTIONS} subscriptions each"
                add(case, "private memory", "MiB", cluster.private_bytes() / (1 << 20))
                actors = count * (1 + SUBSCRIPTIONS)
                add(case, "open files for each idle actor", "", idle_files(cluster) / actors)
    return Result(
        name="density",
        settings={
            "what": "Private_Clean + Private_Dirty of /proc/PID/smaps_rollup, of all processes of "
            "the cluster without Ray's own",
            **SETTINGS,
            "active": "a producer, and a subscription with a consumer; one message was consumed",
            "ray": ray.__version__,
        },
        baseline=DEDICATED,
        rows=samples.rows(),
    )


def use(client: pulsar.Client, topic: str) -> list[pulsar.Producer | pulsar.Consumer]:
    """Publish and consume one message; the producer and the consumer stay."""
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, batching_enabled=False)
    producer.send(b"first")
    consumer.acknowledge(consumer.receive(timeout_millis=60_000))
    return [producer, consumer]


def idle_files(cluster: Placed) -> int:
    """The open files of all its processes, when their number has levelled off."""
    least, since_s = open_files(cluster), time.monotonic()
    while time.monotonic() - since_s < LEVEL_S:
        time.sleep(0.5)
        found = open_files(cluster)
        if found < least:
            least, since_s = found, time.monotonic()
    return least


def open_files(cluster: Placed) -> int:
    """The descriptors of its processes, sockets among them."""
    return sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in cluster.pids())
