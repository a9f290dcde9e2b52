"""Forgetting a dead letter: every subscription of its topic counts it as acknowledged."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

import velaray
from tests.support.local_cluster import LocalCluster
from velaray.client.admin import Admin, Conflict, NotFound, PreconditionFailed
from velaray.events.ids import ActorKind

SHARED = velaray.ConsumerType.Shared
EARLIEST = velaray.InitialPosition.Earliest
WAIT = 20_000
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running
        assert running.actor_system.failures == []


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[velaray.Client]:
    with velaray.Client(cluster.service_url, operation_timeout_seconds=10) as made:
        yield made


@pytest.fixture
def admin(cluster: LocalCluster) -> Admin:
    return Admin(cluster.admin_url)


@pytest.fixture
def letters(admin: Admin) -> str:
    """A dead-letter topic with the subscriptions ``a`` and ``b``."""
    name = f"forgotten-{next(_numbers)}-s-DLQ"
    admin.topics.create(name)
    for subscription in ("a", "b"):
        admin.subscriptions.create(name, subscription)
    return name


def published(client: velaray.Client, topic: str, *values: bytes) -> list[velaray.MessageId]:
    with client.create_producer(topic) as producer:
        return [producer.send(value, {"REAL_TOPIC": "origin"}) for value in values]


def batch(client: velaray.Client, admin: Admin, topic: str, count: int) -> velaray.MessageId:
    """Publish one entry of so many messages; return its id."""
    with client.create_producer(topic, batching_enabled=True) as producer:
        for number in range(count):
            producer.send_async(b"%d" % number, None, properties={"REAL_TOPIC": "origin"})
        producer.flush()
    return admin.topics.last_message_id(topic)


def message_of(entry: velaray.MessageId, index: int) -> velaray.MessageId:
    """One message of a batch."""
    return velaray.MessageId(-1, entry.ledger_id(), entry.entry_id(), index)


def rest(client: velaray.Client, topic: str, subscription: str) -> list[bytes]:
    """What a subscription still gets."""
    found = []
    with client.subscribe(topic, subscription, SHARED, batch_index_ack_enabled=True) as consumer:
        try:
            while True:
                message = consumer.receive(500)
                found.append(message.data())
                consumer.acknowledge(message, receipt=True)
        except velaray.Timeout:
            return sorted(found)


def test_a_forgotten_letter_is_delivered_to_nobody(
    client: velaray.Client, admin: Admin, letters: str
) -> None:
    ids = published(client, letters, b"0", b"1", b"2")
    assert admin.dead_letters.forget(letters, ids[1]) == ["a", "b"]
    assert admin.dead_letters.forget(letters, ids[1]) == []
    assert [each["id"] for each in admin.dead_letters(letters)] == [
        f"{each.ledger_id()}:{each.entry_id()}:-1:-1" for each in (ids[2], ids[0])
    ]
    for name in ("a", "b"):
        assert rest(client, letters, name) == [b"0", b"2"]
    facts = admin.subscriptions.explain(letters, "a", ids[1])["facts"]
    assert facts[-1]["text"] == "skipped by expire: requested by an administrator"


def test_only_those_that_hold_a_letter_are_named(
    client: velaray.Client, admin: Admin, letters: str
) -> None:
    (letter,) = published(client, letters, b"x")
    assert rest(client, letters, "a") == [b"x"]
    assert [each["subscriptions"] for each in admin.dead_letters(letters)] == [["b"]]
    assert admin.dead_letters.forget(letters, letter) == ["b"]
    assert admin.dead_letters(letters) == []


def test_a_letter_is_forgotten_under_a_consumer_that_may_hold_it(
    client: velaray.Client, admin: Admin, letters: str
) -> None:
    consumer = client.subscribe(letters, "a", SHARED)
    ids = published(client, letters, b"0", b"1")
    held = consumer.receive(WAIT)
    admin.dead_letters.forget(letters, ids[0])
    consumer.negative_acknowledge(held)
    assert consumer.receive(WAIT).data() == b"1"
    consumer.close()
    assert rest(client, letters, "a") == [b"1"]


def test_forgetting_a_letter_is_undone(client: velaray.Client, admin: Admin, letters: str) -> None:
    (letter,) = published(client, letters, b"x")
    admin.dead_letters.forget(letters, letter)
    admin.subscriptions.undo(letters, "a")
    assert rest(client, letters, "a") == [b"x"]
    assert rest(client, letters, "b") == []


def test_one_message_of_a_batch_is_forgotten(
    client: velaray.Client, admin: Admin, letters: str
) -> None:
    entry = batch(client, admin, letters, 3)
    assert admin.dead_letters.forget(letters, message_of(entry, 1)) == ["a", "b"]
    assert admin.dead_letters.forget(letters, message_of(entry, 1)) == []
    left = [each["id"].split(":")[-1] for each in admin.dead_letters(letters)]
    assert left == ["2", "0"]
    with pytest.raises(NotFound, match="3 messages"):
        admin.dead_letters.forget(letters, message_of(entry, 3))
    assert rest(client, letters, "a") == [b"0", b"2"]
    admin.dead_letters.forget(letters, message_of(entry, 0))
    admin.dead_letters.forget(letters, message_of(entry, 2))
    assert admin.stats(letters)["subscriptions"]["b"]["msgBacklog"] == 0


def test_forgetting_is_durable(
    cluster: LocalCluster, client: velaray.Client, admin: Admin, letters: str
) -> None:
    entry = batch(client, admin, letters, 3)
    (letter,) = published(client, letters, b"x")
    admin.dead_letters.forget(letters, letter)
    admin.dead_letters.forget(letters, message_of(entry, 0))
    for kind in (ActorKind.PARTITION, ActorKind.SUBSCRIPTION):
        for key in cluster.keys(kind):
            if letters in key.text():
                cluster.kill(key)
    assert rest(client, letters, "a") == [b"1", b"2"]


def test_a_letter_of_a_partition_is_named_by_its_id(client: velaray.Client, admin: Admin) -> None:
    topic = f"forgotten-{next(_numbers)}-s-DLQ"
    admin.topics.create(topic, partitions=2)
    admin.subscriptions.create(topic, "a")
    published(client, topic, b"0", b"1", b"2", b"3")
    found = admin.dead_letters(topic)
    assert len({each["topic"] for each in found}) == 2 and len(found) == 4
    ledger, entry, partition, _ = map(int, found[0]["id"].split(":"))
    letter = velaray.MessageId(partition, ledger, entry)
    assert admin.dead_letters.forget(topic, letter) == ["a"]
    assert len(admin.dead_letters(topic)) == 3


def test_what_is_no_letter_stays(client: velaray.Client, admin: Admin) -> None:
    topic = f"plain-{next(_numbers)}"
    admin.topics.create(topic)
    (marked,) = published(client, topic, b"x")
    with pytest.raises(Conflict, match="no subscription"):
        admin.dead_letters.forget(topic, marked)
    admin.subscriptions.create(topic, "a", velaray.MessageId.earliest)
    with client.create_producer(topic) as producer:
        unmarked = producer.send(b"y")
    with pytest.raises(PreconditionFailed, match="isn't a dead letter"):
        admin.dead_letters.forget(topic, unmarked)
    with pytest.raises(NotFound, match="no entry"):
        admin.dead_letters.forget(topic, velaray.MessageId(-1, 999_999_999, 0))
    assert admin.dead_letters.forget(topic, marked) == ["a"]
    assert rest(client, topic, "a") == [b"y"]


def test_a_copy_goes_back_to_where_the_letter_came_from(
    client: velaray.Client, admin: Admin, letters: str
) -> None:
    consumer = client.subscribe(letters.removesuffix("-s-DLQ"), "s")
    with client.create_producer(letters) as producer:
        marks = {"REAL_TOPIC": letters.removesuffix("-s-DLQ"), "own": "kept"}
        letter = producer.send(b"again", marks, "k")
        lost = producer.send(b"lost")
    origin, copy = admin.dead_letters.republish(letters, letter)
    assert origin == marks["REAL_TOPIC"]
    message = consumer.receive(WAIT)
    assert (message.data(), message.partition_key()) == (b"again", "k")
    assert message.properties() == {"own": "kept"}
    assert message.message_id().entry_id() == copy.entry_id()
    with pytest.raises(PreconditionFailed, match="REAL_TOPIC"):
        admin.dead_letters.republish(letters, lost)
    assert len(admin.dead_letters(letters)) == 2
