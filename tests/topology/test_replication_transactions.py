"""Transactions that go to other clusters: all of one is there, or nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest
from click.testing import CliRunner

import velaray
from tests.topology.replicating import (
    Cluster,
    clusters,
    metadata_at,
    nothing_more,
    received,
    replicating,
    soon,
)
from velaray.actors.coordinator.machine import AddPartitions
from velaray.actors.partition.state import PartitionState
from velaray.broker.partition.partition_actor import PartitionActor
from velaray.cli.app import main
from velaray.client.admin import Admin, Invalid
from velaray.events.ids import ActorKey, ActorKind, TransactionId
from velaray.wire.messages import build_entry, open_entry
from velaray.wire.pulsar_pb2 import MessageMetadata
from velaray.wire.stamping import labelled, transaction_of

_NUMBERS = count()
NOWHERE = {"service_url": "pulsar://127.0.0.1:1", "admin_url": ""}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Cluster]]:
    with clusters(tmp_path_factory.mktemp("clusters"), "east", "west") as found:
        yield found


@pytest.fixture
def topics(pair: list[Cluster]) -> list[str]:
    """Two topics that are replicated from east to west, and are there."""
    number = next(_NUMBERS)
    names = [f"persistent://public/default/{letter}{number}" for letter in "ab"]
    east, west = pair
    for name in names:
        east.partition(name)
        west.partition(name)
        east.replicate(name, {"west": west.describe()})
    for name in names:
        east.call(east.partition(name), "describe")
        replicating(east, name, "west")
    return names


@pytest.fixture(scope="module")
def client(pair: list[Cluster]) -> Iterator[velaray.Client]:
    with velaray.Client(pair[0].local.service_url) as made:
        yield made


def send(
    client: velaray.Client, topic: str, *payloads: bytes, txn: velaray.Transaction | None = None
) -> None:
    with client.create_producer(topic) as producer:
        for payload in payloads:
            producer.send(payload, txn=txn)


def state_of(cluster: Cluster, topic: str) -> PartitionState:
    """As it is durably."""
    key = cluster.partition(topic)

    async def read() -> Any:
        await cluster.local.actor_system.address(key)
        actor = cluster.local.actor_system.actors[key]
        assert isinstance(actor, PartitionActor)
        return await actor.runtime.read(lambda state: state)

    found = cluster.local.run(read())
    assert isinstance(found, PartitionState)
    return found


def stored(cluster: Cluster, topic: str, entries: int) -> Callable[[], bool]:
    return lambda: state_of(cluster, topic).end_offset == entries


def hold(pair: list[Cluster], topic: str) -> None:
    """Nothing comes to west of this topic any more."""
    east, west = pair
    east.replicate(topic, {"west": west.describe(**NOWHERE)})
    soon(lambda: east.status(topic, "west").get("state") == "waiting")


def let_go(pair: list[Cluster], topic: str) -> None:
    pair[0].replicate(topic, {"west": pair[1].describe()})


def nothing_is_left(pair: list[Cluster], topics: list[str]) -> None:
    """Neither source nor target keeps anything of any transaction."""
    east, west = pair
    for topic in topics:
        soon(lambda topic=topic: not state_of(east, topic).outgoing)
        soon(lambda topic=topic: east.status(topic, "west")["state"] == "replicating")
        soon(lambda topic=topic: east.replicator(topic, "west").control.replicator.quiet)
        soon(lambda topic=topic: not state_of(west, topic).arriving.kept)
        there = state_of(west, topic)
        assert not there.transactions.ongoing
        assert not (there.arriving.complete or there.arriving.given_up)


def test_committed_messages_are_shown_in_all_topics(
    pair: list[Cluster], topics: list[str], client: velaray.Client
) -> None:
    consumers = [pair[1].subscribe(topic) for topic in topics]
    with client.transaction() as transaction:
        for topic in topics:
            send(client, topic, b"1", b"2", txn=transaction)
        send(client, topics[0], b"plain")
    assert received(consumers[0], 3) == [b"1", b"2", b"plain"]
    assert received(consumers[1], 2) == [b"1", b"2"]
    nothing_is_left(pair, topics)
    metadata = metadata_at(pair[1], topics[1], 2)
    assert (metadata.txnid_most_bits, metadata.txnid_least_bits) == transaction.txn_id
    assert "east" in state_of(pair[1], topics[0]).arriving.heard  # it wasn't just stored


def test_ongoing_messages_are_not_replicated_and_aborted_ones_never(
    pair: list[Cluster], topics: list[str], client: velaray.Client
) -> None:
    """Pulsar's ReplicationTxnTest.testOngoingMessagesWillNotBeReplicated."""
    transaction = client.transaction()
    send(client, topics[0], b"open", txn=transaction)
    send(client, topics[0], b"behind")
    aborted = client.transaction()
    send(client, topics[1], b"aborted", txn=aborted)
    aborted.abort()
    send(client, topics[1], b"plain")
    assert received(pair[1].subscribe(topics[1]), 1) == [b"plain"]
    consumer = pair[1].subscribe(topics[0])
    nothing_more(consumer)
    assert state_of(pair[1], topics[0]).end_offset == 0
    transaction.abort()
    assert received(consumer, 1) == [b"behind"]
    nothing_is_left(pair, topics)


