"""Subscriptions follow by snapshots, where clusters know no better."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

import velaray
from tests.topology.replicating import PATIENCE_MS, Cluster, clusters, received, soon
from velaray.geo.replication import snapshot_keeper
from velaray.wire.replication import REPLICATED_SUBSCRIPTION

FOLLOWED = {REPLICATED_SUBSCRIPTION: "true"}


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_keeper, "SNAPSHOT_S", 0.05)


def mesh(found: list[Cluster], topic: str, **more: Any) -> None:
    for each in found:
        others = [other for other in found if other is not each]
        told = {other.name: other.describe(progress="snapshots", **more) for other in others}
        each.replicate(topic, told)
        each.call(each.partition(topic), "describe")


def follow(cluster: Cluster, topic: str, name: str = "s") -> None:
    """Make a subscription whose progress is replicated."""
    made = {"name": name, "position": "earliest", "properties": FOLLOWED}
    cluster.call(cluster.partition(topic), "create_subscription", made)


def subscription(cluster: Cluster, topic: str, name: str = "s") -> dict[str, Any]:
    found = cluster.call(cluster.partition(topic), "stats")["subscriptions"]
    return dict(found.get(name, {"acked_before": -1}))


def acked(cluster: Cluster, topic: str, name: str = "s") -> int:
    return int(subscription(cluster, topic, name)["acked_before"])


def keeper_of(cluster: Cluster, topic: str) -> Any:
    return cluster.local.actor_system.actors[cluster.partition(topic)].geo.snapshots  # type: ignore[attr-defined]


def rounds_pass(keeper: Any) -> None:
    """Wait until it has looked some more times whether there is anything to do."""
    looked, once = 0, keeper.once

    async def counted() -> None:
        nonlocal looked
        await once()
        looked += 1

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keeper, "once", counted)
        soon(lambda: looked >= 5)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[list[Cluster]]:
    with clusters(tmp_path, "a", "b") as found:
        yield found


def test_a_replicated_subscription_is_created_at_the_target_and_follows(
    pair: list[Cluster],
) -> None:
    a, b = pair
    mesh(pair, "t")
    follow(a, "t")
    consumer = a.subscribe("t")
    a.publish("t", [b"a%d" % number for number in range(50)])
    b.publish("t", [b"b%d" % number for number in range(50)])
    assert len(received(consumer, 100)) == 100
    soon(lambda: acked(b, "t") == 100)
    assert subscription(b, "t")["properties"] == FOLLOWED
    a.publish("t", [b"more"])
    assert received(consumer, 1) == [b"more"]
    soon(lambda: acked(b, "t") == 101)


def test_unacknowledged_messages_are_not_acknowledged_at_the_target(pair: list[Cluster]) -> None:
    a, b = pair
    mesh(pair, "t")
    follow(a, "t")
    consumer = a.subscribe("t", consumer_type=pulsar.ConsumerType.Shared)
    a.publish("t", [b"%d" % number for number in range(40)], batching_enabled=False)
    held = None
    for number in range(40):
        message = consumer.receive(PATIENCE_MS)
        if number == 20:
            held = message
        else:
            consumer.acknowledge(message)
    soon(lambda: subscription(a, "t")["acked_before"] == 20)
    a.publish("t", [b"x"] * 10, batching_enabled=False)
    received(consumer, 10)
    rounds_pass(keeper_of(a, "t"))
    soon(lambda: a.status("t", "b")["markers"] == 0)
    assert acked(b, "t") <= 20
    assert held is not None
    consumer.acknowledge(held)
    soon(lambda: acked(b, "t") == 50)


def test_messages_behind_an_open_transaction_are_not_acknowledged_at_the_target(
    pair: list[Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = pair
    mesh(pair, "t")
    follow(a, "t")
    consumer = a.subscribe("t")
    keeper = keeper_of(a, "t")
    asked: list[tuple[Any, ...]] = []
    with (
        monkeypatch.context() as held,
        velaray.Client(a.local.service_url) as client,
        client.transaction() as transaction,
    ):
        held.setattr(keeper, "_ask", lambda *which: asked.append(which))
        b.publish("t", [b"before"])
        assert received(consumer, 1) == [b"before"]
        soon(lambda: asked)
        client.create_producer("t").send(b"undecided", txn=transaction)
        b.publish("t", [b"behind"] * 5, batching_enabled=False)
        soon(lambda: a.call(a.partition("t"), "stats")["end_offset"] == 7)
        held.undo()
        a.local.loop.call_soon_threadsafe(keeper._ask, *asked[0])
        soon(lambda: keeper._taker.pending == 0)
        rounds_pass(keeper)
        soon(lambda: a.status("t", "b")["markers"] == 0)
        assert acked(b, "t") < 2
    assert received(consumer, 6) == [b"undecided", *[b"behind"] * 5]
    soon(lambda: acked(b, "t") == 7)


def test_an_idle_topic_sends_no_snapshots(pair: list[Cluster]) -> None:
    a, b = pair
    mesh(pair, "t")
    follow(a, "t")
    consumer = a.subscribe("t")
    a.publish("t", [b"x"])
    received(consumer, 1)
    soon(lambda: acked(b, "t") == 1)
    keeper = keeper_of(a, "t")
    soon(lambda: keeper._taker.pending == 0 and a.status("t", "b")["markers"] == 0)
    rounds_pass(keeper)  # and ask nobody
    assert keeper._taker.pending == 0
    ends = [each.call(each.partition("t"), "stats")["end_offset"] for each in pair]
    assert ends == [1, 1]


def test_three_clusters_take_two_rounds(tmp_path: Path) -> None:
    with clusters(tmp_path, "a", "b", "c") as trio:
        a, b, c = trio
        mesh(trio, "t")
        follow(a, "t")
        consumer = a.subscribe("t")
        for each in trio:
            each.publish("t", [f"{each.name}{number}".encode() for number in range(20)])
        assert len(received(consumer, 60)) == 60
        soon(lambda: acked(b, "t") == acked(c, "t") == 60)


def test_a_subscription_without_replication_is_not_created_at_the_target(
    pair: list[Cluster],
) -> None:
    a, b = pair
    mesh(pair, "t")
    follow(a, "t", "followed")
    consumers = [a.subscribe("t", name) for name in ("followed", "own")]
    a.publish("t", [b"x"])
    for consumer in consumers:
        received(consumer, 1)
    soon(lambda: acked(b, "t", "followed") == 1)
    assert b.call(b.partition("t"), "subscriptions") == ["followed", "pulsar.repl.a"]
