"""Ray clusters of several raylets on one machine, actors to kill, conditions to wait for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pulsar
import ray
from ray.cluster_utils import Cluster as RayCluster

from tests.support.waiting import looks
from velaray.cluster import NODE_HEALTH, Cluster

ROOT = Path(__file__).resolve().parents[2]
OBJECT_STORE = 80 << 20
GENEROUS_S = 60.0
PUBLISH_EVERY_S = 0.002
"""The pause of a publisher: it leaves the cores to the processes that start."""


class RayNodes:
    """Several raylets; node 0 is the head, which this process is connected to."""

    def __init__(self, workers: int, setup: str = "") -> None:
        """``setup``: a function, by its full name, that every process of Ray calls first."""
        os.environ.update(NODE_HEALTH)
        self._workers = workers
        self._environment = {"worker_process_setup_hook": setup} if setup else None
        self.nodes: list[Any] = []

    def __enter__(self) -> RayNodes:
        head = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": OBJECT_STORE}
        self._cluster = RayCluster(initialize_head=True, head_node_args=head)
        self.nodes = [self._cluster.head_node]
        for _ in range(self._workers):
            self.add()
        ray.init(address=self._cluster.address, log_to_driver=False, runtime_env=self._environment)
        return self

    @property
    def address(self) -> str:
        """Where drivers connect."""
        return str(self._cluster.address)

    def __exit__(self, *exc: object) -> None:
        ray.shutdown()
        self._cluster.shutdown()

    def add(self) -> None:
        """One more raylet."""
        node = self._cluster.add_node(num_cpus=1, object_store_memory=OBJECT_STORE)
        self.nodes.append(node)

    def lose(self, node: Any, pids: list[int]) -> None:
        """Kill a node as a power cut would: the raylet and every process on it at once."""
        for pid in [node.all_processes["raylet"][0].process.pid, *pids]:
            os.kill(pid, signal.SIGKILL)
        self.nodes.remove(node)
        self._cluster.remove_node(node, allow_graceful=False)


def wait_until(condition: Callable[[], Any], what: str, timeout_s: float = GENEROUS_S) -> Any:
    """The condition's first true value; fails the test naming ``what`` if it takes too long."""
    deadline = time.monotonic() + timeout_s
    for _ in looks(0.05, 0.5):  # a condition may ask every actor
        if found := condition():
            break
        assert time.monotonic() <= deadline, f"{what}: not within {timeout_s:g} s"
    return found


def run_demo(script: str, *options: str, tree: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run a demo of a tree, with that tree's code in every process."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "COLUMNS": "200"}
    return subprocess.run(
        [sys.executable, str(tree / "examples" / script), *options],
        env=environment,
        cwd=tree,  # Ray's workers look for modules in the driver's folder first
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def actors(cluster: Cluster, kind: str) -> list[dict[str, Any]]:
    """The running actors of a kind."""
    return [each for each in cluster.actors() if each["key"].split("/")[0] == kind]


def kill(cluster: Cluster, kind: str, topic: str) -> dict[str, Any]:
    """SIGKILL the running actor of a kind that serves a topic; returns what it reported."""

    def found() -> list[dict[str, Any]]:
        every = actors(cluster, kind)
        return [each for each in every if "/" not in each["key"] or f"/{topic}/" in each["key"]]

    victim = wait_until(found, f"a running {kind} of {topic}")[0]
    os.kill(victim["pid"], signal.SIGKILL)
    return dict(victim)


def quiet_client(service_url: str) -> pulsar.Client:
    """The official client without its chatter, and with time for processes that start slowly."""
    return pulsar.Client(
        service_url,
        operation_timeout_seconds=120,
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    )


class Publisher(threading.Thread):
    """Publishes numbered messages, one after the other, until stopped.

    ``acknowledged`` are those whose receipt arrived: none of them may be lost.
    """

    def __init__(
        self,
        service_url: str,
        topic: str,
        send_timeout_ms: int = 0,
        pause_s: float = PUBLISH_EVERY_S,
    ) -> None:
        super().__init__(daemon=True)
        self._service_url = service_url
        self._topic = topic
        self._send_timeout_ms = send_timeout_ms
        self._pause_s = pause_s
        self.acknowledged: list[int] = []
        self.stopping = threading.Event()
        self.error: Exception | None = None

    def run(self) -> None:
        """Publish until told to stop."""
        client = quiet_client(self._service_url)
        producer = client.create_producer(
            self._topic, producer_name="publisher", send_timeout_millis=self._send_timeout_ms
        )
        number = 0
        while not self.stopping.is_set():
            try:
                producer.send(str(number).encode())
            except pulsar.PulsarException as error:
                self.error = error
                break
            self.acknowledged.append(number)
            number += 1
            self.stopping.wait(self._pause_s)
        client.close()

    def stop(self) -> list[int]:
        """Finish; returns what was acknowledged. Fails if publishing failed."""
        self.stopping.set()
        self.join(GENEROUS_S)
        assert not self.is_alive(), "the publisher is stuck"
        assert self.error is None, f"publishing failed: {self.error}"
        return self.acknowledged


class Receiver:
    """Receives numbered messages and remembers their order by message id."""

    def __init__(self, consumer: pulsar.Consumer) -> None:
        self.consumer = consumer
        self.first_seen: dict[str, int] = {}

    def receive_until(self, done: Callable[[], bool], timeout_s: float = GENEROUS_S) -> None:
        """Receive and acknowledge until ``done``."""
        deadline = time.monotonic() + timeout_s
        while not done():
            if time.monotonic() > deadline:
                raise AssertionError(f"only {len(self.first_seen)} messages arrived")
            try:
                message = self.consumer.receive(timeout_millis=500)
            except pulsar.Timeout:
                continue
            self.first_seen.setdefault(str(message.message_id()), int(message.data()))
            self.consumer.acknowledge(message)

    @property
    def numbers(self) -> list[int]:
        """The distinct messages in the order they first came."""
        return list(self.first_seen.values())
