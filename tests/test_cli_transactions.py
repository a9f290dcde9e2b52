"""``velaray transactions``, as people run it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.support.local_cluster import LocalCluster
from velaray import Client, InitialPosition, Transaction
from velaray.cli.app import main
from velaray.client.admin import Admin, Conflict, NotFound, PreconditionFailed

TOPIC = "persistent://public/default/cli-transactions"
Run = Callable[..., Result]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="module")
def client(cluster: LocalCluster) -> Iterator[Client]:
    with Client(cluster.service_url) as made:
        yield made


@pytest.fixture
def transaction(client: Client) -> Iterator[Transaction]:
    """One that has a message and an acknowledgement; what is open is aborted in the end."""
    begun = client.transaction()
    consumer = client.subscribe(TOPIC, "s", initial_position=InitialPosition.Earliest)
    with client.create_producer(TOPIC) as producer:
        producer.send(b"plain")
        consumer.acknowledge(consumer.receive(20_000), txn=begun)
        producer.send(b"of it", txn=begun)
    yield begun
    consumer.close()
    if begun.state.name == "OPEN":
        begun.abort()


@pytest.fixture
def run(cluster: LocalCluster) -> Run:
    def invoke(*arguments: str, code: int = 0) -> Result:
        where = {"VELARAY_ADMIN_URL": cluster.admin_url}
        result = CliRunner(env=where).invoke(main, ["transactions", *arguments])
        assert result.exit_code == code, (result.output, result.exception)
        return result

    return invoke


def text(transaction: Transaction) -> str:
    return "{}:{}".format(*transaction.txn_id)


def as_json(result: Result) -> Any:
    return json.loads(result.stdout)


def test_open_transactions_are_listed(run: Run, transaction: Transaction) -> None:
    _, sequence = transaction.txn_id
    titles, line = run("list").stdout.splitlines()
    assert titles.startswith("COORDINATOR")
    owner = r"velaray-\S+ at 127\.0\.0\.1:\d+"
    shown = rf"0 +\(0,{sequence}\) +OPEN +[\d.]+ s +(59|60)\.\d s +1 +1 +{owner}"
    assert re.fullmatch(shown, line.strip())
    found = as_json(run("list", "--state", "open", "--coordinator", "0", "-o", "json"))
    assert found["total"] == 1
    assert [each["txnId"] for each in found["transactions"]] == [f"(0,{sequence})"]
    assert "OPEN" not in run("list", "--state", "COMMITTING").output
    assert f"(0,{sequence})" in run("slow", "--older-than", "0").output
    assert f"(0,{sequence})" not in run("slow").output
    assert run("list", "--coordinator", "7", code=1).output == (
        "Error: there is no coordinator 7: they are 0 to 0\n"
    )


def test_the_rest_of_a_long_list_is_counted(
    run: Run, client: Client, transaction: Transaction
) -> None:
    others = [client.transaction() for _ in range(2)]
    assert "and 2 younger ones" in run("list", "--most", "1").output
    for other in others:
        other.abort()


def test_a_transaction_is_described(run: Run, transaction: Transaction) -> None:
    lines = run("describe", text(transaction)).output.splitlines()
    begun = "transaction ({},{}): OPEN, begun by velaray-".format(*transaction.txn_id)
    assert lines[0].startswith(begun) and " at 127.0.0.1:" in lines[0]
    assert re.fullmatch(r"begun: 20\d\d-\S+, [\d.]+ s ago", lines[1])
    assert re.fullmatch(r"aborted in [\d.]+ s unless it ends earlier", lines[2])
    assert re.fullmatch(rf"messages in {TOPIC}: 1 entries, the first at \d+:\d+", lines[3])
    assert lines[4:] == [f"acknowledgements in s of {TOPIC}: 1 entries"]
    transaction.commit()
    for form in ("{}:{}", "{},{}", "({},{})"):
        ended = run("describe", form.format(*transaction.txn_id)).output
        assert ended == "transaction ({},{}): COMMITTED\n".format(*transaction.txn_id)
    assert as_json(run("describe", text(transaction), "-o", "json"))["status"] == "COMMITTED"
    assert "never" in run("describe", "0:9999", code=1).output
    assert "not coordinator:sequence" in run("describe", "9999", code=2).output


def test_an_abort_is_forced_and_final(run: Run, client: Client, transaction: Transaction) -> None:
    for _ in range(2):
        assert "aborted (0," in run("abort", text(transaction), "--yes").output
    assert as_json(run("abort", text(transaction), "--yes", "-o", "json"))["finished"] is True
    assert "ABORTED" in run("describe", text(transaction)).output
    with client.transaction() as committed:
        pass
    assert "COMMITTED: it can't be aborted" in run("abort", text(committed), "--yes", code=1).output


def test_refusals_are_typed_errors(cluster: LocalCluster, client: Client) -> None:
    admin = Admin(cluster.admin_url)
    with client.transaction() as committed:
        pass
    with pytest.raises(Conflict):
        admin.abort_transaction(committed.txn_id)
    with pytest.raises(NotFound):
        admin.transaction((0, 9999))
    with pytest.raises(NotFound):
        admin.abort_transaction((5, 1))
    with pytest.raises(PreconditionFailed):
        admin.scale_coordinators(1)


def test_topics_and_subscriptions_show_open_transactions(
    cluster: LocalCluster, transaction: Transaction
) -> None:
    admin = Admin(cluster.admin_url)
    assert admin.transaction_buffer_stats(TOPIC)["ongoingTxnSize"] == 1
    assert admin.pending_ack_stats(TOPIC, "s")["pendingEntries"] == 1


def test_coordinators_are_shown_and_added(run: Run, transaction: Transaction) -> None:
    columns = run("coordinators").output.splitlines()
    assert re.split(r" {2,}", columns[0].strip()) == [
        *("COORDINATOR", "STATE", "OPEN", "ENDING", "COMMITTED", "ABORTED", "TIMED OUT"),
        *("LAST SEQUENCE", "LOW WATER"),
    ]
    before = as_json(run("coordinators", "-o", "json"))
    assert (list(before), before["0"]["openTxnSize"]) == (["0"], 1)
    assert list(as_json(run("coordinators", "--scale", "3", "-o", "json"))) == ["0", "1", "2"]
    assert "their number can only grow" in run("coordinators", "--scale", "2", code=1).output
