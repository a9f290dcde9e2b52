"""A cluster on Ray whose journals are in an object store: SIGKILLs of its hosts."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from functools import partial

import pytest

from tests.ray.support import Publisher, RayNodes, Receiver, quiet_client
from tests.support.on_s3 import on_s3
from tests.support.s3_server import S3Server
from velaray.cluster import Cluster

pytestmark = on_s3


@pytest.fixture(scope="module")
def cluster(s3_server: S3Server, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with pytest.MonkeyPatch.context() as environment:
        # Before Ray starts: its processes have the environment of its nodes.
        for name, value in s3_server.environment.items():
            environment.setenv(name, value)
        _: RayNodes = request.getfixturevalue("nodes")
        with Cluster.start(
            s3_server.new_store(), service_port=0, admin_port=0, placement="shared"
        ) as cluster:
            yield cluster


def published(publisher: Publisher, count: int) -> bool:
    return len(publisher.acknowledged) >= count


def received(receiver: Receiver, count: int) -> bool:
    return len(receiver.numbers) >= count


@pytest.mark.parametrize("victims", [("host/0",), ("host/0", "host/1", "placement")])
def test_nothing_is_lost_or_reordered_when_hosts_die(
    cluster: Cluster, victims: tuple[str, ...]
) -> None:
    topics = [f"killed-{len(victims)}-{number}" for number in range(3)]
    client = quiet_client(cluster.service_url)
    receivers = [Receiver(client.subscribe(topic, "reader")) for topic in topics]
    publishers = [Publisher(cluster.service_url, topic) for topic in topics]
    for publisher in publishers:
        publisher.start()
    for receiver, publisher in zip(receivers, publishers, strict=True):
        receiver.receive_until(partial(published, publisher, 10))
    pids = {each["key"]: each["pid"] for each in cluster.actors()}
    before = [len(publisher.acknowledged) for publisher in publishers]
    for name in victims:
        os.kill(pids[name], signal.SIGKILL)
    for receiver, publisher, count in zip(receivers, publishers, before, strict=True):
        receiver.receive_until(partial(published, publisher, count + 20))
    for receiver, publisher in zip(receivers, publishers, strict=True):
        acknowledged = publisher.stop()
        receiver.receive_until(partial(received, receiver, len(acknowledged)))
        assert receiver.numbers == acknowledged
    client.close()
