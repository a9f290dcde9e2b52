"""Subscriptions whose progress goes to other clusters: how clients and administrators say so."""

from __future__ import annotations

import asyncio
from typing import Any

import pulsar
import pytest

import velaray
import velaray.aio
from tests.topology.test_admin_api import Http

STATUS = "replicatedSubscriptionStatus"


def path(topic: str, what: str) -> str:
    return f"/admin/v2/{topic.replace('://', '/')}/{what}"


@pytest.fixture
def http(cluster: Any) -> Http:
    return Http(cluster.admin_url)


@pytest.fixture
def is_replicated(http: Http, topic: str) -> Any:
    """Whether the subscription s is, as the two routes tell that know."""

    def ask() -> bool:
        stats = http("GET", path(topic, "stats")).body["subscriptions"]["s"]
        assert "pulsar.replicated.subscription" not in stats["subscriptionProperties"]
        status = http("GET", path(topic, f"subscription/s/{STATUS}"))
        assert (status.status, status.body) == (200, {topic: stats["isReplicated"]})
        return bool(stats["isReplicated"])

    return ask


def test_a_client_turns_replication_on_when_it_subscribes(
    client: Any, cluster: Any, topic: str, is_replicated: Any
) -> None:
    client.subscribe(topic, "s").close()
    assert not is_replicated()
    held = client.subscribe(topic, "s", consumer_type=velaray.ConsumerType.Shared)
    shared = velaray.ConsumerType.Shared
    client.subscribe(
        topic, "s", consumer_type=shared, replicate_subscription_state_enabled=True
    ).close()
    assert is_replicated()
    held.close()
    client.subscribe(topic, "s").close()  # without the option, replication stays on
    assert is_replicated()


def test_the_asyncio_client_turns_replication_on(
    cluster: Any, topic: str, is_replicated: Any
) -> None:
    async def subscribe() -> None:
        async with velaray.aio.Client(cluster.service_url) as client:
            await client.subscribe(topic, "s", replicate_subscription_state_enabled=True)

    asyncio.run(subscribe())
    assert is_replicated()


def test_the_official_client_turns_replication_on(
    official: pulsar.Client, topic: str, is_replicated: Any
) -> None:
    official.subscribe(topic, "s", replicate_subscription_state_enabled=True).close()
    assert is_replicated()


def test_an_administrator_turns_replication_on_and_off(
    client: Any, http: Http, topic: str, is_replicated: Any
) -> None:
    client.subscribe(topic, "s").close()
    for value in (True, True, False):
        assert http("POST", path(topic, f"subscription/s/{STATUS}"), value).status == 204
        assert is_replicated() == value
    assert http("POST", path(topic, f"subscription/s/{STATUS}"), "yes").status == 400
    assert http("POST", path(topic, f"subscription/t/{STATUS}"), True).status == 404
    assert http("GET", path(topic, f"subscription/t/{STATUS}")).status == 404
    earliest = {"ledgerId": -1, "entryId": -1}
    created = http("PUT", path(topic, "subscription/u?replicated=true"), earliest)
    assert created.status == 204
    assert http("GET", path(topic, f"subscription/u/{STATUS}")).body == {topic: True}


def test_replication_applies_to_all_partitions(
    client: Any, http: Http, topic: str, catalog: Any
) -> None:
    catalog.partitioned(topic, 2)
    client.subscribe(topic, "s").close()
    assert http("POST", path(topic, f"subscription/s/{STATUS}"), True).status == 204
    found = http("GET", path(topic, f"subscription/s/{STATUS}")).body
    assert found == {f"{topic}-partition-{number}": True for number in range(2)}
    stats = http("GET", path(topic, "partitioned-stats")).body
    assert stats["subscriptions"]["s"]["isReplicated"]
