"""What a cluster listens on and what clients are sent to are two things."""

from __future__ import annotations

import urllib.request
from pathlib import Path

import pulsar
import pytest
from click.testing import CliRunner

from velaray.cli.app import main
from velaray.local import LocalCluster
from velaray.topology.config import AuthSettings, UnreachableAddressError

AUTH = AuthSettings(secret=b"a secret of thirty-two bytes.....")


def test_clients_are_sent_to_the_advertised_name(tmp_path: Path) -> None:
    with LocalCluster.start(tmp_path, advertise="localhost") as cluster:
        assert cluster.service_url.startswith("pulsar://localhost:")
        assert cluster.admin_url.startswith("http://localhost:")
        client = pulsar.Client(cluster.service_url)
        client.create_producer("t").send(b"x")
        client.close()
        path = f"{cluster.admin_url}/lookup/v2/topic/persistent/public/default/t"
        with urllib.request.urlopen(path) as answer:
            assert b'"brokerUrl": "pulsar://localhost:' in answer.read()


@pytest.mark.parametrize(("host", "advertise"), [("0.0.0.0", ""), ("0.0.0.0", "::"), ("::", "")])
def test_no_client_is_sent_to_all_addresses(tmp_path: Path, host: str, advertise: str) -> None:
    with pytest.raises(UnreachableAddressError, match="give the name or the address"):
        LocalCluster.start(tmp_path / "data", host=host, advertise=advertise, auth=AUTH)
    assert not (tmp_path / "data").exists()


def test_the_command_says_what_to_give(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"a secret of thirty-two bytes.....")
    arguments = ("--data", str(tmp_path / "data"), "--token-secret", str(secret))
    refused = CliRunner().invoke(main, ["start", "--local", "--host", "0.0.0.0", *arguments])
    assert refused.exit_code == 1
    assert "--advertise" in refused.output
