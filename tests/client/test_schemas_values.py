"""Schemas without a service: values to payloads and back, and what the registry gets of them."""

import enum
import json
import math
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from types import SimpleNamespace
from typing import Annotated, NotRequired, TypedDict

import pulsar.schema
import pytest
from google.protobuf import descriptor_pb2, timestamp_pb2
from pydantic import BaseModel, Field

from velaray import schema as velaray_schema
from velaray.client.exceptions import InvalidConfiguration, InvalidMessage, UndecodableMessage
from velaray.schema import (
    Array,
    AutoConsumeSchema,
    AutoProduceBytesSchema,
    AvroSchema,
    BooleanSchema,
    BytesSchema,
    DateSchema,
    DoubleSchema,
    FloatSchema,
    GenericRecord,
    InstantSchema,
    Int8Schema,
    Int16Schema,
    Int32Schema,
    Int64Schema,
    Integer,
    JsonSchema,
    KeyValue,
    KeyValueSchema,
    LocalDateSchema,
    LocalDateTimeSchema,
    LocalTimeSchema,
    Long,
    ProtobufNativeSchema,
    Record,
    SchemaInfo,
    SchemaType,
    String,
    StringSchema,
    TimeSchema,
    TimestampSchema,
)


class Color(enum.Enum):
    red = 1
    green = 2


def wide(of):
    """The same record, declared with ``pulsar.schema`` or with velaray's."""

    class Inner(of.Record):
        x = of.Long()
        y = of.Float(required=True)

    class Wide(of.Record):
        _avro_namespace = "org.weather"
        null = of.Null()
        flag = of.Boolean()
        flag_said = of.Boolean(default=True, required_default=True)
        number = of.Integer(required=True)
        number_said = of.Integer(default=7, required_default=True)
        big = of.Long()
        single = of.Float()
        double = of.Double(required=True)
        raw = of.Bytes()
        text = of.String(default="dry")
        text_said = of.String(default="wet", required=True, required_default=True)
        nothing_said = of.String(required_default=True)
        color = of.CustomEnum(Color)
        color_said = of.CustomEnum(Color, default=Color.green, required_default=True)
        bare_color = Color
        inner = Inner()
        required_inner = Inner(required=True)
        bare_inner = Inner
        names = of.Array(of.String())
        inners = of.Array(Inner(), required=True)
        nested = of.Array(of.Array(of.Long()))
        counts = of.Map(of.Integer())
        by_name = of.Map(Inner())
        lists = of.Map(of.Array(of.String()))

    class Sorted(of.Record):
        _sorted_fields = True
        b = of.String()
        a = of.Integer()

    def value():
        return Wide(
            number=1,
            big=1 << 40,
            single=0.5,
            double=2.5,
            raw=b"raw",
            color=Color.red,
            bare_color=Color.green,
            inner=Inner(x=1, y=2.0),
            required_inner=Inner(x=2, y=3.0),
            bare_inner=Inner(x=None, y=1.5),
            names=["a", "ß"],
            inners=[Inner(x=3, y=4.0)],
            nested=[[1], []],
            counts={"a": 1},
            by_name={"i": Inner(x=5, y=6.0)},
            lists={"l": ["m"]},
        )

    return SimpleNamespace(Wide=Wide, Sorted=Sorted, value=value)


OURS, THEIRS = wide(velaray_schema), wide(pulsar.schema)


@pytest.mark.parametrize("kind", ["Wide", "Sorted"])
def test_records_have_the_schemas_of_the_official_client(kind):
    theirs, ours = getattr(THEIRS, kind), getattr(OURS, kind)
    assert ours.schema() == theirs.schema()
    for name in ("JsonSchema", "AvroSchema"):
        official = getattr(pulsar.schema, name)(theirs).schema_info()
        info = getattr(velaray_schema, name)(ours).schema_info()
        assert json.loads(info.data) == json.loads(official.schema())
        assert (info.name, str(info.type)) == (official.name(), official.schema_type().name)


