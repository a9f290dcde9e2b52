"""What roles may do over the protocol and over REST, and what happens when they may no longer."""

from __future__ import annotations

import asyncio
import itertools
import json
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pulsar
import pytest
from click.testing import CliRunner

from tests.official.raw import RawClient
from tests.official.support import eventually
from tests.security.support import TOPIC, admin_of, client_of, guarded, raw, token
from tests.support.local_cluster import LocalCluster
from velaray import AuthorizationError, Client, Consumer, Producer
from velaray.broker.coordinator.coordinators import ensure_partitions
from velaray.cli.app import main
from velaray.client.admin import AdminError, NotFound, PreconditionFailed
from velaray.events.ids import ActorKind, TopicName
from velaray.wire import pulsar_pb2 as pb

NO_SCHEMA = pb.Schema(name="", type=pb.Schema.String, schema_data=b"")

_numbers = itertools.count()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with guarded(tmp_path_factory.mktemp("guarded"), "guest") as running:
        yield running


@pytest.fixture
def role() -> str:
    """A role that no other test uses."""
    return f"app-{next(_numbers)}"


@pytest.fixture
def client(cluster: LocalCluster, role: str) -> Iterator[Client]:
    made = client_of(cluster, role)
    yield made
    made.close()


def produces(client: Client, topic: str = TOPIC) -> bool:
    return _allowed(lambda: client.create_producer(topic))


def consumes(client: Client, topic: str = TOPIC, subscription: str = "s") -> bool:
    return _allowed(lambda: client.subscribe(topic, subscription))


def _allowed(open_it: Callable[[], Producer | Consumer]) -> bool:
    try:
        open_it().close()
    except AuthorizationError:
        return False
    return True


# -- grants ------------------------------------------------------------------------


def test_a_role_without_grants_may_do_nothing(client: Client) -> None:
    assert not produces(client)
    assert not consumes(client)
    with pytest.raises(AuthorizationError, match="not authorized to look up"):
        client.get_topic_partitions(TOPIC)


def test_system_topics_are_not_looked_up_but_those_of_coordinators(
    cluster: LocalCluster, role: str
) -> None:
    """Every client needs the coordinators; other topics of the system are the superusers'."""
    system = "persistent://pulsar/system"
    cluster.run(
        ensure_partitions(
            cluster.actor_system, TopicName("pulsar", "system", "__ledger_deletion"), 1
        )
    )

    async def partitions(asking: str, name: str) -> pb.CommandPartitionedTopicMetadataResponse:
        client = await raw(cluster.proxy.port, asking)
        topic = f"{system}/{name}"
        client.send(pb.CommandPartitionedTopicMetadata(topic=topic, request_id=1))
        found = await client.next(pb.CommandPartitionedTopicMetadataResponse)
        client.close()
        return found

    async def scenario() -> None:
        assert (await partitions(role, "transaction_coordinator_assign")).partitions > 0
        found = await partitions(role, "__ledger_deletion")
        assert found.error == pb.AuthorizationError
        assert (await partitions("root", "__ledger_deletion")).partitions == 1

    asyncio.run(scenario())


@pytest.mark.parametrize("where", ["shop/orders", TOPIC], ids=["namespace", "topic"])
def test_an_action_is_granted_and_revoked(
    cluster: LocalCluster, client: Client, role: str, where: str
) -> None:
    boss = admin_of(cluster, "boss")
    boss.permissions.grant(where, role, ["produce"])
    assert (produces(client), consumes(client)) == (True, False)
    boss.permissions.grant(where, role, ["consume"])
    assert (produces(client), consumes(client)) == (False, True)
    neighbour = "persistent://shop/orders/old"
    assert consumes(client, neighbour) == (where == "shop/orders")
    assert not consumes(client, "persistent://other/things/t")
    boss.permissions.revoke(where, role)
    assert (produces(client), consumes(client)) == (False, False)


def test_actions_of_namespace_and_topic_add_up(cluster: LocalCluster, role: str) -> None:
    boss = admin_of(cluster, "boss")
    boss.permissions.grant("shop/orders", role, ["produce"])
    boss.permissions.grant(TOPIC, role, ["consume"])
    assert boss.permissions(TOPIC)[role] == ["produce", "consume"]
    assert boss.permissions("shop/orders")[role] == ["produce"]
    with_client = client_of(cluster, role)
    assert produces(with_client)
    assert consumes(with_client)
    with_client.close()