def test_a_transaction_is_shown_only_after_all_its_messages_arrived(
    pair: list[Cluster], topics: list[str], client: velaray.Client
) -> None:
    hold(pair, topics[1])
    consumers = [pair[1].subscribe(topic) for topic in topics]
    with client.transaction() as transaction:
        for topic in topics:
            send(client, topic, b"1", txn=transaction)
    send(client, topics[0], b"behind")
    soon(stored(pair[1], topics[0], 2))
    soon(lambda: state_of(pair[1], topics[0]).arriving.kept)
    nothing_more(consumers[0])
    key = pair[1].partition(topics[0])
    (told,) = pair[1].call(key, "foreign_transactions")["kept"]
    assert (told["missing"], told["released"]) == ([topics[1]], None)
    assert (told["cluster"], told["transaction"]) == ("east", str(transaction.txn_id))
    let_go(pair, topics[1])
    assert received(consumers[0], 2) == [b"1", b"behind"]
    assert received(consumers[1], 1) == [b"1"]
    nothing_is_left(pair, topics)


def test_a_missing_deciding_partition_is_notified_once_it_exists(
    pair: list[Cluster], client: velaray.Client
) -> None:
    east, west = pair
    topics = [f"persistent://public/default/{letter}{next(_NUMBERS)}" for letter in "ab"]
    east.partition(topics[0])
    east.partition(topics[1])
    east.replicate(topics[0], {"west": west.describe(**NOWHERE)})
    east.replicate(topics[1], {"west": west.describe()})
    for topic in topics:
        east.call(east.partition(topic), "describe")
    soon(lambda: east.status(topics[0], "west").get("state") == "waiting")
    replicating(east, topics[1], "west")
    with client.transaction() as transaction:
        for topic in topics:
            send(client, topic, b"1", txn=transaction)
    soon(stored(west, topics[1], 1))
    key = west.partition(topics[1])

    def why() -> str:
        (told,) = west.call(key, "foreign_transactions")["complete"] or [{"reason": ""}]
        return str(told["reason"])

    soon(lambda: topics[0] in why())
    assert "doesn't answer" in why()
    let_go(pair, topics[0])
    for topic in topics:
        assert received(west.subscribe(topic), 1) == [b"1"]
    nothing_is_left(pair, topics)


def test_a_transaction_of_one_topic_needs_no_deciding_partition(
    pair: list[Cluster], topics: list[str], client: velaray.Client
) -> None:
    for number in range(3):
        with client.transaction() as transaction:
            send(client, topics[0], b"%d" % number, b"more", txn=transaction)
    assert received(pair[1].subscribe(topics[0]), 6)[::2] == [b"0", b"1", b"2"]
    nothing_is_left(pair, topics)


def test_a_transaction_does_not_wait_for_unreplicated_topics(
    pair: list[Cluster], topics: list[str], client: velaray.Client
) -> None:
    other = topics[0] + "-stays"
    unused = client.create_producer(topics[1])
    with client.transaction() as transaction:
        send(client, other, b"here", txn=transaction)
        send(client, topics[0], b"1", txn=transaction)
    unused.close()
    assert received(pair[1].subscribe(topics[0]), 1) == [b"1"]
    nothing_is_left(pair, topics)
    assert state_of(pair[0], other).outgoing.next_number == 1