def attributes(record):
    """All fields, those of records within it as dicts, by either library."""

    def plain(value):
        if hasattr(type(value), "_fields"):
            return {name: plain(getattr(value, name)) for name in type(value)._fields}
        if isinstance(value, list):
            return [plain(each) for each in value]
        if isinstance(value, dict):
            return {key: plain(each) for key, each in value.items()}
        return value

    return plain(record)


@pytest.mark.parametrize("name", ["JsonSchema", "AvroSchema"])
def test_each_library_decodes_values_of_the_other(name):
    theirs, ours = (
        getattr(pulsar.schema, name)(THEIRS.Wide),
        getattr(velaray_schema, name)(OURS.Wide),
    )
    assert attributes(ours.decode(theirs.encode(THEIRS.value()))) == attributes(OURS.value())
    assert attributes(theirs.decode(ours.encode(OURS.value()))) == attributes(THEIRS.value())
    assert ours.decode(ours.encode(OURS.value())) == OURS.value()


def test_a_record_accepts_only_the_types_of_its_fields():
    class Reading(Record):
        sensor = String(required=True)
        celsius = Integer()
        colors = Array(velaray_schema.CustomEnum(Color))

    reading = Reading(sensor=b"n", celsius=3, colors=["red", 2])
    assert (reading.sensor, reading.colors) == ("n", [Color.red, Color.green])
    for wrong in ({"celsius": "3"}, {"sensor": None}, {"kelvin": 3}, {"colors": ["blue"]}):
        with pytest.raises(InvalidMessage, match=next(iter(wrong))):
            Reading(**wrong)
    with pytest.raises(TypeError, match=r"field celsius must be an int of 32 bits, not str '3'"):
        reading.celsius = "3"
    with pytest.raises(AttributeError, match="no field kelvin"):
        reading.kelvin = 3
    assert reading.celsius == 3
    with pytest.raises(InvalidMessage, match="sensor"):
        JsonSchema(Reading).encode(Reading(celsius=1))


@dataclass
class Point:
    x: float
    y: float = 0.0


@dataclass
class Flight:
    tail: str
    distance: int
    seats: Annotated[int, Integer()]
    at: datetime
    day: date
    color: Color
    route: list[Point]
    raw: bytes = b""
    note: str | None = None
    gate: str | None = "A1"
    codes: dict[str, int] = field(default_factory=dict)
    marks: tuple[int, ...] = ()
    later: "Flight | None" = None


class FlightModel(BaseModel):
    tail: str
    distance: int
    seats: Annotated[int, Integer()]
    at: datetime
    day: date
    color: Color
    route: list[Point]
    raw: bytes = b""
    note: str | None = None
    gate: str | None = "A1"
    codes: dict[str, int] = Field(default_factory=dict)
    marks: tuple[int, ...] = ()
    later: "FlightModel | None" = None


class FlightDict(TypedDict):
    tail: str
    distance: int
    seats: Annotated[int, Integer()]
    at: datetime
    day: date
    color: Color
    route: list[Point]
    raw: bytes
    note: str | None
    gate: str | None
    codes: dict[str, int]
    marks: tuple[int, ...]
    later: NotRequired["FlightDict"]


FIELDS = {
    "tail": "N14228",
    "distance": 1400,
    "seats": 149,
    "at": datetime(2013, 1, 1, 5, 17, 0, 250, UTC),
    "day": date(2013, 1, 1),
    "color": Color.red,
    "route": [Point(1.0, 2.0), Point(-1.0)],
    "raw": b"r\xc3\xbc",
    "note": None,
    "gate": None,
    "codes": {"a": 1},
    "marks": (1, 2),
}


@pytest.mark.parametrize("kind", [Flight, FlightModel, FlightDict])
@pytest.mark.parametrize("schema", [JsonSchema, AvroSchema])
def test_ordinary_classes_are_schemas(schema, kind):
    made = schema(kind)
    for value in (kind(**FIELDS), kind(**FIELDS, later=kind(**FIELDS))):
        found = made.decode(made.encode(value))
        assert found == value
        assert type(found) is type(value)