def test_administrators_and_superusers_need_no_grants(cluster: LocalCluster) -> None:
    boss, root = client_of(cluster, "boss"), client_of(cluster, "root")
    assert produces(boss)
    assert consumes(boss)
    assert not produces(boss, "persistent://other/things/t")
    assert produces(root, "persistent://other/things/t")
    boss.close()
    root.close()


def test_a_tenant_changes_its_administrators(cluster: LocalCluster, role: str) -> None:
    admin_of(cluster, "root").update_tenant(
        "other", admin_roles=[role], allowed_clusters=["standalone"]
    )
    assert list(admin_of(cluster, role).topics("other/things")) == ["persistent://other/things/t"]
    admin_of(cluster, "root").update_tenant(
        "other", admin_roles=[], allowed_clusters=["standalone"]
    )
    with pytest.raises(AdminError, match="not authorized"):
        admin_of(cluster, role).topics("other/things")


def test_only_administrators_grant(cluster: LocalCluster, role: str) -> None:
    admin_of(cluster, "boss").permissions.grant(TOPIC, role, ["produce", "consume"])
    for where in ("shop/orders", TOPIC):
        with pytest.raises(AdminError, match="not authorized to administer"):
            admin_of(cluster, role).permissions.grant(where, role, ["produce"])
        with pytest.raises(AdminError, match="not authorized to administer"):
            admin_of(cluster, role).permissions(where)


def test_wrong_grants_are_refused(cluster: LocalCluster, role: str) -> None:
    boss = admin_of(cluster, "boss")
    with pytest.raises(AdminError, match="unknown action 'fly'"):
        boss.permissions.grant("shop/orders", role, ["fly"])
    with pytest.raises(NotFound):
        boss.permissions.grant("persistent://shop/orders/absent", role, ["produce"])
    with pytest.raises(PreconditionFailed, match="nothing is granted"):
        boss.permissions.revoke(TOPIC, role)


def test_grants_survive_the_catalog(cluster: LocalCluster, client: Client, role: str) -> None:
    boss = admin_of(cluster, "boss")
    boss.permissions.grant("shop/orders", role, ["consume"])
    assert consumes(client)
    (catalog,) = cluster.keys(ActorKind.CATALOG)
    cluster.kill(catalog)
    assert boss.permissions("shop/orders")[role] == ["consume"]
    assert consumes(client)
    boss.permissions.revoke("shop/orders", role)
    assert not consumes(client)


# -- subscriptions -----------------------------------------------------------------


def test_a_subscription_is_reserved_for_roles(
    cluster: LocalCluster, client: Client, role: str
) -> None:
    boss = admin_of(cluster, "boss")
    boss.permissions.grant("shop/orders", role, ["consume"])
    boss.permissions.grant_subscription("shop/orders", "reserved", ["somebody"])
    assert not consumes(client, subscription="reserved")
    assert consumes(client, subscription="another")
    boss.permissions.grant_subscription("shop/orders", "reserved", [role])
    assert boss.permissions.of_subscriptions("shop/orders")["reserved"] == [role, "somebody"]
    assert consumes(client, subscription="reserved")
    boss.permissions.revoke_subscription("shop/orders", "reserved", role)
    assert not consumes(client, subscription="reserved")
    boss.permissions.revoke_subscription("shop/orders", "reserved", "somebody")
    assert consumes(client, subscription="reserved")


def test_names_of_subscriptions_may_be_tied_to_roles(
    cluster: LocalCluster, client: Client, role: str
) -> None:
    boss = admin_of(cluster, "boss")
    boss.permissions.grant("shop/bills", role, ["produce", "consume"])
    boss.set_policy("shop/bills", "subscriptionAuthMode", "Prefix")
    topic = "persistent://shop/bills/b"
    assert produces(client, topic)
    assert not consumes(client, topic)
    assert consumes(client, topic, f"{role}-s")
    boss.remove_policy("shop/bills", "subscriptionAuthMode")
    assert consumes(client, topic)


# -- revocation --------------------------------------------------------------------


def test_open_producers_and_consumers_are_closed(
    cluster: LocalCluster, client: Client, role: str
) -> None:
    boss = admin_of(cluster, "boss")
    boss.permissions.grant("shop/orders", role, ["produce", "consume"])
    producer, consumer = client.create_producer(TOPIC), client.subscribe(TOPIC, role)
    producer.send(b"before")
    assert consumer.receive(30_000).data() == b"before"
    boss.permissions.revoke("shop/orders", role)

    def connected() -> list[Any]:
        stats = boss.stats(TOPIC)
        mine = stats["subscriptions"].get(role, {"consumers": []})
        return [*stats["publishers"], *mine["consumers"]]

    eventually(lambda: not connected())
    with pytest.raises(AuthorizationError):
        producer.send(b"after")


