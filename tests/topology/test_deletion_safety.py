"""Access to the deletion topics: only for the cluster's own actors."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import jwt
import pulsar
import pytest

import velaray
from tests.support.by_name import call_by_name
from tests.support.local_cluster import LocalCluster
from tests.support.waiting import wait_until
from tests.topology.deleting import (
    a_topic,
    counts,
    listed,
    make_journal,
    publish,
    raw_event,
    stored,
    tell,
    wait_for,
)
from tests.topology.test_admin_api import V2, Http
from velaray.aio import Client
from velaray.broker.garbage_collection.collectors import ensure_deletion_topics
from velaray.broker.garbage_collection.deletion import EVENTS, OPERATOR, TOPICS, WORKER
from velaray.client.admin import Admin
from velaray.client.auth import Authentication
from velaray.client.connection import Connection
from velaray.events.ids import ActorKey, ActorKind
from velaray.topology.auth import HANDLES_METHOD, SYSTEM_METHOD, check_own_proof, own_proof
from velaray.topology.config import AuthSettings
from velaray.topology.rpc import RemoteError
from velaray.topology.system_credentials import SystemCredentials
from velaray.wire import pulsar_pb2 as pb

SECRET = b"a secret that is long enough for HS256"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("cluster"), deleters=1) as running:
        counts(running)
        yield running


@pytest.fixture(scope="module")
def http(cluster: LocalCluster) -> Http:
    return Http(cluster.admin_url)


NAMES = [str(name) for topic in TOPICS for name in (topic, topic.of_partition(0))]


@pytest.mark.parametrize("name", NAMES)
def test_users_cannot_publish_or_subscribe_to_the_deletion_topics(
    cluster: LocalCluster, name: str
) -> None:
    refused = pytest.raises(velaray.NotAllowedError, match="belongs to the system")
    with velaray.Client(cluster.service_url) as client:
        with refused:
            client.create_producer(name)
        for subscription in (WORKER, OPERATOR, "mine"):
            with refused:
                client.subscribe(name, subscription)
        with refused:
            client.create_reader(name, velaray.MessageId.earliest)


def test_a_refused_request_activates_no_actor(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, deleters=0) as cluster:
        cluster.run(ensure_deletion_topics(cluster.actor_system))
        found = Admin(cluster.admin_url).topics("pulsar/system")
        assert [found[str(topic)] for topic in TOPICS] == [1, 1, 1]
        lookup = f"/lookup/v2/topic/persistent/pulsar/system/{EVENTS.local}-partition-0"
        assert Http(cluster.admin_url)("GET", lookup).status == 412
        with velaray.Client(cluster.service_url) as client:
            for name in (str(EVENTS), str(EVENTS.of_partition(0))):
                with pytest.raises(velaray.NotAllowedError):
                    client.create_producer(name)
        assert cluster.keys(ActorKind.PARTITION) == []


def test_the_official_client_is_refused(cluster: LocalCluster) -> None:
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    client = pulsar.Client(cluster.service_url, logger=quiet)
    with pytest.raises(pulsar.PulsarException):
        client.create_producer(str(EVENTS))
    with pytest.raises(pulsar.PulsarException):
        client.subscribe(str(EVENTS), WORKER, pulsar.ConsumerType.Shared)
    client.close()


def partition_of(cluster: LocalCluster, number: int) -> ActorKey:
    wanted = {"topic": str(EVENTS)}
    found = cluster.run(call_by_name(cluster.actor_system, ActorKey.catalog(), "topic", wanted))
    return ActorKey.of_partition(EVENTS.of_partition(number), found["incarnation"])


async def _ask_directly(port: int, proof: Authentication | None) -> list[Exception | None]:
    """Connect to a partition without looking it up; the refusals of a producer and a consumer."""
    connection = Connection(f"127.0.0.1:{port}", proof, 30.0)
    await connection.open("127.0.0.1", port)
    topic = str(EVENTS.of_partition(0))
    refusals: list[Exception | None] = []
    for command in (
        pb.CommandProducer(topic=topic, producer_id=1),
        pb.CommandSubscribe(
            topic=topic, subscription=WORKER, subType=pb.CommandSubscribe.Shared, consumer_id=1
        ),
    ):
        try:
            await connection.request(command, 10.0)
            refusals.append(None)
        except velaray.VelarayError as error:
            refusals.append(error)
    await connection.close()
    return refusals


def test_direct_connections_to_a_partition_are_refused(cluster: LocalCluster) -> None:
    address = cluster.run(cluster.actor_system.address(partition_of(cluster, 0)))
    refusals = asyncio.run(_ask_directly(address.service_port, None))
    assert [type(refusal) for refusal in refusals] == [velaray.NotAllowedError] * 2
    proof = SystemCredentials(cluster.config.rpc_key)
    assert asyncio.run(_ask_directly(address.service_port, proof)) == [None, None]


class Claims(Authentication):
    """Says that it is the system, with any proof."""

    def __init__(self, method: str, proof: bytes) -> None:
        self.method = method
        self._proof = proof

    def data(self) -> bytes:
        return self._proof


PROOFS = [
    (SYSTEM_METHOD, b""),
    (SYSTEM_METHOD, b"test"),
    (SYSTEM_METHOD, own_proof(b"another key", SYSTEM_METHOD).encode()),
    (SYSTEM_METHOD, own_proof(b"test", HANDLES_METHOD).encode()),
    (HANDLES_METHOD, own_proof(b"another key", HANDLES_METHOD).encode()),
    (SYSTEM_METHOD, b"\xff\xfe"),
    (SYSTEM_METHOD, b"\xc3\xa4" * 32),
]


@pytest.mark.parametrize(("method", "proof"), PROOFS)
def test_a_wrong_proof_is_refused(cluster: LocalCluster, method: str, proof: bytes) -> None:
    async def main() -> None:
        client = Client(cluster.service_url, authentication=Claims(method, proof))
        with pytest.raises(velaray.AuthenticationError, match="an actor of this cluster"):
            await client.create_producer(str(EVENTS))
        with pytest.raises(velaray.AuthenticationError):
            await client.create_producer("anything")
        await client.shutdown()

    asyncio.run(main())


def test_the_key_is_not_in_the_proof() -> None:
    key = b"0123456789abcdef"
    proof = own_proof(key, SYSTEM_METHOD)
    check_own_proof(key, SYSTEM_METHOD, proof)
    assert key.decode() not in proof and key.hex() not in proof


def test_the_rest_api_refuses_changes_of_the_deletion_topics(
    cluster: LocalCluster, http: Http
) -> None:
    one = f"/subscription/{WORKER}"
    numbers = ("/partitions", "/messageTTL", "/policies/messageTTL")
    for topic in TOPICS:
        for name in (topic.local, f"{topic.local}-partition-0"):
            for method, rest in (
                ("PUT", ""),
                ("DELETE", "?force=true"),
                ("POST", "/partitions"),
                ("DELETE", "/partitions?force=true"),
                ("POST", "/terminate"),
                ("PUT", "/unload"),
                ("PUT", "/compaction"),
                ("PUT", one),
                ("DELETE", f"{one}?force=true"),
                ("POST", f"{one}/skip/1"),
                ("POST", f"{one}/skip_all"),
                ("POST", f"{one}/resetcursor"),
                ("POST", f"{one}/resetcursor/0"),
                ("POST", f"{one}/expireMessages/1"),
                ("POST", f"{one}/undo"),
                ("POST", "/all_subscription/expireMessages/1"),
                ("POST", "/messageTTL"),
                ("PUT", "/policies/messageTTL"),
            ):
                path = f"{V2}/persistent/pulsar/system/{name}{rest}"
                refused = http(method, path, 1 if rest in numbers else None)
                assert refused.status == 405, (method, path, refused)
    for method, rest, body in (
        ("POST", "messageTTL", 1),
        ("DELETE", "messageTTL", None),
        ("PUT", "policies/retention", 1),
        ("POST", "backlogQuota", {"limitSize": 1, "policy": "producer_request_hold"}),
    ):
        path = f"{V2}/namespaces/pulsar/system/{rest}"
        assert http(method, path, body).status == 405, path
    schema = f"{V2}/schemas/pulsar/system/{EVENTS.local}/schema"
    assert http("DELETE", schema).status in (405, 412)


def test_statistics_of_the_deletion_topics_may_be_read(cluster: LocalCluster, http: Http) -> None:
    key = a_topic("seen")
    ledger_id = listed(make_journal(cluster, key))[0]
    tell(cluster, key, [ledger_id])
    wait_for(cluster, in_use=1)
    base = f"{V2}/persistent/pulsar/system/{EVENTS.local}"
    assert http("GET", f"{base}/partitioned-stats").status == 200
    assert http("GET", f"{base}/subscriptions").body == [WORKER]
    assert http("GET", f"{base}/subscription/{WORKER}/describe").status == 200
    assert http("GET", f"{V2}/namespaces/pulsar/system/messageTTL").body == 0


def test_a_policy_of_the_cluster_does_not_apply_to_system_topics(
    cluster: LocalCluster, http: Http
) -> None:
    assert http("PUT", f"{V2}/policies/messageTTL", 1).status == 204
    try:
        base = f"{V2}/namespaces/pulsar/system/policies"
        assert http("GET", f"{base}?applied=true").body["messageTTL"] == 0
    finally:
        http("DELETE", f"{V2}/policies/messageTTL")


def test_dead_letters_of_users_cannot_go_to_the_deletion_topics(cluster: LocalCluster) -> None:
    topic, admin = "persistent://public/default/letters", Admin(cluster.admin_url)
    with velaray.Client(cluster.service_url) as client:
        with client.create_producer(topic) as producer:
            policy = {"maxRedeliverCount": 1, "deadLetterTopic": str(EVENTS)}
            admin.set_policy_of(topic, "deadLetter", policy)
            consumer = client.subscribe(
                topic, "s", velaray.ConsumerType.Shared, negative_ack_redelivery_delay_ms=50
            )
            producer.send(raw_event(a_topic("orders"), 7))

        def condemned() -> int:
            with contextlib.suppress(velaray.Timeout):
                consumer.negative_acknowledge(consumer.receive(200))
            return int(admin.describe_subscription(topic, "s")[topic]["dead_letters"])

        before = admin.last_message_id(str(EVENTS.of_partition(0)))
        assert wait_until(condemned, 30.0) == 1
        (key,) = [key for key in cluster.keys(ActorKind.PARTITION) if key.topic == "letters"]
        mover = cluster.actor_system.actors[key].subscriptions.channels["s"].mover  # type: ignore[attr-defined]
        with pytest.raises(RemoteError, match="belongs to the system"):
            cluster.run(mover._move(*mover._dead_letters[0]))
        assert admin.last_message_id(str(EVENTS.of_partition(0))) == before
        consumer.close()


@pytest.mark.parametrize("tunnel", [False, True])
def test_garbage_collectors_need_no_token(tmp_path: Path, tunnel: bool) -> None:
    auth = AuthSettings(secret=SECRET)
    token = jwt.encode({"sub": "velaray-system"}, SECRET, algorithm="HS256")
    with LocalCluster(
        tmp_path, auth=auth, tunnel=tunnel, deleters=1, deletion_retry_s=0.2
    ) as cluster:
        key = a_topic("orders")
        journal = make_journal(cluster, key)
        first, *rest = listed(journal)
        cluster.run(journal.drop_from_manifest([first]))
        tell(cluster, key, [first])
        wait_for(cluster, deleted=1)
        assert stored(cluster, key) == rest
        proof = velaray.AuthenticationToken(token)
        with (
            velaray.Client(cluster.service_url, authentication=proof) as client,
            pytest.raises(velaray.NotAllowedError),
        ):
            client.create_producer(str(EVENTS))
        publish(cluster, raw_event(key, rest[0]))
        wait_for(cluster, in_use=1)