def test_defaults_are_in_the_schema_so_that_fields_can_be_added():
    fields = {each["name"]: each for each in json.loads(AvroSchema(Flight).info.data)["fields"]}
    assert fields["distance"]["type"] == "long"
    assert fields["seats"]["type"] == "int"
    assert "default" not in fields["tail"]
    assert (fields["note"]["type"], fields["note"]["default"]) == (["null", "string"], None)
    assert (fields["gate"]["type"], fields["gate"]["default"]) == (["string", "null"], "A1")
    assert (fields["raw"]["default"], fields["codes"]["default"]) == ("", {})
    optional = json.loads(JsonSchema(FlightDict).info.data)["fields"][-1]
    assert optional == {"name": "later", "type": ["null", "FlightDict"], "default": None}


@pytest.mark.parametrize("schema", [JsonSchema, AvroSchema])
@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"tail": 3}, r"Flight: field tail must be a str, not int 3"),
        ({"distance": 2.5}, r"field distance must be an int of 64 bits, not float 2.5"),
        ({"distance": True}, r"field distance must be an int of 64 bits, not bool True"),
        ({"distance": 1 << 63}, r"field distance must be an int of 64 bits"),
        ({"seats": 1 << 31}, r"field seats must be an int of 32 bits"),
        ({"at": datetime(2013, 1, 1)}, r"field at must be a datetime with a time zone"),
        ({"color": "red"}, r"field color must be one of Color's red, green, not str 'red'"),
        ({"route": [Point(1.0), Point("n")]}, r"field route\[1\]\.x must be a float, not str"),
        ({"codes": {"a": None}}, r"field codes\['a'\] must be an int of 64 bits, not None"),
        ({"codes": {1: 1}}, r"field codes must be a dict with keys of text"),
        ({"note": 1}, r"field note must be a str, or None, not int 1"),
        ({"tail": "\ud800"}, r"can't be encoded"),
    ],
)
def test_a_wrong_value_is_refused_by_the_name_of_its_field(schema, change, told):
    with pytest.raises(InvalidMessage, match=told):
        schema(Flight).encode(Flight(**FIELDS | change))


@pytest.mark.parametrize("schema", [JsonSchema, AvroSchema])
@pytest.mark.parametrize("value", [None, {"tail": "x"}, "x", Point(1.0)])
def test_a_value_of_another_class_is_refused(schema, value):
    with pytest.raises(InvalidMessage, match="the value must be a Flight"):
        schema(Flight).encode(value)
    with pytest.raises(InvalidMessage, match=r"field tail must be a str, not left out"):
        schema(FlightDict).encode({"distance": 1})
    eager = defaultdict(str)
    with pytest.raises(InvalidMessage, match=r"field tail must be a str, not left out"):
        schema(FlightDict).encode(eager)
    assert not eager


def test_values_that_json_cannot_represent_are_refused():
    with pytest.raises(InvalidMessage, match="UTF-8"):
        JsonSchema(Flight).encode(Flight(**FIELDS | {"raw": b"\xff"}))
    with pytest.raises(InvalidMessage, match="JSON"):
        JsonSchema(Point).encode(Point(math.nan))
    assert math.isnan(AvroSchema(Point).decode(AvroSchema(Point).encode(Point(math.nan))).x)


def test_json_of_other_clients_is_read():
    schema = JsonSchema(Point)
    assert schema.decode(b' {"x": 1, "y": 2.5, "z": "more"} ') == Point(1.0, 2.5)
    assert schema.decode(b'{"x": 1}') == Point(1.0, 0.0)


