"""The command line against a cluster in this process, and against journals on disk."""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.support.local_cluster import LocalCluster
from velaray.cli.admin import TimeType
from velaray.cli.app import main
from velaray.cli.common import Output
from velaray.client.admin import Admin, Conflict, Invalid, NotFound, PreconditionFailed, Unavailable
from velaray.client.message_id import MessageId
from velaray.events.ids import ActorKey, ActorKind
from velaray.journal.files import FileStore
from velaray.sync.client import Client
from velaray.topology.ownership import take_ownership

Run = Callable[..., Result]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="module")
def admin(cluster: LocalCluster) -> Admin:
    return Admin(cluster.admin_url)


@pytest.fixture
def run(cluster: LocalCluster) -> Run:
    where = {"VELARAY_ADMIN_URL": cluster.admin_url, "VELARAY_SERVICE_URL": cluster.service_url}

    def invoke(*arguments: str, stdin: bytes = b"", code: int = 0) -> Result:
        result = CliRunner(env=where).invoke(main, arguments, input=stdin)
        assert result.exit_code == code, (result.output, result.exception)
        return result

    return invoke


def as_json(result: Result) -> Any:
    return json.loads(result.stdout)


# -- administration ----------------------------------------------------------------


def test_status_shows_where_the_cluster_is(run: Run, cluster: LocalCluster) -> None:
    (found,) = as_json(run("status", "-o", "json"))
    assert found["cluster"] == "standalone"
    assert found["health"] == "ok"
    assert found["brokerServiceUrl"] == cluster.service_url
    assert found["tenants"] == 2
    assert cluster.admin_url in run("status").stdout


def test_a_table_in_a_pipe_has_a_line_for_each_row(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"name": "a\nb", "count": 7}, {"name": "longer", "count": 1234}]
    Output(as_json=False).rows({"name": "NAME", "count": "COUNT"}, rows)
    assert capsys.readouterr().out.splitlines() == [
        "NAME    COUNT",
        "a\\nb        7",
        "longer   1234",
    ]
    Output(as_json=False).rows({"name": "NAME"}, [])
    assert capsys.readouterr().out == "NAME\n"


def test_an_unreachable_cluster_is_reported_with_a_remedy(run: Run) -> None:
    result = run("status", "--admin-url", "http://127.0.0.1:1", code=1)
    assert "no answer from http://127.0.0.1:1" in result.stderr
    assert "velaray start" in result.stderr
    assert "not an admin URL" in run("status", "--admin-url", "here", code=2).stderr


def test_tenants_and_namespaces(run: Run) -> None:
    run("tenants", "create", "acme", "--admin-role", "ops")
    rows = as_json(run("tenants", "list", "-o", "json"))
    assert {"tenant": "acme", "adminRoles": ["ops"], "allowedClusters": ["standalone"]} in rows
    assert "tenant acme exists" in run("tenants", "create", "acme", code=1).stderr
    run("namespaces", "create", "acme/orders")
    assert as_json(run("namespaces", "list", "acme", "-o", "json")) == [
        {"namespace": "acme/orders"}
    ]
    assert "holds 1 namespaces" in run("tenants", "delete", "acme", "--yes", code=1).stderr
    run("namespaces", "delete", "acme/orders", "--yes")
    run("tenants", "delete", "acme", "--yes")
    assert "no tenant" in run("namespaces", "list", "acme", code=1).stderr
    assert "tenant/namespace" in run("namespaces", "create", "orders", code=1).stderr