def test_a_consumer_of_a_subscription_that_is_taken_away_is_closed(
    cluster: LocalCluster, client: Client, role: str
) -> None:
    boss = admin_of(cluster, "boss")
    boss.permissions.grant("shop/orders", role, ["consume"])
    client.subscribe(TOPIC, f"{role}-taken")
    client.subscribe(TOPIC, f"{role}-kept")
    boss.permissions.grant_subscription("shop/orders", f"{role}-taken", ["somebody"])

    def consumers(name: str) -> int:
        return len(boss.stats(TOPIC)["subscriptions"][f"{role}-{name}"]["consumers"])

    eventually(lambda: consumers("taken") == 0)
    assert consumers("kept") == 1


def test_the_official_client_is_refused_and_closed(cluster: LocalCluster, role: str) -> None:
    boss = admin_of(cluster, "boss")
    client = pulsar.Client(
        cluster.service_url,
        authentication=pulsar.AuthenticationToken(token(role)),
        operation_timeout_seconds=30,
    )
    with pytest.raises(pulsar.PulsarException):
        client.subscribe(TOPIC, role)
    boss.permissions.grant(TOPIC, role, ["consume"])
    client.subscribe(TOPIC, role)
    boss.permissions.revoke(TOPIC, role)
    eventually(lambda: not boss.stats(TOPIC)["subscriptions"][role]["consumers"])
    client.close()


# -- the protocol ------------------------------------------------------------------


def partition_port(cluster: LocalCluster, topic: str) -> int:
    return cluster.run(_located(cluster, topic))


async def _located(cluster: LocalCluster, topic: str) -> int:
    from velaray.events.ids import TopicName

    return (await cluster.proxy.locate(TopicName.parse(topic))).service_port


def test_each_command_is_refused_with_its_own_answer(cluster: LocalCluster, role: str) -> None:
    partition = partition_port(cluster, TOPIC)
    refused = pb.AuthorizationError

    async def at_the_proxy() -> None:
        client = await raw(cluster.proxy.port, role)
        client.send(pb.CommandLookupTopic(topic=TOPIC, request_id=1))
        assert (await client.next(pb.CommandLookupTopicResponse)).error == refused
        client.send(pb.CommandPartitionedTopicMetadata(topic=TOPIC, request_id=2))
        found = await client.next(pb.CommandPartitionedTopicMetadataResponse)
        assert found.error == refused
        client.send(pb.CommandGetTopicsOfNamespace(namespace="shop/orders", request_id=3))
        assert (await client.next(pb.CommandError)).error == refused
        client.send(pb.CommandGetSchema(topic=TOPIC, request_id=4))
        assert (await client.next(pb.CommandGetSchemaResponse)).error_code == refused

    async def at_the_partition() -> None:
        client = await raw(partition, role)
        client.send(pb.CommandProducer(topic=TOPIC, producer_id=1, request_id=1))
        assert (await client.next(pb.CommandError)).error == refused
        client.send(
            pb.CommandSubscribe(
                topic=TOPIC,
                subscription="s",
                subType=pb.CommandSubscribe.Shared,
                consumer_id=1,
                request_id=2,
            )
        )
        assert (await client.next(pb.CommandError)).error == refused
        client.send(pb.CommandGetOrCreateSchema(topic=TOPIC, request_id=3, schema=NO_SCHEMA))
        found = await client.next(pb.CommandGetOrCreateSchemaResponse)
        assert found.error_code == refused

    asyncio.run(at_the_proxy())
    asyncio.run(at_the_partition())


def pb_subscriptions(topic: str) -> list[pb.Subscription]:
    return [pb.Subscription(topic=topic, subscription="s")]


def test_transactions_go_on_after_a_right_to_a_usual_participant_is_revoked(
    cluster: LocalCluster, role: str
) -> None:
    topics = [f"{TOPIC}-{name}" for name in ("kept", "revoked")]
    boss = admin_of(cluster, "boss")
    permissions = boss.permissions
    for topic in topics:
        boss.topics.create(topic)
        permissions.grant(topic, role, ["produce"])
    with client_of(cluster, role) as client:
        kept, revoked = map(client.create_producer, topics)
        for _ in range(3):
            with client.new_transaction() as txn:
                for producer in (kept, revoked):
                    producer.send(b"x", txn=txn)
        permissions.revoke(topics[1], role)
        for _ in range(3):
            with client.new_transaction() as txn:
                kept.send(b"x", txn=txn)


