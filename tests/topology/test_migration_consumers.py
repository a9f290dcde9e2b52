"""Consumers go on through a migration: nothing lost, nothing again that had its receipt."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

import pulsar
import pytest

import velaray
from tests.support.by_name import call_by_name
from tests.support.waiting import wait_until
from tests.topology.migrating import PATIENCE_S, Move, Publishing, migrating, numbers
from tests.topology.replicating import received
from velaray.actors.catalog.migration_state import Phase
from velaray.client.admin import Admin
from velaray.events.ids import ActorKind
from velaray.geo.replication import replication_keeper
from velaray.geo.tenant_migration import migration_driver
from velaray.geo.tenant_migration.migration_driver import Driver

TOPIC = "persistent://acme/n/t"
SHARED = pulsar.ConsumerType.Shared


@pytest.fixture
def move(tmp_path: Path) -> Iterator[Move]:
    with migrating(tmp_path) as found:
        yield found


class Consuming:
    """A client that acknowledges what comes, but every fifth message.

    Ours waits for receipts: what has one is ``acknowledged``, and must not come ``again``. (It
    keeps none waiting: a copy may be in a client's queue before the first one's receipt is.) The
    official one knows no receipts.
    """

    def __init__(self, move: Move, topic: str, *, ours: bool) -> None:
        self._client = None
        if ours:
            self._client = velaray.Client(move.a.service_url)
            self._consumer = self._client.subscribe(
                topic,
                "s",
                consumer_type=velaray.ConsumerType.Shared,
                initial_position=velaray.InitialPosition.Earliest,
                ack_receipt_enabled=True,
                receiver_queue_size=0,
            )
        else:
            self._consumer = move.subscribe(topic, consumer_type=SHARED)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.seen: Counter[bytes] = Counter()
        self.acknowledged: set[bytes] = set()
        self.again: list[bytes] = []

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                message = self._consumer.receive(200)
            except (pulsar.Timeout, velaray.Timeout):
                continue
            data = message.data()
            if data in self.acknowledged:
                self.again.append(data)
            self.seen[data] += 1
            if int(data) % 5:
                self._acknowledge(message, data)

    def _acknowledge(self, message: Any, data: bytes) -> None:
        try:
            self._consumer.acknowledge(message)
        except (pulsar.PulsarException, velaray.VelarayError):
            return  # no receipt: it may be redelivered
        self.acknowledged.add(data)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()
        self._consumer.close()
        if self._client is not None:
            self._client.close()

    def has_seen(self, count: int) -> None:
        wait_until(lambda: len(self.seen) >= count, PATIENCE_S)


def test_acknowledged_messages_are_not_redelivered(move: Move) -> None:
    consumer = move.subscribe(TOPIC, consumer_type=SHARED)
    move.publish(TOPIC, numbers(100))
    held = []
    for _ in range(100):
        message = consumer.receive(10_000)
        if int(message.data()) % 3:
            consumer.acknowledge(message)
        else:
            held.append(message.data())
    consumer.close()
    wait_until(lambda: move.stats(move.a, TOPIC)["subscriptions"]["s"]["backlog"] == len(held))
    move.begin()
    move.reaches("done")
    there = move.stats(move.b, TOPIC)["subscriptions"]["s"]
    assert there["backlog"] == len(held)
    consumer = move.subscribe(TOPIC, consumer_type=SHARED)
    assert sorted(received(consumer, len(held))) == sorted(held)
    with pytest.raises(pulsar.Timeout):
        consumer.receive(500)


@pytest.mark.parametrize("ours", [False, True])
def test_producers_and_consumers_continue_through_a_migration(move: Move, ours: bool) -> None:
    with (
        Consuming(move, TOPIC, ours=ours) as consuming,
        Publishing(move.client, TOPIC) as publishing,
    ):
        publishing.goes_on(50)
        consuming.has_seen(30)
        move.begin()
        move.reaches("done")
        publishing.goes_on(50)
        publishing.stop()
        consuming.has_seen(publishing.confirmed)
    assert set(consuming.seen) == set(numbers(publishing.confirmed))
    assert not (ours and consuming.again)
    stats = move.stats(move.b, TOPIC)
    assert stats["entries"] == publishing.confirmed
    left = publishing.confirmed - len(consuming.acknowledged)
    wait_until(lambda: move.stats(move.b, TOPIC)["subscriptions"]["s"]["backlog"] <= left)


def test_a_tenant_migrates_forth_and_back_under_load_and_kills(move: Move) -> None:
    back = Move(move.b, move.a)
    with (
        Consuming(move, TOPIC, ours=True) as consuming,
        Publishing(move.client, TOPIC) as publishing,
    ):
        with Killing(move) as killing:
            for each, passed in ((move, 5), (back, 10), (move, 15), (back, 20)):
                publishing.goes_on(30)
                each.begin()
                each.reaches("done")
                killing.killed_so_many(passed)
                publishing.goes_on(30)
        publishing.stop()
        consuming.has_seen(publishing.confirmed)
    back.client.close()
    assert set(consuming.seen) == set(numbers(publishing.confirmed))
    assert consuming.again == []
    assert move.stats(move.a, TOPIC)["entries"] == publishing.confirmed


class Killing:
    """Kills one actor after the other, of both clusters."""

    def __init__(self, move: Move) -> None:
        self._move = move
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.killed = 0

    def _run(self) -> None:
        kinds = (ActorKind.SUBSCRIPTION, ActorKind.PARTITION, ActorKind.CATALOG)
        turn = 0
        while not self._stop.wait(0.2):
            cluster = (self._move.a, self._move.b)[turn % 2]
            kind = kinds[turn // 2 % len(kinds)]
            keys = [
                key
                for key in cluster.keys(kind)
                if kind is ActorKind.CATALOG or key.tenant == "acme"
            ]
            if keys:
                cluster.kill(keys[turn % len(keys)])
                self.killed += 1
            turn += 1

    def killed_so_many(self, count: int) -> None:
        wait_until(lambda: self.killed >= count, PATIENCE_S)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()


def test_the_migration_transfers_the_last_acknowledgements(
    move: Move, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replicators report no subscriptions here, so only the migration does."""
    monkeypatch.setattr(replication_keeper, "SYNC_S", 1000.0)
    advance = Driver._advance

    async def acknowledging(driver: Driver, phase: Phase) -> None:
        if phase is Phase.FENCED:  # all was brought there once; there is no fence yet
            for key in await driver._partitions():
                await call_by_name(driver.actor_system, key, "skip_to", {"name": "s", "offset": 7})
        await advance(driver, phase)

    monkeypatch.setattr(Driver, "_advance", acknowledging)
    move.subscribe(TOPIC, consumer_type=SHARED).close()
    move.publish(TOPIC, numbers(10))
    back = Move(move.b, move.a)
    for each in (move, back):
        each.begin()
        each.reaches("done")
        found = move.stats(each.b, TOPIC)["subscriptions"]["s"]
        assert (found["acked_before"], found["backlog"]) == (7, 3)
    back.client.close()
    assert received(move.subscribe(TOPIC, consumer_type=SHARED), 3) == numbers(10)[7:]