def test_topics_are_created_listed_described_and_deleted(run: Run) -> None:
    made = run("topics", "create", "flights", "--partitions", "2", "-o", "json")
    assert as_json(made) == {"created": "flights", "partitions": 2}
    assert "exists" in run("topics", "create", "flights", code=1).stderr
    rows = as_json(run("topics", "list", "-o", "json"))
    assert {"topic": "persistent://public/default/flights", "partitions": 2} in rows
    table = run("topics", "list", "public/default").stdout
    assert "persistent://public/default/flights" in table
    run("subscriptions", "create", "flights", "s", "--start", "earliest")
    run("produce", "flights", "-m", "1", "-m", "2", "-m", "3")
    stats = as_json(run("topics", "stats", "flights", "-o", "json"))
    assert stats["subscriptions"]["s"]["msgBacklog"] == stats["numberOfEntries"] > 0
    table = run("topics", "stats", "flights").stdout
    assert "flights-partition-1" in table
    assert "BACKLOG" in table
    assert "3" in run("topics", "partitions", "flights", "--grow", "3").stdout
    run("topics", "unload", "flights")
    last = as_json(run("topics", "terminate", "flights", "--yes", "-o", "json"))
    assert len(last) == 3
    assert "terminated" in run("produce", "flights", "-m", "4", code=1).stderr
    run("topics", "delete", "flights", "--yes")
    assert "no topic" in run("topics", "partitions", "flights", code=1).stderr


def test_a_topic_in_use_is_deleted_only_by_force(run: Run, cluster: LocalCluster) -> None:
    with Client(cluster.service_url) as client:
        client.create_producer("in-use")
        assert "force" in run("topics", "delete", "in-use", "--yes", code=1).stderr
    run("topics", "create", "unused")
    run("topics", "delete", "unused", "--yes", "--force")


def test_subscriptions_are_reset_and_skipped(run: Run) -> None:
    run("topics", "create", "moved")
    before = datetime.now(UTC)
    for text in ("a", "b", "c"):
        run("produce", "moved", "-m", text)

    def backlog() -> int:
        stats = as_json(run("topics", "stats", "moved", "-o", "json"))
        return stats["subscriptions"]["s"]["msgBacklog"]

    consumed = run("consume", "moved", "-s", "s", "-n", "2", "--start", "earliest", "-o", "json")
    ids = [json.loads(line)["id"] for line in consumed.stdout.splitlines()]
    assert backlog() == 1
    run("subscriptions", "seek", "moved", "s", "--to", "earliest")
    assert backlog() == 3
    run("subscriptions", "skip", "moved", "s", "1")
    assert backlog() == 2
    run("subscriptions", "seek", "moved", "s", "--to", "latest")
    assert backlog() == 0
    run("subscriptions", "seek", "moved", "s", "--time", before.isoformat())
    assert backlog() == 3
    run("subscriptions", "seek", "moved", "s", "--to", ":".join(ids[1].split(":")[:2]))
    assert backlog() == 2
    run("subscriptions", "skip", "moved", "s", "--all")
    assert backlog() == 0
    assert as_json(run("subscriptions", "list", "moved", "-o", "json")) == [{"subscription": "s"}]
    run("subscriptions", "delete", "moved", "s", "--yes")
    assert as_json(run("subscriptions", "list", "moved", "-o", "json")) == []


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("1500", 1500),
        ("1970-01-01T00:01", 60_000),
        ("1970-01-01T02:00:00.5+02:00", 500),
        ("1970-01-02", 86_400_000),
    ],
)
def test_times_are_parsed(text: str, milliseconds: int) -> None:
    assert TimeType().convert(text, None, None) == milliseconds


@pytest.mark.parametrize(
    "arguments",
    [
        ("subscriptions", "seek", "t", "s"),
        ("subscriptions", "seek", "t", "s", "--to", "earliest", "--time", "0"),
        ("subscriptions", "seek", "t", "s", "--to", "first"),
        ("subscriptions", "seek", "t", "s", "--time", "yesterday"),
        ("subscriptions", "skip", "t", "s"),
        ("subscriptions", "skip", "t", "s", "3", "--all"),
        ("topics", "create", "a/b"),
        ("topics", "create", "t", "--partitions", "-1"),
        ("topics", "list", "-o", "yaml"),
        ("start", "--service-port", "70000"),
        ("start", "--partition-sync", "sometimes"),
        ("start", "--sync-interval-ms", "0"),
        ("start", "--hosts", "0"),
        ("start", "--placement", "dedicated", "--hosts", "2"),
        ("start", "--data", __file__),
        ("start", "--token-secret", __file__, "--token-public-key", __file__),
        ("journal", "replay", "partition/x", "--data", "."),
    ],
)
def test_wrong_usage_exits_with_code_2(run: Run, arguments: tuple[str, ...]) -> None:
    assert "Error" in run(*arguments, code=2).stderr


