"""Replication: entries go to other clusters, in order, and no further than they should."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pulsar
import pytest

from tests.topology.replicating import (
    Cluster,
    clusters,
    metadata_at,
    nothing_more,
    received,
    replicating,
    soon,
)
from velaray.events.ids import ActorKey, ActorKind
from velaray.geo.replication import replicator_control
from velaray.topology import actor_system
from velaray.topology.rpc import RemoteError
from velaray.wire.replication import SOURCE_POSITION

PAYLOADS = [b"%d" % number for number in range(100)]
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Cluster]]:
    with clusters(tmp_path_factory.mktemp("pair"), "a", "b") as found:
        yield found


@pytest.fixture
def topic() -> str:
    return f"t{next(_numbers)}"


def entries(cluster: Cluster, topic: str) -> int:
    """How many entries a topic has."""
    return int(cluster.call(cluster.partition(topic), "stats")["end_offset"])


def backlog(cluster: Cluster, topic: str, remote: str) -> int:
    """How many entries a replicator hasn't acknowledged."""
    found = cluster.call(cluster.partition(topic), "stats")["subscriptions"]
    return int(found[f"pulsar.repl.{remote}"]["backlog"])


def test_published_messages_arrive_in_order_with_all_their_metadata(
    pair: list[Cluster], topic: str
) -> None:
    a, b = pair
    a.replicate(topic, {"b": b.describe()})
    producer = a.client.create_producer(topic, "p", initial_sequence_id=40)
    for number, payload in enumerate(PAYLOADS):
        producer.send(payload, {"x": str(number)}, partition_key="k", event_timestamp=number + 1)
    there = b.subscribe(topic)
    assert received(there, 100) == PAYLOADS
    nothing_more(there)
    first = a.call(a.partition(topic), "stats")["first_position"]
    found, stored = metadata_at(b, topic, 3), metadata_at(a, topic, 3)
    assert found.replicated_from == "a"
    assert found.properties[-1].key == SOURCE_POSITION
    assert found.properties[-1].value == f"{first[0]}:{first[1] + 2}"
    del found.properties[-1]
    found.ClearField("replicated_from")
    assert found == stored
    assert (found.producer_name, found.sequence_id, found.event_time) == ("p", 43, 3)
    soon(lambda: backlog(a, topic, "b") == 0)


def test_replicas_need_no_encryption_where_producers_must_encrypt(
    pair: list[Cluster], topic: str
) -> None:
    """They are as the other cluster has accepted them; its own policy decides."""
    a, b = pair
    a.replicate(topic, {"b": b.describe()})
    there = b.subscribe(topic)
    namespace = {"namespace": "public/default"}
    b.set_policy(namespace, "encryptionRequired", True)
    try:
        soon(lambda: _requires_encryption(b, topic))
        a.publish(topic, PAYLOADS)
        assert received(there, 100) == PAYLOADS
    finally:
        b.remove_policy(namespace, "encryptionRequired")


def _requires_encryption(cluster: Cluster, topic: str) -> bool:
    actor: Any = cluster.local.actor_system.actors[cluster.partition(topic)]
    return bool(actor.policies.encryption_required)


def test_batches_keep_their_boundaries(pair: list[Cluster], topic: str) -> None:
    a, b = pair
    a.replicate(topic, {"b": b.describe()})
    a.publish(
        topic,
        PAYLOADS,
        batching_enabled=True,
        batching_max_messages=10,
        batching_max_publish_delay_ms=1000,
        compression_type=pulsar.CompressionType.ZLib,
    )
    assert received(b.subscribe(topic), 100) == PAYLOADS
    assert entries(a, topic) == entries(b, topic) == 10
    assert metadata_at(b, topic, 1).num_messages_in_batch == 10


def test_large_messages_in_chunks_arrive_completely(pair: list[Cluster], topic: str) -> None:
    a, b = pair
    a.replicate(topic, {"b": b.describe()})
    there = b.subscribe(topic)
    large = b"x" * (12 << 20)
    a.publish(topic, [large], chunking_enabled=True, batching_enabled=False)
    assert received(there, 1) == [large]
    assert entries(b, topic) == 3


def test_replication_starts_at_the_end_unless_everything_is_requested(
    pair: list[Cluster], topic: str
) -> None:
    a, b = pair
    for name, more in ((f"{topic}-all", {"from_earliest": True}), (f"{topic}-new", {})):
        a.publish(name, [b"before"])
        a.replicate(name, {"b": b.describe(**more)})
        replicating(a, name, "b")
        a.publish(name, [b"after"])
    assert received(b.subscribe(f"{topic}-all"), 2) == [b"before", b"after"]
    assert received(b.subscribe(f"{topic}-new"), 1) == [b"after"]


def test_the_first_message_of_a_new_topic_is_replicated(pair: list[Cluster], topic: str) -> None:
    a, b = pair
    a.replicate(topic, {"b": b.describe()})
    a.publish(topic, [b"first"])
    assert received(b.subscribe(topic), 1) == [b"first"]


