"""How long clients wait when a node is lost: its raylet and every process on it, at once."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pulsar
import ray
from ray.cluster_utils import Cluster as RayCluster

from benchmarks.model import Result, Samples, Verdict
from benchmarks.options import Options
from benchmarks.systems.official_client import connected
from velaray.cluster import NODE_HEALTH, Cluster

TOPICS = 4
OBJECT_STORE = 80 << 20
MEASURE = "longest wait for a receipt"
SUBJECT = "official client, a third of the nodes lost"
LIMIT_S = 8.0
PATIENCE_S = 60.0


class _Sender(threading.Thread):
    """Sends one message after the other and knows the longest wait for a receipt."""

    def __init__(self, client: pulsar.Client, topic: str) -> None:
        super().__init__()
        self._producer = client.create_producer(topic, send_timeout_millis=0)
        self.stopping = threading.Event()
        self.receipts = 0
        self.longest = 0.0

    def run(self) -> None:
        while not self.stopping.is_set():
            began = time.perf_counter()
            self._producer.send(b"x")
            self.longest = max(self.longest, time.perf_counter() - began)
            self.receipts += 1


def _wait_until(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    pause = threading.Event()
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError("the cluster doesn't serve again")
        pause.wait(0.05)
    return found


def _lose_a_node(nodes: RayCluster, cluster: Cluster) -> None:
    """SIGKILL the processes of a node that serves a partition, this process's node excepted."""
    here = ray.get_runtime_context().get_node_id()

    def victims() -> list[dict[str, Any]]:
        return [
            each
            for each in cluster.actors()
            if each["node"] != here and each["key"].startswith("partition")
        ]

    lost = _wait_until(victims)[0]["node"]
    (node,) = [each for each in nodes.worker_nodes if each.node_id == lost]
    pids = [each["pid"] for each in cluster.actors() if each["node"] == lost]
    for pid in [node.all_processes["raylet"][0].process.pid, *pids]:
        os.kill(pid, signal.SIGKILL)
    nodes.remove_node(node, allow_graceful=False)


def _one_loss(data: Path) -> float:
    head = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": OBJECT_STORE}
    nodes = RayCluster(initialize_head=True, head_node_args=head)
    for _ in range(2):
        nodes.add_node(num_cpus=1, object_store_memory=OBJECT_STORE)
    ray.init(address=nodes.address, log_to_driver=False)
    try:
        with (
            Cluster.start(data, service_port=0, admin_port=0) as cluster,
            connected(cluster.service_url) as client,
        ):
            senders = [_Sender(client, f"node-loss-{number}") for number in range(TOPICS)]
            for sender in senders:
                sender.start()
            _wait_until(lambda: all(sender.receipts > 10 for sender in senders))
            for sender in senders:
                sender.longest = 0.0
            _lose_a_node(nodes, cluster)
            for sender in senders:
                before = sender.receipts
                _wait_until(lambda sender=sender, before=before: sender.receipts > before + 20)
            for sender in senders:
                sender.stopping.set()
                sender.join()
            return max(sender.longest for sender in senders)
    finally:
        ray.shutdown()
        nodes.shutdown()


def run(options: Options) -> Result:
    """Every round starts three raylets and loses one of them while four topics are written."""
    os.environ.update(NODE_HEALTH)
    samples = Samples()
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory(prefix="velaray-node-loss-") as folder:
            samples.add("", SUBJECT, MEASURE, "s", _one_loss(Path(folder)))
    result = Result(
        name="node loss",
        settings={
            "Ray": ", ".join(f"{name}={value}" for name, value in NODE_HEALTH.items()),
            "nodes": "3 raylets on this machine; the lost one's raylet and actors get SIGKILL",
        },
        baseline="",
        rows=samples.rows(),
    )
    longest = next(row for row in result.rows if row.measure == MEASURE)
    result.verdicts = [
        Verdict("seconds without service after a node loss", longest.median, LIMIT_S)
    ]
    return result
