"""Producers and consumers with schemas, in one service with its registry."""

import asyncio
import json
from dataclasses import dataclass

import pulsar.schema
import pyarrow as pa
import pytest
from google.protobuf.timestamp_pb2 import Timestamp

import velaray
from tests.support.waiting import wait_until
from velaray import aio
from velaray.client.exceptions import (
    IncompatibleSchema,
    InvalidConfiguration,
    InvalidMessage,
    OperationNotSupported,
    UndecodableMessage,
)
from velaray.client.topic_schemas import Schemas
from velaray.schema import (
    AutoConsumeSchema,
    AutoProduceBytesSchema,
    AvroSchema,
    BytesSchema,
    GenericRecord,
    Int32Schema,
    JsonSchema,
    KeyValue,
    KeyValueSchema,
    ProtobufNativeSchema,
    StringSchema,
)


@dataclass
class Reading:
    sensor: str
    celsius: float = 20.0


@dataclass
class Place:
    name: str


def reading(*added):
    """Schemas of readings that grow: each has one field more, with a default."""
    fields = [{"name": "sensor", "type": "string"}]
    fields += [{"name": name, "type": "long", "default": 7} for name in added]
    return AvroSchema(None, {"type": "record", "name": "Reading", "fields": fields})


EMPTY = {"type": "record", "name": "Reading", "fields": []}
EARLIEST = velaray.InitialPosition.Earliest


@pytest.mark.parametrize("schema", [JsonSchema(Reading), AvroSchema(Reading)])
def test_values_are_sent_and_received(client, topic, schema):
    consumer = client.subscribe(topic, "s", schema=schema)
    producer = client.create_producer(topic, schema=schema, batching_enabled=True)
    producer.send(Reading("a", 1.5), partition_key="k")
    producer.send_async(Reading("b"), properties={"p": "q"}).result()
    producer.send(None)
    first, second, third = (consumer.receive(5000) for _ in range(3))
    assert (first.value(), first.partition_key()) == (Reading("a", 1.5), "k")
    assert (second.value(), second.properties()) == (Reading("b"), {"p": "q"})
    assert third.value() is None
    assert third.has_null_value()
    assert first.data() == schema.encode(Reading("a", 1.5))
    assert first.schema_version() == bytes(8)


def test_records_are_read_under_any_name(client, topic):
    def trip(space, outer, stop):
        named = {"type": "record", "name": stop, "fields": [{"name": "at", "type": "string"}]}
        fields = [
            {"name": "start", "type": named},
            {"name": "stop", "type": ["null", stop]},
            {"name": "more", "type": {"type": "array", "items": stop}},
        ]
        record = {"type": "record", "name": outer, "namespace": space, "fields": fields}
        return AvroSchema(None, record)

    value = {"start": {"at": "EWR"}, "stop": {"at": "LAX"}, "more": [{"at": "SFO"}]}
    consumer = client.subscribe(topic, "s", schema=trip("here", "Trip", "Stop"))
    client.create_producer(topic, schema=trip("org.there", "Flight", "Place")).send(value)
    message = consumer.receive(5000)
    assert (message.value(), message.schema_version()) == (value, (1).to_bytes(8))


def test_many_values_are_sent_and_received_at_once(client, topic):
    schema = JsonSchema(Reading)
    consumer = client.subscribe(topic, "s", schema=schema)
    producer = client.create_producer(topic, schema=schema)
    values = [Reading("a", 1.0), None, Reading("b", 2.0)]
    producer.send_many(values, ["x", "y", None])
    batch = consumer.receive_many(timeout_millis=5000)
    assert (list(batch), batch.keys()) == (values, ["x", "y", ""])
    assert batch[2] == Reading("b", 2.0)
    assert [message.value() for message in batch.messages()] == values
    assert batch.as_arrow().to_pylist()[0] == schema.encode(values[0])
    with pytest.raises(InvalidMessage, match=r"value 1: Reading: field sensor.*nothing was sent"):
        producer.send_many([Reading("a"), Reading(None)])
    producer.send_many([Reading("c")])
    assert list(consumer.receive_many(timeout_millis=5000)) == [Reading("c")]


