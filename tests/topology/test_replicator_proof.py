"""Whom a partition takes for the replicator of another cluster."""

from __future__ import annotations

from pathlib import Path

import pulsar
import pytest

from tests.support.by_name import call_by_name
from tests.support.local_cluster import REPLICATION_SECRET
from tests.topology.geo import TOPIC, Client, Replicator, Site, proved, run, stamped
from tests.topology.replicating import Cluster, clusters, soon
from velaray.events.ids import ActorKey, Position
from velaray.topology.auth import (
    AuthenticationFailed,
    check_replicator_proof,
    replicator_proof,
)
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.commands import Command, Send
from velaray.wire.messages import build_entry
from velaray.wire.replication import CLIENT_VERSION, DATA_ID, replicator_name

FAR = Position(1 << 52 | 900 << 24, 1_000_000)
"""Behind all that east will ever store in the test."""


def hello(metadata: list[pb.KeyValue], name: str = "") -> pb.CommandProducer:
    return pb.CommandProducer(
        topic=str(TOPIC),
        producer_id=1,
        request_id=1,
        producer_name=name or replicator_name("east", "west"),
        metadata=metadata,
    )


async def intruder(site: Site) -> Client:
    """A client that presents itself as replicators do."""
    client = await site.client()
    client.session._connected = False
    client.say(pb.CommandConnect(client_version=f"{CLIENT_VERSION}-1", protocol_version=19))
    await client.answer(pb.CommandConnected)
    return client


async def told(client: Client, command: Command) -> str:
    """Why it is refused; "" if it isn't."""
    client.say(command)
    answer = await client.answer(pb.CommandError, pb.CommandProducerSuccess, pb.CommandSuccess)
    if not isinstance(answer, pb.CommandError):
        return ""
    assert answer.error == pb.NotAllowedError
    return str(answer.message)


def test_a_forged_replicator_makes_nothing_a_duplicate() -> None:
    """A forged entry far ahead would make a duplicate of all that the real replicator sends."""

    async def scenario(east: Site, west: Site) -> None:
        forger = await intruder(west)
        if not await told(forger, hello([])):
            metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
            forger.say(Send(1, 0), stamped(build_entry(metadata, b"forged"), "east", FAR))
            await forger.answer(pb.CommandSendReceipt)
        for number in range(3):
            await east.publish(number)
        replicator = await Replicator(east, west).connect()
        receipts = await replicator.replicate()
        assert [receipt.message_id.entryId for receipt in receipts] == [0, 1, 2]
        assert await west.payloads() == ["east-p-0", "east-p-1", "east-p-2"]

    run(scenario)


@pytest.mark.parametrize(
    "metadata",
    [
        [],
        [pb.KeyValue(key=DATA_ID, value="forged")],
        proved("north", "west"),
        proved("east", "south"),
        [*proved("east", "west"), pb.KeyValue(key=DATA_ID, value="forged")],
    ],
    ids=["none", "data alone", "of another source", "for another target", "of other data"],
)
def test_an_invalid_proof_is_refused_with_a_remedy(metadata: list[pb.KeyValue]) -> None:
    async def scenario(east: Site, west: Site) -> None:
        there = {"cluster": "east", "service_url": "pulsar://h:1", "admin_url": "http://h:2"}
        await call_by_name(west.actor_system, ActorKey.catalog(), "register_cluster", there)
        why = await told(await intruder(west), hello(metadata))
        assert "replicator of cluster 'east' is refused" in why
        assert "--replication-secret" in why
        # Nor is the forged id of its data remembered: the real one may come with its own.
        real = await intruder(west)
        assert not await told(real, hello(proved("east", "west", "its own")))

    run(scenario)


def test_without_a_secret_no_client_is_a_replicator() -> None:
    async def scenario(east: Site, west: Site) -> None:
        object.__setattr__(west.actor_system.config, "replication_secret", b"")
        empty = replicator_proof(b"", "east", "west", "")
        for proof in ("", empty):
            with pytest.raises(AuthenticationFailed, match="has no replication secret"):
                check_replicator_proof([], "east", "west", "", proof)
        why = await told(await intruder(west), hello(proved("east", "west")))
        assert "cluster 'west' has no replication secret" in why

    run(scenario)


def test_only_actors_may_use_names_of_replicators() -> None:
    async def scenario(east: Site, west: Site) -> None:
        client = await intruder(west)
        assert "only replicators" in await told(client, hello([], "pulsar.repl.nobody"))
        subscribe = pb.CommandSubscribe(
            topic=str(TOPIC),
            subscription="pulsar.repl.east",
            subType=pb.CommandSubscribe.Exclusive,
            consumer_id=1,
            request_id=1,
        )
        assert "only replicators" in await told(client, subscribe)

    run(scenario)


def test_replication_with_different_secrets_is_reported_and_continues_with_the_same(
    tmp_path: Path,
) -> None:
    with clusters(tmp_path, "a", "b") as (a, b):
        object.__setattr__(b.local.config, "replication_secret", b"another secret")
        topic = "persistent://public/default/proved"
        a.partition(topic)
        b.partition(topic)
        a.set_replication({"topic": topic}, ["a", "b"])
        a.call(a.partition(topic), "describe")
        soon(lambda: "not that of cluster 'b'" in str(a.status(topic, "b").get("reason")))
        a.publish(topic, [b"x"])
        object.__setattr__(b.local.config, "replication_secret", REPLICATION_SECRET)
        soon(lambda: received(b, topic) == [b"x"])


def received(cluster: Cluster, topic: str) -> list[bytes]:
    reader = cluster.client.create_reader(topic, pulsar.MessageId.earliest)
    try:
        found = []
        while reader.has_message_available():
            found.append(reader.read_next(5000).data())
        return found
    finally:
        reader.close()