def test_subscriptions_deleted_during_a_migration_do_not_exist_at_the_target(move: Move) -> None:
    move.subscribe(TOPIC, "kept").close()
    gone = move.subscribe(TOPIC, "gone")
    move.publish(TOPIC, numbers(3))
    gone.close()
    move.begin()
    move.reaches("done")
    assert set(move.stats(move.b, TOPIC)["subscriptions"]) == {"kept", "gone"}
    back = Move(move.b, move.a)
    consumer = move.subscribe(TOPIC, "gone")
    consumer.unsubscribe()
    back.begin()
    back.reaches("done")
    back.client.close()
    assert set(move.stats(move.a, TOPIC)["subscriptions"]) == {"kept"}


def test_only_the_mark_is_transferred_if_that_is_requested(move: Move) -> None:
    """As with Pulsar's snapshots: messages acknowledged beyond the mark are redelivered."""
    consumer = move.subscribe(TOPIC, consumer_type=SHARED)
    move.publish(TOPIC, numbers(10))
    for _ in range(10):
        message = consumer.receive(10_000)
        if message.data() not in (b"3", b"7"):
            consumer.acknowledge(message)
    consumer.close()
    wait_until(lambda: move.stats(move.a, TOPIC)["subscriptions"]["s"]["backlog"] == 2)
    move.begin(progress="snapshots")
    move.reaches("done")
    assert move.stats(move.b, TOPIC)["subscriptions"]["s"]["backlog"] == 7
    assert received(move.subscribe(TOPIC, consumer_type=SHARED), 7) == numbers(10)[3:]


def test_delayed_messages_stay_delayed(move: Move) -> None:
    move.subscribe(TOPIC, consumer_type=SHARED).close()
    producer = move.client.create_producer(TOPIC)
    producer.send(b"late", deliver_after=timedelta(seconds=4))
    producer.send(b"now")
    move.begin()
    move.reaches("done")
    assert received(move.subscribe(TOPIC, consumer_type=SHARED), 2) == [b"now", b"late"]


def test_transactions_end_before_the_migration_is_decided(
    move: Move, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Committed ones move as a whole; what goes on behind the fence is aborted in the end."""
    monkeypatch.setattr(migration_driver, "GRACE_S", 0.5)
    with velaray.Client(move.a.service_url) as client:
        topics = [TOPIC, "persistent://acme/n/u"]
        producers = [client.create_producer(topic) for topic in topics]
        txn = client.new_transaction()
        for producer in producers:
            producer.send(b"together", txn=txn)
        txn.commit()
        left = client.new_transaction(600.0)
        producers[0].send(b"alone", txn=left)
        move.begin()
        move.reaches("done")
        for topic in topics:
            assert received(move.subscribe(topic), 1) == [b"together"]
        assert move.stats(move.b, TOPIC)["ongoing"] == 0
        with pytest.raises(velaray.VelarayError):
            left.commit()


def test_a_terminated_topic_is_terminated_at_the_target(move: Move) -> None:
    consumer = move.subscribe(TOPIC)
    move.publish(TOPIC, numbers(3))
    consumer.close()
    Admin(move.a.admin_url).terminate(TOPIC)
    move.begin()
    move.reaches("done")
    assert move.stats(move.b, TOPIC)["terminated"]
    assert received(move.subscribe(TOPIC), 3) == numbers(3)
