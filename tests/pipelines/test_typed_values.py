"""Values in columns of their schemas' types: from the service and from files."""

import json
import pickle
from dataclasses import dataclass, field
from datetime import UTC, date, datetime

import pyarrow as pa
import pytest
from google.protobuf import timestamp_pb2

import velaray
from velaray.client.exceptions import InvalidConfiguration, TopicNotFound, UndecodableMessage
from velaray.pipelines import ledgers, service_parts
from velaray.pipelines.rows import ddl
from velaray.pipelines.spark_client import Service
from velaray.pipelines.spark_positions import Start
from velaray.pipelines.typed_values import TypedValue, typed_by_files, typed_by_service
from velaray.schema import (
    AvroSchema,
    BooleanSchema,
    DateSchema,
    DoubleSchema,
    FloatSchema,
    InstantSchema,
    Int8Schema,
    Int16Schema,
    Int32Schema,
    Int64Schema,
    JsonSchema,
    KeyValue,
    KeyValueSchema,
    LocalDateSchema,
    LocalDateTimeSchema,
    LocalTimeSchema,
    ProtobufNativeSchema,
    StringSchema,
    TimeSchema,
    TimestampSchema,
)
from velaray.schemas import SchemaInfo, SchemaType

EARLIEST, LATEST = Start.parse("earliest"), Start.parse("latest")
NOON = datetime(2026, 11, 22, 12, 0, 0, 123456, UTC)


@pytest.fixture(scope="module")
def client(cluster):
    with velaray.Client(cluster.service_url, operation_timeout_seconds=15) as made:
        yield made


@pytest.fixture
def publish(client, topic):
    """Sends values to the topic, by default the test's own."""

    def send(schema, *values, to=topic, key=None):
        with client.create_producer(to, schema=schema) as producer:
            for value in values:
                producer.send(value, partition_key=key)

    return send


@pytest.fixture
def column(cluster, topic):
    """Reads the column of a topic by the service and from the files: both must say the same."""

    def read(typed=None, lenient=False, to=topic):
        service, data_dir = Service(cluster.service_url), cluster.config.data_dir
        by_service = typed or typed_by_service(service, lambda _: [to], lenient)
        by_files = typed or typed_by_files(data_dir, [to], lenient)
        assert by_service.wanted == by_files.wanted
        parts = {
            by_service: service_parts.plan(service, lambda _: [to], EARLIEST, LATEST),
            by_files: ledgers.plan(data_dir, [to], EARLIEST, LATEST),
        }
        found = []
        for kind, planned in parts.items():
            kind = pickle.loads(pickle.dumps(kind))  # as it goes to the tasks
            arrays = [batch.column(0) for part in planned for batch in part.read(["value"], kind)]
            found.append(pa.concat_arrays(arrays))
        assert found[0].equals(found[-1])
        return found[0]

    return read


SINGLE = {
    "string": (StringSchema(), ["a", "", "é"], "string", pa.string()),
    "boolean": (BooleanSchema(), [True, False], "boolean", pa.bool_()),
    "int8": (Int8Schema(), [-128, 127], "tinyint", pa.int8()),
    "int16": (Int16Schema(), [-1, 300], "smallint", pa.int16()),
    "int32": (Int32Schema(), [1 << 30], "int", pa.int32()),
    "int64": (Int64Schema(), [-(1 << 63)], "bigint", pa.int64()),
    "float": (FloatSchema(), [0.5], "float", pa.float32()),
    "double": (DoubleSchema(), [0.1], "double", pa.float64()),
    "date": (DateSchema(), [NOON.replace(microsecond=123000)], "timestamp", "us"),
    "timestamp": (TimestampSchema(), [NOON.replace(microsecond=5000)], "timestamp", "us"),
    "instant": (InstantSchema(), [NOON], "timestamp", "us"),
    "local date": (LocalDateSchema(), [date(1969, 1, 1)], "date", pa.date32()),
    "local date time": (
        LocalDateTimeSchema(),
        [NOON.replace(tzinfo=None)],
        "timestamp_ntz",
        pa.timestamp("us"),
    ),
}


@pytest.mark.parametrize("name", SINGLE)
def test_single_values_have_their_type(publish, column, name):
    schema, values, kind, arrow = SINGLE[name]
    publish(schema, *values, None)
    assert ddl(["value"], TypedValue(schema.info)) == f"value {kind}"
    found = column()
    assert found.type == (pa.timestamp("us", "UTC") if arrow == "us" else arrow)
    assert found.to_pylist() == [*values, None]


@dataclass
class Stop:
    port: str
    at: datetime


