"""Pulling on Ray: each message of the other cluster arrives once, in order."""

from __future__ import annotations

from pathlib import Path
from urllib.request import urlopen

import pulsar
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.ray.support import Publisher, RayNodes, kill, quiet_client, wait_until
from tests.support.local_cluster import LocalCluster
from velaray.client.admin import Admin
from velaray.cluster import Cluster

TOPIC = "persistent://acme/orders/new"
PATIENCE_MS = 60_000


def pulled(cluster: Cluster) -> dict[str, float]:
    """The metrics of the inbound replicator."""
    with urlopen(f"{cluster.admin_url}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("velaray_pull_")
    }


def more_comes(admin: Admin) -> None:
    stored = admin.stats(TOPIC)["numberOfEntries"]
    wait_until(lambda: admin.stats(TOPIC)["numberOfEntries"] > stored, "more comes")


@pytest.mark.long
def test_replicated_messages_arrive_once_after_any_kill(nodes: RayNodes, data_dir: Path) -> None:
    with (
        LocalCluster(data_dir / "old", name="old", cluster_number=1) as old,
        Cluster.start(
            data_dir / "here", name="here", cluster_number=2, service_port=0, admin_port=0
        ) as here,
    ):
        there, admin = Admin(old.admin_url), Admin(here.admin_url)
        there.create_tenant("acme", allowed_clusters=["old"])
        there.create_namespace("acme/orders")
        there.create_topic(TOPIC)
        admin.create_cluster("old", service_url=old.service_url, admin_url=old.admin_url)
        admin.pull_tenant("acme", "old")
        publisher = Publisher(old.service_url, TOPIC)
        publisher.start()
        for kind in ("puller", "partition", "catalog", "puller"):
            more_comes(admin)
            kill(here, kind, "new")
        more_comes(admin)
        sent = publisher.stop()
        wait_until(lambda: [each["backlog"] for each in admin.pulls("acme")] == [0], "all came")
        wait_until(lambda: pulled(here).get("velaray_pull_backlog") == 0, "it says so")
        assert pulled(here)["velaray_pull_connected"] == 1
        assert admin.stats(TOPIC)["numberOfEntries"] == len(sent)
        client = quiet_client(here.service_url)
        reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
        found = [int(reader.read_next(PATIENCE_MS).data()) for _ in sent]
        client.close()
        assert found == sent
