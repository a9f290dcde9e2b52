"""How much memory active topics take: a producer and a subscription with its consumer on each."""

from __future__ import annotations

import pulsar
import ray

from benchmarks.model import Result, Samples
from benchmarks.options import Options
from benchmarks.placements import DEDICATED, PLACEMENTS, SETTINGS, placed
from benchmarks.systems.official_client import connected

TOPICS = (1, 10, 100, 1000)
MOST = {DEDICATED: 10}
"""The most topics by placement: more processes don't fit a small machine."""


def run(options: Options) -> Result:
    """A new cluster for each placement and round."""
    samples = Samples()
    for _ in range(options.rounds):
        for placement in PLACEMENTS:
            with placed(placement) as cluster, connected(cluster.service_url) as client:
                clients: list[pulsar.Producer | pulsar.Consumer] = []
                for count in TOPICS:
                    if count > MOST.get(placement, count):
                        break
                    for number in range(len(clients) // 2, count):
                        clients += use(client, f"topic-{number}")
                    found, pids = cluster.private_bytes(), cluster.pids()
                    case = f"{count} active topics"
                    samples.add(case, placement, "private memory", "MiB", found / (1 << 20))
                    samples.add(case, placement, "processes", "", len(pids))
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
