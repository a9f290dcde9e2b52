"""The pages of topics, policies and messages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.console.visiting import Visitor
from tests.support.local_cluster import LocalCluster
from tests.support.waiting import wait_until
from velaray import Client, ConsumerType, console
from velaray.client.admin import Admin, Unavailable
from velaray.client.admin.transports import Answer, Sending
from velaray.client.schema import AvroSchema, Record, String
from velaray.client.schema.record import Integer
from velaray.console import topics as console_topics
from velaray.console import visit as visits
from velaray.console.formats import when
from velaray.console.in_process import InProcessTransport
from velaray.console.messages import Ledger, before, positions
from velaray.console.survey import METRICS, SURVEYS, Surveys
from velaray.events.ids import EARLIEST, LATEST, ActorKind, Position


class Order(Record):
    """The values of a topic with a schema."""

    item = String()
    count = Integer()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("data"), undelete_s=3600) as cluster:
        yield cluster


@pytest.fixture
def visitor(cluster: LocalCluster) -> Visitor:
    return Visitor(cluster.admin_url)


@pytest.fixture
def admin(cluster: LocalCluster) -> Admin:
    return Admin(cluster.admin_url)


def test_a_topic_is_created_deleted_and_restored(visitor: Visitor, admin: Admin) -> None:
    shown = visitor.post("/console/topics/create", {"topic": "made", "partitions": "2"})
    assert "persistent://public/default/made is created" in shown.text
    assert admin.topics.partitions("made") == 2
    again = visitor.post(
        "/console/topics/create", {"topic": "made", "back": "/console/topics?q=made"}
    )
    assert "exists" in again.text
    assert again.url.endswith("/console/topics?q=made")
    asked = visitor.get("/console/topic/delete?topic=made")
    assert "This deletes 0 entries" in asked.text
    visitor.post("/console/topic/delete", {"topic": "made"})
    wait_until(lambda: "There is no such topic." in visitor.get("/console/topics?q=made").text)
    told = visitor.post("/console/topics/undelete", {"topic": "made"})
    assert "persistent://public/default/made is restored" in told.text
    wait_until(lambda: "There is no such topic." not in visitor.get("/console/topics?q=made").text)
    assert admin.topics.partitions("made") == 2


def test_deleted_topics_are_listed_until_they_are_restored(
    visitor: Visitor, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = "/console/topics?q=gone-"
    for name, partitions in (("gone-a", 2), ("gone-b", 0)):
        admin.topics.create(name, partitions=partitions)
        admin.topics.delete(name)
    (first,) = [each for each in admin.topics.deleted() if each["topic"].endswith("/gone-a")]
    begun, until = when(first["deletedMs"]), when(first["restorableUntilMs"])
    times = rf"{begun} \([^)]* s ago\) {until} \(in \d+ min \d+ s\)"

    def shown() -> str:
        return visitor.get(page).text

    wait_until(lambda: re.search(f"public/default/gone-a 2 {times}", shown()))
    assert "public/default/gone-b plain" in shown()
    assert "public/default/gone-b" not in visitor.get("/console/topics?q=gone-a").text
    names = re.findall('name="topic" value="([^"]*)"', visitor.get(page).html)
    assert sorted(names) == [f"persistent://public/default/gone-{each}" for each in "ab"]
    told = visitor.post("/console/topics/undelete", {"topic": "gone-a", "back": page})
    assert "gone-a is restored" in told.text
    admin.topics.create("gone-b")
    wait_until(lambda: "a newer topic has this name" in shown())
    assert "/console/topics/undelete" not in visitor.get(page).html
    refused = visitor.post("/console/topics/undelete", {"topic": "gone-b", "back": page})
    assert "exists; delete or move it first" in refused.text
    monkeypatch.setattr(visits.Visit, "may_change", False)
    assert "public/default/gone-b plain" in shown()


def test_a_long_list_of_deleted_topics_is_cut(
    visitor: Visitor, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console_topics, "ROWS", 2)
    for number in range(3):
        admin.topics.create(f"cut-{number}")
        admin.topics.delete(f"cut-{number}")
    page = "/console/topics?q=cut-"
    wait_until(lambda: "1 more deleted topics aren't shown" in visitor.get(page).text)
    assert "public/default/cut-0" not in visitor.get(page).text  # the newest come first


def test_the_list_stays_while_deleted_topics_are_not_known(
    visitor: Visitor, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin.topics.create("still-here")
    send = InProcessTransport.send

    async def away(transport: InProcessTransport, sending: Sending) -> Answer:
        if sending.url.endswith("/deletedTopics"):
            raise Unavailable(503, "the catalog is busy")
        return await send(transport, sending)

    monkeypatch.setattr(InProcessTransport, "send", away)
    page = "/console/topics?q=still-here"
    wait_until(lambda: "Not known now: the catalog is busy" in visitor.get(page).text)
    assert "public/default/still-here" in visitor.get(page).text


def test_the_list_is_paged_and_asks_no_topic(
    cluster: LocalCluster, visitor: Visitor, admin: Admin
) -> None:
    admin.create_namespace("public/many")
    for number in range(120):
        admin.topics.create(f"public/many/n{number:03}")
    running = set(cluster.keys(ActorKind.PARTITION))
    path = "/console/topics?q=public/many"
    wait_until(lambda: "120 topics, page 1 of 3" in visitor.get(path).text)
    first = visitor.get(path)
    assert len(re.findall("public/many/n[0-9]{3}</a>", first.html)) == 50
    last = visitor.get("/console/topics?q=public/many&page=3")
    assert "public/many/n119" in last.text
    assert visitor.get("/console/topics?q=public/many&page=99").text == last.text.replace(
        "page=3", "page=99"
    )
    assert set(cluster.keys(ActorKind.PARTITION)) == running


def test_pages_of_the_cluster_send_as_many_requests_for_many_topics_as_for_few(
    cluster: LocalCluster, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of topics in use: their number must not make a page slow."""
    sent: list[str] = []
    send = InProcessTransport.send

    async def counted(transport: InProcessTransport, sending: Sending) -> Answer:
        sent.append(sending.url.partition("?")[0])
        return await send(transport, sending)

    monkeypatch.setattr(InProcessTransport, "send", counted)
    names = ("", "topics", "transactions", "pipelines", "clusters", "hosts", "time", "settings")

    def requests(name: str) -> list[str]:
        assert cluster._admin.app is not None
        surveys = cluster._admin.app[SURVEYS]
        surveys.__dict__.update(Surveys().__dict__)  # nothing is known yet
        sent.clear()
        visitor.get(f"/console/{name}" if name else "/")
        wait_until(lambda: all(task.done() for _, task in surveys._running.values()))
        return sorted(sent)

    with Client(cluster.service_url) as client:
        producers = [client.create_producer(f"in-use-{number}") for number in range(2)]
        few = {name: requests(name) for name in names}
        producers += [client.create_producer(f"in-use-{number}") for number in range(2, 40)]
        many = {name: requests(name) for name in names}
        del producers
    assert many == few
    assert max(map(len, few.values())) < 20