@pytest.mark.parametrize(
    ("schema", "data", "told"),
    [
        (JsonSchema(Point), b"{", "it isn't JSON"),
        (JsonSchema(Point), b"\xff", "it isn't JSON"),
        (JsonSchema(Point), b"[]", "must be a Point, not list"),
        (JsonSchema(Point), b"{}", "field x must be a float, not left out"),
        (JsonSchema(Point), b'{"x": "1"}', "field x must be a float, not str '1'"),
        (JsonSchema(Point), b"[" * 100_000, "it isn't JSON"),
        (AvroSchema(Point), b"", "it isn't an Avro value of its schema"),
        (AvroSchema(Point), bytes(17), "1 bytes are left over"),
        (StringSchema(), b"\xff", "UTF-8"),
        (Int32Schema(), b"123", "3 bytes instead of 4"),
        (DateSchema(), b"\x7f" * 8, "it isn't a datetime"),
        (InstantSchema(), b"", "Instant"),
        (LocalDateTimeSchema(), b"\x7f" * 16, "LocalDateTime"),
        (ProtobufNativeSchema(timestamp_pb2.Timestamp), b"\xff", "Timestamp"),
        (KeyValueSchema(StringSchema(), StringSchema()), b"\0\0\0\x09a", "announces 9 bytes"),
        (KeyValueSchema(StringSchema(), StringSchema()), b"\0\0", "ends within"),
        (KeyValueSchema(StringSchema(), StringSchema()), b"\0\0\0\0\0\0\0\0x", "1 bytes follow"),
        (KeyValueSchema(BytesSchema(), Int8Schema()), b"\0\0\0\0\0\0\0\0", "value: 0 bytes"),
    ],
)
def test_values_that_do_not_fit_are_undecodable(schema, data, told):
    with pytest.raises(UndecodableMessage, match=told):
        schema.decode(data)


def test_values_that_the_class_of_the_user_refuses_are_undecodable():
    @dataclass
    class Even:
        number: int

        def __post_init__(self):
            if self.number % 2:
                raise ValueError("odd")

    for schema in (JsonSchema(Even), AvroSchema(Even)):
        even = schema.encode(Even(2))
        assert schema.decode(even) == Even(2)
        with pytest.raises(UndecodableMessage, match="odd"):
            schema.decode(even.replace(b"2", b"3").replace(b"\x04", b"\x06"))


class Loose(TypedDict):
    anything: object


@pytest.mark.parametrize("kind", [int, "Flight", None, Loose, list[int]])
def test_a_class_that_is_not_a_record_is_refused(kind):
    with pytest.raises(InvalidConfiguration):
        JsonSchema(kind)


@pytest.mark.parametrize(
    ("schema", "value", "data"),
    [
        (StringSchema(), "grüß", "grüß".encode()),
        (BooleanSchema(), True, b"\x01"),
        (Int8Schema(), -2, b"\xfe"),
        (Int16Schema(), 258, b"\x01\x02"),
        (Int32Schema(), -1, b"\xff\xff\xff\xff"),
        (Int64Schema(), 1, b"\0\0\0\0\0\0\0\x01"),
        (FloatSchema(), 0.5, b"\x3f\0\0\0"),
        (DoubleSchema(), 0.5, b"\x3f\xe0\0\0\0\0\0\0"),
        (DateSchema(), datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), b"\0\0\0\0\0\0\x03\xe8"),
        (
            TimestampSchema(),
            datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC),
            b"\xff" * 6 + b"\xfc\x18",
        ),
        (TimeSchema(), time(0, 0, 1), b"\0\0\0\0\0\0\x03\xe8"),
        (LocalDateSchema(), date(1970, 1, 3), b"\0\0\0\0\0\0\0\x02"),
        (LocalTimeSchema(), time(0, 0, 0, 1), b"\0\0\0\0\0\0\x03\xe8"),
        (
            LocalDateTimeSchema(),
            datetime(1970, 1, 2, 0, 0, 0, 1),
            b"\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\x03\xe8",
        ),
        (
            InstantSchema(),
            datetime(1969, 12, 31, 23, 59, 59, 1, UTC),
            b"\xff\xff\xff\xff\xff\xff\xff\xff\0\0\x03\xe8",
        ),
    ],
)
def test_single_values_have_the_bytes_of_pulsars_java_client(schema, value, data):
    assert schema.encode(value) == data
    assert schema.decode(data) == value
    assert AutoConsumeSchema().decoder(schema.info)(data, None) == value
    for wrong in (None, object(), "x" if not isinstance(value, str) else 1):
        with pytest.raises(InvalidMessage, match=type(schema).__name__):
            schema.encode(wrong)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (Int8Schema(), 128),
        (Int16Schema(), -40_000),
        (Int32Schema(), 1 << 31),
        (Int64Schema(), 1 << 63),
        (Int64Schema(), 1.5),
        (Int64Schema(), True),
        (BooleanSchema(), 1),
        (DoubleSchema(), True),
        (FloatSchema(), 1e39),
        (DateSchema(), datetime(2013, 1, 1)),
        (LocalDateSchema(), datetime(2013, 1, 1)),
        (LocalDateTimeSchema(), datetime(2013, 1, 1, tzinfo=UTC)),
        (TimeSchema(), time(1, tzinfo=UTC)),
    ],
)
def test_single_values_out_of_range_are_refused(schema, value):
    with pytest.raises(InvalidMessage, match=type(schema).__name__):
        schema.encode(value)


