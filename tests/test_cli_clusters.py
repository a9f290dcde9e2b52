"""``velaray clusters``, and what the command line says of homes, as people run it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.support.by_name import call_by_name
from tests.support.local_cluster import LocalCluster
from velaray.cli.app import main
from velaray.events.ids import ActorKey

SECRET = "ey.secret.token"
CREATE = ("--service-url", "pulsar://b:6650", "--cluster-admin-url", "http://b:8080")
Run = Callable[..., Result]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path / "data", name="a") as running:
        yield running


@pytest.fixture
def run(cluster: LocalCluster) -> Run:
    def invoke(*arguments: str, code: int = 0, typed: str | None = None) -> Result:
        where = {"VELARAY_ADMIN_URL": cluster.admin_url}
        result = CliRunner(env=where).invoke(main, arguments, input=typed)
        assert result.exit_code == code, (result.output, result.exception)
        assert "secret" not in result.output
        return result

    return invoke


def rows(result: Result) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(result.stdout)
    return found


def token(cluster: LocalCluster) -> str | None:
    call = call_by_name(cluster.actor_system, ActorKey.catalog(), "home", {"tenant": "acme"})
    found: str | None = cluster.run(call)["token"]
    return found


def test_clusters_are_created_shown_updated_and_deleted(run: Run, cluster: LocalCluster) -> None:
    run("clusters", "create", "b", *CREATE, "--cluster-token", "-", typed=f"{SECRET}\n")
    (own, b) = rows(run("clusters", "list", "-o", "json"))
    assert (own["cluster"], own["local"], b["hasToken"]) == ("a", True, True)
    assert "pulsar://b:6650" in run("clusters", "get", "b").output
    run("clusters", "update", "b", "--progress", "snapshots")
    run("tenants", "set-home", "acme", "b")
    assert token(cluster) == SECRET
    assert rows(run("tenants", "home", "acme", "-o", "json")) == [{"tenant": "acme", "home": "b"}]
    assert "it is the home of tenant" in run("clusters", "delete", "b", "--yes", code=1).output
    run("clusters", "update", "b", "--no-cluster-token")
    assert token(cluster) is None
    (found,) = rows(run("clusters", "get", "b", "-o", "json"))
    assert (found["progress"], found["hasToken"]) == ("snapshots", False)
    run("tenants", "set-home", "acme", "a")
    run("clusters", "delete", "b", "--yes")
    assert len(rows(run("clusters", "list", "-o", "json"))) == 1


def test_a_file_without_a_token_is_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    given = ("--cluster-token", str(tmp_path / "empty"))
    assert "holds no token" in run("clusters", "create", "b", *CREATE, *given, code=1).output
    both = ("--cluster-token", "-", "--no-cluster-token")
    assert "not both" in run("clusters", "update", "b", *both, code=2, typed=SECRET).output


def test_the_journal_is_shown_without_the_token(run: Run, tmp_path: Path) -> None:
    run("clusters", "create", "b", *CREATE, "--cluster-token", "-", typed=SECRET)
    key, data = ActorKey.catalog().text(), ("--data", str(tmp_path / "data"))
    for form in ("table", "json"):
        shown = run("journal", "show", key, *data, "-o", form).stdout
        assert "pulsar://b:6650" in shown
        assert "(not shown)" in shown


def test_a_tenant_is_updated(run: Run) -> None:
    run("clusters", "create", "b", *CREATE)
    run("tenants", "create", "acme", "--cluster", "a")
    run("tenants", "update", "acme", "--cluster", "a", "--cluster", "b")
    listed = rows(run("tenants", "list", "-o", "json"))
    (acme,) = [row for row in listed if row["tenant"] == "acme"]
    assert acme["allowedClusters"] == ["a", "b"]


def test_the_status_shows_this_cluster(run: Run) -> None:
    run("clusters", "create", "b", *CREATE)
    assert [row["cluster"] for row in rows(run("status", "-o", "json"))] == ["a"]
