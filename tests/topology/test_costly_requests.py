"""Small requests with large costs: floods of lists, of requests, and of new topics."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.official.raw import RawClient
from tests.support.local_cluster import LocalCluster
from velaray.broker import session as session_module
from velaray.broker.proxy import request_limits
from velaray.broker.proxy.request_limits import MAX_LISTS, Creations
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.turns import Turns


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path, hosts=1) as running:
        yield running


def lists(count: int) -> list[pb.CommandGetTopicsOfNamespace]:
    return [
        pb.CommandGetTopicsOfNamespace(request_id=number, namespace="public/default")
        for number in range(1, count + 1)
    ]


def metadata(number: int) -> pb.CommandPartitionedTopicMetadata:
    return pb.CommandPartitionedTopicMetadata(topic=f"t{number}", request_id=number)


def test_a_flood_of_lists_is_refused_and_others_are_served(cluster: LocalCluster) -> None:
    async def scenario() -> None:
        flood = await RawClient.connect("127.0.0.1", cluster.proxy.port)
        other = await RawClient.connect("127.0.0.1", cluster.proxy.port)
        for each in lists(20_000):
            flood.send(each)
        other.send(lists(1)[0])
        await other.next(pb.CommandGetTopicsOfNamespaceResponse)
        refused = await flood.next(pb.CommandError)
        assert refused.error == pb.TooManyRequests
        assert str(MAX_LISTS) in refused.message
        flood.close()
        other.close()

    asyncio.run(scenario())


def test_a_few_lists_are_all_answered(cluster: LocalCluster) -> None:
    async def scenario() -> None:
        client = await RawClient.connect("127.0.0.1", cluster.proxy.port)
        for each in lists(MAX_LISTS):
            client.send(each)
        for number in range(1, MAX_LISTS + 1):
            answer = await client.next(pb.CommandGetTopicsOfNamespaceResponse)
            assert answer.request_id == number
        client.close()

    asyncio.run(scenario())


def test_requests_in_work_are_limited_and_all_are_answered(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "MAX_REQUESTS", 10)
    most = 0

    async def scenario() -> None:
        nonlocal most
        client = await RawClient.connect("127.0.0.1", cluster.proxy.port)
        for number in range(1, 301):
            client.send(metadata(number % 5))
        for _ in range(300):
            await client.next(pb.CommandPartitionedTopicMetadataResponse)
            most = max(most, *(len(each._tasks) for each in list(cluster.proxy.sessions)))
        client.close()

    asyncio.run(scenario())
    assert most <= 10


def test_a_connection_creates_topics_at_a_limited_rate(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_limits, "CREATION_BURST", 5)
    monkeypatch.setattr(request_limits, "CREATIONS_PER_S", 0)

    async def scenario() -> None:
        client = await RawClient.connect("127.0.0.1", cluster.proxy.port)
        for number in range(1, 7):
            client.send(metadata(number))
            answer = await client.next(pb.CommandPartitionedTopicMetadataResponse)
            failed = answer.response == pb.CommandPartitionedTopicMetadataResponse.Failed
            assert failed == (number == 6)
        assert answer.error == pb.TooManyRequests
        client.send(metadata(1))  # it exists
        answer = await client.next(pb.CommandPartitionedTopicMetadataResponse)
        assert answer.response == pb.CommandPartitionedTopicMetadataResponse.Success
        client.send(pb.CommandLookupTopic(topic="t7", request_id=8))
        answer = await client.next(pb.CommandLookupTopicResponse)
        assert answer.error == pb.TooManyRequests
        client.close()

    asyncio.run(scenario())


def test_the_rate_of_creations_recovers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_limits, "CREATION_BURST", 2)

    async def scenario() -> None:
        turns = Turns()
        creations, before = Creations(turns), turns.left
        assert not creations.exhausted(1.0)
        creations.created()
        assert turns.left < before
        creations.created()
        assert creations.exhausted(1.0)
        assert not creations.exhausted(1.5)

    asyncio.run(scenario())