# --- several versions ---


def avro(*fields, name="Reading"):
    return {"type": "record", "name": name, "fields": [dict(each) for each in fields]}


def info_of(definition):
    return SchemaInfo(SchemaType.AVRO, "AVRO", json.dumps(definition).encode())


@dataclass
class Reading:
    sensor: str
    celsius: float = 20.0


def test_avro_is_read_by_the_schema_that_it_was_written_with():
    older = AvroSchema(None, avro({"name": "sensor", "type": "string"}))
    newer = AvroSchema(
        None,
        avro(
            {"name": "place", "type": "string"},
            {"name": "celsius", "type": "int"},
            {"name": "sensor", "type": "string"},
            name="org.weather.Reading",
        ),
    )
    reader = AvroSchema(Reading)
    assert reader.decoder(older.info)(older.encode({"sensor": "a"}), None) == Reading("a")
    written = newer.encode({"sensor": "b", "place": "EWR", "celsius": 3})
    assert reader.decoder(newer.info)(written, None) == Reading("b", 3.0)
    with pytest.raises(UndecodableMessage):
        reader.decode(written)


def test_an_unreadable_writer_schema_is_reported():
    lacking = AvroSchema(None, avro({"name": "celsius", "type": "double"}))
    decode = AvroSchema(Reading).decoder(lacking.info)
    with pytest.raises(UndecodableMessage, match="sensor"):
        decode(lacking.encode({"celsius": 1.0}), None)
    with pytest.raises(UndecodableMessage, match="type STRING"):
        AvroSchema(Reading).decoder(StringSchema().info)
    with pytest.raises(UndecodableMessage, match="can't be used"):
        AvroSchema(Reading).decoder(SchemaInfo(SchemaType.AVRO, "", b"{}"))


# --- pairs ---


def test_pairs_are_in_the_payload_or_around_it():
    pair = KeyValue("k", Reading("a", 1.0))
    inline = KeyValueSchema(StringSchema(), JsonSchema(Reading))
    data = inline.encode(pair)
    assert data[:5] == b"\0\0\0\x01k"
    assert inline.decode(data) == pair == inline.decode(inline.encode(("k", Reading("a", 1.0))))
    assert inline.decode(inline.encode(KeyValue(None, None))) == (None, None)
    separated = KeyValueSchema(StringSchema(), JsonSchema(Reading), "SEPARATED")
    key, value = separated.encode_parts(pair)
    assert (key, separated.decoder(None)(value, key)) == (b"k", pair)
    assert separated.decoder(None)(None, b"k") == ("k", None)


@pytest.mark.parametrize("value", ["kv", ("k",), ("k", 1), (1, Reading("a"))])
def test_invalid_pairs_are_refused(value):
    with pytest.raises(InvalidMessage):
        KeyValueSchema(StringSchema(), JsonSchema(Reading)).encode(value)


