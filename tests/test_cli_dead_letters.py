"""``velaray dead-letters``: list, republish, forget."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest
from click.testing import CliRunner, Result

from tests.support.local_cluster import LocalCluster
from velaray.cli.app import main
from velaray.client.admin import Admin
from velaray.sync.client import Client

Run = Callable[..., Result]
LETTERS = "orders-billing-DLQ"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
def run(cluster: LocalCluster) -> Run:
    def invoke(*arguments: str, code: int = 0) -> Result:
        where = {"VELARAY_ADMIN_URL": cluster.admin_url}
        result = CliRunner(env=where).invoke(main, ("dead-letters", *arguments))
        assert result.exit_code == code, (result.output, result.exception)
        return result

    return invoke


def test_a_letter_is_listed_republished_and_forgotten(run: Run, cluster: LocalCluster) -> None:
    admin = Admin(cluster.admin_url)
    admin.topics.create("orders")
    admin.topics.create(LETTERS)
    admin.subscriptions.create(LETTERS, "repair")
    with Client(cluster.service_url) as client:
        marks = {"REAL_TOPIC": "orders", "REAL_SUBSCRIPTION": "billing"}
        client.create_producer(LETTERS).send(b"broken", marks, "k")
    (found,) = json.loads(run("list", LETTERS, "-o", "json").output)
    assert (found["originTopic"], found["subscriptions"]) == ("orders", ["repair"])
    table = run("list", LETTERS).output
    assert "HELD BY" in table and found["id"] in table
    copied = json.loads(run("republish", LETTERS, found["id"], "-o", "json").output)
    assert copied["topic"] == "orders"
    entry = admin.topics.examine("orders")
    assert entry is not None and entry.payload == b"broken"
    refused = run("forget", LETTERS, found["id"], code=2)
    assert "give --yes" in refused.output and "forget the dead letter" in refused.output
    assert len(admin.dead_letters(LETTERS)) == 1
    assert run("forget", LETTERS, found["id"], "--yes").output == "forgotten in repair\n"
    again = run("forget", LETTERS, found["id"], "--yes").output
    assert again == "it was acknowledged already\n"
    assert json.loads(run("list", LETTERS, "-o", "json").output) == []
    wrong = run("forget", "orders", f"{entry.message_id}", "--yes", code=1)
    assert "has no subscription" in wrong.output or "isn't a dead letter" in wrong.output
