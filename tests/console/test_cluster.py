"""The pages of dead letters, transactions, schemas, pipelines, clusters, hosts and settings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from html import unescape

import pytest

from tests.console.visiting import Visitor
from tests.support.local_cluster import LocalCluster
from tests.support.waiting import wait_until
from velaray import Client
from velaray.actors.machine import Reason
from velaray.client.admin import Admin
from velaray.client.retention_marks import RETENTION_MARK, SPARK
from velaray.console import audit as console_audit
from velaray.console import pipelines as console_pipelines
from velaray.console.schemas import difference
from velaray.console.transactions import id_of
from velaray.console.visit import FormError
from velaray.topology.config import AuditSettings
from velaray.topology.host_control import HostStatus
from velaray.topology.rpc import RemoteError

HOST = HostStatus("host/0", 17, "n", ("catalog",), 5 << 20, 1.25, 2.5, "0.2.0", drained=True)
ONE = '{"type":"record","name":"R","fields":[{"name":"a","type":"int"}]}'
TWO = (
    '{"type":"record","name":"R","fields":[{"name":"a","type":"int"},'
    '{"name":"b","type":"string","default":""}]}'
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("data"), audit=AuditSettings()) as cluster:
        yield cluster


@pytest.fixture
def visitor(cluster: LocalCluster) -> Visitor:
    return Visitor(cluster.admin_url)


@pytest.fixture
def admin(cluster: LocalCluster) -> Admin:
    return Admin(cluster.admin_url)


def test_a_dead_letter_is_republished(
    cluster: LocalCluster, visitor: Visitor, admin: Admin
) -> None:
    admin.topics.create("bills")
    with Client(cluster.service_url) as client:
        marks = {"REAL_TOPIC": "bills", "REAL_SUBSCRIPTION": "billing", "own": "kept"}
        client.create_producer("bills-billing-DLQ").send(b"\xff\x00", marks, "k")
    shown = visitor.get("/console/dead-letters")
    assert "public/default/bills-billing-DLQ" in shown.text
    assert "ff 00" in shown.text
    fields = dict(re.findall('name="(topic|id)" value="([^"]*)"', shown.html))
    told = visitor.post("/console/dead-letters/republish", fields)
    assert "A copy is stored in bills" in told.text
    copied = visitor.get("/console/messages?topic=bills")
    assert "ff 00" in copied.text
    assert "own=kept" in copied.text
    assert "REAL_TOPIC" not in copied.text
    wrong = {**fields, "id": fields["id"].removesuffix("-1") + "7"}
    unknown = visitor.post("/console/dead-letters/republish", wrong)
    assert "no such message" in unknown.text
    lost = visitor.post("/console/dead-letters/republish", {"topic": "bills", "id": "0:0"})
    assert lost.status == 200
    asked = visitor.get("/console/dead-letters/forget?id=x").text
    assert "Forget the deletion x?" in asked
    assert "ledgers audit --repair" in asked
    nothing = visitor.post("/console/dead-letters/retry", {"id": "x"})
    assert "are retried" not in nothing.text


def test_a_dead_letter_is_forgotten_after_a_question(
    cluster: LocalCluster, visitor: Visitor, admin: Admin
) -> None:
    letters = "notes-billing-DLQ"
    with Client(cluster.service_url) as client:
        producer = client.create_producer(letters)
        producer.send(b"nobody holds it", {"REAL_TOPIC": "notes"})
        wait_until(lambda: "nobody holds it" in visitor.get("/console/dead-letters").text)
        assert "/forget-letter" not in visitor.get("/console/dead-letters").html
        admin.subscriptions.create(letters, "repair")
        producer.send(b"to forget", {"REAL_TOPIC": "notes"})
    shown = visitor.get("/console/dead-letters")
    assert "nobody holds it" not in shown.text  # the subscription starts after it
    (path,) = re.findall('href="(/console/dead-letters/forget-letter[^"]*notes[^"]*)"', shown.html)
    question = visitor.get(unescape(path))
    assert "It would count as acknowledged in repair" in question.text
    assert "to forget" in question.text
    assert admin.stats(letters)["subscriptions"]["repair"]["msgBacklog"] == 1
    fields = dict(re.findall('name="(topic|id)" value="([^"]*)"', question.html))
    told = visitor.post("/console/dead-letters/forget-letter", fields)
    assert "is forgotten in repair" in told.text
    assert "to forget" not in told.text
    assert admin.stats(letters)["subscriptions"]["repair"]["msgBacklog"] == 0
    assert "or it is forgotten" in visitor.get(unescape(path)).text
    missing = visitor.post("/console/dead-letters/forget-letter", {**fields, "id": "999:1"})
    assert "has no entry 999:1" in missing.text
    record = next(iter(admin.audit(operation="deadLetters")["records"]))
    assert record["target"] == f"persistent://public/default/{letters}"


def test_a_transaction_is_shown_and_aborted(
    cluster: LocalCluster, visitor: Visitor, admin: Admin
) -> None:
    admin.topics.create("paid")
    with Client(cluster.service_url) as client:
        transaction = client.transaction()
        client.create_producer("paid").send(b"x", txn=transaction)
        wait_until(lambda: "OPEN" in visitor.get("/console/transactions").text)
        shown = visitor.get("/console/transactions")
        (found,) = admin.transactions()["transactions"]
        assert found["txnId"] in shown.text
        one = visitor.get(f"/console/transaction?id={found['txnId']}")
        assert "public/default/paid" in one.text
        assert "/console/transaction/abort?id=" in one.html
        asked = visitor.get(f"/console/transaction/abort?id={found['txnId']}").text
        assert "Its messages never appear" in asked
        assert admin.transactions()["total"] == 1
        told = visitor.post("/console/transaction/abort", {"id": found["txnId"]})
        assert "is aborted" in told.text
    assert visitor.get("/console/transaction?id=x").status == 400
    assert visitor.get("/console/transaction?id=0:999999").status == 404


def test_versions_of_a_schema_are_compared_and_checked(visitor: Visitor, admin: Admin) -> None:
    admin.topics.create("shaped")
    assert "The topic has no schema" in visitor.get("/console/schemas?topic=shaped").text
    admin.schemas.upload("shaped", "AVRO", ONE)
    admin.schemas.upload("shaped", "AVRO", TWO)
    shown = visitor.get("/console/schemas?topic=shaped")
    assert "Version 1: AVRO" in shown.text
    assert '+ "name": "b"' in " ".join(shown.text.split())
    fields = {"topic": "shaped", "type": "AVRO", "schema": ONE.replace("int", "string")}
    assert "It couldn't be registered" in visitor.post("/console/schemas", fields).text
    assert (
        "It could be registered" in visitor.post("/console/schemas", {**fields, "schema": TWO}).text
    )
    bad = visitor.post("/console/schemas", {**fields, "schema": "nonsense"})
    assert bad.status == 422


def test_marks_are_listed_and_released_after_a_question(
    cluster: LocalCluster, visitor: Visitor, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console_pipelines, "MARKS_FRESH_S", 0.0)
    admin.topics.create("flow")
    admin.subscriptions.create("flow", "plain")
    admin.subscriptions.create("flow", "query", properties={RETENTION_MARK: SPARK})
    with Client(cluster.service_url) as client:
        client.create_producer("flow").send(b"x")
    page = "/console/pipelines"
    wait_until(lambda: "query public/default/flow not read" in visitor.get(page).text)
    shown = visitor.get(page)
    assert "plain public/default/flow 1 0 0 no reader" in shown.text
    assert "name=plain" not in "".join(re.findall('/console/pipelines/release[^"]*', shown.html))
    (path,) = re.findall('href="(/console/pipelines/release[^"]*name=query)"', shown.html)
    question = visitor.get(unescape(path))
    assert "Release the mark query of public/default/flow?" in question.text
    assert admin.subscriptions("flow") == ["plain", "query"]
    told = visitor.post(f"{page}/release", {"topic": "flow", "name": "query"})
    assert "is released" in told.text
    assert admin.subscriptions("flow") == ["plain"]
    refused = visitor.post(f"{page}/release", {"topic": "flow", "name": "plain"})
    assert "isn't a retention mark" in refused.text
    assert visitor.get(unescape(path)).status == 404


def test_clusters_and_settings_are_shown(cluster: LocalCluster, visitor: Visitor) -> None:
    shown = visitor.get("/console/clusters")
    assert f"{cluster.config.name} (this one)" in shown.text
    assert "No tenant was to move away from here." in shown.text
    assert "clusterName" in visitor.get("/console/settings").text
    assert visitor.get("/console/clusters/roll-back?tenant=public").status == 404
    told = visitor.post("/console/clusters/roll-back", {"tenant": "public"})
    assert "rolled back" not in told.text.replace("Roll back", "")


def test_a_cluster_without_hosts_says_so(visitor: Visitor) -> None:
    shown = visitor.get("/console/hosts")
    assert "share no hosts" in shown.text
    wait_until(lambda: "Longest recoveries" in visitor.get("/console/hosts").text)


class Control:
    """The hosts of a test."""

    async def hosts(self) -> list[HostStatus]:
        return [HOST, replace(HOST, name="host/1", drained=False, lag_s=0.0, restarted_s=61.0)]

    async def drain(self, host: str) -> int:
        return 3

    async def resume(self, host: str) -> None:
        return None

    async def restart(self, host: str) -> HostStatus:
        return HOST

    async def silent(self) -> list[str]:
        return ["host/2"]

    async def log_lines(self, host: str) -> list[str]:
        if host != "host/0":
            raise RemoteError(Reason.NOT_FOUND, f"no host {host!r} was started")
        return ["the first line", "the <last> line"]

    async def move(self, group: str, to: str = "") -> str:
        return to or "host/1"


def test_hosts_are_shown_drained_and_resumed(
    cluster: LocalCluster, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster.actor_system, "host_control", Control())
    shown = visitor.get("/console/hosts")
    assert "host/0 n 17 1 5.0 MiB" in shown.text
    assert "host/2 Not known now: it doesn't answer" in shown.text
    assert "<option>host/2</option>" in shown.html  # an action on it says what is wrong
    log = visitor.get("/console/hosts/log?host=host/0")
    assert "The last 2 lines" in log.text and "the &lt;last&gt; line\nthe first line" in log.html
    assert "no host 'host/9' was started" in visitor.get("/console/hosts/log?host=host/9").text
    start = visitor.get("/").text
    assert "its event loop lagged 2.5 s" in start
    assert "its process restarted 1 min 1 s ago" in start
    assert "host/2 it doesn't answer now: its process restarts, or is busy" in start
    path = "/console/hosts/change"
    for action, told in (
        ("drain", "3 topics and other actors were moved"),
        ("resume", "takes actors again"),
        ("restart", "has a new process"),
    ):
        assert told in visitor.post(path, {"host": "host/0", "action": action}).text
    moved = visitor.post("/console/hosts/move", {"topic": "flow"})
    assert "is in host/1 now" in moved.text


def test_ids_of_transactions_have_two_forms() -> None:
    assert id_of("3:7") == id_of("(3,7)") == (3, 7)
    for text in ("3", "3:x", "1:2:3"):
        with pytest.raises(FormError):
            id_of(text)


def test_the_difference_of_equal_versions_says_so() -> None:
    versions = [{"version": 0, "data": "{}"}, {"version": 1, "data": "{ }"}]
    assert difference(versions, 0, 1) == "The versions are equal."
    assert difference(versions, 0, 5) == ""


def test_changes_are_shown_and_filtered(cluster: LocalCluster, visitor: Visitor) -> None:
    for name in ("audited-1", "audited-2"):
        visitor.post("/console/topics/create", {"topic": name})
    shown = visitor.get("/console/audit").text
    assert "public/default/audited-1" in shown
    assert "velaray-console" in shown
    found = visitor.get("/console/audit?target=audited-2&operation=put").text
    assert "audited-2" in found
    assert "audited-1" not in found
    assert "No such change" in visitor.get("/console/audit?role=nobody").text
    assert "No such change" in visitor.get("/console/audit?since=2999-01-01T00:00").text
    wrong = visitor.get("/console/audit?since=soon")
    assert (wrong.status, "must be a date and time" in wrong.text) == (400, True)


def test_older_changes_are_on_the_next_page(
    visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console_audit, "ROWS", 1)
    for name in ("paged-1", "paged-2"):
        visitor.post("/console/topics/create", {"topic": name})
    first = visitor.get("/console/audit?target=paged")
    assert "paged-2" in first.text
    assert "paged-1" not in first.text
    older = re.search(r'href="([^"]*)">Older changes', first.html)
    assert older is not None
    assert "paged-1" in visitor.get(unescape(older[1])).text
