"""A query from topic to topic counts every message once, for failures between any two steps."""

import threading
from collections import Counter

import pyarrow as pa
import pytest

import velaray
from tests.support.waiting import wait_until
from velaray.client.exceptions import InvalidTxnStatusError, NotAllStored
from velaray.events.ids import ActorKind
from velaray.pipelines.spark_options import Options

pytestmark = pytest.mark.slow


@pytest.fixture
def publish(client, topic):
    """Publishes numbers to the query's input."""
    with client.create_producer(topic, batching_enabled=True) as producer:
        yield lambda numbers: producer.send_many([b"%d" % number for number in numbers])


@pytest.fixture
def target(topic):
    return topic + "-out"


@pytest.fixture
def faults(tmp_path):
    folder = tmp_path / "faults"
    folder.mkdir()
    return folder


@pytest.fixture
def run(spark, cluster, topic, target, faults, tmp_path):
    """Runs the query on what there is, from its checkpoint."""
    from tests.spark.faults import FaultyDataSource

    spark.dataSource.register(FaultyDataSource)

    def run():
        where = {"service_url": cluster.service_url, "faults": str(faults)}
        rows = spark.readStream.format("velaray-faulty").options(**where).option("topic", topic)
        rows = rows.option("starting_position", "earliest").option("columns", "value").load()
        query = (
            rows.repartition(2)
            .writeStream.format("velaray-faulty")
            .options(**where, topic=target)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination(60)
        finally:
            query.stop()

    return run


def values(messages):
    return Counter(int(message.data()) for message in messages)


@pytest.mark.parametrize(
    "fault", [pytest.param("in write", marks=[pytest.mark.long]), "after write"]
)
def test_a_failed_task_is_retried(run, publish, contents, target, faults, fault):
    publish(range(20))
    (faults / fault).touch()
    run()
    assert not (faults / fault).exists()
    assert values(contents(target)) == Counter(range(20))


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param("before commit", marks=[pytest.mark.long]),
        "after commit",
        "before the mark moves",
        pytest.param("after the mark moved", marks=[pytest.mark.long]),
    ],
)
def test_a_killed_driver_continues_from_its_checkpoint(
    run, publish, contents, target, faults, fault
):
    publish(range(20))
    run()
    publish(range(20, 30))
    (faults / fault).touch()
    with pytest.raises(Exception, match=fault):
        run()
    assert not (faults / fault).exists()
    publish(range(30, 40))
    run()
    run()
    assert values(contents(target)) == Counter(range(40))


def test_a_driver_killed_before_spark_records_its_commit_repeats_the_batch(
    run, publish, contents, target, tmp_path
):
    publish(range(20))
    run()
    publish(range(20, 30))
    run()
    for name in ("1", ".1.crc"):
        (tmp_path / "checkpoint" / "commits" / name).unlink()
    publish(range(30, 40))
    run()
    assert values(contents(target)) == Counter(range(40))


def test_a_commit_is_repeated_after_a_kill_of_its_coordinator(
    run, publish, contents, target, faults, cluster
):
    publish(range(20))
    (faults / "wait before commit").touch()

    def kill() -> None:
        wait_until((faults / "waiting").exists, 60)
        (coordinator,) = cluster.keys(ActorKind.COORDINATOR)
        cluster.kill(coordinator)
        (faults / "waiting").unlink()

    killer = threading.Thread(target=kill)
    killer.start()
    run()
    killer.join()
    assert values(contents(target)) == Counter(range(20))


class Attempts:
    """What Spark's tasks and driver do, without Spark: batches of a query's sink."""

    def __init__(self, url: str, topic: str) -> None:
        from velaray.pipelines.spark_sink import Target

        given = {"service_url": url, "topic": topic}
        self.target = Target.of(Options(given, set(given), "a test"))
        self.commit_sequence = self.target.commit_sequence(topic)

    def write(self, number, *batches):
        """What a task attempt does; batches may be functions that return one."""
        rows = (batch() if callable(batch) else batch for batch in batches)
        return self.target.publish(self.commit_sequence, number, rows)


