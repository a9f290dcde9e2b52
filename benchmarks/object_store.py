"""Journals in an S3-compatible server on this machine: how long a receipt takes beside a directory,
how many requests a process makes, and how another process recovers after it was killed; then a
cluster on Ray, see `benchmarks.store_hosts`."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pulsar

from benchmarks import store_hosts
from benchmarks.model import Result, Samples
from benchmarks.options import Options
from benchmarks.systems.official_client import connected
from tests.support.s3_server import VERSION, S3Server, running
from velaray.journal.objects.ledger_store import ObjectLedgerStore
from velaray.journal.objects.object_store import ObjectCounters
from velaray.journal.objects.remote_objects import open_objects
from velaray.local import LocalCluster

INTERVALS_MS = (50, 100, 250)
DIRECTORY = "directory"
RECEIPTS = 100
"""Messages of a round, sent one by one at random moments."""
PUT_BYTES = 10 << 10
TOPICS = (0, 1, 1000)
CREATED_AT_ONCE = 32
COUNTED_S = 10.0
RECEIPT = "one message at a time"
STORE = "the store alone"
REQUESTS = "requests of a process"
LOST = 50
"""Topics of the process that is killed: each has the journals of a partition and a subscription."""
RECOVERY = f"recovery of {2 * LOST} actors"
KILLED = """
import os, signal, sys
import pulsar
import velaray
cluster = velaray.LocalCluster.start(sys.argv[1])
client = pulsar.Client(cluster.service_url)
for number in range(int(sys.argv[2])):
    client.subscribe(f"t{number}", "s")
    producer = client.create_producer(f"t{number}", batching_enabled=False)
    for _ in range(10):
        producer.send(bytes(1000))
