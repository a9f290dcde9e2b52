"""A cluster whose actors share hosts, on real Ray: its processes, and SIGKILLs of hosts."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import ray
from ray.exceptions import RayTaskError

import velaray
from tests.ray.support import Publisher, RayNodes, Receiver, quiet_client, wait_until
from velaray.cluster import Cluster

TOPICS = 8


@pytest.fixture(scope="module")
def cluster(nodes: RayNodes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    data = tmp_path_factory.mktemp("data")
    with Cluster.start(data, service_port=0, admin_port=0, placement="shared") as cluster:
        yield cluster


def processes(cluster: Cluster) -> dict[str, dict[str, Any]]:
    """The cluster's Ray actors, by name."""
    return {each["key"]: each for each in cluster.actors() if "actors" in each}


def test_actors_run_in_the_hosts_and_nowhere_else(cluster: Cluster) -> None:
    client = quiet_client(cluster.service_url)
    producers = [client.create_producer(f"placed-{number}") for number in range(TOPICS)]
    for producer in producers:
        producer.send(b"placed")
    hosts = processes(cluster)
    assert set(hosts) <= {"host/0", "host/1", "host/background"}
    running = [key for host in hosts.values() for key in host["actors"]]
    assert len(running) == len(set(running))
    assert sum(key.startswith("partition/") for key in running) >= TOPICS
    shares = [len(hosts[name]["actors"]) for name in ("host/0", "host/1")]
    assert min(shares) >= TOPICS // 4
    client.close()


def test_a_handle_calls_a_partition_of_a_host(cluster: Cluster) -> None:
    client = quiet_client(cluster.service_url)
    client.create_producer("handled").send(b"one")
    client.close()
    stats = ray.get(velaray.handle("handled").call.remote("stats"))
    assert stats["entries"] == 1
    with pytest.raises(RayTaskError, match="has no method 'fly'"):
        ray.get(velaray.handle("handled").call.remote("fly"))


@pytest.mark.parametrize("victims", [("host/0",), ("host/1",), ("host/0", "host/1", "placement")])
def test_nothing_is_lost_or_reordered_when_hosts_die(
    cluster: Cluster, victims: tuple[str, ...]
) -> None:
    topics = [f"killed-{'-'.join(victims).replace('/', '')}-{number}" for number in range(3)]
    client = quiet_client(cluster.service_url)
    receivers = [Receiver(client.subscribe(topic, "reader")) for topic in topics]
    publishers = [Publisher(cluster.service_url, topic) for topic in topics]
    for publisher in publishers:
        publisher.start()
    for receiver in receivers:
        receive(receiver, 20)
    pids = {each["key"]: each["pid"] for each in cluster.actors()}
    before = [len(publisher.acknowledged) for publisher in publishers]
    for name in victims:
        os.kill(pids[name], signal.SIGKILL)
    for receiver, publisher, count in zip(receivers, publishers, before, strict=True):
        receiver.receive_until(partial(published, publisher, count + 50))
    for receiver, publisher in zip(receivers, publishers, strict=True):
        acknowledged = publisher.stop()
        receive(receiver, len(acknowledged))
        assert receiver.numbers == acknowledged
    client.close()


def receive(receiver: Receiver, count: int) -> None:
    """Receive until there are ``count`` distinct messages."""
    receiver.receive_until(lambda: len(receiver.first_seen) >= count)


def published(publisher: Publisher, count: int) -> bool:
    """Whether ``count`` messages have a receipt."""
    return len(publisher.acknowledged) >= count


def test_a_restarted_host_activates_what_was_placed_in_it(cluster: Cluster) -> None:
    client = quiet_client(cluster.service_url)
    client.create_producer("placed-again").send(b"before")
    client.close()
    before = processes(cluster)["host/0"]
    os.kill(before["pid"], signal.SIGKILL)

    def is_back() -> bool:
        found = processes(cluster).get("host/0")
        return (
            found is not None
            and found["pid"] != before["pid"]
            and set(before["actors"]) <= set(found["actors"])
        )

    wait_until(is_back, "host/0 runs its actors again")
