"""Spark's sink: the output of a query counts exactly once, also after failures."""

import json
from collections import Counter
from datetime import UTC, datetime

import pytest

import velaray

pytestmark = pytest.mark.slow

TIME = datetime(2013, 1, 2, 3, 4, 5, 678000, UTC)


@pytest.fixture
def files(tmp_path):
    """A folder of rows that a query reads file by file."""
    folder = tmp_path / "in"
    folder.mkdir()

    def add(name, values):
        lines = "\n".join(json.dumps({"value": value}) for value in values)
        (folder / f"{name}.json.tmp").write_text(lines)
        (folder / f"{name}.json.tmp").rename(folder / f"{name}.json")

    add.folder = folder
    return add


@pytest.fixture
def run(spark, cluster, topic, files, tmp_path):
    """Runs the query on what there is, from its checkpoint, one file per batch."""
    from tests.spark.faults import FaultyDataSource

    spark.dataSource.register(FaultyDataSource)
    faults = tmp_path / "faults"
    faults.mkdir()

    def run(fault=None, **options):
        if fault is not None:
            (faults / fault).touch()
        rows = spark.readStream.schema("value string").option("maxFilesPerTrigger", 1)
        query = (
            rows.json(str(files.folder))
            .repartition(2)
            .writeStream.format("velaray-faulty")
            .option("faults", str(faults))
            .option("service_url", cluster.service_url)
            .option("topic", topic)
            .options(**options)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination(60)
        finally:
            query.stop()
        assert fault is None or not (faults / fault).exists()

    return run


def values(messages):
    return Counter(message.data().decode() for message in messages)


def test_a_batch_write_has_every_column(spark, cluster, topic, contents):
    other = topic + "-other"
    rows = [
        (b"plain", None, None, None, topic),
        (b"keyed", "k", None, None, topic),
        (b"full", "k", {"a": "b", "c": "d"}, TIME, topic),
        (None, "k", {}, None, topic),
        (b"elsewhere", None, {"a": "b"}, TIME, other),
    ]
    schema = "value binary, key string, properties map<string,string>, event_time timestamp, "
    frame = spark.createDataFrame(rows, schema + "topic string").coalesce(1)
    url = cluster.service_url
    frame.write.format("velaray").option("service_url", url).mode("append").save()
    found = {message.data(): message for message in contents(topic)}
    assert set(found) == {b"plain", b"keyed", b"full", b""}
    full = found[b"full"]
    assert full.partition_key() == "k" and full.properties() == {"a": "b", "c": "d"}
    assert full.event_timestamp() == TIME.timestamp() * 1000
    assert found[b"keyed"].partition_key() == "k" and found[b""].has_null_value()
    assert found[b"plain"].partition_key() == "" and found[b"plain"].event_timestamp() == 0
    assert [message.data() for message in contents(other)] == [b"elsewhere"]


def test_a_run_key_makes_a_batch_write_count_once(spark, cluster, topic, contents):
    frame = spark.range(100).selectExpr("cast(id as string) as value")
    writer = frame.write.format("velaray").option("service_url", cluster.service_url)
    writer = writer.option("topic", topic).mode("append")
    for _ in range(2):
        writer.option("run_key", "flights of 2013").save()
    assert values(contents(topic)) == Counter(map(str, range(100)))
    writer.option("run_key", "flights of 2014").save()
    assert set(values(contents(topic)).values()) == {2}


@pytest.mark.parametrize(
    ("select", "options", "says"),
    [
        ("id as value", {}, "column 'value' of type bigint"),
        ("cast(id as string) as value, id as extra", {}, "column 'extra' of type bigint"),
        ("cast(id as string) as key", {}, 'a column "value"'),
        ("cast(id as string) as value", {"topic": ""}, "either"),
        ("cast(id as string) as value", {"service_url": ""}, "service_url"),
        ("cast(id as string) as value", {"transaction_timeout": "soon"}, "transaction_timeout"),
        ("cast(id as string) as value", {"tropic": "t"}, "no option tropic"),
    ],
)
def test_invalid_writes_are_refused_before_anything_runs(
    spark, cluster, topic, client, select, options, says
):
    writer = spark.range(3).selectExpr(*select.split(", ")).write.format("velaray")
    given = {"service_url": cluster.service_url, "topic": topic} | options
    with pytest.raises(Exception, match=says) as caught:
        writer.options(**given).mode("append").save()
    assert "InvalidConfiguration" in str(caught.value)
    with pytest.raises(velaray.TopicNotFound):
        client.create_reader(topic, velaray.MessageId.earliest)


def test_overwriting_a_topic_is_refused(spark, cluster, topic):
    frame = spark.range(3).selectExpr("cast(id as string) as value")
    writer = frame.write.format("velaray").option("service_url", cluster.service_url)
    with pytest.raises(Exception, match="append"):
        writer.option("topic", topic).mode("overwrite").save()


def test_an_attempt_that_fails_while_it_publishes_does_not_count(run, files, topic, contents):
    files("one", range(50))
    run("in write")
    assert values(contents(topic)) == Counter(map(str, range(50)))


def test_an_attempt_lost_after_publishing_does_not_count_and_does_not_block_readers(
    run, files, topic, contents
):
    files("one", range(50))
    run("after write")
    assert values(contents(topic)) == Counter(map(str, range(50)))


@pytest.mark.parametrize("fault", ["before commit", "after commit"])
def test_a_query_killed_during_its_commit_repeats_the_batch_and_it_counts_once(
    run, files, topic, contents, fault
):
    files("one", range(50))
    with pytest.raises(Exception, match=fault):
        run(fault)
    committed = Counter(map(str, range(50))) if fault == "after commit" else Counter()
    assert values(contents(topic)) == committed
    files("two", range(50, 80))
    run()
    assert values(contents(topic)) == Counter(map(str, range(80)))


def test_a_batch_whose_commit_spark_did_not_record_counts_once(
    run, files, topic, contents, tmp_path
):
    files("one", range(50))
    files("two", range(50, 80))
    run()
    for name in ("1", ".1.crc"):
        (tmp_path / "checkpoint" / "commits" / name).unlink()
    files("three", range(80, 90))
    run()
    assert values(contents(topic)) == Counter(map(str, range(90)))
    assert (tmp_path / "checkpoint" / "commits" / "2").exists()
