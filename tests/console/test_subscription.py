"""The pages of subscriptions, of single messages, and of past states."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from urllib.parse import quote

import pytest

from tests.console.visiting import Visitor
from tests.support.local_cluster import LocalCluster
from tests.support.waiting import wait_until
from velaray import Client, ConsumerType
from velaray.client.admin import Admin, Invalid, NotFound
from velaray.console import survey
from velaray.console.formats import when
from velaray.console.messages import Ledger
from velaray.console.moments import compared
from velaray.console.previews import Cursor, moved, offset_of
from velaray.console.subscription import bar
from velaray.events.ids import ActorKind, Position


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("data")) as cluster:
        yield cluster


@pytest.fixture
def visitor(cluster: LocalCluster) -> Visitor:
    return Visitor(cluster.admin_url)


@pytest.fixture
def admin(cluster: LocalCluster) -> Admin:
    return Admin(cluster.admin_url)


def filled(cluster: LocalCluster, admin: Admin, topic: str, count: int = 10) -> None:
    """A topic with a subscription, ``s``, that has these entries before it."""
    admin.topics.create(topic)
    admin.subscriptions.create(topic, "s")
    with Client(cluster.service_url) as client:
        producer = client.create_producer(topic)
        for number in range(count):
            producer.send(str(number).encode())


def backlog(admin: Admin, topic: str) -> int:
    (found,) = admin.subscriptions.describe(topic, "s").values()
    return int(found["backlog"])


def page_of(topic: str) -> str:
    return f"/console/subscription?topic={topic}&name=s"


def test_a_subscription_shows_its_cursor_and_consumers(
    cluster: LocalCluster, visitor: Visitor, admin: Admin
) -> None:
    filled(cluster, admin, "cursor")
    with Client(cluster.service_url) as client:
        consumer = client.subscribe("cursor", "s", ConsumerType.Shared, consumer_name="worker")
        received = [consumer.receive(10_000) for _ in range(10)]
        consumer.acknowledge(received[0])
        consumer.acknowledge(received[4], receipt=True)
        wait_until(lambda: "worker" in visitor.get(page_of("cursor")).text)
        shown = visitor.get(page_of("cursor"))
        assert "8 of 10 entries are not acknowledged" in shown.html
        assert "messages are delivered and not acknowledged" in shown.text
        assert shown.html.count('class="acked" x=') == 2
        assert 'class="pending" x=' in shown.html


def test_delayed_messages_are_on_the_bar(
    cluster: LocalCluster, visitor: Visitor, admin: Admin
) -> None:
    filled(cluster, admin, "later", 2)
    with Client(cluster.service_url) as client:
        producer, due = client.create_producer("later"), int(time.time() * 1000) + 3_600_000
        for _ in range(3):
            producer.send(b"later", deliver_at=due)
        producer.send(b"now")
        producer.send(b"last", deliver_at=due + 1000)
        told = f"delayed: 4 entries, the next is due at {when(due)}"
        shown = visitor.get(page_of("later"))
        assert told in shown.text  # no consumer was connected
        assert shown.html.count('class="delayed" x=') == 2
        consumer = client.subscribe("later", "s", ConsumerType.Shared)
        received = [consumer.receive(10_000) for _ in range(3)]
        wait_until(lambda: told in visitor.get(page_of("later")).text)
        consumer.acknowledge(received[2], receipt=True)
        consumer.close()
        with client.subscribe("later", "s", ConsumerType.Exclusive):
            shown = visitor.get(page_of("later"))
            assert "delayed: none" in shown.text  # it gets them at once
    admin.subscriptions.skip("later", "s", 4)
    shown = visitor.get(page_of("later"))
    assert f"delayed: 2 entries, the next is due at {when(due)}" in shown.text


def test_an_unknown_subscription_is_a_page_that_says_so(visitor: Visitor, admin: Admin) -> None:
    admin.topics.create("bare")
    shown = visitor.get(page_of("bare"))
    assert shown.status == 404
    assert "no subscription" in shown.text


@pytest.mark.parametrize(
    ("move", "to", "again", "acknowledged", "left"),
    [
        ("seek", "latest", 0, 10, 0),
        ("seek", "earliest", 0, 0, 10),
        ("seek", "2001-01-01", 0, 0, 10),
        ("skip", "3", 0, 3, 7),
        ("skip", "", 0, 10, 0),
        ("expire", "0", 0, 10, 0),
        ("expire", "100000", 0, 0, 10),
    ],
)
def test_a_move_is_previewed_and_then_made(
    cluster: LocalCluster,
    visitor: Visitor,
    admin: Admin,
    move: str,
    to: str,
    again: int,
    acknowledged: int,
    left: int,
) -> None:
    topic = f"moved-{move}-{to or 'all'}"
    filled(cluster, admin, topic)
    query = f"/console/subscription/preview?topic={topic}&name=s&move={move}&to={to}"
    shown = visitor.get(query)
    numbers = re.findall('<td class="n">([0-9]+)</td>', shown.html)
    assert "nothing is changed yet" in shown.text
    assert backlog(admin, topic) == 10
    if move != "expire":  # the last entries may be younger than the preview
        assert numbers == [str(again), str(acknowledged)]
    visitor.post(
        "/console/subscription/move", {"topic": topic, "name": "s", "move": move, "to": to}
    )
    wait_until(lambda: backlog(admin, topic) == left)


def test_a_move_is_undone(cluster: LocalCluster, visitor: Visitor, admin: Admin) -> None:
    filled(cluster, admin, "undone")
    admin.subscriptions.skip("undone", "s", 4)
    preview = visitor.get("/console/subscription/preview?topic=undone&name=s&move=undo")
    assert re.findall('<td class="n">([0-9]+)</td>', preview.html) == ["4", "0"]
    hidden = dict(re.findall('name="(event:[^"]+)" value="([0-9]+)"', preview.html))
    fields = {"topic": "undone", "name": "s", "move": "undo", **hidden}
    assert "1 partitions are as before" in visitor.post("/console/subscription/move", fields).text
    assert backlog(admin, "undone") == 10
    assert visitor.get(
        "/console/subscription/preview?topic=undone&name=s&move=undo&to=2100-01-01"
    ).status in (200, 404)


def test_moves_are_listed_with_the_states_around_them(visitor: Visitor, admin: Admin) -> None:
    admin.topics.create("listed", partitions=2)
    admin.subscriptions.create("listed", "s")
    for number in range(2):
        admin.topics.publish(f"listed-partition-{number}", "x")
    admin.subscriptions.skip("listed-partition-1", "s")
    admin.subscriptions.undo("listed-partition-1", "s")
    moves = "/console/subscription/moves?topic={}&name=s"
    wait_until(lambda: "undo: " in visitor.get(moves.format("listed")).text)
    shown = visitor.get(moves.format("listed"))
    told = [shown.text.index(what) for what in ("undo: ", "skip: ")]
    assert told == sorted(told)
    assert "There is none." in visitor.get(moves.format("listed-partition-0")).text
    state = re.search(r'href="(/console/time[^"]*)">the state before', shown.html)
    assert state is not None
    assert visitor.get(state[1].replace("&amp;", "&")).status == 200


def test_a_seek_to_an_id_delivers_again(
    cluster: LocalCluster, visitor: Visitor, admin: Admin
) -> None:
    filled(cluster, admin, "again")
    admin.subscriptions.skip("again", "s")
    (ledger,) = admin.topics.internal_stats("again")["ledgers"]
    to = f"{ledger['ledgerId']}:7"
    shown = visitor.get(f"/console/subscription/preview?topic=again&name=s&move=seek&to={to}")
    assert re.findall('<td class="n">([0-9]+)</td>', shown.html) == ["3", "0"]
    fields = {"topic": "again", "name": "s", "move": "seek", "to": to}
    visitor.post("/console/subscription/move", fields)
    assert backlog(admin, "again") == 3


@pytest.mark.parametrize("query", ["move=seek&to=soon", "move=skip&to=x", "move=fly", "move=seek"])
def test_a_wrong_move_is_refused(
    cluster: LocalCluster, visitor: Visitor, admin: Admin, query: str
) -> None:
    if "wrong" not in str(admin.topics()):
        filled(cluster, admin, "wrong", 1)
    path = f"/console/subscription/preview?topic=wrong&name=s&{query}"
    assert visitor.get(path).status == 400


def test_a_subscription_is_deleted_after_a_question(
    cluster: LocalCluster, visitor: Visitor, admin: Admin
) -> None:
    filled(cluster, admin, "ended", 1)
    question = "/console/subscription/delete?topic=ended&name=s"
    shown = visitor.get(page_of("ended"))
    assert 'action="/console/subscription/delete"' not in shown.html
    assert "/console/subscription/delete?topic=" in shown.html
    asked = visitor.get(question).text
    assert "Delete s of public/default/ended?" in asked
    assert "It has not acknowledged 1 entry, and 0 consumers use it now." in asked
    assert admin.subscriptions("ended") == ["s"]
    visitor.post("/console/subscription/delete", {"topic": "ended", "name": "s"})
    assert admin.subscriptions("ended") == []
    assert visitor.get(question).status == 404


def test_a_message_tells_its_history_in_each_subscription(
    cluster: LocalCluster, visitor: Visitor, admin: Admin
) -> None:
    filled(cluster, admin, "told", 2)
    admin.subscriptions.skip("told", "s", 1)
    shown = visitor.get("/console/message?topic=told&id=earliest")
    assert shown.status == 200
    for text in ("published by", "skipped", "it was skipped", "velaray messages explain"):
        assert text in shown.text
    last = visitor.get("/console/message?topic=told&id=latest&subscription=s")
    assert "no consumer is connected" in last.text or "now" in last.text
    assert visitor.get("/console/message?topic=told&id=nonsense").status == 422
    assert "no entry at position" in visitor.get("/console/message?topic=told&id=999:1").text


def test_a_message_of_a_partitioned_topic_names_its_partition(
    visitor: Visitor, admin: Admin
) -> None:
    admin.topics.create("wide", partitions=2)
    sent = admin.topics.publish("wide-partition-1", "x")
    told = f"{sent.ledger_id()}:{sent.entry_id()}"
    assert "wide-partition-1" in visitor.get(f"/console/message?topic=wide&id={told}:1").text
    assert visitor.get(f"/console/message?topic=wide&id={told}").status == 400


def test_a_past_state_is_compared_with_now(
    cluster: LocalCluster, visitor: Visitor, admin: Admin
) -> None:
    filled(cluster, admin, "past")
    before = backlog(admin, "past")
    assert before == 10
    (actor,) = admin.actors("subscription/public/default/past")
    then = admin.actors.state(actor)["event"]
    admin.subscriptions.skip("past", "s", 6)
    assert actor in visitor.get("/console/time?q=subscription/public/default/past/").text
    wait_until(lambda: actor in visitor.get("/console/time?q=default/past/").text)
    path = f"/console/time?actor={quote(actor, safe='')}"
    shown = visitor.get(f"{path}&event={then}")
    row = re.search("ackedBefore.*?</tr>", shown.html, re.DOTALL)
    assert row is not None
    assert re.findall(">([0-9]+)<", row[0]) == ["0", "6"]
    assert f"--at {then}" in shown.text
    assert "velaray subscriptions state" in shown.text
    assert "0 of" in visitor.get(path).text
    early = visitor.get(f"{path}&time=2001-01-01")
    assert "no longer kept" in early.text or "differ" in early.text


def test_actors_are_listed_by_the_beginning_of_their_keys(visitor: Visitor, admin: Admin) -> None:
    for name in ("found", "found2"):
        admin.topics.create(name)
        admin.topics.publish(name, "x")
    every = admin.actors()
    for under in ("partition", "partition/public/default", "partition/public/default/found/"):
        assert admin.actors(under) == [
            key for key in every if f"{key}/".startswith(f"{under.rstrip('/')}/")
        ]
    assert len(admin.actors("partition/public/default/found")) == 1
    assert admin.actors("nonsense") == []
    with pytest.raises(Invalid, match=r"under: .*percent-encoded"):
        admin.actors("partition/a b")


def test_the_search_for_actors_does_not_wait_for_a_slow_list(
    cluster: LocalCluster, visitor: Visitor, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin.topics.create("slowly")
    admin.topics.publish("slowly", "x")
    store, ended = cluster.actor_system.store, asyncio.Event()
    list_journals = store.list_journals

    async def slow(under: str = "") -> list[str]:
        if not under:
            await ended.wait()
        return await list_journals(under)

    monkeypatch.setattr(survey, "KEPT_S", 0.0)  # an earlier visit may have seen the list
    monkeypatch.setattr(store, "list_journals", slow)
    wait_until(lambda: "Not known now" in visitor.get("/console/time?q=slowly").text)
    assert "default/slowly/" in visitor.get("/console/time?q=partition/public/default/slowly/").text
    cluster.loop.call_soon_threadsafe(ended.set)
    wait_until(lambda: "default/slowly/" in visitor.get("/console/time?q=slowly").text)


def test_every_kind_of_actor_has_past_states(visitor: Visitor, admin: Admin) -> None:
    kinds = {key.split("/")[0]: key for key in admin.actors()}
    assert {"catalog", "partition", "subscription"} <= set(kinds)
    for key in kinds.values():
        found = admin.actors.state(key)
        assert found["firstEvent"] <= found["event"] + 1
        shown = visitor.get(f"/console/time?actor={quote(key, safe='')}")
        assert shown.status == 200
    with pytest.raises(NotFound):
        admin.actors.state(kinds["catalog"], event=10**9)
    with pytest.raises(NotFound):
        admin.actors.events("partition/public/default/nowhere/-1/1")
    assert visitor.get("/console/time?actor=nonsense").status == 422


def test_a_part_says_that_its_actor_is_away(
    cluster: LocalCluster, visitor: Visitor, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin.topics.create("away", partitions=2)
    admin.subscriptions.create("away", "s")
    ask = cluster.actor_system.request

    async def failing(key, request):
        if key.kind is ActorKind.PARTITION and key.topic == "away" and key.partition == 1:
            raise TimeoutError("the actor is away")
        return await ask(key, request)

    monkeypatch.setattr(cluster.actor_system, "request", failing)
    for path in ("/console/topic?topic=away", page_of("away")):
        shown = visitor.get(path)
        assert shown.status == 200
        assert "Not known now" in shown.text
        assert "away-partition-0" in shown.text


@pytest.mark.parametrize(
    ("target", "expected"),
    [(0, (16, 0)), (10, (6, 0)), (12, (6, 2)), (16, (2, 2)), (30, (0, 14))],
)
def test_a_move_counts_entries(target: int, expected: tuple[int, int]) -> None:
    cursor = Cursor(10, 30, [(12, 14), (14, 16), (20, 22)], True)
    again, acknowledged = moved(cursor, target)
    assert (again, acknowledged) == expected


def test_a_position_has_an_offset() -> None:
    ledgers = [Ledger(3, 4), Ledger(7, 2)]
    places = [(1, 0), (3, 2), (3, 9), (5, 0), (7, 1), (9, 0)]
    assert [offset_of(ledgers, 106, Position(*at)) for at in places] == [
        *(100, 102, 104, 104, 105, 106)
    ]


def test_a_bar_is_as_wide_as_the_backlog() -> None:
    found = {
        "acked_before": 80,
        "end_offset": 160,
        "mark_delete": "1:79",
        "first_holes": [{"first_offset": 100, "end_offset": 110, "first": "", "last": ""}],
        "first_delayed": [],
        "consumers": [],
    }
    pieces = bar(found)
    assert [(round(each.at), round(each.width)) for each in pieces] == [(0, 111), (333, 111)]
    assert bar({**found, "acked_before": 0, "end_offset": 0}) == []


def test_changed_values_come_first() -> None:
    rows = compared({"a": 1, "b": {"c": [1, 2]}}, {"a": 1, "b": {"c": [1, 3]}, "d": None})
    assert [(row.place, row.then, row.now) for row in rows] == [
        ("b.c[1]", "2", "3"),
        ("d", "", "none"),
        ("a", "1", "1"),
        ("b.c[0]", "1", "1"),
    ]
