"""Spark on Ray: sessions outlive the deaths of masters and workers, and nothing outlives Spark."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

from tests.ray.support import wait_until
from tests.support.local_cluster import LocalCluster
from tests.support.spark import end_jvm, missing, processes_naming
from velaray.client.exceptions import InvalidConfiguration
from velaray.pipelines import NotEnoughResources, SparkMissing, SparkOnRay, SparkSetupError
from velaray.pipelines.spark_on_ray_actors import SparkProcess

GENEROUS_S = 400.0  # seven JVMs start, maybe on a machine that has other work
pytestmark = pytest.mark.timeout(900)
needs_spark = pytest.mark.skipif(bool(missing()), reason=missing() or "Spark can run")

DRIVER = """
import sys
import ray
from velaray.pipelines import SparkOnRay

ray.init(address=sys.argv[1], log_to_driver=False)
spark_on_ray = SparkOnRay(workers=1, timeout=400)
spark = spark_on_ray.session()
assert spark.range(10).count() == 10
print(spark_on_ray.folder, spark.sparkContext._gateway.proc.pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def ray_address() -> Iterator[str]:
    """A Ray cluster of one node with three CPUs."""
    context = ray.init(
        address="local",
        num_cpus=3,
        include_dashboard=False,
        object_store_memory=100 << 20,
        log_to_driver=False,
    )
    yield context.address_info["gcs_address"]
    ray.shutdown()


@pytest.fixture(scope="module")
def spark_on_ray(ray_address: str) -> Iterator[SparkOnRay]:
    """Two workers; sessions start a JVM of their own, whatever tests ran before."""
    end_jvm()
    with SparkOnRay(workers=2, timeout=GENEROUS_S) as running:
        yield running


def total(spark: Any) -> int:
    """What a job with a shuffle finds: half a million less a bit."""
    return int(spark.range(0, 1000, 1, 4).repartition(3).selectExpr("sum(id)").first()[0])


def role(running: SparkOnRay, name: str) -> SparkProcess:
    """The process of that role, once it runs."""

    def found() -> list[SparkProcess]:
        return [each for each in running.processes() if each.role == name]

    return wait_until(found, f"{name} runs", GENEROUS_S)[0]


@needs_spark
def test_ray_must_be_connected() -> None:
    ray.shutdown()
    with pytest.raises(SparkSetupError, match=r"ray\.init\(\) first"):
        SparkOnRay()


@needs_spark
@pytest.mark.long
def test_a_job_runs_on_workers_with_reserved_resources(spark_on_ray: SparkOnRay) -> None:
    spark = spark_on_ray.session(config={"spark.sql.shuffle.partitions": "3"})
    assert total(spark) == 499_500
    assert spark.conf.get("spark.sql.shuffle.partitions") == "3"
    assert spark.sparkContext.master == spark_on_ray.master_url
    places = spark.sparkContext.parallelize(range(8), 8).map(lambda _: os.getppid()).collect()
    assert os.getpid() not in places, "tasks run in executors"
    assert ray.available_resources()["CPU"] == 1, "two of three are set aside"
    assert {each.role for each in spark_on_ray.processes()} == {"master", "worker-0", "worker-1"}


@needs_spark
@pytest.mark.slow
def test_topics_are_read_and_written_by_tasks_on_ray(
    spark_on_ray: SparkOnRay, tmp_path: Path
) -> None:
    spark = spark_on_ray.session()
    with LocalCluster(tmp_path / "data") as cluster:
        where = {"service_url": cluster.service_url}
        rows = spark.range(20).selectExpr("cast(id as string) as value")
        rows.write.format("velaray").options(**where, topic="numbers").mode("append").save()
        read = spark.readStream.format("velaray").options(
            **where, topic="numbers", columns="value", starting_position="earliest"
        )
        writing = (
            read.load()
            .writeStream.format("velaray")
            .options(**where, topic="copy", checkpointLocation=str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert writing.awaitTermination(GENEROUS_S)
        copied = spark.read.format("velaray").options(**where, topic="copy").load()
        assert sorted(int(row.value) for row in copied.collect()) == list(range(20))


@needs_spark
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "victim"),
    [
        ("worker-0", "jvm_pid"),
        pytest.param("worker-1", "actor_pid", marks=pytest.mark.long),
        pytest.param("master", "jvm_pid", marks=pytest.mark.long),
    ],
)
def test_the_same_session_continues_after_a_kill(
    spark_on_ray: SparkOnRay, name: str, victim: str
) -> None:
    spark = spark_on_ray.session()
    before = role(spark_on_ray, name)
    os.kill(getattr(before, victim), signal.SIGKILL)
    assert total(spark) == 499_500, "it goes on with what is left"

    def both_are_new() -> bool:
        now = role(spark_on_ray, name)
        return now.actor_pid != before.actor_pid and now.jvm_pid != before.jvm_pid

    wait_until(both_are_new, f"another {name}", GENEROUS_S)
    wait_until(lambda: spark_on_ray.workers_alive() == 2, "both workers", GENEROUS_S)
    assert not Path(f"/proc/{before.jvm_pid}").exists()
    assert total(spark) == 499_500


@pytest.mark.long
@needs_spark
def test_nothing_is_left_when_the_driver_is_killed(
    ray_address: str, spark_on_ray: SparkOnRay, tmp_path: Path
) -> None:
    errors = tmp_path / "errors"
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, ray_address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors.open("w"),
        text=True,
    )
    with driver:
        assert driver.stdout is not None
        told = driver.stdout.readline()
        assert told, errors.read_text()[-3000:]
        folder, gateway = told.split()
        assert len(processes_naming(folder)) >= 3, "master, worker, executor"
        driver.kill()
    wait_until(lambda: not processes_naming(folder), "the end of all daemons", GENEROUS_S)
    wait_until(lambda: not Path(f"/proc/{gateway}").exists(), "the driver's JVM", GENEROUS_S)
    assert processes_naming(spark_on_ray.folder), "another cluster's aren't touched"