@dataclass
class Flight:
    number: int
    day: date
    stops: list[Stop]
    delays: dict[str, float] = field(default_factory=dict)
    gate: str | None = None
    photo: bytes = b"jpeg"


FLIGHT = (
    "struct<`number`: bigint, `day`: date, `stops`: array<struct<`port`: string, `at`: timestamp>>,"
    " `delays`: map<string, double>, `gate`: string, `photo`: binary>"
)


@pytest.mark.parametrize("make", [AvroSchema, JsonSchema])
def test_records_are_structs(publish, column, make):
    full = Flight(7, NOON.date(), [Stop("EWR", NOON)], {"snow": 0.5}, "B2", b"\x00x")
    publish(make(Flight), full, Flight(8, date(1960, 1, 1), []), None)
    assert TypedValue(make(Flight).info).ddl == FLIGHT
    assert column().to_pylist() == [
        {
            "number": 7,
            "day": NOON.date(),
            "stops": [{"port": "EWR", "at": NOON}],
            "delays": [("snow", 0.5)],
            "gate": "B2",
            "photo": b"\x00x",
        },
        {
            "number": 8,
            "day": date(1960, 1, 1),
            "stops": [],
            "delays": [],
            "gate": None,
            "photo": b"jpeg",
        },
        None,
    ]


def definition(*fields, **more):
    return {"type": "record", "name": "R", "fields": list(fields), **more}


MILLIS = {"type": "long", "logicalType": "timestamp-millis"}


def test_times_in_avro_have_the_precision_of_columns(publish, column):
    def time(name, logical):
        return {"name": name, "type": {"type": "long", "logicalType": logical}}

    schema = AvroSchema(
        None,
        definition(
            {"name": "millis", "type": MILLIS},
            time("local", "local-timestamp-millis"),
            time("micros", "local-timestamp-micros"),
            {
                "name": "all",
                "type": {"type": "array", "items": time("", "timestamp-millis")["type"]},
            },
            {"name": "other", "type": {"type": "int", "logicalType": "time-millis"}},
            {"name": "kind", "type": {"type": "enum", "name": "E", "symbols": ["A", "B"]}},
            {"name": "hash", "type": {"type": "fixed", "name": "F", "size": 2}},
        ),
    )
    local, plain = NOON.replace(microsecond=123000), NOON.replace(tzinfo=None)
    value = {
        "millis": local,
        "local": local.replace(tzinfo=None),
        "micros": plain,
        "all": [local],
        "other": plain.time().replace(microsecond=0),
        "kind": "B",
        "hash": b"ab",
    }
    publish(schema, value)
    assert TypedValue(schema.info).ddl == (
        "struct<`millis`: timestamp, `local`: timestamp_ntz, `micros`: timestamp_ntz,"
        " `all`: array<timestamp>, `other`: int, `kind`: string, `hash`: binary>"
    )
    assert column().to_pylist() == [value | {"other": 12 * 3_600_000}]


@dataclass
class Reading:
    sensor: str
    celsius: float = 20.0


def second_reading():
    @dataclass
    class Reading:
        sensor: str
        celsius: float = 20.0
        lux: int | None = None
        place: str = "roof"

    return Reading


@pytest.mark.parametrize("make", [AvroSchema, JsonSchema])
def test_all_versions_have_the_type_of_the_newest(publish, column, make):
    newer = second_reading()
    publish(make(Reading), Reading("a"))
    publish(make(newer), newer("b", 1.0, 5, "cellar"))
    publish(make(Reading), Reading("c", 2.0))
    assert column().to_pylist() == [
        {"sensor": "a", "celsius": 20.0, "lux": None, "place": "roof"},
        {"sensor": "b", "celsius": 1.0, "lux": 5, "place": "cellar"},
        {"sensor": "c", "celsius": 2.0, "lux": None, "place": "roof"},
    ]


@pytest.mark.parametrize("make", [AvroSchema, JsonSchema])
def test_a_query_keeps_the_schema_of_its_plan(publish, column, make):
    newer = second_reading()
    publish(make(Reading), Reading("a"))
    planned = TypedValue(make(Reading).info)
    publish(make(newer), newer("b", 1.0, 5))
    found = column(planned)
    assert found.to_pylist() == [
        {"sensor": "a", "celsius": 20.0},
        {"sensor": "b", "celsius": 1.0},
    ]


