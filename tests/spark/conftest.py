"""One Spark session and one cluster in this process, for all tests of the data source."""

import itertools
import os
import shutil
import sys

import pytest

import velaray
from tests.support.local_cluster import LocalCluster
from velaray.events.ids import ActorKey

_numbers = itertools.count(1)


@pytest.fixture(scope="package")
def spark():
    """A local session with two task slots that tries failed tasks again."""
    sql = pytest.importorskip("pyspark.sql", reason="pyspark isn't installed")
    from velaray.pipelines import register

    if not shutil.which("java") and not os.environ.get("JAVA_HOME"):
        pytest.skip("Spark needs Java 17, and this machine has none")
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
        work = cluster.fabric.call(
            ActorKey.catalog(), "create_topic", {"topic": topic, "partitions": partitions}
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