def test_each_part_of_a_pair_has_its_own_version():
    older = AvroSchema(None, avro({"name": "sensor", "type": "string"}))
    writer = KeyValueSchema(older, Int32Schema())
    reader = KeyValueSchema(AvroSchema(Reading), Int32Schema())
    data = writer.encode(({"sensor": "a"}, 3))
    assert reader.decoder(writer.info)(data, None) == (Reading("a"), 3)
    found = AutoConsumeSchema().decoder(writer.info)(data, None)
    assert found == ({"sensor": "a"}, 3)
    with pytest.raises(InvalidConfiguration):
        KeyValueSchema(reader, StringSchema())
    with pytest.raises(InvalidConfiguration):
        KeyValueSchema(StringSchema(), StringSchema(), "AROUND")


# --- Protobuf ---


def test_protobuf_schemas_equal_those_of_the_official_client():
    for kind in (timestamp_pb2.Timestamp, descriptor_pb2.FieldDescriptorProto):
        official = pulsar.schema.ProtobufNativeSchema(kind).schema_info()
        info = ProtobufNativeSchema(kind).info
        assert json.loads(info.data) == json.loads(official.schema())
        assert info.name == official.name()


def test_protobuf_messages_survive_encoding():
    schema = ProtobufNativeSchema(descriptor_pb2.DescriptorProto)
    message = descriptor_pb2.DescriptorProto(name="M", reserved_name=["r"])
    message.field.add(name="f", number=1, label="LABEL_REPEATED")
    data = schema.encode(message)
    assert schema.decode(data) == message
    found = AutoConsumeSchema().decoder(schema.info)(data, None)
    assert (found["name"], found["reserved_name"], found["options"]) == ("M", ["r"], None)
    assert (found["field"][0]["number"], found["field"][0]["label"]) == (1, "LABEL_REPEATED")
    assert found.schema == schema.info
    with pytest.raises(InvalidMessage, match="must be a DescriptorProto, not Timestamp"):
        schema.encode(timestamp_pb2.Timestamp())
    with pytest.raises(InvalidConfiguration):
        ProtobufNativeSchema(Point)


# --- the topic's own schema ---


@pytest.mark.parametrize("schema", [JsonSchema(Reading), AvroSchema(Reading)])
def test_a_generic_record_is_a_dict_with_its_schema(schema):
    found = AutoConsumeSchema().decoder(schema.info)(schema.encode(Reading("a", 1.5)), None)
    assert found == {"sensor": "a", "celsius": 1.5}
    assert isinstance(found, GenericRecord)
    assert found.schema == schema.info
    with pytest.raises(UndecodableMessage):
        AutoConsumeSchema().decoder(schema.info)(b"", None)


def test_bytes_are_kept_and_unknown_types_reported():
    auto = AutoConsumeSchema()
    assert auto.decoder(None)(b"\xff", None) == b"\xff"
    assert auto.decoder(BytesSchema.info)(b"\xff", None) == b"\xff"
    for kind in (SchemaType.PROTOBUF, SchemaType.EXTERNAL):
        with pytest.raises(UndecodableMessage, match=str(kind)):
            auto.decoder(SchemaInfo(kind))
    with pytest.raises(InvalidMessage, match="for consumers"):
        auto.encode(b"")


def test_encoded_bytes_are_checked_against_the_topics_schema():
    avro = AvroSchema(Reading)
    produce = AutoProduceBytesSchema().bound(avro.info)
    assert produce.info == avro.info
    assert produce.encode(avro.encode(Reading("a"))) == avro.encode(Reading("a"))
    with pytest.raises(InvalidMessage, match="topic's AVRO schema"):
        produce.encode(b"\x02")
    with pytest.raises(InvalidMessage, match="bytes, not Reading"):
        produce.encode(Reading("a"))
    assert AutoProduceBytesSchema().bound(None).encode(b"\x02") == b"\x02"


def test_a_recursive_record_and_one_of_another_name_are_read():
    class Node(TypedDict):
        number: Annotated[int, Long]
        next: NotRequired["Node"]

    Node.__annotations__["next"] = NotRequired[Node]
    schema = AvroSchema(Node)
    value = {"number": 1, "next": {"number": 2}}
    assert schema.decode(schema.encode(value)) == value
