"""The commands of docs/security.md that make certificates, and velaray's commands by TLS."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.support.local_cluster import LocalCluster
from tests.support.samples import samples
from velaray.cli.app import main
from velaray.topology.config import AuthSettings
from velaray.topology.tls_settings import ClientAuth, TlsSettings

HERE = "tests/topology/test_tls_commands.py"


def run(*words: str, code: int = 0, **environment: str) -> Result:
    result = CliRunner(env=environment).invoke(main, words)
    assert result.exit_code == code, (result.output, result.exception)
    return result


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with what the documented commands make."""
    monkeypatch.chdir(tmp_path)
    (sample,) = (each for each in samples("docs/security.md") if each.test == HERE)
    subprocess.run(["sh", "-ec", sample.code], capture_output=True, check=True, timeout=60)
    return tmp_path


def test_commands_use_the_documented_certificates(folder: Path) -> None:
    tls = TlsSettings(
        *("server.pem", "server.key", "ca.pem"),
        *(ClientAuth.OPTIONAL,),
        service_port=0,
        admin_port=0,
    )
    auth = AuthSettings(secret=b"a secret that is long enough for HS256")
    with LocalCluster(folder / "data", tls=tls, auth=auth) as cluster:
        admin, service = cluster.tls_admin_url, cluster.tls_service_url
        own = {"VELARAY_CLIENT_CERT": "client.pem", "VELARAY_CLIENT_KEY": "client.key"}
        trust = {"VELARAY_TRUST_CERTS": "ca.pem"}
        shown = run("status", "--admin-url", admin, "-o", "json", **own, **trust).stdout
        assert json.loads(shown)[0]["health"] == "ok"
        refused = run("status", "--admin-url", admin, code=1, **own).stderr
        assert "certificate verify failed" in refused
        assert "requires a token" in run("status", "--admin-url", admin, code=1, **trust).stderr
        url = ("--service-url", service)
        run("topics", "create", "t", "--admin-url", admin, **own, **trust)
        run("subscriptions", "create", "t", "s", "--admin-url", admin, **own, **trust)
        run("produce", "t", "-m", "hello", *url, **own, **trust)
        words = ("consume", "t", "-s", "s", "-n", "1", *url)
        assert "hello" in run(*words, **own, **trust).stdout


def test_clusters_are_registered_with_their_urls_of_tls(tmp_path: Path) -> None:
    with LocalCluster(tmp_path) as cluster:
        admin = ("--admin-url", cluster.admin_url)
        by_tls = {"--broker-url-tls": "pulsar+ssl://b:1", "--cluster-admin-url-tls": "https://b:2"}
        run("clusters", "create", "b", *(word for pair in by_tls.items() for word in pair), *admin)
        (found,) = json.loads(run("clusters", "get", "b", "-o", "json", *admin).stdout)
        assert found["brokerServiceUrlTls"] == "pulsar+ssl://b:1"
        assert found["serviceUrlTls"] == "https://b:2"
        assert found["brokerServiceUrl"] == ""
        assert "needs a brokerServiceUrl" in run("clusters", "create", "c", *admin, code=1).stderr
