"""``velaray context``, and what commands take from the active one."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import jwt
import pytest
from click.testing import CliRunner, Result

from tests.support.local_cluster import LocalCluster
from tests.support.samples import samples
from velaray.cli import context_file
from velaray.cli.app import main
from velaray.cli.context_file import Context, Contexts
from velaray.topology.config import AuthSettings

SECRET = b"s" * 32
Run = Callable[..., Result]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's configuration directory."""
    for name in ("ADMIN_URL", "SERVICE_URL", "TOKEN"):
        monkeypatch.delenv(f"VELARAY_{name}", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "config"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(
        tmp_path_factory.mktemp("cluster"), auth=AuthSettings(secret=SECRET)
    ) as running:
        yield running


def run(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == code, (result.output, result.exception)
    return result


def add(cluster: LocalCluster, name: str = "here") -> None:
    """Add a context with the cluster's URLs and a token."""
    Path("app.token").write_text(jwt.encode({"sub": "admin"}, SECRET, "HS256"), encoding="utf-8")
    urls = "--service-url", cluster.service_url, "--admin-url", cluster.admin_url
    run("context", "add", name, *urls, "--token", "file:app.token")


def test_commands_use_the_active_context(home: Path, cluster: LocalCluster) -> None:
    add(cluster)
    run("context", "use", "here")
    assert json.loads(run("status", "-o", "json").output)[0]["health"] == "ok"
    run("topics", "create", "used")
    assert "published 1 message to used\n" in run("produce", "used", "-m", "x").output
    (row,) = json.loads(run("context", "list", "-o", "json").output)
    assert row["active"] and row["token"] == f"file:{Path('app.token').absolute()}"


def test_the_commands_in_the_documents_work(home: Path) -> None:
    (found,) = [
        sample for sample in samples("docs/command-line.md") if "velaray context" in sample.code
    ]
    Path("west.token").write_text("token", encoding="utf-8")
    for line in found.code.splitlines():
        run(*shlex.split(line)[1:])
    assert context_file.load() == Contexts()


def test_a_url_from_elsewhere_gets_no_token(
    home: Path, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(cluster)
    run("context", "use", "here")
    failed = run("status", "--admin-url", cluster.admin_url, code=1)
    assert "token" in failed.output
    monkeypatch.setenv("VELARAY_ADMIN_URL", cluster.admin_url)
    run("status", code=1)
    run("status", "--token", "file:app.token")


def test_a_token_of_the_command_precedes_that_of_the_context(
    home: Path, cluster: LocalCluster
) -> None:
    add(cluster)
    run("context", "use", "here")
    Path("wrong.token").write_text("wrong", encoding="utf-8")
    run("status", "--token", "file:wrong.token", code=1)


def test_a_context_without_the_url_is_an_error(home: Path) -> None:
    run("context", "add", "half", "--admin-url", "http://127.0.0.1:1")
    run("context", "use", "half")
    failed = run("produce", "t", "-m", "x", code=1)
    assert "the context half has no URL for this: give --service-url" in failed.output


def test_only_the_user_can_read_the_file(home: Path) -> None:
    run("context", "add", "one", "--admin-url", "http://127.0.0.1:1")
    found = home / "velaray" / "contexts.json"
    assert found.stat().st_mode & 0o777 == 0o600
    assert found.parent.stat().st_mode & 0o777 == 0o700
    assert [each.name for each in found.parent.iterdir()] == ["contexts.json"]
    assert context_file.load() == Contexts(None, {"one": Context(admin_url="http://127.0.0.1:1")})


def test_contexts_are_added_used_and_removed(home: Path) -> None:
    run("context", "add", "one", "--admin-url", "http://127.0.0.1:1")
    assert (
        "the context one exists"
        in run("context", "add", "one", "--admin-url", "http://127.0.0.1:2", code=1).output
    )
    assert "there are: one" in run("context", "use", "two", code=1).output
    run("context", "use", "one")
    run("context", "use", "--none")
    assert context_file.active() is None
    run("context", "use", "one")
    run("context", "remove", "one")
    assert context_file.load() == Contexts()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ([], "give --service-url"),
        (["--admin-url", "here"], "is not like http://host:port"),
        (["--service-url", "http://here:1"], "is not like pulsar://host:port"),
        (["--admin-url", "http://a:1", "--token", "eyJ"], "file:PATH, env:NAME or oauth2:PATH"),
        (["--admin-url", "http://a:1", "--token", "file:none"], "is no file"),
        (["--admin-url", "http://a:1", "--client-cert", "contexts"], "does not exist"),
    ],
)
def test_a_wrong_context_is_refused(home: Path, options: list[str], text: str) -> None:
    assert text in run("context", "add", "one", *options, code=2).output
    assert not context_file.file().exists()


def test_a_damaged_file_is_named(home: Path) -> None:
    context_file.file().parent.mkdir(parents=True)
    context_file.file().write_text("{", encoding="utf-8")
    assert str(context_file.file()) in run("context", "list", code=1).output