os.kill(os.getpid(), signal.SIGKILL)
"""


def run(options: Options) -> Result:
    """A new cluster for each interval and round; then one for each number of topics."""
    samples = Samples()
    with _server() as server:
        for _ in range(options.rounds):
            _put(samples, server)
            with tempfile.TemporaryDirectory(prefix="velaray-bench-") as directory:
                _receipts(samples, DIRECTORY, directory, {})
            for interval_ms in INTERVALS_MS:
                setting = {"commit_interval_ms": interval_ms}
                _receipts(samples, f"{interval_ms} ms", server.new_store(), setting)
        for topics in TOPICS:
            _requests(samples, server.new_store(), topics)
        _recovery(samples, server.new_store())
        store_hosts.measure(samples, server, options.rounds, INTERVALS_MS)
    return Result(
        name="object_store",
        settings={
            "what": "send() of the official client at random moments, to a cluster in this process",
            "store": f"versitygw {VERSION} on this machine, its files on the local disk",
            DIRECTORY: "the same with --data",
            RECOVERY: "a process with 50 topics is killed; the next one gets a receipt of each",
            "requests": f"counted for {COUNTED_S:g} s, after the topics were created",
            **store_hosts.SETTINGS,
        },
        baseline=DIRECTORY,
        rows=samples.rows(),
    )


@contextmanager
def _server() -> Iterator[S3Server]:
    with (
        tempfile.TemporaryDirectory(prefix="velaray-bench-") as directory,
        running(Path(directory)) as server,
    ):
        os.environ.update(server.environment)
        yield server


def _put(samples: Samples, server: S3Server) -> None:
    """How long the store itself takes for one object."""

    async def took() -> list[float]:
        objects, found = open_objects(server.new_store()), []
        for number in range(RECEIPTS):
            began = time.perf_counter()
            await objects.create(f"o{number}", bytes(PUT_BYTES))
            found.append((time.perf_counter() - began) * 1000)
        await objects.close()
        return found

    _add(samples, STORE, "PUT of 10 KiB", asyncio.run(took()))


def _receipts(samples: Samples, system: str, place: str, setting: dict[str, int]) -> None:
    moments = random.Random(1)
    with (
        LocalCluster.start(place, **setting) as cluster,  # type: ignore[arg-type]
        connected(cluster.service_url) as client,
    ):
        producer = client.create_producer("receipts", batching_enabled=False)
        producer.send(b"first")
        found = []
        pause = threading.Event()
        for _ in range(RECEIPTS):
            pause.wait(moments.random() * 0.3)
            began = time.perf_counter()
            producer.send(bytes(100))
            found.append((time.perf_counter() - began) * 1000)
    _add(samples, RECEIPT, system, found)


def _add(samples: Samples, case: str, system: str, found: list[float]) -> None:
    samples.add(case, system, "p50", "ms", statistics.median(found))
    samples.add(case, system, "p99", "ms", sorted(found)[int(len(found) * 0.99) - 1])


def _requests(samples: Samples, place: str, topics: int) -> None:
    """The requests while nothing happens, and while every topic gets messages."""
    with LocalCluster.start(place) as cluster, connected(cluster.service_url) as client:
        with ThreadPoolExecutor(CREATED_AT_ONCE) as pool:
            producers = list(pool.map(partial(_new_topic, client), range(topics)))
        store = cluster.actor_system.store
        assert isinstance(store, ObjectLedgerStore)
        counters = store.objects.objects.counters
        pause = threading.Event()
        _quiet(counters)
        _count(samples, f"{topics} topics, idle", counters, lambda: pause.wait(COUNTED_S))
        if producers:
            _count(samples, f"{topics} topics, busy", counters, lambda: _publish(producers))


def _new_topic(client: pulsar.Client, number: int) -> pulsar.Producer:
    producer = client.create_producer(f"t{number}")
    producer.send(b"first")
    return producer


def _count(
    samples: Samples, subject: str, counters: ObjectCounters, work: Callable[[], object]
) -> None:
    before, began = replace(counters), time.monotonic()
    work()
    seconds = time.monotonic() - began
    for kind in ("puts", "gets", "lists", "deletes"):
        made = getattr(counters, kind) - getattr(before, kind)
        samples.add(REQUESTS, subject, kind.upper(), "a second", made / seconds)


def _recovery(samples: Samples, place: str) -> None:
    """Another process takes over all journals of a killed one. They share one log."""
    command = [sys.executable, "-c", KILLED, place, str(LOST)]
    killed = subprocess.run(command, check=False, timeout=600)
    assert killed.returncode == -signal.SIGKILL
    log, records = asyncio.run(_stored(place))
    began = time.monotonic()
    with LocalCluster.start(place) as cluster, connected(cluster.service_url) as client:
        with ThreadPoolExecutor(CREATED_AT_ONCE) as pool:
            list(pool.map(partial(_used_topic, client), range(LOST)))
        seconds = time.monotonic() - began
        store = cluster.actor_system.store
        assert isinstance(store, ObjectLedgerStore)
        read = store.objects.objects.counters.bytes_read
    samples.add(RECOVERY, "time", "until a receipt of each topic", "s", seconds)
    samples.add(RECOVERY, "bytes", "of the lost log", "KiB", log / 1024)
    samples.add(RECOVERY, "bytes", "of all records", "KiB", records / 1024)
    samples.add(RECOVERY, "bytes", "read meanwhile", "KiB", read / 1024)


async def _stored(place: str) -> tuple[int, int]:
    """The bytes of all logs, and of all journals' records."""
    objects = open_objects(place)
    sizes = []
    for folder in ("hosts/", "journals/"):
        found = [await objects.get(name) for name in await objects.list(folder)]
        sizes.append(sum(len(each.data) for each in found if each is not None))
    await objects.close()
    return sizes[0], sizes[1]


def _used_topic(client: pulsar.Client, number: int) -> None:
    client.subscribe(f"t{number}", "s")
    _new_topic(client, number)


def _quiet(counters: ObjectCounters) -> None:
    """Wait until the last commits and unpackings are over."""
    pause = threading.Event()
    while True:
        before = counters.puts
        pause.wait(7.0)
        if counters.puts == before:
            return


def _publish(producers: list[pulsar.Producer]) -> None:
    until = time.monotonic() + COUNTED_S
    while time.monotonic() < until:
        for producer in producers:
            producer.send_async(bytes(100), lambda result, message: None)
        producers[-1].send(bytes(100))
