"""Tenants at home in another cluster, with clients that ask the wrong one."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jwt
import pulsar
import pytest

import velaray
from tests.official.raw import RawClient
from tests.official.support import PATIENCE_MS, data, eventually, numbered, receive
from tests.support.by_name import call_by_name
from tests.support.local_cluster import LocalCluster
from tests.support.neighbours import ask, create, introduce, neighbours, settle, stored
from tests.topology.test_admin_api import Http
from velaray.client.admin import Admin
from velaray.events.ids import ActorKey
from velaray.topology.config import AuthSettings
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.replication import CLIENT_VERSION

TOPIC = "persistent://acme/orders/t"
Connect = Callable[..., pulsar.Client]
CATALOG = ActorKey.catalog()
Pair = tuple[LocalCluster, LocalCluster]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """Tenant acme is in both clusters, and at home in b."""
    with neighbours(tmp_path) as (a, b):
        create("acme/orders", a, b)
        settle("acme", "b", a, b)
        yield a, b


def asked(
    cluster: LocalCluster, command: Any, answer: type, *, port: int = 0, version: str = "raw"
) -> Any:
    """The answer of the proxy (or of the server on ``port``) to a client."""

    async def ask_it() -> Any:
        client = await RawClient.connect("127.0.0.1", port or cluster.proxy.port, version)
        client.send(command)
        try:
            return await client.next(answer)
        finally:
            client.close()

    return cluster.run(ask_it())


def look_up(cluster: LocalCluster, topic: str = TOPIC, version: str = "raw") -> Any:
    command = pb.CommandLookupTopic(topic=topic, request_id=7)
    found = asked(cluster, command, pb.CommandLookupTopicResponse, version=version)
    assert found.request_id == 7
    return found


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


def names(cluster: LocalCluster) -> list[str]:
    return [found["topic"] for found in ask(cluster, "topics", namespace="acme/orders")]


# -- look-ups ----------------------------------------------------------------------


def test_a_client_of_another_cluster_is_served_by_the_home_of_the_tenant(
    pair: Pair, connect: Connect
) -> None:
    a, b = pair
    client = connect(a.service_url)
    consumer = client.subscribe(TOPIC, "s")
    producer = client.create_producer(TOPIC)
    for payload in numbered(3):
        producer.send(payload)
    assert data(receive(consumer, 3, ack=True)) == numbered(3)
    assert (names(a), stored(a, TOPIC), stored(b, TOPIC)) == ([], 0, 3)


def test_lookups_return_partitions_and_topics_of_the_home(pair: Pair, connect: Connect) -> None:
    a, b = pair
    ask(b, "create_topic", topic=f"{TOPIC}-many", partitions=3)
    client = connect(a.service_url)
    producer = client.create_producer(f"{TOPIC}-many")
    assert client.get_topic_partitions(f"{TOPIC}-many") == [
        f"{TOPIC}-many-partition-{number}" for number in range(3)
    ]
    consumer = client.subscribe(re.compile("persistent://acme/orders/.*"), "s")
    producer.send(b"x")
    assert data(receive(consumer, 1)) == [b"x"]
    assert names(a) == []


def test_lookups_return_schemas_of_the_home(pair: Pair, connect: Connect) -> None:
    a, b = pair
    connect(b.service_url).create_producer(TOPIC, schema=pulsar.schema.StringSchema())
    command = pb.CommandGetSchema(topic=TOPIC, request_id=7)
    found = asked(a, command, pb.CommandGetSchemaResponse)
    assert (found.request_id, found.schema.type) == (7, pb.Schema.String)
    missing = pb.CommandGetSchema(topic=f"{TOPIC}-none", request_id=7)
    assert asked(a, missing, pb.CommandGetSchemaResponse).error_code == pb.TopicNotFound


def test_refusals_come_from_the_home(pair: Pair) -> None:
    a, _ = pair
    refused = look_up(a, "persistent://acme/nowhere/t")
    assert (refused.response, refused.error) == (refused.Failed, pb.TopicNotFound)
    command = pb.CommandGetTopicsOfNamespace(namespace="acme/nowhere", request_id=7)
    none = asked(a, command, pb.CommandGetTopicsOfNamespaceResponse)
    assert (none.request_id, list(none.topics)) == (7, [])  # it may come later
    command = pb.CommandPartitionedTopicMetadata(topic="persistent://acme/nowhere/t", request_id=7)
    refused = asked(a, command, pb.CommandPartitionedTopicMetadataResponse)
    assert (refused.response, refused.error) == (refused.Failed, pb.TopicNotFound)


def test_tenants_without_a_home_are_served_locally(pair: Pair, connect: Connect) -> None:
    a, b = pair
    client = connect(a.service_url)
    client.create_producer("t").send(b"x")
    topic = "persistent://public/default/t"
    assert (stored(a, topic), stored(b, topic)) == (1, 0)


def test_requests_of_replicators_are_not_redirected(pair: Pair) -> None:
    a, b = pair
    version = f"{CLIENT_VERSION}-1"
    here, there = look_up(a, version=version), look_up(b, version=version)
    assert here.response == there.response == pb.CommandLookupTopicResponse.Connect
    assert here.brokerServiceUrl != there.brokerServiceUrl == look_up(a).brokerServiceUrl
    produce = pb.CommandProducer(topic=TOPIC, producer_id=1, request_id=7)
    port = port_of(here.brokerServiceUrl)
    made = asked(a, produce, pb.CommandProducerSuccess, port=port, version=version)
    assert made.request_id == 7


def test_proxies_with_contradicting_homes_do_not_loop(pair: Pair) -> None:
    a, b = pair
    ask(b, "set_home", tenant="acme", cluster="a")  # and a says b
    found = look_up(a)
    assert found.response == found.Connect  # b answered for itself
    port = port_of(found.brokerServiceUrl)
    produce = pb.CommandProducer(topic=TOPIC, producer_id=1, request_id=7)
    refused = asked(b, produce, pb.CommandError, port=port)
    assert refused.error == pb.ServiceNotReady
    subscribe = pb.CommandSubscribe(
        topic=TOPIC, subscription="s", subType=0, consumer_id=1, request_id=7
    )
    refused = asked(b, subscribe, pb.CommandError, port=port)
    assert refused.error == pb.ServiceNotReady


def test_clients_retry_while_the_home_is_down(tmp_path: Path, connect: Connect) -> None:
    with LocalCluster(tmp_path / "a", name="a", cluster_number=1) as a:
        with LocalCluster(tmp_path / "b", name="b", cluster_number=2) as b:
            introduce(a, b)
            create("acme/orders", b)
            port = b.proxy.port
        settle("acme", "b", a)
        refused = look_up(a)
        assert (refused.response, refused.error) == (refused.Failed, pb.ServiceNotReady)
        assert refused.message.startswith("Failed to acquire ownership: cluster b")
        for command, kind in (
            (pb.CommandGetTopicsOfNamespace(namespace="acme/orders"), pb.CommandError),
            (pb.CommandGetSchema(topic=TOPIC), pb.CommandGetSchemaResponse),
        ):
            command.request_id = 7
            found = asked(a, command, kind)
            code = found.error if kind is pb.CommandError else found.error_code
            assert code == pb.ServiceNotReady
        client = connect(a.service_url)
        made: list[pulsar.Producer] = []
        waiting = threading.Thread(target=lambda: made.append(client.create_producer(TOPIC)))
        waiting.start()
        with LocalCluster(tmp_path / "b", name="b", cluster_number=2, service_port=port) as b:
            waiting.join(PATIENCE_MS / 1000)
            made[0].send(b"x")
            assert stored(b, TOPIC) == 1


@pytest.mark.parametrize("kind", ["official", "ours"])
def test_clients_are_redirected_to_a_home_behind_tunnels(tmp_path: Path, kind: str) -> None:
    with neighbours(tmp_path, tunnel=True) as (a, b):
        create("acme/orders", b)
        settle("acme", "b", a)
        found = look_up(a)
        assert (found.response, found.proxy_through_service_url) == (found.Redirect, False)
        assert found.brokerServiceUrl == b.service_url
        make: Any = pulsar.Client if kind == "official" else velaray.Client
        client = make(a.service_url)
        try:
            consumer = client.subscribe(TOPIC, "s")
            client.create_producer(TOPIC).send(b"x")
            assert consumer.receive(PATIENCE_MS).data() == b"x"
            assert (len(b.proxy.tunnels) > 0, stored(b, TOPIC)) == (True, 1)
        finally:
            client.close()


def test_requests_to_a_home_use_its_token(tmp_path: Path, connect: Connect) -> None:
    auth = AuthSettings(secret=b"of b, which nobody else knows, really")
    token = jwt.encode({"sub": "a"}, auth.secret, "HS256")
    with neighbours(tmp_path, auth=auth) as (a, b):
        create("acme/orders", b)
        settle("acme", "b", a)
        refused = look_up(a)
        assert (refused.error, token in refused.message) == (pb.ServiceNotReady, False)
        ask(a, "update_cluster", cluster="b", token=token)
        found = look_up(a)
        assert found.response == found.Connect
        client = connect(a.service_url, authentication=pulsar.AuthenticationToken(token))
        client.create_producer(TOPIC).send(b"x")
        assert stored(b, TOPIC) == 1


# -- a home that changes -----------------------------------------------------------


class Running:
    """A producer that numbers its messages, and a consumer that acknowledges them."""

    def __init__(self, client: Any, topic: str) -> None:
        self._consumer = client.subscribe(topic, "s", consumer_type=self._shared(client))
        self._producer = client.create_producer(topic, send_timeout_millis=60_000)
        self._number = 0

    @staticmethod
    def _shared(client: Any) -> Any:
        kind = pulsar if isinstance(client, pulsar.Client) else velaray
        return kind.ConsumerType.Shared

    def exchange(self, count: int) -> None:
        """Publish, and wait for, so many messages."""
        sent = []
        for _ in range(count):
            self._number += 1
            sent.append(str(self._number).encode())
            self._producer.send(sent[-1])
        got = []
        while len(got) < count:
            message = self._consumer.receive(PATIENCE_MS)
            self._consumer.acknowledge(message)
            got.append(message.data())
        assert sorted(got, key=int) == sent


@pytest.mark.parametrize("kind", ["official", "ours"])
def test_clients_follow_their_tenant_without_being_restarted(tmp_path: Path, kind: str) -> None:
    with neighbours(tmp_path) as (a, b):
        create("acme/orders", a, b)
        make: Any = pulsar.Client if kind == "official" else velaray.Client
        client = make(a.service_url)
        try:
            running = Running(client, TOPIC)
            ask(b, "create_topic", topic=TOPIC)
            Admin(b.admin_url).create_subscription(TOPIC, "s")
            running.exchange(5)
            assert (stored(a, TOPIC), stored(b, TOPIC)) == (5, 0)
            eventually(lambda: not backlog(a))
            settle("acme", "b", a, b)
            eventually(lambda: not clients(a))  # nothing is replicated: what comes before stays
            running.exchange(5)
            assert (stored(a, TOPIC), stored(b, TOPIC)) == (5, 5)
            eventually(lambda: not backlog(b))  # else it's delivered again when they come back
            settle("acme", "a", a, b)
            eventually(lambda: not clients(b))
            running.exchange(5)
            assert (stored(a, TOPIC), stored(b, TOPIC)) == (10, 5)
        finally:
            client.close()


def backlog(cluster: LocalCluster) -> int:
    found = Admin(cluster.admin_url).stats(TOPIC)
    return int(found["subscriptions"]["s"]["msgBacklog"])


def clients(cluster: LocalCluster) -> int:
    """How many producers and consumers the topic's partition has."""
    found = Admin(cluster.admin_url).stats(TOPIC)
    consumers = [each["consumers"] for each in found["subscriptions"].values()]
    return len(found["publishers"]) + sum(map(len, consumers))


