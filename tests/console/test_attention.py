"""The start page: what it finds, and what it says about parts that don't answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.console.visiting import Visitor
from tests.support.local_cluster import LocalCluster
from tests.support.waiting import wait_until
from velaray import Client, ConsumerType
from velaray.client.admin import Admin, Unavailable
from velaray.console import attention
from velaray.console.survey import Survey, Surveys, surveyed


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("data")) as cluster:
        yield cluster


def test_a_subscription_without_consumers_is_stuck_with_its_reason(cluster: LocalCluster) -> None:
    visitor, admin = Visitor(cluster.admin_url), Admin(cluster.admin_url)
    admin.topics.create("orders")
    admin.subscriptions.create("orders", "billing")
    with Client(cluster.service_url) as client:
        client.create_producer("orders").send(b"one")
        wait_until(lambda: "1 entries wait and no consumer is connected" in visitor.get("/").text)
        shown = visitor.get("/")
        assert "public/default/orders · billing" in shown.text
        assert "Nothing needs attention." not in shown.text
        consumer = client.subscribe("orders", "billing", ConsumerType.Shared)
        consumer.acknowledge(consumer.receive(10_000))
        wait_until(lambda: "Nothing needs attention." in visitor.get("/").text)


def test_dead_letters_are_shown(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "DEAD_FRESH_S", 0.0)
    with Client(cluster.service_url) as client:
        client.create_producer("orders-billing-DLQ").send(b"bad")
    visitor = Visitor(cluster.admin_url)
    wait_until(lambda: "1 dead letter" in visitor.get("/").text)


def test_forgotten_dead_letters_need_no_attention(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "DEAD_FRESH_S", 0.0)
    admin, visitor = Admin(cluster.admin_url), Visitor(cluster.admin_url)
    admin.topics.create("notes-s-DLQ")
    admin.subscriptions.create("notes-s-DLQ", "repair")
    with Client(cluster.service_url) as client:
        letter = client.create_producer("notes-s-DLQ").send(b"bad")
    named = "default/notes-s-DLQ 1 dead letter"
    wait_until(lambda: named in visitor.get("/").text)
    admin.dead_letters.forget("notes-s-DLQ", letter)
    wait_until(lambda: named not in visitor.get("/").text)


def test_an_open_transaction_is_shown_when_it_is_old(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "LONG_OPEN_MS", 0)
    visitor = Visitor(cluster.admin_url)
    with Client(cluster.service_url) as client:
        client.new_transaction()
        wait_until(lambda: "open for" in visitor.get("/").text)


def test_metrics_tell_of_full_disks_damage_and_long_recoveries() -> None:
    labels = {"kind": "partition", "topic": "persistent://a/b/c"}
    found = Survey(
        {"persistent://a/b/c": {"velaray_topic_failed_reads_total": 2}},
        actors=[
            (labels, {"velaray_journal_refused_full_total": 3, "velaray_recovery_seconds": 61.0})
        ],
        cluster={
            "velaray_actors_silent": 4,
            "velaray_disk_bytes": 50 << 30,
            "velaray_disk_free_bytes": 2 << 30,
        },
    )
    told = [each.why for each in (*attention.stores(found), *attention.recoveries(found))]
    assert told == [
        "only 2.0 GiB of 50.0 GiB are free on its disk",
        "3 commands were refused because the disk was full",
        "2 reads failed: a stored entry is damaged or missing",
        "4 running actors didn't answer in time",
        "the last recovery took 1 min 1 s and replayed 0 events",
    ]


def test_a_survey_keeps_topics_subscriptions_and_actors_apart() -> None:
    found = surveyed(
        [
            {"dimensions": {"cluster": "c"}, "metrics": {"velaray_actors_silent": 0}},
            {"dimensions": {"cluster": "c", "topic": "t"}, "metrics": {"pulsar_rate_in": 2}},
            {"dimensions": {"topic": "t", "subscription": "s"}, "metrics": {"x": 1}},
            {"dimensions": {"topic": "t", "remote_cluster": "d"}, "metrics": {"y": 1}},
            {"dimensions": {"topic": "t", "kind": "partition"}, "metrics": {"z": 1}},
        ]
    )
    assert found.topics == {"t": {"pulsar_rate_in": 2}}
    assert found.subscriptions == {("t", "s"): {"x": 1}}
    assert found.actors == [({"topic": "t", "kind": "partition"}, {"z": 1})]
    assert found.of_topic(["t", "u"]) == {"pulsar_rate_in": 2}
    assert found.of_topic(["u"]) is None


def test_a_page_waits_for_no_survey() -> None:
    surveys, asked = Surveys(), []

    async def visits() -> None:
        release = asyncio.Event()

        async def ask() -> int:
            asked.append(1)
            await release.wait()
            return len(asked)

        with pytest.raises(Unavailable):
            await surveys.recent("", "x", 0.0, ask)
        release.set()
        assert await surveys.shared("", "x", 60.0, ask) == 1
        release.clear()
        surveys.forget()
        assert await surveys.recent("", "x", 60.0, ask) == 1  # the answer before, at once
        release.set()
        assert await surveys.shared("", "x", 60.0, ask) == 2

    asyncio.run(visits())
