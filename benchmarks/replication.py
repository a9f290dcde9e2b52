"""How fast a topic is replicated to another cluster, and how late what is published is there.

Two clusters, each with a Ray of its own in processes of its own, on this machine. The replicated
data is a backlog: the other cluster can't be reached while the official client publishes, so
publishing is measured without replication beside it. Then its address is mended, and the time is
taken until the other cluster has confirmed everything. Before that some messages have gone all the
way, so that the actors of both clusters run.

Lateness: nothing else is done; one message every 50 ms, from before it is sent here until a
consumer of the other cluster has it, and a consumer of this one.
"""

from __future__ import annotations

import multiprocessing
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection

import velaray
from benchmarks.contract import UNBATCHED
from benchmarks.loads.clock import Clock, pace
from benchmarks.model import Result, Samples, Verdict
from benchmarks.options import Options
from benchmarks.rig import running_cluster
from benchmarks.systems import official_client
from velaray import InitialPosition

HERE, THERE = "here", "there"
NOWHERE = "pulsar://127.0.0.1:1", "http://127.0.0.1:1"
SIZES = {"100 B": (100, 1_500_000), "1 KiB": (1024, 400_000)}
"""Size of a message, and how many of them are a backlog."""
UNBATCHED_MESSAGES = 300_000
WARM = 1000
RATE, LATE_MESSAGES = 20, 400
NAMESPACE = "geo/bench"
PUBLISHED, REPLICATED = "published", "replicated"
LEAST, MOST_MS = 0.8, 20.0
WITHIN_S = 300.0
_LOOK_EVERY_S = 0.2
"""Each look costs both clusters some milliseconds."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a cluster answers."""

    service_url: str
    admin_url: str

    @property
    def admin(self) -> velaray.Admin:
        """Its administrator."""
        return velaray.Admin(self.admin_url)


def run(options: Options) -> Result:
    """Every round has topics of its own."""
    samples = Samples()
    secret = secrets.token_bytes(32)
    with _cluster(HERE, 1, secret) as here, _cluster(THERE, 2, secret) as there:
        _introduce(here, there)
        for number in range(options.rounds):
            for name, (size, count) in SIZES.items():
                _backlog(here, there, f"batched, {name}", number, (size, count, ""), samples)
            small = (100, UNBATCHED_MESSAGES, UNBATCHED)
            _backlog(here, there, "one message an entry, 100 B", number, small, samples)
            _lateness(here, there, number, samples)
    result = Result(
        name="replication",
        settings={
            "clusters": "two, each with a Ray of its own, on this machine; defaults",
            PUBLISHED: f"{official_client.SETTINGS}; one partition, replication can't reach the "
            "other cluster meanwhile",
            REPLICATED: "the backlog, from the moment the other cluster can be reached until all "
            "of it is confirmed there",
            "lateness": f"{LATE_MESSAGES} messages of 100 B, {RATE} a second, our client; from "
            "before it is sent here until the consumer has it",
        },
        baseline=PUBLISHED,
        rows=samples.rows(),
    )
    _judge(result)
    return result


def _judge(result: Result) -> None:
    for row in result.rows:
        ratio = result.ratio(row)
        if row.measure == "messages" and ratio is not None:
            goal = f"replicating over publishing, {row.case}"
            result.verdicts.append(Verdict(goal, ratio, LEAST, at_least=True))
        if (row.subject, row.measure) == (THERE, "p50"):
            result.verdicts.append(Verdict("lateness there, p50, ms", row.median, MOST_MS))


def _introduce(here: Place, there: Place) -> None:
    for place, name, other in ((here, THERE, there), (there, HERE, here)):
        admin = place.admin
        admin.create_cluster(name, service_url=other.service_url, admin_url=other.admin_url)
        admin.create_tenant("geo", allowed_clusters=[HERE, THERE])
        admin.create_namespace(NAMESPACE)
    here.admin.set_policy(NAMESPACE, "replication", [HERE, THERE])


