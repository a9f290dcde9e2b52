"""Many topics at once: from new topics to their first receipts, then publishing and consuming."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass

import pulsar
import ray

from benchmarks.contract import Absent, Peer, Sender, Taker
from benchmarks.model import Result, Samples
from benchmarks.options import Options
from benchmarks.placements import LOCAL, SETTINGS, SHARED, Placed, placed
from benchmarks.processes import private_bytes, usage
from benchmarks.systems import official_client, registry

TOPICS = (1, 16, 100, 1000)
MESSAGES = 50_000
IN_A_ROW = 10
"""How many messages a topic gets before the next topic gets its own."""
PAYLOAD = b"x" * 100
SUBSCRIPTION = "s"
PULSAR, NATS = "pulsar", "nats"
DRAINED_WITHIN_S = 120.0


@dataclass(frozen=True, slots=True)
class Velaray:
    """A velaray cluster, with the part of `benchmarks.contract.Peer` that is used here."""

    cluster: Placed
    client: pulsar.Client

    def servers(self) -> Iterable[int]:
        """The processes of its actors, its proxy and its directory."""
        return self.cluster.pids()

    def prepare(self, topic: str, subscriptions: Sequence[str]) -> None:
        """Nothing: a consumer makes its subscription."""

    def sender(self, topic: str, way: str) -> AbstractContextManager[Sender]:
        """A producer."""
        return official_client.sender(self.client, topic, way)

    def taker(self, topic: str, subscription: str, way: str) -> AbstractContextManager[Taker]:
        """A consumer."""
        return official_client.taker(self.client, topic, subscription)


Measured = Velaray | Peer


def run(options: Options) -> Result:
    """A new cluster for each system and round; the numbers of topics one after the other."""
    samples, notes = Samples(), []
    for _ in range(options.rounds):
        for name in (SHARED, LOCAL, PULSAR, NATS):
            try:
                with _started(name) as system:
                    for count in TOPICS:
                        _measure(samples, name, system, count)
            except Absent as error:
                notes.append(f"{name}: {error}")
    return Result(
        name="many_topics",
        settings={
            "what": f"{MESSAGES} messages of {len(PAYLOAD)} bytes over all topics, {IN_A_ROW} in a "
            "row to each, one client; a subscription and a consumer on each topic",
            **{name: SETTINGS[name] for name in (SHARED, LOCAL)},
            PULSAR: "Apache Pulsar standalone, the same client",
            NATS: "nats-server with JetStream, a stream for each topic; not synced per receipt",
            "server CPU": "of all processes of the cluster without Ray's own",
            "ray": ray.__version__,
        },
        baseline=PULSAR,
        rows=samples.rows(),
        notes=list(dict.fromkeys(notes)),
    )


@contextmanager
def _started(name: str) -> Iterator[Measured]:
    if name in SETTINGS:
        with placed(name) as cluster, official_client.connected(cluster.service_url) as client:
            yield Velaray(cluster, client)
    else:
        registry.check(name)
        with registry.start(name) as peer:
            yield peer


def _measure(samples: Samples, name: str, system: Measured, count: int) -> None:
    case = f"{count} topics"
    topics = [f"many-{count}-{number}" for number in range(count)]

    def add(measure: str, unit: str, value: float) -> None:
        samples.add(case, name, measure, unit, value)

    with ExitStack() as stack:
        senders: list[Sender] = []
        add("all first receipts", "s", _timed(lambda: _open(system, topics, senders, stack)))
        for topic in topics:
            system.prepare(topic, [SUBSCRIPTION])
        takers = [stack.enter_context(system.taker(topic, SUBSCRIPTION, "")) for topic in topics]
        each = MESSAGES // count
        for measure, work in (
            ("publish", lambda: _publish(senders, each)),
            ("consume", lambda: _consume(takers, each)),
        ):
            before = usage(system.servers())
            took_s = _timed(work)
            cpu_s = (usage(system.servers()) - before).cpu_s
            add(measure, "msg/s", each * count / took_s)
            add(f"{measure}, server CPU", "s/M", cpu_s / (each * count) * 1e6)
        add("private memory", "MiB", sum(map(private_bytes, system.servers())) / (1 << 20))


def _timed(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _open(system: Measured, topics: Sequence[str], senders: list[Sender], stack: ExitStack) -> None:
    """Open a sender on each topic and wait for a first receipt, one topic after the other."""
    for topic in topics:
        system.prepare(topic, [])
        sender = stack.enter_context(system.sender(topic, ""))
        sender.send_many(b"first", 1)
        sender.wait()
        senders.append(sender)


def _publish(senders: Sequence[Sender], each: int) -> None:
    for first in range(0, each, IN_A_ROW):
        for sender in senders:
            sender.send_many(PAYLOAD, min(IN_A_ROW, each - first))
    for sender in senders:
        sender.wait()


def _consume(takers: Sequence[Taker], each: int) -> None:
    """Receive and acknowledge everything. Raises `TimeoutError` if it doesn't come."""
    deadline = time.monotonic() + DRAINED_WITHIN_S
    for taker in takers:
        left = each
        while left:
            left -= taker.take(left)
            if time.monotonic() > deadline:
                raise TimeoutError(f"{left} messages of a topic are missing")