def test_arrow_arrays_are_encoded_with_the_schema(client, topic):
    consumer = client.subscribe(topic, "s", schema=StringSchema())
    producer = client.create_producer(topic, schema=StringSchema())
    producer.send_many(pa.array(["ä", None, "b"]))
    assert list(consumer.receive_many(timeout_millis=5000)) == ["ä", None, "b"]
    with pytest.raises(InvalidMessage, match="value 0: StringSchema takes str, not int"):
        producer.send_many(pa.array([1, 2]))


def test_the_asyncio_client_sends_and_receives_values(cluster, topic):
    async def story():
        schema = AvroSchema(Reading)
        async with aio.Client(cluster.service_url) as client:
            consumer = await client.subscribe(topic, "s", schema=schema)
            producer = await client.create_producer(topic, schema=schema)
            await producer.send(Reading("a"))
            await producer.send_many([Reading("b"), None])
            found = [(await consumer.receive(5000)).value()]
            while len(found) < 3:
                found += await consumer.receive_many(timeout_millis=5000)
            assert found == [Reading("a"), Reading("b"), None]
            with pytest.raises(InvalidMessage, match="field celsius"):
                await producer.send(Reading("a", "warm"))
            start = velaray.MessageId.earliest
            reader = await client.create_reader(topic, start, schema=schema)
            assert (await reader.read_next(5000)).value() == Reading("a")

    asyncio.run(story())


def test_a_wrong_value_changes_nothing(client, topic):
    consumer = client.subscribe(topic, "s", schema=JsonSchema(Reading))
    producer = client.create_producer(topic, schema=JsonSchema(Reading), batching_enabled=True)
    first = producer.send_async(Reading("a"))
    for send in (producer.send, producer.send_async):
        with pytest.raises(InvalidMessage, match="field sensor must be a str, not int 3"):
            send(Reading(3))
        with pytest.raises(InvalidMessage, match="must be a Reading, not bytes"):
            send(b"a")
    second = producer.send_async(Reading("b"))
    producer.flush()
    assert first.result().batch_index() + 1 == second.result().batch_index()
    assert [consumer.receive(5000).value().sensor for _ in range(2)] == ["a", "b"]


def test_readers_and_table_views_decode(client, topic):
    schema = JsonSchema(Reading)
    with client.create_producer(topic, schema=schema) as producer:
        producer.send(Reading("a", 1.0), partition_key="a")
        producer.send(Reading("b", 1.0), partition_key="b")
        producer.send(Reading("a", 2.0), partition_key="a")
    reader = client.create_reader(topic, velaray.MessageId.earliest, schema=schema)
    assert [reader.read_next(5000).value().celsius for _ in range(3)] == [1.0, 1.0, 2.0]
    view = client.create_table_view(topic, schema=schema)
    assert (view.get("a"), view.get("b"), view.get("c")) == (
        Reading("a", 2.0),
        Reading("b", 1.0),
        None,
    )


# --- what the topic's rules refuse ---


def test_an_incompatible_producer_or_consumer_is_refused(client, topic):
    client.create_producer(topic, schema=AvroSchema(Reading))
    with pytest.raises(IncompatibleSchema):
        client.create_producer(topic, schema=JsonSchema(Reading))
    with pytest.raises(IncompatibleSchema):
        client.subscribe(topic, "s", schema=AvroSchema(Place))
    with pytest.raises(IncompatibleSchema, match="lacks the field"):
        client.create_producer(topic, schema=AvroSchema(None, dict(EMPTY)))
    client.create_producer(topic, schema=AvroSchema(Reading)).send(Reading("a"))


def test_an_invalid_schema_is_refused(client, topic):
    for wrong in (JsonSchema, "json", Reading):
        with pytest.raises(InvalidConfiguration, match="schema"):
            client.create_producer(topic, schema=wrong)
    with pytest.raises(InvalidConfiguration, match="for consumers"):
        client.create_producer(topic, schema=AutoConsumeSchema())


# --- messages with schemas of their own ---