def test_a_transaction_takes_in_no_topic_of_others(cluster: LocalCluster, role: str) -> None:
    assign = "persistent://pulsar/system/transaction_coordinator_assign-partition-0"
    port = partition_port(cluster, assign)

    async def scenario() -> None:
        client = await raw(port, role)
        client.send(pb.CommandTcClientConnectRequest(tc_id=0, request_id=1))
        assert not (await client.next(pb.CommandTcClientConnectResponse)).message
        client.send(pb.CommandNewTxn(tc_id=0, request_id=2, txn_ttl_millis=60_000))
        begun = await client.next(pb.CommandNewTxnResponse)
        ids = {"txnid_most_bits": 0, "txnid_least_bits": begun.txnid_least_bits}
        client.send(pb.CommandAddPartitionToTxn(request_id=3, partitions=[TOPIC], **ids))
        found = await client.next(pb.CommandAddPartitionToTxnResponse)
        assert found.error == pb.AuthorizationError
        client.send(
            pb.CommandAddSubscriptionToTxn(
                request_id=4,
                subscription=pb_subscriptions(TOPIC),
                **ids,
            )
        )
        found = await client.next(pb.CommandAddSubscriptionToTxnResponse)
        assert found.error == pb.AuthorizationError
        for more in ({"partitions": [TOPIC]}, {"subscription": pb_subscriptions(TOPIC)}):
            client.send(pb.CommandNewTxn(tc_id=0, request_id=7, **more))
            found = await client.next(pb.CommandNewTxnResponse)
            assert found.error == pb.AuthorizationError
        client.send(pb.CommandEndTxn(request_id=5, txn_action=pb.ABORT, **ids))
        assert not (await client.next(pb.CommandEndTxnResponse)).message
        other = await raw(port, "somebody else")
        other.send(pb.CommandNewTxn(tc_id=0, request_id=2, txn_ttl_millis=60_000))
        theirs = (await other.next(pb.CommandNewTxnResponse)).txnid_least_bits
        client.send(
            pb.CommandEndTxn(
                request_id=6, txn_action=pb.COMMIT, txnid_most_bits=0, txnid_least_bits=theirs
            )
        )
        assert (await client.next(pb.CommandEndTxnResponse)).message

    asyncio.run(scenario())


def test_an_initial_subscription_needs_the_right_to_consume(
    cluster: LocalCluster, role: str
) -> None:
    admin_of(cluster, "boss").permissions.grant(TOPIC, role, ["produce"])
    port = partition_port(cluster, TOPIC)

    async def scenario() -> None:
        client = await raw(port, role)
        command = pb.CommandProducer(topic=TOPIC, producer_id=1, request_id=1)
        command.initial_subscription_name = "sneaked"
        client.send(command)
        assert (await client.next(pb.CommandError)).error == pb.AuthorizationError

    asyncio.run(scenario())
    assert "sneaked" not in admin_of(cluster, "boss").stats(TOPIC)["subscriptions"]


# -- special roles -----------------------------------------------------------------


async def _lookup(client: RawClient, **fields: Any) -> pb.CommandLookupTopicResponse:
    client.send(pb.CommandLookupTopic(topic=TOPIC, request_id=1, **fields))
    found: pb.CommandLookupTopicResponse = await client.next(pb.CommandLookupTopicResponse)
    return found


def test_a_proxy_and_its_client_both_need_the_right(cluster: LocalCluster, role: str) -> None:
    boss, port = admin_of(cluster, "boss"), cluster.proxy.port

    async def allowed() -> bool:
        client = await raw(port, "gate", original_principal=role)
        await client.next(pb.CommandConnected)
        return not (await _lookup(client)).HasField("error")

    assert not asyncio.run(allowed())
    boss.permissions.grant("shop/orders", role, ["consume"])
    assert not asyncio.run(allowed())
    boss.permissions.grant("shop/orders", "gate", ["consume"])
    assert asyncio.run(allowed())
    boss.permissions.revoke("shop/orders", role)
    assert not asyncio.run(allowed())
    boss.permissions.revoke("shop/orders", "gate")


