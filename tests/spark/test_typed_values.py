"""Spark's sources with columns of the types that topics' schemas have."""

from dataclasses import dataclass, field
from datetime import UTC, date, datetime

import pytest

from velaray.schema import (
    AvroSchema,
    BooleanSchema,
    Int16Schema,
    JsonSchema,
    KeyValue,
    KeyValueSchema,
    LocalDateTimeSchema,
    StringSchema,
    TimestampSchema,
)

pytestmark = pytest.mark.slow
NOON = datetime(2026, 11, 22, 12, 0, 0, 123000, UTC)


@dataclass
class Stop:
    port: str
    at: datetime


@dataclass
class Flight:
    number: int
    day: date
    stops: list[Stop] = field(default_factory=list)
    delays: dict[str, float] = field(default_factory=dict)
    gate: str | None = None


def older_flight():
    @dataclass
    class Flight:
        number: int
        day: date

    return Flight


FLIGHTS = [
    Flight(7, NOON.date(), [Stop("EWR", NOON)], {"snow": 0.5}, "B2"),
    Flight(8, date(1960, 1, 1)),
    None,
]


@pytest.fixture
def publish(client, topic):
    def send(schema, *values):
        with client.create_producer(topic, schema=schema) as producer:
            for value in values:
                producer.send(value)

    return send


@pytest.fixture
def typed(source):
    """A batch or a stream with typed values and nothing else."""
    return lambda stream=False, **options: source(
        stream, **({"columns": "value", "value_schema": "typed"} | options)
    )


@pytest.mark.parametrize("make", [AvroSchema, JsonSchema])
@pytest.mark.parametrize("files", [False, True])
def test_records_are_structs(typed, spark, cluster, publish, topic, make, files):
    older = older_flight()
    publish(make(older), older(6, NOON.date()))
    publish(make(Flight), *FLIGHTS)
    if files:
        read = spark.read.format("velaray").options(
            data_dir=cluster.config.data_dir, topic=topic, columns="value", value_schema="typed"
        )
        rows = read.load()
    else:
        rows = typed()
    assert rows.schema.simpleString() == (
        "struct<value:struct<number:bigint,day:date,stops:array<struct<port:string,at:timestamp>>,"
        "delays:map<string,double>,gate:string>>"
    )
    found = rows.select("value.*", "value.stops.at").where("number is not null").collect()
    assert [(row.number, row.gate, row.delays) for row in found] == [
        (6, None, {}),
        (7, "B2", {"snow": 0.5}),
        (8, None, {}),
    ]
    assert found[1].at == [NOON.replace(tzinfo=None)]
    assert rows.where("value is null").count() == 1


@pytest.mark.parametrize(
    ("schema", "value", "kind"),
    [
        (StringSchema(), "text", "string"),
        (BooleanSchema(), True, "boolean"),
        (Int16Schema(), -5, "smallint"),
        (TimestampSchema(), NOON, "timestamp"),
        (LocalDateTimeSchema(), NOON.replace(tzinfo=None), "timestamp_ntz"),
    ],
)
def test_single_values_have_their_type(typed, publish, schema, value, kind):
    publish(schema, value, None)
    rows = typed()
    assert rows.schema.simpleString() == f"struct<value:{kind}>"
    plain = value.replace(tzinfo=None) if isinstance(value, datetime) else value
    assert [row.value for row in rows.collect()] == [plain, None]


def test_pairs_are_structs_beside_other_columns(typed, publish):
    publish(
        KeyValueSchema(StringSchema(), JsonSchema(Stop), "SEPARATED"),
        KeyValue("k", Stop("EWR", NOON)),
    )
    (row,) = typed(columns="partition,value,schema_version").select("*", "value.*").collect()
    assert (row.partition, bytes(row.schema_version)) == (-1, bytes(8))
    assert (row.key, row[4].port) == ("k", "EWR")


def test_a_stream_keeps_its_first_schema_and_uses_the_newest_after_a_restart(
    typed, spark, publish, tmp_path
):
    older = older_flight()
    publish(AvroSchema(older), older(6, NOON.date()))

    def run(rows):
        write = rows.writeStream.format("parquet").option("checkpointLocation", tmp_path / "c")
        query = write.trigger(availableNow=True).start(str(tmp_path / "out"))
        assert query.awaitTermination(300)

    begun = typed(stream=True, starting_position="earliest")
    publish(AvroSchema(Flight), *FLIGHTS)
    run(begun.selectExpr("value.*"))
    publish(AvroSchema(Flight), Flight(9, NOON.date(), gate="A1"))
    run(typed(stream=True, starting_position="earliest").selectExpr("value.*"))
    found = spark.read.option("mergeSchema", "true").parquet(str(tmp_path / "out")).collect()
    rows = sorted((row.number, row.gate) for row in found if row.number is not None)
    assert rows == [(6, None), (7, None), (8, None), (9, "A1")]


def test_undecodable_values_fail_the_query_or_are_null(typed, publish, topic):
    publish(JsonSchema(Stop), Stop("EWR", NOON))
    publish(None, b'{"port": 3}')
    with pytest.raises(Exception, match="field port must be a str") as caught:
        typed().collect()
    assert "UndecodableMessage" in str(caught.value) and topic in str(caught.value)
    rows = typed(on_undecodable="null").collect()
    assert [row.value and row.value.port for row in rows] == ["EWR", None]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "has no schema"),
        ({"value_schema": "avro"}, "give bytes or typed"),
        ({"on_undecodable": "skip"}, "give fail or null"),
    ],
)
def test_bad_options_are_refused(typed, client, topic, options, says):
    client.create_producer(topic).close()
    with pytest.raises(Exception, match=says) as caught:
        typed(**options).collect()
    assert "InvalidConfiguration" in str(caught.value)
