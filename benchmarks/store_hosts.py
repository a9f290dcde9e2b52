"""A cluster of four hosts on Ray with its journals in an S3-compatible server on this machine:
throughput beside a directory, and all requests that the server gets."""

from __future__ import annotations

import re
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pulsar

from benchmarks.model import Samples
from benchmarks.systems import official_client
from tests.support.s3_server import S3Server
from velaray.cluster import Cluster

HOSTS = 4
THROUGHPUT = f"{HOSTS} hosts, {HOSTS} topics, 1 KiB messages in the client's batches"
REQUESTS = f"requests of a cluster with {HOSTS} hosts"
MESSAGES = 25_000
"""To each topic."""
IN_A_ROW = 1_000
PAYLOAD = bytes(range(256)) * 4
TOPICS = (0, 1, 1000)
COUNTED_S = 30.0
BUSY_PAUSE_S = 0.02
CREATED_AT_ONCE = 32
SETTLED_S = 75.0
"""The log is unpacked a minute after the last append."""
BATCHED = "batched"
KINDS = ("PUT", "GET", "HEAD", "LIST", "DELETE")
SETTINGS = {
    THROUGHPUT: f"on Ray; {MESSAGES} messages to each topic, then a consumer for each, with an "
    "acknowledgement for each message",
    REQUESTS: f"on Ray; of all processes, counted at the server for {COUNTED_S:g} s, {SETTLED_S:g} "
    "s after the topics were created",
}
_OPERATION = re.compile(r" s3_(\w+) ")
_KINDS = {
    "PutObject": "PUT",
    "GetObject": "GET",
    "HeadObject": "HEAD",
    "ListObjectsV2": "LIST",
    "DeleteObject": "DELETE",
    "DeleteObjects": "DELETE",
}


@contextmanager
def _cluster(place: str, setting: dict[str, int]) -> Iterator[Cluster]:
    with Cluster.start(
        place,
        service_port=0,
        admin_port=0,
        placement="shared",
        hosts=HOSTS,
        **setting,  # type: ignore[arg-type]
    ) as cluster:
        yield cluster


def measure_throughput(samples: Samples, system: str, place: str, setting: dict[str, int]) -> None:
    """Publish until every receipt has arrived, then consume all of it."""
    with (
        _cluster(place, setting) as cluster,
        official_client.connected(cluster.service_url) as client,
        ExitStack() as open_,
        ThreadPoolExecutor(HOSTS) as pool,
    ):
        topics = [f"load{number}" for number in range(HOSTS)]
        for topic in topics:
            client.subscribe(topic, "s").close()
        senders = [
            open_.enter_context(official_client.sender(client, topic, BATCHED)) for topic in topics
        ]
        began = time.perf_counter()
        for _ in range(MESSAGES // IN_A_ROW):
            for sender in senders:
                sender.send_many(PAYLOAD, IN_A_ROW)
        for sender in senders:
            sender.wait()
        published_s = time.perf_counter() - began
        began = time.perf_counter()
        list(pool.map(partial(_drain, client), topics))
        consumed_s = time.perf_counter() - began
    total = MESSAGES * HOSTS
    samples.add(THROUGHPUT, system, "published", "messages a second", total / published_s)
    samples.add(THROUGHPUT, system, "consumed", "messages a second", total / consumed_s)


def _drain(client: pulsar.Client, topic: str) -> None:
    with official_client.taker(client, topic, "s") as taker:
        left = MESSAGES
        while left:
            left -= taker.take(left)


def count_requests(samples: Samples, server: S3Server) -> None:
    """All requests at the server: idle, and with messages to all topics."""
    for count in TOPICS:
        with (
            _cluster(server.new_store(), {}) as cluster,
            official_client.connected(cluster.service_url) as client,
        ):
            with ThreadPoolExecutor(CREATED_AT_ONCE) as pool:
                producers = list(pool.map(partial(_new_topic, client), range(count)))
            pause = threading.Event()
            pause.wait(SETTLED_S)
            _count(samples, f"{count} topics, idle", server, partial(pause.wait, COUNTED_S))
            if producers:
                _count(samples, f"{count} topics, busy", server, partial(_publish, producers))


def _new_topic(client: pulsar.Client, number: int) -> pulsar.Producer:
    producer = client.create_producer(f"t{number}")
    producer.send(b"first")
    return producer


def _publish(producers: Sequence[pulsar.Producer]) -> None:
    until, pause = time.monotonic() + COUNTED_S, threading.Event()
    while time.monotonic() < until:
        for producer in producers:
            producer.send_async(bytes(100), None)
        producers[-1].flush()
        pause.wait(BUSY_PAUSE_S)


def _count(samples: Samples, subject: str, server: S3Server, work: Callable[[], object]) -> None:
    begin = server.requests.stat().st_size
    began = time.monotonic()
    work()
    seconds = time.monotonic() - began
    with server.requests.open() as log:
        log.seek(begin)
        made = Counter(map(kind_of, log))
    for kind in dict.fromkeys((*KINDS, *sorted(made.keys() - {""}))):
        samples.add(REQUESTS, subject, kind, "an hour", made[kind] * 3600 / seconds)


def kind_of(line: str) -> str:
    """The kind of the request that a line of the server's log is about; "" for other lines.

    A kind that isn't one of `KINDS` is given as the server names it.
    """
    found = _OPERATION.search(line)
    if found is None:
        return ""
    return _KINDS.get(found[1], found[1])


def measure(samples: Samples, server: S3Server, rounds: int, intervals_ms: Sequence[int]) -> None:
    """Throughput for each place in each round, then the requests."""
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(prefix="velaray-bench-") as directory:
            measure_throughput(samples, "directory", str(Path(directory)), {})
        for interval_ms in intervals_ms:
            setting = {"commit_interval_ms": interval_ms}
            measure_throughput(samples, f"{interval_ms} ms", server.new_store(), setting)
    count_requests(samples, server)
