"""What `subscriptions describe` tells, through REST and on the command line."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pulsar
import pytest
from click.testing import CliRunner

from tests.support.local_cluster import LocalCluster
from tests.support.waiting import wait_until
from velaray.broker.partition.subscription_view import holdups
from velaray.cli.app import main
from velaray.client.admin import Admin, NotFound


def described(cluster: LocalCluster, topic: str, subscription: str = "s") -> dict[str, Any]:
    found = Admin(cluster.admin_url).describe_subscription(topic, subscription)
    (one,) = found.values()
    return dict(one)


def reasons(found: dict[str, Any]) -> list[str]:
    return [holdup["reason"] for holdup in found["holdups"]]


def publish(client: pulsar.Client, topic: str, count: int) -> None:
    producer = client.create_producer(topic, batching_enabled=False)
    for number in range(count):
        producer.send(b"%d" % number)
    producer.close()


def test_acked_ranges_held_entries_and_partly_acked_batches_are_described(
    cluster: LocalCluster, client: pulsar.Client
) -> None:
    consumer = client.subscribe(
        "holes", "s", consumer_type=pulsar.ConsumerType.Shared, batch_index_ack_enabled=True
    )
    publish(client, "holes", 6)
    producer = client.create_producer(
        "holes", batching_enabled=True, batching_max_publish_delay_ms=60_000
    )
    for number in range(3):
        producer.send_async(b"%d" % number, lambda *_: None)
    producer.flush()
    got = [consumer.receive(5000) for _ in range(9)]
    for index in (0, 2, 3, 7):
        consumer.acknowledge(got[index])
    wait_until(lambda: described(cluster, "holes")["partial"] == 1)
    found = described(cluster, "holes")
    ledger = got[0].message_id().ledger_id()
    assert (found["mark_delete"], found["backlog"], found["end_offset"]) == (f"{ledger}:0", 4, 7)
    assert found["first_holes"] == [
        {"first_offset": 2, "end_offset": 4, "first": f"{ledger}:2", "last": f"{ledger}:3"}
    ]
    assert found["first_partial"] == [{"offset": 6, "position": f"{ledger}:6", "remaining": [0, 2]}]
    (held,) = found["consumers"]
    assert held["unacked"] == 5
    assert [(each["first"], each["last"]) for each in held["held"]] == [
        (f"{ledger}:1", f"{ledger}:1"),
        (f"{ledger}:4", f"{ledger}:6"),
    ]
    assert held["address"].startswith("127.0.0.1:")
    assert reasons(found) == ["unacknowledged"]
    text = (
        CliRunner()
        .invoke(
            main,
            ["subscriptions", "describe", "holes", "s", "--admin-url", cluster.admin_url],
            catch_exceptions=False,
        )
        .output
    )
    assert f"acknowledged ranges: 1: {ledger}:2 to {ledger}:3" in text
    assert f"partly acknowledged batches: 1: {ledger}:6 (left: 0, 2)" in text
    assert "what holds it back: 5 messages are delivered and not acknowledged: 5 at" in text
    shown = (
        CliRunner()
        .invoke(
            main,
            [
                "subscriptions",
                "describe",
                "holes",
                "s",
                "--admin-url",
                cluster.admin_url,
                "-o",
                "json",
            ],
            catch_exceptions=False,
        )
        .output
    )
    assert json.loads(shown)["persistent://public/default/holes"]["holes"] == 1
    producer.close()
    consumer.close()


def test_a_missing_consumer_is_given_as_the_reason(
    cluster: LocalCluster, client: pulsar.Client
) -> None:
    Admin(cluster.admin_url).create_topic("alone")
    Admin(cluster.admin_url).create_subscription("alone", "s")
    assert reasons(described(cluster, "alone")) == ["nothing-to-deliver"]
    publish(client, "alone", 2)
    assert reasons(described(cluster, "alone")) == ["no-consumers"]
    with pytest.raises(NotFound, match="no subscription 'other'"):
        Admin(cluster.admin_url).describe_subscription("alone", "other")


def describe_line(cluster: LocalCluster, topic: str, start: str) -> str:
    """The rest of the line of the command's output that begins with ``start``."""
    words = ["subscriptions", "describe", topic, "s", "--admin-url", cluster.admin_url]
    output = CliRunner().invoke(main, words, catch_exceptions=False).output
    (found,) = [line for line in output.splitlines() if line.startswith(f"  {start}: ")]
    return found.removeprefix(f"  {start}: ")


