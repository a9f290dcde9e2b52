"""Administration of transactions: what belongs to the system, whose a transaction is, limits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import jwt
import pulsar
import pytest

import velaray
from tests.support.local_cluster import LocalCluster
from tests.topology.test_admin_api import V2, Http
from velaray.aio import Client, Transaction
from velaray.aio.transactions import Coordinators
from velaray.auth import AuthenticationToken
from velaray.events.ids import ActorKind
from velaray.topology.config import AuthSettings
from velaray.topology.coordinators import ASSIGN

SECRET = b"a secret that is long enough for HS256"
V3 = "/admin/v3/transactions"


@pytest.fixture(scope="module")
def http(cluster: LocalCluster) -> Http:
    return Http(cluster.admin_url)


# -- what belongs to the system ----------------------------------------------------


@pytest.mark.parametrize("name", [ASSIGN.local, f"{ASSIGN.local}-partition-0", "new"])
def test_topics_of_the_system_are_nobodys(cluster: LocalCluster, http: Http, name: str) -> None:
    path = f"{V2}/persistent/pulsar/system/{name}"
    for method, rest, body in (
        ("PUT", "", None),
        ("DELETE", "?force=true", None),
        ("PUT", "/partitions", 4),
        ("POST", "/partitions", 40),
        ("DELETE", "/partitions?force=true", None),
        ("POST", "/terminate", None),
        ("PUT", "/unload", None),
        ("GET", "/stats", None),
        ("PUT", "/subscription/s", None),
    ):
        refused = http(method, path + rest, body)
        assert refused.status == 405, (method, rest, refused)
        assert "belongs to the system" in refused.body["reason"]
    for gone in (f"{V2}/namespaces/pulsar/system", f"{V2}/tenants/pulsar"):
        assert http("DELETE", gone).status == 412
    assert http("GET", f"{V2}/persistent/pulsar/system/{ASSIGN.local}/partitions").body == {
        "partitions": 1
    }
    assert not [key for key in cluster.keys(ActorKind.PARTITION) if key.tenant == "pulsar"]


def test_nobody_publishes_to_topics_of_the_system_or_reads_them(
    cluster: LocalCluster, client: pulsar.Client
) -> None:
    with velaray.Client(cluster.service_url) as ours:
        for name in (str(ASSIGN), str(ASSIGN.of_partition(0))):
            with pytest.raises(velaray.NotAllowedError):
                ours.create_producer(name)
            with pytest.raises(velaray.NotAllowedError):
                ours.subscribe(name, "s")
            with pytest.raises(pulsar.PulsarException):
                client.create_producer(name)
        with pytest.raises(velaray.VelarayError, match="pulsar/system/new"):
            ours.create_producer("persistent://pulsar/system/new")
        with pytest.raises(velaray.TopicNotFound):
            ours.create_producer(str(ASSIGN.of_partition(1)))
    assert not [key for key in cluster.keys(ActorKind.PARTITION) if key.tenant == "pulsar"]


def test_nothing_of_the_system_joins_a_transaction(cluster: LocalCluster) -> None:
    async def main() -> None:
        client = Client(cluster.service_url)
        transaction = await client.new_transaction()
        for name in (str(ASSIGN), str(ASSIGN.of_partition(0))):
            with pytest.raises(velaray.NotAllowedError, match="belongs to the system"):
                await transaction.join_topic(name)
            with pytest.raises(velaray.NotAllowedError, match="belongs to the system"):
                await transaction.join_subscription(name, "s")
        await transaction.abort()
        await client.close()

    asyncio.run(main())


# -- whose it is -------------------------------------------------------------------


def token_of(role: str) -> str:
    return jwt.encode({"sub": role}, SECRET, algorithm="HS256")


def test_a_transaction_is_used_by_who_began_it(tmp_path: Path) -> None:
    async def scenario(url: str) -> None:
        clients = {
            role: Client(url, authentication=AuthenticationToken(token_of(role)))
            for role in ("alice", "bob")
        }
        transaction = await clients["alice"].new_transaction()
        coordinators = Coordinators(clients["bob"]._live())
        stolen = Transaction(coordinators, transaction.txn_id, 60)
        topic = "persistent://public/default/owned"
        refused: list[Callable[[], Awaitable[None]]] = [
            lambda: stolen.join_topic(topic),
            lambda: stolen.join_subscription(topic, "s"),
            stolen.commit,
        ]
        for each in refused:
            with pytest.raises(velaray.NotAllowedError, match="another role's"):
                await each()
        producer = await clients["alice"].create_producer(topic)
        await producer.send(b"1", txn=transaction)
        await transaction.commit()
        for client in clients.values():
            await client.close()

    with LocalCluster(tmp_path, auth=AuthSettings(secret=SECRET)) as cluster:
        asyncio.run(scenario(cluster.service_url))


# -- how many ----------------------------------------------------------------------


def test_a_coordinator_begins_no_more_than_it_may(tmp_path: Path) -> None:
    async def scenario(url: str) -> None:
        client = Client(url, operation_timeout_seconds=1)
        first = await client.new_transaction()
        with pytest.raises(velaray.Timeout, match="1 transactions are active already"):
            await client.new_transaction()
        waiting = asyncio.ensure_future(client.new_transaction())
        await first.commit()
        await (await waiting).abort()
        await client.close()

    limited = LocalCluster(tmp_path)
    limited.config = replace(limited.config, max_active_transactions=1)
    with limited as cluster:
        asyncio.run(scenario(cluster.service_url))