def test_a_client_that_is_connecting_must_look_up_again(tmp_path: Path) -> None:
    with neighbours(tmp_path) as (a, b):
        create("acme/orders", a, b)
        port = port_of(look_up(a).brokerServiceUrl)
        exclusive = pb.ProducerAccessMode.WaitForExclusive

        async def scenario() -> None:
            client = await RawClient.connect("127.0.0.1", port)
            first = pb.CommandProducer(topic=TOPIC, producer_id=1, request_id=1)
            client.send(first)
            await client.next(pb.CommandProducerSuccess)
            waits = pb.CommandProducer(
                topic=TOPIC, producer_id=2, request_id=2, producer_access_mode=exclusive
            )
            client.send(waits)
            told = await client.next(pb.CommandProducerSuccess)
            assert (told.request_id, told.producer_ready) == (2, False)
            await client.subscribe(TOPIC, subscription="s")
            replicator = await RawClient.connect("127.0.0.1", port, CLIENT_VERSION)
            replicator.send(pb.CommandProducer(topic=TOPIC, producer_id=1, request_id=1))
            await call_by_name(
                a.actor_system, CATALOG, "set_home", {"tenant": "acme", "cluster": "b"}
            )
            assert (await client.next(pb.CommandCloseProducer)).producer_id == 1
            assert (await client.next(pb.CommandCloseConsumer)).consumer_id == 1
            error = await client.next(pb.CommandError)
            assert (error.request_id, error.error) == (2, pb.ServiceNotReady)
            client.send(first)
            error = await client.next(pb.CommandError)
            assert (error.request_id, error.error) == (1, pb.ServiceNotReady)
            await replicator.produce(TOPIC, [b"x"], producer_id=2)
            client.close()
            replicator.close()

        a.run(scenario())