def test_a_message_may_have_its_own_schema(client, topic):
    consumer = client.subscribe(topic, "s", schema=AutoConsumeSchema())
    old, new = reading(), reading("lux")
    producer = client.create_producer(topic, schema=old, batching_enabled=True)
    sent = [
        producer.send_async({"sensor": "a"}),
        producer.send_async({"sensor": "b"}),
        producer.send_async({"sensor": "c", "lux": 3}, schema=new),
        producer.send_async({"sensor": "d", "lux": 4}, schema=new),
        producer.send_async({"sensor": "e"}),
    ]
    producer.flush()
    ids = [each.result() for each in sent]
    messages = [consumer.receive(5000) for _ in sent]
    assert [message.value()["sensor"] for message in messages] == list("abcde")
    versions = [int.from_bytes(message.schema_version(), "big") for message in messages]
    assert versions == [0, 0, 1, 1, 0]
    entries = [(each.ledger_id(), each.entry_id()) for each in ids]
    assert entries[1] != entries[2], "a batch with two versions"
    assert entries[3] != entries[4], "a batch with two versions"
    assert messages[2].value() == {"sensor": "c", "lux": 3}
    assert messages[2].value().schema.data == new.info.data


def test_a_refused_schema_fails_its_message_alone(client, topic):
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, schema=reading(), batching_enabled=True)
    first = producer.send_async({"sensor": "a"})
    refused = producer.send_async("place", schema=StringSchema())
    again = producer.send_async("place", schema=StringSchema())
    last = producer.send_async({"sensor": "b"})
    with pytest.raises(IncompatibleSchema):
        producer.flush()
    for each in (refused, again):
        with pytest.raises(IncompatibleSchema):
            each.result(10)
    assert first.result(10) < last.result(10)
    producer.send({"sensor": "c"})
    assert [consumer.receive(5000).data() for _ in range(3)] == [b"\x02a", b"\x02b", b"\x02c"]


def test_the_asyncio_client_keeps_the_order_around_a_new_schema(cluster, topic):
    async def story():
        async with aio.Client(cluster.service_url) as client:
            consumer = await client.subscribe(topic, "s", schema=AutoConsumeSchema())
            producer = await client.create_producer(topic, schema=reading())
            sends = [
                producer.send({"sensor": "a"}),
                producer.send({"sensor": "b", "lux": 1}, schema=reading("lux")),
                producer.send({"sensor": "c"}),
                producer.send("d", schema=StringSchema()),
                producer.send({"sensor": "e"}),
            ]
            results = await asyncio.gather(*sends, return_exceptions=True)
            assert [type(each) for each in results].count(IncompatibleSchema) == 1
            found = [(await consumer.receive(5000)).value()["sensor"] for _ in range(4)]
            assert found == list("abce")

    asyncio.run(story())


def test_closing_during_a_request_for_a_schema_completes_every_message(cluster, topic):
    async def story():
        client = aio.Client(cluster.service_url)
        producer = await client.create_producer(topic, schema=reading())
        sends = [
            asyncio.ensure_future(producer.send({"sensor": "a", "lux": 1}, schema=reading("lux"))),
            asyncio.ensure_future(producer.send({"sensor": "b"})),
        ]
        await asyncio.sleep(0)
        await client.shutdown()
        results = await asyncio.wait_for(asyncio.gather(*sends, return_exceptions=True), 10)
        assert all(isinstance(each, velaray.AlreadyClosed) for each in results)

    asyncio.run(story())


# --- several versions ---


def test_messages_are_decoded_by_the_version_that_they_were_written_with(client, topic):
    versions = [reading(), reading("lux"), reading("lux", "rain")]
    for number, schema in enumerate(versions):
        value = {"sensor": str(number), "lux": number, "rain": number}
        names = [each["name"] for each in json.loads(schema.info.data)["fields"]]
        with client.create_producer(topic, schema=schema) as producer:
            producer.send({name: value[name] for name in names})

    @dataclass
    class Newest:
        sensor: str
        lux: int = 7
        rain: int = 7

    Newest.__name__ = "Reading"
    consumer = client.subscribe(topic, "s", schema=AvroSchema(Newest), initial_position=EARLIEST)
    found = [consumer.receive(5000).value() for _ in range(3)]
    assert found == [Newest("0"), Newest("1", 1), Newest("2", 2, 2)]
    generic = client.subscribe(topic, "g", schema=AutoConsumeSchema(), initial_position=EARLIEST)
    found = [generic.receive(5000).value() for _ in range(3)]
    assert found == [
        {"sensor": "0"},
        {"sensor": "1", "lux": 1},
        {"sensor": "2", "lux": 2, "rain": 2},
    ]


