"""Ray on Spark: it comes up with velaray, leaves nothing, and says when there is no room."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from tests.ray.support import wait_until
from tests.support.spark import missing, processes_naming

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(missing()), reason=missing() or "Spark can run"),
]
GENEROUS_S = 400.0

# Obeys one line after the other, each with one line.
DRIVER = """
import sys
from pyspark.sql import SparkSession
import ray
import velaray
from velaray.pipelines import NotEnoughResources, Transform, TransformRun, on_spark

data, local_dirs = sys.argv[1:]
builder = SparkSession.builder.master("local-cluster[1,2,2048]")
spark = builder.config("spark.local.dir", local_dirs).getOrCreate()
running = None


def start(**sizes):
    global running
    running = on_spark(spark, data, service_port=0, admin_port=0, timeout=200, **sizes)
    return running._folder


def refused(**sizes):
    try:
        on_spark(spark, data, **sizes)
    except NotEnoughResources as error:
        return f"{error}; {ray.is_initialized()}"


def used():
    with velaray.connect() as client:
        with client.subscribe("flights", "board") as consumer:
            with client.create_producer("flights") as producer:
                producer.send(b"departed")
            received = consumer.receive(timeout_millis=60_000).data()
    nodes = [node for node in ray.nodes() if node["Alive"]]
    cpus = ray.cluster_resources()["CPU"]
    return received, len(nodes), cpus, spark.range(10).count()


def loud(messages):
    from velaray.pipelines import Output

    for message in messages:
        yield Output("loud", message.data().upper())


def transformed():
    with velaray.connect() as client:
        with client.create_producer("quiet") as producer:
            producer.send_many([b"a", b"b", b"c"])
        with TransformRun(Transform(loud, source="quiet", subscription="s"), workers=1) as run:
            run.drain(timeout=120)
        with client.create_reader("loud", velaray.MessageId.earliest) as reader:
            found = []
            while reader.has_message_available():
                found.append(reader.read_next(60_000).data())
    return sorted(found)


def stop():
    running.stop()
    running.stop()
    return spark.range(20, numPartitions=2).count(), ray.is_initialized()


for line in sys.stdin:
    print("=", eval(line), flush=True)
spark.stop()
"""


class Driver:
    """A Spark driver in a process of its own."""

    def __init__(self, folder: Path) -> None:
        self._script = folder / "driver.py"
        self._script.write_text(DRIVER)
        self.name = str(folder / "local")
        environment = {
            **os.environ,
            "RAY_ON_SPARK_RAY_WORKER_NODE_STARTUP_INTERVAL": "1",
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_WORKER_DIR": str(folder / "work"),
            "WHO": self.name,
        }
        self._process = subprocess.Popen(
            [sys.executable, str(self._script), str(folder / "data"), self.name],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(folder / "errors").open("w"),
            text=True,
        )
        self._errors = folder / "errors"

    def tell(self, line: str) -> Any:
        """What the driver says to an expression."""
        commands, answers = self._pipes()
        commands.write(line + "\n")
        commands.flush()
        for answer in answers:
            if answer.startswith("= "):
                return answer.removeprefix("= ").strip()
        raise AssertionError(self._fault())

    def _fault(self) -> str:
        """From its last traceback on; what Spark logs is longer than what is wrong."""
        return "Traceback" + self._errors.read_text().rpartition("Traceback")[2][:3000]

    def _pipes(self) -> tuple[IO[str], IO[str]]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        return self._process.stdin, self._process.stdout

    def finish(self) -> None:
        """Let it stop Spark and end."""
        self._pipes()[0].close()
        assert self._process.wait(GENEROUS_S) == 0, self._fault()

    def kill(self) -> None:
        """As a lack of memory would."""
        self._process.kill()
        self._process.wait()


@pytest.fixture
def driver() -> Iterator[Driver]:
    """With Spark on a local cluster of one executor with two cores."""
    with tempfile.TemporaryDirectory(prefix="vr-") as folder:
        driver = Driver(Path(folder))
        yield driver
        driver.kill()


def test_a_transform_runs_on_ray_on_spark(driver: Driver) -> None:
    driver.tell("start()")
    assert driver.tell("transformed()") == "[b'A', b'B', b'C']"
    assert driver.tell("stop()") == "(20, False)"
    driver.finish()


@pytest.mark.long
def test_ray_and_velaray_come_up_on_spark_and_leave_nothing(driver: Driver) -> None:
    slots = driver.tell("refused(nodes=2, timeout=1)")
    assert "2 Ray nodes of 1 cores need 3 cores of Spark" in slots
    assert "Spark has 2 on 1 executors" in slots and slots.endswith("; False")
    memory = driver.tell("refused(memory=1 << 50, timeout=60)")
    assert f"need {(1 << 30) + 128} MiB beside" in memory and "ask for less memory" in memory

    folder = driver.tell("start()")
    assert processes_naming(folder), "Ray's processes name their folder"
    assert driver.tell("used()") == "(b'departed', 2, 1.0, 10)"

    assert driver.tell("stop()") == "(20, False)", "both slots are Spark's again"
    assert not Path(folder).exists()
    wait_until(lambda: not processes_naming(folder), "the end of Ray", GENEROUS_S)
    driver.finish()
    wait_until(lambda: not processes_naming(driver.name), "the end of Spark", GENEROUS_S)


@pytest.mark.long
def test_nothing_is_left_when_the_driver_is_killed(driver: Driver) -> None:
    folder = driver.tell("start()")
    assert processes_naming(folder)
    driver.kill()
    wait_until(lambda: not processes_naming(folder), "the end of Ray", GENEROUS_S)
    wait_until(lambda: not processes_naming(driver.name), "the end of Spark", GENEROUS_S)
