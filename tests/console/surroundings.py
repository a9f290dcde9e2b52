"""What the scene lacks: another cluster, ended transactions, hosts, and settings of a start.

A cluster in this process has no hosts: those here are simulated.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from tests.console.scene import scene
from tests.console.test_cluster import Control
from tests.support.local_cluster import LocalCluster
from tests.support.neighbours import ask, introduce
from tests.support.waiting import wait_until
from velaray import Client
from velaray.client.admin import Admin
from velaray.settings_sources import described, resolve
from velaray.topology.host_control import HostStatus

PRICES = "persistent://shop/offers/prices"
BOTH = ("standalone", "west")
OPTIONS = {"data": "/var/lib/velaray", "cluster_number": 1, "undelete_s": 3600}
ENVIRONMENT = {"VELARAY_HOSTS": "3", "VELARAY_NAME": "standalone"}


class Hosts(Control):
    """Three hosts, with the actors of the cluster in turns; the last one is drained."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster

    async def hosts(self) -> list[HostStatus]:
        actors = sorted(str(key) for key in self._cluster.actor_system.actors)
        return [
            HostStatus(
                name=f"host/{number}",
                pid=4711 + number,
                node=f"{number + 10:02x}" * 14,
                actors=() if number == 2 else tuple(actors[number::2]),
                memory=(95 + 4 * number) << 20,
                cpu_s=71.3 - 20 * number,
                lag_s=0.004,
                version="0.2.0",
                drained=number == 2,
            )
            for number in range(3)
        ]

    async def silent(self) -> list[str]:
        return []


@contextmanager
def surrounded(data: Path) -> Iterator[LocalCluster]:
    """The scene with a topic that is replicated, ended transactions, hosts and settings."""
    found = resolve(OPTIONS, ENVIRONMENT)
    given = described(found.settings, found.sources)
    with (
        scene(data / "here", cluster_number=1, given=given) as cluster,
        LocalCluster(data / "west", name="west", cluster_number=2) as west,
        Client(cluster.service_url) as client,
    ):
        introduce(cluster, west)
        introduce(west, cluster)
        admin = Admin(cluster.admin_url)
        for each in (cluster, west):
            ask(each, "create_tenant", tenant="shop", allowed_clusters=BOTH)
            ask(each, "create_namespace", namespace="shop/offers")
        admin.topics.create(PRICES)
        ask(
            cluster, "set_policy", topic=PRICES, name="replication", value=json.dumps(BOTH).encode()
        )
        with closing(client.create_producer(PRICES)) as producer:
            for number in range(20):
                producer.send(b"%d" % number)
            for number in range(4):
                transaction = client.transaction()
                producer.send(b"%d" % number, txn=transaction)
                transaction.commit() if number else transaction.abort()
        wait_until(lambda: admin.transactions()["total"] == 1)
        wait_until(lambda: [each["backlog"] for each in admin.clusters.replication()] == [0])
        cluster.actor_system.host_control = Hosts(cluster)
        yield cluster