def _backlog(
    here: Place,
    there: Place,
    case: str,
    number: int,
    shape: tuple[int, int, str],
    samples: Samples,
) -> None:
    size, count, way = shape
    topic = f"persistent://{NAMESPACE}/{case.replace(' ', '-').replace(',', '')}-{number}"
    admin = here.admin
    with (
        official_client.connected(here.service_url) as client,
        official_client.sender(client, topic, way) as sender,
    ):
        sender.send_many(b"x" * size, WARM)
        sender.wait()
        _wait(lambda: _is_replicated(admin, topic), f"{topic} isn't replicated")
        admin.update_cluster(THERE, service_url=NOWHERE[0], admin_url=NOWHERE[1])
        _wait(lambda: not _is_connected(admin, topic), f"{topic} stays connected")
        began = time.perf_counter()
        sender.send_many(b"x" * size, count)
        sender.wait()
        published_s = time.perf_counter() - began
    backlog = _backlog_of(admin, topic)
    if not backlog:
        raise RuntimeError(f"nothing of {topic} waits to be replicated")
    began = time.perf_counter()
    admin.update_cluster(THERE, service_url=there.service_url, admin_url=there.admin_url)
    _wait(lambda: _is_replicated(admin, topic), f"{topic} isn't replicated")
    replicated_s = time.perf_counter() - began
    arrived = there.admin.stats(topic)["numberOfEntries"]
    if arrived < backlog:
        raise RuntimeError(f"of {backlog} entries of {topic} only {arrived} are there")
    samples.add(case, PUBLISHED, "messages", "1/s", count / published_s)
    samples.add(case, REPLICATED, "messages", "1/s", count / replicated_s)


def _is_replicated(admin: velaray.Admin, topic: str) -> bool:
    """Whether the other cluster is reached, and has confirmed everything."""
    found = admin.replication(topic)
    return any(each["connected"] for each in found) and not any(each["backlog"] for each in found)


def _is_connected(admin: velaray.Admin, topic: str) -> bool:
    return any(each["connected"] for each in admin.replication(topic))


def _backlog_of(admin: velaray.Admin, topic: str) -> int:
    return sum(int(each["backlog"]) for each in admin.replication(topic))


def _wait(condition: object, problem: str) -> None:
    assert callable(condition)
    deadline = time.monotonic() + WITHIN_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(problem)
        threading.Event().wait(_LOOK_EVERY_S)


def _lateness(here: Place, there: Place, number: int, samples: Samples) -> None:
    topic = f"persistent://{NAMESPACE}/late-{number}"
    warm = 2 * RATE
    clocks = {name: Clock(warm + LATE_MESSAGES) for name in (HERE, THERE)}
    with (
        velaray.Client(here.service_url) as client,
        velaray.Client(there.service_url) as other,
        client.create_producer(topic, batching_enabled=False) as producer,
    ):
        for name, place in ((HERE, client), (THERE, other)):
            consumer = place.subscribe(topic, "late", initial_position=InitialPosition.Earliest)
            taking = (consumer, clocks[name], warm + LATE_MESSAGES)
            threading.Thread(target=_take, args=taking, daemon=True).start()
        pace(RATE, warm + LATE_MESSAGES, 100, lambda payloads: _send(producer, payloads))
        for name, clock in clocks.items():
            clock.wait()
            shares = 50.0, 99.0
            for share, value in zip(shares, clock.percentiles(warm, shares), strict=True):
                samples.add("lateness when idle", name, f"p{share:g}", "ms", value / 1e3)


def _send(producer: velaray.Producer, payloads: list[bytes]) -> None:
    for payload in payloads:
        producer.send_async(payload, None)


def _take(consumer: velaray.Consumer, clock: Clock, count: int) -> None:
    for _ in range(count):
        message = consumer.receive()
        clock.stop(message.data())
        consumer.acknowledge(message)


@contextmanager
def _cluster(name: str, number: int, secret: bytes) -> Iterator[Place]:
    """A cluster in a process of its own, since a process knows one Ray."""
    context = multiprocessing.get_context("spawn")
    pipe, other = context.Pipe()
    process = context.Process(target=_host, args=(name, number, secret, other))
    process.start()
    other.close()
    try:
        yield Place(*pipe.recv())
    finally:
        pipe.close()
        process.join()


def _host(name: str, number: int, secret: bytes, pipe: Connection) -> None:
    settings = {"name": name, "cluster_number": number, "replication_secret": secret}
    with running_cluster(**settings) as cluster:
        pipe.send((cluster.service_url, cluster.admin_url))
        try:
            pipe.recv()
        except EOFError:
            return
