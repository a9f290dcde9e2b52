"""The official client with schemas: JSON, Avro, strings, native Protobuf, any of them."""

from __future__ import annotations

import json
from typing import Any

import _pulsar
import pulsar
import pytest
from pulsar.schema import (
    AvroSchema,
    BytesSchema,
    Integer,
    JsonSchema,
    Record,
    Schema,
    String,
    StringSchema,
)

from tests.official.support import (
    PATIENCE_MS,
    LocalServer,
    create_partitioned,
    partition_key,
    receive,
)
from velaray.events import events_pb2
from velaray.events.ids import ActorKey
from velaray.schemas.native import native_schema


@pytest.fixture
def server(local: LocalServer) -> LocalServer:
    """Without Ray: an actor more for every topic takes it a second each."""
    return local


class User(Record):
    """What producers began with."""

    name = String()
    age = Integer()


def evolved(**fields: Any) -> type[Record]:
    """A later record of the same name."""
    return type("User", (Record,), {"name": String(), "age": Integer(), **fields})


Wider = evolved(city=String(default="?", required=True, required_default=True))
Typed = type("User", (Record,), {"name": String(), "age": String(required=True)})
STRUCTS = {"json": JsonSchema, "avro": AvroSchema}


class Native(Schema):
    """A native Protobuf message: the client carries the schema and leaves the bytes to callers."""

    def __init__(self, descriptor: Any) -> None:
        super().__init__(bytes, _pulsar.SchemaType.BYTES, None, "unused")
        text = native_schema(descriptor).decode()
        self._schema_info = _pulsar.SchemaInfo(
            _pulsar.SchemaType.PROTOBUF_NATIVE, descriptor.name, text
        )

    def encode(self, obj: Any) -> bytes:
        return obj.SerializeToString()

    def decode(self, data: bytes) -> bytes:
        return data


class AutoConsume(Schema):
    """Whatever schema the messages have."""

    def __init__(self) -> None:
        super().__init__(bytes, _pulsar.SchemaType.AUTO_CONSUME, None, "AUTO_CONSUME")

    def encode(self, obj: Any) -> bytes:
        raise NotImplementedError

    def decode(self, data: bytes) -> bytes:
        return data


def version_of(message: pulsar.Message) -> int:
    """The version of the schema that the message bears."""
    return int(message._message.int_schema_version())


def versions(server: Any, topic: str) -> list[dict[str, Any]]:
    """What the registry has."""
    key = partition_key(server, topic)
    registry = ActorKey.of_schema_registry(key.topic_name, key.topic_incarnation)
    return list(server.call(registry, "schemas", {"all": True}))


@pytest.mark.parametrize("form", STRUCTS)
def test_records_are_sent_and_received(client, server, topic, form):
    make = STRUCTS[form]
    consumer = client.subscribe(topic, "s", schema=make(User))
    producer = client.create_producer(topic, schema=make(User))
    producer.send(User(name="ann", age=7))
    (message,) = receive(consumer, 1)
    assert message.value() == User(name="ann", age=7)
    assert version_of(message) == 0
    (found,) = versions(server, topic)
    assert found["type"] == form.upper()
    assert json.loads(found["data"])["name"] == "User"


@pytest.mark.parametrize("form", STRUCTS)
def test_producers_evolve_and_old_messages_stay_readable(client, server, topic, form):
    make = STRUCTS[form]
    consumer = client.subscribe(topic, "s", schema=make(User))
    first = client.create_producer(topic, schema=make(User))
    first.send(User(name="ann", age=7))
    second = client.create_producer(topic, schema=make(Wider))
    second.send(Wider(name="bob", age=8, city="rome"))
    first.send(User(name="eve", age=9))
    received = receive(consumer, 3)
    assert [version_of(message) for message in received] == [0, 1, 0]
    reader = client.subscribe(
        topic, "later", schema=make(Wider), initial_position=pulsar.InitialPosition.Earliest
    )
    cities = [message.value().city for message in receive(reader, 3)]
    assert cities[1] == "rome"
    assert [each["predecessor"] for each in versions(server, topic)] == [None, 0]
    if form == "avro":
        assert [message.value().age for message in received] == [7, 8, 9]


@pytest.mark.parametrize("form", STRUCTS)
def test_an_incompatible_schema_is_refused_at_once(client, server, topic, form):
    make = STRUCTS[form]
    client.create_producer(topic, schema=make(User)).send(User(name="ann", age=7))
    for schema in (make(Typed), StringSchema()):
        with pytest.raises(pulsar.IncompatibleSchema):
            client.create_producer(topic, schema=schema)
        with pytest.raises(pulsar.IncompatibleSchema):
            client.subscribe(topic, "s", schema=schema)
    assert len(versions(server, topic)) == 1


def test_a_refused_producer_does_not_block_others(client, topic):
    producer = client.create_producer(topic, schema=AvroSchema(User))
    consumer = client.subscribe(topic, "s", schema=AvroSchema(User))
    for number in range(3):
        with pytest.raises(pulsar.IncompatibleSchema):
            client.create_producer(topic, schema=AvroSchema(Typed))
        producer.send(User(name="ann", age=number))
    assert [message.value().age for message in receive(consumer, 3)] == [0, 1, 2]


