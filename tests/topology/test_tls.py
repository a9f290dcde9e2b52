"""TLS of a cluster: velaray's clients, certificates of clients, and what is refused."""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import jwt
import pytest

import velaray
import velaray.aio
from tests.support.certificates import Authority, Pair, replace_file
from tests.support.local_cluster import LocalCluster
from velaray.broker.client_listener import ClientListener
from velaray.client.admin import Unauthorized, Unavailable
from velaray.client.exceptions import VelarayError
from velaray.client.options import ClientOptions
from velaray.client.pool import ConnectionPool
from velaray.client.service_info import parse_service_url
from velaray.topology.auth import TUNNEL_METHOD, tunnel_proof
from velaray.topology.config import AuthSettings
from velaray.topology.tls import server_tls
from velaray.topology.tls_settings import ACTORS_NAME, ClientAuth, TlsSettings, TlsVersion

SECRET = b"a secret that is long enough for HS256"
TOPIC = "persistent://public/default/tls"
UNTRUSTED = "it may want a certificate of this client"
LOCAL = "localhost", "127.0.0.1"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """One that nobody trusts."""
    return Authority(tmp_path_factory.mktemp("other"), "another authority")


@pytest.fixture(scope="module")
def alice(authority: Authority) -> Pair:
    return authority.issue("alice", "alice.example")


def settings(authority: Authority, pair: Pair, **more: Any) -> TlsSettings:
    files = str(pair.cert), str(pair.key), str(authority.file)
    return TlsSettings(*files, **{"service_port": 0, "admin_port": 0} | more)


@pytest.fixture(scope="module")
def cluster(
    authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalCluster]:
    """One that speaks TLS as well, and takes certificates and tokens; each actor has a host."""
    tls = settings(authority, authority.issue(), client_auth=ClientAuth.OPTIONAL)
    auth = AuthSettings(secret=SECRET)
    with LocalCluster(tmp_path_factory.mktemp("cluster"), auth=auth, tls=tls) as started:
        yield started


def token() -> str:
    return jwt.encode({"sub": "somebody"}, SECRET, algorithm="HS256")


def exchange(client: velaray.Client, topic: str = TOPIC, count: int = 20) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    wanted = [b"m%d" % number for number in range(count)]
    for payload in (*wanted, large := bytes(range(256)) * 12_000):
        producer.send(payload)
    received = []
    while len(received) <= count:
        message = consumer.receive(30_000)
        received.append(message.data())
        consumer.acknowledge(message)
    assert received == [*wanted, large]
    producer.close()
    consumer.close()


def test_a_client_publishes_and_consumes_with_a_token(
    cluster: LocalCluster, authority: Authority
) -> None:
    proof = velaray.AuthenticationToken(token())
    trust = str(authority.file)
    with velaray.Client(cluster.tls_service_url, proof, tls_trust_certs_file_path=trust) as client:
        exchange(client)
    plain_port = cluster.tls_service_url.replace("pulsar+ssl", "pulsar")
    with velaray.Client(plain_port, proof, use_tls=True, tls_trust_certs_file_path=trust) as client:
        exchange(client)
    with velaray.Client(cluster.service_url, proof) as client:
        exchange(client)


def test_the_common_name_of_a_certificate_is_the_role(
    cluster: LocalCluster, authority: Authority, alice: Pair
) -> None:
    proof = velaray.AuthenticationTLS(str(alice.cert), str(alice.key))
    trust = str(authority.file)
    with velaray.Client(cluster.tls_service_url, proof, tls_trust_certs_file_path=trust) as client:
        exchange(client)
        roles = {session.info.role for session in cluster.proxy.sessions}
    assert "alice" in roles


def refused(url: str, **options: Any) -> str:
    """The reason why a client can't connect, at its first attempt."""

    async def attempt() -> str:
        pool = ConnectionPool(ClientOptions(url, **options))
        try:
            with pytest.raises(VelarayError) as found:
                await pool.get(parse_service_url(url)[0])
        finally:
            await pool.close()
        return str(found.value)

    return asyncio.run(attempt())


def test_clients_refuse_servers_that_they_do_not_trust(
    cluster: LocalCluster, authority: Authority, other: Authority
) -> None:
    url, proof = cluster.tls_service_url, velaray.AuthenticationToken(token())
    assert "certificate verify failed" in refused(url, authentication=proof)
    trusting_other = {"authentication": proof, "tls_trust_certs_file_path": str(other.file)}
    assert "certificate verify failed" in refused(url, **trusting_other)
    with velaray.Client(url, tls_allow_insecure_connection=True, **trusting_other) as client:
        client.create_producer(TOPIC)


