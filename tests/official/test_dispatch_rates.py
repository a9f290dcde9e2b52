"""Deliveries at a limited rate: of a topic, of each subscription, and of a single one.

A test counts what arrives while time passes. A slow machine gets less, which proves nothing and
fails nothing.
"""

from __future__ import annotations

import itertools
import json
import time
from typing import Any

import pulsar
import pytest

from tests.official.support import (
    PATIENCE_MS,
    LocalServer,
    data,
    eventually,
    nothing_comes,
    numbered,
    partition_key,
    publish,
    receive,
)
from velaray.client.admin import Admin
from velaray.events.ids import ActorKey

EARLIEST = pulsar.InitialPosition.Earliest
SHARED = pulsar.ConsumerType.Shared
RATE = 50
HOUR_S = 3600


def rate(messages: int, size: int = -1, **more: Any) -> dict[str, Any]:
    return {"dispatchThrottlingRateInMsg": messages, "dispatchThrottlingRateInByte": size, **more}


def receive_for(consumer: pulsar.Consumer, seconds: float, least: int) -> int:
    """How many messages came: for at least so many seconds, and until ``least`` have come."""
    began, count = time.monotonic(), 0
    while (passed := time.monotonic() - began) < seconds or count < least:
        assert passed < 60, f"{count} messages came within a minute"
        try:
            consumer.receive(50)
        except pulsar.Timeout:
            continue
        count += 1
    return count


class Policies:
    """The policies of a topic in a cluster of this process."""

    def __init__(self, local: LocalServer, topic: str) -> None:
        self._local = local
        self._key = partition_key(local, topic)
        self._topic = topic
        self.admin = Admin(local.cluster.admin_url)

    def applied(self, name: str) -> Any:
        return self._local.cluster.actor_system.actors[self._key].policies.raw.get(name)

    def set(self, name: str, value: dict[str, Any]) -> None:
        self.admin.set_policy_of(self._topic, name, value)
        eventually(lambda: self.applied(name) == value)

    def remove(self, name: str) -> None:
        self.admin.remove_policy_of(self._topic, name)
        eventually(lambda: not self.applied(name))

    def path_of_one(self, subscription: str) -> str:
        return f"{self._topic.replace('://', '/')}/{subscription}/dispatchRate"


@pytest.fixture
def policies(local: LocalServer, connect: Any, topic: str) -> Policies:
    client = connect(local.service_url)
    client.create_producer(topic).close()
    return Policies(local, topic)


ON_RAY = pytest.param("ray", marks=[pytest.mark.ray, pytest.mark.long])


@pytest.mark.parametrize("server", ["local", ON_RAY], indirect=True, scope="module")
def test_a_topic_delivers_at_its_rate(client, server, topic):
    partition_key(server, topic)
    policy = {"topic": topic, "name": "dispatchRate", "value": json.dumps(rate(RATE)).encode()}
    server.call(ActorKey.catalog(), "set_policy", policy)
    publish(client.create_producer(topic, batching_enabled=False), numbered(4 * RATE))
    began = time.monotonic()
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    assert data(receive(consumer, 4 * RATE)) == numbered(4 * RATE)
    assert time.monotonic() - began > 2.5  # the first period's units come at once


@pytest.mark.parametrize("kind", [pulsar.ConsumerType.Exclusive, SHARED])
def test_the_subscriptions_of_a_topic_share_its_rate(local, connect, policies, topic, kind):
    policies.set("dispatchRate", rate(RATE))
    client = connect(local.service_url)
    total = 20 * RATE
    publish(client.create_producer(topic, batching_enabled=False), numbered(total))
    began = time.monotonic()
    consumers = [client.subscribe(topic, f"s{n}", kind, initial_position=EARLIEST) for n in (0, 1)]
    counts = [receive_for(each, 1.5, least=1) for each in consumers]
    allowed = RATE * (1 + time.monotonic() - began) + 2
    assert sum(counts) <= allowed
    policies.remove("dispatchRate")
    began = time.monotonic()
    for each, count in zip(consumers, counts, strict=True):
        assert data(receive(each, total - count)) == numbered(total)[count:]
    assert time.monotonic() - began < total / RATE


