"""Spark's source: kills between the steps of a batch lose and duplicate nothing."""

from collections import Counter

import pytest

pytestmark = pytest.mark.slow

STEPS = ["after planning", "before reading", "before moving the mark"]


@pytest.fixture
def copy(spark, cluster, topic, tmp_path):
    """Copies the topic in limited batches, with a fault if there is one to happen."""
    from tests.spark.faults import FaultySourceAndSink

    spark.dataSource.register(FaultySourceAndSink)
    faults = tmp_path / "faults"
    faults.mkdir()

    def copy(fault=None, checkpoint="checkpoint", **options):
        if fault is not None:
            (faults / fault).touch()
        query = (
            spark.readStream.format("velaray-faulty-source")
            .option("faults", str(faults))
            .options(service_url=cluster.service_url, topic=topic, columns="key,value")
            .options(**{"starting_position": "earliest", **options})
            .option("max_messages_per_trigger", 20)
            .load()
            .writeStream.format("velaray")
            .options(service_url=cluster.service_url, topic=topic + "-copy")
            .option("checkpointLocation", str(tmp_path / checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination(300)
        finally:
            query.stop()
        assert fault is None or not (faults / fault).exists()

    return copy


def send(client, topic, values):
    values = list(values)
    with client.create_producer(topic) as producer:
        for at in range(0, len(values), 5):
            some = values[at : at + 5]
            producer.send_many([b"%d" % value for value in some], keys=[f"{at}"] * len(some))


@pytest.mark.long
def test_every_message_counts_once_if_the_driver_dies_at_any_step(
    copy, make_topic, client, topic, contents, counted
):
    make_topic(topic, 2)
    send(client, topic, range(50))
    copy()
    for number, fault in enumerate(STEPS, 1):
        send(client, topic, range(50 * number, 50 * number + 50))
        with pytest.raises(Exception, match=r"STREAM_FAILED"):
            copy(fault)
        copy()
    assert counted(contents(topic + "-copy")) == Counter(map(str, range(50 * len(STEPS) + 50)))


def test_a_repeated_first_batch_begins_at_the_same_position(copy, client, topic, contents, counted):
    send(client, topic, range(10))
    with pytest.raises(Exception, match=r"STREAM_FAILED"):
        copy("before reading", starting_position="latest")
    send(client, topic, range(10, 20))
    copy(starting_position="latest")
    assert counted(contents(topic + "-copy")) == Counter(map(str, range(10, 20)))


def test_a_task_that_fails_in_the_middle_is_retried(copy, client, topic, contents, counted):
    send(client, topic, range(50))
    copy("in reading")
    assert counted(contents(topic + "-copy")) == Counter(map(str, range(50)))


def test_a_fresh_checkpoint_starts_again_although_its_mark_reuses_a_name(
    copy, client, topic, contents, counted
):
    send(client, topic, range(50))
    copy(subscription="mark")
    copy(subscription="mark", checkpoint="fresh")
    send(client, topic, range(50, 60))
    copy(subscription="mark", checkpoint="fresh")
    assert counted(contents(topic + "-copy")) == Counter(
        dict.fromkeys(map(str, range(50)), 2) | dict.fromkeys(map(str, range(50, 60)), 1)
    )