def test_each_version_is_requested_once(client, topic, monkeypatch):
    asked = []
    inner = Schemas._get
    monkeypatch.setattr(
        Schemas, "_get", lambda self, *what: asked.append(what) or inner(self, *what)
    )
    with client.create_producer(topic, schema=reading()) as producer:
        for number in range(20):
            producer.send({"sensor": str(number)})
    for name in ("one", "two"):
        consumer = client.subscribe(
            topic, name, schema=AutoConsumeSchema(), initial_position=EARLIEST
        )
        assert [consumer.receive(5000).value()["sensor"] for _ in range(20)][-1] == "19"
    assert asked == [(topic, bytes(8))]


def test_a_consumer_of_any_schema_decodes_each_message_by_its_own(client, topic):
    consumer = client.subscribe(topic, "s", schema=AutoConsumeSchema())
    with client.create_producer(topic) as producer:
        producer.send(b"\xff")
    assert consumer.receive(5000).value() == b"\xff"
    other = f"{topic}-typed"
    consumer = client.subscribe(other, "s", schema=AutoConsumeSchema())
    with client.create_producer(other, schema=JsonSchema(Reading)) as producer:
        producer.send(Reading("a", 1.0))
    found = consumer.receive(5000).value()
    assert isinstance(found, GenericRecord)
    assert (found, found.schema.type) == ({"sensor": "a", "celsius": 1.0}, "JSON")


def test_encoded_bytes_are_sent_as_the_topics_schema(client, topic):
    avro = AvroSchema(Reading)
    consumer = client.subscribe(topic, "s", schema=avro)
    producer = client.create_producer(topic, schema=AutoProduceBytesSchema())
    producer.send(avro.encode(Reading("a", 1.0)))
    with pytest.raises(InvalidMessage, match="AVRO"):
        producer.send(b"\x09")
    message = consumer.receive(5000)
    assert (message.value(), message.schema_version()) == (Reading("a", 1.0), bytes(8))
    free = client.create_producer(f"{topic}-free", schema=AutoProduceBytesSchema())
    free.send(b"\x09")


# --- pairs ---


@pytest.mark.parametrize("encoding", ["INLINE", "SEPARATED"])
def test_pairs_are_sent_and_received(client, topic, encoding):
    schema = KeyValueSchema(Int32Schema(), AvroSchema(Reading), encoding)
    consumer = client.subscribe(topic, "s", schema=schema)
    producer = client.create_producer(topic, schema=schema, batching_enabled=True)
    sent = [KeyValue(1, Reading("a", 1.0)), KeyValue(2, None), KeyValue(1, Reading("b", 1.0))]
    for pair in sent:
        producer.send(pair)
    messages = [consumer.receive(5000) for _ in sent]
    assert [message.value() for message in messages] == sent
    if encoding == "SEPARATED":
        assert messages[0].partition_key_bytes() == bytes((0, 0, 0, 1))
        assert messages[1].has_null_value()
        with pytest.raises(InvalidMessage, match="brings its own key"):
            producer.send(sent[0], partition_key="k")
        with pytest.raises(OperationNotSupported, match="SEPARATED"):
            producer.send_many(sent)
    generic = client.create_reader(topic, velaray.MessageId.earliest, schema=AutoConsumeSchema())
    assert generic.read_next(5000).value() == (1, {"sensor": "a", "celsius": 1.0})
    assert generic.read_next(5000).value() == (2, None)


# --- what can't be decoded ---


def test_an_undecodable_message_is_named_with_the_reason(client, topic):
    consumer = client.subscribe(topic, "s", schema=JsonSchema(Reading))
    producer = client.create_producer(topic, schema=JsonSchema(Reading), batching_enabled=True)
    producer.send(b'{"sensor": 3}', schema=BytesSchema())
    producer.send(Reading("a"))
    wrong, right = consumer.receive(5000), consumer.receive(5000)
    with pytest.raises(UndecodableMessage) as caught:
        wrong.value()
    error = caught.value
    assert (error.topic, error.message_id, error.schema_version) == (
        topic,
        wrong.message_id(),
        None,
    )
    assert error.reason == "it isn't a Reading: field sensor must be a str, not int 3"
    assert topic in str(error)
    assert error.reason in str(error)
    assert (wrong.data(), right.value()) == (b'{"sensor": 3}', Reading("a"))


def test_a_batch_with_an_undecodable_message_delivers_the_others(client, topic):
    consumer = client.subscribe(topic, "s", schema=JsonSchema(Reading))
    with client.create_producer(topic) as producer:
        producer.send_many([b"{}", JsonSchema(Reading).encode(Reading("a"))])
    batch = consumer.receive_many(timeout_millis=5000)
    with pytest.raises(UndecodableMessage, match="field sensor"):
        batch.values()
    assert batch.messages()[1].value() == Reading("a")
    consumer.acknowledge_many(batch)


