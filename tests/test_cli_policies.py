"""``velaray policies`` and what else the command line says of policies, as people run it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest
from click.testing import CliRunner, Result

from tests.support.local_cluster import LocalCluster
from velaray import Client
from velaray.cli.app import main

TOPIC = "persistent://public/default/cli-policies"
Run = Callable[..., Result]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("cluster")) as running:
        with Client(running.service_url) as client:
            client.subscribe(TOPIC, "s")
            client.create_producer(TOPIC).send(b"x")
        yield running


@pytest.fixture
def run(cluster: LocalCluster) -> Run:
    def invoke(*arguments: str, code: int = 0) -> Result:
        where = {"VELARAY_ADMIN_URL": cluster.admin_url}
        result = CliRunner(env=where).invoke(main, arguments)
        assert result.exit_code == code, (result.output, result.exception)
        return result

    return invoke


@pytest.mark.parametrize("where", ["cluster", "public/default", TOPIC])
def test_policies_are_set_shown_and_removed_at_every_level(run: Run, where: str) -> None:
    assert "set messageTTL" in run("policies", "set", where, "messageTTL", "60").output
    assert json.loads(run("policies", "get", where, "messageTTL").stdout) == 60
    assert json.loads(run("policies", "list", where, "-o", "json").stdout) == {"messageTTL": 60}
    assert "messageTTL" in run("policies", "list", where).output
    applied = json.loads(run("policies", "list", TOPIC, "--applied", "-o", "json").stdout)
    assert (applied["messageTTL"], applied["maxConsumersPerTopic"]) == (60, 20_000)
    run("policies", "remove", where, "messageTTL")
    assert json.loads(run("policies", "get", where, "messageTTL").stdout) is None


def test_unknown_policies_and_invalid_values_are_refused(run: Run) -> None:
    assert "unknown policy" in run("policies", "set", TOPIC, "colour", "1", code=1).output
    assert "not JSON" in run("policies", "set", TOPIC, "messageTTL", "soon", code=2).output
    assert "whole number" in run("policies", "set", TOPIC, "messageTTL", "-1", code=1).output


def test_old_messages_expire_on_request(run: Run) -> None:
    run("subscriptions", "expire", TOPIC, "s", "--older-than", "3600")
    stats = json.loads(run("topics", "stats", TOPIC, "-o", "json").stdout)
    assert stats["subscriptions"]["s"]["msgBacklog"] == 1
    assert stats["appliedPolicies"]["messageTTL"] == 0
    run("subscriptions", "expire", TOPIC, "--older-than", "0")
    stats = json.loads(run("topics", "stats", TOPIC, "-o", "json").stdout)
    assert stats["subscriptions"]["s"]["expiredEntries"] == {"administrator": 1}
    assert "BACKLOG BYTES" in run("topics", "stats", TOPIC).output
