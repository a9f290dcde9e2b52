"""Other clusters over HTTP: known, allowed, replicated to, and a home for tenants."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.by_name import call_by_name
from tests.support.local_cluster import LocalCluster
from tests.topology.test_admin_api import V2, Http
from velaray.broker.catalog.messages import PoliciesChanged, Topic, Watch
from velaray.client.admin import Admin, Conflict, Invalid, NotFound, PreconditionFailed
from velaray.events.ids import ActorKey
from velaray.topology.messages import Codec, Message, Request
from velaray.topology.rpc import RpcConnection

SERVICE, ADMIN = "pulsar://b:6650", "http://b:8080"
TOPIC = "persistent://acme/orders/t"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path, name="a") as running:
        yield running
        assert running.actor_system.failures == []


@pytest.fixture
def http(cluster: LocalCluster) -> Http:
    return Http(cluster.admin_url)


@pytest.fixture
def admin(cluster: LocalCluster) -> Admin:
    return Admin(cluster.admin_url)


@pytest.fixture
def acme(admin: Admin) -> Admin:
    """Tenant acme, which may use clusters a and b, with a topic."""
    admin.create_cluster("b", service_url=SERVICE, admin_url=ADMIN, token="secret")
    admin.create_tenant("acme")
    admin.create_namespace("acme/orders")
    admin.create_topic(TOPIC)
    return admin


def ask(running: LocalCluster, method: str, **args: Any) -> Any:
    return running.run(call_by_name(running.actor_system, ActorKey.catalog(), method, args))


def serving(cluster: LocalCluster) -> dict[str, Any]:
    found = ask(cluster, "topic", topic=TOPIC)
    return dict(ask(cluster, "serving", topic=TOPIC, incarnation=found["incarnation"]))


def known(cluster: LocalCluster, name: str) -> dict[str, Any]:
    """What actors get about a cluster, the token included."""
    ask(cluster, "set_home", tenant="somebody", cluster=name)
    return dict(ask(cluster, "home", tenant="somebody"))


def test_clusters_are_created_updated_and_deleted(http: Http, cluster: LocalCluster) -> None:
    path = f"{V2}/clusters/b"
    body = {"serviceUrl": ADMIN, "brokerServiceUrl": SERVICE}
    given = {
        **body,
        "serviceUrlTls": "",
        "brokerServiceUrlTls": None,
        "authenticationPlugin": "org.apache.pulsar.client.impl.auth.AuthenticationToken",
        "authenticationParameters": "token:secret",
        "brokerClientTlsEnabled": False,
        "brokerClientTlsTrustStoreType": "JKS",
        "peerClusterNames": None,
        "progress": "snapshots",
    }
    by_tls = {"serviceUrlTls": "", "brokerServiceUrlTls": ""}
    own = {"hasToken": True, "local": False, "replicationKeys": []}
    shown = {**body, **by_tls, **own, "progress": "snapshots"}
    assert http("PUT", path, given).status == 204
    assert http("PUT", path, given).status == 409
    assert http("GET", f"{V2}/clusters").body == ["a", "b"]
    assert http("GET", path).body == shown
    assert http("POST", path, {**shown, "progress": "exact"}).status == 204
    reached = {"service_url": SERVICE, "admin_url": ADMIN}
    assert known(cluster, "b") == {
        "cluster": "b",
        **reached,
        "token": "secret",
        "urls": {**reached, "service_url_tls": "", "admin_url_tls": ""},
    }
    assert http("POST", path, {"authenticationParameters": '{"token": "other"}'}).status == 204
    assert known(cluster, "b")["token"] == "other"
    assert http("POST", path, {"authenticationParameters": ""}).status == 204
    assert http("GET", path).body == {**shown, "progress": "exact", "hasToken": False}
    assert http("DELETE", path).status == 412  # it is the home of a tenant
    ask(cluster, "set_home", tenant="somebody", cluster="")
    assert http("DELETE", path).status == 204
    for method in ("GET", "POST", "DELETE"):
        assert http(method, path).status == 404


def test_a_cluster_is_reached_by_tls_if_it_has_such_urls(http: Http, cluster: LocalCluster) -> None:
    path = f"{V2}/clusters/b"
    by_tls = {"serviceUrlTls": "https://b:8443", "brokerServiceUrlTls": "pulsar+ssl://b:6651,c"}
    plain = {"serviceUrl": ADMIN, "brokerServiceUrl": SERVICE}
    assert http("PUT", path, by_tls).status == 204
    assert http("POST", path, plain).status == 204
    assert {**by_tls, **plain}.items() <= http("GET", path).body.items()
    found = known(cluster, "b")
    assert (found["service_url"], found["admin_url"]) == ("pulsar+ssl://b:6651,c", "https://b:8443")
    assert found["urls"]["service_url"] == SERVICE
    assert http("POST", path, dict.fromkeys(by_tls, "")).status == 204
    assert known(cluster, "b")["service_url"] == SERVICE
    ask(cluster, "set_home", tenant="somebody", cluster="")
    assert http("DELETE", path).status == 204


def test_this_cluster_can_neither_be_changed_nor_deleted(http: Http) -> None:
    path = f"{V2}/clusters/a"
    body = {"serviceUrl": ADMIN, "brokerServiceUrl": SERVICE}
    assert http("GET", path).body["local"] is True
    assert http("PUT", path, body).status == 409
    assert http("POST", path, body).status == 412
    assert http("DELETE", path).status == 412


@pytest.mark.parametrize(
    ("change", "status", "named"),
    [
        ({"brokerServiceUrl": "nowhere"}, 422, "nowhere"),
        ({"brokerServiceUrl": 5}, 400, "brokerServiceUrl"),
        ({"serviceUrl": None}, 400, "serviceUrl"),
        ({"brokerServiceUrlTls": "pulsar://b"}, 422, "pulsar+ssl://host:port"),
        ({"serviceUrlTls": "http://b"}, 422, "https://host:port"),
        ({"brokerServiceUrl": "pulsar+ssl://b"}, 422, "must be pulsar://host:port"),
        ({"authenticationPlugin": "x.AuthenticationTls"}, 422, "AuthenticationTls"),
        ({"authenticationParameters": "file:///etc/secret"}, 422, "authenticationParameters"),
        ({"authenticationParameters": '{"secret": 1}'}, 422, "authenticationParameters"),
        ({"authenticationParameters": "token:my secret"}, 422, "token"),
        ({"progress": "guessed"}, 422, "guessed"),
    ],
)
def test_unsupported_settings_are_refused_and_no_secret_quoted(
    http: Http, change: dict[str, Any], status: int, named: str
) -> None:
    body = {"serviceUrl": ADMIN, "brokerServiceUrl": SERVICE, **change}
    refused = http("PUT", f"{V2}/clusters/b", body)
    assert refused.status == status
    assert named in refused.body["reason"]
    assert "secret" not in refused.body["reason"]
    assert http("GET", f"{V2}/clusters").body == ["a"]


def test_a_referenced_cluster_cannot_be_deleted(acme: Admin) -> None:
    acme.set_policy("acme/orders", "replication", ["a", "b"])
    with pytest.raises(PreconditionFailed, match="tenant acme may use it"):
        acme.delete_cluster("b")
    with pytest.raises(Conflict, match="replication of acme/orders names cluster b"):
        acme.update_tenant("acme", allowed_clusters=["a"])
    acme.remove_policy("acme/orders", "replication")
    acme.update_tenant("acme", allowed_clusters=["a"])
    assert acme.tenant("acme") == {"adminRoles": [], "allowedClusters": ["a"]}
    acme.delete_cluster("b")
    with pytest.raises(NotFound):
        acme.cluster("b")


def test_replication_is_a_policy_of_namespaces_and_topics(acme: Admin, http: Http) -> None:
    space, topic = f"{V2}/namespaces/acme/orders", f"{V2}/persistent/acme/orders/t/replication"
    for path in (f"{space}/replication", topic):
        assert http("GET", path).status == 204
        for wrong, named in (
            (["a", "c"], "no such cluster: c"),
            (["b"], "must name this cluster as well, a"),
        ):
            refused = http("POST", path, wrong)
            assert (refused.status, named in refused.body["reason"]) == (412, True)
        assert http("POST", path, []).status == 422
        assert http("POST", path, ["a", "b"]).status == 204
        assert http("GET", path).body == ["a", "b"]
    assert http("GET", space).body["replication_clusters"] == ["a", "b"]
    assert http("DELETE", topic).status == 204
    assert http("GET", topic).status == 204
    assert http("GET", f"{topic}?applied=true").body == ["a", "b"]
    acme.create_tenant("small", allowed_clusters=["a"])
    acme.create_namespace("small/n")
    with pytest.raises(PreconditionFailed, match="tenant small may not use b"):
        acme.set_policy("small/n", "replication", ["a", "b"])


def test_a_namespace_that_would_replicate_to_a_forbidden_cluster_is_not_created(
    acme: Admin, http: Http
) -> None:
    path = f"{V2}/namespaces/acme/new"
    assert http("PUT", path, {"replication_clusters": ["a", "c"]}).status == 412
    assert http("GET", path).status == 404
    assert http("PUT", path, {"replication_clusters": ["a", "b"]}).status == 204
    assert http("GET", path).body == {"replication_clusters": ["a", "b"]}
    body = {"replication_clusters": ["a"]}
    assert http("PUT", f"{V2}/namespaces/nobody/new", body).status == 404


def test_the_home_of_a_tenant_is_set_and_read(acme: Admin, http: Http) -> None:
    assert acme.tenant_home("acme") == "a"
    acme.set_tenant_home("acme", "b")
    assert acme.tenant_home("acme") == "b"
    assert http("GET", f"{V2}/homes").body == {"acme": "b"}
    with pytest.raises(PreconditionFailed, match="tenant acme"):
        acme.delete_cluster("b")
    acme.set_tenant_home("acme", "a")
    assert http("GET", f"{V2}/homes").body == {}
    with pytest.raises(NotFound, match="register it first"):
        acme.set_tenant_home("acme", "c")
    with pytest.raises(Invalid):
        acme.set_tenant_home("acme", "")
    with pytest.raises(PreconditionFailed):
        acme.set_tenant_home("pulsar", "b")


def test_a_partition_gets_its_replication_targets_and_its_home(
    acme: Admin, cluster: LocalCluster
) -> None:
    assert (serving(cluster)["replication"], serving(cluster)["home"]) == ({}, None)
    acme.set_policy("acme/orders", "replication", ["a", "b"])
    acme.set_tenant_home("acme", "b")
    told = serving(cluster)
    assert told["home"] == "b"
    assert told["replication"] == {
        "b": {
            "service_url": SERVICE,
            "admin_url": ADMIN,
            "token": "secret",
            "progress": "exact",
            "all_subscriptions": False,
        }
    }
    acme.update_cluster("b", token="", progress="snapshots")
    told = serving(cluster)["replication"]["b"]
    assert (told["token"], told["progress"]) == (None, "snapshots")


class Watcher:
    """Counts the notices that the catalog sends to a partition."""

    accepts = Codec(PoliciesChanged)

    def __init__(self) -> None:
        self.notices = 0
        self.heard = asyncio.Event()

    async def answer(self, rpc_connection: RpcConnection, request: Request[Any]) -> Any:
        raise AssertionError("the catalog sends no requests")

    def receive(self, rpc_connection: RpcConnection, notice: Message) -> None:
        self.notices += 1
        self.heard.set()

    def on_rpc_closed(self, rpc_connection: RpcConnection) -> None:
        """The test is over."""


def test_watchers_are_notified_of_clusters_and_tenants(acme: Admin, cluster: LocalCluster) -> None:
    watcher, other = Watcher(), Watcher()

    async def watch(topic: str, watcher: Watcher) -> None:
        rpc_connection = await cluster.actor_system.open_rpc(ActorKey.catalog(), watcher)
        found = await rpc_connection.ask(Topic(topic))
        await rpc_connection.ask(Watch(topic, found["incarnation"]))

    async def heard(watcher: Watcher) -> None:
        await asyncio.wait_for(watcher.heard.wait(), 20)
        watcher.heard.clear()

    acme.create_topic("persistent://public/default/t")
    cluster.run(watch(TOPIC, watcher))
    cluster.run(watch("persistent://public/default/t", other))
    for change in (
        lambda: acme.set_policy("acme/orders", "replication", ["a", "b"]),
        lambda: acme.update_tenant("acme", admin_roles=["ops"]),
        lambda: acme.set_tenant_home("acme", "b"),
    ):
        change()
        cluster.run(heard(watcher))
    assert other.notices == 0
    acme.update_cluster("b", token="new")
    cluster.run(heard(watcher))
    cluster.run(heard(other))
    assert (watcher.notices, other.notices) == (4, 1)