def test_policies_decide_the_target_clusters(pair: list[Cluster], topic: str) -> None:
    a, b = pair
    catalog = ActorKey.catalog()
    for each in pair:
        each.call(catalog, "create_namespace", {"namespace": f"public/{topic}"})
    full = f"persistent://public/{topic}/x"
    a.set_replication({"namespace": f"public/{topic}"}, ["a", "b"])
    a.publish(full, [b"first"])
    there = b.subscribe(full)
    assert received(there, 1) == [b"first"]
    a.set_replication({"topic": full}, ["a"])
    soon(lambda: a.replicator(full, "b") is None)
    a.publish(full, [b"here alone"])
    nothing_more(there)


def test_messages_for_other_clusters_are_not_replicated(pair: list[Cluster], topic: str) -> None:
    a, b = pair
    a.replicate(topic, {"b": b.describe()})
    producer = a.client.create_producer(topic)
    producer.send(b"all")
    producer.send(b"here", disable_replication=True)
    producer.send(b"elsewhere", replication_clusters=["c"])
    producer.send(b"there", replication_clusters=["c", "b"])
    there = b.subscribe(topic)
    assert received(there, 2) == [b"all", b"there"]
    nothing_more(there)
    soon(lambda: backlog(a, topic, "b") == 0)
    assert a.status(topic, "b")["passed_over"] == {"elsewhere": 2}


def test_two_clusters_replicate_to_each_other_without_a_loop(
    pair: list[Cluster], topic: str
) -> None:
    a, b = pair
    a.replicate(topic, {"b": b.describe()})
    b.replicate(topic, {"a": a.describe()})
    b.partition(topic)
    b.call(b.partition(topic), "describe")
    readers = [a.subscribe(topic), b.subscribe(topic)]
    a.publish(topic, [b"a%d" % number for number in range(50)])
    b.publish(topic, [b"b%d" % number for number in range(50)])
    for reader in readers:
        found = received(reader, 100)
        for name in (b"a", b"b"):
            own = [each for each in found if each.startswith(name)]
            assert own == [name + b"%d" % number for number in range(50)]
        nothing_more(reader)
    soon(lambda: backlog(a, topic, "b") == backlog(b, topic, "a") == 0)
    assert entries(a, topic) == entries(b, topic)


def test_partitions_are_created_and_added_at_the_target(pair: list[Cluster], topic: str) -> None:
    a, b = pair
    a.replicate(topic, {"b": b.describe()})
    create = {"topic": f"persistent://public/default/{topic}", "partitions": 2}
    a.call(ActorKey.catalog(), "create_topic", create)
    a.publish(
        topic, PAYLOADS, message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution
    )
    replicating(a, f"{topic}-partition-0", "b")
    there = b.subscribe(topic)
    assert sorted(received(there, 100)) == sorted(PAYLOADS)
    assert b.call(ActorKey.catalog(), "topic", {"topic": create["topic"]})["partitions"] == 2
    a.call(ActorKey.catalog(), "grow_partitions", {**create, "partitions": 3})
    a.publish(f"{topic}-partition-2", [b"new"])
    replicating(a, f"{topic}-partition-2", "b")
    assert received(b.subscribe(f"{topic}-partition-2", "other"), 1) == [b"new"]
    assert b.call(ActorKey.catalog(), "topic", {"topic": create["topic"]})["partitions"] == 3


def test_a_topic_with_another_number_of_partitions_is_refused_with_the_reason(
    pair: list[Cluster], topic: str
) -> None:
    a, b = pair
    full = f"persistent://public/default/{topic}"
    b.call(ActorKey.catalog(), "create_topic", {"topic": full, "partitions": 3})
    a.replicate(topic, {"b": b.describe()})
    a.publish(topic, [b"x"])
    found = soon(lambda: a.status(topic, "b").get("reason"))
    assert found == (
        f"{full} has no partitions here and 3 partitions in b: give it the same number in both, "
        "or delete one of them"
    )
    assert not a.status(topic, "b")["connected"]
    assert backlog(a, topic, "b") == 1


def test_removing_a_cluster_from_the_policy_ends_its_replicator(
    pair: list[Cluster], topic: str
) -> None:
    a, b = pair
    a.replicate(topic, {"b": b.describe()})
    a.publish(topic, [b"one"])
    there = b.subscribe(topic)
    assert received(there, 1) == [b"one"]
    a.replicate(topic, {})
    soon(lambda: a.replicator(topic, "b") is None)
    assert a.call(a.partition(topic), "subscriptions") == []
    a.publish(topic, [b"two"])
    nothing_more(there)
    a.replicate(topic, {"b": b.describe()})
    replicating(a, topic, "b")
    a.publish(topic, [b"three"])
    assert received(there, 1) == [b"three"]