@needs_spark
@pytest.mark.slow
def test_an_error_about_missing_resources_lists_the_available_ones(
    ray_address: str, spark_on_ray: SparkOnRay
) -> None:
    with pytest.raises(NotEnoughResources, match=r"9 Spark workers of 1 cores.*has 3 CPUs.*fewer"):
        SparkOnRay(workers=9, timeout=1)
    with pytest.raises(NotEnoughResources, match=r"and 1048576 MiB each"):
        SparkOnRay(workers=1, memory=1 << 40, timeout=1)
    assert ray.available_resources()["CPU"] == 1, "nothing stays set aside"


@needs_spark
@pytest.mark.slow
def test_stopping_leaves_nothing(spark_on_ray: SparkOnRay) -> None:
    gateway = spark_on_ray.session().sparkContext._gateway.proc.pid
    assert processes_naming(spark_on_ray.folder)
    spark_on_ray.stop()
    assert not processes_naming(spark_on_ray.folder)
    wait_until(lambda: not Path(f"/proc/{gateway}").exists(), "the driver's JVM ends")
    assert not Path(spark_on_ray.folder).exists()
    wait_until(lambda: ray.available_resources().get("CPU") == 3, "Ray has all back")
    spark_on_ray.stop()


@pytest.mark.parametrize(
    ("sizes", "fault"),
    [
        ({"workers": 0}, "workers=0"),
        ({"cores": 0.5}, "cores=0.5"),
        ({"memory": -1}, "memory=-1"),
        ({"memory": 500 << 20}, "at least 834 MiB"),
    ],
)
def test_invalid_sizes_are_refused(sizes: dict[str, Any], fault: str) -> None:
    with pytest.raises(InvalidConfiguration, match=fault):
        SparkOnRay(**sizes)


def java_of(folder: Path, version: str) -> Path:
    """A Java that is only a version."""
    java = folder / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)
    return folder


def test_missing_or_old_java_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SparkMissing, match=f"no Java below JAVA_HOME={tmp_path}"):
        SparkOnRay()
    monkeypatch.setenv("JAVA_HOME", str(java_of(tmp_path, "11.0.2")))
    with pytest.raises(SparkMissing, match="is Java 11: Spark needs 17"):
        SparkOnRay()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SparkMissing, match="no Java on PATH"):
        SparkOnRay()


def test_missing_pyspark_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("velaray.pipelines.spark_on_ray_needs.find_spec", lambda name: None)
    with pytest.raises(SparkMissing, match=r"pip install 'velaray\[spark\]'"):
        SparkOnRay()


def test_importing_pipelines_needs_neither_spark_nor_ray() -> None:
    script = "import sys, velaray.pipelines; print({'pyspark', 'ray'} & set(sys.modules))"
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert told.stdout.strip() == "set()", told.stderr