@pytest.mark.parametrize("kind", [velaray.ConsumerType.Shared, velaray.ConsumerType.Exclusive])
def test_undecodable_messages_become_dead_letters(client, topic, kind):
    policy = velaray.ConsumerDeadLetterPolicy(
        3, initial_subscription_name="dead", dead_letter_undecodable=True
    )
    consumer = client.subscribe(
        topic,
        "s",
        kind,
        schema=JsonSchema(Reading),
        dead_letter_policy=policy,
        batch_index_ack_enabled=True,
    )
    with client.create_producer(topic) as producer:
        producer.send(b"{")
        producer.send_many([b'{"sensor": "a"}', b'{"sensor": 3}', b'{"sensor": "b"}'])
        producer.send(b'{"sensor": "c"}', properties={"p": "q"})
    found = []
    while len(found) < 3:
        message = consumer.receive(5000)
        found.append(message.value().sensor)
        consumer.acknowledge(message)
    assert found == ["a", "b", "c"]
    dead = client.subscribe(f"{topic}-s-DLQ", "dead")
    letters = [dead.receive(10_000) for _ in range(2)]
    told = {letter.data(): letter.properties() for letter in letters}
    assert "field sensor must be a str, not int 3" in told[b'{"sensor": 3}']["EXCEPTION"]
    assert told[b"{"]["EXCEPTION"].startswith("UndecodableMessage: ")
    assert told[b"{"]["REAL_TOPIC"] == topic
    assert len(told) == 2
    wait_until(lambda: client_backlog(consumer) == 0)


def client_backlog(consumer):
    """Messages that are neither acknowledged nor moved."""
    (last, marked) = next(iter(consumer._thread.run(consumer._base.topics.positions()).values()))
    return last.entry_id() - marked.entry_id()


def test_without_the_option_undecodable_messages_are_received_like_others(client, topic):
    consumer = client.subscribe(
        topic,
        "s",
        velaray.ConsumerType.Shared,
        schema=JsonSchema(Reading),
        dead_letter_policy=velaray.ConsumerDeadLetterPolicy(1, initial_subscription_name="dead"),
        negative_ack_redelivery_delay_ms=10,
    )
    with client.create_producer(topic) as producer:
        producer.send(b"{")
    for _ in range(2):
        message = consumer.receive(10_000)
        with pytest.raises(UndecodableMessage):
            message.value()
        consumer.negative_acknowledge(message)
    assert client.subscribe(f"{topic}-s-DLQ", "dead").receive(10_000).data() == b"{"


def test_a_dead_letter_keeps_its_schema(client, topic):
    consumer = client.subscribe(
        topic,
        "s",
        velaray.ConsumerType.Shared,
        dead_letter_policy=velaray.ConsumerDeadLetterPolicy(1, initial_subscription_name="dead"),
    )
    with client.create_producer(topic, schema=reading()) as producer:
        producer.send({"sensor": "a"})
        producer.send({"sensor": "b", "lux": 1}, schema=reading("lux"))
    for _ in range(2):
        consumer.dead_letter(consumer.receive(5000))
    dead = client.subscribe(f"{topic}-s-DLQ", "dead", schema=AutoConsumeSchema())
    found = [dead.receive(5000).value() for _ in range(2)]
    assert found == [{"sensor": "a"}, {"sensor": "b", "lux": 1}]


def test_a_dead_letter_drops_a_schema_that_its_topic_refuses(client, topic):
    client.create_producer(f"{topic}-s-DLQ", schema=StringSchema()).close()
    consumer = client.subscribe(
        topic,
        "s",
        velaray.ConsumerType.Shared,
        dead_letter_policy=velaray.ConsumerDeadLetterPolicy(1, initial_subscription_name="dead"),
    )
    with client.create_producer(topic, schema=reading()) as producer:
        producer.send({"sensor": "a"})
    consumer.dead_letter(consumer.receive(5000))
    letter = client.subscribe(f"{topic}-s-DLQ", "dead").receive(5000)
    assert (letter.data(), letter.schema_version()) == (b"\x02a", b"")


# --- the official client ---


