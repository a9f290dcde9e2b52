"""Undoing seeks and skips on a cluster in this process, through REST and the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from tests.support.local_cluster import LocalCluster
from tests.support.waiting import wait_until
from velaray.actors.machine import Reason
from velaray.broker.partition import partition_actor
from velaray.broker.partition.entry_log import EntryLog
from velaray.broker.partition.messages import SkipTo, Undo
from velaray.broker.partition.partition_actor import PartitionActor
from velaray.cli.app import main
from velaray.client.admin import Admin, AdminError, NotFound, PreconditionFailed
from velaray.client.enums import ConsumerType
from velaray.client.message_id import MessageId
from velaray.sync.client import Client
from velaray.topology.messages import Message
from velaray.topology.rpc import RemoteError


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
    acked_ranges = [
        (acked_range["first_offset"], acked_range["end_offset"])
        for acked_range in found["first_holes"]
    ]
    return found["acked_before"], acked_ranges


def test_a_skip_is_undone_and_later_acks_are_kept(cluster: LocalCluster, client: Client) -> None:
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


def test_a_seek_and_an_undo_can_be_undone(cluster: LocalCluster, client: Client) -> None:
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


def test_all_moves_since_an_event_are_undone(cluster: LocalCluster, client: Client) -> None:
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
    before_ms = cluster.actor_system.clock_ms()
    wait_until(lambda: expired(admin) == (6, []))
    (found,) = admin.undo("expired", "s", time_ms=before_ms).values()
    assert set(found["undone"]) == {"expire: requested by an administrator"}
    assert cursor(admin, "expired") == (2, [(3, 4)])


def expired(admin: Admin) -> tuple[int, list[tuple[int, int]]]:
    admin.expire("expired", "s", 1)
    return cursor(admin, "expired")


def test_an_undo_without_a_move_is_refused(cluster: LocalCluster, client: Client) -> None:
    admin = Admin(cluster.admin_url)
    prepared(client, "quiet").close()
    with pytest.raises(NotFound, match="no seek, skip or requested expiry"):
        admin.undo("quiet", "s")
    with pytest.raises(NotFound, match="events that old are no longer kept"):
        admin.undo("quiet", "s", time_ms=1)


def partitioned(admin: Admin, client: Client, topic: str) -> list[str]:
    """A topic of three partitions with a subscription that acknowledged one of two messages in
    each; returns the partitions' names."""
    admin.create_topic(topic, partitions=3)
    names = [f"persistent://public/default/{topic}-partition-{index}" for index in range(3)]
    for name in names:
        consumer = client.subscribe(name, "s", consumer_type=ConsumerType.Shared)
        producer = client.create_producer(name)
        for number in range(2):
            producer.send(b"%d" % number)
        consumer.acknowledge(consumer.receive(10_000), receipt=True)
        consumer.close()
    return names


def marks(admin: Admin, names: list[str]) -> list[int]:
    return [cursor(admin, name)[0] for name in names]


def test_partitions_without_a_move_are_left_out(cluster: LocalCluster, client: Client) -> None:
    admin = Admin(cluster.admin_url)
    names = partitioned(admin, client, "partly")
    with pytest.raises(NotFound, match="partly: there was no seek, skip or requested expiry"):
        admin.undo("partly", "s")
    admin.skip(names[1], "s", None)
    assert list(admin.undo("partly", "s", preview=True)) == [names[1]]
    assert marks(admin, names) == [1, 2, 1]
    words = ["subscriptions", "undo", "partly", "s", "--admin-url", cluster.admin_url]
    done = CliRunner().invoke(main, [*words, "--yes", "-o", "json"], catch_exceptions=False).output
    assert {name: one["done"] for name, one in json.loads(done).items()} == {names[1]: True}
    assert marks(admin, names) == [1, 1, 1]
    admin.skip("partly", "s", None)
    assert marks(admin, names) == [2, 2, 2]
    assert list(admin.undo("partly", "s")) == names
    assert marks(admin, names) == [1, 1, 1]
    with pytest.raises(AdminError, match="an event's number belongs to the journal of one"):
        admin.undo("partly", "s", event=1)


def test_a_refusal_of_one_partition_leaves_all_unchanged(
    cluster: LocalCluster, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin = Admin(cluster.admin_url)
    names = partitioned(admin, client, "refused")
    admin.skip("refused", "s", None)
    durably_gone = EntryLog.durably_gone

    async def gone(self: EntryLog, **kinds: Any) -> list[int]:
        return [0, 2] if self.topic == names[2] else await durably_gone(self, **kinds)

    monkeypatch.setattr(EntryLog, "durably_gone", gone)
    with pytest.raises(PreconditionFailed, match="they are trimmed away"):
        admin.undo("refused", "s")
    assert marks(admin, names) == [2, 2, 2]


@pytest.mark.parametrize("verb", ["undo", "skip"])
def test_an_error_names_the_changed_partitions(
    cluster: LocalCluster, client: Client, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    admin = Admin(cluster.admin_url)
    names = partitioned(admin, client, f"failing-{verb}")
    kind: type[Message] = {"undo": Undo, "skip": SkipTo}[verb]
    if verb == "undo":
        admin.skip(f"failing-{verb}", "s", None)
    real = partition_actor.HANDLERS[kind]

    async def fail(partition: PartitionActor, request: Message) -> Any:
        if partition.topic == names[1]:
            raise RemoteError(Reason.UNAVAILABLE, "it is moving")
        return await real(partition, request)

    monkeypatch.setitem(partition_actor.HANDLERS, kind, fail)
    named = f"done for {names[0]}, {names[2]}, but not for {names[1]}: it is moving"
    with pytest.raises(AdminError, match=named):
        admin.undo(f"failing-{verb}", "s") if verb == "undo" else admin.skip(
            f"failing-{verb}", "s", None
        )
    assert marks(admin, names) == ([1, 2, 1] if verb == "undo" else [2, 1, 2])
    if verb == "skip":
        return
    words = ["subscriptions", "undo", names[1], "s", "--yes", "--admin-url", cluster.admin_url]
    told = CliRunner().invoke(main, words)
    assert told.exit_code == 1
    assert f"not undone for {names[1]}: " in told.output
