"""Steady traffic on many topics in shared hosts: memory, descriptors and journals over time.

``--minutes`` is the duration. Ledgers are small, so that journals reach their lasting size in
minutes; with the usual limits a topic would need hours for it.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import linear_regression

import pulsar
import ray

import velaray
import velaray.aio
from benchmarks.model import Result, Samples, Verdict
from benchmarks.options import Options
from benchmarks.placements import SETTINGS, SHARED
from benchmarks.processes import private_bytes
from benchmarks.rig import running_cluster
from benchmarks.systems.official_client import connected
from velaray.broker import journaled_actor
from velaray.broker.garbage_collection import ledger_keeper
from velaray.cluster import NODE_HEALTH, OBJECT_STORE_BYTES, Cluster
from velaray.journal.files import JOURNALS
from velaray.journal.journal import JournalSettings
from velaray.topology import stores
from velaray.topology.placement import HOST_PREFIX
from velaray.topology.ray_connection import start_ray, stop_ray

TOPICS = 200
RATE = 5
"""Messages a second on each topic."""
BUSY = "busy"
BUSY_RATE = 2000
"""Messages a second on the topic whose consumer sends each acknowledgement by itself."""
SHUFFLED = 100
"""That consumer acknowledges the messages of such a window in any order."""
PAYLOAD = b"x" * 100
ROLL_RECORDS = 500
"""So many records, and a journal rolls over."""
HISTORY_BYTES = 64 << 10
"""A journal keeps so much of what it needs no more."""
MEMORY_LIMIT = 0.5
DESCRIPTORS_LIMIT = 1.0
_ALL_JOURNALS = "all journals"
_SUBJECT = "soak"
_MIB = 1 << 20
_ROOT = Path(__file__).parents[1]
_SAMPLE_S = 10.0
_TICK_S = 0.01


@dataclass(frozen=True, slots=True)
class Point:
    """Something that was measured at a time since the beginning."""

    minute: float
    of: str
    measure: str
    unit: str
    value: float


def run(options: Options) -> Result:
    """One cluster; the growth is that in the second half of the time."""
    points: list[Point] = []
    with (
        _small_ledgers(),
        running_cluster(placement=SHARED) as cluster,
        connected(cluster.service_url) as client,
        _traffic(client, cluster.service_url) as acknowledged,
    ):
        began_s, pause = time.monotonic(), threading.Event()
        while (minute := (time.monotonic() - began_s) / 60) < options.minutes:
            points += _measured(cluster, minute)
            pause.wait(_SAMPLE_S)
        rate = acknowledged() / (time.monotonic() - began_s)
    samples, verdicts, notes = Samples(), [], list[str]()
    for of, measure, unit, values in _by_measure(points):
        late = [(minute, value) for minute, value in values if minute >= options.minutes / 2]
        growth = linear_regression(*zip(*late, strict=True)).slope
        samples.add(of, _SUBJECT, f"{measure}, last", unit, values[-1][1])
        samples.add(of, _SUBJECT, f"{measure}, growth", f"{unit}/min", growth)
        last = {int(minute): value for minute, value in values}
        course = ", ".join(f"{value:.0f}" for value in last.values())
        notes.append(f"{of}, {measure} at the end of each minute: {course} {unit}".rstrip())
        limit = {"private memory": MEMORY_LIMIT, "descriptors": DESCRIPTORS_LIMIT}.get(measure)
        if limit is not None:
            verdicts.append(Verdict(f"{of}: growth of {measure} a minute", growth, limit))
    return Result(
        name="soak",
        settings={
            "what": f"{TOPICS} topics with {RATE} messages a second each, and one with {BUSY_RATE} "
            "whose consumer sends each acknowledgement by itself, in any order within "
            f"{SHUFFLED} messages; {len(PAYLOAD)} bytes, not batched",
            SHARED: SETTINGS[SHARED],
            "ledgers": f"at most {ROLL_RECORDS} records, of which {HISTORY_BYTES >> 10} KiB are "
            "kept when they aren't needed",
            "growth": f"slope of the values of every {_SAMPLE_S:g} s in the second half of "
            f"{options.minutes:g} minutes",
            "ray": ray.__version__,
        },
        baseline="",
        rows=samples.rows(),
        verdicts=verdicts,
        notes=[f"{rate:.0f} acknowledgements a second were sent one by one", *notes],
    )


@contextmanager
def _small_ledgers() -> Iterator[None]:
    """A Ray whose processes make small ledgers."""
    hook = f"{__name__}.{shrink.__name__}"
    for name, value in NODE_HEALTH.items():  # as where velaray starts Ray
        os.environ.setdefault(name, value)
    known = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = f"{_ROOT}{os.pathsep}{known}"  # Ray's processes import the hook
    start_ray(
        object_store_memory=OBJECT_STORE_BYTES, runtime_env={"worker_process_setup_hook": hook}
    )
    try:
        yield
    finally:
        stop_ray()


def shrink() -> None:
    """Have every journal of this process roll over soon, and keep little."""
    small = partial(JournalSettings, roll_records=ROLL_RECORDS)
    stores.JournalSettings = small  # type: ignore[attr-defined,misc]
    ledger_keeper.ROLL_BYTES = HISTORY_BYTES
    journaled_actor.HISTORY_BYTES = HISTORY_BYTES  # type: ignore[attr-defined]


def _measured(cluster: Cluster, minute: float) -> Iterator[Point]:
    """The memory and descriptors of each host, and the files of all journals."""
    for process in cluster.actors():
        if "actors" in process and process["key"].startswith(HOST_PREFIX):
            key, pid = process["key"], process["pid"]
            yield Point(minute, key, "private memory", "MiB", private_bytes(pid) / _MIB)
            yield Point(minute, key, "descriptors", "", len(os.listdir(f"/proc/{pid}/fd")))
    files = (Path(cluster.config.data_dir) / JOURNALS).rglob("*")
    sizes = [size for path in files if (size := _size(path)) is not None]
    yield Point(minute, _ALL_JOURNALS, "files", "", len(sizes))
    yield Point(minute, _ALL_JOURNALS, "size", "MiB", sum(sizes) / _MIB)


def _size(path: Path) -> int | None:
    """The size of a file; None if it is a directory or was removed meanwhile."""
    try:
        return path.stat().st_size if path.is_file() else None
    except FileNotFoundError:
        return None


def _by_measure(
    points: Sequence[Point],
) -> Iterator[tuple[str, str, str, list[tuple[float, float]]]]:
    """The values of each measure, by minutes."""
    found: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    for point in points:
        key = point.of, point.measure, point.unit
        found.setdefault(key, []).append((point.minute, point.value))
    for (of, measure, unit), values in found.items():
        yield of, measure, unit, values


@contextmanager
def _traffic(client: pulsar.Client, service_url: str) -> Iterator[Callable[[], int]]:
    """Publish and consume until the context ends; gives the number of acknowledgements that were
    sent one by one."""
    stop, acknowledged = threading.Event(), [0]
    producers = []
    for number in range(TOPICS):
        client.subscribe(f"steady-{number}", "s", message_listener=_acknowledge)
        producers.append(_producer(client, f"steady-{number}"))
    busy = _producer(client, BUSY)
    threads = [
        # An event loop of its own: one that another thread waits for gets the interpreter too late
        # for this rate.
        threading.Thread(target=lambda: asyncio.run(_consume(stop, service_url, acknowledged))),
        threading.Thread(target=_publish, args=(stop, producers, RATE)),
        threading.Thread(target=_publish, args=(stop, [busy], BUSY_RATE)),
    ]
    with ExitStack() as ending:
        for thread in threads:
            thread.start()
            ending.callback(thread.join)
        ending.callback(stop.set)
        yield lambda: acknowledged[0]


def _producer(client: pulsar.Client, topic: str) -> pulsar.Producer:
    return client.create_producer(
        topic, batching_enabled=False, block_if_queue_full=True, send_timeout_millis=0
    )


def _acknowledge(consumer: pulsar.Consumer, message: pulsar.Message) -> None:
    consumer.acknowledge(message)


def _publish(stop: threading.Event, producers: Sequence[pulsar.Producer], rate: int) -> None:
    """Publish ``rate`` messages a second by each producer."""
    began_s, sent = time.monotonic(), 0
    while not stop.wait(_TICK_S):
        due = int((time.monotonic() - began_s) * rate * len(producers))
        for number in range(sent, due):
            producers[number % len(producers)].send_async(PAYLOAD, None)
        sent = due


async def _consume(stop: threading.Event, service_url: str, acknowledged: list[int]) -> None:
    """Acknowledge each message of the busy topic by itself."""
    chance, window = random.Random(0), []
    async with velaray.aio.Client(service_url) as client:
        consumer = await client.subscribe(
            BUSY, "s", velaray.ConsumerType.Shared, ack_group_time_ms=0, receiver_queue_size=5000
        )
        while not stop.is_set():
            try:
                window.append(await consumer.receive(500))
            except velaray.Timeout:
                continue
            if len(window) == SHUFFLED:
                chance.shuffle(window)
                for message in window:
                    await consumer.acknowledge(message)
                acknowledged[0] += len(window)
                window.clear()
