"""What TLS costs: throughput with it and without, in turns, on one cluster in a process of its own.

Run as ``python -m benchmarks.tls [rounds]``. Each cell publishes messages and then drains them with
one client; the ratio is that of the medians.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import pulsar

import velaray
from tests.support.certificates import Authority
from velaray.topology.ray_process import collect_garbage_rarely
from velaray.wire.allocation import keep_freed_memory

OFFICIAL, LISTS = "pulsar-client", "velaray, lists"
PATIENCE_MS = 60_000


class Load(NamedTuple):
    """Messages of one client."""

    client: str
    size: int
    count: int


LOADS = (
    Load(OFFICIAL, 100, 200_000),
    Load(OFFICIAL, 1024, 100_000),
    Load(OFFICIAL, 65_536, 4_000),
    Load(LISTS, 100, 1_000_000),
    Load(LISTS, 1024, 300_000),
    Load(LISTS, 65_536, 4_000),
)


def _serve(folder: str, cert: str, key: str, ready: Connection) -> None:
    options: Any = {"tls_cert": Path(cert), "tls_key": Path(key)}
    keep_freed_memory()
    with velaray.LocalCluster.start(folder, **options) as cluster:
        collect_garbage_rarely()  # both as in every process of a cluster
        config = cluster.config
        ready.send((config.plain_service_url, config.tls_service_url))
        ready.recv()


@contextmanager
def cluster(folder: Path) -> Iterator[tuple[tuple[str, str], str]]:
    """A cluster in a process of its own: its URLs without TLS and by TLS, and whom to trust."""
    authority = Authority(folder / "authority")
    pair = authority.issue()
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    words = str(folder / "data"), str(pair.cert), str(pair.key), there
    process = spawn.Process(target=_serve, args=words)
    process.start()
    try:
        yield here.recv(), str(authority.file)
    finally:
        here.send(None)
        process.join()


def _official(url: str, trust: str, topic: str, load: Load) -> tuple[float, float]:
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    client = pulsar.Client(url, tls_trust_certs_file_path=trust, logger=quiet)
    client.subscribe(topic, "s").close()
    producer = client.create_producer(
        topic, batching_enabled=True, block_if_queue_full=True, max_pending_messages=5_000
    )
    payload = b"x" * load.size

    def publish() -> None:
        for _ in range(load.count):
            producer.send_async(payload, None)
        producer.flush()

    def drain() -> None:
        consumer = client.subscribe(topic, "s", receiver_queue_size=5_000)
        message = consumer.receive(PATIENCE_MS)
        for _ in range(load.count - 1):
            message = consumer.receive(PATIENCE_MS)
        consumer.acknowledge_cumulative(message)

    taken = _seconds(publish), _seconds(drain)
    client.close()
    return taken


def _lists(url: str, trust: str, topic: str, load: Load) -> tuple[float, float]:
    with velaray.Client(url, tls_trust_certs_file_path=trust) as client:
        client.subscribe(topic, "s").close()
        producer = client.create_producer(topic, block_if_queue_full=True)
        payloads = [b"x" * load.size] * min(10_000, load.count // 4)

        def publish() -> None:
            for _ in range(load.count // len(payloads)):
                producer.send_many(payloads)

        def drain() -> None:
            consumer = client.subscribe(topic, "s", receiver_queue_size=5_000)
            left = load.count
            while left > 0:
                found = consumer.receive_many(10_000, timeout_millis=PATIENCE_MS)
                consumer.acknowledge_many(found)
                left -= len(found)

        return _seconds(publish), _seconds(drain)


def _seconds(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


CLIENTS = {OFFICIAL: _official, LISTS: _lists}


def main(rounds: int = 3) -> None:
    """Measure all loads in turns, and print a row of a table for each."""
    print("| Client | Size | Publish, msg/s | by TLS | ratio | Drain, msg/s | by TLS | ratio |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder, cluster(Path(folder)) as (urls, trust):
        for load in LOADS:
            found: dict[str, list[tuple[float, float]]] = {url: [] for url in urls}
            for number in range(-1, rounds):
                for url in urls if number % 2 else urls[::-1]:
                    topic = f"t-{load.client.split(',')[0]}-{load.size}-{number}-{urls.index(url)}"
                    os.sync()  # otherwise later loads wait for the writing of earlier ones
                    taken = CLIENTS[load.client](url, trust, topic, load)
                    if number >= 0:  # the first round warms up
                        found[url].append(taken)
            cells = []
            for phase in range(2):
                plain, by_tls = (
                    load.count / median(each[phase] for each in found[u]) for u in urls
                )
                cells.append(f"{plain:,.0f} | {by_tls:,.0f} | {by_tls / plain:.2f}")
            print(f"| {load.client} | {load.size} B | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
