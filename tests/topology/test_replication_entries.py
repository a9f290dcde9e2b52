"""Entries that replicators meet besides ordinary ones."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

import velaray
from tests.official.raw import RawClient
from tests.topology.replicating import (
    Cluster,
    clusters,
    metadata_at,
    nothing_more,
    received,
    replicating,
    soon,
)
from velaray.broker.partition.session import publishing
from velaray.events.ids import ActorKey
from velaray.geo.replication import replicator
from velaray.wire.commands import entry_header
from velaray.wire.frames import seal_entry
from velaray.wire.messages import build_entry
from velaray.wire.pulsar_pb2 import (
    CommandProducer,
    CommandProducerSuccess,
    CommandSend,
    CommandSendReceipt,
    MessageMetadata,
)

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Cluster]]:
    with clusters(tmp_path_factory.mktemp("pair"), "a", "b") as found:
        yield found


@pytest.fixture
def topic() -> str:
    return f"persistent://public/default/t{next(_numbers)}"


def backlog(cluster: Cluster, topic: str) -> int:
    found = cluster.call(cluster.partition(topic), "stats")["subscriptions"]
    return int(found["pulsar.repl.b"]["backlog"])


def test_unreadable_entries_do_not_stop_replication(pair: list[Cluster], topic: str) -> None:
    a, b = pair
    a.replicate(topic, {"b": b.describe()})
    a.publish_entry(topic, seal_entry(b"\0\0\0\x03\xff\xff\xffxyz"))
    a.publish(topic, [b"good"])
    assert received(b.subscribe(topic), 1) == [b"good"]
    assert a.status(topic, "b")["passed_over"] == {"undecodable": 1}
    soon(lambda: backlog(a, topic) == 0)


def test_expired_messages_are_not_replicated(pair: list[Cluster], topic: str) -> None:
    a, b = pair
    a.replicate(topic, {"b": b.describe()})
    a.partition(topic)
    a.set_policy({"topic": topic}, "messageTTL", 3600)
    key = a.partition(topic)
    soon(lambda: a.call(key, "stats")["policies"]["messageTTL"] == 3600)
    a.publish_raw(topic, b"old", publish_time=1)
    a.publish(topic, [b"new"])
    assert received(b.subscribe(topic), 1) == [b"new"]
    assert a.status(topic, "b")["passed_over"] == {"expired": 1}


def test_an_entry_with_a_wrong_message_count_does_not_stop_replication(
    pair: list[Cluster], topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It costs permits that its reader can't know of."""
    monkeypatch.setattr(replicator, "LOOK_S", 0.1)
    # Partitions refuse such an entry; those of 0.1.0 stored it.
    monkeypatch.setattr(publishing, "fault_of", lambda send, entry: "")
    a, b = pair
    a.replicate(topic, {"b": b.describe()})
    key = a.partition(topic)

    async def publish() -> None:
        address = await a.local.actor_system.reach(key)
        raw = await RawClient.connect(address.host, address.service_port)
        raw.send(CommandProducer(topic=topic, producer_id=1, request_id=1))
        await raw.next(CommandProducerSuccess)
        metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
        entry = build_entry(metadata, b"x")
        command = CommandSend(producer_id=1, sequence_id=0, num_messages=100_000)
        raw._connection.write(entry_header(command, len(entry)) + entry)
        await raw.next(CommandSendReceipt)
        raw.close()

    a.call(key, "describe")
    replicating(a, topic, "b")
    a.local.run(publish())
    a.publish(topic, [b"%d" % number for number in range(10)])
    assert received(b.subscribe(topic), 11)[1:] == [b"%d" % number for number in range(10)]


def test_delays_and_keys_are_those_of_the_first_producer(pair: list[Cluster], topic: str) -> None:
    a, b = pair
    a.replicate(topic, {"b": b.describe()})
    producer = a.client.create_producer(topic)
    producer.send(b"later", partition_key="k", ordering_key="o", deliver_at=1 << 50)
    soon(lambda: b.call(b.partition(topic), "stats")["end_offset"] == 1)
    found = metadata_at(b, topic, 1)
    assert (found.partition_key, found.ordering_key) == ("k", b"o")
    assert found.deliver_at_time == 1 << 50


def test_only_committed_messages_are_replicated(pair: list[Cluster], topic: str) -> None:
    a, b = pair
    a.replicate(topic, {"b": b.describe()})
    there = b.subscribe(topic)

    async def transact() -> None:
        async with velaray.aio.Client(a.local.service_url) as client:
            producer = await client.create_producer(topic)
            aborted, committed = [await client.new_transaction() for _ in range(2)]
            await producer.send(b"aborted", txn=aborted)
            await producer.send(b"committed", txn=committed)
            await producer.send(b"behind")
            await asyncio.to_thread(nothing_more, there)
            await aborted.abort()
            await committed.commit()

    asyncio.run(transact())
    assert received(there, 2) == [b"committed", b"behind"]
    nothing_more(there)
    soon(lambda: backlog(a, topic) == 0)


def test_a_refused_entry_stops_later_ones_until_it_is_accepted(
    pair: list[Cluster], topic: str
) -> None:
    a, b = pair
    a.replicate(topic, {"b": b.describe()})
    b.partition(topic)
    b.set_policy({"topic": topic}, "maxMessageSize", 1000)
    soon(lambda: b.call(b.partition(topic), "stats")["policies"]["maxMessageSize"] == 1000)
    large = b"x" * 2000
    a.publish(topic, [b"first", large, *[b"%d" % number for number in range(50)]])
    reason = soon(lambda: a.status(topic, "b").get("reason"))
    assert "refuses an entry" in reason and "at most 1000 bytes" in reason
    there = b.subscribe(topic)
    assert received(there, 1) == [b"first"]
    nothing_more(there)
    b.set_policy({"topic": topic}, "maxMessageSize", 0)
    assert received(there, 51) == [large, *[b"%d" % number for number in range(50)]]


def test_a_backlog_is_replicated_after_a_restart_of_the_cluster(tmp_path: Path) -> None:
    with clusters(tmp_path / "1", "b") as (b,):
        away = {"service_url": "pulsar://127.0.0.1:1", "admin_url": "http://127.0.0.1:1"}
        with clusters(tmp_path / "2", "a", first=2) as (a,):
            a.call(ActorKey.catalog(), "register_cluster", {"cluster": "b", **away})
            allowed = {"tenant": "public", "allowed_clusters": ["a", "b"]}
            a.call(ActorKey.catalog(), "update_tenant", allowed)
            a.set_replication({"namespace": "public/default"}, ["a", "b"])
            a.publish("t", [b"x", b"y"])
        with clusters(tmp_path / "2", "a", first=2) as (a,):
            a.call(ActorKey.catalog(), "update_cluster", {"cluster": "b", **b.local.urls})
            assert received(b.subscribe("t"), 2) == [b"x", b"y"]
