"""SIGKILL of every actor that takes part in deleting ledgers, while hundreds come and go.

At the end no ledger is orphaned, none is missing and no deletion was given up. Every message that
the service acknowledged, and that no consumer acknowledged, is there.

Bytes on disk are those of all files ``*.ledger`` in the data directory, of any journal. Bytes
retained are those of the ledgers that the audit finds listed. Manifests, marks and indexes aren't
counted: with ledgers of some KiB they would be a third of it. No mark or index may be left behind.
"""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import pulsar
import pytest

from tests.ray.support import RayNodes, actors, quiet_client, wait_until
from velaray import cluster as starting
from velaray.client.admin import Admin, AdminError, Conflict, NotFound, Unavailable
from velaray.cluster import Cluster
from velaray.topology.config import ClusterConfig

ROOT = Path(__file__).parents[2]
KINDS = ("deleter", "partition", "subscription", "catalog")
TOPICS = 4
LAST = 7
PASSING_MESSAGES = 45
SETTLED_WITHIN_S = 240.0
TRIES = 100


@pytest.fixture(scope="module")
def nodes() -> Iterator[RayNodes]:
    """Two raylets whose processes make small ledgers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
        with RayNodes(workers=1, setup="tests.ray.small_ledgers.shrink") as nodes:
            yield nodes


@pytest.fixture
def cluster(nodes: RayNodes, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A cluster with two garbage collectors; owners check their ledgers every second."""
    hurried = partial(ClusterConfig, maintenance_s=1.0)
    monkeypatch.setattr(starting, "ClusterConfig", hurried)
    settings = {"deletion_retry_s": 5.0, "deleters": 2}
    with Cluster.start(
        data_dir, service_port=0, admin_port=0, placement="dedicated", **settings
    ) as cluster:
        yield cluster


class Ledgers(threading.Thread):
    """Notes which ledgers were ever stored, as far as it sees them."""

    def __init__(self, data: Path) -> None:
        super().__init__()
        self._data = data / "journals"
        self.seen: set[str] = set()
        self.over = threading.Event()

    def run(self) -> None:
        """Look until told to stop."""
        while not self.over.wait(0.5):
            self.look()

    def look(self) -> dict[str, int]:
        """The files of ledgers that are stored now, and their bytes."""
        stored = {}
        for folder, _, files in os.walk(self._data):
            for name in files:
                if name.endswith(".ledger"):
                    path = f"{folder}/{name}"
                    with suppress(FileNotFoundError):
                        stored[path] = os.stat(path).st_size
        self.seen.update(stored)
        return stored

    def strays(self) -> list[str]:
        """Marks and indexes without a ledger."""
        return [
            str(path)
            for kind in ("mark", "index")
            for path in self._data.rglob(f"*.{kind}")
            if not path.with_suffix(".ledger").exists()
        ]


class Traffic(threading.Thread):
    """Publishes numbers to a topic and consumes them, until told to stop; then drains it."""

    def __init__(self, service_url: str, topic: str, over: threading.Event) -> None:
        super().__init__()
        self._client = quiet_client(service_url)
        self._topic = topic
        self._over = over
        self._consumer = self._client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
        self._producer = self._client.create_producer(
            topic, batching_enabled=False, send_timeout_millis=0
        )
        self._sent = 0
        self.confirmed: set[int] = set()
        self.received: set[int] = set()
        self.error: Exception | None = None

    def run(self) -> None:
        """Publish some, consume what comes."""
        try:
            while not self._over.is_set():
                self.publish(10)
                self._receive(300)
            for _ in range(TRIES):
                if self.confirmed <= self.received and len(self.confirmed) == self._sent:
                    return
                self._receive(1_000)
        except pulsar.PulsarException as error:
            self.error = error

    def publish(self, count: int) -> None:
        """Publish the next numbers; ``confirmed`` holds those with a receipt."""
        for number in range(self._sent, self._sent + count):
            self._producer.send_async(b"%d" % number, partial(self._confirm, number))
        self._sent += count

    def _confirm(self, number: int, result: Any, message_id: Any) -> None:
        if result == pulsar.Result.Ok:
            self.confirmed.add(number)

    def _receive(self, within_ms: int) -> None:
        with suppress(pulsar.Timeout):
            while True:
                message = self._consumer.receive(within_ms)
                self.received.add(int(message.data()))
                self._consumer.acknowledge(message)

    def leave(self, count: int) -> list[int]:
        """Publish the last ones, which aren't consumed; returns them with their receipts."""
        self._consumer.close()
        first = self._sent
        self.publish(count)
        self._producer.flush()
        wait_until(lambda: len(self.confirmed) == self._sent, "the receipts", SETTLED_WITHIN_S)
        return list(range(first, self._sent))

    def what_is_left(self) -> list[int]:
        """What the service still has for the subscription."""
        self._consumer = self._client.subscribe(self._topic, "s", pulsar.ConsumerType.Shared)
        self.received.clear()
        self._receive(3_000)
        return sorted(self.received)

    def close(self) -> None:
        """Close the client."""
        self._client.close()


@pytest.fixture
def over() -> threading.Event:
    """Set when all are to stop."""
    return threading.Event()


