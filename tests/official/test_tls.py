"""Pulsar's clients, as they are, by TLS: for Python, Go and Java."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

from tests.official import go_client, java_client
from tests.official.support import data, numbered, publish, receive, topic_name
from tests.support.certificates import Authority, Pair
from tests.support.local_cluster import LocalCluster
from velaray.topology.config import AuthSettings
from velaray.topology.tls_settings import ClientAuth, TlsSettings

SECRET = b"a secret that is long enough for HS256"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def alice(authority: Authority) -> Pair:
    return authority.issue("alice", "alice.example")


def _settings(authority: Authority, pair: Pair, **more: Any) -> TlsSettings:
    files = str(pair.cert), str(pair.key), str(authority.file)
    return TlsSettings(*files, service_port=0, admin_port=0, **more)


@pytest.fixture(scope="module")
def secure(
    authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalCluster]:
    """A cluster that speaks nothing but TLS, and wants a certificate or a token."""
    tls = _settings(authority, authority.issue(), client_auth=ClientAuth.OPTIONAL, only=True)
    folder, auth = tmp_path_factory.mktemp("secure"), AuthSettings(secret=SECRET)
    with LocalCluster(folder, auth=auth, tls=tls, hosts=1) as cluster:
        yield cluster
        assert cluster.actor_system.failures == []


@pytest.fixture
def topic() -> str:
    return topic_name("tls")


def _exchange(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, chunking_enabled=False)
    large = bytes(range(256)) * 12_000
    publish(producer, [*numbered(200), large])
    assert data(receive(consumer, 201, ack=True)) == [*numbered(200), large]


def _connected(url: str, trusted: Path, **options: Any) -> pulsar.Client:
    return pulsar.Client(
        url,
        tls_trust_certs_file_path=str(trusted),
        tls_validate_hostname=True,
        operation_timeout_seconds=options.pop("operation_timeout_seconds", 30),
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
        **options,
    )


def test_python_with_a_certificate(
    secure: LocalCluster, authority: Authority, alice: Pair, topic: str
) -> None:
    proof = pulsar.AuthenticationTLS(str(alice.cert), str(alice.key))
    client = _connected(secure.tls_service_url, authority.file, authentication=proof)
    try:
        _exchange(client, topic)
        assert {session.info.role for session in secure.proxy.sessions} == {"alice"}
    finally:
        client.close()


def test_python_looks_topics_up_over_https(
    secure: LocalCluster, authority: Authority, alice: Pair, topic: str
) -> None:
    proof = pulsar.AuthenticationTLS(str(alice.cert), str(alice.key))
    client = _connected(secure.tls_admin_url, authority.file, authentication=proof)
    try:
        _exchange(client, topic)
    finally:
        client.close()


def _refused(client: pulsar.Client, topic: str) -> None:
    try:
        with pytest.raises(pulsar.PulsarException):
            client.create_producer(topic)
    finally:
        client.close()


def test_python_refuses_an_authority_that_it_does_not_trust(
    secure: LocalCluster, alice: Pair, tmp_path: Path, topic: str
) -> None:
    other = Authority(tmp_path, "another authority")
    proof = pulsar.AuthenticationTLS(str(alice.cert), str(alice.key))
    options = {"authentication": proof, "operation_timeout_seconds": 2}
    _refused(_connected(secure.tls_service_url, other.file, **options), topic)


def test_python_without_a_valid_certificate_is_refused(
    secure: LocalCluster, authority: Authority, tmp_path: Path, topic: str
) -> None:
    mallory = Authority(tmp_path, "another authority").issue("alice", "alice.example")
    for proof in (None, pulsar.AuthenticationTLS(str(mallory.cert), str(mallory.key))):
        options = {"authentication": proof, "operation_timeout_seconds": 2}
        _refused(_connected(secure.tls_service_url, authority.file, **options), topic)


def test_python_refuses_a_certificate_for_another_host(
    authority: Authority, tmp_path: Path, topic: str
) -> None:
    pair = authority.issue("elsewhere", "elsewhere.example")
    with LocalCluster(tmp_path, tls=_settings(authority, pair)) as cluster:
        url = cluster.tls_service_url
        _refused(_connected(url, authority.file, operation_timeout_seconds=2), topic)


def test_python_behind_a_tunnel(
    authority: Authority, alice: Pair, tmp_path: Path, topic: str
) -> None:
    tls = _settings(authority, authority.issue(), client_auth=ClientAuth.REQUIRED, only=True)
    with LocalCluster(tmp_path, tls=tls, tunnel=True) as cluster:
        proof = pulsar.AuthenticationTLS(str(alice.cert), str(alice.key))
        client = _connected(cluster.tls_service_url, authority.file, authentication=proof)
        try:
            _exchange(client, topic)
            assert cluster.proxy.tunnels
        finally:
            client.close()


def test_go(go: str, secure: LocalCluster, authority: Authority, alice: Pair, topic: str) -> None:
    lines = [payload.decode() for payload in numbered(20)]
    url = ";".join(map(str, (secure.tls_service_url, authority.file, *alice)))
    with (
        go_client.running(go, "consume", url, topic, "s") as consumer,
        go_client.running(go, "publish", url, topic) as producer,
    ):
        assert consumer.line() == producer.line() == "ready"
        producer.tell(*lines)
        assert [producer.line().split()[:2] for _ in lines] == [["sent", line] for line in lines]
        assert [consumer.line() for _ in lines] == lines


@pytest.mark.slow
def test_java(
    java: str, secure: LocalCluster, authority: Authority, alice: Pair, topic: str
) -> None:
    words = map(str, (authority.file, *alice))
    java_client.run(java, "Tls", secure.tls_service_url, topic, *words)