# -- messages ----------------------------------------------------------------------


def test_lines_are_produced_and_consumed(run: Run) -> None:
    run("subscriptions", "create", "lines", "s", code=1)
    run("topics", "create", "lines")
    run("subscriptions", "create", "lines", "s")
    said = run("produce", "lines", "--key", "k", stdin=b"one\n\xfftwo\r\nthree")
    assert "published 3 messages" in said.stdout
    plain = run("consume", "lines", "-s", "s").stdout
    assert plain.endswith("\tk\tone\n")
    lines = run("consume", "lines", "-s", "s", "-n", "2", "-o", "json").stdout.splitlines()
    first, second = map(json.loads, lines)
    assert first["dataBase64"] == "/3R3bw=="
    assert (second["data"], second["key"]) == ("three", "k")
    late = run("consume", "lines", "-s", "s", "-n", "0", "--timeout", "0.1", code=1)
    assert "no message of lines" in late.stderr


def test_a_printed_message_is_acknowledged(run: Run) -> None:
    run("topics", "create", "acked")
    run("subscriptions", "create", "acked", "s")
    run("produce", "acked", "-m", "1", "-m", "2")
    assert run("consume", "acked", "-s", "s").stdout.endswith("1\n")
    assert run("consume", "acked", "-s", "s").stdout.endswith("2\n")
    run("consume", "acked", "-s", "s", "--timeout", "0.1", code=1)


def test_consuming_a_mistyped_topic_creates_nothing(run: Run) -> None:
    run("topics", "create", "departures")
    before = run("topics", "list", "public/default").stdout
    refused = run("consume", "depatrures", "-s", "s", "--timeout", "0.1", code=1)
    assert "nearest names are persistent://public/default/departures" in refused.stderr
    assert run("topics", "list", "public/default").stdout == before


# -- journals ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a cluster that has run, been stopped, and run again."""
    path = tmp_path_factory.mktemp("stored")
    for content in (b"first", b"second"):
        with LocalCluster(path) as cluster, Client(cluster.service_url) as client:
            consumer = client.subscribe("kept", "s")
            client.create_producer("kept", producer_name="p").send(content, partition_key="k")
            consumer.acknowledge(consumer.receive(10_000), receipt=True)
            client.transaction().commit()
            Admin(cluster.admin_url).upload_schema("kept", "STRING")
            compact = ["topics", "compact", "kept", "--wait", "--admin-url", cluster.admin_url]
            assert "SUCCESS" in CliRunner().invoke(main, compact).output
    asyncio.run(take_ownership(FileStore(path), "standalone"))
    return path


def key_of(stored: Path, kind: ActorKind) -> str:
    found = CliRunner().invoke(main, ["journal", "list", "--data", str(stored), "-o", "json"])
    (key,) = [row["key"] for row in as_json(found) if ActorKey.parse(row["key"]).kind is kind]
    return key


def test_events_are_shown(run: Run, stored: Path) -> None:
    key = key_of(stored, ActorKind.PARTITION)
    lines = run("journal", "show", key, "--data", str(stored), "-o", "json").stdout.splitlines()
    events = [json.loads(line) for line in lines]
    assert [event["sequence"] for event in events] == list(range(len(events)))
    appended = [event for event in events if event["event"] == "EntryAppended"]
    assert len(appended) == 2
    assert all(event["blobBytes"] and event["position"] for event in appended)
    one = run("journal", "show", key, "--data", str(stored), "--from", "1", "--to", "1").stdout
    assert one.splitlines()[0].split()[:2] == ["1", events[1]["event"]]
    assert len(one.splitlines()) == 1