@pytest.mark.parametrize("encoding", ["INLINE", "SEPARATED"])
def test_pairs_are_structs_of_key_and_value(publish, column, encoding):
    schema = KeyValueSchema(StringSchema(), AvroSchema(Reading), encoding)
    publish(schema, KeyValue("k", Reading("a")), KeyValue("l", None))
    kind = "struct<`key`: string, `value`: struct<`sensor`: string, `celsius`: double>>"
    assert TypedValue(schema.info).ddl == kind
    assert column().to_pylist() == [
        {"key": "k", "value": {"sensor": "a", "celsius": 20.0}},
        {"key": "l", "value": None},
    ]


@pytest.mark.parametrize(
    ("make", "payload", "reason"),
    [
        (JsonSchema, b'{"sensor": 3}', "field sensor must be a str, not int 3"),
        (JsonSchema, b"{}", "field sensor must be a str, not left out"),
        (JsonSchema, b"[", "it isn't JSON"),
        (AvroSchema, b"\x02", "it isn't an Avro value of its schema"),
    ],
)
def test_undecodable_values_are_named_or_null(publish, column, topic, make, payload, reason):
    publish(make(Reading), Reading("a"))
    publish(None, payload)
    publish(make(Reading), Reading("b"))
    with pytest.raises(UndecodableMessage, match=reason) as caught:
        column()
    assert caught.value.topic == topic and caught.value.message_id.entry_id() == 1
    found = column(lenient=True).to_pylist()
    assert [row and row["sensor"] for row in found] == ["a", None, "b"]


def test_a_time_outside_the_range_of_columns_is_undecodable(publish, column, topic):
    longs = definition({"name": "at", "type": "long"})
    times = definition({"name": "at", "type": MILLIS})
    publish(AvroSchema(None, longs), {"at": 1}, {"at": 1 << 62})
    typed = TypedValue(SchemaInfo(SchemaType.AVRO, "", json.dumps(times).encode()))
    with pytest.raises(UndecodableMessage, match=r"isn't a value of type struct.*out of bounds"):
        column(typed)
    lenient = TypedValue(typed.wanted, lenient=True)
    at = datetime(1970, 1, 1, 0, 0, 0, 1000, UTC)
    assert column(lenient).to_pylist() == [{"at": at}, None]


def test_a_value_of_another_type_than_the_query_is_undecodable(publish, column):
    publish(StringSchema(), "five")
    with pytest.raises(UndecodableMessage, match="written with a schema of type STRING"):
        column(TypedValue(Int32Schema().info))
    with pytest.raises(UndecodableMessage, match="written with a schema of type STRING"):
        column(TypedValue(JsonSchema(Reading).info))


@pytest.mark.parametrize(
    ("info", "says"),
    [
        (TimeSchema().info, "type TIME"),
        (LocalTimeSchema().info, "type LOCAL_TIME"),
        (ProtobufNativeSchema(timestamp_pb2.Timestamp).info, "type PROTOBUF_NATIVE"),
        (KeyValueSchema(StringSchema(), TimeSchema()).info, "type TIME"),
        (definition({"name": "u", "type": ["int", "string"]}), "/u: a union of int, string"),
        (definition({"name": "n", "type": "null"}), "/n: type null"),
        (definition({"name": "r", "type": ["null", "R"]}), "/r: record R contains itself"),
        (definition(), "/: record R without fields"),
    ],
)
def test_schemas_that_columns_cannot_represent_are_refused(info, says):
    if isinstance(info, dict):
        info = SchemaInfo(SchemaType.AVRO, "", json.dumps(info).encode())
    with pytest.raises(InvalidConfiguration, match=says):
        TypedValue(info)


def test_a_column_has_one_schema(cluster, publish, topic):
    service, data_dir = Service(cluster.service_url), cluster.config.data_dir
    other, plain = topic + "-other", topic + "-plain"
    publish(JsonSchema(Reading), Reading("a"))
    publish(AvroSchema(Reading), Reading("a"), to=other)
    publish(None, b"bytes", to=plain)
    for topics, says in (
        ([topic, other], "have different schemas"),
        ([topic, plain], f"{plain} has no schema"),
        ([], "needs a topic"),
    ):
        with pytest.raises(InvalidConfiguration, match=says):
            typed_by_service(service, lambda _, topics=topics: topics, False)
        with pytest.raises(InvalidConfiguration, match=says):
            typed_by_files(data_dir, topics, False)
    with pytest.raises(TopicNotFound):
        typed_by_files(data_dir, [topic + "-none"], False)
    publish(JsonSchema(Reading), Reading("b"), to=topic + "-same")
    both = [topic, topic + "-same"]
    assert (
        typed_by_service(service, lambda _: both, False).ddl
        == TypedValue(JsonSchema(Reading).info).ddl
    )
