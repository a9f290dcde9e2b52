"""Every placement: which Ray actors there are, and that each is rebuilt from its own journal."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.ray.support import RayNodes, wait_until
from velaray import Client, MessageId
from velaray import cluster as cluster_module
from velaray.client.admin import Admin
from velaray.client.admin.errors import AdminError
from velaray.cluster import PROXY, Cluster
from velaray.journal.files import FileStore
from velaray.schema import AvroSchema, Integer, Record

NAMESPACE = "acme/shown"
TOPIC = f"persistent://{NAMESPACE}/t"
AWAY = "away"
KINDS = ("catalog", "coordinator", "partition", "schema-registry", "subscription")
RAY_ACTORS = {
    "shared": {"host/0", "host/1", "host/background", "placement", PROXY},
    "auto": {"host/0", "host/1", "host/background", "host/own-0", "host/own-1", "placement", PROXY},
}


class Reading(Record):  # type: ignore[misc]
    value = Integer()


def use(cluster: Cluster) -> None:
    """Give every kind of actor something to keep."""
    admin = Admin(cluster.admin_url)
    admin.create_cluster(AWAY, service_url="pulsar://127.0.0.1:1", admin_url="http://127.0.0.1:1")
    admin.create_tenant("acme", allowed_clusters=["shown", AWAY])
    admin.create_namespace(NAMESPACE)
    admin.set_policy(NAMESPACE, "replication", ["shown", AWAY])
    with Client(cluster.service_url) as client:
        consumer = client.subscribe(TOPIC, "s", schema=AvroSchema(Reading))
        producer = client.create_producer(TOPIC, schema=AvroSchema(Reading), batching_enabled=False)
        for number in range(4):
            producer.send(Reading(value=number))
        with client.transaction() as committed:
            producer.send(Reading(value=4), txn=committed)
            consumer.acknowledge(consumer.receive(30_000), txn=committed)
        consumer.acknowledge(consumer.receive(30_000), receipt=True)


def kept(cluster: Cluster) -> dict[str, Any]:
    """What the actors keep."""
    admin = Admin(cluster.admin_url)
    stats = admin.stats(TOPIC)
    coordinators = admin.coordinators().items()
    return {
        "entries": stats["numberOfEntries"],
        "to acknowledge": stats["subscriptions"]["s"]["msgBacklog"],
        "to replicate": stats["replication"][AWAY]["replicationBacklog"],
        "transactions": {number: each["leastSigBits"] for number, each in coordinators},
        "schemas": admin.schemas(TOPIC),
        "policies": admin.policies.get_all(NAMESPACE),
    }


def processes(cluster: Cluster) -> dict[str, int]:
    """The process of each actor."""
    return {
        each["key"]: each["pid"]
        for each in cluster.actors()
        if "actors" not in each and each["key"] not in (PROXY, "placement")
    }


@pytest.mark.parametrize(
    "placement", ["shared", "auto", pytest.param("dedicated", marks=pytest.mark.long)]
)
@pytest.mark.timeout(300)
def test_each_actor_is_rebuilt_from_its_own_journal(
    nodes: RayNodes, data_dir: Path, placement: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    settings: dict[str, Any] = {"service_port": 0, "admin_port": 0, "placement": placement}
    with Cluster.start(data_dir, name="shown", cluster_number=1, **settings) as cluster:
        use(cluster)
        wait_until(lambda: kept(cluster)["to acknowledge"] == 3, "two are acknowledged")
        before = kept(cluster)
        assert (before["entries"], before["to replicate"]) == (5, 5)
        assert max(before["transactions"].values()) == 1
        running = processes(cluster)
        for kind in KINDS:
            assert any(key.split("/")[0] == kind for key in running), f"no {kind} in {running}"
        named = set(cluster_module._names(cluster.config.ray_namespace))
        if placement == "dedicated":
            assert set(running) <= named
            assert len(set(running.values())) == len(running)
        else:
            assert named <= RAY_ACTORS[placement]
        journals = set(asyncio.run(FileStore(str(data_dir)).list_journals()))
        keeping = {key for key in running if not key.startswith("deleter")}
        assert keeping <= journals

        for pid in set(running.values()):
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not set(processes(cluster).values()) & set(running.values()), "all gone")
        wait_until(lambda: rebuilt(cluster, before), "the actors have the same state")
        with Client(cluster.service_url) as client:
            reader = client.create_reader(TOPIC, MessageId.earliest, schema=AvroSchema(Reading))
            assert [reader.read_next(30_000).value().value for _ in range(5)] == [0, 1, 2, 3, 4]
            consumer = client.subscribe(TOPIC, "s", schema=AvroSchema(Reading))
            assert [consumer.receive(30_000).value().value for _ in range(3)] == [2, 3, 4]


def rebuilt(cluster: Cluster, before: dict[str, Any]) -> bool:
    """Whether everything that was killed answers, and has the same state."""
    try:
        return kept(cluster) == before
    except AdminError:
        return False
