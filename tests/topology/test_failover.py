"""A cluster is lost without warning: another one continues with what was replicated. The report
lists exactly the rest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pulsar
import pytest
from click.testing import CliRunner

from tests.support.by_name import call_by_name
from tests.support.local_cluster import LocalCluster
from tests.support.neighbours import ask, create, introduce, settle
from tests.support.waiting import wait_until
from tests.topology.migrating import Move, away, numbers
from tests.topology.replicating import QUIET, received
from velaray.cli.app import main
from velaray.client.admin import Admin, Invalid, NotFound

TOPIC = "persistent://acme/n/t"
SHARED = pulsar.ConsumerType.Shared
FOLLOWED = {"pulsar.replicated.subscription": "true"}


def caught_up(move: Move) -> bool:
    found = move.stats(move.a, TOPIC)["replication"].get("b", {})
    quiet = not found.get("backlog") and not found.get("progress_lag_ms")
    return bool(quiet and found.get("connected"))


def backlog(move: Move, cluster: LocalCluster) -> int:
    found = move.stats(cluster, TOPIC)["subscriptions"]
    return int(found["s"]["backlog"]) if "s" in found else -1


def consumed(move: Move, count: int, keep: set[bytes]) -> None:
    """Acknowledge the next messages, except some."""
    consumer = move.subscribe(TOPIC, consumer_type=SHARED)
    for _ in range(count):
        message = consumer.receive(10_000)
        if message.data() not in keep:
            consumer.acknowledge(message)
    consumer.close()


def lost(move: Move, a: LocalCluster, b: LocalCluster) -> None:
    """Ten messages are replicated, with the acknowledgements of four; of others, and of three more
    acknowledgements, only ``a`` knows."""
    ask(a, "create_topic", topic=TOPIC)
    wanted = {"name": "s", "position": "earliest", "properties": FOLLOWED}
    a.run(call_by_name(a.actor_system, move.partition(a, TOPIC), "create_subscription", wanted))
    move.publish(TOPIC, numbers(10))
    consumed(move, 10, keep=set(numbers(10)) - {b"0", b"1", b"4", b"7"})
    there = move.partition(b, TOPIC) if wait_until(lambda: caught_up(move), 30) else None

    def synced() -> bool:
        b.run(call_by_name(b.actor_system, there, "settle_progress", {}))
        return backlog(move, b) == 6

    wait_until(synced, 30)
    with away(b):
        consumed(move, 6, keep={b"3", b"8", b"9"})
        wait_until(lambda: backlog(move, a) == 3)
        move.publish(TOPIC, [b"late", b"later"])
        move.client.close()


def test_failover_continues_replicated_data_and_reports_possible_redeliveries(
    tmp_path: Path,
) -> None:
    with LocalCluster(tmp_path / "b", name="b", cluster_number=2) as b:
        with LocalCluster(tmp_path / "a", name="a", cluster_number=1) as a:
            _meet(a, b)
            lost(Move(a, b), a, b)
        client = pulsar.Client(b.service_url, logger=QUIET)
        found = Admin(b.admin_url).fail_over_tenant("acme")
        assert (found["lost"], found["home"]) == ("a", "b")
        (partition,) = found["partitions"]
        assert partition["topic"] == TOPIC and partition["producers"] == 1
        assert partition["newest_published_ms"] > 0
        (subscription,) = partition["subscriptions"]
        assert (subscription["subscription"], subscription["entries"]) == ("s", 6)
        assert subscription["messages"] == 6
        missing = _missing(b, tmp_path / "a")
        assert (missing["entries"], missing["messages"], missing["unsynced"]) == (2, 2, {"s": 3})
        consumer = client.subscribe(TOPIC, "s", consumer_type=SHARED)
        got = received(consumer, 6)
        # Two, five and six were acknowledged there, which isn't known here.
        assert sorted(got) == [b"2", b"3", b"5", b"6", b"8", b"9"]
        producer = client.create_producer(TOPIC)
        producer.send(b"on")
        assert received(consumer, 1) == [b"on"]
        client.close()


def test_late_messages_of_the_former_home_are_stored(tmp_path: Path) -> None:
    with (
        LocalCluster(tmp_path / "b", name="b", cluster_number=2) as b,
        LocalCluster(tmp_path / "a", name="a", cluster_number=1) as a,
    ):
        _meet(a, b)
        move = Move(a, b)
        move.publish(TOPIC, numbers(3))
        wait_until(lambda: caught_up(move), 30)
        Admin(b.admin_url).fail_over_tenant("acme")
        move.publish(TOPIC, [b"late"])  # who only reaches the old one goes on there
        client = pulsar.Client(b.service_url, logger=QUIET)
        earliest = {"initial_position": pulsar.InitialPosition.Earliest}
        consumer = client.subscribe(TOPIC, "t", **earliest)
        assert received(consumer, 4) == [*numbers(3), b"late"]
        again = Admin(b.admin_url).fail_over_tenant("acme", "a")
        (found,) = again["partitions"]
        assert {each["subscription"] for each in found["subscriptions"]} == {"t"}
        client.close()
        move.client.close()


def _meet(a: LocalCluster, b: LocalCluster) -> None:
    introduce(a, b)
    introduce(b, a)
    create("acme/n", a, b)
    for cluster in (a, b):
        ask(cluster, "update_tenant", tenant="acme", allowed_clusters=["a", "b"])
    policy = {"namespace": "acme/n", "name": "replication", "value": b'["a","b"]'}
    ask(a, "set_policy", **policy)
    settle("acme", "a", b)


def _missing(b: LocalCluster, data: Path) -> dict[str, Any]:
    """What the command tells of the lost cluster's data."""
    where = {"VELARAY_ADMIN_URL": b.admin_url}
    arguments = ["tenants", "failover", "acme", "--yes", "--lost", "a", "--source-data", str(data)]
    told = CliRunner(env=where).invoke(main, arguments)
    assert told.exit_code == 0, (told.output, told.exception)
    assert "the home of acme is b; a counts as lost" in told.output
    told = CliRunner(env=where).invoke(main, [*arguments, "-o", "json"])
    (found,) = json.loads(told.stdout)["missing"]
    return dict(found)


def test_a_refused_failover_gives_the_reason(tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "b", name="b", cluster_number=2) as b:
        admin = Admin(b.admin_url)
        with pytest.raises(NotFound, match="nothing of it was replicated"):
            admin.fail_over_tenant("acme")
        create("acme/n", b)
        with pytest.raises(Invalid, match="name the lost cluster"):
            admin.fail_over_tenant("acme")
        with pytest.raises(Invalid, match="no other cluster 'a' is known"):
            admin.fail_over_tenant("acme", "a")