def test_the_certificate_must_be_for_the_host(authority: Authority, tmp_path: Path) -> None:
    tls = settings(authority, authority.issue("elsewhere", "elsewhere.example"))
    trust = {"tls_trust_certs_file_path": str(authority.file)}
    with LocalCluster(tmp_path, tls=tls) as cluster:
        assert "elsewhere" not in cluster.tls_service_url
        assert "Hostname mismatch" in refused(cluster.tls_service_url, **trust)
        url, unchecked = cluster.tls_service_url, {"tls_validate_hostname": False, **trust}
        with velaray.Client(url, **unchecked) as client:
            exchange(client)


def test_certificates_of_clients_are_checked(
    cluster: LocalCluster, authority: Authority, other: Authority
) -> None:
    mallory = other.issue("alice", "alice.example", to="mallory")
    proof = velaray.AuthenticationTLS(str(mallory.cert), str(mallory.key))
    trust = {"tls_trust_certs_file_path": str(authority.file)}
    url = cluster.tls_service_url
    assert UNTRUSTED in refused(url, authentication=proof, **trust)
    # Without TLS there is no certificate, whatever the method of authentication is.
    files = velaray.AuthenticationTLS(*map(str, authority.issue("bob", "bob.example")))
    assert "no valid certificate" in refused(cluster.service_url, authentication=files)
    assert "requires a token" in refused(url, **trust)


def test_a_service_info_has_authorities_of_its_own(
    cluster: LocalCluster, authority: Authority, other: Authority
) -> None:
    proof = velaray.AuthenticationToken(token())
    infos = [
        velaray.ServiceInfo(cluster.tls_service_url, proof, str(authority.file)),
        velaray.ServiceInfo(cluster.service_url, proof),
    ]
    for chosen in (infos, infos[::-1]):
        choice = velaray.AutoClusterFailover(chosen[0], chosen[1:])
        with velaray.Client(choice, tls_trust_certs_file_path=str(other.file)) as client:
            exchange(client)


def test_a_wrong_token_is_refused_by_tls_as_well(
    cluster: LocalCluster, authority: Authority
) -> None:
    proof = velaray.AuthenticationToken("no token at all")
    trust = {"tls_trust_certs_file_path": str(authority.file)}
    assert "invalid token" in refused(cluster.tls_service_url, authentication=proof, **trust)


def test_the_asyncio_client_and_both_admin_clients(
    cluster: LocalCluster, authority: Authority, alice: Pair
) -> None:
    tls = velaray.TlsOptions(
        str(authority.file),
        certificate_file_path=str(alice.cert),
        private_key_file_path=str(alice.key),
    )

    async def scenario() -> None:
        proof = velaray.AuthenticationTLS(str(alice.cert), str(alice.key))
        trust = str(authority.file)
        url = cluster.tls_service_url
        async with velaray.aio.Client(url, proof, tls_trust_certs_file_path=trust) as client:
            consumer = await client.subscribe("by-tls", "s")
            producer = await client.create_producer("by-tls")
            await producer.send(b"hello")
            assert (await consumer.receive()).data() == b"hello"
        async with velaray.aio.Admin(cluster.tls_admin_url, tls=tls) as admin:
            assert "public" in await admin.tenants()
        async with velaray.aio.Admin(cluster.tls_admin_url) as admin:
            with pytest.raises(Unavailable, match="certificate verify failed"):
                await admin.tenants()

    asyncio.run(scenario())
    with velaray.Admin(cluster.tls_admin_url, tls=tls) as admin:
        assert "public" in admin.tenants()
        found = admin.cluster("standalone")
        assert found["brokerServiceUrlTls"] == cluster.tls_service_url
        looked_up = admin.request("GET", "brokers/standalone")
        assert looked_up == [cluster.tls_admin_url.removeprefix("https://")]
    with (
        velaray.Admin(cluster.tls_admin_url) as admin,
        pytest.raises(Unavailable, match="certificate verify failed"),
    ):
        admin.tenants()
    by_token = velaray.TlsOptions(str(authority.file))
    with (
        velaray.Admin(cluster.tls_admin_url, tls=by_token) as admin,
        pytest.raises(Unauthorized),
    ):
        admin.tenants()
    with velaray.Admin(cluster.tls_admin_url, tls=by_token, token=token()) as admin:
        assert "public" in admin.tenants()


# -- versions and plain connections ------------------------------------------------


def s_client(port: int, *words: str) -> subprocess.CompletedProcess[str]:
    command = ["openssl", "s_client", "-connect", f"127.0.0.1:{port}", *words]
    return subprocess.run(
        command, input="", capture_output=True, text=True, check=False, timeout=30
    )