# -- over HTTP ---------------------------------------------------------------------


def test_clients_that_look_up_over_http_are_redirected(pair: Pair, connect: Connect) -> None:
    a, b = pair
    ask(b, "create_topic", topic=TOPIC, partitions=2)
    client = connect(a.admin_url)
    consumer = client.subscribe(TOPIC, "s")
    client.create_producer(TOPIC).send(b"x")
    assert data(receive(consumer, 1)) == [b"x"]
    assert names(a) == []


def test_admin_clients_are_redirected_to_the_home(pair: Pair) -> None:
    a, b = pair
    ask(b, "create_topic", topic=TOPIC, partitions=2)
    admin = Admin(a.admin_url)
    assert admin.partitions(TOPIC) == 2
    Admin(b.admin_url).upload_schema(TOPIC, "STRING")
    assert admin.schema(TOPIC)["type"] == "STRING"
    assert admin.schemas(TOPIC) == Admin(b.admin_url).schemas(TOPIC)
    assert names(a) == []


@pytest.mark.parametrize(
    "path",
    [
        "/lookup/v2/topic/persistent/acme/orders/t%20t",
        "/admin/v2/persistent/acme/orders/t/partitions?checkAllowAutoCreation=true",
        "/admin/v2/namespaces/acme/orders/topics?mode=ALL",
        "/admin/v2/schemas/acme/orders/t/schema",
    ],
)
def test_admin_requests_are_forwarded_to_the_home_unchanged(pair: Pair, path: str) -> None:
    a, b = pair
    sent = Http(a.admin_url)("GET", path)
    assert (sent.status, sent.headers["Location"]) == (307, f"{b.admin_url}{path}")
    settle("acme", "a", a)
    assert Http(a.admin_url)("GET", path).status in (200, 404)


def test_admin_requests_of_a_migration_are_not_redirected(pair: Pair) -> None:
    a, b = pair
    ask(b, "create_topic", topic=TOPIC, partitions=2)
    ask(a, "create_topic", topic=TOPIC, partitions=3)
    assert Admin(a.admin_url).partitions(TOPIC) == 2
    assert Admin(a.admin_url, client_version=CLIENT_VERSION).partitions(TOPIC) == 3
