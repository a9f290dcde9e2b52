"""Pulling: another cluster's messages arrive once, in order, whichever process is killed."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterator
from typing import Any

import pulsar
import pytest

from tests.topology.replicating import (
    PATIENCE_MS,
    Cluster,
    clusters,
    metadata_at,
    nothing_more,
    received,
    soon,
)
from velaray.broker.catalog import catalog_actor
from velaray.client.admin import Admin
from velaray.events.ids import ActorKey, ActorKind, TopicName
from velaray.geo.replication.replicator_source import Source
from velaray.geo.replication.replicator_target import Target
from velaray.topology.metrics import Sample
from velaray.wire.replication import SOURCE_POSITION

PAYLOADS = [b"%d" % number for number in range(100)]
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Cluster]]:
    """A source, old, and a cluster that pulls from it, new."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(catalog_actor, "PULL_WAKE_S", 0.1)
        with clusters(tmp_path_factory.mktemp("pair"), "old", "new") as found:
            yield found


@pytest.fixture
def topic() -> str:
    return f"t{next(_numbers)}"


def pull(cluster: Cluster, topic: str, *sources: str) -> None:
    """Have a topic pulled from these clusters from now on."""
    cluster.partition(topic)
    full = str(TopicName.parse(topic))
    policy = {"topic": full, "name": "pullFrom", "value": json.dumps(sources).encode()}
    cluster.call(ActorKey.catalog(), "set_policy", policy)


def status(cluster: Cluster, topic: str, source: str = "old") -> dict[str, Any]:
    """The status of the inbound replicator; empty if it doesn't answer now."""
    found = cluster.call(cluster.partition(topic), "pulls")
    return found.get(source) or {}


def caught_up(cluster: Cluster, topic: str, source: str = "old") -> bool:
    """Whether nothing is left to be pulled."""
    found = status(cluster, topic, source)
    return bool(found) and found["backlog"] == 0 and found["quiet"]


def inbound_replicator(cluster: Cluster, topic: str, source: str = "old") -> ActorKey:
    """The key of the actor that pulls."""
    return cluster.partition(topic).of_inbound_replicator(source)


def test_messages_arrive_in_order_with_all_their_metadata(pair: list[Cluster], topic: str) -> None:
    old, new = pair
    producer = old.client.create_producer(topic, "p", initial_sequence_id=40)
    for number, payload in enumerate(PAYLOADS):
        producer.send(payload, {"x": str(number)}, partition_key="k", event_timestamp=number + 1)
    pull(new, topic, "old")
    here = new.subscribe(topic)
    assert received(here, 100) == PAYLOADS
    producer.send(b"more")
    assert received(here, 1) == [b"more"]
    nothing_more(here)
    found, stored = metadata_at(new, topic, 3), metadata_at(old, topic, 3)
    assert found.replicated_from == "old"
    assert found.properties[-1].key == SOURCE_POSITION
    del found.properties[-1]
    found.ClearField("replicated_from")
    assert found == stored
    soon(lambda: caught_up(new, topic))


@pytest.mark.parametrize("who", ["puller", "partition", "source", "both"])
def test_nothing_is_lost_or_duplicated_after_any_kill(
    pair: list[Cluster], topic: str, who: str
) -> None:
    old, new = pair
    pull(new, topic, "old")
    here = new.subscribe(topic)
    victims = {
        "puller": [(new, inbound_replicator(new, topic))],
        "partition": [(new, new.partition(topic))],
        "source": [(old, old.partition(topic))],
        "both": [(new, inbound_replicator(new, topic)), (new, new.partition(topic))],
    }[who]
    producer = old.client.create_producer(topic, block_if_queue_full=True)
    for number in range(600):
        producer.send_async(b"%d" % number, lambda result, at: None)
        if number % 150 == 75:
            producer.flush()
            for cluster, key in victims:
                cluster.local.kill(key)
    producer.flush()
    assert received_once(here, 600) == [b"%d" % number for number in range(600)]
    soon(lambda: caught_up(new, topic))
    assert new.call(new.partition(topic), "stats")["entries"] == entries(old, topic)