@pytest.mark.parametrize(
    ("least", "words", "accepted"),
    [
        (TlsVersion.TLS_1_2, ("-tls1_1", "-cipher", "ALL:@SECLEVEL=0"), False),
        (TlsVersion.TLS_1_2, ("-tls1_2",), True),
        (TlsVersion.TLS_1_3, ("-tls1_2",), False),
        (TlsVersion.TLS_1_3, ("-tls1_3",), True),
    ],
)
def test_older_versions_are_refused(
    authority: Authority, tmp_path: Path, least: TlsVersion, words: tuple[str, ...], accepted: bool
) -> None:
    tls = settings(authority, authority.issue(), min_version=least)
    with LocalCluster(tmp_path, tls=tls) as cluster:
        for port in (cluster.proxy.tls_port, int(cluster.tls_admin_url.rsplit(":", 1)[1])):
            ended = s_client(port, *words)
            assert (ended.returncode == 0) is accepted, ended.stderr


def test_a_server_without_tls_and_a_client_with_it(
    cluster: LocalCluster, authority: Authority
) -> None:
    url = cluster.service_url.replace("pulsar", "pulsar+ssl")
    assert "no TLS connection" in refused(url, tls_trust_certs_file_path=str(authority.file))
    url = cluster.tls_service_url.replace("pulsar+ssl", "pulsar")
    assert refused(url)


