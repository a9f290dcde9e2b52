"""Progress of subscriptions between clusters, from end to end: what stops it elsewhere doesn't."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pulsar
import pytest

import velaray
from tests.topology.replicating import (
    PATIENCE_MS,
    Cluster,
    clusters,
    nothing_more,
    received,
    soon,
)
from velaray.events.ids import ActorKey, ActorKind
from velaray.geo.replication import replicator

NOWHERE = "pulsar://127.0.0.1:1"
REPLICATED: dict[str, Any] = {"replicate_subscription_state_enabled": True}
SHARED: dict[str, Any] = {**REPLICATED, "consumer_type": pulsar.ConsumerType.Shared}
_topics = itertools.count(1)


@pytest.fixture(scope="module")
def trio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Cluster]]:
    with clusters(tmp_path_factory.mktemp("clusters"), "a", "b", "c") as found:
        yield found


@pytest.fixture
def topic() -> str:
    return f"persistent://public/default/progress-{next(_topics)}"


def exactly(cluster: Cluster, **more: Any) -> dict[str, Any]:
    """How to replicate to a cluster of our own."""
    return cluster.describe(progress="exact", **more)


def replicate(topic: str, *pair: Cluster) -> None:
    """Between all of these."""
    for each in pair:
        each.replicate(topic, {other.name: exactly(other) for other in pair if other is not each})


def publish(cluster: Cluster, topic: str, count: int, **options: Any) -> list[bytes]:
    payloads = [b"%d" % number for number in range(count)]
    cluster.publish(topic, payloads, **{"batching_enabled": False, **options})
    return payloads


def left(cluster: Cluster, topic: str, name: str = "s") -> list[bytes]:
    """The payloads of what a subscription has not acknowledged of what came."""
    key = cluster.partition(topic)
    if name not in cluster.call(key, "subscriptions"):
        return []
    found = cluster.call(key, "unacked_entries", {"name": name, "first": 0, "most": 10_000})
    return [payload for _, _, payload in found["entries"]]


def came(cluster: Cluster, topic: str, count: int) -> None:
    """Wait until the cluster has so many entries. An acknowledgement that arrives before its entry
    waits for the entry, and for a reader."""
    key = cluster.partition(topic)
    soon(lambda: cluster.call(key, "stats")["end_offset"] >= count)


def arrives(cluster: Cluster, topic: str, wanted: list[bytes], name: str = "s") -> None:
    """Wait until only that is left in the cluster."""
    key = cluster.partition(topic)
    soon(lambda: name in cluster.call(key, "subscriptions"))
    soon(lambda: left(cluster, topic, name) == wanted)


def test_all_progress_of_a_subscription_arrives(trio: list[Cluster], topic: str) -> None:
    a, b, _ = trio
    replicate(topic, a, b)
    payloads = publish(a, topic, 10)
    consumer = a.subscribe(topic, batch_index_ack_enabled=True, **SHARED)
    messages = [consumer.receive(PATIENCE_MS) for _ in payloads]
    arrives(b, topic, payloads)
    for number in (0, 1, 2, 3, 4, 6, 9):  # as in the article
        consumer.acknowledge(messages[number])
    arrives(b, topic, [b"5", b"7", b"8"])
    batch = [b"x", b"y", b"z"]
    patient = {"batching_enabled": True, "batching_max_publish_delay_ms": 10_000}
    a.publish(topic, batch, **patient)
    came(b, topic, 11)
    consumer.acknowledge([consumer.receive(PATIENCE_MS) for _ in batch][1])
    soon(lambda: stats(b, topic)["partial"] == 1)
    consumer.close()
    moved = b.subscribe(topic, batch_index_ack_enabled=True, **SHARED)
    found = [moved.receive(PATIENCE_MS) for _ in range(5)]
    assert sorted(each.data() for each in found) == [b"5", b"7", b"8", b"x", b"z"]
    for each in found:
        moved.acknowledge(each)
    arrives(a, topic, [])
    nothing_more(moved)


def subscription(cluster: Cluster, topic: str, name: str = "s") -> Any:
    """The body of a subscription that runs."""
    mine = (cluster.partition(topic), name)
    for key in cluster.local.keys(ActorKind.SUBSCRIPTION):
        partition = ActorKey.of_partition(key.topic_name, key.topic_incarnation)
        if (partition, key.subscription) == mine:
            return cluster.local.actor_system.actors[key]
    return None


def stats(cluster: Cluster, topic: str, name: str = "s") -> dict[str, Any]:
    found: dict[str, Any] = cluster.call(cluster.partition(topic), "stats")["subscriptions"][name]
    return found


def test_failed_deliveries_continue_to_count(trio: list[Cluster], topic: str) -> None:
    a, b, _ = trio
    replicate(topic, a, b)
    payloads = publish(a, topic, 3)
    came(b, topic, 3)
    holder = a.subscribe(topic, negative_ack_redelivery_delay_ms=10, **SHARED)
    found = [holder.receive(PATIENCE_MS) for _ in payloads]
    holder.negative_acknowledge(found[1])
    again = holder.receive(PATIENCE_MS)
    assert (again.data(), again.redelivery_count()) == (b"1", 1)
    holder.acknowledge(found[2])
    arrives(b, topic, payloads[:2])
    soon(lambda: list(subscription(b, topic).runtime.state.deliveries) == [(1, 2, 1)])
    holder.close()  # in good order: that counts for nothing
    moved = b.subscribe(topic, **SHARED)
    there = [moved.receive(PATIENCE_MS) for _ in range(2)]
    assert {each.data(): each.redelivery_count() for each in there} == {b"0": 0, b"1": 1}


def test_delayed_and_slow_messages_do_not_hold_up_progress(trio: list[Cluster], topic: str) -> None:
    """The article's first problem: if only the mark-delete position is replicated, the other
    cluster redelivers everything behind one unacknowledged message."""
    a, b, _ = trio
    replicate(topic, a, b)
    consumer = a.subscribe(topic, **SHARED)
    producer = a.client.create_producer(topic, batching_enabled=False)
    producer.send(b"tomorrow", deliver_after=timedelta(days=1))
    producer.send(b"slow")
    slow = consumer.receive(PATIENCE_MS)
    assert slow.data() == b"slow"
    payloads = publish(a, topic, 300)
    came(b, topic, 302)
    assert sorted(received(consumer, 300)) == sorted(payloads)
    arrives(b, topic, [b"tomorrow", b"slow"])
    assert stats(b, topic)["acked_before"] == 0
    consumer.close()
    moved = b.subscribe(topic, **SHARED)
    assert received(moved, 1) == [b"slow"]
    nothing_more(moved)
    producer.close()


def test_a_backlog_of_messages_does_not_hold_up_progress(trio: list[Cluster], topic: str) -> None:
    """The second one: where progress goes through the topic, it comes behind all that is there."""
    a, b, _ = trio
    replicate(topic, a, b)
    consumer = a.subscribe(topic, **SHARED)
    first = publish(a, topic, 10)
    came(b, topic, 10)
    admin = velaray.Admin(a.local.admin_url)
    rate = {"dispatchThrottlingRateInMsg": 1, "dispatchThrottlingRateInByte": -1}
    admin.set_policy_of(topic, "replicatorDispatchRate", rate)
    a.publish(topic, [b"later"] * 500, batching_enabled=False)
    assert received(consumer, 10) == first
    soon(lambda: subscription(b, topic))  # else nothing is left of what it doesn't have
    soon(lambda: not set(first) & set(left(b, topic)))
    assert received(consumer, 500) == [b"later"] * 500
    last = a.call(a.partition(topic), "last_message_id")[:2]
    soon(lambda: ahead(b, topic, "a") == tuple(last))
    assert b.call(b.partition(topic), "stats")["end_offset"] < 500
    moved = b.subscribe(topic, **SHARED)
    admin.remove_policy_of(topic, "replicatorDispatchRate")
    soon(lambda: stats(b, topic)["acked_before"] == 510)
    nothing_more(moved)


def ahead(cluster: Cluster, topic: str, origin: str) -> tuple[int, int]:
    """Up to where all is acknowledged that an origin stored first, so far as it didn't come."""
    actor = subscription(cluster, topic)
    waiting = actor.runtime.state.remote.waiting
    return tuple(waiting[origin].up_to) if origin in waiting else (-1, -1)