@pytest.mark.parametrize("name", ["JsonSchema", "AvroSchema"])
def test_the_official_client_and_this_one_read_each_other(client, official, topic, name):
    class Official(pulsar.schema.Record):
        sensor = pulsar.schema.String(required=True)
        celsius = pulsar.schema.Double()

    class Ours(velaray.schema.Record):
        sensor = velaray.schema.String(required=True)
        celsius = velaray.schema.Double()

    Official.__name__ = Ours.__name__ = "Weather"
    theirs, ours = getattr(pulsar.schema, name)(Official), getattr(velaray.schema, name)(Ours)
    ear, there = (
        client.subscribe(topic, "ours", schema=ours),
        official.subscribe(topic, "theirs", schema=theirs),
    )
    client.create_producer(topic, schema=ours).send(Ours(sensor="a", celsius=1.5))
    official.create_producer(topic, schema=theirs).send(Official(sensor="b", celsius=2.5))
    assert [ear.receive(5000).value() for _ in range(2)] == [
        Ours(sensor="a", celsius=1.5),
        Ours(sensor="b", celsius=2.5),
    ]
    found = [there.receive(5000) for _ in range(2)]
    assert [each.value().sensor for each in found] == ["a", "b"]
    assert {each._message.int_schema_version() for each in found} == {0}


def test_pairs_and_text_of_partitioned_topics(client, catalog, topic):
    catalog.partitioned(topic, 3)
    consumer = client.subscribe(topic, "s", schema=AvroSchema(Reading))
    producer = client.create_producer(topic, schema=AvroSchema(Reading), batching_enabled=True)
    values = [Reading(str(number), float(number)) for number in range(30)]
    for value in values:
        producer.send_async(value, partition_key=value.sensor)
    producer.send_many(values, [value.sensor for value in values])
    producer.flush()
    found = [consumer.receive(5000).value() for _ in range(60)]
    assert sorted(each.celsius for each in found) == sorted([*range(30)] * 2)


def test_the_official_client_and_this_one_read_each_others_protobuf(client, official, topic):
    theirs = pulsar.schema.ProtobufNativeSchema(Timestamp)
    ours = ProtobufNativeSchema(Timestamp)
    ear = client.subscribe(topic, "ours", schema=ours)
    there = official.subscribe(topic, "theirs", schema=theirs)
    client.create_producer(topic, schema=ours).send(Timestamp(seconds=1))
    official.create_producer(topic, schema=theirs).send(Timestamp(seconds=2))
    assert [ear.receive(5000).value().seconds for _ in range(2)] == [1, 2]
    assert [there.receive(5000).value().seconds for _ in range(2)] == [1, 2]
    generic = client.create_reader(topic, velaray.MessageId.earliest, schema=AutoConsumeSchema())
    assert generic.read_next(5000).value() == {"seconds": 1, "nanos": 0}


# --- versions that take their time ---


class Gate:
    """Holds the questions for versions, or for one of them, until it opens."""

    def __init__(self, monkeypatch, held=None):
        self.open = asyncio.Event()
        self.asked = asyncio.Event()
        self.failures = []
        inner = Schemas._get

        async def get(schemas, topic, version):
            if held in (None, int.from_bytes(version, "big")):
                self.asked.set()
                await self.open.wait()
            if self.failures:
                raise self.failures.pop()
            return await inner(schemas, topic, version)

        monkeypatch.setattr(Schemas, "_get", get)


async def filled(client, topic, count):
    """A topic with readings of two versions in turns."""
    async with await client.create_producer(topic, schema=reading(), batching_enabled=False) as out:
        for number in range(count):
            schema = reading("lux") if number % 2 else None
            value = {"sensor": str(number)} | ({"lux": number} if number % 2 else {})
            await out.send(value, schema=schema)


async def sensors(consumer, count):
    return [(await consumer.receive(10_000)).value()["sensor"] for _ in range(count)]


NUMBERS = [str(number) for number in range(10)]


