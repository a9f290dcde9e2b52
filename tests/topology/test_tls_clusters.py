"""Clusters that reach each other by TLS: replication, homes of tenants, migration, import."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import velaray
from tests.support.certificates import Authority
from tests.support.local_cluster import LocalCluster
from tests.support.neighbours import ask, create, introduce
from tests.support.waiting import wait_until
from velaray.client.admin import Admin
from velaray.topology.tls_settings import ClientAuth, TlsSettings

PATIENCE_S = 60


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def tls(authority: Authority) -> TlsSettings:
    """Of clusters that speak nothing else, with each other too."""
    pair = authority.issue("cluster")
    files = str(pair.cert), str(pair.key), str(authority.file)
    return TlsSettings(
        *files, client_auth=ClientAuth.REQUIRED, service_port=0, admin_port=0, only=True
    )


@pytest.fixture(scope="module")
def pair(
    tls: TlsSettings, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[LocalCluster, LocalCluster]]:
    path = tmp_path_factory.mktemp("pair")
    with (
        LocalCluster(path / "a", name="a", cluster_number=1, tls=tls, tunnel=True) as a,
        LocalCluster(path / "b", name="b", cluster_number=2, tls=tls) as b,
    ):
        introduce(a, b)
        introduce(b, a)
        yield a, b
        assert a.actor_system.failures == []
        assert b.actor_system.failures == []


@pytest.fixture
def options(tls: TlsSettings) -> velaray.TlsOptions:
    return velaray.TlsOptions(tls.ca, certificate_file_path=tls.cert, private_key_file_path=tls.key)


def client_of(cluster: LocalCluster, options: velaray.TlsOptions) -> velaray.Client:
    return velaray.Client(cluster.tls_service_url, **options.arguments())


def admin_of(cluster: LocalCluster, options: velaray.TlsOptions) -> Admin:
    return Admin(cluster.tls_admin_url, tls=options)


def received(client: velaray.Client, topic: str, count: int) -> list[bytes]:
    earliest = velaray.InitialPosition.Earliest
    consumer = client.subscribe(topic, "s", initial_position=earliest)
    found = [consumer.receive(PATIENCE_S * 1000) for _ in range(count)]
    for message in found:
        consumer.acknowledge(message)
    consumer.close()
    return [message.data() for message in found]


def test_messages_are_replicated(
    pair: tuple[LocalCluster, LocalCluster], options: velaray.TlsOptions
) -> None:
    a, b = pair
    for cluster in pair:
        ask(cluster, "update_tenant", tenant="public", allowed_clusters=["a", "b"])
    admin_of(a, options).set_policy("public/default", "replication", ["a", "b"])
    with client_of(a, options) as here, client_of(b, options) as there:
        producer = here.create_producer("replicated")
        producer.send(b"1")
        wait_until(lambda: admin_of(b, options).topics("public/default"), PATIENCE_S)
        assert received(there, "replicated", 1) == [b"1"]
    statuses = admin_of(a, options).replication("replicated")
    assert [status["state"] for status in statuses] == ["replicating"]


def test_clients_are_sent_to_the_home_of_a_tenant(
    pair: tuple[LocalCluster, LocalCluster], options: velaray.TlsOptions
) -> None:
    """In both directions: one of the clusters connects its clients by tunnels."""
    for number, (home, other) in enumerate((pair, pair[::-1])):
        tenant = f"tenant{number}"
        create(f"{tenant}/n", home)
        ask(other, "set_home", tenant=tenant, cluster=home.config.name)
        topic = f"persistent://{tenant}/n/t"
        with client_of(other, options) as client:
            client.create_producer(topic).send(b"home")
            assert received(client, topic, 1) == [b"home"]
        assert admin_of(other, options).partitions(topic) == 0  # a redirect to the admin interface


def test_a_tenant_migrates(
    pair: tuple[LocalCluster, LocalCluster], options: velaray.TlsOptions
) -> None:
    a, _ = pair
    create("moving/n", a)
    topic = "persistent://moving/n/t"
    with client_of(a, options) as client:
        producer = client.create_producer(topic)
        for number in range(10):
            producer.send(b"%d" % number)
        admin = admin_of(a, options)
        admin.update_tenant("moving", allowed_clusters=["a", "b"])
        admin.migrate_tenant("moving", "b")
        wait_until(lambda: admin.migration("moving")["phase"] == "done", PATIENCE_S)
        producer.send(b"10")
        assert received(client, topic, 11) == [b"%d" % number for number in range(11)]


def test_a_tenant_is_pulled(
    pair: tuple[LocalCluster, LocalCluster], options: velaray.TlsOptions
) -> None:
    a, b = pair
    create("pulled/n", a)
    topic = "persistent://pulled/n/t"
    with client_of(a, options) as client:
        producer = client.create_producer(topic)
        producer.send(b"before")
        admin_of(b, options).pull_tenant("pulled", "a")
        with client_of(b, options) as there:
            assert received(there, topic, 1) == [b"before"]
            producer.send(b"after")
            assert received(there, topic, 1) == [b"after"]
