"""Connections end with their credentials, unless their clients present fresh ones."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import pulsar
import pytest

import velaray
from tests.official.raw import RawClient
from tests.official.support import LocalServer, eventually, topic_name
from tests.support.local_cluster import LocalCluster
from velaray.broker import credential_expiry
from velaray.topology.config import AuthSettings
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.connection import WireConnection

SECRET = b"a secret that is long enough for HS256"
LIFE_S = 2.0
LONG_S = 3600.0


@pytest.fixture(scope="module")
def guarded() -> Iterator[LocalServer]:
    auth = AuthSettings(secret=SECRET)
    with (
        tempfile.TemporaryDirectory(prefix="vo-") as folder,
        LocalCluster(Path(folder), auth=auth) as cluster,
    ):
        yield LocalServer(cluster)


def token(life_s: float = LIFE_S, role: str = "somebody") -> str:
    return jwt.encode({"sub": role, "exp": time.time() + life_s}, SECRET, algorithm="HS256")


async def connected(guarded: LocalServer, *, refreshes: bool = True) -> RawClient:
    client = RawClient()
    loop = asyncio.get_running_loop()
    port = guarded.cluster.proxy.port
    await loop.create_connection(lambda: WireConnection(client, server=False), "127.0.0.1", port)
    client.send(
        pb.CommandConnect(
            client_version="raw",
            protocol_version=20,
            auth_method_name="token",
            auth_data=token().encode(),
            feature_flags=pb.FeatureFlags(supports_auth_refresh=refreshes),
        )
    )
    await client.next(pb.CommandConnected)
    return client


def answer(data: str) -> pb.CommandAuthResponse:
    given = pb.AuthData(auth_method_name="token", auth_data=data.encode())
    return pb.CommandAuthResponse(client_version="raw", protocol_version=20, response=given)


def test_a_client_that_cannot_refresh_is_closed(guarded: LocalServer) -> None:
    async def scenario() -> None:
        client = await connected(guarded, refreshes=False)
        async with asyncio.timeout(30):
            await client.closed.wait()
        assert not any(isinstance(each, pb.CommandAuthChallenge) for each in client.history)

    asyncio.run(scenario())


def test_a_client_without_an_answer_is_closed(
    guarded: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credential_expiry, "REFRESH_S", 0.5)

    async def scenario() -> None:
        client = await connected(guarded)
        challenge = await client.next(pb.CommandAuthChallenge)
        assert challenge.challenge.auth_method_name == "token"
        async with asyncio.timeout(30):
            await client.closed.wait()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "fresh",
    [token(-1), token(LONG_S, "somebody else"), "", "no token"],
    ids=["expired", "another role", "empty", "garbage"],
)
def test_invalid_answers_close_the_connection(guarded: LocalServer, fresh: str) -> None:
    async def scenario() -> None:
        client = await connected(guarded)
        await client.next(pb.CommandAuthChallenge)
        client.send(answer(fresh))
        assert (await client.next(pb.CommandError)).error == pb.AuthenticationError
        async with asyncio.timeout(30):
            await client.closed.wait()

    asyncio.run(scenario())


def test_a_fresh_token_keeps_the_connection_and_expires_too(guarded: LocalServer) -> None:
    async def scenario() -> None:
        client = await connected(guarded)
        for _ in range(2):
            await client.next(pb.CommandAuthChallenge)
            client.send(answer(token()))
        await client.next(pb.CommandAuthChallenge)
        assert not client.closed.is_set()
        client.send(pb.CommandLookupTopic(topic="persistent://public/default/t", request_id=7))
        assert (await client.next(pb.CommandLookupTopicResponse)).request_id == 7

    asyncio.run(scenario())


class Supplier:
    """Gives a token at each call, and counts the calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        return token(LIFE_S)


def _challenged(guarded: LocalServer, topic: str, client: Any, supplier: Supplier) -> None:
    others = set(guarded.cluster.proxy.sessions)  # of earlier clients, which may end meanwhile
    producer = client.create_producer(topic)
    began, sessions = supplier.calls, set(guarded.cluster.proxy.sessions) - others
    assert sessions
    eventually(lambda: supplier.calls >= began + 3)
    producer.send(b"after")
    assert set(guarded.cluster.proxy.sessions) >= sessions
    client.close()


def test_the_official_client_answers_with_a_fresh_token(guarded: LocalServer) -> None:
    supplier = Supplier()
    client = pulsar.Client(guarded.service_url, authentication=pulsar.AuthenticationToken(supplier))
    _challenged(guarded, topic_name("expiry"), client, supplier)


def test_velarays_client_answers_with_a_fresh_token(guarded: LocalServer) -> None:
    supplier = Supplier()
    client = velaray.Client(
        guarded.service_url, authentication=velaray.AuthenticationToken(supplier)
    )
    _challenged(guarded, topic_name("expiry"), client, supplier)


def test_velarays_client_reports_a_function_without_a_token(guarded: LocalServer) -> None:
    given: list[Any] = [token(), token(), token()]
    proof = velaray.AuthenticationToken(lambda: given.pop() if given else None)  # type: ignore[arg-type, return-value]
    client = velaray.Client(guarded.service_url, authentication=proof)
    producer = client.create_producer(topic_name("expiry"))
    eventually(lambda: not given)
    with pytest.raises(velaray.VelarayError):
        while True:
            producer.send(b"x")
    client.close()
