"""Statistics of topics over HTTP: rates, counters, clients and times, in Pulsar's words."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import pulsar
import pytest

from tests.official.raw import RawClient
from tests.support.local_cluster import LocalCluster
from tests.support.waiting import wait_until
from tests.topology.test_admin_api import TOPICS, V2, Http
from velaray.client.admin import Admin
from velaray.wire import pulsar_pb2 as pb

Stats = dict[str, Any]
COUNT, SIZE = 20, 100


@pytest.fixture(scope="module")
def http(cluster: LocalCluster) -> Http:
    return Http(cluster.admin_url)


def traffic(client: pulsar.Client, topic: str) -> tuple[pulsar.Producer, pulsar.Consumer]:
    """Publish and receive messages, and acknowledge all but the last one."""
    consumer = client.subscribe(
        topic, "s", consumer_type=pulsar.ConsumerType.Shared, properties={"zone": "a"}
    )
    producer = client.create_producer(topic, batching_enabled=False, properties={"app": "x"})
    for _ in range(COUNT):
        producer.send(bytes(SIZE))
    for _ in range(COUNT - 1):
        consumer.acknowledge(consumer.receive(10_000))
    consumer.receive(10_000)
    return producer, consumer


def settled(http: Http, path: str) -> Stats:
    """Once the last acknowledgement has arrived."""

    def one_is_left() -> Stats | None:
        found: Stats = http("GET", path).body
        return found if found["subscriptions"]["s"]["msgBacklog"] == 1 else None

    found: Stats = wait_until(one_is_left)
    return found


def check_client(found: Stats, began_s: float) -> None:
    """Where a client is connected from, since when, and as what it presents itself."""
    host, port = found["address"].removeprefix("/").rsplit(":", 1)
    assert (host, found["address"][0]) == ("127.0.0.1", "/")
    assert int(port) > 0
    assert found["clientVersion"].startswith("Pulsar-CPP")
    since = datetime.fromisoformat(found["connectedSince"])
    assert since.tzinfo == UTC
    assert began_s - 1 <= since.timestamp() <= time.time() + 1


def test_rates_counters_clients_and_times(
    cluster: LocalCluster, client: pulsar.Client, http: Http
) -> None:
    began = time.time()
    clients = traffic(client, "counted")
    found = settled(http, f"{TOPICS}/counted/stats")
    assert found["msgInCounter"] == found["msgOutCounter"] == COUNT
    assert found["bytesInCounter"] > COUNT * SIZE
    assert found["msgRateIn"] > 0 < found["msgThroughputIn"]
    assert found["msgRateOut"] > 0 < found["msgThroughputOut"]
    assert SIZE < found["averageMsgSize"] < 2 * SIZE
    assert began - 1 < found["lastPublishTimeStamp"] / 1000 <= time.time() + 1
    assert (found["deduplicationStatus"], found["waitingPublishers"]) == ("Enabled", 0)

    (publisher,) = found["publishers"]
    assert publisher["msgRateIn"] > 0 < publisher["msgThroughputIn"]
    assert SIZE < publisher["averageMsgSize"] < 2 * SIZE
    assert (publisher["accessMode"], publisher["metadata"]) == ("Shared", {"app": "x"})
    check_client(publisher, began)

    subscription = found["subscriptions"]["s"]
    (consumer,) = subscription["consumers"]
    for part in (subscription, consumer):
        assert part["msgOutCounter"] == COUNT
        assert part["bytesOutCounter"] > COUNT * SIZE
        assert part["msgRateOut"] > 0 < part["msgThroughputOut"]
        assert part["msgRateRedeliver"] == 0
        assert part["unackedMessages"] == 1
        for field in ("lastConsumedTimestamp", "lastAckedTimestamp", "lastConsumedFlowTimestamp"):
            assert began - 1 < part[field] / 1000 <= time.time() + 1
    assert consumer["metadata"] == {"zone": "a"}
    assert consumer["availablePermits"] > 0
    check_client(consumer, began)
    for each in clients:
        each.close()


def test_counters_include_consumers_that_left(client: pulsar.Client, http: Http) -> None:
    for each in traffic(client, "left"):
        each.close()
    found = settled(http, f"{TOPICS}/left/stats")
    subscription = found["subscriptions"]["s"]
    assert (found["publishers"], subscription["consumers"]) == ([], [])
    assert found["msgOutCounter"] == subscription["msgOutCounter"] == COUNT
    assert subscription["lastAckedTimestamp"] > 0 < subscription["lastConsumedTimestamp"]
    assert subscription["msgRateOut"] == 0


def test_partitions_are_summed(client: pulsar.Client, http: Http) -> None:
    assert http("PUT", f"{TOPICS}/parts/partitions", 2).status == 204
    clients = traffic(client, "parts")
    found = settled(http, f"{TOPICS}/parts/partitioned-stats")
    assert found["msgInCounter"] == found["msgOutCounter"] == COUNT
    assert found["msgRateIn"] > 0 < found["msgRateOut"]
    assert SIZE < found["averageMsgSize"] < 2 * SIZE
    subscription = found["subscriptions"]["s"]
    assert subscription["msgOutCounter"] == COUNT
    assert subscription["lastAckedTimestamp"] > 0
    assert sum(each["msgInCounter"] for each in found["partitions"].values()) == COUNT
    assert len(found["publishers"]) == len(subscription["consumers"]) == 2
    for each in clients:
        each.close()


def test_publishers_and_consumers_can_be_left_out(client: pulsar.Client, http: Http) -> None:
    assert http("PUT", f"{TOPICS}/parts-out/partitions", 1).status == 204
    clients = traffic(client, "parts-out")
    for path in ("parts-out/partitioned-stats", "parts-out-partition-0/stats"):

        def ask(query: str, path: str = path) -> tuple[int, int]:
            found = http("GET", f"{TOPICS}/{path}?{query}").body
            for one in (found, *found.get("partitions", {}).values()):
                shown = len(one["publishers"]), len(one["subscriptions"]["s"]["consumers"])
            assert found["msgInCounter"] == COUNT
            return shown

        assert ask("excludePublishers=false") == (1, 1)
        assert ask("excludePublishers=true") == (0, 1)
        assert ask("excludeConsumers=true") == (1, 0)
        assert ask("excludePublishers=true&excludeConsumers=true") == (0, 0)
        assert http("GET", f"{TOPICS}/{path}?excludeConsumers=maybe").status == 400
    for each in clients:
        each.close()


def test_short_names_of_topics_equal_full_names(cluster: LocalCluster, http: Http) -> None:
    admin, whole = Admin(cluster.admin_url), "persistent://public/default/flights"
    admin.create_topic("flights")
    for name in ("flights", "public/default/flights", whole):
        assert admin.stats(name)["msgInCounter"] == 0
        admin.set_policy_of(name, "messageTTL", 60)
        assert admin.policies_of(whole) == {"messageTTL": 60}
        admin.remove_policy_of(name, "messageTTL")
        assert admin.policies_of(whole) == {}
        assert admin.replication(name) == []
    assert http("GET", f"{V2}/namespaces/public/default/topics").body.count(whole) == 1

    async def on_the_wire() -> None:
        client = await RawClient.connect("127.0.0.1", cluster.proxy.port)
        client.send(pb.CommandPartitionedTopicMetadata(topic="flights", request_id=1))
        found = await client.next(pb.CommandPartitionedTopicMetadataResponse)
        assert (found.response, found.partitions) == (found.Success, 0)
        client.send(pb.CommandLookupTopic(topic="flights", request_id=2))
        place = await client.next(pb.CommandLookupTopicResponse)
        client.close()
        port = int(place.brokerServiceUrl.rsplit(":", 1)[1])
        client = await RawClient.connect("127.0.0.1", port)
        await client.subscribe("flights", subscription="s")
        await client.produce("flights", [b"x"])
        client.close()

    cluster.run(on_the_wire())
    assert admin.stats(whole)["msgInCounter"] == 1