def test_a_request_while_inbound_replication_ends_is_answered(
    pair: list[Cluster], topic: str
) -> None:
    old, new = pair
    old.publish(topic, [b"x"])
    pull(new, topic, "old")
    soon(lambda: caught_up(new, topic))
    key = new.partition(topic)

    async def ask_and_end() -> Any:
        pulls = new.local.actor_system.actors[key].geo.inbound
        asked = asyncio.create_task(pulls.statuses())
        await asyncio.sleep(0)  # it has begun
        pulls.apply({})
        return await asked

    assert new.local.run(ask_and_end()) == {"old": None}


def test_unconfirmed_messages_are_not_acknowledged_at_the_source(
    pair: list[Cluster], topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = pair
    pull(new, topic, "old")
    here = new.subscribe(topic)
    old.publish(topic, PAYLOADS[:10], batching_enabled=False)
    assert received(here, 10) == PAYLOADS[:10]
    monkeypatch.setattr(Target, "_send", lambda *args: None)
    old.publish(topic, PAYLOADS[10:], batching_enabled=False)
    soon(lambda: status(new, topic).get("in_flight") == 90)
    soon(lambda: status(new, topic).get("backlog") == 90)
    new.local.kill(inbound_replicator(new, topic))
    monkeypatch.undo()
    assert received(here, 90) == PAYLOADS[10:]


def test_redelivered_messages_are_dropped(
    pair: list[Cluster], topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = pair
    old.publish(topic, PAYLOADS, batching_enabled=False)
    monkeypatch.setattr(Source, "acknowledge", lambda *args: None)
    pull(new, topic, "old")
    here = new.subscribe(topic)
    assert received(here, 100) == PAYLOADS
    new.local.kill(inbound_replicator(new, topic))
    monkeypatch.undo()
    soon(lambda: status(new, topic).get("duplicates") == 100)
    nothing_more(here)
    soon(lambda: caught_up(new, topic))
    assert entries(new, topic) == 100
    samples = [Sample(*each) for each in new.call(inbound_replicator(new, topic), "metrics")]
    assert {str(TopicName.parse(topic))} == {each.labels["topic"] for each in samples}
    values = {name: value for name, labels, value in samples if labels["remote_cluster"] == "old"}
    assert values["velaray_pull_duplicates_total"] == values["velaray_pull_entries_total"] == 100
    assert values["velaray_pull_backlog"] == values["velaray_pull_delay_seconds"] == 0
    assert values["velaray_pull_connected"] == 1 and values["velaray_pull_rate"] > 0


def test_inbound_replication_needs_no_client(pair: list[Cluster], topic: str) -> None:
    old, new = pair
    old.publish(topic, [b"one"])
    pull(new, topic, "old")

    def left() -> int | None:
        found = old.call(old.partition(topic), "stats")["subscriptions"].get("velaray-pull.new")
        return None if found is None else int(found["backlog"])

    soon(lambda: left() == 0)
    for key in (new.partition(topic), inbound_replicator(new, topic)):
        new.local.kill(key)
    old.publish(topic, [b"two"])
    soon(lambda: left() == 0)
    assert received(new.subscribe(topic), 2) == [b"one", b"two"]


def entries(cluster: Cluster, topic: str) -> int:
    return int(cluster.call(cluster.partition(topic), "stats")["entries"])


def received_once(consumer: pulsar.Consumer, count: int) -> list[bytes]:
    """The payloads of so many messages, in the order in which each came first."""
    found: dict[bytes, None] = {}
    while len(found) < count:
        message = consumer.receive(20_000)
        consumer.acknowledge(message)
        found[message.data()] = None
    return list(found)


def test_removing_a_cluster_from_the_policy_ends_its_inbound_replication(
    pair: list[Cluster], topic: str
) -> None:
    old, new = pair
    old.publish(topic, [b"one"])
    pull(new, topic, "old")
    here = new.subscribe(topic)
    assert received(here, 1) == [b"one"]
    pull(new, topic)
    soon(lambda: new.call(new.partition(topic), "pulls") == {})
    old.publish(topic, [b"two"])
    nothing_more(here)
    assert inbound_replicator(new, topic) in new.local.keys(ActorKind.INBOUND_REPLICATOR)
    pull(new, topic, "old")
    assert received(here, 1) == [b"two"]


def test_statistics_show_acked_ranges_beyond_the_mark(pair: list[Cluster], topic: str) -> None:
    old, _ = pair
    there = old.subscribe(topic, consumer_type=pulsar.ConsumerType.Shared)
    old.publish(topic, PAYLOADS[:10], batching_enabled=False)
    for number in range(10):
        message = there.receive(PATIENCE_MS)
        if number in (0, 1, 3, 4, 9):
            there.acknowledge(message)

    def cursor() -> dict[str, Any]:
        found = Admin(old.local.admin_url).internal_stats(topic)
        return dict(found["cursors"]["s"])

    soon(lambda: cursor()["totalNonContiguousDeletedMessagesRange"] == 2)
    ledger, _, mark = cursor()["markDeletePosition"].partition(":")
    told = f"[({ledger}:{int(mark) + 1}..{ledger}:{int(mark) + 3}]"
    told += f",({ledger}:{int(mark) + 7}..{ledger}:{int(mark) + 8}]]"
    assert cursor()["individuallyDeletedMessages"] == told


def acknowledge(cluster: Cluster, topic: str, name: str, count: int, wanted: set[int]) -> None:
    """Take so many messages with a Shared subscription, and acknowledge those numbers."""
    kind = pulsar.ConsumerType.Shared
    consumer = cluster.subscribe(topic, name, consumer_type=kind, receiver_queue_size=count)
    for number in range(count):
        message = consumer.receive(PATIENCE_MS)
        if number in wanted:
            consumer.acknowledge(message)
    consumer.close()


def synced(cluster: Cluster, topic: str) -> None:
    """Wait until subscriptions were looked at once more, and all is here."""
    seen = soon(lambda: status(cluster, topic).get("rounds"))
    soon(lambda: status(cluster, topic).get("rounds", 0) >= seen + 2 and caught_up(cluster, topic))


def test_a_new_subscription_at_the_source_is_created_here(pair: list[Cluster], topic: str) -> None:
    old, new = pair
    old.publish(topic, PAYLOADS[:3])
    properties = {"who": "me"}
    old.client.subscribe(topic, "latest", properties={}).close()
    key = old.partition(topic)
    at_end = {"name": "made", "position": "latest", "properties": properties}
    old.call(key, "create_subscription", at_end)
    pull(new, topic, "old")
    soon(lambda: "made" in new.call(new.partition(topic), "subscriptions"))
    soon(lambda: caught_up(new, topic))
    found = new.call(new.partition(topic), "stats")["subscriptions"]
    assert found["made"]["backlog"] == 0
    assert found["made"]["properties"] == properties
    old.publish(topic, [b"after"])
    assert received(new.subscribe(topic, "made"), 1) == [b"after"]


@pytest.mark.parametrize("who", ["nobody", "puller", "partition", "source", "subscription"])
def test_progress_with_acked_ranges_is_imported(pair: list[Cluster], topic: str, who: str) -> None:
    old, new = pair
    acked = {number for number in range(100) if number % 3 and number % 7} | set(range(20))
    old.subscribe(topic).close()
    old.publish(topic, PAYLOADS, batching_enabled=False)
    pull(new, topic, "old")
    soon(lambda: status(new, topic).get("rounds"))
    half = {number for number in acked if number < 60}
    acknowledge(old, topic, "s", 100, half)
    victims = {
        "puller": [(new, inbound_replicator(new, topic))],
        "partition": [(new, new.partition(topic))],
        "source": [(old, old.partition(topic))],
        "subscription": [(new, key) for key in new.local.keys(ActorKind.SUBSCRIPTION)],
    }
    for cluster, key in victims.get(who, []):
        cluster.local.kill(key)
    left = [number for number in range(100) if number not in half]
    acknowledge(old, topic, "s", len(left), {left.index(each) for each in acked - half})
    synced(new, topic)
    here = new.subscribe(topic, consumer_type=pulsar.ConsumerType.Shared)
    wanted = [number for number in range(100) if number not in acked]
    assert sorted(int(each) for each in received(here, len(wanted))) == wanted
    nothing_more(here)
    assert not new.local.actor_system.failures
