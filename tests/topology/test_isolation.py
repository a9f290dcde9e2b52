"""The policy ``isolation``: refused where no topic can have a process of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import velaray
from tests.support.local_cluster import LocalCluster
from tests.support.waiting import wait_until
from velaray.client.admin import Admin, Invalid, PreconditionFailed
from velaray.events.ids import ActorKind

TOPIC = "persistent://public/default/t"


def test_it_is_refused_where_all_actors_share_hosts(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, hosts=1) as cluster:
        admin = Admin(cluster.admin_url)
        admin.topics.create(TOPIC)
        with pytest.raises(PreconditionFailed, match="start it with --placement auto or dedicated"):
            admin.policies.set_on(TOPIC, "isolation", "dedicated")
        admin.policies.set_on(TOPIC, "isolation", "none")  # it has no effect
        with pytest.raises(Invalid, match="none, dedicated"):
            admin.policies.set_on(TOPIC, "isolation", "alone")


def test_a_running_partition_learns_it(tmp_path: Path) -> None:
    with LocalCluster(tmp_path) as cluster, velaray.Client(cluster.service_url) as client:
        client.create_producer(TOPIC).send(b"x")
        (key,) = [key for key in cluster.keys(ActorKind.PARTITION) if key.topic == "t"]
        partition: Any = cluster.actor_system.actors[key]
        assert not partition.isolated()
        Admin(cluster.admin_url).policies.set("public/default", "isolation", "dedicated")
        wait_until(partition.isolated, 20.0)
