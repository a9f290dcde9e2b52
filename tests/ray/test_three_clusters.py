"""Three clusters, each with a Ray and processes of its own, that replicate to each other; Pulsar's
own client everywhere."""

from __future__ import annotations

import itertools
import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pulsar
import pytest
from pulsar.schema import AvroSchema, Integer, Record

import velaray
from tests.ray.support import quiet_client, wait_until
from tests.topology.replicating import PATIENCE_MS, Official, nothing_more, received
from velaray.client.admin import NotFound

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NAMES = ("a", "b", "c")
NAMESPACE = "geo/all"
FOLLOWED: dict[str, Any] = {
    "consumer_type": pulsar.ConsumerType.Shared,
    "replicate_subscription_state_enabled": True,
}
_numbers = itertools.count(1)

pytestmark = pytest.mark.timeout(300)


class Number(Record):  # type: ignore[misc]
    value = Integer()


class Site(Official):
    """One of the clusters, and the official client of it."""

    def __init__(self, hosted: Any) -> None:
        self.hosted = hosted
        self.name: str = hosted.name
        self.admin: velaray.Admin = hosted.admin
        self.client = quiet_client(hosted.service_url)

    def kill(self, prefix: str, part: str) -> None:
        """SIGKILL such an actor, which runs or is about to."""
        wait_until(lambda: self.hosted.kill(prefix, part), f"a running {prefix} in {self.name}")


@pytest.fixture(scope="module")
def sites() -> Iterator[list[Site]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXAMPLES)
        from hosted_clusters import hosted
    with (
        tempfile.TemporaryDirectory(prefix="vr-") as folder,
        hosted(Path(folder), folder, NAMES) as running,
    ):
        found = [Site(each) for each in running]
        for site in found:
            site.admin.create_tenant("geo")
            site.admin.create_namespace(NAMESPACE)
            site.admin.set_policy(NAMESPACE, "replication", list(NAMES))
        yield found
        for site in found:
            site.client.close()


@pytest.fixture
def topic() -> str:
    return f"persistent://{NAMESPACE}/t{next(_numbers)}"


@pytest.mark.long
def test_messages_of_each_cluster_are_everywhere_once_over_a_kill(
    sites: list[Site], topic: str
) -> None:
    for site in sites:
        site.subscribe(topic, "all").close()  # so that all is kept
        site.publish(topic, [f"{site.name}{n}".encode() for n in range(20)])
    sites[0].kill("partition/", topic.split("/")[-1])
    for site in sites:
        site.publish(topic, [f"{site.name}{n}".encode() for n in range(20, 40)])
    for site in sites:
        reader = site.subscribe(topic, "all")
        found = received(reader, 40 * len(sites))
        for name in NAMES:
            own = [each for each in found if each.startswith(name.encode())]
            assert own == [f"{name}{n}".encode() for n in range(40)]
        nothing_more(reader)


@pytest.mark.long
def test_everything_is_everywhere_once_after_any_kill(sites: list[Site], topic: str) -> None:
    for site in sites:
        site.subscribe(topic, "all").close()  # so that all is kept
    count = 300
    for round_ in range(3):
        for site in sites:
            payloads = [f"{site.name}{round_ * count + n}".encode() for n in range(count)]
            site.publish(topic, payloads, batching_max_messages=7)
        for prefix, site in zip(("subscription/", "partition/"), sites[round_:], strict=False):
            site.kill(prefix, topic.split("/")[-1])
    for site in sites:
        reader = site.subscribe(topic, "all")
        found = received(reader, 9 * count)
        for name in NAMES:
            own = [each for each in found if each.startswith(name.encode())]
            assert own == [f"{name}{n}".encode() for n in range(3 * count)]
        nothing_more(reader)


@pytest.mark.long
def test_a_message_is_replicated_only_to_its_listed_clusters(sites: list[Site], topic: str) -> None:
    a, b, c = sites
    readers = [each.subscribe(topic, "all") for each in (b, c)]
    producer = a.client.create_producer(topic)
    producer.send(b"there", replication_clusters=["b"])
    producer.send(b"here", disable_replication=True)
    producer.send(b"everywhere", partition_key="k", properties={"p": "v"}, event_timestamp=7)
    assert received(readers[0], 2) == [b"there", b"everywhere"]
    message = readers[1].receive(PATIENCE_MS)
    assert message.data() == b"everywhere"
    assert message.partition_key() == "k"
    assert message.properties()["p"] == "v"
    assert message.event_timestamp() == 7


