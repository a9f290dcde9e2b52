"""The client while actors die, topics grow and connections break."""

import itertools
import threading
import time

import jwt
import pytest

import velaray
import velaray.client.core
from tests.support.local_cluster import LocalCluster
from velaray import ConsumerType, InitialPosition
from velaray.client.pool import ConnectionPool
from velaray.topology.config import AuthSettings

EARLIEST = {"initial_position": InitialPosition.Earliest}
WAIT = 15_000


def kill_everything(cluster):
    """End every actor as SIGKILL would; returns how many."""
    keys = list(cluster.actor_system.actors)
    for key in keys:
        cluster.kill(key)
    return len(keys)


class Killer:
    """Kills every actor of the cluster again and again until stopped.

    ``progress`` counts what succeeded. After `PATIENCE` kills in a row without any progress, the
    next kill waits for some: on a slow machine the actors would never be ready in time.
    """

    PATIENCE = 3

    def __init__(self, cluster, pause=0.15, progress=None):
        self.kills = 0
        self._cluster = cluster
        self._pause = pause
        self._progress = progress or itertools.count(1).__next__
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self):
        before, idle = 0, 0
        while not self._stopped.wait(self._pause):
            now = self._progress()
            idle = idle + 1 if now == before else 0
            if idle < self.PATIENCE:
                self.kills += kill_everything(self._cluster)
            before = now

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *exc):
        self._stopped.set()
        self._thread.join()


@pytest.mark.parametrize("batching", [True, False])
def test_nothing_is_lost_duplicated_or_reordered_while_actors_die(
    client, cluster, catalog, topic, batching
):
    catalog.deduplicated(topic)
    outcomes = []
    producer = client.create_producer(
        topic,
        producer_name="steady",
        batching_enabled=batching,
        batching_max_messages=20,
        block_if_queue_full=True,
        max_pending_messages=200,
    )
    total = 0
    with Killer(cluster, progress=lambda: len(outcomes)) as killer:
        while total < 2000 or killer.kills < 10:
            producer.send_async(b"%d" % total, lambda result, message_id: outcomes.append(result))
            total += 1
        producer.flush()
    assert outcomes == [velaray.Result.Ok] * total
    producer.close()
    with client.subscribe(topic, "s", **EARLIEST) as consumer:
        assert [int(consumer.receive(WAIT).data()) for _ in range(total)] == list(range(total))


def test_all_messages_arrive_and_confirmed_acks_are_final_while_actors_die(client, cluster, topic):
    with client.create_producer(topic, batching_enabled=True, batching_max_messages=30) as producer:
        for number in range(400):
            producer.send_async(b"%d" % number)
    received, final, again = set(), set(), set()
    options = {"batch_index_ack_enabled": True, "receiver_queue_size": 50, **EARLIEST}
    with client.subscribe(topic, "s", ConsumerType.Shared, **options) as consumer:
        turn = 0
        while len(received) < 400:
            message = consumer.receive(WAIT)
            number = int(message.data())
            received.add(number)
            again |= {number} & final
            if number % 10 == 0:
                consumer.acknowledge(message, receipt=True)
                final.add(number)
            else:
                consumer.acknowledge(message)
            turn += 1
            if turn % 45 == 0:
                kill_everything(cluster)
        (part,) = consumer._base.topics.parts.values()
        assert part.permits.generation > 5  # the kills were felt
    assert again == set()


def test_seeks_and_requests_succeed_after_all_actors_died(client, cluster, topic):
    with client.create_producer(topic) as producer:
        ids = [producer.send(b"%d" % number) for number in range(20)]
        with client.subscribe(topic, "s", **EARLIEST) as consumer:
            for number in (5, 0, 15, 3):
                kill_everything(cluster)
                consumer.seek(ids[number])
                assert int(consumer.receive(WAIT).data()) == number + 1
                kill_everything(cluster)
                assert consumer.get_last_message_id() == ids[-1]
                kill_everything(cluster)
                ids.append(producer.send(b"more"))


def test_new_partitions_are_found(client, catalog, topic, monkeypatch):
    monkeypatch.setattr(velaray.client.core, "PARTITIONS_UPDATE_SECONDS", 0.1)
    catalog.partitioned(topic, 1)
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "s", **EARLIEST)
    catalog.grow(topic, 3)
    seen, deadline = set(), time.monotonic() + 20
    while seen != {0, 1, 2} and time.monotonic() < deadline:
        seen.add(producer.send(b"x").partition())
    assert seen == {0, 1, 2}
    seen = set()
    while seen != {0, 1, 2}:
        seen.add(consumer.receive(WAIT).message_id().partition())


def test_a_tunnel_through_the_service_url_suffices(tmp_path, monkeypatch):
    opened = []
    connect = ConnectionPool._connect

    async def watched(self, address, proxy_to):
        opened.append((address, proxy_to))
        return await connect(self, address, proxy_to)

    monkeypatch.setattr(ConnectionPool, "_connect", watched)
    with LocalCluster(tmp_path, tunnel=True) as cluster:
        service = cluster.service_url.removeprefix("pulsar://")
        with velaray.Client(cluster.service_url) as client:
            consumer = client.subscribe("through", "s")
            with client.create_producer("through") as producer:
                producer.send(b"x")
            assert consumer.receive(WAIT).data() == b"x"
    assert {address for address, _ in opened} == {service}
    assert any(proxy_to is not None for _, proxy_to in opened)


def test_a_tunnel_is_looked_up_again_after_a_restart_of_the_proxy(tmp_path, monkeypatch):
    forgotten = []
    connect = ConnectionPool._connect

    async def after_a_restart(self, address, proxy_to):
        if proxy_to is not None and not forgotten:
            forgotten.append(proxy_to)
            cluster.proxy.located.clear()
        return await connect(self, address, proxy_to)

    monkeypatch.setattr(ConnectionPool, "_connect", after_a_restart)
    with (
        LocalCluster(tmp_path, tunnel=True) as cluster,
        velaray.Client(cluster.service_url) as client,
        client.create_producer("through") as producer,
    ):
        producer.send(b"x")
        assert forgotten


def test_only_valid_tokens_are_accepted(tmp_path):
    secret = b"a secret of at least thirty-two bytes"
    with LocalCluster(tmp_path, auth=AuthSettings(secret=secret)) as cluster:
        token = jwt.encode({"sub": "me"}, secret, "HS256")
        for good in (token, lambda: token):
            auth = velaray.AuthenticationToken(good)
            with (
                velaray.Client(cluster.service_url, authentication=auth) as client,
                client.create_producer("t") as producer,
            ):
                producer.send(b"x")
        forged = jwt.encode({"sub": "me"}, b"another secret of thirty-two bytes..", "HS256")
        for bad in (None, velaray.AuthenticationToken(forged)):
            with (
                velaray.Client(cluster.service_url, authentication=bad) as client,
                pytest.raises(velaray.AuthenticationError),
            ):
                client.create_producer("t")
