"""Replication of messages with schemas: versions become the other cluster's."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator

import pulsar
import pytest
from pulsar.schema import AvroSchema, Integer, JsonSchema, Record, String

from tests.topology.replicating import (
    PATIENCE_MS,
    Cluster,
    clusters,
    metadata_at,
    nothing_more,
    received,
    replicating,
    soon,
)
from velaray.events.ids import ActorKey
from velaray.wire.schemas import read_version

_numbers = itertools.count(1)


class Other(Record):  # type: ignore[misc]
    z = String()


class One(Record):  # type: ignore[misc]
    f1 = Integer()


class Two(Record):  # type: ignore[misc]
    f1 = Integer()
    f2 = String()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Cluster]]:
    with clusters(tmp_path_factory.mktemp("pair"), "a", "b") as found:
        yield found


@pytest.fixture
def topic() -> str:
    return f"persistent://public/default/t{next(_numbers)}"


def policy(cluster: Cluster, topic: str, name: str, value: object) -> None:
    found = {"topic": topic, "name": name, "value": json.dumps(value).encode()}
    cluster.call(ActorKey.catalog(), "set_policy", found)


def take_all(cluster: Cluster, topic: str) -> None:
    policy(cluster, topic, "schemaCompatibilityStrategy", "ALWAYS_COMPATIBLE")


def test_schema_versions_are_translated_for_the_target(pair: list[Cluster], topic: str) -> None:
    a, b = pair
    for each in pair:
        each.partition(topic)
        take_all(each, topic)
    b.client.create_producer(topic, schema=AvroSchema(Other)).close()
    a.replicate(topic, {"b": b.describe()})
    ones = a.client.create_producer(topic, schema=AvroSchema(One))
    twos = a.client.create_producer(topic, schema=AvroSchema(Two))
    for number in range(10):
        ones.send(One(f1=number))
        twos.send(Two(f1=number, f2="x"))
    reader = b.client.subscribe(
        topic, "s", schema=AvroSchema(One), initial_position=pulsar.InitialPosition.Earliest
    )
    found = [reader.receive(PATIENCE_MS) for _ in range(20)]
    assert [message.value().f1 for message in found] == sorted([*range(10), *range(10)])
    here = [read_version(metadata_at(a, topic, number).schema_version) for number in (1, 2, 20)]
    there = [read_version(metadata_at(b, topic, number).schema_version) for number in (1, 2, 20)]
    assert (here, there) == ([0, 1, 1], [1, 2, 2])


def test_an_incompatible_schema_stops_the_replicator_until_it_is_accepted(
    pair: list[Cluster], topic: str
) -> None:
    a, b = pair
    a.replicate(topic, {"b": b.describe()})
    plain = a.client.create_producer(topic)
    plain.send(b"before")
    replicating(a, topic, "b")
    b.client.create_producer(topic, schema=JsonSchema(Other)).close()
    typed = a.client.create_producer(topic, schema=JsonSchema(Two))
    typed.send(Two(f1=1, f2="y"))
    plain.send(b"behind")
    reason = soon(lambda: a.status(topic, "b").get("reason"))
    assert "schema version 0, which b refuses: IncompatibleSchema" in reason
    assert "Change the schema or its compatibility strategy there" in reason
    reader = b.subscribe(topic)
    assert received(reader, 1) == [b"before"]
    nothing_more(reader)
    soon(lambda: not (found := a.status(topic, "b"))["connected"] or found["in_flight"])
    take_all(b, topic)
    one, behind = received(reader, 2)
    assert (json.loads(one), behind) == ({"f1": 1, "f2": "y"}, b"behind")
    soon(lambda: not a.status(topic, "b")["reason"])


def test_an_unknown_version_stops_the_replicator_until_it_is_skipped(
    pair: list[Cluster], topic: str
) -> None:
    a, b = pair
    a.replicate(topic, {"b": b.describe()})
    a.publish_raw(topic, b"unknown", schema_version=(77).to_bytes(8, "big"))
    a.publish_raw(topic, b"malformed", schema_version=b"x")
    a.publish_raw(topic, b"good")
    reason = soon(lambda: a.status(topic, "b").get("reason"))
    assert "has no schema" in reason and "Skip the entry to continue" in reason
    skip = {"name": "pulsar.repl.b"}
    a.call(a.partition(topic), "skip_to", {**skip, "offset": 1})
    soon(lambda: "a schema version of 1 bytes" in a.status(topic, "b").get("reason", ""))
    a.call(a.partition(topic), "skip_to", {**skip, "offset": 2})
    assert received(b.subscribe(topic), 1) == [b"good"]


def test_messages_without_a_schema_are_replicated_where_schemas_are_enforced(
    pair: list[Cluster], topic: str
) -> None:
    a, b = pair
    b.client.create_producer(topic, schema=JsonSchema(One)).close()
    policy(b, topic, "schemaValidationEnforced", True)
    a.replicate(topic, {"b": b.describe()})
    a.publish(topic, [b"plain"])
    assert received(b.subscribe(topic), 1) == [b"plain"]
