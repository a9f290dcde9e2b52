"""Clients of several networks: those that reach partitions, and those that reach only a proxy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest
from click.testing import CliRunner

import velaray
from tests.official.support import PATIENCE_MS
from tests.official.test_tenant_homes import asked as answered
from tests.support.local_cluster import LocalCluster
from tests.support.neighbours import create, neighbours, settle, stored
from velaray.cli.app import main
from velaray.cluster import Cluster
from velaray.starting import free_port
from velaray.wire import pulsar_pb2 as pb

TOPIC = "persistent://acme/orders/t"
Client = Callable[..., Any]


@pytest.fixture(params=["official", "ours"])
def client(request: pytest.FixtureRequest) -> Iterator[Client]:
    """Makes clients of one kind, and closes them."""
    made = []

    def connect(url: str, listener: str | None) -> Any:
        kind: Any = pulsar.Client if request.param == "official" else velaray.Client
        made.append(kind(url, listener_name=listener, operation_timeout_seconds=20))
        return made[-1]

    yield connect
    for each in made:
        each.close()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[LocalCluster, LocalCluster]]:
    """The home of tenant acme is b, whose proxy has another name in a public network."""
    port = free_port("127.0.0.1")
    listeners = {"public": f"pulsar://localhost:{port}", "vpc": "pulsar://10.0.0.1:6650"}
    with neighbours(tmp_path, listeners=listeners, service_port=port) as (a, b):
        create("acme/orders", b)
        settle("acme", "b", a)
        yield a, b


@pytest.mark.parametrize("asked", ["a", "b"])
@pytest.mark.parametrize(("listener", "tunnels"), [("public", 1), (None, 0)])
def test_a_client_that_names_a_network_is_served_through_the_proxy(
    pair: tuple[LocalCluster, LocalCluster],
    client: Client,
    asked: str,
    listener: str | None,
    tunnels: int,
) -> None:
    a, b = pair
    connected = client((a if asked == "a" else b).service_url, listener)
    consumer = connected.subscribe(TOPIC, "s")
    connected.create_producer(TOPIC).send(b"x")
    assert consumer.receive(PATIENCE_MS).data() == b"x"
    assert (len(a.proxy.tunnels), len(b.proxy.tunnels)) == (0, tunnels)
    assert stored(b, TOPIC) == 1


def test_a_client_is_redirected_to_the_address_of_its_network(
    pair: tuple[LocalCluster, LocalCluster],
) -> None:
    command = pb.CommandLookupTopic(topic=TOPIC, request_id=7, advertised_listener_name="vpc")
    found = answered(pair[0], command, pb.CommandLookupTopicResponse)
    assert (found.response, found.brokerServiceUrl) == (found.Redirect, "pulsar://10.0.0.1:6650")


@pytest.mark.parametrize("asked", ["a", "b"])
def test_an_unknown_network_is_refused(
    pair: tuple[LocalCluster, LocalCluster], client: Client, asked: str
) -> None:
    a, b = pair
    connected = client((a if asked == "a" else b).service_url, "publik")
    with pytest.raises((pulsar.PulsarException, velaray.VelarayError)) as refused:
        connected.create_producer(TOPIC)
    if isinstance(refused.value, velaray.VelarayError):
        assert "no listener 'publik'; there are public, vpc" in str(refused.value)


@pytest.mark.parametrize(
    "given", [["public"], ["=pulsar://a:1"], ["p=a:1"], ["p=pulsar://a:1"] * 2]
)
def test_an_invalid_listener_is_refused(tmp_path: Path, given: list[str]) -> None:
    options = [part for each in given for part in ("--listener", each)]
    result = CliRunner().invoke(main, ["start", "--data", str(tmp_path / "data"), *options])
    assert result.exit_code == 2
    with pytest.raises(ValueError, match="listener"):
        Cluster.start(tmp_path / "data", listeners={"public": "a:1"})
    assert not (tmp_path / "data").exists()
