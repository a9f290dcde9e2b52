"""Subscriptions follow exactly: what is acknowledged here isn't delivered there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pulsar
import pytest

from tests.support.waiting import wait_until
from tests.topology.replicating import (
    PATIENCE_MS,
    Cluster,
    clusters,
    nothing_more,
    received,
    soon,
)
from velaray.events.ids import ActorKind
from velaray.wire.replication import REPLICATED_SUBSCRIPTION

SHARED = pulsar.ConsumerType.Shared
FOLLOWED = {REPLICATED_SUBSCRIPTION: "true"}


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[list[Cluster]]:
    with clusters(tmp_path, "a", "b") as found:
        yield found


def exactly(cluster: Cluster, topic: str, to: list[Cluster], **more: Any) -> None:
    told = {other.name: other.describe(progress="exact", **more) for other in to}
    cluster.replicate(topic, told)
    cluster.call(cluster.partition(topic), "describe")


def follow(cluster: Cluster, topic: str, name: str = "s") -> None:
    made = {"name": name, "position": "earliest", "properties": FOLLOWED}
    cluster.call(cluster.partition(topic), "create_subscription", made)


def told(cluster: Cluster, topic: str, remote: str) -> bool:
    """Whether the other cluster has confirmed all progress that there is."""
    now = cluster.call(cluster.partition(topic), "replicated_subscriptions", {"all": False})
    actor = cluster.replicator(topic, remote)
    if actor is None or actor.control.replicator is None:
        return False
    followed = dict(actor.control.replicator.side_work.progress._followed)
    return {name: each.confirmed for name, each in followed.items()} == now


def synced(cluster: Cluster, topic: str, remote: str) -> None:
    """Wait until the other cluster has all entries and all progress."""

    def done() -> bool:
        found = cluster.call(cluster.partition(topic), "stats")["subscriptions"]
        return told(cluster, topic, remote) and not found[f"pulsar.repl.{remote}"]["backlog"]

    soon(done)


def taken_in(cluster: Cluster, topic: str, count: int, name: str = "s") -> None:
    """Wait until so many entries are left to be acknowledged."""
    soon(lambda: subscription(cluster, topic, name)["backlog"] == count)


def subscription(cluster: Cluster, topic: str, name: str = "s") -> dict[str, Any]:
    found = cluster.call(cluster.partition(topic), "stats")["subscriptions"]
    return dict(found.get(name, {}))


def test_acked_ranges_are_replicated_and_open_messages_delivered(pair: list[Cluster]) -> None:
    a, b = pair
    exactly(a, "t", [b])
    follow(a, "t")
    consumer = a.subscribe("t", consumer_type=SHARED)
    payloads = [b"%d" % number for number in range(200)]
    a.publish("t", payloads, batching_enabled=False)
    random, open_ones = Random(1), []
    for payload in payloads:
        message = consumer.receive(PATIENCE_MS)
        if random.random() < 0.2:
            open_ones.append(payload)
        else:
            consumer.acknowledge(message)
    taken_in(a, "t", len(open_ones))
    synced(a, "t", "b")
    there = b.subscribe("t", consumer_type=SHARED)
    assert received(there, len(open_ones)) == open_ones
    nothing_more(there)


def test_partial_acks_of_batches_are_replicated(pair: list[Cluster]) -> None:
    a, b = pair
    exactly(a, "t", [b])
    follow(a, "t")
    options = {"consumer_type": SHARED, "batch_index_ack_enabled": True}
    consumer = a.subscribe("t", **options)
    payloads = [b"%d" % number for number in range(20)]
    batched = {"batching_max_messages": 10, "batching_max_publish_delay_ms": 1000}
    a.publish("t", payloads, batching_enabled=True, **batched)
    for number in range(20):
        message = consumer.receive(PATIENCE_MS)
        if number % 3:
            consumer.acknowledge(message)
    soon(lambda: subscription(a, "t")["partial"] == 2)
    synced(a, "t", "b")
    there = b.subscribe("t", **options)
    assert received(there, 7) == payloads[::3]
    nothing_more(there)


def test_progress_that_arrives_before_its_messages_applies_to_them(pair: list[Cluster]) -> None:
    a, b = pair
    rate = {"dispatchThrottlingRateInMsg": 1, "dispatchThrottlingRateInByte": -1}
    exactly(a, "t", [b])
    a.set_policy({"topic": "persistent://public/default/t"}, "replicatorDispatchRate", rate)
    follow(a, "t")
    consumer = a.subscribe("t")
    a.publish("t", [b"%d" % number for number in range(30)], batching_enabled=False)
    assert len(received(consumer, 30)) == 30
    taken_in(a, "t", 0)
    soon(lambda: subscription(b, "t") and told(a, "t", "b"))
    there = b.subscribe("t")
    a.publish("t", [b"last"], batching_enabled=False)
    a.remove_policy({"topic": "persistent://public/default/t"}, "replicatorDispatchRate")
    assert received(there, 1) == [b"last"]


def test_an_unreachable_third_cluster_holds_nothing_up(pair: list[Cluster]) -> None:
    a, b = pair
    nowhere = b.describe(service_url="pulsar://127.0.0.1:1", progress="exact")
    a.replicate("t", {"b": b.describe(progress="exact"), "c": nowhere})
    follow(a, "t")
    consumer = a.subscribe("t")
    a.publish("t", [b"x"] * 10)
    assert len(received(consumer, 10)) == 10
    taken_in(a, "t", 0)
    synced(a, "t", "b")
    nothing_more(b.subscribe("t"))


def test_progress_is_replicated_in_both_directions(pair: list[Cluster]) -> None:
    a, b = pair
    exactly(a, "t", [b])
    exactly(b, "t", [a])
    follow(a, "t")
    follow(b, "t")
    a.publish("t", [b"a%d" % number for number in range(30)], batching_enabled=False)
    b.publish("t", [b"b%d" % number for number in range(30)], batching_enabled=False)
    for each in pair:
        soon(lambda each=each: subscription(each, "t").get("backlog") == 60)
    here = a.subscribe("t", consumer_type=SHARED)
    taken = set(received(here, 25))
    taken_in(a, "t", 35)
    here.close()
    synced(a, "t", "b")
    there = b.subscribe("t", consumer_type=SHARED)
    rest = received(there, 35)
    assert not taken & set(rest) and len({*taken, *rest}) == 60
    nothing_more(there)
    taken_in(b, "t", 0)
    synced(b, "t", "a")
    nothing_more(a.subscribe("t", consumer_type=SHARED))


@pytest.mark.parametrize("seed", range(3))
def test_kills_lose_no_progress(pair: list[Cluster], seed: int) -> None:
    a, b = pair
    exactly(a, "t", [b])
    follow(a, "t")
    random = Random(seed)
    count = 1000
    payloads = [b"%d" % number for number in range(count)]
    a.publish("t", payloads, batching_enabled=False)
    consumer = a.subscribe("t", consumer_type=SHARED)
    for _ in range(8):
        few = max(subscription(a, "t")["backlog"] - 5, 0)  # many are reported at once
        while subscription(a, "t")["backlog"] > few:
            try:
                message = consumer.receive(500)
            except pulsar.Timeout:  # acknowledgements die with a connection
                consumer.redeliver_unacknowledged_messages()
                continue
            if random.random() < 0.7:
                consumer.acknowledge(message)
        kinds = (ActorKind.SUBSCRIPTION, ActorKind.PARTITION)
        keys = [(each, key) for each in pair for kind in kinds for key in each.local.keys(kind)]
        if keys:
            cluster, key = random.choice(keys)
            cluster.local.kill(key)
    wait_until(consumer.is_connected, 60)  # a close fails while the client reconnects
    consumer.close()
    left = subscription(a, "t")["backlog"]
    assert left <= count - 8 * 5
    synced(a, "t", "b")
    there = b.subscribe("t", consumer_type=SHARED)
    assert len(set(received(there, left))) == left
    nothing_more(there)
