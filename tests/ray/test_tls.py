"""A cluster on real Ray that speaks nothing but TLS."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import velaray
from tests.ray.support import RayNodes
from tests.support.certificates import Authority
from tests.support.waiting import wait_until
from velaray.client.exceptions import PulsarException
from velaray.cluster import Cluster

WORKERS = 0
PATIENCE_S = 60.0


def received(consumer: velaray.Consumer, count: int) -> list[bytes]:
    found = []
    for _ in range(count):
        message = consumer.receive(60_000)
        consumer.acknowledge(message, receipt=True)  # an actor may be killed next
        found.append(message.data())
    return found


@pytest.mark.parametrize("placement", ["shared", pytest.param("dedicated", marks=pytest.mark.long)])
def test_actors_in_several_processes_connect_by_tls(
    nodes: RayNodes, data_dir: Path, placement: str
) -> None:
    """In particular those of a topic and its subscription, and garbage collectors, if each has a
    process of its own."""
    authority = Authority(data_dir / "authority")
    pair, alice = authority.issue(), authority.issue("alice", "alice.example")
    ports = {"service_port": 0, "admin_port": 0, "tls_service_port": 0, "tls_admin_port": 0}
    with Cluster.start(
        data_dir / "data",
        **ports,
        tls_cert=pair.cert,
        tls_key=pair.key,
        tls_ca=authority.file,
        tls_client_auth="required",
        tls_only=True,
        superusers=["alice"],
        placement=placement,
    ) as cluster:
        assert cluster.service_url.startswith("pulsar+ssl://127.0.0.1:")
        trust = {"tls_trust_certs_file_path": str(authority.file)}
        proof = velaray.AuthenticationTLS(str(alice.cert), str(alice.key))
        tls = velaray.TlsOptions(
            str(authority.file),
            certificate_file_path=str(alice.cert),
            private_key_file_path=str(alice.key),
        )
        with velaray.Client(cluster.service_url, proof, **trust) as client:
            consumer, producer = client.subscribe("t", "s"), client.create_producer("t")
            for number in range(100):
                producer.send(b"%d" % number)
            assert received(consumer, 100) == [b"%d" % number for number in range(100)]
            authority.issue(to="localhost")  # a new certificate, for the connections after a kill
            killed = {each["pid"] for each in cluster.actors() if "partition" in each["key"]}
            for pid in killed:
                os.kill(pid, 9)
            producer.send(b"after")
            assert received(consumer, 1) == [b"after"]
        with velaray.Admin(cluster.admin_url, tls=tls) as admin:
            admin.delete_topic("t", force=True)
            wait_until(lambda: not admin.topics("public/default"), PATIENCE_S)
        with (
            velaray.Client(cluster.service_url, operation_timeout_seconds=2, **trust) as client,
            pytest.raises(PulsarException),
        ):
            client.create_producer("t")
