"""A copy of the data directory of a stopped cluster is a backup (docs/operations.md)."""

from __future__ import annotations

import shutil
from pathlib import Path

import velaray
from velaray.local import LocalCluster


def receive(cluster: LocalCluster, count: int) -> list[bytes]:
    """Receive and acknowledge messages; fails if there are more."""
    found = []
    with velaray.Client(cluster.service_url) as client:
        consumer = client.subscribe("t", "s")
        for _ in range(count):
            message = consumer.receive(30_000)
            consumer.acknowledge(message, receipt=True)
            found.append(message.data())
    return found


def publish(cluster: LocalCluster, *messages: bytes) -> None:
    with velaray.Client(cluster.service_url) as client, client.create_producer("t") as producer:
        for message in messages:
            producer.send(message)


def test_a_restored_copy_is_as_the_cluster_was(tmp_path: Path) -> None:
    data, backup = tmp_path / "data", tmp_path / "backup"
    with LocalCluster.start(data) as cluster:
        with velaray.Client(cluster.service_url) as client:
            client.subscribe("t", "s").close()
        publish(cluster, b"one", b"two")
        assert receive(cluster, 1) == [b"one"]
    shutil.copytree(data, backup)
    with LocalCluster.start(data) as cluster:
        assert receive(cluster, 1) == [b"two"]
        publish(cluster, b"later")
    with LocalCluster.start(backup) as restored:
        publish(restored, b"three")
        assert receive(restored, 2) == [b"two", b"three"]
