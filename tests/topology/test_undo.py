"""Undoing seeks and skips on a cluster in this process, through REST and the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from tests.support.local_cluster import LocalCluster
from tests.support.waiting import wait_until
from velaray.admin import Admin, NotFound
from velaray.cli import main
from velaray.client import Client
from velaray.enums import ConsumerType
from velaray.message_id import MessageId


@pytest.fixture(scope="module")
def client(cluster: LocalCluster) -> Iterator[Client]:
    with Client(cluster.service_url) as made:
        yield made


def prepared(client: Client, topic: str) -> Any:
    """A subscription that has acknowledged 0, 1 and 3 of six messages; returns its consumer."""
    consumer = client.subscribe(topic, "s", consumer_type=ConsumerType.Shared)
    producer = client.create_producer(topic)
    for number in range(6):
        producer.send(b"%d" % number)
    got = [consumer.receive(10_000) for _ in range(6)]
    for number in (0, 1, 3):
        consumer.acknowledge(got[number], receipt=True)
    return consumer


def cursor(admin: Admin, topic: str) -> tuple[int, list[tuple[int, int]]]:
    (found,) = admin.describe_subscription(topic, "s").values()
    holes = [(hole["first_offset"], hole["end_offset"]) for hole in found["first_holes"]]
    return found["acked_before"], holes


def test_a_mistaken_skip_is_undone_and_acks_made_since_are_kept(
    cluster: LocalCluster, client: Client
) -> None:
    admin = Admin(cluster.admin_url)
    consumer = prepared(client, "skipped")
    assert cursor(admin, "skipped") == (2, [(3, 4)])
    admin.skip("skipped", "s", None)
    assert cursor(admin, "skipped") == (6, [])
    client.create_producer("skipped").send(b"6")
    consumer.acknowledge(consumer.receive(10_000), receipt=True)
    (plan,) = admin.undo("skipped", "s", preview=True).values()
    assert plan["undone"] == ["skip: by an administrator"]
    assert (plan["to_deliver_again"], plan["to_acknowledge"]) == (3, 0)
    assert plan["first_to_deliver_again"] == [[2, 3], [4, 6]]
    assert cursor(admin, "skipped") == (7, [])
    admin.undo("skipped", "s")
    assert cursor(admin, "skipped") == (2, [(3, 4), (6, 7)])
    again = [consumer.receive(10_000).data() for _ in range(3)]
    assert again == [b"2", b"4", b"5"]
    consumer.close()


def test_a_mistaken_seek_is_undone_and_so_is_the_undoing(
    cluster: LocalCluster, client: Client
) -> None:
    admin = Admin(cluster.admin_url)
    prepared(client, "sought").close()
    admin.seek("sought", "s", MessageId.earliest)
    assert cursor(admin, "sought") == (0, [])
    words = ["subscriptions", "undo", "sought", "s", "--admin-url", cluster.admin_url]
    told = CliRunner().invoke(main, words, catch_exceptions=False).output
    assert "would be undone: seek: seek by an administrator" in told
    assert "nothing was changed" in told
    assert cursor(admin, "sought") == (0, [])
    done = CliRunner().invoke(main, [*words, "--yes", "-o", "json"], catch_exceptions=False).output
    (found,) = json.loads(done).values()
    assert (found["done"], found["acked_before_then"]) == (True, 2)
    assert cursor(admin, "sought") == (2, [(3, 4)])
    admin.undo("sought", "s")
    assert cursor(admin, "sought") == (0, [])


def test_back_to_an_event_all_moves_since_are_undone(cluster: LocalCluster, client: Client) -> None:
    admin = Admin(cluster.admin_url)
    prepared(client, "twice").close()
    (before,) = (one["after_event"] for one in _after_a_skip(admin, "twice"))
    admin.seek("twice", "s", MessageId.latest)
    (found,) = admin.undo("twice", "s", event=before).values()
    assert found["undone"] == ["skip: by an administrator", "seek: seek by an administrator"]
    assert cursor(admin, "twice") == (2, [(3, 4)])


def _after_a_skip(admin: Admin, topic: str) -> list[dict[str, Any]]:
    admin.skip(topic, "s", 1)
    return list(admin.undo(topic, "s", preview=True).values())


def test_an_expiry_on_request_is_undone(cluster: LocalCluster, client: Client) -> None:
    admin = Admin(cluster.admin_url)
    prepared(client, "expired").close()
    before_ms = cluster.fabric.clock_ms()
    wait_until(lambda: expired(admin) == (6, []))
    (found,) = admin.undo("expired", "s", time_ms=before_ms).values()
    assert set(found["undone"]) == {"expire: asked for by an administrator"}
    assert cursor(admin, "expired") == (2, [(3, 4)])


def expired(admin: Admin) -> tuple[int, list[tuple[int, int]]]:
    admin.expire("expired", "s", 1)
    return cursor(admin, "expired")


def test_without_a_move_there_is_nothing_to_undo(cluster: LocalCluster, client: Client) -> None:
    admin = Admin(cluster.admin_url)
    prepared(client, "quiet").close()
    with pytest.raises(NotFound, match="no seek, skip or expiry"):
        admin.undo("quiet", "s")
    with pytest.raises(NotFound, match="nothing that old is kept"):
        admin.undo("quiet", "s", time_ms=1)
