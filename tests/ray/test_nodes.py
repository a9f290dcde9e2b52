"""Loss of a node, and life of a data directory across clusters."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import ray

from tests.ray.support import (
    GENEROUS_S,
    Publisher,
    RayNodes,
    Receiver,
    actors,
    quiet_client,
    wait_until,
)
from velaray.cluster import Cluster
from velaray.journal.files import FileStore
from velaray.starting import ClusterError
from velaray.topology.ownership import take_ownership

WORKERS = 2


def test_losing_a_node_interrupts_service_and_loses_nothing(
    nodes: RayNodes, data_dir: Path
) -> None:
    with Cluster.start(data_dir, service_port=0, admin_port=0) as cluster:
        client = quiet_client(cluster.service_url)
        topics = [f"node-{number}" for number in range(4)]
        consumers = [client.subscribe(topic, "reader") for topic in topics]
        publishers = [Publisher(cluster.service_url, topic) for topic in topics]
        for publisher in publishers:
            publisher.start()
        receivers = [Receiver(consumer) for consumer in consumers]
        for receiver in receivers:
            receiver.receive_until(lambda receiver=receiver: len(receiver.first_seen) >= 10)  # type: ignore[misc]
        here = ray.get_runtime_context().get_node_id()
        running = cluster.actors()
        assert len({each["node"] for each in running}) > 1, "actors spread over the nodes"
        victim = next(
            node
            for node in nodes.nodes
            if node.node_id != here
            and any(
                each["node"] == node.node_id
                and each["key"].startswith(("partition", "subscription"))
                for each in running
            )
        )
        gone = [each for each in running if each["node"] == victim.node_id]
        before = [len(publisher.acknowledged) for publisher in publishers]
        lost_at = time.monotonic()
        nodes.lose(victim, [each["pid"] for each in gone])
        for publisher, count in zip(publishers, before, strict=True):
            wait_until(
                lambda publisher=publisher, count=count: len(publisher.acknowledged) > count + 20,  # type: ignore[misc]
                "publishing goes on",
            )
        serving_again = time.monotonic() - lost_at
        print(f"serving again {serving_again:.2f} s after the loss of {len(gone)} actors")
        for publisher, receiver in zip(publishers, receivers, strict=True):
            acknowledged = publisher.stop()
            count = len(acknowledged)
            receiver.receive_until(
                lambda receiver=receiver, count=count: len(receiver.first_seen) >= count  # type: ignore[misc]
            )
            assert receiver.numbers == acknowledged
        client.close()
    nodes.add()


def test_a_restarted_cluster_continues_with_its_data(nodes: RayNodes, data_dir: Path) -> None:
    with Cluster.start(data_dir, service_port=0, admin_port=0) as cluster:
        client = quiet_client(cluster.service_url)
        consumer = client.subscribe("restart", "reader")
        producer = client.create_producer("restart", batching_enabled=False)
        for number in range(20):
            producer.send(str(number).encode())
        for _ in range(7):
            consumer.acknowledge(consumer.receive(timeout_millis=20_000))
        client.close()
    with Cluster.start(data_dir, service_port=0, admin_port=0) as cluster:
        client = quiet_client(cluster.service_url)
        receiver = Receiver(client.subscribe("restart", "reader"))
        receiver.receive_until(lambda: len(receiver.first_seen) >= 13)
        assert receiver.numbers == list(range(7, 20))
        client.close()


def test_a_second_cluster_on_a_directory_in_use_is_refused(nodes: RayNodes, data_dir: Path) -> None:
    with (
        Cluster.start(data_dir, service_port=0, admin_port=0, name="first"),
        pytest.raises(ClusterError, match="another cluster is running"),
    ):
        Cluster.start(data_dir, service_port=0, admin_port=0, name="second")


@pytest.mark.long
def test_a_replaced_cluster_stops_and_loses_nothing(nodes: RayNodes, data_dir: Path) -> None:
    """As if the lock were not seen: two machines that share the directory over a network, each
    with a Ray of its own."""
    first = Cluster.start(data_dir, service_port=0, admin_port=0)
    publisher = Publisher(first.service_url, "contested", send_timeout_ms=5000)
    publisher.start()
    wait_until(lambda: len(publisher.acknowledged) > 20, "the first cluster serves")
    (data_dir / "owner.lock").unlink()
    second, url = _start_apart(data_dir)
    client = quiet_client(url)
    receiver = Receiver(client.subscribe("contested", "reader", initial_position=_earliest()))
    wait_until(lambda: not actors(first, "front-door"), "the first front door closes")
    wait_until(lambda: not actors(first, "partition"), "the first partition stops")
    acknowledged = list(publisher.acknowledged)
    receiver.receive_until(lambda: len(receiver.first_seen) >= len(acknowledged))
    assert receiver.numbers[: len(acknowledged)] == acknowledged
    client.close()
    publisher.join()
    first.stop()
    second.terminate()
    second.wait()


def _earliest() -> object:
    import pulsar

    return pulsar.InitialPosition.Earliest


def test_an_idle_actor_stops_and_returns_with_its_state(nodes: RayNodes, data_dir: Path) -> None:
    with Cluster.start(
        data_dir, service_port=0, admin_port=0, name="idle", passivate_after_s=1.0
    ) as cluster:
        client = quiet_client(cluster.service_url)
        client.subscribe("idle", "reader")
        client.create_producer("idle").send(b"0")
        client.close()
        wait_until(lambda: not actors(cluster, "partition"), "the partition leaves")
        wait_until(lambda: not actors(cluster, "subscription"), "the subscription leaves")
        client = quiet_client(cluster.service_url)
        receiver = Receiver(client.subscribe("idle", "reader"))
        receiver.receive_until(lambda: receiver.numbers == [0])
        client.close()


def test_an_actor_refuses_a_directory_without_its_data(nodes: RayNodes, data_dir: Path) -> None:
    store = FileStore(str(data_dir))
    assert asyncio.run(take_ownership(store, "standalone")) == 1
    assert asyncio.run(take_ownership(store, "standalone")) == 2


_STARTING = """
import sys, json, threading
from pathlib import Path
from velaray.cluster import Cluster
c = Cluster.start(Path(sys.argv[1]), service_port=0, admin_port=0)
print(json.dumps(c.service_url), flush=True)
threading.Event().wait()
"""


def _start_apart(data_dir: Path) -> tuple[subprocess.Popen[str], str]:
    """A cluster in a process of its own, with a Ray of its own, and where it serves."""
    process = subprocess.Popen(
        [sys.executable, "-c", _STARTING, str(data_dir)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, json.loads(process.stdout.readline())


@pytest.mark.long
def test_a_cluster_survives_a_kill_of_the_process_that_started_it(data_dir: Path) -> None:
    """Ray and all goes down with its driver; the directory serves the next start."""
    process, url = _start_apart(data_dir)
    client = quiet_client(url)
    producer = client.create_producer("whole", batching_enabled=False)
    client.subscribe("whole", "reader")
    acknowledged = []
    for number in range(200):
        producer.send(str(number).encode())
        acknowledged.append(number)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    client.close()
    process, url = _start_apart(data_dir)
    client = quiet_client(url)
    receiver = Receiver(client.subscribe("whole", "reader"))
    receiver.receive_until(lambda: len(receiver.first_seen) >= len(acknowledged), GENEROUS_S)
    assert receiver.numbers == acknowledged
    client.close()
    process.terminate()
    process.wait(timeout=GENEROUS_S)
