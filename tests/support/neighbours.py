"""Two clusters in this process that know each other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.by_name import call_by_name
from tests.support.local_cluster import LocalCluster
from velaray.events.ids import ActorKey, TopicName


def ask(running: LocalCluster, method: str, **args: Any) -> Any:
    """Call the catalog of a cluster."""
    return running.run(call_by_name(running.actor_system, ActorKey.catalog(), method, args))


def introduce(here: LocalCluster, there: LocalCluster, token: str = "", **more: Any) -> None:
    """Have one cluster know another."""
    name = there.config.name
    ask(here, "register_cluster", **{"cluster": name, "token": token, **there.urls, **more})


@contextmanager
def neighbours(
    path: Path, hosts: int = 0, **of_b: Any
) -> Iterator[tuple[LocalCluster, LocalCluster]]:
    """Clusters a and b with so many shared hosts each, the second one with settings of its own."""
    with (
        LocalCluster(path / "a", name="a", cluster_number=1, hosts=hosts) as a,
        LocalCluster(path / "b", hosts=hosts, **{"name": "b", "cluster_number": 2} | of_b) as b,
    ):
        introduce(a, b)
        introduce(b, a)
        yield a, b
        assert a.actor_system.failures == []
        assert b.actor_system.failures == []


def settle(tenant: str, home: str, *clusters: LocalCluster) -> None:
    """Make one of the clusters a tenant's home in all of them."""
    for cluster in clusters:
        ask(cluster, "set_home", tenant=tenant, cluster=home)


def create(namespace: str, *clusters: LocalCluster) -> None:
    """Have a namespace, and its tenant, in each of the clusters."""
    tenant = namespace.partition("/")[0]
    for cluster in clusters:
        name = cluster.config.name
        ask(cluster, "create_tenant", tenant=tenant, allowed_clusters=[name])
        ask(cluster, "create_namespace", namespace=namespace)


def stored(cluster: LocalCluster, topic: str) -> int:
    """How many entries were ever stored in a plain topic of the cluster; 0 if it has none such."""
    name = TopicName.parse(topic)
    for found in ask(cluster, "topics", namespace=name.namespace_name):
        if found["topic"] == str(name):
            key = ActorKey.of_partition(name, found["incarnation"])
            entries: int = cluster.run(call_by_name(cluster.actor_system, key, "stats"))["entries"]
            return entries
    return 0
