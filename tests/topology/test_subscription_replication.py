"""Two clusters that replicate to each other: a subscription goes on in either where it was."""

from __future__ import annotations

from collections.abc import Iterator

import pulsar
import pytest

from tests.topology.replicating import (
    PATIENCE_MS,
    Cluster,
    clusters,
    nothing_more,
    received,
    soon,
)
from velaray.client.admin import Admin
from velaray.client.message_id import MessageId
from velaray.events.ids import EARLIEST, LATEST, ActorKind
from velaray.topology.rpc import RemoteError


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Cluster]]:
    with clusters(tmp_path_factory.mktemp("follow"), "a", "b") as found:
        yield found


def mutual(both: list[Cluster], topic: str) -> tuple[Cluster, Cluster, str]:
    """Both replicate the topic to each other."""
    a, b = both
    name = f"persistent://public/default/{topic}"
    for here, there in ((a, b), (b, a)):
        here.partition(name)
        here.replicate(name, {there.name: there.describe(progress="exact")})
    return a, b, name


def subscribe(cluster: Cluster, topic: str, **options: object) -> pulsar.Consumer:
    shared = {"consumer_type": pulsar.ConsumerType.Shared, "receiver_queue_size": 1000}
    return cluster.subscribe(
        topic, replicate_subscription_state_enabled=True, **{**shared, **options}
    )


def taken(consumer: pulsar.Consumer, count: int) -> dict[bytes, pulsar.Message]:
    """So many messages, not acknowledged."""
    messages = [consumer.receive(PATIENCE_MS) for _ in range(count)]
    return {message.data(): message for message in messages}


def backlog(cluster: Cluster, topic: str) -> int | None:
    """Entries that the cluster's subscription lacks; None if there is none."""
    partition = cluster.partition(topic)
    try:
        cluster.call(partition, "subscription", {"name": "s"})
    except RemoteError:
        return None
    return int(stats(cluster, topic)["backlog"])  # type: ignore[call-overload]


def stats(cluster: Cluster, topic: str) -> dict[str, object]:
    """The known state of the cluster's subscription."""
    found: dict[str, object] = cluster.call(cluster.partition(topic), "stats")["subscriptions"]["s"]
    return found