def test_every_kind_of_journal_verifies(run: Run, stored: Path) -> None:
    rows = as_json(run("journal", "verify", "--data", str(stored), "-o", "json"))
    assert {row["key"].split("/")[0] for row in rows} == {
        kind.value
        for kind in ActorKind
        if kind not in (ActorKind.GARBAGE_COLLECTOR, ActorKind.INBOUND_REPLICATOR)
    }
    assert all(not row["problems"] for row in rows)
    assert len(rows) > len({row["key"] for row in rows})  # several ledgers: digests compared


def test_a_flipped_byte_is_found_and_located(run: Run, stored: Path) -> None:
    key = key_of(stored, ActorKind.SUBSCRIPTION)
    first, *_ = as_json(run("journal", "verify", key, "--data", str(stored), "-o", "json"))
    file = Path(FileStore(stored).location(key, first["ledger_id"]))
    whole = file.read_bytes()
    last = first["bytes"] - 1
    file.write_bytes(whole[:last] + bytes([whole[last] ^ 1]) + whole[last + 1 :])
    try:
        result = run("journal", "verify", key, "--data", str(stored), code=1)
        assert str(file) in result.stdout
        assert key in result.stderr
    finally:
        file.write_bytes(whole)


def test_a_machine_that_replays_differently_is_found(
    run: Run, stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from velaray.actors.subscription.cursor import Cursor

    monkeypatch.setattr(Cursor, "ack_ranges", lambda self, ranges: None)
    key = key_of(stored, ActorKind.SUBSCRIPTION)
    result = run("journal", "verify", key, "--data", str(stored), code=1)
    assert "history gives the digest" in result.stdout


def test_a_state_is_replayed_up_to_an_event(run: Run, stored: Path) -> None:
    def state(kind: ActorKind, *options: str) -> dict[str, Any]:
        key = key_of(stored, kind)
        return as_json(run("journal", "replay", key, "--data", str(stored), "-o", "json", *options))

    newest = state(ActorKind.PARTITION)
    assert newest["state"]["endOffset"] == 2
    assert newest["state"]["producers"]["p"]["lastSequenceId"] >= 0
    seen = []
    for event in range(newest["event"] + 1):
        found = state(ActorKind.PARTITION, "--to", str(event))
        assert found["event"] == event
        seen.append(found["state"]["endOffset"])
    assert seen == sorted(seen)
    assert {0, 1, 2} == set(seen)
    assert state(ActorKind.PARTITION, "--to", str(newest["event"]))["digest"] == newest["digest"]
    assert state(ActorKind.SUBSCRIPTION)["state"]["ackedBefore"] == 2
    assert state(ActorKind.COORDINATOR)["state"]["nextSequence"] == 3
    (version,) = state(ActorKind.SCHEMA_REGISTRY)["state"]["versions"]
    assert (version["version"], version["type"], version["data"]) == (0, "STRING", "")
    catalog = state(ActorKind.CATALOG)["state"]
    assert catalog["topics"]["persistent://public/default/kept"]["partitions"] == 0
    table = run("journal", "replay", "catalog", "--data", str(stored)).stdout
    assert "state.nextIncarnation" in table


def test_a_missing_journal_or_event_is_named(run: Run, stored: Path) -> None:
    data = ("--data", str(stored))
    late = run("journal", "replay", "catalog", "--to", "999999", *data, code=1)
    assert "has no event 999999" in late.stderr
    absent = "partition/public/default/absent/-1/1"
    for command in ("show", "verify", "replay"):
        assert absent in run("journal", command, absent, *data, code=1).stderr


@pytest.mark.parametrize("command", ["verify", "replay"])
def test_a_kind_without_a_journal_is_refused(run: Run, stored: Path, command: str) -> None:
    refused = run("journal", command, "deleter/0", "--data", str(stored), code=1)
    assert "a deleter has no journal" in refused.stderr


# -- start -----------------------------------------------------------------------


def test_an_address_on_the_network_needs_a_token(run: Run, tmp_path: Path) -> None:
    data = tmp_path / "data"
    refused = run("start", "--host", "0.0.0.0", "--data", str(data), code=1)
    assert "--token-secret" in refused.stderr
    assert not data.exists()


@contextmanager
def started(data: Path) -> Iterator[dict[str, str]]:
    """`velaray start` in a process of its own, stopped by SIGTERM: its URLs by name."""
    command = [sys.executable, "-c", "from velaray.cli.app import main; main()", "start"]
    ports = ["--service-port", "0", "--admin-port", "0"]
    with subprocess.Popen(
        [*command, "--data", str(data), *ports], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        lines = list(itertools.takewhile(lambda line: "is running" not in line, process.stdout))
        try:
            yield dict(line.split() for line in lines)
        finally:
            process.terminate()
            rest, _ = process.communicate(timeout=60)
    assert rest == "velaray is stopping\nvelaray has stopped\n"
    assert process.returncode == 0


@pytest.mark.ray
@pytest.mark.slow
def test_a_cluster_runs_until_it_is_stopped_and_starts_again(tmp_path: Path) -> None:
    for start in range(2):
        with started(tmp_path) as urls:
            admin = Admin(urls["admin"])
            if start == 0:
                admin.create_topic("kept")
                admin.create_subscription("kept", "s")
            with Client(urls["service"]) as client:
                client.create_producer("kept").send(b"%d" % start)
            stats = admin.stats("kept")
            assert stats["numberOfEntries"] == start + 1
            assert stats["subscriptions"]["s"]["msgBacklog"] == start + 1
    result = CliRunner().invoke(main, ["journal", "verify", "--data", str(tmp_path)])
    assert result.exit_code == 0, result.output


@pytest.mark.long
@pytest.mark.ray
def test_a_replaced_cluster_stops_and_reports_it(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from velaray.cli.app import main; main()", "start"]
    ports = ["--service-port", "0", "--admin-port", "0", "--data", str(tmp_path)]
    with subprocess.Popen(
        [*command, *ports], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        list(itertools.takewhile(lambda line: "is running" not in line, process.stdout))
        assert asyncio.run(take_ownership(FileStore(str(tmp_path)), "standalone")) == 2
        _, told = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "was replaced by start 2" in told


# -- the Admin class ---------------------------------------------------------------


def test_errors_of_the_admin_class_are_typed(admin: Admin) -> None:
    admin.create_topic("typed", properties={"a": "b"})
    with pytest.raises(Conflict):
        admin.create_topic("typed")
    with pytest.raises(NotFound):
        admin.partitions("absent")
    with pytest.raises(Invalid):
        admin.set_policy("public/default", "retention", {"retentionTimeInMinutes": "x"})
    with pytest.raises(PreconditionFailed):
        admin.delete_tenant("pulsar")
    with pytest.raises(Unavailable):
        Admin("http://127.0.0.1:1").health()


def test_policies_of_a_namespace(admin: Admin) -> None:
    admin.create_namespace("public/ruled")
    assert admin.policy("public/ruled", "messageTTL") is None
    assert admin.policy("public/ruled", "messageTTL", applied=True) == 0
    admin.set_policy("public/ruled", "messageTTL", 7)
    assert admin.policies("public/ruled") == {"message_ttl_in_seconds": 7}
    admin.remove_policy("public/ruled", "messageTTL")
    assert admin.policies("public/ruled") == {}


def test_peeking_does_not_consume_the_message(admin: Admin, cluster: LocalCluster) -> None:
    admin.create_topic("peeked")
    admin.create_subscription("peeked", "s", MessageId.earliest)
    assert admin.peek("peeked", "s") is None
    with Client(cluster.service_url) as client:
        sent = client.create_producer("peeked").send(b"seen", {"k": "v"})
    for _ in range(2):
        found = admin.peek("peeked", "s")
        assert found is not None
        assert (found.payload, found.properties) == (b"seen", {"k": "v"})
        assert found.message_id.entry_id() == sent.entry_id() == 0
    assert admin.last_message_id("peeked").entry_id() == 0
    with pytest.raises(NotFound):
        admin.peek("peeked", "nobody")