def test_pages_show_only_metrics_that_they_ask_for() -> None:
    shown = set()
    for path in Path(console.__file__).parent.rglob("*"):
        if path.suffix in (".py", ".html"):
            shown |= set(re.findall(r'"((?:pulsar|velaray)_[a-z_]+)"', path.read_text("utf-8")))
    assert shown == set(METRICS)


def test_system_topics_are_hidden_until_asked_for(visitor: Visitor, admin: Admin) -> None:
    assert "pulsar/system" not in visitor.get("/console/topics").text
    shown = visitor.get("/console/topics?system=1&q=pulsar/system")
    assert admin.topics("pulsar/system")
    assert "pulsar/system" in shown.text


def test_a_topic_shows_clients_and_subscriptions(
    cluster: LocalCluster, visitor: Visitor, admin: Admin
) -> None:
    admin.topics.create("shown", partitions=2)
    with Client(cluster.service_url) as client:
        producer = client.create_producer("shown", producer_name="feeder")
        client.subscribe("shown", "reading", ConsumerType.Shared, consumer_name="reader")
        for _ in range(4):
            producer.send(b"x")
        shown = visitor.get("/console/topic?topic=shown")
        for text in ("shown-partition-0", "shown-partition-1", "feeder", "reading", "Shared"):
            assert text in shown.text
        assert "Entries stored 4" in shown.text