@pytest.mark.long
def test_schemas_are_replicated(sites: list[Site], topic: str) -> None:
    producer = sites[0].client.create_producer(topic, schema=AvroSchema(Number))
    for number in range(10):
        producer.send(Number(value=number))
    for site in sites[1:]:  # a consumer with a schema needs one on the topic
        received(site.subscribe(topic, "bytes"), 10)
        reader = site.subscribe(topic, "s", schema=AvroSchema(Number))
        assert [reader.receive(PATIENCE_MS).value().value for _ in range(10)] == [*range(10)]


@pytest.mark.long
def test_a_subscription_with_gaps_continues_in_another_cluster(
    sites: list[Site], topic: str
) -> None:
    a, b, c = sites
    consumer = a.subscribe(topic, "moves", **FOLLOWED)
    a.publish(topic, [b"%d" % n for n in range(200)], batching_enabled=False)
    found = [consumer.receive(PATIENCE_MS) for _ in range(200)]
    for message in found[::2]:
        consumer.acknowledge(message)
    wait_until(lambda: _unacked(a, topic) == 100, "all that is acknowledged is stored")
    a.kill("subscription/", topic.split("/")[-1] + "/-1/")
    wait_until(lambda: _unacked(b, topic) == _unacked(c, topic) == 100, "both know of it")
    consumer.close()
    moved = b.subscribe(topic, "moves", **FOLLOWED)
    assert sorted(received(moved, 100), key=int) == [b"%d" % n for n in range(1, 200, 2)]
    nothing_more(moved)
    wait_until(lambda: _unacked(c, topic) == 0, "c knows what b has")


def _unacked(site: Site, topic: str) -> int:
    """How many messages the subscription would get there; -1 while it or its topic isn't there."""
    with suppress(NotFound):
        found = site.admin.stats(topic)["subscriptions"]
        return int(found["moves"]["msgBacklog"]) if "moves" in found else -1
    return -1


@pytest.mark.long
def test_transactions_arrive_completely(sites: list[Site], topic: str) -> None:
    a, b, _ = sites
    topics = [f"{topic}-{n}" for n in range(2)]
    with velaray.Client(a.hosted.service_url) as client:
        producers = [client.create_producer(each) for each in topics]
        aborted = client.new_transaction()
        for producer in producers:
            producer.send(b"never", txn=aborted)
        aborted.abort()
        for number in range(5):
            with client.transaction() as transaction:
                for producer in producers:
                    producer.send(b"%d" % number, txn=transaction)
    for each in topics:
        reader = b.subscribe(each, "all")
        assert received(reader, 5) == [b"%d" % n for n in range(5)]
        nothing_more(reader)


@pytest.mark.long
def test_a_lost_cluster_delays_no_other(sites: list[Site], topic: str) -> None:
    """The last one here: it isn't there any more afterwards."""
    a, b, c = sites
    consumer = a.subscribe(topic, "moves", **FOLLOWED)
    a.publish(topic, [b"0"])
    assert received(c.subscribe(topic, "all"), 1) == [b"0"]
    os.kill(c.hosted._process.pid, signal.SIGKILL)  # its Ray ends with it
    c.hosted._process.wait()
    wait_until(lambda: _row(a, topic, "c")["reason"], "c is missed")
    a.publish(topic, [b"%d" % n for n in range(1, 100)], batching_enabled=False)
    found = [consumer.receive(PATIENCE_MS) for _ in range(100)]
    for message in found[::2]:
        consumer.acknowledge(message)
    wait_until(lambda: _unacked(b, topic) == 50, "b knows of it")
    moved = b.subscribe(topic, "moves", **FOLLOWED)
    assert sorted(received(moved, 50), key=int) == [b"%d" % n for n in range(1, 100, 2)]
    wait_until(lambda: _row(a, topic, "b")["backlog"] == 0, "nothing waits for b")
    assert _row(a, topic, "c")["backlog"] == 99


def _row(site: Site, topic: str, remote: str) -> dict[str, Any]:
    """What a replicator is said to do."""
    return next(row for row in site.admin.replication(topic) if row["cluster"] == remote)