def test_a_lost_cluster_does_not_hold_up_progress_of_others(
    trio: list[Cluster], topic: str
) -> None:
    """There a snapshot needs answers of all clusters."""
    a, b, c = trio
    remotes = {"b": exactly(b), "c": exactly(c, service_url=NOWHERE)}
    a.replicate(topic, remotes)
    consumer = a.subscribe(topic, **SHARED)
    payloads = publish(a, topic, 20)
    found = [consumer.receive(PATIENCE_MS) for _ in payloads]
    came(b, topic, 20)
    soon(lambda: "127.0.0.1:1" in a.status(topic, "c").get("reason", ""))
    for number in range(0, 20, 2):
        consumer.acknowledge(found[number])
    arrives(b, topic, payloads[1::2])
    remotes["c"] = exactly(c)  # it's there again
    a.replicate(topic, remotes)
    moved = c.subscribe(topic, **SHARED)
    assert received(moved, 10) == payloads[1::2]
    nothing_more(moved)


def test_progress_is_replicated_without_publishing(
    trio: list[Cluster], topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third one: positions between two snapshots can't be told, and without messages there
    are no new ones."""
    monkeypatch.setattr(replicator, "REST_S", 0.1)
    a, b, _ = trio
    replicate(topic, a, b)
    consumer = a.subscribe(topic, **REPLICATED)
    payloads = publish(a, topic, 8)
    found = [consumer.receive(PATIENCE_MS) for _ in payloads]
    arrives(b, topic, payloads)
    for number, message in enumerate(found):
        soon(lambda: a.status(topic, "b")["state"] == "resting")
        consumer.acknowledge_cumulative(message)
        arrives(b, topic, payloads[number + 1 :])


def test_clusters_share_the_consumption_of_common_messages(trio: list[Cluster], topic: str) -> None:
    a, b, c = trio
    replicate(topic, a, b, c)
    for each in (a, b, c):
        each.subscribe(topic, **SHARED).close()
    for each in (a, b, c):
        each.publish(topic, [each.name.encode() + b"%d" % at for at in range(4)])
    all_of_it = sorted(x + b"%d" % at for x in (b"a", b"b", b"c") for at in range(4))
    for each in (a, b, c):
        soon(lambda each=each: sorted(left(each, topic)) == all_of_it)
    for each, mine in ((a, b"b0"), (b, b"c1"), (c, b"a2")):
        consumer = each.subscribe(topic, **SHARED)
        found = {}
        for _ in range(50):
            message = consumer.receive(PATIENCE_MS)
            found[message.data()] = message
            if mine in found:
                break
        consumer.acknowledge(found[mine])
        consumer.close()
    rest = [each for each in all_of_it if each not in (b"b0", b"c1", b"a2")]
    for each in (a, b, c):
        soon(lambda each=each: sorted(left(each, topic)) == rest)


def follows(cluster: Cluster, topic: str, remote: str, name: str) -> bool:
    """Whether another cluster has every change of a subscription without consumers: nothing asks
    the subscription any more."""
    key = cluster.partition(topic)
    if name in cluster.local.actor_system.actors[key].subscriptions.channels:
        return False  # its closing counts as a change
    revision = cluster.call(key, "replicated_subscriptions", {"all": False})[name]
    replicator = cluster.replicator(topic, remote).control.replicator
    return bool(replicator.side_work.progress._followed[name].confirmed == revision)


def test_no_subscription_is_activated_for_progress(trio: list[Cluster], topic: str) -> None:
    a, b, _ = trio
    a.replicate(topic, {"b": exactly(b)})
    a.subscribe(topic, "sleeper", **REPLICATED).close()
    payloads = publish(a, topic, 3)
    came(b, topic, 3)
    arrives(b, topic, payloads, "sleeper")
    soon(lambda: follows(a, topic, "b", "sleeper"))
    sleeper = subscription(a, topic, "sleeper")
    a.local.run(a.local.actor_system.dismiss(sleeper.key))
    busy = a.subscribe(topic, "busy", **SHARED)
    received(busy, 3)
    arrives(b, topic, [], "busy")
    assert subscription(a, topic, "sleeper") is None
