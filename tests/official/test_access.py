"""Tokens, and tunnels for clients that reach nothing but the service URL."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import jwt
import pulsar
import pytest

from tests.official.raw import RawClient
from tests.official.support import (
    LocalServer,
    data,
    eventually,
    nothing_comes,
    numbered,
    partition_key,
    publish,
    receive,
)
from tests.support.local_cluster import LocalCluster
from velaray.topology.config import AuthSettings
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.connection import WireConnection

SECRET = b"a secret that is long enough for HS256"


@pytest.fixture(scope="module")
def guarded() -> Iterator[LocalServer]:
    """A cluster that wants tokens."""
    auth = AuthSettings(secret=SECRET)
    with (
        tempfile.TemporaryDirectory(prefix="vo-") as folder,
        LocalCluster(Path(folder), auth=auth) as cluster,
    ):
        yield LocalServer(cluster)


@pytest.fixture(scope="module")
def tunnelled() -> Iterator[LocalServer]:
    """A cluster whose proxy tunnels connections."""
    with (
        tempfile.TemporaryDirectory(prefix="vo-") as folder,
        LocalCluster(Path(folder), tunnel=True) as cluster,
    ):
        yield LocalServer(cluster)


def _token(secret: bytes = SECRET, **claims) -> pulsar.AuthenticationToken:
    claims = {"sub": "somebody", **claims}
    return pulsar.AuthenticationToken(jwt.encode(claims, secret, algorithm="HS256"))


def test_a_valid_token_is_accepted(guarded, connect, topic):
    client = connect(guarded.service_url, authentication=_token(exp=time.time() + 60))
    consumer = client.subscribe(topic, "s")
    publish(client.create_producer(topic), numbered(10))
    assert data(receive(consumer, 10, ack=True)) == numbered(10)


@pytest.mark.parametrize(
    "authentication",
    [
        None,
        _token(b"another secret that is long enough"),
        _token(exp=1),
        pulsar.AuthenticationToken("no token at all"),
    ],
    ids=["none", "wrong key", "expired", "garbage"],
)
def test_invalid_tokens_are_refused(guarded, connect, topic, authentication):
    client = connect(
        guarded.service_url, authentication=authentication, operation_timeout_seconds=1
    )
    with pytest.raises(pulsar.Timeout):  # this client tries refused handshakes again
        client.create_producer(topic)


@pytest.mark.parametrize("token", ["", "no token at all"])
def test_a_refusal_names_the_reason(guarded, token):
    async def scenario() -> None:
        client = await _handshake(guarded, auth_method_name="token", auth_data=token.encode())
        refusal = await client.next(pb.CommandError)
        assert refusal.error == pb.AuthenticationError
        assert "token" in refusal.message
        await client.closed.wait()

    asyncio.run(scenario())


def test_partitions_require_the_token(guarded, connect, topic):
    """A client that knows a partition's address gets no further without a token."""
    key = partition_key(guarded, topic)
    port = guarded.cluster.run(guarded.cluster.actor_system.reach(key)).service_port
    client = connect(f"pulsar://127.0.0.1:{port}", operation_timeout_seconds=1)
    with pytest.raises(pulsar.PulsarException):
        client.create_producer(topic)


def test_everything_goes_through_the_tunnel(tunnelled, connect, topic):
    client = connect(tunnelled.service_url)
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, batching_enabled=True, chunking_enabled=False)
    publish(producer, numbered(500))
    assert data(receive(consumer, 500, ack=True)) == numbered(500)
    large = bytes(range(256)) * 18_000
    producer.send(large)
    assert data(receive(consumer, 1, ack=True)) == [large]
    assert nothing_comes(consumer)
    assert len(tunnelled.cluster.proxy.tunnels) >= 1


def test_a_tunnel_applies_back_pressure_to_a_slow_consumer_and_loses_nothing(
    tunnelled, connect, topic
):
    client = connect(tunnelled.service_url)
    consumer = client.subscribe(topic, "s", receiver_queue_size=5)
    bodies = [bytes([n]) * (1 << 20) for n in range(30)]
    producer = connect(tunnelled.service_url).create_producer(topic)
    publish(producer, bodies)
    assert data(receive(consumer, 30, ack=True)) == bodies


def test_tunnels_close_with_either_end(tunnelled, connect, topic):
    client = connect(tunnelled.service_url)
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    producer.send(b"before")
    tunnelled.cluster.kill(partition_key(tunnelled, topic))
    producer.send(b"after")
    got = []
    while b"after" not in got:
        message = consumer.receive(30_000)
        got.append(message.data())
        consumer.acknowledge_cumulative(message)
    assert set(got) == {b"before", b"after"}
    proxy = tunnelled.cluster.proxy
    client.close()
    eventually(lambda: not proxy.tunnels)


async def _handshake(server, **fields) -> RawClient:
    """A connection on which CONNECT was sent."""
    client = RawClient()
    loop = asyncio.get_running_loop()
    port = server.cluster.proxy.port
    await loop.create_connection(lambda: WireConnection(client, server=False), "127.0.0.1", port)
    client.send(pb.CommandConnect(client_version="raw", protocol_version=20, **fields))
    return client


def test_tunnels_lead_only_to_partitions(tunnelled):
    actor_system = tunnelled.cluster.actor_system
    addresses = [
        tunnelled.cluster.run(actor_system.address(key)) for key in list(actor_system.actors)
    ]
    targets = [f"127.0.0.1:{address.rpc_port}" for address in addresses]

    async def scenario() -> None:
        for target in [*targets, "nonsense", "host:1", "pulsar://127.0.0.1:99999"]:
            client = await _handshake(tunnelled, proxy_to_broker_url=target)
            assert (await client.next(pb.CommandError)).error == pb.ServiceNotReady
            await client.closed.wait()
        client = await _handshake(tunnelled)
        await client.next(pb.CommandConnected)
        client.close()

    asyncio.run(scenario())


def test_tunnels_are_off_by_default(local):
    async def scenario() -> None:
        client = await _handshake(local, proxy_to_broker_url="pulsar://127.0.0.1:6650")
        assert (await client.next(pb.CommandError)).error == pb.NotAllowedError
        await client.closed.wait()

    asyncio.run(scenario())
