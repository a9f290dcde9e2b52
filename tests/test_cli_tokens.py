"""Tokens and keys on the command line: they are created, read, checked, and never shown."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import jwt
import pytest
from click.testing import CliRunner, Result
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from tests.support.local_cluster import LocalCluster
from velaray.actors.catalog import clusters
from velaray.broker.catalog import messages
from velaray.cli.app import main
from velaray.client.admin.transports import Sending
from velaray.topology.config import AuthSettings

SECRET = b"a secret that is long enough for HS256"

Run = Callable[..., Result]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    auth = AuthSettings(secret=SECRET)
    with LocalCluster(tmp_path_factory.mktemp("cluster"), auth=auth) as running:
        yield running


def run(*arguments: str, code: int = 0, stdin: str = "", **environment: str) -> Result:
    result = CliRunner(env=environment).invoke(main, arguments, input=stdin)
    assert result.exit_code == code, (result.output, result.exception)
    return result


@pytest.fixture
def secret(tmp_path: Path) -> str:
    file = tmp_path / "secret"
    file.write_bytes(SECRET)
    return str(file)


# -- creating ----------------------------------------------------------------------


def test_a_token_is_signed_with_the_secret(secret: str) -> None:
    made = run("tokens", "create", "--secret-file", secret, "--subject", "ops").stdout
    assert jwt.decode(made.strip(), SECRET, algorithms=["HS256"]) == {"sub": "ops"}


@pytest.mark.parametrize(
    ("text", "seconds"), [("45s", 45), ("90m", 5400), ("12h", 43_200), ("30d", 2_592_000)]
)
def test_a_token_expires(secret: str, text: str, seconds: int) -> None:
    began = int(time.time())
    options = ("--secret-file", secret, "--subject", "ops", "--expires", text, "-o", "json")
    made = json.loads(run("tokens", "create", *options).stdout)
    claims = jwt.decode(made["token"], SECRET, algorithms=["HS256"])
    assert began + seconds <= claims["exp"] <= time.time() + seconds
    assert made["subject"] == "ops"
    assert made["expires"].endswith("+00:00")


@pytest.mark.parametrize("text", ["0d", "30", "1w", "-1d", "1.5h", "99999999d", "d"])
def test_other_times_are_refused(secret: str, text: str) -> None:
    options = ("--secret-file", secret, "--subject", "ops", "--expires", text)
    assert "such as 30d" in run("tokens", "create", *options, code=2).stderr


def test_a_weak_secret_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_bytes(b"short")
    options = ("--secret-file", str(file), "--subject", "ops")
    assert "at least 32" in run("tokens", "create", *options, code=1).stderr
    options = ("--token-secret", str(file), "--data", str(tmp_path))
    assert "at least 32" in run("start", *options, code=1).stderr


# -- keys of a cluster -------------------------------------------------------------


def _pem(key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey) -> bytes:
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_key().public_bytes(serialization.Encoding.PEM, form)


def _private(key: rsa.RSAPrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


_RSA = rsa.generate_private_key(65537, 2048)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"secret", "can't be read"),
        (b"-----BEGIN PUBLIC KEY-----\nbm8ga2V5\n-----END PUBLIC KEY-----\n", "can't be read"),
        (_pem(_RSA)[:-60], "can't be read"),
        (_private(_RSA), "can't be read"),
        (_pem(ec.generate_private_key(ec.SECP256R1())), "another algorithm"),
        (_pem(rsa.generate_private_key(65537, 1024)), "1024 bits"),
    ],
    ids=["text", "no key", "cut", "private", "elliptic", "short"],
)
def test_a_broken_public_key_is_refused_at_the_start(
    tmp_path: Path, content: bytes, complaint: str
) -> None:
    key = tmp_path / "key.pem"
    key.write_bytes(content)
    data = tmp_path / "data"
    refused = run("start", "--token-public-key", str(key), "--data", str(data), code=1).stderr
    assert str(key) in refused
    assert complaint in refused
    assert not data.exists()


# -- tokens of commands ------------------------------------------------------------


def test_a_token_comes_from_a_file_a_variable_or_standard_input(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    token = jwt.encode({"sub": "ops"}, SECRET, algorithm="HS256")
    file = tmp_path / "token"
    file.write_text(f"{token}\n")
    url = {"VELARAY_ADMIN_URL": cluster.admin_url, "VELARAY_SERVICE_URL": cluster.service_url}
    status = ("tenants", "list", "-o", "json")
    for source in (f"file:{file}", f"file://{file}", "env:MINE"):
        assert "public" in run(*status, "--token", source, MINE=token, **url).stdout
    assert "public" in run(*status, "--token", "-", stdin=f"{token}\n", **url).stdout
    for variable in (token, f"token:{token}", f"file:{file}"):
        assert "public" in run(*status, VELARAY_TOKEN=variable, **url).stdout
    published = ("produce", "t", "--token", f"file:{file}")
    assert run(*published, stdin="hello\n", **url).exit_code == 0
    assert "token" in run(*status, code=1, **url).stderr


@pytest.mark.parametrize("prefix", ["", "token:"])
def test_a_token_on_the_command_line_is_refused_and_not_repeated(prefix: str) -> None:
    token = jwt.encode({"sub": "ops"}, SECRET, algorithm="HS256")
    refused = run("status", "--token", f"{prefix}{token}", code=2).stderr
    assert "the list of processes would show the token" in refused
    assert token not in refused


def test_a_missing_token_file_is_named() -> None:
    assert "/nowhere/token" in run("status", "--token", "file:/nowhere/token", code=1).stderr


def test_help_shows_no_token() -> None:
    shown = subprocess.run(
        [sys.executable, "-c", "from velaray.cli.app import main; main()", "status", "--help"],
        env={"VELARAY_TOKEN": "hidden", "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "hidden" not in shown.stdout


def test_texts_of_requests_show_no_token() -> None:
    shown = [
        messages.RegisterCluster("c", "pulsar://c:1", "http://c:2", "hidden"),
        messages.UpdateCluster("c", token="hidden"),
        clusters.RegisterCluster("c", "pulsar://c:1", "http://c:2", "hidden"),
        Sending("GET", "http://c:2/metrics", {"Authorization": "Bearer hidden"}, None),
    ]
    assert "hidden" not in repr(shown)