def test_messages_wait_in_order_for_slow_schema_versions(cluster, topic, monkeypatch):
    async def story():
        async with aio.Client(cluster.service_url) as client:
            await filled(client, topic, 10)
            gate = Gate(monkeypatch, held=1)
            consumer = await client.subscribe(
                topic,
                "s",
                schema=AutoConsumeSchema(),
                initial_position=EARLIEST,
                receiver_queue_size=3,
            )
            assert await sensors(consumer, 1) == NUMBERS[:1]
            await gate.asked.wait()
            with pytest.raises(velaray.Timeout):  # what comes behind has a version that is known
                await consumer.receive(50)
            gate.failures = [velaray.NotConnected("for a moment"), velaray.Timeout("a moment")]
            gate.open.set()
            assert await sensors(consumer, 9) == NUMBERS[1:]

    asyncio.run(story())


@pytest.mark.parametrize("kind", [velaray.ConsumerType.Exclusive, velaray.ConsumerType.Shared])
def test_messages_that_wait_for_a_version_are_redelivered_after_a_lost_connection(
    cluster, topic, monkeypatch, kind
):
    async def story():
        async with aio.Client(cluster.service_url) as client:
            await filled(client, topic, 10)
            gate = Gate(monkeypatch)
            consumer = await client.subscribe(
                topic,
                "s",
                kind,
                schema=AutoConsumeSchema(),
                initial_position=EARLIEST,
                receiver_queue_size=3,
            )
            await gate.asked.wait()
            (part,) = consumer.parts
            part.connection.abort(velaray.NotConnected("cut by the test"))
            await part.attached()
            gate.open.set()
            assert sorted(await sensors(consumer, 10)) == NUMBERS
            with pytest.raises(velaray.Timeout):
                await consumer.receive(50)

    asyncio.run(story())


def test_messages_that_wait_for_a_version_are_redelivered_on_request(cluster, topic, monkeypatch):
    async def story():
        async with aio.Client(cluster.service_url) as client:
            await filled(client, topic, 10)
            gate = Gate(monkeypatch)
            consumer = await client.subscribe(
                topic,
                "s",
                schema=AutoConsumeSchema(),
                initial_position=EARLIEST,
                receiver_queue_size=3,
            )
            await gate.asked.wait()
            await consumer.redeliver_unacknowledged_messages()
            gate.open.set()
            assert await sensors(consumer, 10) == NUMBERS

    asyncio.run(story())


def test_a_reader_knows_of_messages_that_wait_for_their_version(cluster, topic, monkeypatch):
    async def story():
        async with aio.Client(cluster.service_url) as client:
            await filled(client, topic, 1)
            gate = Gate(monkeypatch)
            start = velaray.MessageId.earliest
            reader = await client.create_reader(topic, start, schema=AutoConsumeSchema())
            await gate.asked.wait()
            asked = asyncio.ensure_future(reader.has_message_available())
            await asyncio.sleep(0)
            gate.open.set()
            assert await asked
            assert (await reader.read_next(5000)).value() == {"sensor": "0"}
            assert not await reader.has_message_available()

    asyncio.run(story())


def test_an_unknown_version_makes_messages_undecodable(cluster, topic, monkeypatch):
    async def story():
        async with aio.Client(cluster.service_url) as client:
            await filled(client, topic, 2)
            gate = Gate(monkeypatch)
            gate.failures = [velaray.TopicNotFound("no such version")]
            gate.open.set()
            consumer = await client.subscribe(
                topic, "s", schema=AutoConsumeSchema(), initial_position=EARLIEST
            )
            first, second = await consumer.receive(5000), await consumer.receive(5000)
            with pytest.raises(UndecodableMessage, match=r"version 0 .* no such version") as caught:
                first.value()
            assert caught.value.schema_version == 0
            assert second.value() == {"sensor": "1", "lux": 1}
            later = await client.subscribe(
                topic, "later", schema=AutoConsumeSchema(), initial_position=EARLIEST
            )
            assert await sensors(later, 2) == NUMBERS[:2], "an error isn't remembered"

    asyncio.run(story())


def test_a_long_outage_makes_no_message_undecodable(cluster, topic, monkeypatch):
    async def story():
        async with aio.Client(cluster.service_url) as client:
            await filled(client, topic, 1)
            inner, failures = Schemas.at, [velaray.Timeout("no answer"), velaray.Timeout("again")]

            async def at(schemas, *what):
                if failures:
                    raise failures.pop()
                return await inner(schemas, *what)

            monkeypatch.setattr(Schemas, "at", at)
            consumer = await client.subscribe(
                topic, "s", schema=AutoConsumeSchema(), initial_position=EARLIEST
            )
            assert await sensors(consumer, 1) == ["0"]

    asyncio.run(story())
