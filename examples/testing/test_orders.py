"""A suite for an application: ``pytest examples/testing``, or with ``--velaray-disk``.

The application counts the orders of each customer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import timedelta

import pytest

import velaray
from velaray.testing import FaultyCluster

WITHIN_MS = 60_000
ORDERS = ["ada", "bob", "ada", "eve", "ada", "bob"]


def count_orders(client: velaray.Client, topic: str, orders: int) -> Counter[str]:
    """The application: consume ``orders`` messages, each of which counts once."""
    found: dict[object, str] = {}
    with client.subscribe(
        topic, "counting", initial_position=velaray.InitialPosition.Earliest
    ) as consumer:
        while len(found) < orders:
            message = consumer.receive(WITHIN_MS)
            found[message.message_id()] = message.data().decode()
            consumer.acknowledge(message)
    return Counter(found.values())


def publish(client: velaray.Client, topic: str, customers: list[str]) -> None:
    """Publish one order for each customer; all are durable when this returns."""
    with client.create_producer(topic) as producer:
        for customer in customers:
            producer.send(customer.encode())


def test_orders_are_counted(velaray_client: velaray.Client, velaray_topic: str) -> None:
    publish(velaray_client, velaray_topic, ORDERS)
    assert count_orders(velaray_client, velaray_topic, 6) == {"ada": 3, "bob": 2, "eve": 1}


def test_each_test_has_topics_of_its_own(
    velaray_client: velaray.Client, velaray_topic: str
) -> None:
    publish(velaray_client, velaray_topic, ["ada"])
    assert count_orders(velaray_client, velaray_topic, 1) == {"ada": 1}


def kill_the_topic(cluster: FaultyCluster, topic: str) -> int:
    """The partition's actor ends, and is rebuilt from its journal."""
    return cluster.kill_topic(topic)


def kill_the_subscription(cluster: FaultyCluster, topic: str) -> int:
    """The subscription's actor ends, and is rebuilt from its journal."""
    return cluster.kill_subscription(topic, "counting")


def kill_everything(cluster: FaultyCluster, topic: str) -> int:
    """Every actor ends, as with the end of its process."""
    return cluster.kill_all()


def cut_the_connections(cluster: FaultyCluster, topic: str) -> int:
    """The clients lose their connections, and connect again."""
    return cluster.cut_connections()


@pytest.mark.parametrize(
    "fault", [kill_the_topic, kill_the_subscription, kill_everything, cut_the_connections]
)
def test_orders_are_counted_once_after_a_fault(
    velaray_cluster: FaultyCluster,
    velaray_client: velaray.Client,
    velaray_topic: str,
    fault: Callable[[FaultyCluster, str], int],
) -> None:
    velaray_client.subscribe(velaray_topic, "counting").close()
    with velaray_client.create_producer(velaray_topic) as producer:
        for customer in ORDERS[:3]:
            producer.send(customer.encode())
        assert fault(velaray_cluster, velaray_topic) >= 1
        for customer in ORDERS[3:]:
            producer.send(customer.encode())
    assert count_orders(velaray_client, velaray_topic, 6) == {"ada": 3, "bob": 2, "eve": 1}


def test_delayed_orders_wait_while_the_clock_stands_still(
    velaray_cluster: FaultyCluster, velaray_client: velaray.Client, velaray_topic: str
) -> None:
    consumer = velaray_client.subscribe(
        velaray_topic, "late", consumer_type=velaray.ConsumerType.Shared
    )
    producer = velaray_client.create_producer(velaray_topic)
    with velaray_cluster.stopped_clock():
        producer.send(b"ada", deliver_after=timedelta(milliseconds=200))
        with pytest.raises(velaray.Timeout):
            consumer.receive(1_000)
    assert consumer.receive(WITHIN_MS).data() == b"ada"