def test_consumers_of_a_shared_subscription_take_turns(local, connect, policies, topic):
    policies.set("subscriptionDispatchRate", rate(RATE))
    client = connect(local.service_url)
    consumers = [client.subscribe(topic, "s", SHARED) for _ in range(3)]
    publish(client.create_producer(topic, batching_enabled=False), numbered(6 * RATE))
    counts = [0, 0, 0]
    for number in itertools.cycle(range(3)):
        if sum(counts) >= 3 * RATE:
            break
        counts[number] += receive_for(consumers[number], 0.05, least=0)
    assert min(counts) > RATE // 2


def test_a_subscription_has_a_rate_of_its_own(local, connect, policies, topic):
    policies.set("subscriptionDispatchRate", rate(RATE))
    path, override = policies.path_of_one("slow"), rate(5)
    policies.admin.request("POST", path, override)
    eventually(lambda: policies.applied("dispatchRateOfSubscriptions") == {"slow": override})
    assert policies.admin.request("GET", path) == override
    assert policies.admin.request("GET", policies.path_of_one("fast")) is None
    effective = policies.path_of_one("fast") + "?applied=true"
    assert policies.admin.request("GET", effective) == rate(RATE)
    client = connect(local.service_url)
    total = 3 * RATE
    publish(client.create_producer(topic, batching_enabled=False), numbered(total))
    began = time.monotonic()
    slow, fast = (
        client.subscribe(topic, name, initial_position=EARLIEST) for name in ("slow", "fast")
    )
    receive(fast, total)
    count = receive_for(slow, 0.5, least=1)
    assert count <= 5 * (1 + time.monotonic() - began) + 1
    policies.admin.request("DELETE", path)
    eventually(lambda: not policies.applied("dispatchRateOfSubscriptions"))
    receive(slow, total - count)


def test_bytes_are_limited(local, connect, policies, topic):
    policies.set("dispatchRate", rate(-1, 10_000, ratePeriodInSecond=HOUR_S))
    client = connect(local.service_url)
    consumer = client.subscribe(topic, "s")
    publish(client.create_producer(topic, batching_enabled=False), [bytes(4_000)] * 10)
    receive(consumer, 3)  # the third one exceeds the limit
    assert nothing_comes(consumer)
    policies.set("dispatchRate", rate(-1, 0))  # unlimited
    receive(consumer, 7)


def test_a_batch_counts_as_its_messages(local, connect, policies, topic):
    policies.set("dispatchRate", rate(10, ratePeriodInSecond=HOUR_S))
    client = connect(local.service_url)
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_messages=8, batching_max_publish_delay_ms=1000
    )
    for body in numbered(32):
        producer.send_async(body, None)
    producer.flush()
    assert data(receive(consumer, 16)) == numbered(16)
    assert nothing_comes(consumer)
    policies.remove("dispatchRate")
    assert data(receive(consumer, 16)) == numbered(32)[16:]


def test_what_waits_for_the_rate_goes_to_others_if_its_consumer_leaves(
    local, connect, policies, topic
):
    policies.set("subscriptionDispatchRate", rate(10, ratePeriodInSecond=HOUR_S))
    client = connect(local.service_url)
    first = client.subscribe(topic, "s", SHARED)
    publish(client.create_producer(topic, batching_enabled=False), numbered(30))
    receive(first, 10, ack=True)
    assert nothing_comes(first)
    second = client.subscribe(topic, "s", SHARED)
    first.close()
    assert nothing_comes(second)
    policies.remove("subscriptionDispatchRate")
    assert sorted(data(receive(second, 20))) == numbered(30)[10:]


def test_a_relative_rate_is_above_that_of_the_producers(local, connect, policies, topic):
    policies.set("dispatchRate", rate(10, relativeToPublishRate=True))
    client = connect(local.service_url)
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, batching_enabled=False)
    publish(producer, numbered(1000))
    began = time.monotonic()
    receive(consumer, 1000)
    assert time.monotonic() - began < PATIENCE_MS / 1000
