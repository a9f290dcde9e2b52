"""Queries of several topics: lists, patterns, and what comes to them meanwhile."""

from collections import Counter

import pytest

import velaray
from velaray.client.exceptions import InvalidConfiguration, TopicNotFound
from velaray.pipelines.spark_losses import DataLossError

pytest.importorskip("pyspark", reason="pyspark isn't installed")

from velaray.pipelines.spark_batch import BatchSource
from velaray.pipelines.spark_typed import typed_value


def send(client, topic, *values):
    with client.create_producer(topic) as producer:
        producer.send_many([value.encode() for value in values])


def test_a_list_of_topics_is_read_by_one_query(driver, make_topic, client, topic):
    make_topic(topic + "-b", 2)
    send(client, topic + "-a", "1", "2")
    send(client, topic + "-b-partition-1", "3")
    assert Counter(driver(topics=f"{topic}-a, {topic}-b").run()) == Counter([b"1", b"2", b"3"])


def test_a_pattern_includes_topics_and_partitions_created_later(
    driver, make_topic, cluster, client, topic
):
    send(client, topic + "-in-a", "1")
    send(client, topic + "-other", "no")
    query = driver(topics_pattern=topic + "-in-.*", starting_position="latest")
    assert query.run() == []
    make_topic(topic + "-in-b", 1)
    send(client, topic + "-in-b-partition-0", "2")
    send(client, topic + "-in-a", "3")
    assert Counter(query.run()) == Counter([b"2", b"3"])
    velaray.Admin(cluster.admin_url).grow_partitions(topic + "-in-b", 2)
    send(client, topic + "-in-b-partition-1", "4")
    assert Counter(query.run()) == Counter([b"2", b"3", b"4"])


def test_a_deleted_topic_of_a_pattern_is_a_loss(driver, cluster, client, topic):
    for name in ("a", "b"):
        send(client, f"{topic}-in-{name}", name)
    query = driver(topics_pattern=topic + "-in-.*")
    query.run()
    velaray.Admin(cluster.admin_url).delete_topic(topic + "-in-a", force=True)
    send(client, topic + "-in-b", "c")
    with pytest.raises(DataLossError, match="-in-a was deleted"):
        query.run()
    query.run(fail_on_data_loss="false")
    assert Counter(query.run()) == Counter([b"a", b"b", b"c"])


@pytest.fixture
def known(cluster):
    """The names of the topics that there are."""
    return lambda: velaray.Admin(cluster.admin_url).topics("public/default").keys()


def test_sources_refuse_a_mistyped_topic(driver, cluster, client, topic, known):
    send(client, topic + "-in", "1")
    before = known()
    for wrong in ({"topic": topic + "-im"}, {"topics": f"{topic}-in,{topic}-im"}):
        batch = BatchSource({"service_url": cluster.service_url} | wrong)
        for read in (driver(**wrong).run, batch.partitions):
            with pytest.raises(TopicNotFound, match=f"no topic {topic}-im.* nearest .*{topic}-in"):
                read()
    typed = {"service_url": cluster.service_url, "topic": topic + "-im", "value_schema": "typed"}
    with pytest.raises(TopicNotFound, match="nearest"):
        typed_value(typed)
    assert known() == before


def test_a_new_query_creates_topics_on_demand(driver, client, topic, known):
    query = driver(topic=topic + "-new", create_topics="true")
    query.run()
    assert topic + "-new" in known()
    send(client, topic + "-new", "1")
    query.run()
    assert query.values == [b"1"]


def test_a_deleted_topic_of_a_list_is_a_loss_and_not_recreated(
    driver, cluster, client, topic, known
):
    for name in ("a", "b"):
        send(client, f"{topic}-{name}", name)
    query = driver(topics=f"{topic}-a,{topic}-b")
    query.run()
    velaray.Admin(cluster.admin_url).delete_topic(topic + "-a", force=True)
    with pytest.raises(DataLossError, match="-a was deleted"):
        query.run()
    for value in ("c", "d"):
        send(client, topic + "-b", value)
        query.run(fail_on_data_loss="false")
    assert Counter(query.values) == Counter([b"a", b"b", b"c", b"d"])
    assert topic + "-a" not in known()


def test_a_restart_with_a_mistyped_new_topic_is_refused(driver, client, topic, known):
    send(client, topic + "-in", "1")
    query = driver(topics=topic + "-in")
    query.run()
    before = known()
    with pytest.raises(TopicNotFound, match=f"{topic}-im.* nearest .*{topic}-in"):
        query.run(topics=f"{topic}-in,{topic}-im")
    query.run(topics=f"{topic}-in,{topic}-im", fail_on_data_loss="false")
    assert known() == before


@pytest.mark.slow
def test_a_running_query_finds_a_new_topic_of_its_pattern(writing, client, topic):
    send(client, topic + "-in-a", "a")
    seen = []
    query = (
        writing(topics_pattern=topic + "-in-.*")
        .foreachBatch(lambda frame, _: seen.extend(bytes(row.value) for row in frame.collect()))
        .start()
    )
    try:
        query.processAllAvailable()
        send(client, topic + "-in-b", "b")
        while len(seen) < 2:
            query.processAllAvailable()
    finally:
        query.stop()
    assert sorted(seen) == [b"a", b"b"]


@pytest.mark.parametrize("pattern", ["a/b", "public/default/(("])
def test_an_invalid_pattern_is_refused(driver, pattern):
    with pytest.raises(InvalidConfiguration, match="topic pattern"):
        driver(topics_pattern=pattern).run()
