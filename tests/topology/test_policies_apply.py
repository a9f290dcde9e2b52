"""Policies reach running topics by themselves, soon, and the narrower level has its way."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import velaray
from tests.support.local_cluster import LocalCluster
from tests.support.waiting import wait_until
from velaray.client.admin import Admin, PreconditionFailed
from velaray.events.ids import ActorKey, ActorKind, TopicName

WITHIN_S = 5.0
DEFAULT = "public/default"
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def admin(cluster: LocalCluster) -> Admin:
    return Admin(cluster.admin_url)


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[velaray.Client]:
    with velaray.Client(cluster.service_url, operation_timeout_seconds=5) as made:
        yield made


@pytest.fixture
def topic() -> str:
    return f"persistent://{DEFAULT}/policies-{next(_numbers)}"


def soon(condition: Callable[[], Any]) -> Any:
    """The condition's value as soon as it's true; fails after `WITHIN_S` seconds."""
    return wait_until(condition, WITHIN_S)


def actor(cluster: LocalCluster, topic: str) -> Any:
    wanted = TopicName.parse(topic)
    found = [key for key in cluster.keys(ActorKind.PARTITION) if key.topic_name == wanted]
    return cluster.actor_system.actors[found[0]]


def applied(cluster: LocalCluster, topic: str, name: str) -> Any:
    return actor(cluster, topic).policies.raw.get(name)


def test_a_running_topic_applies_the_narrowest_level(cluster, admin, client, topic):
    client.create_producer(topic).send(b"x")
    name = "maxConsumersPerTopic"
    for where, value in (("cluster", 3), (DEFAULT, 5), (topic, 7)):
        admin.set_policy_of(where, name, value)
        soon(lambda value=value: applied(cluster, topic, name) == value)
    admin.set_policy_of("cluster", name, 4)
    assert admin.policies_of(topic, applied=True)[name] == 7
    for where, left in ((topic, 5), (DEFAULT, 4), ("cluster", 20_000)):
        admin.remove_policy_of(where, name)
        soon(lambda left=left: applied(cluster, topic, name) == left)


def test_changes_missed_during_a_restart_of_the_catalog_are_found(cluster, admin, client, topic):
    client.create_producer(topic).send(b"x")
    cluster.kill(ActorKey.catalog())
    admin.set_policy_of(topic, "messageTTL", 77)
    soon(lambda: applied(cluster, topic, "messageTTL") == 77)


def test_policies_hold_after_a_partition_restarts(cluster, admin, client, topic):
    client.create_producer(topic).send(b"x")
    admin.set_policy_of(topic, "messageTTL", 78)
    cluster.kill(actor(cluster, topic).key)
    client.create_producer(topic).send(b"y")
    assert applied(cluster, topic, "messageTTL") == 78


def test_producers_beyond_the_limit_are_refused_until_it_is_raised(cluster, admin, client, topic):
    first = client.create_producer(topic)
    admin.set_policy_of(topic, "maxProducersPerTopic", 1)
    soon(lambda: applied(cluster, topic, "maxProducersPerTopic") == 1)
    with pytest.raises(velaray.ProducerBusy, match="limit of 1 producers"):
        client.create_producer(topic)
    first.send(b"goes on")
    admin.set_policy_of(topic, "maxProducersPerTopic", 2)
    soon(lambda: applied(cluster, topic, "maxProducersPerTopic") == 2)
    client.create_producer(topic).send(b"x")


@pytest.mark.parametrize("policy", ["maxConsumersPerTopic", "maxConsumersPerSubscription"])
def test_consumers_beyond_the_limit_are_refused(cluster, admin, client, topic, policy):
    kind = velaray.ConsumerType.Shared
    client.subscribe(topic, "s", consumer_type=kind)
    admin.set_policy_of(topic, policy, 1)
    soon(lambda: applied(cluster, topic, policy) == 1)
    with pytest.raises(velaray.ConsumerBusy, match="limit of 1 consumers"):
        client.subscribe(topic, "s", consumer_type=kind)
    if policy == "maxConsumersPerTopic":
        with pytest.raises(velaray.ConsumerBusy):
            client.subscribe(topic, "another")
        assert set(actor(cluster, topic).subscriptions.channels) == {"s"}
    else:
        client.subscribe(topic, "another")


def test_only_enabled_types_of_subscription_connect(cluster, admin, client, topic):
    connected = client.subscribe(topic, "s")
    admin.set_policy_of(topic, "subscriptionTypesEnabled", ["Shared", "Key_Shared"])
    soon(lambda: applied(cluster, topic, "subscriptionTypesEnabled") == ["Shared", "Key_Shared"])
    refused = "takes no Exclusive subscriptions; it takes Shared, Key_Shared"
    with pytest.raises(velaray.NotAllowedError, match=refused):
        client.subscribe(topic, "exclusive")
    with pytest.raises(velaray.NotAllowedError, match=refused):
        client.create_reader(topic, velaray.MessageId.earliest)
    client.create_producer(topic).send(b"x")
    shared = client.subscribe(topic, "shared", consumer_type=velaray.ConsumerType.Shared)
    client.create_producer(topic).send(b"y")
    assert connected.receive(20_000).data() == b"x"
    assert shared.receive(20_000).data() == b"y"
    admin.set_policy_of(topic, "subscriptionTypesEnabled", [])
    soon(lambda: applied(cluster, topic, "subscriptionTypesEnabled") == [])
    client.subscribe(topic, "exclusive")


def test_subscriptions_beyond_the_limit_are_refused(cluster, admin, client, topic):
    consumer = client.subscribe(topic, "s")
    admin.set_policy_of(topic, "maxSubscriptionsPerTopic", 1)
    soon(lambda: applied(cluster, topic, "maxSubscriptionsPerTopic") == 1)
    with pytest.raises(velaray.NotAllowedError, match="maximum number of subscriptions"):
        client.subscribe(topic, "another")
    with pytest.raises(PreconditionFailed, match="maximum number of subscriptions"):
        admin.create_subscription(topic, "another")
    consumer.close()
    client.subscribe(topic, "s")


def test_subscriptions_are_created_only_if_policy_allows_it(cluster, admin, client, topic):
    client.create_producer(topic)
    admin.set_policy_of(topic, "autoSubscriptionCreation", {"allowAutoSubscriptionCreation": False})
    soon(lambda: not actor(cluster, topic).policies.create_subscriptions)
    with pytest.raises(velaray.SubscriptionNotFound):
        client.subscribe(topic, "s")
    admin.create_subscription(topic, "s")
    client.subscribe(topic, "s")


def test_messages_above_the_size_limit_are_refused_in_order(cluster, admin, client, topic):
    producer = client.create_producer(topic, batching_enabled=False)
    producer.send(b"x" * 5000)
    admin.set_policy_of(topic, "maxMessageSize", 1000)
    soon(lambda: applied(cluster, topic, "maxMessageSize") == 1000)
    with pytest.raises(velaray.NotAllowedError, match="at most 1000 bytes"):
        producer.send(b"x" * 5000)
    producer.send(b"x" * 500)


def test_publishers_are_throttled_to_their_rate(cluster, admin, client, topic):
    producer = client.create_producer(topic, batching_enabled=False)
    producer.send(b"x")
    rate = {"publishThrottlingRateInMsg": 20, "publishThrottlingRateInByte": -1}
    admin.set_policy_of(topic, "publishRate", rate)
    soon(lambda: applied(cluster, topic, "publishRate") == rate)
    began = time.monotonic()
    for _ in range(35):
        producer.send(b"x")
    assert time.monotonic() - began > 0.6
    admin.remove_policy_of(topic, "publishRate")
    soon(lambda: applied(cluster, topic, "publishRate") is None)
    producer.send(b"at once")


def test_de_duplication_is_switched_in_a_running_topic(cluster, admin, client, topic):
    producer = client.create_producer(topic, producer_name="p")
    producer.send(b"x")
    admin.set_policy_of(topic, "deduplication", False)
    soon(lambda: not actor(cluster, topic).policies.deduplicate)


def test_subscriptions_apply_changed_limits(cluster, admin, client, topic):
    client.subscribe(topic, "s")
    admin.set_policy_of(topic, "maxUnackedMessagesPerConsumer", 11)

    def limits() -> Any:
        found = [
            key for key in cluster.keys(ActorKind.SUBSCRIPTION) if str(key.topic_name) == topic
        ]
        return cluster.actor_system.actors[found[0]]._dispatcher._state.dispatcher._limits

    soon(lambda: limits() == (11, 200_000))
    admin.set_policy_of(topic, "maxUnackedMessagesPerSubscription", 12)
    soon(lambda: limits() == (11, 12))


def test_an_incomplete_retention_is_refused(admin):
    with pytest.raises(velaray.client.admin.Invalid, match="-1 ignores a limit"):
        admin.set_policy_of(
            DEFAULT, "retention", {"retentionTimeInMinutes": 5, "retentionSizeInMB": 0}
        )
