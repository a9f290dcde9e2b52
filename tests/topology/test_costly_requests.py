"""Small requests with large costs: floods of lists, of requests, and of new topics."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.official.raw import RawClient
from tests.support.local_cluster import LocalCluster
from velaray.broker.catalog.messages import EnsureTopic
from velaray.broker.proxy import request_limits
from velaray.broker.proxy.proxy import ProxySession
from velaray.broker.proxy.request_limits import MAX_ENSURED, MAX_LISTS, Creations, Places
from velaray.events.ids import ActorKey
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
    monkeypatch.setattr(ProxySession, "max_requests", 10)
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


def test_the_catalog_gets_few_requests_for_new_topics_at_once(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask, asked, most = cluster.proxy.actor_system.request, 0, 0

    async def counted(key: ActorKey, request: Any, timeout: float = 30.0) -> Any:
        nonlocal asked, most
        if not isinstance(request, EnsureTopic):
            return await ask(key, request, timeout)
        asked += 1
        most = max(most, asked)
        try:
            return await ask(key, request, timeout)
        finally:
            asked -= 1

    monkeypatch.setattr(cluster.proxy.actor_system, "request", counted)

    async def scenario() -> None:
        client = await RawClient.connect("127.0.0.1", cluster.proxy.port)
        for number in range(1, 151):
            client.send(metadata(number))
        for _ in range(150):
            answer = await client.next(pb.CommandPartitionedTopicMetadataResponse)
            assert answer.response == pb.CommandPartitionedTopicMetadataResponse.Success
        client.close()

    asyncio.run(scenario())
    assert most == MAX_ENSURED


def test_a_closed_connection_of_a_proxy_leaves_its_objects_to_no_cycle_collection(
    cluster: LocalCluster,
) -> None:
    kept: list[weakref.ref[Any]] = []

    async def scenario() -> None:
        sessions = cluster.proxy.sessions
        client = await RawClient.connect("127.0.0.1", cluster.proxy.port)
        client.send(metadata(1))
        await client.next(pb.CommandPartitionedTopicMetadataResponse)
        kept.extend(weakref.ref(each) for session in sessions for each in (session, session._lists))
        client.close()
        async with asyncio.timeout(60):
            while any(each() is not None for each in kept):
                await asyncio.sleep(0.01)

    gc.collect()
    gc.disable()
    try:
        asyncio.run(scenario())
    finally:
        gc.enable()
    assert kept


def test_groups_take_turns_for_places() -> None:
    places, order = Places(1), []

    async def work(group: str, number: int) -> None:
        async with places.place(group, 60):
            order.append(f"{group}{number}")
            await asyncio.sleep(0)

    async def scenario() -> None:
        many = [work("a", number) for number in range(4)]
        await asyncio.gather(*many, work("b", 0), work("c", 0), work("b", 1))

    asyncio.run(scenario())
    assert order == ["a0", "a1", "b0", "c0", "a2", "b1", "a3"]


def test_a_place_survives_the_cancellation_of_those_who_wait_for_it() -> None:
    async def scenario() -> None:
        places = Places(1)

        async def work() -> None:
            async with places.place("a", 60):
                await asyncio.sleep(0)

        for early in (True, False):  # before its place has come, and at the same time
            async with places.place("b", 60):
                waiting = asyncio.ensure_future(work())
                await asyncio.sleep(0)
                if early:
                    waiting.cancel()
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            async with asyncio.timeout(60):
                await work()

    asyncio.run(scenario())


def test_waiting_for_a_place_ends() -> None:
    async def scenario() -> None:
        places = Places(1)
        async with places.place("a", 60):
            with pytest.raises(TimeoutError):
                async with places.place("b", 0.01):
                    pass
        async with asyncio.timeout(60), places.place("c", 60):
            pass

    asyncio.run(scenario())


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