def test_the_time_at_which_the_last_consumer_left_is_described(
    cluster: LocalCluster, client: pulsar.Client
) -> None:
    admin = Admin(cluster.admin_url)
    admin.create_topic("left")
    admin.create_subscription("left", "s")
    assert describe_line(cluster, "left", "type") == "unknown: no consumer is connected"
    before_ms = time.time_ns() // 1_000_000
    client.subscribe("left", "s").close()
    wait_until(lambda: described(cluster, "left")["consumers"] == [])
    left_ms = described(cluster, "left")["last_left_ms"]
    assert before_ms <= left_ms <= time.time_ns() // 1_000_000
    shown = describe_line(cluster, "left", "type")
    assert re.fullmatch(r"unknown: the last consumer left at 20\d\d-\S+", shown)


def test_messages_before_the_start_are_not_called_acknowledged(
    cluster: LocalCluster, client: pulsar.Client
) -> None:
    publish(client, "behind", 2)
    Admin(cluster.admin_url).create_subscription("behind", "s")
    assert "or lies before the subscription's start" in describe_line(cluster, "behind", "cursor")
    (held_up,) = described(cluster, "behind")["holdups"]
    assert held_up["text"] == "everything since the subscription's start is acknowledged"


def test_a_full_queue_is_given_as_the_reason(cluster: LocalCluster, client: pulsar.Client) -> None:
    consumer = client.subscribe(
        "full", "s", consumer_type=pulsar.ConsumerType.Shared, receiver_queue_size=1
    )
    publish(client, "full", 5)
    wait_until(lambda: "no-permits" in reasons(described(cluster, "full")))
    assert reasons(described(cluster, "full")) == ["unacknowledged", "no-permits"]
    consumer.close()


def test_redeliveries_are_described(cluster: LocalCluster, client: pulsar.Client) -> None:
    consumer = client.subscribe(
        "again",
        "s",
        consumer_type=pulsar.ConsumerType.Shared,
        negative_ack_redelivery_delay_ms=10,
    )
    publish(client, "again", 2)
    first = consumer.receive(5000)
    consumer.negative_acknowledge(first)

    def counted() -> list[int]:
        return [each["count"] for each in described(cluster, "again")["redelivered"]]

    wait_until(lambda: counted() == [1])
    consumer.close()


def test_every_partition_is_described(cluster: LocalCluster) -> None:
    admin = Admin(cluster.admin_url)
    admin.create_topic("parted", partitions=2)
    admin.create_subscription("parted", "s")
    found = admin.describe_subscription("parted", "s")
    names = [f"persistent://public/default/parted-partition-{n}" for n in range(2)]
    assert list(found) == names


def consumer_of(**facts: Any) -> dict[str, Any]:
    return {"name": "c", "permits": 0, "unacked": 0, "active": True, "blocked": False, **facts}


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"consumers": [consumer_of(permits=5)]}, []),
        ({"consumers": [consumer_of(permits=5, active=False), consumer_of()]}, ["no-permits"]),
        (
            {"consumers": [consumer_of(permits=5, unacked=9, blocked=True)], "blocked": True},
            ["subscription-blocked", "consumer-blocked", "unacknowledged"],
        ),
        (
            {"consumers": [consumer_of(permits=5)], "draining": 2, "delayed": 3, "dead_letters": 1},
            ["keys-draining", "dead-letters", "delayed"],
        ),
    ],
)
def test_reasons_that_hold_entries_back_are_described(
    facts: dict[str, Any], expected: list[str]
) -> None:
    found = {
        "backlog": 9,
        "blocked": False,
        "draining": 0,
        "delayed": 0,
        "dead_letters": 0,
        **facts,
    }
    assert [holdup.reason for holdup in holdups(found)] == expected
