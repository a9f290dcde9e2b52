"""Redelivery counts over crashes, and delayed delivery, as Pulsar's own client sees them."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

import pulsar
import pytest

from tests.official.support import PATIENCE_MS, QUIET_MS, LocalServer, topic_name
from velaray.events.ids import ActorKind

Connect = Callable[..., pulsar.Client]
SHARED = pulsar.ConsumerType.Shared


def test_redeliveries_of_a_poison_message_are_counted_over_crashes_of_all_actors(
    local: LocalServer, connect: Connect
) -> None:
    """Pulsar keeps the count in memory, and counts no consumer that is lost."""
    topic = topic_name("poison")
    connect(local.service_url).create_producer(topic).send(b"poison")
    counts = []
    for attempt in range(4):
        client = connect(local.service_url)
        consumer = client.subscribe(
            topic, "s", SHARED, initial_position=pulsar.InitialPosition.Earliest
        )
        counts.append(consumer.receive(PATIENCE_MS).redelivery_count())
        if attempt < 2:
            kill_sockets(local, topic)  # as the end of the consumer's process would
        if attempt:
            for kind in (ActorKind.SUBSCRIPTION, ActorKind.PARTITION)[: attempt % 2 + 1]:
                for key in local.cluster.keys(kind):
                    if key.topic_name is not None and str(key.topic_name) == topic:
                        local.cluster.kill(key)
        counts.append(consumer.receive(PATIENCE_MS).redelivery_count())
        consumer.close()
    assert counts[0] == 0 and counts == sorted(counts)
    ends = [after - before for before, after in zip(counts[::2], counts[1::2], strict=True)]
    assert all(counted >= 1 for counted in ends)
    closes = [after - before for before, after in zip(counts[1::2], counts[2::2], strict=False)]
    assert closes == [0, 0, 0]  # to close a consumer is no failure


def kill_sockets(local: LocalServer, topic: str) -> None:
    (actor,) = [
        actor
        for key, actor in local.cluster.actor_system.actors.items()
        if key.kind is ActorKind.PARTITION and str(key.topic_name) == topic
    ]

    async def cut() -> None:
        for session in list(actor.listener.sessions):
            session.connection.abort()

    local.cluster.run(cut())


def test_delayed_messages_are_delivered_when_due(client: pulsar.Client) -> None:
    topic = topic_name("delayed")
    consumer = client.subscribe(topic, "s", SHARED)
    producer = client.create_producer(topic)
    due = time.time() + 1.5
    producer.send(b"at", deliver_at=int(due * 1000))
    producer.send(b"after", deliver_after=timedelta(seconds=1.5))
    producer.send(b"now")
    assert consumer.receive(PATIENCE_MS).data() == b"now"
    with pytest.raises(pulsar.Timeout):
        consumer.receive(QUIET_MS)
    got = {consumer.receive(PATIENCE_MS).data() for _ in range(2)}
    assert got == {b"at", b"after"} and time.time() >= due
