"""The usual mistakes of new users, and the line that answers each: the table in the documents."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest

import velaray
from tests.support.certificates import Authority
from tests.support.local_cluster import LocalCluster
from tests.support.samples import ROOT
from velaray.client.admin import Admin
from velaray.pipelines.spark_on_ray_needs import SparkMissing, require_spark
from velaray.schema import AvroSchema, Integer, Record, String
from velaray.starting import ClusterError
from velaray.topology.config import AuthSettings
from velaray.topology.tls_settings import TlsSettings

SECRET = b"s" * 32
PAGE = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
_, _, TABLE = PAGE.partition("| Mistake | Text | Remedy |\n")
ROWS: dict[str, str] = dict(
    re.findall(r"^\| ([^|`]+) \| `([^`]+)` \|", TABLE.partition("\n\n")[0], re.MULTILINE)
)
"""The text of each mistake."""


class Number(Record):  # type: ignore[misc]
    x = Integer(required=True)


class Text(Record):  # type: ignore[misc]
    x = String(required=True)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A cluster that requires tokens."""
    folder = tmp_path_factory.mktemp("guarded")
    with LocalCluster(folder, auth=AuthSettings(secret=SECRET)) as running:
        yield running


made: set[str] = set()


def answers(mistake: str, kinds: type[BaseException] | tuple[Any, ...], make: Any) -> str:
    """Make a mistake. Returns its line, which has the text of the table."""
    made.add(mistake)
    with pytest.raises(kinds) as caught:
        make()
    line = str(caught.value)
    assert ROWS[mistake] in line and "\n" not in line
    return line


def producing(url: str, **options: Any) -> Callable[[], None]:
    """A client that gives up after its first second."""

    def make() -> None:
        with velaray.Client(url, operation_timeout_seconds=1, **options) as client:
            client.create_producer("orders")

    return make


def test_no_cluster_runs() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        free = server.getsockname()[1]
    answers("no cluster runs", velaray.Timeout, producing(f"pulsar://127.0.0.1:{free}"))
    answers("no cluster runs", velaray.VelarayError, Admin(f"http://127.0.0.1:{free}").tenants)


def test_the_wrong_port(cluster: LocalCluster) -> None:
    url = cluster.admin_url.replace("http", "pulsar")
    answers("the port of the admin interface for clients", velaray.Timeout, producing(url))


def test_a_mistyped_topic(cluster: LocalCluster) -> None:
    with velaray.Client(cluster.service_url) as client:
        client.create_producer("departures")

        def read() -> None:
            client.create_reader("depatrures", velaray.MessageId.earliest)

        answers("a mistyped topic", velaray.TopicNotFound, read)


def test_tokens(guarded: LocalCluster) -> None:
    refused = velaray.VelarayError
    answers("no token", refused, producing(guarded.service_url))
    answers("no token", refused, Admin(guarded.admin_url).tenants)
    old = jwt.encode({"sub": "admin", "exp": int(time.time()) - 60}, SECRET, "HS256")
    proof = velaray.AuthenticationToken(old)
    answers("an expired token", refused, producing(guarded.service_url, authentication=proof))
    answers("an expired token", refused, Admin(guarded.admin_url, token=old).tenants)


def test_a_url_of_tls_for_a_plain_port(cluster: LocalCluster) -> None:
    mistake = "a URL of TLS for a plain port"
    url = cluster.service_url.replace("pulsar:", "pulsar+ssl:")
    answers(mistake, velaray.Timeout, producing(url))
    admin = Admin(cluster.admin_url.replace("http:", "https:"))
    answers(mistake, velaray.VelarayError, admin.tenants)


def test_a_plain_url_for_a_port_of_tls(tmp_path: Path) -> None:
    mistake = "a plain URL for a port of TLS"
    authority = Authority(tmp_path)
    pair = authority.issue()
    files = str(pair.cert), str(pair.key), str(authority.file)
    tls = TlsSettings(*files, service_port=0, admin_port=0)
    with LocalCluster(tmp_path / "data", tls=tls) as cluster:
        url = cluster.tls_service_url.replace("pulsar+ssl:", "pulsar:")
        answers(mistake, velaray.Timeout, producing(url))
        admin = Admin(cluster.tls_admin_url.replace("https:", "http:"))
        answers(mistake, velaray.VelarayError, admin.tenants)


def test_a_port_in_use(cluster: LocalCluster, tmp_path: Path) -> None:
    port = int(cluster.service_url.rpartition(":")[2])

    def start() -> None:
        velaray.LocalCluster.start(tmp_path, service_port=port)

    answers("a port that is in use", ClusterError, start)


def test_a_data_directory_in_use(tmp_path: Path) -> None:
    with velaray.LocalCluster.start(tmp_path):
        answers(
            "a data directory that is in use",
            ClusterError,
            lambda: velaray.LocalCluster.start(tmp_path),
        )


def test_no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    answers("Spark on Ray without Java", SparkMissing, require_spark)


def test_names_in_use(cluster: LocalCluster) -> None:
    with velaray.Client(cluster.service_url) as client:
        client.subscribe("busy", "s")
        client.create_producer("busy", producer_name="one")
        answers(
            "a second consumer of an exclusive subscription",
            velaray.ConsumerBusy,
            lambda: client.subscribe("busy", "s"),
        )
        answers(
            "a producer's name that is in use",
            velaray.ProducerBusy,
            lambda: client.create_producer("busy", producer_name="one"),
        )


def test_a_schema_that_does_not_fit(cluster: LocalCluster) -> None:
    with velaray.Client(cluster.service_url) as client:
        client.create_producer("typed", schema=AvroSchema(Number))
        answers(
            "a schema that doesn't fit",
            velaray.IncompatibleSchema,
            lambda: client.create_producer("typed", schema=AvroSchema(Text)),
        )


def test_every_mistake_of_the_table_is_made() -> None:
    assert len(ROWS) >= 10 and made == set(ROWS)
