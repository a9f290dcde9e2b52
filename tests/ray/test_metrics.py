"""Metrics of a cluster of real Ray actors."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.ray.support import RayNodes, actors, quiet_client, wait_until
from velaray.client.admin import Admin
from velaray.cluster import Cluster
from velaray.topology import ray_metrics
from velaray.topology.metrics import Sample
from velaray.topology.ray_metrics import RayMetrics

WORKERS = 0
SYSTEM = "/pulsar/system/"
"""A part of the names of topics that the cluster itself uses."""


def scrape(cluster: Cluster) -> dict[str, float]:
    """The sum of each metric's values, without those of the audit log, which records changes."""
    with urlopen(f"{cluster.admin_url}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if SYSTEM in sample.labels.get("topic", ""):
                continue
            sums[sample.name] = sums.get(sample.name, 0) + sample.value
    return sums


def partitions_of_users(cluster: Cluster) -> list[dict[str, Any]]:
    """The running partitions without that of the audit log, which records the unloading."""
    found = actors(cluster, "partition")
    return [each for each in found if SYSTEM not in each["key"]]


def test_a_scrape_queries_running_actors_and_starts_none(nodes: RayNodes, data_dir: Path) -> None:
    with Cluster.start(data_dir, service_port=0, admin_port=0, name="measured") as cluster:
        client = quiet_client(cluster.service_url)
        consumer = client.subscribe("t", "s")
        producer = client.create_producer("t", batching_enabled=False)
        for _ in range(5):
            producer.send(b"x")
            consumer.acknowledge(consumer.receive(10_000))

        def all_acked() -> bool:
            found = scrape(cluster)
            return (found["pulsar_out_messages_total"], found["pulsar_msg_backlog"]) == (5, 0)

        wait_until(all_acked, "five messages delivered and acknowledged")
        found = scrape(cluster)
        assert found["pulsar_in_messages_total"] == 5
        assert found["pulsar_consumers_count"] == 1
        assert found["velaray_actors"] == 3
        client.close()
        Admin(cluster.admin_url).unload("t")
        wait_until(lambda: not partitions_of_users(cluster), "the partition gone")
        assert scrape(cluster).get("pulsar_in_messages_total") is None
        assert not partitions_of_users(cluster)


class Recorded:
    """A metric of Ray's that records its values."""

    def __init__(self, name: str, description: str, tag_keys: tuple[str, ...]) -> None:
        self.name = name
        self.tag_keys = tag_keys
        self.values: list[tuple[float, str]] = []

    def set(self, value: float, tags: dict[str, str]) -> None:
        assert tags.keys() == set(self.tag_keys)
        self.values.append((value, tags["topic"]))

    inc = set


def test_ray_gets_gauges_and_increments_of_counters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ray_metrics, "Gauge", Recorded)
    monkeypatch.setattr(ray_metrics, "Counter", Recorded)
    telling = RayMetrics()
    for backlog, published in ((7, 10), (3, 15), (3, 15)):
        telling.tell(
            [
                Sample("pulsar_msg_backlog", {"topic": "t"}, backlog),
                Sample("pulsar_in_messages_total", {"topic": "t"}, published),
                Sample("velaray_topic_failed_reads_total", {"topic": "t"}, 0),
                Sample("velaray_storage_write_latency_seconds_sum", {"topic": "t"}, 1.5),
            ]
        )
    gauges, counters = telling._gauges, telling._counters
    assert gauges["pulsar_msg_backlog"].values == [(7, "t"), (3, "t"), (3, "t")]
    assert counters["pulsar_in_messages_total"].values == [(10, "t"), (5, "t")]
    assert counters["velaray_topic_failed_reads_total"].values == []
    assert len(gauges) + len(counters) == 3  # without the histogram


def test_ray_gets_every_label(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_metrics, "Gauge", Recorded)
    telling = RayMetrics()
    for label in ("remote_cluster", "coordinator_id", "deleter_id", "subscription"):
        telling.tell([Sample("pulsar_replication_backlog", {"topic": "t", label: "x"}, 1)])
    assert len(telling._gauges["pulsar_replication_backlog"].values) == 4


def test_ray_gets_no_more_series_than_allowed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ray_metrics, "Gauge", Recorded)
    monkeypatch.setattr(ray_metrics, "MOST_SERIES", 2)
    telling = RayMetrics()
    for value in (1, 2):
        telling.tell(Sample("pulsar_msg_backlog", {"topic": topic}, value) for topic in "abcd")
    told = telling._gauges["pulsar_msg_backlog"].values
    assert told == [(1, "a"), (1, "b"), (2, "a"), (2, "b")]
    assert len(caplog.records) == 1