@pytest.fixture
def traffic(cluster: Cluster, over: threading.Event) -> Iterator[list[Traffic]]:
    """Some topics that stay, each with its producer and its consumer."""
    topics = [f"persistent://public/default/lasting-{number}" for number in range(TOPICS)]
    made = [Traffic(cluster.service_url, topic, over) for topic in topics]
    yield made
    for each in made:
        each.close()


def persist(call: Any, *accepted: type[AdminError]) -> None:
    """Call until it succeeds, or gets an answer that a repeated call may get."""
    pause = threading.Event()
    for _ in range(TRIES):
        try:
            call()
        except accepted:
            return
        except Unavailable:
            pause.wait(0.5)
        else:
            return
    raise AssertionError(f"{call}: never")


class Passing(threading.Thread):
    """Creates topics and subscriptions, uses them, and deletes them, one after the other."""

    def __init__(self, cluster: Cluster, over: threading.Event) -> None:
        super().__init__()
        self._admin = Admin(cluster.admin_url)
        self._url = cluster.service_url
        self._over = over
        self.done = 0
        self.error: Exception | None = None

    def run(self) -> None:
        """Until told to stop; what was begun is finished."""
        try:
            while not self._over.is_set():
                self._one(f"persistent://public/default/passing-{self.done}")
                self.done += 1
        except (pulsar.PulsarException, AdminError, AssertionError) as error:
            self.error = error

    def _one(self, topic: str) -> None:
        client = quiet_client(self._url)
        consumer = client.subscribe(topic, "first", pulsar.ConsumerType.Shared)
        producer = client.create_producer(topic, send_timeout_millis=0, batching_enabled=False)
        for number in range(PASSING_MESSAGES):
            producer.send_async(b"%d" % number, lambda *_: None)
        for _ in range(PASSING_MESSAGES):
            with suppress(pulsar.Timeout):
                consumer.acknowledge(consumer.receive(2_000))
        persist(lambda: self._admin.create_subscription(topic, "second"), Conflict)
        persist(lambda: self._admin.delete_subscription(topic, "first", force=True), NotFound)
        client.close()
        persist(lambda: self._admin.delete_topic(topic, force=True), NotFound)


def strike(cluster: Cluster, times: int) -> dict[str, int]:
    """SIGKILL running actors, of one kind after the other; returns how many of each."""
    chance, pause = random.Random(23), threading.Event()
    struck = dict.fromkeys(KINDS, 0)
    for kind in cycle(KINDS):
        if sum(struck.values()) == times:
            return struck
        pause.wait(chance.uniform(0.3, 2.0))
        if found := actors(cluster, kind):
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(chance.choice(found)["pid"], signal.SIGKILL)
                struck[kind] += 1
    raise AssertionError("unreachable")


def settled(admin: Admin, watch: Ledgers) -> dict[str, Any] | None:
    """The ledger audit after all deletions, and after those of deleted topics, are done."""
    if any("/passing-" in path for path in watch.look()):
        return None
    try:
        found = admin.ledger_audit()["totals"]
    except Unavailable:
        return None
    busy = sum(each["ledgers"] for state, each in found.items() if state != "listed")
    return None if busy else found


MANY = pytest.param(50, 1_000, marks=[pytest.mark.long, pytest.mark.timeout(1_200)])


@pytest.mark.parametrize(("kills", "ledgers"), [MANY])
def test_no_ledger_and_no_message_is_lost(
    cluster: Cluster, traffic: list[Traffic], over: threading.Event, kills: int, ledgers: int
) -> None:
    admin, watch = Admin(cluster.admin_url), Ledgers(Path(cluster.config.data_dir))
    passing = Passing(cluster, over)
    threads = [watch, passing, *traffic]
    for thread in threads:
        thread.start()
    try:
        struck = strike(cluster, kills)
        wait_until(
            lambda: len(watch.seen) - len(watch.look()) >= ledgers and passing.done,
            f"{ledgers} ledgers are deleted",
            SETTLED_WITHIN_S,
        )
    finally:
        over.set()
        watch.over.set()
        for thread in threads:
            thread.join(SETTLED_WITHIN_S)
    assert not any(thread.is_alive() for thread in threads)
    assert [each.error for each in (passing, *traffic)] == [None] * (TOPICS + 1)
    assert all(each.confirmed <= each.received for each in traffic), "messages are lost"
    last = [each.leave(LAST) for each in traffic]
    found = wait_until(lambda: settled(admin, watch), "all has settled", SETTLED_WITHIN_S)
    stored, retained = sum(watch.look().values()), found["listed"]["bytes"]
    created, deleted = len(watch.seen), len(watch.seen) - len(watch.look())
    print(
        f"{struck} killed, {passing.done} topics passed, {created} ledgers created and {deleted} "
        f"deleted, {sum(len(each.confirmed) for each in traffic)} messages; in the end "
        f"{found['listed']['ledgers']} ledgers listed with {retained} bytes, {stored} bytes stored"
    )
    assert sum(struck.values()) == kills and deleted >= ledgers
    assert admin.dead_ledgers() == []
    assert abs(stored - retained) <= 0.05 * retained
    assert watch.strays() == []
    # Acknowledgements without a receipt may be lost: the last consumed messages may be redelivered.
    assert [each.what_is_left()[-LAST:] for each in traffic] == last