def test_clients_cannot_use_names_of_replicators(pair: list[Cluster], topic: str) -> None:
    a, b = pair
    a.replicate(topic, {"b": b.describe()})
    a.publish(topic, [b"x"])
    with pytest.raises(pulsar.NotAllowedError):
        a.client.subscribe(topic, "pulsar.repl.b")
    with pytest.raises(pulsar.NotAllowedError):
        b.client.create_producer(topic, "pulsar.repl.a-->b")
    key = a.partition(topic)
    for method, more in (("delete_subscription", {"force": True}), ("seek", {"time_ms": 0})):
        with pytest.raises(RemoteError, match="is a replicator: it can't be"):
            a.call(key, method, {"name": "pulsar.repl.b", **more})
    assert received(b.subscribe(topic), 1) == [b"x"]


def test_a_killed_replicator_continues(pair: list[Cluster], topic: str) -> None:
    a, b = pair
    a.replicate(topic, {"b": b.describe()})
    a.publish(topic, PAYLOADS[:50])
    there = b.subscribe(topic)
    assert received(there, 50) == PAYLOADS[:50]
    soon(lambda: backlog(a, topic, "b") == 0)
    a.local.kill(a.replicator(topic, "b").key)
    a.publish(topic, PAYLOADS[50:])
    assert received(there, 50) == PAYLOADS[50:]
    nothing_more(there)


def test_a_killed_partition_is_activated_for_its_replicator(
    pair: list[Cluster], topic: str
) -> None:
    a, b = pair
    a.replicate(topic, {"b": b.describe()})
    a.publish(topic, PAYLOADS)
    there = b.subscribe(topic)
    assert received(there, 100) == PAYLOADS
    soon(lambda: backlog(a, topic, "b") == 0)
    key = a.partition(topic)
    a.local.kill(key)
    soon(lambda: key in a.local.actor_system.actors)
    replicating(a, topic, "b")
    a.publish(topic, [b"more"])
    assert received(there, 1) == [b"more"]


def test_a_partition_becomes_idle_when_its_replicators_have_nothing_to_do(
    pair: list[Cluster], topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actor_system, "RPC_KEPT_S", 0.5)  # open connections keep it from idling
    a, b = pair
    a.replicate(topic, {"b": b.describe()})
    a.publish(topic, PAYLOADS)
    key = a.partition(topic)
    actor: Any = a.local.actor_system.actors[key]
    soon(lambda: backlog(a, topic, "b") == 0)  # until then it may not even know of an entry
    soon(lambda: a.local.run(_idle(actor)))
    assert received(b.subscribe(topic), 100) == PAYLOADS
    a.local.run(a.local.actor_system.dismiss(key))
    replicator = a.replicator(topic, "b")
    soon(replicator.idle)
    assert key not in a.local.actor_system.actors
    a.publish(topic, [b"more"])
    assert received(b.subscribe(topic, "other"), 101)[-1] == b"more"


async def _idle(actor: Any) -> bool:
    found: bool = actor.idle()
    return found


def test_a_partition_with_a_backlog_for_another_cluster_is_not_idle(
    pair: list[Cluster], topic: str
) -> None:
    a, b = pair
    nowhere = b.describe(service_url="pulsar://127.0.0.1:1")
    a.replicate(topic, {"b": nowhere})
    a.publish(topic, [b"x"])
    soon(lambda: "127.0.0.1:1" in a.status(topic, "b").get("reason", ""))
    actor: Any = a.local.actor_system.actors[a.partition(topic)]
    assert not a.local.run(_idle(actor))
    a.replicate(topic, {"b": b.describe()})
    assert received(b.subscribe(topic), 1) == [b"x"]


@pytest.fixture
def trio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Cluster]]:
    with clusters(tmp_path_factory.mktemp("trio"), "a", "b", "c") as found:
        yield found


def test_three_meshed_clusters_have_every_message_once(trio: list[Cluster]) -> None:
    for each in trio:
        others = {other.name: other.describe() for other in trio if other is not each}
        each.replicate("mesh", others)
        each.call(each.partition("mesh"), "describe")
    readers = [each.subscribe("mesh") for each in trio]
    for each in trio:
        own = [f"{each.name}{number}".encode() for number in range(30)]
        each.publish("mesh", own)
    for reader in readers:
        found = received(reader, 90)
        for name in (b"a", b"b", b"c"):
            own = [payload for payload in found if payload.startswith(name)]
            assert own == [name + b"%d" % number for number in range(30)]
        nothing_more(reader)
    for each in trio:
        soon(lambda each=each: entries(each, "mesh") == 90)
        assert not each.local.actor_system.failures
        assert each.local.keys(ActorKind.PARTITION)


def test_a_partition_unloaded_with_a_replication_backlog_is_activated_again(
    pair: list[Cluster], topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicator_control, "UNLOADED_S", 0.2)
    a, b = pair
    a.replicate(topic, {"b": b.describe(service_url="pulsar://127.0.0.1:1")})
    a.publish(topic, [b"x"])
    soon(lambda: a.status(topic, "b").get("reason"))
    a.local.run(a.local.actor_system.dismiss(a.partition(topic)))
    a.replicate(topic, {"b": b.describe()})
    assert received(b.subscribe(topic), 1) == [b"x"]
