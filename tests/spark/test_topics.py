"""Queries of several topics: lists, patterns, and what comes to them meanwhile."""

from collections import Counter

import pytest

import velaray
from velaray.exceptions import InvalidConfiguration
from velaray.pipelines.spark_losses import DataLossError


def send(client, topic, *values):
    with client.create_producer(topic) as producer:
        producer.send_many([value.encode() for value in values])


def test_a_list_of_topics_is_read_by_one_query(driver, make_topic, client, topic):
    make_topic(topic + "-b", 2)
    send(client, topic + "-a", "1", "2")
    send(client, topic + "-b-partition-1", "3")
    assert Counter(driver(topics=f"{topic}-a, {topic}-b").run()) == Counter([b"1", b"2", b"3"])


def test_a_pattern_takes_up_topics_and_partitions_that_come_later(
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


def test_a_topic_of_a_pattern_that_is_deleted_is_a_loss(driver, cluster, client, topic):
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
def test_no_pattern(driver, pattern):
    with pytest.raises(InvalidConfiguration, match="topic pattern"):
        driver(topics_pattern=pattern).run()
