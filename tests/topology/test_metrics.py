"""The Prometheus endpoint, against a cluster in this process."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import jwt
import pulsar
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.by_name import call_by_name
from tests.support.local_cluster import LocalCluster
from tests.support.waiting import wait_until
from velaray.admin.metrics import SLICE, LabelledMetrics, as_text, by_labels, gathered
from velaray.broker.partition.partition_metrics import PartitionMetrics
from velaray.broker.partition.subscription_channel import SubscriptionChannel
from velaray.client.admin import Admin
from velaray.client.message_id import MessageId
from velaray.events.ids import ActorKey, TopicName
from velaray.topology.config import AuthSettings
from velaray.topology.histograms import ClassRates, Durations
from velaray.topology.metrics import LATENCY_NAMES, METRICS, PARTS, WRITE_LATENCY, Rates, Sample

TOPIC = "persistent://public/default/measured"
OF_TOPIC = {"cluster": "standalone", "namespace": "public/default", "topic": TOPIC}


class Scrape:
    """What one scrape said."""

    def __init__(self, text: str) -> None:
        self.values: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels = frozenset((k, v) for k, v in sample.labels.items() if v)
                self.values[sample.name, labels] = sample.value

    def get(self, name: str, labels: dict[str, str]) -> float | None:
        return self.values.get((name, frozenset(labels.items())))


def scrape(cluster: LocalCluster, token: str = "") -> Scrape:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with urlopen(Request(f"{cluster.admin_url}/metrics", headers=headers), timeout=30) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=")
        return Scrape(answer.read().decode())


def test_traffic_backlog_and_clients_of_a_topic(
    cluster: LocalCluster, client: pulsar.Client
) -> None:
    began_ms = int(time.time() * 1000)
    consumer = client.subscribe(TOPIC, "s", consumer_type=pulsar.ConsumerType.Shared)
    producer = client.create_producer(TOPIC, batching_enabled=False)
    for number in range(10):
        producer.send(b"%03d" % number)
    for _ in range(3):
        consumer.acknowledge(consumer.receive(5000))
    held = [consumer.receive(5000) for _ in range(7)]
    assert len(held) == 7
    consumer.acknowledge(held.pop())

    def acked() -> bool:
        found = scrape(cluster).get(
            "pulsar_subscription_back_log", {**OF_TOPIC, "subscription": "s"}
        )
        return found == 6

    wait_until(acked)
    found = scrape(cluster)
    stored = found.get("pulsar_storage_size", OF_TOPIC) or 0
    of_s = {**OF_TOPIC, "subscription": "s"}
    assert found.get("pulsar_in_messages_total", OF_TOPIC) == 10
    assert found.get("velaray_topic_entries", OF_TOPIC) == 10
    assert (found.get("pulsar_in_bytes_total", OF_TOPIC) or 0) > 30
    assert found.get("pulsar_out_messages_total", of_s) == 10
    in_bytes = found.get("pulsar_in_bytes_total", OF_TOPIC)
    assert (found.get("pulsar_out_bytes_total", of_s) or 0) >= (in_bytes or 0)
    assert found.get("pulsar_producers_count", OF_TOPIC) == 1
    assert found.get("pulsar_consumers_count", OF_TOPIC) == 1
    assert found.get("pulsar_subscriptions_count", OF_TOPIC) == 1
    assert found.get("pulsar_subscription_consumers_count", of_s) == 1
    assert found.get("pulsar_subscription_unacked_messages", of_s) == 6
    assert found.get("pulsar_msg_backlog", OF_TOPIC) == 6
    assert found.get("pulsar_subscription_msg_rate_redeliver", of_s) == 0
    assert (found.get("pulsar_subscription_msg_rate_out", of_s) or 0) > 0
    assert (found.get("pulsar_subscription_msg_throughput_out", of_s) or 0) > 0
    assert found.get("pulsar_storage_offloaded_size", OF_TOPIC) == 0
    assert 0 < (found.get("pulsar_storage_backlog_size", OF_TOPIC) or 0) <= stored
    assert (found.get("pulsar_rate_in", OF_TOPIC) or 0) > 0
    assert stored > 30
    assert found.get("pulsar_storage_logical_size", OF_TOPIC) == stored
    assert found.get("pulsar_subscription_back_log_no_delayed", of_s) == 6
    assert found.get("pulsar_subscription_total_msg_expired", of_s) == 0
    for what in ("consumed", "acked", "consumed_flow"):
        at_ms = found.get(f"pulsar_subscription_last_{what}_timestamp", of_s) or 0
        assert began_ms <= at_ms <= time.time() * 1000
    mine = {"cluster": "standalone", "namespace": "public/default"}
    assert found.get("pulsar_topics_count", mine) == 1
    per_minute = [found.get(name, OF_TOPIC) or 0 for name in LATENCY_NAMES]
    assert sum(per_minute) > 0
    written = found.get(f"{WRITE_LATENCY}_count", OF_TOPIC) or 0
    assert written >= 10
    assert found.get(f"{WRITE_LATENCY}_bucket", {**OF_TOPIC, "le": "+Inf"}) == written
    assert (found.get(f"{WRITE_LATENCY}_sum", OF_TOPIC) or 0) > 0
    actor = {**OF_TOPIC, "kind": "partition"}
    assert (found.get("velaray_journal_commits_total", actor) or 0) > 0
    assert (found.get("velaray_recovery_seconds", actor) or 0) >= 0
    producer.close()
    consumer.close()


def test_expired_and_delayed_entries_of_a_subscription(
    cluster: LocalCluster, client: pulsar.Client
) -> None:
    topic = TOPIC + "-expired"
    labels = {**OF_TOPIC, "topic": topic, "subscription": "s"}
    consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    producer = client.create_producer(topic, batching_enabled=False)
    for _ in range(3):
        producer.send(b"x")
    Admin(cluster.admin_url).subscriptions.expire(topic, "s", 0)
    producer.send(b"later", deliver_after=timedelta(hours=1))

    def counted() -> bool:
        found = scrape(cluster)
        return found.get("pulsar_subscription_total_msg_expired", labels) == 3 and (
            found.get("pulsar_subscription_back_log", labels),
            found.get("pulsar_subscription_back_log_no_delayed", labels),
        ) == (1, 0)

    wait_until(counted)
    consumer.close()
    producer.close()


def test_counters_of_a_subscription_continue_without_consumers(
    cluster: LocalCluster, client: pulsar.Client
) -> None:
    topic = TOPIC + "-alone"
    labels = {**OF_TOPIC, "topic": topic, "subscription": "s"}
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, batching_enabled=False)
    producer.send(b"1")
    consumer.acknowledge(consumer.receive(5000))
    wait_until(lambda: scrape(cluster).get("pulsar_subscription_back_log", labels) == 0)
    consumer.close()
    wait_until(lambda: scrape(cluster).get("pulsar_subscription_consumers_count", labels) == 0)
    producer.send(b"2")
    found = scrape(cluster)
    assert found.get("pulsar_subscription_back_log", labels) == 1
    assert found.get("pulsar_out_messages_total", labels) == 1
    producer.close()


def test_deliveries_to_a_consumer_that_closes_during_a_scrape_count_once(
    cluster: LocalCluster, client: pulsar.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = TOPIC + "-closing"
    labels = {**OF_TOPIC, "topic": topic, "subscription": "s"}
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, batching_enabled=False)
    for _ in range(3):
        producer.send(b"x")
        consumer.acknowledge(consumer.receive(5000))
    ask, asked = PartitionMetrics._ask, threading.Event()

    async def ask_until_closed(self: PartitionMetrics, channel: SubscriptionChannel) -> None:
        await ask(self, channel)
        asked.set()
        while channel.name in self._channels:
            await asyncio.sleep(0.01)

    monkeypatch.setattr(PartitionMetrics, "_ask", ask_until_closed)
    with ThreadPoolExecutor(1) as pool:
        scraped = pool.submit(scrape, cluster)
        assert asked.wait(30)
        consumer.close()
        found = scraped.result(30)
    assert found.get("pulsar_out_messages_total", labels) == 3
    producer.close()


def test_the_backlog_of_a_never_connected_subscription_is_read_from_disk(
    cluster: LocalCluster, client: pulsar.Client
) -> None:
    topic = TOPIC + "-unread"
    labels = {**OF_TOPIC, "topic": topic, "subscription": "s"}
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, batching_enabled=False)
    for _ in range(3):
        producer.send(b"x")
    consumer.acknowledge(consumer.receive(5000))
    wait_until(lambda: scrape(cluster).get("pulsar_subscription_back_log", labels) == 2)
    consumer.close()
    producer.close()
    Admin(cluster.admin_url).create_subscription(topic, "never", MessageId.earliest)
    Admin(cluster.admin_url).unload(topic)
    client.create_producer(topic).close()  # the partition starts again
    found = scrape(cluster)
    assert found.get("pulsar_subscription_back_log", labels) == 2
    never = {**labels, "subscription": "never"}
    assert found.get("pulsar_subscription_back_log", never) == 3
    running = [key for key in cluster.actor_system.actors if key.subscription == "never"]
    assert not running


def test_a_scrape_activates_no_actor(cluster: LocalCluster, client: pulsar.Client) -> None:
    topic = TOPIC + "-asleep"
    producer = client.create_producer(topic)
    producer.close()
    key = ActorKey.of_partition(TopicName.parse(topic), incarnation(cluster, topic))
    cluster.run(cluster.actor_system.dismiss(key))
    labels = {**OF_TOPIC, "topic": topic}
    assert scrape(cluster).get("pulsar_in_messages_total", labels) is None
    assert key not in cluster.actor_system.actors


def test_a_scrape_counts_a_hanging_actor_without_waiting_for_it(
    cluster: LocalCluster, client: pulsar.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = TOPIC + "-hanging"
    producer = client.create_producer(topic)
    key = ActorKey.of_partition(TopicName.parse(topic), incarnation(cluster, topic))

    async def hang(method: str, args: Any) -> Any:
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(cluster.actor_system.actors[key], "call", hang)
    monkeypatch.setattr("velaray.admin.metrics.ACTOR_S", 0.05)
    found = scrape(cluster)
    assert found.get("velaray_actors_silent", {"cluster": "standalone"}) == 1
    assert found.get("velaray_actors", {"cluster": "standalone", "kind": "catalog"}) == 1
    monkeypatch.undo()
    producer.close()


def test_with_authentication_metrics_need_a_token(tmp_path: Path) -> None:
    secret = b"a secret that is long enough to be one"
    with LocalCluster(tmp_path, auth=AuthSettings(secret=secret)) as cluster:
        with pytest.raises(OSError, match="401"):
            scrape(cluster)
        found = scrape(cluster, jwt.encode({"sub": "prometheus"}, secret, "HS256"))
        assert found.get("velaray_actors", {"cluster": "standalone", "kind": "catalog"}) == 1


def test_every_metric_has_a_text_form() -> None:
    histograms = {*PARTS.values()}
    samples = [
        Sample(name, {"cluster": 'a"b\\c\n'}, 1) for name in METRICS if name not in histograms
    ]
    found = Scrape(as_text(samples).decode())
    assert {name for name, _ in found.values} == METRICS.keys() - histograms
    assert {labels for _, labels in found.values} == {frozenset({("cluster", 'a"b\\c\n')})}


def test_durations_form_a_histogram_and_rates_of_pulsars_classes() -> None:
    took = Durations((0.001, 0.002, 0.005))
    for seconds in (0.0005, 0.001, 0.0015, 0.004, 1.0):
        took.add(seconds)
    samples = took.samples(WRITE_LATENCY, {"cluster": "c"})
    text = as_text(samples).decode()
    assert f"# TYPE {WRITE_LATENCY} histogram\n" in text
    found = Scrape(text)
    buckets = {"0.001": 2, "0.002": 3, "0.005": 4, "+Inf": 5}
    for end, count in buckets.items():
        assert found.get(f"{WRITE_LATENCY}_bucket", {"cluster": "c", "le": end}) == count
    assert found.get(f"{WRITE_LATENCY}_count", {"cluster": "c"}) == 5
    assert found.get(f"{WRITE_LATENCY}_sum", {"cluster": "c"}) == pytest.approx(1.007)
    rates = ClassRates(("le_1", "le_5", "overflow"), (1, 5), Rates(100.0))
    classes = rates.samples(110.0, {}, took.steps_s, took.counts)
    assert [each.value for each in classes] == [12, 12, 6]  # per minute


def test_an_actor_that_has_not_started_reports_no_metrics() -> None:
    found = gathered("c", {ActorKey.catalog(): None})
    assert Sample("velaray_actors_silent", {"cluster": "c"}, 1) in found


def test_other_tasks_run_while_the_metrics_of_many_actors_are_gathered() -> None:
    samples = [Sample("pulsar_rate_in", {"topic": f"t{n % 700}"}, n) for n in range(10 * SLICE)]
    samples += [Sample("pulsar_rate_out", sample.labels, 0) for sample in samples[:10]]
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def scenario() -> list[LabelledMetrics]:
        counting = asyncio.ensure_future(count())
        rows = await by_labels(samples, {"pulsar_rate_in"})
        counting.cancel()
        return rows

    rows = asyncio.run(scenario())
    assert len(rows) == 700
    assert {name for row in rows for name in row["metrics"]} == {"pulsar_rate_in"}
    assert turns >= 10


def test_rates_are_means_over_windows() -> None:
    rates = Rates(100.0)
    assert rates.at(100.0, "in", 0) == 0
    assert rates.at(102.0, "in", 10) == 5
    assert rates.at(110.0, "in", 30) == 3
    assert rates.at(115.0, "in", 1000) == 3
    assert rates.at(120.0, "in", 1030) == 100
    rates.keep_only(set())
    assert rates.at(200.0, "in", 1000) == 10


def incarnation(cluster: LocalCluster, topic: str) -> int:
    found = cluster.run(
        call_by_name(cluster.actor_system, ActorKey.catalog(), "topic", {"topic": topic})
    )
    return int(found["incarnation"])
