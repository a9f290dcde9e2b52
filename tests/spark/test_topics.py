"""Queries of several topics: lists, patterns, and what comes to them meanwhile."""

from collections import Counter

import pytest

import velaray

pytestmark = pytest.mark.slow


def send(client, topic, *values):
    with client.create_producer(topic) as producer:
        producer.send_many([value.encode() for value in values])


def test_a_list_of_topics_is_read_by_one_query(copy, make_topic, client, topic, contents, counted):
    make_topic(topic + "-b", 2)
    send(client, topic + "-a", "1", "2")
    send(client, topic + "-b-partition-1", "3")
    copy(topics=f"{topic}-a, {topic}-b")
    assert counted(contents(topic + "-copy")) == Counter("123")


def test_a_pattern_takes_up_topics_and_partitions_that_come_later(
    copy, make_topic, cluster, client, topic, contents, counted
):
    send(client, topic + "-in-a", "1")
    send(client, topic + "-other", "no")
    pattern = topic + "-in-.*"
    copy(topics_pattern=pattern)
    make_topic(topic + "-in-b", 1)
    send(client, topic + "-in-b-partition-0", "2")
    send(client, topic + "-in-a", "3")
    copy(topics_pattern=pattern)
    velaray.Admin(cluster.admin_url).grow_partitions(topic + "-in-b", 2)
    send(client, topic + "-in-b-partition-1", "4")
    copy(topics_pattern=pattern)
    assert counted(contents(topic + "-copy")) == Counter("1234")


def test_a_topic_of_a_pattern_that_is_deleted_is_a_loss(
    copy, cluster, client, topic, contents, counted
):
    for name in ("a", "b"):
        send(client, f"{topic}-in-{name}", name)
    options = {"topics_pattern": topic + "-in-.*"}
    copy(**options)
    velaray.Admin(cluster.admin_url).delete_topic(topic + "-in-a", force=True)
    send(client, topic + "-in-b", "c")
    with pytest.raises(Exception, match="-in-a was deleted"):
        copy(**options)
    copy(**options, fail_on_data_loss="false")
    copy(**options)
    assert counted(contents(topic + "-copy")) == Counter("abc")


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


def test_no_pattern(source):
    with pytest.raises(Exception, match="topic pattern"):
        source(topics_pattern="a/b").collect()
    with pytest.raises(Exception, match="topic pattern"):
        source(topics_pattern="public/default/((").collect()