def batch_of(*numbers):
    return pa.record_batch({"value": [str(number) for number in numbers]})


@pytest.fixture
def attempts(cluster, target):
    pytest.importorskip("pyspark", reason="pyspark isn't installed")
    return Attempts(cluster.service_url, target)


def test_an_overtaken_attempt_publishes_nothing(attempts, contents, target):
    def overtaken():
        attempts.target.commit(0, [attempts.write(0, batch_of(1, 2))])
        return batch_of(2)

    # The first batch is on its way meanwhile: it may come before the abort, or after it.
    with pytest.raises((NotAllStored, InvalidTxnStatusError), match=r"is ABORT|is over"):
        attempts.write(0, batch_of(1), overtaken)
    seen = []
    late = attempts.write(0, batch_of(1), lambda: seen.append("the end") or batch_of(2))
    assert late.txn is None
    assert seen, "a stateful operator keeps its state when all of its rows were taken"
    attempts.target.commit(1, [attempts.write(1, batch_of(3))])
    assert values(contents(target)) == Counter([1, 2, 3])


def test_one_of_two_attempts_counts(attempts, contents, target):
    first, second = (attempts.write(0, batch_of(1, 2)) for _ in range(2))
    assert first.txn != second.txn
    attempts.target.commit(0, [None, second])
    attempts.target.abort([first, second])
    attempts.target.commit(0, [first])
    assert values(contents(target)) == Counter([1, 2])


def test_an_abort_after_the_commit_changes_nothing(attempts, contents, target):
    prepared = attempts.write(0, batch_of(1))
    attempts.target.commit(0, [prepared])
    attempts.target.abort([prepared])
    again = attempts.write(1, batch_of(2))
    attempts.target.abort([again])
    attempts.target.commit(1, [attempts.write(1, batch_of(2))])
    assert values(contents(target)) == Counter([1, 2])


class TestForeachBatch:
    @pytest.fixture
    def fan_out(self, spark, cluster, topic, target, tmp_path):
        """Runs a query that writes odd and even numbers to two topics, and all to a third."""
        from velaray.pipelines import batch_writer

        def publish(frame, batch_id):
            with batch_writer(frame, batch_id, service_url=cluster.service_url) as writer:
                kind = f"concat('{target}-', if(cast(string(value) as int) % 2 = 0, 'even', 'odd'))"
                writer.write(frame.selectExpr("value", f"{kind} as topic"))
                if fault := (tmp_path / "fault").exists() and "between":
                    (tmp_path / "fault").unlink()
                    raise RuntimeError(fault)
                writer.write(frame.select("value"), topic=target)
            if (tmp_path / "late fault").exists():
                (tmp_path / "late fault").unlink()
                raise RuntimeError("after the commit")

        def run():
            rows = spark.readStream.format("velaray").option("service_url", cluster.service_url)
            rows = rows.option("topic", topic).option("starting_position", "earliest").load()
            writer = rows.writeStream.foreachBatch(publish).trigger(availableNow=True)
            query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
            try:
                query.awaitTermination(60)
            finally:
                query.stop()

        return run

    def test_all_topics_of_a_batch_count_once(self, fan_out, publish, contents, target, tmp_path):
        publish(range(10))
        fan_out()
        publish(range(10, 20))
        for fault in ("fault", "late fault"):
            (tmp_path / fault).touch()
            with pytest.raises(Exception, match=r"between|after the commit"):
                fan_out()
            assert not (tmp_path / fault).exists()
        publish(range(20, 30))
        fan_out()
        assert values(contents(target)) == Counter(range(30))
        assert values(contents(target + "-even")) == Counter(range(0, 30, 2))
        assert values(contents(target + "-odd")) == Counter(range(1, 30, 2))

    def test_a_batch_writer_outside_foreach_batch_is_refused(self, spark, cluster):
        from velaray.pipelines import batch_writer

        with (
            pytest.raises(velaray.InvalidConfiguration, match="foreachBatch"),
            batch_writer(spark.range(1), 0, service_url=cluster.service_url),
        ):
            pass