def numbered(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


def test_a_consumer_continues_in_the_other_cluster_and_back(both: list[Cluster]) -> None:
    a, b, topic = mutual(both, "moves")
    at_a = subscribe(a, topic)
    a.publish(topic, numbered(0, 30))
    found = taken(at_a, 30)
    for number in range(0, 30, 3):
        at_a.acknowledge(found[b"%d" % number])
    soon(lambda: backlog(b, topic) == 20)
    at_a.close()
    at_b = subscribe(b, topic)
    b.publish(topic, numbered(100, 105))
    found = taken(at_b, 25)
    assert set(found) == {each for each in numbered(0, 30) if int(each) % 3} | set(
        numbered(100, 105)
    )
    for number in (1, 2, 4, 100, 101):
        at_b.acknowledge(found[b"%d" % number])
    soon(lambda: backlog(a, topic) == 20)
    at_b.close()
    again = subscribe(a, topic)
    left = {each for each in found if each not in (b"1", b"2", b"4", b"100", b"101")}
    assert set(taken(again, 20)) == left
    nothing_more(again)
    again.close()


def test_explain_names_the_cluster_where_an_entry_was_acknowledged(both: list[Cluster]) -> None:
    a, b, topic = mutual(both, "why")
    at_a = subscribe(a, topic)
    a.publish(topic, numbered(0, 2))
    at_a.acknowledge(taken(at_a, 2)[b"1"])
    soon(lambda: backlog(b, topic) == 1)
    at_a.close()
    reader = b.client.create_reader(topic, pulsar.MessageId.earliest)
    ids = [reader.read_next(PATIENCE_MS).message_id() for _ in range(2)]
    reader.close()
    message = MessageId(ids[1].partition(), ids[1].ledger_id(), ids[1].entry_id(), -1)
    facts = Admin(b.local.admin_url).explain(topic, "s", message)["facts"]
    assert facts[-1]["text"] == "acknowledged in cluster a, as that cluster reported"


def test_a_seek_forward_is_replicated_and_one_back_is_not(both: list[Cluster]) -> None:
    a, b, topic = mutual(both, "seeks")
    subscribe(a, topic).close()
    b.publish(topic, numbered(0, 5))
    a.publish(topic, numbered(5, 10))
    soon(lambda: backlog(a, topic) == backlog(b, topic) == 10)
    a.call(a.partition(topic), "seek", {"name": "s", "position": list(LATEST)})
    soon(lambda: backlog(a, topic) == backlog(b, topic) == 0)
    a.call(a.partition(topic), "seek", {"name": "s", "position": list(EARLIEST)})
    b.publish(topic, numbered(10, 11))
    soon(lambda: backlog(a, topic) == 11)
    at_a = subscribe(a, topic)
    at_a.acknowledge(taken(at_a, 11)[b"10"])
    soon(lambda: backlog(b, topic) == 0)
    at_a.close()


def test_other_messages_of_a_partly_acked_batch_are_delivered(both: list[Cluster]) -> None:
    a, b, topic = mutual(both, "batches")
    at_a = subscribe(a, topic, batch_index_ack_enabled=True)
    a.publish(topic, numbered(0, 10), batching_enabled=True, batching_max_publish_delay_ms=500)
    found = taken(at_a, 10)
    for number in (0, 5, 9):
        at_a.acknowledge(found[b"%d" % number])
    soon(lambda: backlog(b, topic) == 1 and stats(b, topic)["partial"] == 1)
    at_a.close()
    at_b = subscribe(b, topic, batch_index_ack_enabled=True)
    assert set(received(at_b, 7)) == {b"1", b"2", b"3", b"4", b"6", b"7", b"8"}
    nothing_more(at_b)
    at_b.close()


def test_a_subscription_without_replication_does_not_move(both: list[Cluster]) -> None:
    a, b, topic = mutual(both, "stays")
    at_a = a.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    follows = a.subscribe(topic, "follows", replicate_subscription_state_enabled=True)
    a.publish(topic, numbered(0, 3))
    received(at_a, 3)
    received(follows, 3)
    soon(lambda: "follows" in b.call(b.partition(topic), "subscriptions"))
    assert "s" not in b.call(b.partition(topic), "subscriptions")
    at_a.close()
    follows.close()


def test_subscriptions_converge_after_any_crash(both: list[Cluster]) -> None:
    a, b, topic = mutual(both, "kills")
    at_a = subscribe(a, topic)
    total = 60
    for first in range(0, total, 10):
        a.publish(topic, numbered(first, first + 10))
        kill(a, topic, "pulsar.repl.b")
        kill(b, topic, "")
    found = taken(at_a, total)
    for number in range(total):
        if number % 4:
            at_a.acknowledge(found[b"%d" % number])
        if number % 15 == 7:
            kill(b, topic, "s" if number % 2 else "")
            kill(a, topic, "pulsar.repl.b")
    soon(lambda: backlog(a, topic) == backlog(b, topic) == total // 4)
    at_a.close()
    at_b = subscribe(b, topic)
    assert set(taken(at_b, total // 4)) == {b"%d" % number for number in range(0, total, 4)}
    nothing_more(at_b)
    at_b.close()


def kill(cluster: Cluster, topic: str, subscription: str) -> None:
    """End the topic's subscription of this name, or (without one) its partition."""
    kind = ActorKind.SUBSCRIPTION if subscription else ActorKind.PARTITION
    for key in cluster.local.keys(kind):
        if str(key.topic_name) == topic and key.subscription == subscription:
            cluster.local.kill(key)
