"""A cluster whose actors share hosts, on real Ray: its processes, and SIGKILLs of hosts."""

from __future__ import annotations

import os
import signal
import threading
import urllib.request
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pulsar
import pytest
from click.testing import CliRunner

from tests.ray.support import Publisher, RayNodes, Receiver, quiet_client, wait_until
from velaray.cli.app import main
from velaray.client.admin import Admin, Conflict, NotFound
from velaray.cluster import Cluster

WORKERS = 2
TOPICS = 8


@pytest.fixture(scope="module")
def cluster(nodes: RayNodes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    data = tmp_path_factory.mktemp("data")
    with Cluster.start(data, service_port=0, admin_port=0, placement="shared") as cluster:
        yield cluster


def processes(cluster: Cluster) -> dict[str, dict[str, Any]]:
    """The cluster's Ray actors, by name."""
    return {each["key"]: each for each in cluster.actors() if "actors" in each}


def test_actors_run_in_the_hosts_and_nowhere_else(cluster: Cluster) -> None:
    client = quiet_client(cluster.service_url)
    producers = [client.create_producer(f"placed-{number}") for number in range(TOPICS)]
    for producer in producers:
        producer.send(b"placed")
    hosts = processes(cluster)
    assert set(hosts) <= {"host/0", "host/1", "host/background"}
    running = [key for host in hosts.values() for key in host["actors"]]
    assert len(running) == len(set(running))
    assert sum(key.startswith("partition/") for key in running) >= TOPICS
    shares = [len(hosts[name]["actors"]) for name in ("host/0", "host/1")]
    assert min(shares) >= TOPICS // 4
    client.close()


@pytest.mark.parametrize("victims", [("host/0",), ("host/1",), ("host/0", "host/1", "placement")])
def test_nothing_is_lost_or_reordered_when_hosts_die(
    cluster: Cluster, victims: tuple[str, ...]
) -> None:
    topics = [f"killed-{'-'.join(victims).replace('/', '')}-{number}" for number in range(3)]
    client = quiet_client(cluster.service_url)
    receivers = [Receiver(client.subscribe(topic, "reader")) for topic in topics]
    publishers = [Publisher(cluster.service_url, topic) for topic in topics]
    for publisher in publishers:
        publisher.start()
    for receiver in receivers:
        receive(receiver, 20)
    pids = {each["key"]: each["pid"] for each in cluster.actors()}
    before = [len(publisher.acknowledged) for publisher in publishers]
    for name in victims:
        os.kill(pids[name], signal.SIGKILL)
    for receiver, publisher, count in zip(receivers, publishers, before, strict=True):
        receiver.receive_until(partial(published, publisher, count + 50))
    for receiver, publisher in zip(receivers, publishers, strict=True):
        acknowledged = publisher.stop()
        receive(receiver, len(acknowledged))
        assert receiver.numbers == acknowledged
    client.close()


def host_with(cluster: Cluster, topic: str) -> str:
    """The name of the host that runs the partition of a topic."""
    (name,) = (
        host["name"]
        for host in Admin(cluster.admin_url).hosts()
        if any(key.startswith(f"partition/public/default/{topic}/") for key in host["actors"])
    )
    return str(name)


def test_topics_move_between_hosts_while_they_are_used(cluster: Cluster) -> None:
    admin, topics = Admin(cluster.admin_url), [f"moved-{number}" for number in range(3)]
    client = quiet_client(cluster.service_url)
    receivers = [Receiver(client.subscribe(topic, "reader")) for topic in topics]
    publishers = [Publisher(cluster.service_url, topic) for topic in topics]
    for publisher in publishers:
        publisher.start()
    for _ in range(4):
        for topic, receiver, publisher in zip(topics, receivers, publishers, strict=True):
            before = host_with(cluster, topic)
            after = admin.hosts.move(topic)
            count = len(publisher.acknowledged)  # messages that follow start it in the new host
            assert after != before
            receiver.receive_until(partial(published, publisher, count + 30))
            assert host_with(cluster, topic) == after
    for receiver, publisher in zip(receivers, publishers, strict=True):
        acknowledged = publisher.stop()
        receive(receiver, len(acknowledged))
        assert receiver.numbers == acknowledged
    client.close()


def test_a_drained_host_is_empty_until_it_is_resumed(cluster: Cluster) -> None:
    admin, client = Admin(cluster.admin_url), quiet_client(cluster.service_url)
    for number in range(TOPICS):
        client.create_producer(f"drained-{number}").send(b"before")
    moved = admin.hosts.drain("host/0")
    assert moved >= TOPICS // 4
    for number in range(TOPICS):
        client.create_producer(f"drained-{number}").send(b"after")
    client.create_producer("drained-later").send(b"later")
    found = {host["name"]: host for host in admin.hosts()}
    assert found["host/0"]["actors"] == [] and found["host/0"]["drained"]
    assert found["host/1"]["memory"] > 10 << 20 and found["host/1"]["cpu_s"] > 0
    with pytest.raises(Conflict, match="no other host takes actors"):
        admin.hosts.drain("host/1")
    with pytest.raises(NotFound, match="there is no host 'host/9'"):
        admin.hosts.resume("host/9")
    admin.hosts.resume("host/0")
    client.create_producer("drained-no-more").send(b"last")
    assert host_with(cluster, "drained-no-more") == "host/0"
    with pytest.raises(NotFound, match="has no actor that runs"):
        admin.hosts.move("never-used")
    client.close()
    with urllib.request.urlopen(f"{cluster.admin_url}/metrics") as answer:
        text = answer.read().decode()
    assert 'velaray_host_actors{cluster="standalone",host="host/1"}' in text
    assert "velaray_host_loop_lag_seconds" in text


def test_hosts_are_restarted_one_after_the_other_while_they_are_used(cluster: Cluster) -> None:
    topics = [f"rolled-{number}" for number in range(TOPICS)]
    client = quiet_client(cluster.service_url)
    receivers = [Receiver(client.subscribe(topic, "reader")) for topic in topics]
    publishers = [Publisher(cluster.service_url, topic) for topic in topics]
    for publisher in publishers:
        publisher.start()
    for receiver in receivers:
        receive(receiver, 20)
    admin = Admin(cluster.admin_url)
    before = {host["name"]: host["pid"] for host in admin.hosts()}
    with pytest.raises(Conflict, match=r"host/0 has \d+ actors: drain it first"):
        admin.hosts.restart("host/0")
    done = CliRunner().invoke(main, ["hosts", "restart", "--admin-url", cluster.admin_url])
    assert done.exit_code == 0, done.output
    after = {host["name"]: host["pid"] for host in admin.hosts() if not host["drained"]}
    assert after.keys() == before.keys()
    assert not set(after.values()) & set(before.values())
    for receiver, publisher in zip(receivers, publishers, strict=True):
        receiver.receive_until(partial(published, publisher, len(publisher.acknowledged) + 20))
        acknowledged = publisher.stop()
        receive(receiver, len(acknowledged))
        assert receiver.numbers == acknowledged
    client.close()


def receive(receiver: Receiver, count: int) -> None:
    """Receive until there are ``count`` distinct messages."""
    receiver.receive_until(lambda: len(receiver.first_seen) >= count)


def published(publisher: Publisher, count: int) -> bool:
    """Whether ``count`` messages have a receipt."""
    return len(publisher.acknowledged) >= count


def test_a_restarted_host_activates_what_was_placed_in_it(cluster: Cluster) -> None:
    client = quiet_client(cluster.service_url)
    client.create_producer("placed-again").send(b"before")
    client.close()
    before = processes(cluster)["host/0"]
    os.kill(before["pid"], signal.SIGKILL)

    def is_back() -> bool:
        found = processes(cluster).get("host/0")
        return (
            found is not None
            and found["pid"] != before["pid"]
            and set(before["actors"]) <= set(found["actors"])
        )

    wait_until(is_back, "host/0 runs its actors again")


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_busy_topic_gets_a_host_of_its_own(nodes: RayNodes, data_dir: Path) -> None:
    start = partial(Cluster.start, data_dir, service_port=0, admin_port=0, name="auto")
    with start(placement="auto") as cluster:
        admin = Admin(cluster.admin_url)
        publisher = partial(Publisher, cluster.service_url, pause_s=0.0)
        others = [publisher(f"other-{number}") for number in range(4)]
        for other in others:
            other.start()
            wait_until(partial(published, other, 1), f"{other._topic} is published to")
            admin.hosts.move(other._topic, "host/0")
        client = quiet_client(cluster.service_url)
        admin.topics.create("lonely")
        producer = client.create_producer(
            "busy", batching_enabled=False, block_if_queue_full=True, send_timeout_millis=0
        )
        producer.send(b"first")
        admin.hosts.move("busy", "host/0")
        sent, stop = Counter[Any](), threading.Event()
        flood = threading.Thread(target=publish_until, args=(producer, stop, sent))
        flood.start()
        wait_until(lambda: is_alone(admin, "busy"), "the busy topic is alone in a host")
        admin.policies.set_on("persistent://public/default/lonely", "isolation", "dedicated")
        lonely = client.create_producer("lonely")
        lonely.send(b"1")
        wait_until(lambda: is_alone(admin, "lonely"), "the isolated topic is alone in a host")
        lonely.send(b"2")
        stop.set()
        flood.join()
        for other in others:
            other.stop()
        assert list(sent) == [pulsar.Result.Ok]
        assert admin.topics.stats("busy")["msgInCounter"] > 0
        reader = client.create_reader("busy", pulsar.MessageId.earliest)
        assert reader.read_next(60_000).data() == b"first"
        assert all(
            reader.read_next(60_000).data() == b"%d" % number for number in range(sent.total())
        )
        client.close()


def publish_until(
    producer: pulsar.Producer, stop: threading.Event, sent: Counter[pulsar.Result]
) -> None:
    """Publish numbers without waiting for receipts until ``stop`` is set; count the results."""
    number = 0
    while not stop.is_set():
        producer.send_async(b"%d" % number, lambda result, message_id: sent.update([result]))
        number += 1
    producer.flush()


def is_alone(admin: Admin, topic: str) -> bool:
    """Whether the topic is the only one of a host of its own."""
    return any(
        host["name"].startswith("host/own-")
        and {key.split("/")[3] for key in host["actors"]} == {topic}
        for host in admin.hosts()
    )