def test_a_proxy_names_the_client_of_each_look_up(cluster: LocalCluster, role: str) -> None:
    admin_of(cluster, "boss").permissions.grant("shop/orders", role, ["consume"])

    async def scenario() -> None:
        client = await raw(cluster.proxy.port, "gate-root", original_principal="nobody")
        await client.next(pb.CommandConnected)
        assert (await _lookup(client)).error == pb.AuthorizationError
        assert not (await _lookup(client, original_principal=role)).HasField("error")

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("own", "original"), [("gate", ""), ("gate", "gate-root"), ("app", "root"), ("root", "app")]
)
def test_other_uses_of_the_original_principal_are_refused(
    cluster: LocalCluster, own: str, original: str
) -> None:
    async def scenario() -> None:
        client = await raw(cluster.proxy.port, own, original_principal=original)
        assert (await client.next(pb.CommandError)).error == pb.AuthenticationError
        async with asyncio.timeout(30):
            await client.closed.wait()

    asyncio.run(scenario())
    status, _ = rest(cluster, own, "GET", "/admin/v2/clusters", {"X-Original-Principal": original})
    assert status == 401


def test_clients_without_credentials_have_the_anonymous_role(cluster: LocalCluster) -> None:
    boss = admin_of(cluster, "boss")

    async def allowed() -> bool:
        client = await raw(cluster.proxy.port, "")
        await client.next(pb.CommandConnected)
        return not (await _lookup(client)).HasField("error")

    assert not asyncio.run(allowed())
    boss.permissions.grant(TOPIC, "guest", ["consume"])
    assert asyncio.run(allowed())
    boss.permissions.revoke(TOPIC, "guest")
    assert rest(cluster, "", "GET", "/admin/v2/tenants")[0] == 403


# -- REST --------------------------------------------------------------------------


def rest(
    cluster: LocalCluster, role: str, method: str, path: str, headers: dict[str, str] | None = None
) -> tuple[int, str]:
    request = urllib.request.Request(cluster.admin_url + path, method=method)
    if role:
        request.add_header("Authorization", f"Bearer {token(role)}")
    for name, value in (headers or {}).items():
        request.add_header(name, value)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


@pytest.mark.parametrize(
    ("path", "boss", "app"),
    [
        ("/admin/v2/brokers/health", 200, 200),
        ("/admin/v2/tenants", 403, 403),
        ("/admin/v2/namespaces/shop", 200, 403),
        ("/admin/v2/namespaces/other", 403, 403),
        ("/admin/v2/namespaces/shop/orders", 200, 403),
        ("/admin/v2/namespaces/shop/orders/topics", 200, 403),
        ("/admin/v2/namespaces/shop/orders/retention", 204, 403),
        ("/admin/v2/persistent/shop/orders/new/stats", 200, 200),
        ("/admin/v2/persistent/shop/orders/old/stats", 200, 403),
        ("/admin/v2/persistent/shop/orders/new/subscriptions", 200, 200),
        ("/admin/v2/persistent/shop/orders/new/policies", 200, 403),
        ("/admin/v2/persistent/other/things/t/stats", 403, 403),
        ("/lookup/v2/topic/persistent/shop/orders/new", 200, 200),
        ("/admin/v3/transactions", 403, 403),
        ("/admin/v2/velaray/hosts", 403, 403),
        ("/admin/v3/ledgers/census", 403, 403),
    ],
)
def test_routes_need_their_right(
    cluster: LocalCluster, role: str, path: str, boss: int, app: int
) -> None:
    admin_of(cluster, "boss").permissions.grant(TOPIC, role, ["consume"])
    assert rest(cluster, "boss", "GET", path)[0] == boss
    status, text = rest(cluster, role, "GET", path)
    assert status == app
    assert status != 403 or "not authorized" in json.loads(text)["reason"]


def test_permissions_on_the_command_line(cluster: LocalCluster, role: str, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(token("boss"))
    options = ("--admin-url", cluster.admin_url, "--token", f"file:{file}", "-o", "json")

    def run(*arguments: str) -> Any:
        found = CliRunner().invoke(main, ["permissions", *arguments, *options])
        assert found.exit_code == 0, found.output
        return json.loads(found.stdout)

    run("grant", "shop/orders", role, "--actions", "consume")
    run("grant", TOPIC, role)
    rows = {row["role"]: row["actions"] for row in run("list", "shop/orders")}
    assert rows[role] == ["consume"]
    rows = {row["role"]: row["actions"] for row in run("list", TOPIC)}
    assert sorted(rows[role]) == ["consume", "produce"]
    run("grant", "shop/orders", role, "--subscription", "mine")
    listed = run("list", "shop/orders", "--subscriptions")
    assert {"subscription": "mine", "roles": [role]} in listed
    run("revoke", "shop/orders", role, "--subscription", "mine")
    run("revoke", TOPIC, role)
    run("revoke", "shop/orders", role)
    assert role not in {row["role"] for row in run("list", "shop/orders")}
