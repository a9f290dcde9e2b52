"""The status of replication: statistics, metrics, the command; and its rate limit."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from tests.topology.replicating import (
    Cluster,
    clusters,
    received,
    replicating,
    soon,
)
from velaray.cli.app import main
from velaray.client.admin import Admin
from velaray.events.ids import ActorKey

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Cluster]]:
    with clusters(tmp_path_factory.mktemp("pair"), "a", "b") as found:
        yield found


@pytest.fixture
def topic() -> str:
    return f"persistent://public/default/t{next(_numbers)}"


def admin(cluster: Cluster) -> Admin:
    return Admin(cluster.local.admin_url)


def stats(cluster: Cluster, topic: str, kind: str = "stats") -> dict[str, Any]:
    path = topic.replace("://", "/")
    return dict(admin(cluster).request("GET", f"{path}/{kind}"))


def samples(cluster: Cluster, topic: str) -> dict[str, float]:
    found = cluster.call(cluster.partition(topic), "metrics")
    return {name: value for name, labels, value in found if labels.get("remote_cluster") == "b"}


def test_statistics_describe_every_replicator(pair: list[Cluster], topic: str) -> None:
    a, b = pair
    a.replicate(topic, {"b": b.describe()})
    a.publish(topic, [b"x"] * 10)
    assert received(b.subscribe(topic), 10)
    soon(lambda: stats(a, topic)["replication"]["b"]["replicationBacklog"] == 0)
    found = stats(a, topic)["replication"]["b"]
    assert found["connected"] and found["state"] == "replicating"
    assert (found["stoppedReason"], found["replicationDelayInSeconds"]) == ("", 0)
    assert (
        found["entriesReplicated"] == samples(a, topic)["velaray_replication_entries_total"] == 10
    )
    assert found["msgRateOut"] > 0 and found["msgThroughputOut"] > 0
    assert stats(a, topic)["subscriptions"] == {}
    assert admin(a).subscriptions(topic) == []
    assert samples(a, topic)["pulsar_replication_connected_count"] == 1


def test_the_replication_backlog_is_counted_with_the_reason(
    pair: list[Cluster], topic: str
) -> None:
    a, b = pair
    a.call(ActorKey.catalog(), "create_topic", {"topic": topic, "partitions": 2})
    a.replicate(topic, {"b": b.describe(service_url="pulsar://127.0.0.1:1")})
    for number in (0, 1):
        a.publish_raw(f"{topic}-partition-{number}", b"12345", publish_time=1)
    part = f"{topic}-partition-0"
    soon(lambda: stats(a, part)["replication"]["b"]["stoppedReason"])
    found = stats(a, part)["replication"]["b"]
    assert not found["connected"] and "127.0.0.1:1" in found["stoppedReason"]
    assert found["replicationBacklog"] == 1 and found["backlogSize"] > 5
    assert found["replicationDelayInSeconds"] > 1_000_000_000
    soon(lambda: stats(a, f"{topic}-partition-1")["replication"]["b"]["stoppedReason"])
    whole = stats(a, topic, "partitioned-stats")["replication"]["b"]
    assert whole["replicationBacklog"] == 2 and not whole["connected"]
    assert whole["replicationDelayInSeconds"] > 1_000_000_000
    values = samples(a, part)
    assert values["pulsar_replication_backlog"] == 1
    assert values["pulsar_replication_connected_count"] == 0
    assert values["pulsar_replication_delay_in_seconds"] > 1_000_000_000


def test_the_command_lists_replicators(pair: list[Cluster], topic: str) -> None:
    a, b = pair
    a.call(ActorKey.catalog(), "create_namespace", {"namespace": "public/shown"})
    b.call(ActorKey.catalog(), "create_namespace", {"namespace": "public/shown"})
    topic = "persistent://public/shown/t"
    a.replicate(topic, {"b": b.describe()})
    a.publish(topic, [b"x"])
    replicating(a, topic, "b")

    def run(*arguments: str) -> Any:
        where = {"VELARAY_ADMIN_URL": a.local.admin_url}
        command = ["replication", "status", *arguments, "-o", "json"]
        result = CliRunner(env=where).invoke(main, command)
        assert result.exit_code == 0, (result.output, result.exception)
        return json.loads(result.stdout)

    for arguments in ((topic,), ("--namespace", "public/shown")):
        (row,) = run(*arguments)
        assert (row["topic"], row["cluster"], row["state"]) == (topic, "b", "replicating")
    assert topic in [row["topic"] for row in run()]
    both = CliRunner().invoke(main, ["replication", "status", topic, "--namespace", "x/y"])
    assert both.exit_code == 2 and "not both" in both.output


def test_a_rate_limits_replication(pair: list[Cluster], topic: str) -> None:
    a, b = pair
    a.replicate(topic, {"b": b.describe()})
    rate = {"dispatchThrottlingRateInMsg": 10, "dispatchThrottlingRateInByte": -1}
    a.partition(topic)
    admin(a).set_policy_of(topic, "replicatorDispatchRate", rate)
    a.publish(topic, [b"x"] * 500, batching_enabled=False)
    there = b.subscribe(topic)
    assert received(there, 10)
    soon(lambda: stats(a, topic)["replication"]["b"]["entriesInFlight"] > 400)
    admin(a).remove_policy_of(topic, "replicatorDispatchRate")
    assert received(there, 490)