def test_the_list_tells_messages_and_entries_apart(cluster: LocalCluster, visitor: Visitor) -> None:
    with Client(cluster.service_url) as client:
        producer = client.create_producer(
            "packed", batching_enabled=True, batching_max_publish_delay_ms=60_000
        )
        for _ in range(10):
            producer.send_async(b"x")
        producer.flush()
        page = "/console/topics?q=packed"
        row = r"public/default/packed plain 1 \S+/s \S+/s 10 1 [\d.]+ K?i?B 0 1 0"
        wait_until(lambda: re.search(row, visitor.get(page).text))
        assert "Messages in since start Entries stored" in visitor.get(page).text


def test_an_unknown_topic_is_a_page_that_says_so(visitor: Visitor) -> None:
    shown = visitor.get("/console/topic?topic=nowhere")
    assert shown.status == 404
    assert "nowhere" in shown.text
    assert visitor.get("/console/topic?topic=a/b").status == 422
    assert visitor.get("/console/topic").status == 400


def test_texts_are_escaped(visitor: Visitor, admin: Admin) -> None:
    admin.topics.create("evil")
    admin.topics.publish("evil", "<script>alert(1)</script>", properties={"<b>": "'\""})
    shown = visitor.get("/console/messages?topic=evil")
    assert "<script>alert" not in shown.html
    assert "&lt;script&gt;alert" in shown.html
    assert "<script>" not in visitor.get("/console/topics?q=<script>").html


def test_a_test_message_is_published_and_shown(visitor: Visitor, admin: Admin) -> None:
    admin.topics.create("tried")
    fields = {"topic": "tried", "data": '{"a": 1}', "key": "k", "properties": "x=1\ny = 2"}
    shown = visitor.post("/console/topic/publish", fields)
    assert "The message is stored as" in shown.text
    for text in ('"a": 1', "x=1", "y=2", "JSON"):
        assert text in shown.text
    bad = visitor.post("/console/topic/publish", {**fields, "properties": "x"})
    assert "name=value" in bad.text


def test_messages_are_found_by_id_time_key_and_property(
    cluster: LocalCluster, visitor: Visitor, admin: Admin
) -> None:
    admin.topics.create("browsed")
    with Client(cluster.service_url) as client:
        producer = client.create_producer("browsed")
        sent = [
            producer.send(f"value {number}".encode(), {"n": str(number)}, f"key{number % 5}")
            for number in range(50)
        ]
        last = visitor.get("/console/messages?topic=browsed")
        assert "value 49" in last.text
        assert "value 29 " not in last.text
        assert "Earlier messages" in last.text
        at = f"{sent[10].ledger_id()}:{sent[10].entry_id()}"
        by_id = visitor.get(f"/console/messages?topic=browsed&id={at}")
        assert "value 10" in by_id.text
        assert "value 29" in by_id.text
        assert "value 30" not in by_id.text
        by_key = visitor.get("/console/messages?topic=browsed&id=earliest&key=key3")
        assert "10 messages of 50 entries" in by_key.text
        by_property = visitor.get("/console/messages?topic=browsed&id=earliest&property=n=42")
        assert "1 messages" in by_property.text
        by_time = visitor.get("/console/messages?topic=browsed&time=2001-01-01T00:00")
        assert "value 0" in by_time.text
    assert visitor.get("/console/messages?topic=browsed&time=soon").status == 400
    assert visitor.get("/console/messages?topic=browsed&id=x").status == 422


