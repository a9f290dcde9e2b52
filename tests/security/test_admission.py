"""What a listener refuses: by limits of roles, and by the memory of its process."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from tests.official.raw import RawClient
from tests.security.support import TOPIC, guarded, raw, token
from tests.support.local_cluster import LocalCluster
from velaray import Client
from velaray.broker import admission
from velaray.wire import pulsar_pb2 as pb

LOOK_UP = pb.CommandLookupTopic(topic="t", request_id=1)


def metric(cluster: LocalCluster, name: str, role: str = "") -> float:
    headers = {"Authorization": f"Bearer {token(role)}"} if role else {}
    with urlopen(Request(f"{cluster.admin_url}/metrics", headers=headers), timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"{name}{{"))


def test_a_process_over_its_memory_budget_refuses_what_takes_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resident = 1 << 20
    monkeypatch.setattr(admission, "resident_bytes", lambda: resident)
    monkeypatch.setattr(admission, "MEASURED_S", 0.0)

    async def refused(cluster: LocalCluster) -> None:
        client = await RawClient.connect("127.0.0.1", cluster.proxy.port)
        client.send(LOOK_UP)
        answer = await client.next(pb.CommandLookupTopicResponse)
        assert answer.error == pb.ServiceNotReady
        assert answer.message.startswith("Failed to acquire ownership: this process is over its")
        assert "memory budget of 100 MiB" in answer.message
        client.close()

    async def refused_at_the_partition(port: int) -> None:
        client = await RawClient.connect("127.0.0.1", port)
        for command in (
            pb.CommandProducer(topic="t", producer_id=1, request_id=1),
            pb.CommandSubscribe(
                topic="t",
                subscription="s",
                subType=pb.CommandSubscribe.Shared,
                consumer_id=1,
                request_id=2,
            ),
        ):
            client.send(command)
            assert (await client.next(pb.CommandError)).error == pb.ServiceNotReady
        client.close()

    async def port_of(cluster: LocalCluster) -> int:
        client = await RawClient.connect("127.0.0.1", cluster.proxy.port)
        client.send(LOOK_UP)
        url: str = (await client.next(pb.CommandLookupTopicResponse)).brokerServiceUrl
        client.close()
        return int(url.rpartition(":")[2])

    with LocalCluster(tmp_path, hosts=1, memory_budget_mib=100) as cluster:
        port = asyncio.run(port_of(cluster))
        with Client(cluster.service_url, operation_timeout_seconds=60) as client:
            producer = client.create_producer("t")
            resident = 101 << 20
            producer.send(b"what is connected goes on")
            asyncio.run(refused(cluster))
            asyncio.run(refused_at_the_partition(port))
            assert metric(cluster, "velaray_memory_refusals_total") == 3
            resident = 99 << 20
            client.create_producer("t").send(b"again")


def test_the_connections_of_a_role_are_limited(tmp_path: Path) -> None:
    async def scenario(cluster: LocalCluster) -> None:
        kept = [await raw(cluster.proxy.port, "boss") for _ in range(2)]
        for each in kept:
            await each.next(pb.CommandConnected)
        beyond = await raw(cluster.proxy.port, "boss")
        refused = await beyond.next(pb.CommandError)
        assert refused.error == pb.TooManyRequests
        assert refused.message == "role 'boss' has 2 connections to this process: close some"
        await beyond.closed.wait()
        other = await raw(cluster.proxy.port, "somebody else")
        await other.next(pb.CommandConnected)
        kept[0].close()
        async with asyncio.timeout(60):
            while True:  # until the server has seen the end of the connection
                again = await raw(cluster.proxy.port, "boss")
                while not again.history:
                    await asyncio.sleep(0.01)
                if isinstance(again.history[0], pb.CommandConnected):
                    break
        for each in (kept[1], other, again):
            each.close()

    with guarded(tmp_path, hosts=1, max_connections_per_role=2) as cluster:
        asyncio.run(scenario(cluster))
        assert metric(cluster, "velaray_role_refusals_total", "root") >= 1


def test_the_requests_of_a_role_are_limited_over_its_connections(tmp_path: Path) -> None:
    def look_up(number: int) -> Any:
        return pb.CommandLookupTopic(topic=TOPIC, request_id=number)

    async def scenario(cluster: LocalCluster) -> None:
        first, second = [await raw(cluster.proxy.port, "boss") for _ in range(2)]
        other = await raw(cluster.proxy.port, "root")
        for client in (first, second, other):
            await client.next(pb.CommandConnected)
        for number in range(1, 201):
            first.send(look_up(number))
            second.send(look_up(number))
        other.send(look_up(1))
        assert (await other.next(pb.CommandLookupTopicResponse)).brokerServiceUrl
        answers = []
        for client in (first, second):
            answers += [await client.next(pb.CommandLookupTopicResponse) for _ in range(200)]
        refused = [each for each in answers if not each.brokerServiceUrl]
        assert {each.error for each in refused} == {pb.TooManyRequests}
        assert "5 requests of role 'boss' are in work" in refused[0].message
        assert len(refused) < 400
        first.send(look_up(1))  # nothing is in work any more
        assert (await first.next(pb.CommandLookupTopicResponse)).brokerServiceUrl
        for client in (first, second, other):
            client.close()

    with guarded(tmp_path, hosts=1, max_requests_per_role=5) as cluster:
        asyncio.run(scenario(cluster))
