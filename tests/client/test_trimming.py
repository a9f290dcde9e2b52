"""What clients see of trimming, expiry and quotas, over sockets; ours and the official one."""

from __future__ import annotations

from typing import Any

import pulsar
import pytest

import velaray
from tests.support.waiting import wait_until
from velaray.client.admin import Admin
from velaray.events.ids import ActorKind, TopicName

WITHIN_S = 10.0


@pytest.fixture
def admin(cluster) -> Admin:
    return Admin(cluster.admin_url)


def partition(cluster: Any, topic: str) -> Any:
    wanted = TopicName.parse(topic)
    (key,) = [key for key in cluster.keys(ActorKind.PARTITION) if key.topic_name == wanted]
    return cluster.actor_system.actors[key]


def begin_ledger(cluster: Any, topic: str) -> None:
    """Every activation begins one."""
    cluster.kill(partition(cluster, topic).key)


def do_round(cluster: Any, topic: str) -> None:
    cluster.run(partition(cluster, topic).maintenance.once())


def soon(condition: Any) -> Any:
    return wait_until(condition, WITHIN_S)


def test_readers_and_seeks_begin_at_the_first_kept_message(cluster, client, official, admin, topic):
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, batching_enabled=False)
    for number in range(4):
        producer.send(str(number).encode())
    for _ in range(4):
        consumer.acknowledge(consumer.receive(10_000), receipt=True)
    begin_ledger(cluster, topic)
    producer.send(b"kept")
    first = producer.send(b"kept too")
    do_round(cluster, topic)

    stats = admin.stats(topic)
    assert stats["trimmedLedgersPending"] >= 1
    assert stats["trimmedSizePending"] > 0
    assert stats["firstPosition"] == f"{first.ledger_id()}:0"
    assert (stats["numberOfEntries"], stats["subscriptions"]["s"]["backlogSize"] > 0) == (2, True)

    reader = official.create_reader(topic, pulsar.MessageId.earliest)
    assert [reader.read_next(10_000).data() for _ in range(2)] == [b"kept", b"kept too"]
    assert not reader.has_message_available()
    consumer.seek(velaray.MessageId.earliest)
    assert [consumer.receive(10_000).data() for _ in range(2)] == [b"kept", b"kept too"]
    admin.seek(topic, "s", velaray.MessageId.earliest)
    assert consumer.receive(10_000).data() == b"kept"


def test_an_open_reader_continues_behind_trimmed_messages(cluster, client, admin, topic):
    producer = client.create_producer(topic, batching_enabled=False)
    for number in range(3):
        producer.send(str(number).encode())
    reader = client.create_reader(topic, velaray.MessageId.earliest, receiver_queue_size=1)
    assert reader.read_next(10_000).data() == b"0"
    begin_ledger(cluster, topic)
    producer.send(b"kept")
    do_round(cluster, topic)
    assert admin.stats(topic)["numberOfEntries"] == 1
    seen = b""
    while seen != b"kept":
        seen = reader.read_next(10_000).data()


def test_old_messages_expire_on_request_of_an_administrator(cluster, client, admin, topic):
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, batching_enabled=False)
    producer.send(b"old")
    admin.expire(topic, "s", 3600)
    assert admin.stats(topic)["subscriptions"]["s"]["msgBacklog"] == 1
    soon(lambda: admin.expire(topic, None, 0) or not backlog(admin, topic))
    assert admin.stats(topic)["subscriptions"]["s"]["expiredEntries"] == {"administrator": 1}
    assert consumer.receive(10_000).data() == b"old"  # it was on its way by then
    producer.send(b"new")
    assert consumer.receive(10_000).data() == b"new"


def backlog(admin: Admin, topic: str) -> int:
    return int(admin.stats(topic)["subscriptions"]["s"]["msgBacklog"])


def set_quota(cluster: Any, admin: Admin, topic: str, policy: str, limit: int) -> None:
    quota = {"policy": policy, "limitSize": limit}
    admin.set_policy_of(topic, "backlogQuota", {"destination_storage": quota})
    soon(lambda: (found := partition(cluster, topic).policies.size_quota) and found.limit == limit)
    do_round(cluster, topic)


def test_producers_wait_until_the_quota_has_room(cluster, client, official, admin, topic):
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, batching_enabled=False, send_timeout_millis=0)
    theirs = official.create_producer(topic, send_timeout_millis=0)
    for _ in range(10):
        producer.send(b"x" * 1000)
    set_quota(cluster, admin, topic, "producer_request_hold", 3000)
    assert admin.stats(topic)["producersHeldBack"] is not None
    with pytest.raises(velaray.ProducerBlockedQuotaExceededError):
        client.create_producer(topic)
    held: list[Any] = []
    producer.send_async(b"held", lambda result, message_id: held.append(result))
    theirs.send_async(b"theirs", lambda result, message_id: held.append(result))
    assert held == []
    for _ in range(10):
        consumer.acknowledge(consumer.receive(10_000), receipt=True)
    do_round(cluster, topic)
    soon(lambda: len(held) == 2)
    assert {consumer.receive(10_000).data() for _ in range(2)} == {b"held", b"theirs"}


def test_producers_get_an_error_when_the_quota_is_exceeded(cluster, client, admin, topic):
    client.subscribe(topic, "s")
    producer = client.create_producer(topic, batching_enabled=False, send_timeout_millis=0)
    for _ in range(10):
        producer.send(b"x" * 1000)
    set_quota(cluster, admin, topic, "producer_exception", 3000)
    with pytest.raises(velaray.ProducerBlockedQuotaExceededException):
        producer.send(b"refused")
    admin.skip(topic, "s")
    do_round(cluster, topic)

    def sent() -> bool:
        try:
            return bool(producer.send(b"room"))
        except velaray.ProducerBlockedQuotaExceededException:
            return False

    soon(sent)
