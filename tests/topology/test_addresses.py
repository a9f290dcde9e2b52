"""Each node listens on its own address in the cluster's network, and is advertised by its name."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Address
from pathlib import Path

import pytest
from click.testing import CliRunner

import velaray
from velaray.cli.app import main
from velaray.local import LocalCluster
from velaray.topology import addresses
from velaray.topology.addresses import NoAddressError, is_per_node, own_address
from velaray.topology.config import (
    AuthSettings,
    ClusterConfig,
    UnreachableAddressError,
    UnsafeBindingError,
)

AUTH = AuthSettings(secret=b"a secret of thirty-two bytes.....")
NODE = {"lo": "127.0.0.1", "eth0": "10.1.0.5", "eth1": "10.2.0.5", "down": ""}


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This machine has the interfaces of `NODE`."""
    made = {name: IPv4Address(text) if text else None for name, text in NODE.items()}
    monkeypatch.setattr(addresses, "_names", lambda: list(made))
    monkeypatch.setattr(addresses, "_first_address", made.__getitem__)
    own_address.cache_clear()
    yield
    own_address.cache_clear()


@pytest.mark.usefixtures("node")
@pytest.mark.parametrize(
    ("host", "per_node", "address"),
    [
        ("10.1.0.0/16", True, "10.1.0.5"),
        ("eth1", True, "10.2.0.5"),
        ("127.0.0.0/8", True, "127.0.0.1"),
        ("10.2.0.5/32", True, "10.2.0.5"),
        ("10.7.0.1", False, "10.7.0.1"),
        ("a.example", False, "a.example"),
    ],
)
def test_a_node_finds_its_address(host: str, per_node: bool, address: str) -> None:
    assert (is_per_node(host), own_address(host)) == (per_node, address)


@pytest.mark.usefixtures("node")
@pytest.mark.parametrize(
    ("host", "complaint"),
    [
        ("10.0.0.0/8", "several addresses in 10.0.0.0/8: 10.1.0.5, 10.2.0.5"),
        ("0.0.0.0/0", "several addresses"),  # loopback isn't among them
        ("10.3.0.0/16", "no IPv4 address in 10.3.0.0/16"),
        ("10.1.0.5/16", "is not a network"),
        ("fd00::/64", "not a network of IPv4"),
        ("down", "no IPv4 address"),
    ],
)
def test_a_node_without_one_address_says_so(host: str, complaint: str) -> None:
    with pytest.raises(NoAddressError, match=complaint):
        own_address(host)


@pytest.mark.parametrize("host", ["lo", "127.0.0.0/8"])
def test_a_cluster_listens_on_the_address_of_its_machine(tmp_path: Path, host: str) -> None:
    with LocalCluster.start(tmp_path, host=host) as cluster:
        assert cluster.service_url.startswith("pulsar://127.0.0.1:")
        with velaray.Client(cluster.service_url) as client:
            client.create_producer("t").send(b"x")


@pytest.mark.usefixtures("node")
@pytest.mark.parametrize("host", ["eth0", "10.1.0.0/16"])
def test_a_network_that_others_reach_needs_tokens(tmp_path: Path, host: str) -> None:
    with pytest.raises(UnsafeBindingError):
        LocalCluster.start(tmp_path / "data", host=host)


def test_the_service_url_names_every_node() -> None:
    names = {"10.1.0.5": "a.example"}
    config = ClusterConfig(
        "data", 1, b"key", host="10.1.0.0/16", advertise=names, nodes=("10.1.0.5", "10.1.0.6")
    )
    assert config.service_url == "pulsar://a.example:6650,10.1.0.6:6650"
    assert config.admin_url == "http://a.example:8080"
    assert config.seen_by_clients("pulsar://10.1.0.5:6700") == "pulsar://a.example:6700"
    assert config.seen_by_clients("pulsar://10.1.0.6:6700") == "pulsar://10.1.0.6:6700"


@pytest.mark.parametrize(
    ("host", "advertise"),
    [
        ("127.0.0.0/8", "a.example"),
        ("127.0.0.1", {"127.0.0.1": "a.example"}),
        ("127.0.0.0/8", {"127.0.0.1": "0.0.0.0"}),
    ],
)
def test_names_that_do_not_fit_the_host_are_refused(
    tmp_path: Path, host: str, advertise: str | dict[str, str]
) -> None:
    with pytest.raises(UnreachableAddressError, match="--advertise"):
        LocalCluster.start(tmp_path / "data", host=host, advertise=advertise, auth=AUTH)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (["a", "b"], "write one NAME, or ADDRESS=NAME for each node"),
        (["10.1.0.5=a", "b"], "write one NAME"),
        (["10.1.0.5="], "write one NAME"),
        (["10.1.0.5=a", "10.1.0.5=b"], "10.1.0.5 has two names"),
        (["10.1.0.5=a"], "is the address of one node"),
    ],
)
def test_the_command_refuses_ambiguous_names(
    tmp_path: Path, given: list[str], complaint: str
) -> None:
    options = [part for each in given for part in ("--advertise", each)]
    refused = CliRunner().invoke(
        main, ["start", "--local", "--data", str(tmp_path / "data"), *options]
    )
    assert refused.exit_code != 0
    assert complaint in " ".join(refused.output.split())


def test_the_command_says_that_there_is_no_such_network(tmp_path: Path) -> None:
    arguments = ["--data", str(tmp_path / "data"), "--host", "192.0.2.77/32"]
    refused = CliRunner().invoke(main, ["start", "--local", *arguments])
    assert refused.exit_code == 1
    assert "has no IPv4 address in 192.0.2.77/32" in refused.output
