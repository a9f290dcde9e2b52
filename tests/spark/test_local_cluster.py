"""A query whose executors are processes of their own, which die: everything counts once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import velaray
from tests.support.spark import missing, processes_naming
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(missing()), reason=missing() or "Spark can run"),
]
WITHIN_S = 400.0
ROWS = 600

DRIVER = """
import sys
from pyspark.sql import SparkSession
from velaray.pipelines import register

url, topic, folder = sys.argv[1:]
spark = (
    SparkSession.builder.master("local-cluster[2,1,1024]")
    .config("spark.ui.enabled", "false")
    .config("spark.executor.memory", "512m")
    .config("spark.driver.memory", "512m")
    .config("spark.local.dir", folder)
    .config("spark.task.maxFailures", "8")
    .getOrCreate()
)
register(spark)
rows = (
    spark.readStream.format("velaray").option("service_url", url).option("topic", topic)
    .option("starting_position", "earliest").option("columns", "value")
    .option("max_messages_per_trigger", 60).load()
)
query = (
    rows.writeStream.format("velaray").option("service_url", url).option("topic", topic + "-out")
    .option("checkpointLocation", folder + "/checkpoint").start()
)
for line in sys.stdin:
    print(query.lastProgress["batchId"] if query.lastProgress else -1, flush=True)
query.stop()
spark.stop()
"""


def executors(folder: Path) -> list[int]:
    """The processes that run tasks, but not what they start."""
    return [
        pid
        for pid in processes_naming(str(folder))
        if b"CoarseGrainedExecutorBackend" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]


@pytest.fixture
def query(cluster, make_topic, topic, tmp_path):
    """Runs the query in a process of its own; ends with all its processes gone."""
    make_topic(topic, 2)
    script = tmp_path / "driver.py"
    script.write_text(DRIVER)
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.getcwd(),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_WORKER_DIR": str(tmp_path / "work"),
    }
    with (tmp_path / "errors").open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, str(script), cluster.service_url, topic, str(tmp_path)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    yield process
    process.stdin.close()
    process.wait(60)
    wait_until(lambda: not processes_naming(str(tmp_path / "work")), 60)


def test_killed_executors_lose_nothing(query, client, contents, topic, tmp_path):
    target = topic + "-out"
    with client.create_producer(topic, batching_enabled=True) as producer:
        producer.send_many([b"%d" % number for number in range(ROWS // 2)])

    def copied() -> Counter[int]:
        return Counter(int(message.data()) for message in contents(target))

    def come(count: int) -> Any:
        assert query.poll() is None, (tmp_path / "errors").read_text()[-3000:]
        try:
            return len(found := copied()) >= count and found
        except velaray.VelarayError:
            return False  # nothing was written yet: there is no such topic

    killed = 0
    wait_until(lambda: come(1), WITHIN_S)
    for pid in executors(tmp_path)[:1]:
        os.kill(pid, signal.SIGKILL)
        killed += 1
    wait_until(lambda: come(ROWS // 2), WITHIN_S)
    with client.create_producer(topic, batching_enabled=True) as producer:
        producer.send_many([b"%d" % number for number in range(ROWS // 2, ROWS)])
    for pid in executors(tmp_path)[:1]:
        os.kill(pid, signal.SIGKILL)
        killed += 1
    assert wait_until(lambda: come(ROWS), WITHIN_S) == Counter(range(ROWS))
    assert killed == 2