def listening() -> list[tuple[str, int]]:
    """Address and port of each socket of this process that listens."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            opened = socket.socket(fileno=int(entry.name))
        except (OSError, ValueError):
            continue
        if opened.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            found.append(opened.getsockname()[:2])
        opened.detach()
    return found


def speaks_tls(port: int) -> bool:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with (
            socket.create_connection(("127.0.0.1", port), 10) as plain,
            context.wrap_socket(plain, server_hostname="localhost"),
        ):
            return True
    except ssl.SSLError as error:
        # A server of actors takes no one without their certificate, and says so by TLS.
        return "ALERT" in str(error)
    except OSError:
        return False


def test_with_tls_only_nothing_listens_in_the_clear(
    authority: Authority, alice: Pair, tmp_path: Path
) -> None:
    before = set(listening())
    tls = settings(authority, authority.issue(), client_auth=ClientAuth.REQUIRED, only=True)
    with LocalCluster(tmp_path, tls=tls, deleters=1) as cluster:
        assert (cluster.service_url, cluster.admin_url) == ("", "")
        proof = velaray.AuthenticationTLS(str(alice.cert), str(alice.key))
        trust = str(authority.file)
        url = cluster.tls_service_url
        with velaray.Client(url, proof, tls_trust_certs_file_path=trust) as client:
            exchange(client)
            transaction = client.new_transaction()
            client.create_producer(TOPIC).send(b"t", txn=transaction)
            transaction.commit()
            opened = [port for _, port in set(listening()) - before]
            assert len(opened) > 4  # proxy, admin, partition, subscription, catalog
            assert [port for port in opened if not speaks_tls(port)] == []
        assert refused(url, tls_trust_certs_file_path=trust)


def test_the_name_of_actors_opens_no_door_to_others(
    authority: Authority, alice: Pair, tmp_path: Path
) -> None:
    tls = settings(authority, authority.issue(), client_auth=ClientAuth.REQUIRED, only=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.load_cert_chain(alice.cert, alice.key)
    with LocalCluster(tmp_path, tls=tls, hosts=1) as cluster:
        rpc_port = cluster.actor_system.shared_hosts[0].rpc.port
        for port in (cluster.proxy.tls_port, rpc_port):
            with (
                socket.create_connection(("127.0.0.1", port), 10) as plain,
                context.wrap_socket(plain, server_hostname=ACTORS_NAME) as connected,
            ):
                presented = connected.getpeercert(binary_form=True)
                assert presented is not None
                assert ACTORS_NAME.encode() in presented
                try:
                    assert connected.recv(1) == b""  # it is cut off before it says anything
                except OSError as error:
                    assert not isinstance(error, TimeoutError)


# -- tunnels -----------------------------------------------------------------------


def test_a_tunnel_keeps_the_role_of_the_certificate(
    authority: Authority, alice: Pair, tmp_path: Path
) -> None:
    tls = settings(authority, authority.issue(), client_auth=ClientAuth.OPTIONAL)
    with LocalCluster(
        tmp_path, tls=tls, tunnel=True, auth=AuthSettings(secret=SECRET), hosts=1
    ) as cluster:
        proof = velaray.AuthenticationTLS(str(alice.cert), str(alice.key))
        trust = str(authority.file)
        url = cluster.tls_service_url
        with velaray.Client(url, proof, tls_trust_certs_file_path=trust) as client:
            exchange(client)
            listener = cluster.actor_system.shared_hosts[0].part(ClientListener)
            assert {session.info.role for session in listener.sessions} == {"alice"}
            assert cluster.proxy.tunnels
        with velaray.Client(cluster.service_url, velaray.AuthenticationToken(token())) as client:
            exchange(client)


def test_no_one_but_a_proxy_proves_the_role_of_someone_else(cluster: LocalCluster) -> None:
    class Forged(velaray.Authentication):
        method = TUNNEL_METHOD

        def data(self) -> bytes:
            return tunnel_proof(b"another key", "alice").encode()

    assert "isn't that of a proxy" in refused(cluster.service_url, authentication=Forged())


# -- rotation ----------------------------------------------------------------------


def served(port: int, trust: Path) -> str:
    """The common name of the certificate that a server presents."""
    context = ssl.create_default_context(cafile=str(trust))
    context.check_hostname = False
    with (
        socket.create_connection(("127.0.0.1", port), 10) as plain,
        context.wrap_socket(plain) as connected,
    ):
        subject: Any = (connected.getpeercert() or {})["subject"]
    return str(dict(pair for relative in subject for pair in relative)["commonName"])


def metric(cluster: LocalCluster, name: str) -> float:
    with urlopen(f"{cluster.admin_url}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    return float(next(line for line in text.splitlines() if line.startswith(name)).split()[-1])


def test_certificates_are_replaced_without_a_restart(authority: Authority, tmp_path: Path) -> None:
    pair = authority.issue("first", *LOCAL, to="rotated")
    tls = settings(authority, pair)
    trust = str(authority.file)
    with LocalCluster(tmp_path, tls=tls, hosts=1) as cluster:
        ports = [cluster.proxy.tls_port, int(cluster.tls_admin_url.rsplit(":", 1)[1])]
        state = server_tls(cluster.config)
        assert state is not None
        with velaray.Client(cluster.tls_service_url, tls_trust_certs_file_path=trust) as client:
            producer, consumer = client.create_producer(TOPIC), client.subscribe(TOPIC, "s")
            producer.send(b"1")
            assert [served(port, authority.file) for port in ports] == ["first", "first"]
            authority.issue("second", *LOCAL, to="rotated")
            producer.send(b"2")
            assert [served(port, authority.file) for port in ports] == ["second", "second"]
            assert state.problem == ""
            for broken in (b"", b"no certificate", pair.key.read_bytes()):
                replace_file(pair.cert, broken)
                producer.send(b"3")
                assert [served(port, authority.file) for port in ports] == ["second", "second"]
                assert str(pair.cert) in state.problem
                assert metric(cluster, "velaray_tls_files_refused") == 1
                assert metric(cluster, "velaray_tls_expiry_timestamp_seconds") > time.time()
            authority.issue("third", *LOCAL, to="rotated")
            assert metric(cluster, "velaray_tls_files_refused") == 0  # a scrape looks as well
            assert [served(port, authority.file) for port in ports] == ["third", "third"]
            assert state.problem == ""
            found = [consumer.receive(30_000).data() for _ in range(5)]
            assert found == [b"1", b"2", b"3", b"3", b"3"]
            assert consumer.is_connected()


def test_authorities_of_clients_are_replaced_as_well(
    authority: Authority, other: Authority, tmp_path: Path
) -> None:
    folder = Authority(tmp_path / "authorities").file
    folder.write_bytes(authority.file.read_bytes())
    tls = replace(
        settings(authority, authority.issue()), ca=str(folder), client_auth=ClientAuth.REQUIRED
    )
    mallory = other.issue("mallory", "mallory.example")
    proof = velaray.AuthenticationTLS(str(mallory.cert), str(mallory.key))
    trust = {"tls_trust_certs_file_path": str(authority.file)}
    with LocalCluster(tmp_path / "data", tls=tls) as cluster:
        assert UNTRUSTED in refused(cluster.tls_service_url, authentication=proof, **trust)
        replace_file(folder, authority.file.read_bytes() + other.file.read_bytes())
        with velaray.Client(cluster.tls_service_url, proof, **trust) as client:
            client.create_producer(TOPIC)


def test_a_client_presents_its_new_certificate(authority: Authority, tmp_path: Path) -> None:
    pair = authority.issue("before", "c.example", to="client")
    tls = settings(authority, authority.issue(), client_auth=ClientAuth.REQUIRED)
    proof = velaray.AuthenticationTLS(str(pair.cert), str(pair.key))
    trust = {"tls_trust_certs_file_path": str(authority.file)}
    with LocalCluster(tmp_path, tls=tls) as cluster:
        for name in ("before", "after"):
            authority.issue(name, "c.example", to="client")
            with velaray.Client(cluster.tls_service_url, proof, **trust) as client:
                client.create_producer(TOPIC)
                assert name in {session.info.role for session in cluster.proxy.sessions}
