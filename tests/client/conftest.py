"""A cluster in this process, and clients of both libraries, for the client's tests."""

import itertools
from types import SimpleNamespace

import pulsar
import pytest

import velaray
from tests.support.by_name import call_by_name
from tests.support.local_cluster import LocalCluster
from velaray.events.ids import ActorKey

_numbers = itertools.count(1)


@pytest.fixture(scope="package")
def cluster(tmp_path_factory):
    with LocalCluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
def client(cluster):
    with velaray.Client(cluster.service_url, operation_timeout_seconds=15) as made:
        yield made


@pytest.fixture
def official(cluster):
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    made = pulsar.Client(cluster.service_url, operation_timeout_seconds=15, logger=quiet)
    yield made
    made.close()


@pytest.fixture
def topic():
    return f"persistent://public/default/topic-{next(_numbers)}"


@pytest.fixture
def catalog(cluster):
    """Administration: ``catalog.partitioned(topic, n)``, ``catalog.deduplicated(topic)``, …"""

    def call(method, **args):
        return cluster.run(call_by_name(cluster.actor_system, ActorKey.catalog(), method, args))

    return SimpleNamespace(
        partitioned=lambda topic, n: call("create_topic", topic=topic, partitions=n),
        terminate=lambda topic: velaray.Admin(cluster.admin_url).terminate(topic),
        grow=lambda topic, n: call("grow_partitions", topic=topic, partitions=n),
        deduplicated=lambda topic: (
            call("create_topic", topic=topic, exist_ok=True),
            call("set_policy", topic=topic, name="deduplication", value=b"true"),
        ),
    )
