"""What `velaray messages explain` reports, from a cluster in this process and from its journals."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pulsar
import pytest
from click.testing import CliRunner

from tests.support.local_cluster import LocalCluster
from tests.support.waiting import wait_until
from velaray.cli.app import main
from velaray.client.admin import Admin, Invalid, NotFound
from velaray.client.message_id import MessageId
from velaray.events.ids import ActorKind


def ours(found: Any) -> MessageId:
    return MessageId(found.partition(), found.ledger_id(), found.entry_id(), found.batch_index())


def publish(client: pulsar.Client, topic: str, count: int) -> list[MessageId]:
    producer = client.create_producer(topic, batching_enabled=False, producer_name=f"p-{topic}")
    ids = [ours(producer.send(b"%d" % number)) for number in range(count)]
    producer.close()
    return ids


def told(cluster: LocalCluster, topic: str, message: MessageId) -> list[tuple[str, str]]:
    found = Admin(cluster.admin_url).explain(topic, "s", message)
    times = [fact["at_ms"] for fact in found["facts"]]
    assert min(times) > 1_600_000_000_000
    rest = [fact for fact in found["facts"] if fact["what"] not in ("counted", "returned")]
    return [(fact["what"], fact["consumer"]) for fact in rest]


def now(cluster: LocalCluster, topic: str, message: MessageId) -> str:
    return str(Admin(cluster.admin_url).explain(topic, "s", message)["now"]["where"])


def test_a_redelivered_and_acknowledged_message_is_explained(
    cluster: LocalCluster, client: pulsar.Client
) -> None:
    consumer = client.subscribe(
        "again",
        "s",
        consumer_type=pulsar.ConsumerType.Shared,
        consumer_name="carol",
        negative_ack_redelivery_delay_ms=10,
    )
    first, second = publish(client, "again", 2)
    got = consumer.receive(5000)
    assert now(cluster, "again", first) == "delivered"
    consumer.negative_acknowledge(got)
    consumer.acknowledge(consumer.receive(5000))
    consumer.acknowledge(consumer.receive(5000))
    wait_until(lambda: now(cluster, "again", first) == "acknowledged")
    assert told(cluster, "again", first) == [
        ("published", ""),
        ("delivered", "carol"),
        ("asked-again", "carol"),
        ("delivered", "carol"),
        ("acknowledged", "carol"),
    ]
    wait_until(lambda: now(cluster, "again", second) == "acknowledged")
    assert [what for what, _ in told(cluster, "again", second)][-1] == "acknowledged"
    consumer.close()


def test_deliveries_under_a_lease_are_explained(
    cluster: LocalCluster, client: pulsar.Client
) -> None:
    consumer = client.subscribe("standing", "s", consumer_name="alone")
    ids = publish(client, "standing", 5)
    got = [consumer.receive(5000) for _ in range(5)]
    consumer.acknowledge_cumulative(got[3])
    wait_until(lambda: now(cluster, "standing", ids[3]) == "acknowledged")
    expected = [("published", ""), ("delivered", "alone"), ("acknowledged", "alone")]
    assert told(cluster, "standing", ids[1]) == expected
    assert told(cluster, "standing", ids[4]) == expected[:2]
    consumer.close()
    wait_until(lambda: ("released", "alone") in told(cluster, "standing", ids[4]))


def test_commands_are_distinguished_from_acknowledgements(
    cluster: LocalCluster, client: pulsar.Client
) -> None:
    admin = Admin(cluster.admin_url)
    admin.create_topic("moved")
    admin.create_subscription("moved", "s")
    first, second = publish(client, "moved", 2)
    assert now(cluster, "moved", first) == "waiting"
    admin.skip("moved", "s", 1)
    admin.seek("moved", "s", MessageId.earliest)
    admin.skip("moved", "s", None)
    admin.undo("moved", "s")
    whats = [what for what, _ in told(cluster, "moved", first)]
    assert whats == ["published", "passed-over", "unacknowledged", "passed-over", "unacknowledged"]
    whats = [what for what, _ in told(cluster, "moved", second)]
    assert whats == ["published", "passed-over", "unacknowledged"]


def test_a_delayed_message_is_explained(cluster: LocalCluster, client: pulsar.Client) -> None:
    consumer = client.subscribe("later", "s", consumer_type=pulsar.ConsumerType.Shared)
    producer = client.create_producer("later", batching_enabled=False)
    message = ours(producer.send(b"x", deliver_after=timedelta(hours=1)))
    wait_until(lambda: now(cluster, "later", message) == "delayed")
    (found,) = Admin(cluster.admin_url).describe_subscription("later", "s").values()
    assert [holdup["reason"] for holdup in found["holdups"]] == ["delayed"]
    producer.close()
    consumer.close()


def test_the_id_names_the_partition_of_a_partitioned_topic(
    cluster: LocalCluster, client: pulsar.Client
) -> None:
    admin = Admin(cluster.admin_url)
    admin.create_topic("parted", partitions=2)
    admin.create_subscription("parted", "s")
    (message,) = publish(client, "parted", 1)
    assert message.partition() in (0, 1)
    assert told(cluster, "parted", message) == [("published", "")]
    with pytest.raises(Invalid, match="name the partition"):
        admin.explain("parted", "s", MessageId(-1, message.ledger_id(), message.entry_id()))


def test_deliveries_held_during_a_crash_are_explained_without_guessing(
    cluster: LocalCluster, client: pulsar.Client
) -> None:
    consumer = client.subscribe(
        "crashed", "s", consumer_type=pulsar.ConsumerType.Shared, consumer_name="dave"
    )
    (message,) = publish(client, "crashed", 1)
    consumer.receive(5000)
    assert now(cluster, "crashed", message) == "delivered"  # and so it's written
    keys = [key for key in cluster.actor_system.actors if key.kind is ActorKind.SUBSCRIPTION]
    (key,) = [key for key in keys if key.topic == "crashed"]
    cluster.run(_kill(cluster, key))
    consumer.acknowledge(consumer.receive(20_000))
    wait_until(lambda: now(cluster, "crashed", message) == "acknowledged")
    assert told(cluster, "crashed", message) == [
        ("published", ""),
        ("delivered", "dave"),
        ("released", "dave"),
        ("delivered", "dave"),
        ("acknowledged", "dave"),
    ]
    consumer.close()


async def _kill(cluster: LocalCluster, key: Any) -> None:
    cluster.actor_system.kill(key)


def run_explain(cluster: LocalCluster, *words: str, code: int = 0) -> str:
    """The output of the command, once with the cluster and once with its disk; both agree."""
    where = ["--admin-url", cluster.admin_url]
    asked = CliRunner().invoke(main, ["messages", "explain", *words, *where])
    assert asked.exit_code == code, asked.output
    offline = [*words, "--data", str(Path(cluster.config.data_dir))]
    read = CliRunner().invoke(main, ["messages", "explain", *offline])
    assert read.exit_code == code, read.output
    lines = asked.output.splitlines()
    if code == 0:
        assert read.output.splitlines() == [line for line in lines if not line.startswith("now: ")]
    return "\n".join(lines)


def test_a_message_before_the_start_was_never_delivered(
    cluster: LocalCluster, client: pulsar.Client
) -> None:
    (message,) = publish(client, "before", 1)
    client.subscribe("before", "s").close()
    found = Admin(cluster.admin_url).explain("before", "s", message)
    assert [fact["what"] for fact in found["facts"]] == ["published", "before-the-start"]
    assert found["now"]["where"] == "before-the-start"
    text = run_explain(cluster, "before", "s", "earliest").splitlines()[-1]
    assert text == "now: it lies before the subscription's start: it is never delivered"


def test_what_is_done_with_a_message_is_told_by_its_history(
    cluster: LocalCluster, client: pulsar.Client
) -> None:
    admin = Admin(cluster.admin_url)
    admin.create_topic("done")
    admin.create_subscription("done", "s")
    first, second = publish(client, "done", 2)
    admin.skip("done", "s", 1)
    assert now(cluster, "done", first) == "passed-over"
    consumer = client.subscribe("done", "s")
    consumer.acknowledge(consumer.receive(5000))
    wait_until(lambda: now(cluster, "done", second) == "acknowledged")
    consumer.close()
    assert now(cluster, "done", first) == "passed-over"


def test_facts_are_in_the_order_of_their_times(
    cluster: LocalCluster, client: pulsar.Client
) -> None:
    consumer = client.subscribe("order", "s", consumer_type=pulsar.ConsumerType.Shared)
    ids = []
    for _ in range(5):
        ids += publish(client, "order", 1)
        consumer.acknowledge(consumer.receive(5000))
    wait_until(lambda: now(cluster, "order", ids[-1]) == "acknowledged")
    consumer.close()
    for message in ids:
        facts = Admin(cluster.admin_url).explain("order", "s", message)["facts"]
        times = [fact["at_ms"] for fact in facts]
        assert times == sorted(times)
        whats = [what for what, _ in told(cluster, "order", message)]
        assert whats == ["published", "delivered", "acknowledged"]


def test_an_id_may_be_written_as_python_prints_it(
    cluster: LocalCluster, client: pulsar.Client
) -> None:
    producer = client.create_producer("printed")
    sent = producer.send(b"x")
    producer.close()
    Admin(cluster.admin_url).create_subscription("printed", "s")
    for text in (str(sent), str(ours(sent)), repr(ours(sent))):
        assert "published by" in run_explain(cluster, "printed", "s", text)


def test_a_message_that_waits_for_the_consumer_of_its_key_is_explained(
    cluster: LocalCluster, client: pulsar.Client
) -> None:
    taken = client.subscribe(
        "keys", "s", pulsar.ConsumerType.KeyShared, consumer_name="kim", receiver_queue_size=1
    )
    quick = client.subscribe("keys", "s", pulsar.ConsumerType.KeyShared, consumer_name="lee")
    producer = client.create_producer("keys", batching_enabled=False)
    ids = [ours(producer.send(b"x", partition_key=f"k{number}")) for number in range(20)]
    full = "it waits for a consumer: kim has asked for no more messages: its queue is full"

    def waiting() -> list[Any]:
        each = [Admin(cluster.admin_url).explain("keys", "s", message) for message in ids]
        return [found for found in each if found["now"]["where"] == "waiting"]

    wait_until(waiting)
    for found in waiting():
        assert [fact["what"] for fact in found["facts"]] == ["published"]
        assert found["now"]["text"] == f"{full}, and no other consumer has its key"
    producer.close()
    quick.close()
    taken.close()


def test_the_first_and_the_last_message_are_explained_by_these_words(
    cluster: LocalCluster, client: pulsar.Client
) -> None:
    Admin(cluster.admin_url).create_topic("ends")
    Admin(cluster.admin_url).create_subscription("ends", "s")
    for word in ("earliest", "latest"):
        assert "ends holds no messages" in run_explain(cluster, "ends", "s", word, code=1)
    publish(client, "ends", 3)
    assert "published by p-ends, sequence 0" in run_explain(cluster, "ends", "s", "earliest")
    assert "published by p-ends, sequence 2" in run_explain(cluster, "ends", "s", "latest")
    Admin(cluster.admin_url).create_topic("ends-of-many", partitions=2)
    Admin(cluster.admin_url).create_subscription("ends-of-many", "s")
    with pytest.raises(Invalid, match="ends-of-many-partition-0 for the topic"):
        Admin(cluster.admin_url).explain("ends-of-many", "s", MessageId.latest)


def test_the_command_queries_the_cluster_or_reads_the_disk(
    cluster: LocalCluster, client: pulsar.Client
) -> None:
    consumer = client.subscribe("shown", "s", consumer_name="erin")
    (message,) = publish(client, "shown", 1)
    consumer.acknowledge(consumer.receive(5000))
    wait_until(lambda: now(cluster, "shown", message) == "acknowledged")
    text = f"{message.ledger_id()}:{message.entry_id()}"
    words = ["messages", "explain", "shown", "s", text]
    asked = CliRunner().invoke(
        main, [*words, "--admin-url", cluster.admin_url], catch_exceptions=False
    )
    lines = [line.split("  ", 1)[-1] for line in asked.output.splitlines()]
    assert lines[0] == "published by p-shown, sequence 0"
    assert re.fullmatch(r"delivered to erin at 127.0.0.1:\d+ \(known delivery 1\)", lines[1])
    assert lines[-2:] == ["acknowledged by erin", "now: it is acknowledged"]
    data = str(Path(cluster.config.data_dir))
    read = CliRunner().invoke(main, [*words, "--data", data, "-o", "json"], catch_exceptions=False)
    found = json.loads(read.stdout)
    assert found["now"] is None
    assert found["facts"][-1]["text"] == "acknowledged by erin"
    with pytest.raises(NotFound, match="no entry at position"):
        Admin(cluster.admin_url).explain("shown", "s", MessageId(-1, 7, 7, -1))
    consumer.close()
