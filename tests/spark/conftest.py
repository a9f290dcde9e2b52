"""One Spark session and one cluster in this process, for all tests of the data source."""

import itertools
import os
import sys
from collections import Counter

import pytest

import velaray
from tests.support.by_name import call_by_name
from tests.support.local_cluster import LocalCluster
from tests.support.spark import missing
from velaray.events.ids import ActorKey

_numbers = itertools.count(1)


@pytest.fixture(scope="package")
def spark():
    """A local session with two task slots that tries failed tasks again."""
    sql = pytest.importorskip("pyspark.sql", reason="pyspark isn't installed")
    from velaray.pipelines import register

    if why := missing():
        pytest.skip(why)
    # Spark calls Python back over select(), which knows no file above the 1024th: it would hang.
    assert len(os.listdir("/proc/self/fd")) < 700, "tests before these left files open"
    os.environ.update(
        PYSPARK_PYTHON=sys.executable,
        PYSPARK_DRIVER_PYTHON=sys.executable,
        SPARK_LOCAL_IP="127.0.0.1",
        PYTHONPATH=os.pathsep.join(filter(None, [os.getcwd(), os.environ.get("PYTHONPATH")])),
    )
    session = (
        sql.SparkSession.builder.master("local[2,4]")
        .appName("velaray tests")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.streaming.stopTimeout", "60s")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    register(session)
    yield session
    session.stop()


@pytest.fixture(scope="package")
def cluster(tmp_path_factory):
    with LocalCluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="package")
def client(cluster):
    with velaray.Client(cluster.service_url, operation_timeout_seconds=15) as made:
        yield made


@pytest.fixture
def topic():
    return f"persistent://public/default/spark-{next(_numbers)}"


@pytest.fixture
def make_topic(cluster):
    """Makes a topic with that many partitions."""

    def make(topic, partitions):
        work = call_by_name(
            cluster.actor_system,
            ActorKey.catalog(),
            "create_topic",
            {"topic": topic, "partitions": partitions},
        )
        cluster.run(work)

    return make


@pytest.fixture
def contents(client):
    """All messages of a topic that count, read until there are no more."""

    def read(topic):
        found = []
        with client.create_reader(topic, velaray.MessageId.earliest) as reader:
            while reader.has_message_available():
                found.append(reader.read_next(10_000))
        return found

    return read


@pytest.fixture
def counted():
    """How often each value comes among messages."""
    return lambda messages: Counter(message.data().decode() for message in messages)


@pytest.fixture
def source(spark, cluster, topic):
    """Options of a source of the topic, for a stream or a batch."""

    def made(stream=False, **options):
        reader = spark.readStream if stream else spark.read
        named = {} if {"topics", "topics_pattern"} & options.keys() else {"topic": topic}
        given = {"service_url": cluster.service_url} | named | options
        return reader.format("velaray").options(**given).load()

    return made


@pytest.fixture
def writing(source, topic, tmp_path):
    """A query's writer: of the topic's keys and values from the beginning, from a checkpoint."""

    def made(checkpoint="checkpoint", **options):
        options = {"columns": "key,value", "starting_position": "earliest"} | options
        rows = source(stream=True, **options)
        return rows.writeStream.option("checkpointLocation", str(tmp_path / checkpoint))

    return made


@pytest.fixture
def run(writing):
    """Runs a query up to what there is now, and returns its progress by batches."""

    def run(write, **options):
        query = write(writing(**options)).trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(300)
        finally:
            query.stop()
        return query.recentProgress

    return run


@pytest.fixture
def copy(run, cluster, topic):
    """Copies the topic to another one, up to what there is now."""

    def copy(to=topic + "-copy", **options):
        def write(writer):
            where = {"service_url": cluster.service_url, "topic": to}
            return writer.format("velaray").options(**where)

        return run(write, **options)

    return copy


@pytest.fixture
def driver(cluster, topic):
    """Makes a query that is driven as Spark would, without Spark."""
    pytest.importorskip("pyspark", reason="pyspark isn't installed")
    from tests.spark.driving import Driver

    def made(**options):
        named = {} if {"topics", "topics_pattern"} & options.keys() else {"topic": topic}
        return Driver(**({"service_url": cluster.service_url} | named | options))

    return made
