"""How long a new topic takes, from a producer's creation to the receipt of its first message; and
how long a new cluster takes until then."""

from __future__ import annotations

import statistics
import tempfile
import time

import pulsar
import ray

from benchmarks.contract import Absent, Peer
from benchmarks.model import Result, Samples
from benchmarks.options import Options
from benchmarks.placements import DEDICATED, LOCAL, PLACEMENTS, SETTINGS, placed
from benchmarks.systems import registry
from benchmarks.systems.official_client import connected
from velaray.cluster import OBJECT_STORE_BYTES, Cluster
from velaray.local import LocalCluster
from velaray.topology.ray_connection import start_ray, stop_ray

TOPICS = {DEDICATED: 10}
"""How many new topics a round has, by placement."""
OTHERS_TOPICS = 100
CASE = "first receipt on a new topic"
PULSAR, NATS = "pulsar", "nats"
FROM_NOTHING = "from nothing to the first receipt"


def run(options: Options) -> Result:
    """One cluster for each placement; new topics in every round, one after the other."""
    samples = Samples()
    for _ in range(options.rounds):
        for placement in PLACEMENTS:
            _from_nothing(samples, placement)
    for placement in PLACEMENTS:
        count = TOPICS.get(placement, OTHERS_TOPICS)
        with placed(placement) as cluster, connected(cluster.service_url) as client:
            first_receipt_ms(client, "warm-up")
            for number in range(options.rounds):
                took = [first_receipt_ms(client, f"new-{number}-{topic}") for topic in range(count)]
                _add(samples, placement, took)
    notes = []
    for name in (PULSAR, NATS):
        try:
            registry.check(name)
            with registry.start(name) as peer:
                _peers_first_receipt_ms(peer, "warm-up")
                for number in range(options.rounds):
                    topics = [f"new-{number}-{topic}" for topic in range(OTHERS_TOPICS)]
                    _add(samples, name, [_peers_first_receipt_ms(peer, each) for each in topics])
        except Absent as error:
            notes.append(f"{name}: {error}")
    return Result(
        name="activation",
        settings={
            "what": "create_producer() and send() of the official client, on a connected client",
            **SETTINGS,
            PULSAR: "Apache Pulsar standalone, the same client",
            NATS: "nats-server with JetStream: a new stream and its first receipt",
            "topics": f"{TOPICS[DEDICATED]} a round with a process for each, else {OTHERS_TOPICS}",
            "ray": ray.__version__,
        },
        baseline=PULSAR,
        rows=samples.rows(),
        notes=notes,
    )


def _add(samples: Samples, system: str, took: list[float]) -> None:
    samples.add(CASE, system, "p50", "ms", statistics.median(took))
    samples.add(CASE, system, "p99", "ms", sorted(took)[-1 - len(took) // 100])
    samples.add(CASE, system, "slowest", "ms", max(took))


def _peers_first_receipt_ms(peer: Peer, topic: str) -> float:
    """Milliseconds until the topic's first message has a receipt."""
    began = time.monotonic()
    peer.prepare(topic, [])
    with peer.sender(topic, "") as sender:
        sender.send_many(b"first", 1)
        sender.wait()
        return (time.monotonic() - began) * 1000


def _from_nothing(samples: Samples, placement: str) -> None:
    """Start Ray, a cluster and a client, and wait for a first receipt."""

    def note(measure: str, began: float) -> float:
        now = time.monotonic()
        samples.add(FROM_NOTHING, placement, measure, "s", now - began)
        return now

    with tempfile.TemporaryDirectory(prefix="velaray-bench-") as directory:
        began = time.monotonic()
        ports = {"service_port": 0, "admin_port": 0}
        cluster: Cluster | LocalCluster
        if placement == LOCAL:
            cluster = LocalCluster.start(directory, **ports)
        else:
            start_ray(object_store_memory=OBJECT_STORE_BYTES)
            began = note("Ray", began)
            cluster = Cluster.start(directory, placement=placement, **ports)
        with cluster:
            began = note("velaray", began)
            with connected(cluster.service_url) as client:
                first_receipt_ms(client, "first")
                note("client and topic", began)
    if placement != LOCAL:
        stop_ray()


def first_receipt_ms(client: pulsar.Client, topic: str) -> float:
    """Milliseconds until the topic's first message is durable."""
    began = time.monotonic()
    producer = client.create_producer(topic, batching_enabled=False)
    producer.send(b"first")
    took = (time.monotonic() - began) * 1_000
    producer.close()
    return took