def test_values_are_decoded_by_their_schema(
    cluster: LocalCluster, visitor: Visitor, admin: Admin
) -> None:
    admin.topics.create("typed")
    with Client(cluster.service_url) as client:
        producer = client.create_producer("typed", schema=AvroSchema(Order), batching_enabled=True)
        producer.send(Order(item="bolts", count=7))
    shown = visitor.get("/console/messages?topic=typed")
    assert "AVRO, version 0" in shown.text
    assert '"item": "bolts"' in shown.text
    refused = visitor.post("/console/topic/publish", {"topic": "typed", "data": "not avro"})
    assert "The message is stored" not in refused.text


def test_policies_show_the_level_that_sets_them(visitor: Visitor, admin: Admin) -> None:
    admin.topics.create("ruled")
    where = "/console/policies?where=persistent://public/default/ruled"
    fields = {"where": "public/default", "name": "messageTTL", "value": "77"}
    assert "messageTTL is set" in visitor.post("/console/policies/set", fields).text
    row = re.search("<b>messageTTL</b>.*?</tr>", visitor.get(where).html, re.DOTALL)
    assert row is not None
    assert "<td>namespace</td>" in row[0]
    assert "77" in row[0]
    fields["where"] = "persistent://public/default/ruled"
    visitor.post("/console/policies/set", {**fields, "value": "5"})
    assert "<td>topic</td>" in visitor.get(where).html
    visitor.post("/console/policies/remove", fields)
    assert "<td>topic</td>" not in visitor.get(where).html
    assert "isn't JSON" in visitor.post("/console/policies/set", {**fields, "value": "{"}).text
    assert "must" in visitor.post("/console/policies/set", {**fields, "value": '"x"'}).text
    assert visitor.get("/console/policies?where=a/b/c/d").status == 400


def test_a_reader_sees_no_forms_and_sends_none(
    visitor: Visitor, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin.topics.create("kept")
    monkeypatch.setattr(visits.Visit, "may_change", False)
    for path in ("/console/topics", "/console/topic?topic=kept", "/console/policies"):
        shown = visitor.get(path)
        assert shown.status == 200
        forms = re.findall('<form[^>]*method="post"[^>]*action="([^"]*)"', shown.html)
        assert set(forms) <= {"/console/theme", "/console/logout"}
    refused = visitor.post("/console/topic/delete", {"topic": "kept"})
    assert refused.status == 403
    assert admin.topics.partitions("kept") == 0


LEDGERS = [Ledger(3, 4), Ledger(5, 0), Ledger(7, 2)]


@pytest.mark.parametrize(
    ("start", "most", "expected"),
    [
        (EARLIEST, 3, [(3, 0), (3, 1), (3, 2)]),
        (Position(3, 3), 3, [(3, 3), (7, 0), (7, 1)]),
        (Position(4, 9), 1, [(7, 0)]),
        (Position(7, 2), 5, []),
        (LATEST, 3, [(3, 3), (7, 0), (7, 1)]),
        (LATEST, 9, [(3, 0), (3, 1), (3, 2), (3, 3), (7, 0), (7, 1)]),
    ],
    ids=str,
)
def test_positions_follow_the_ledgers(
    start: Position, most: int, expected: list[tuple[int, int]]
) -> None:
    assert positions(LEDGERS, start, most) == expected


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (Position(3, 0), None),
        (Position(3, 2), (3, 0)),
        (Position(7, 0), (3, 1)),
        (Position(7, 1), (3, 2)),
    ],
    ids=str,
)
def test_the_page_before_ends_where_this_one_begins(
    start: Position, expected: tuple[int, int] | None
) -> None:
    assert before(LEDGERS, start, 3) == expected