def test_a_transaction_does_not_wait_for_participants_without_messages(
    pair: list[Cluster], topics: list[str], client: velaray.Client
) -> None:
    coordinator = ActorKey.of_coordinator(0)
    transaction = client.transaction()
    send(client, topics[1], b"1", txn=transaction)
    sequence = transaction.txn_id.sequence

    async def join() -> None:
        actor = pair[0].local.actor_system.actors[coordinator]
        await actor.ask(AddPartitions(sequence, [topics[0]]))  # type: ignore[attr-defined]

    pair[0].local.run(join())
    transaction.commit()
    assert received(pair[1].subscribe(topics[1]), 1) == [b"1"]
    nothing_is_left(pair, topics)


def test_an_abandoned_transaction_stays_hidden_with_later_messages(
    pair: list[Cluster], topics: list[str], client: velaray.Client
) -> None:
    west = pair[1]
    hold(pair, topics[1])
    consumers = [west.subscribe(topic) for topic in topics]
    with client.transaction() as transaction:
        for topic in topics:
            send(client, topic, b"1", b"2", txn=transaction)
    send(client, topics[0], b"behind")
    soon(lambda: state_of(west, topics[0]).arriving.kept)
    keys = [west.partition(topic) for topic in topics]
    assert west.call(keys[0], "settle_foreign") == {}
    assert west.call(keys[0], "give_up_foreign", {"cluster": "north"})["given_up"] == 0
    given_up = west.call(keys[0], "give_up_foreign", {"cluster": "east"})
    assert given_up == {"given_up": 1, "released": 0}
    assert received(consumers[0], 1) == [b"behind"]
    let_go(pair, topics[1])
    send(client, topics[1], b"later")
    assert received(consumers[1], 1) == [b"later"]
    nothing_is_left(pair, topics)
    assert list(state_of(west, topics[1]).transactions.hidden) == [(0, 2)]
    for consumer in consumers:
        nothing_more(consumer)


def test_an_entry_can_be_labelled_with_its_transaction() -> None:
    metadata = MessageMetadata(producer_name="p", sequence_id=3, publish_time=1)
    entry = bytes(build_entry(metadata, b"x"))
    transaction = TransactionId(3, 7)
    said = labelled(entry, transaction)
    assert said != entry and transaction_of(open_entry(said)[0]) == transaction
    assert labelled(said, transaction) is said
    assert labelled(b"\x0e\x01nonsense", transaction) == b"\x0e\x01nonsense"


@pytest.mark.parametrize("victim", ["source", "target", "replicator", "coordinator"])
def test_every_transaction_arrives_completely_after_any_crash(
    pair: list[Cluster], topics: list[str], client: velaray.Client, victim: str
) -> None:
    east, west = pair

    def kill() -> None:
        if victim == "coordinator":
            east.local.kill(ActorKey.of_coordinator(0))
        elif victim == "target":
            for key in [west.partition(topic) for topic in topics]:
                west.local.kill(key)
        else:
            kind = ActorKind.PARTITION if victim == "source" else ActorKind.SUBSCRIPTION
            names = set(topics)
            for key in east.local.keys(kind):
                if str(key.topic_name) in names:
                    east.local.kill(key)

    producers = [client.create_producer(topic) for topic in topics]
    for number in range(8):
        with client.transaction() as transaction:
            for producer in producers:
                producer.send(b"%d" % number, txn=transaction)
        kill()
    for producer in producers:
        producer.close()
    for topic in topics:
        assert received(west.subscribe(topic), 8) == [b"%d" % number for number in range(8)]
    nothing_is_left(pair, topics)


def test_the_command_abandons_an_incomplete_transaction(
    pair: list[Cluster], topics: list[str], client: velaray.Client
) -> None:
    west = pair[1]
    hold(pair, topics[1])
    with client.transaction() as transaction:
        for topic in topics:
            send(client, topic, b"1", txn=transaction)
    send(client, topics[0], b"behind")
    soon(lambda: state_of(west, topics[0]).arriving.kept)
    where = {"VELARAY_ADMIN_URL": west.local.admin_url}
    command = ["replication", "give-up", "east", *topics, "--yes", "-o", "json"]
    found = CliRunner(env=where).invoke(main, command)
    assert found.exit_code == 0, (found.output, found.exception)
    rows = [[row["given_up"], row["released"]] for row in json.loads(found.stdout)]
    assert rows == [[1, 0], [0, 0]]
    assert received(west.subscribe(topics[0]), 1) == [b"behind"]
    refused = Admin(west.local.admin_url)
    with pytest.raises(Invalid):
        refused.request("POST", "replication/give-up", {"topics": topics}, version=3)
    let_go(pair, topics[1])
    nothing_is_left(pair, topics)