def test_strings_are_sent_and_received(client, server, topic):
    consumer = client.subscribe(topic, "s", schema=StringSchema())
    producer = client.create_producer(topic, schema=StringSchema())
    producer.send("grüße")
    (message,) = receive(consumer, 1)
    assert message.value() == "grüße"
    (found,) = versions(server, topic)
    assert (found["type"], found["version"]) == ("STRING", 0)


def test_native_protobuf_is_sent_and_received(client, server, topic):
    schema = Native(events_pb2.SubscriptionName.DESCRIPTOR)
    consumer = client.subscribe(topic, "s", schema=schema)
    producer = client.create_producer(topic, schema=schema)
    producer.send(events_pb2.SubscriptionName(topic="t", subscription="s"))
    (message,) = receive(consumer, 1)
    assert events_pb2.SubscriptionName.FromString(message.value()).topic == "t"
    (found,) = versions(server, topic)
    assert found["type"] == "PROTOBUF_NATIVE"
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=Native(events_pb2.SchemasDeleted.DESCRIPTOR))


@pytest.mark.parametrize("order", ["consumer first", "producer first"])
def test_a_consumer_of_any_schema_gets_everything(client, server, topic, order):
    if order == "producer first":
        producer = client.create_producer(topic, schema=AvroSchema(User))
    consumer = client.subscribe(topic, "any", schema=AutoConsume())
    if order == "consumer first":
        producer = client.create_producer(topic, schema=AvroSchema(User))
    producer.send(User(name="ann", age=7))
    client.create_producer(topic, schema=AvroSchema(Wider)).send(
        Wider(name="bob", age=8, city="rome")
    )
    received = receive(consumer, 2)
    assert [version_of(message) for message in received] == [0, 1]
    assert [each["type"] for each in versions(server, topic)] == ["AVRO", "AVRO"]


def test_clients_without_a_schema_work_on_topics_with_and_without_one(client, topic):
    """An Exclusive consumer and a producer that know nothing of schemas."""
    consumer = client.subscribe(topic, "s")
    plain = client.create_producer(topic)
    plain.send(b"bytes")
    assert receive(consumer, 1, ack=True)[0].data() == b"bytes"
    with pytest.raises(pulsar.IncompatibleSchema):  # there is something that isn't a string
        client.subscribe(topic, "t", schema=StringSchema())
    typed = client.create_producer(topic, schema=StringSchema())
    typed.send("text")
    plain.send(b"more")
    received = receive(consumer, 2, ack=True)
    assert [message.data() for message in received] == [b"text", b"more"]
    again = client.create_producer(topic, schema=BytesSchema())
    again.send(b"bytes again")
    assert receive(consumer, 1, ack=True)[0].data() == b"bytes again"


def test_partitions_share_one_schema(client, server, topic):
    create_partitioned(server, topic, 3)
    consumer = client.subscribe(topic, "s", schema=AvroSchema(User))
    producer = client.create_producer(topic, schema=AvroSchema(User))
    for number in range(6):
        producer.send(User(name=f"n{number}", age=number), partition_key=f"k{number}")
    ages = {consumer.receive(PATIENCE_MS).value().age for _ in range(6)}
    assert ages == set(range(6))
    assert len(versions(server, topic)) == 1
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=AvroSchema(Typed))


def test_connected_clients_survive_a_kill_of_the_registry(client, local, connect, topic):
    """It dies: they don't notice, and the next ones find what was registered."""
    client = connect(local.service_url)
    consumer = client.subscribe(topic, "s", schema=AvroSchema(User))
    producer = client.create_producer(topic, schema=AvroSchema(User))
    key = partition_key(local, topic)
    local.cluster.kill(ActorKey.of_schema_registry(key.topic_name, key.topic_incarnation))
    producer.send(User(name="ann", age=1))
    assert receive(consumer, 1)[0].value().age == 1
    client.create_producer(topic, schema=AvroSchema(Wider)).send(Wider(name="b", age=2, city="c"))
    assert receive(consumer, 1)[0].value().age == 2
    assert [each["version"] for each in versions(local, topic)] == [0, 1]


def test_messages_are_decoded_after_their_schema_is_deleted(local, connect, topic):
    """The client looks up the version that the message bears, and finds it."""
    client = connect(local.service_url)
    client.create_producer(topic, schema=AvroSchema(User)).send(User(name="ann", age=1))
    client.create_producer(topic, schema=AvroSchema(Wider)).send(Wider(name="b", age=2, city="c"))
    key = partition_key(local, topic)
    registry = ActorKey.of_schema_registry(key.topic_name, key.topic_incarnation)
    local.call(registry, "delete", {"through": 1, "forced": True, "role": ""})
    client.create_producer(topic, schema=AvroSchema(Wider))  # lives again, as version 3
    consumer = connect(local.service_url).subscribe(
        topic,
        "s",
        schema=AvroSchema(Wider),
        initial_position=pulsar.InitialPosition.Earliest,
    )
    received = receive(consumer, 2)
    assert [version_of(message) for message in received] == [0, 1]
    assert [message.value().city for message in received] == ["?", "c"]
    assert [each["version"] for each in versions(local, topic)] == [0, 1, 2, 3]
