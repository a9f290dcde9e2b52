"""Batches of Spark's source are no larger than they may be, and there are as many as it takes."""

from collections import Counter

import pytest

from tests.client.test_trimming import begin_ledger, do_round
from tests.support.chunks import append_chunk
from velaray.client.exceptions import InvalidConfiguration


def fill(client, topic, values):
    """Entries of ten messages."""
    values = list(values)
    with client.create_producer(topic) as producer:
        for at in range(0, len(values), 10):
            some = values[at : at + 10]
            producer.send_many([b"%d" % value for value in some], keys=[f"{at}"] * len(some))


def sizes(progress):
    return [each["numInputRows"] for each in progress if each["numInputRows"]]


@pytest.mark.long
def test_sixteen_partitions_are_read_in_limited_batches(
    copy, make_topic, client, topic, contents, counted
):
    make_topic(topic, 16)
    fill(client, topic, range(3000))
    progress = copy(max_messages_per_trigger=1000)
    assert len(sizes(progress)) <= 5
    assert max(sizes(progress)) <= 1000 and sum(sizes(progress)) == 3000
    assert counted(contents(topic + "-copy")) == Counter(map(str, range(3000)))


def test_bytes_limit_batches_and_an_oversized_batch_is_read_alone(driver, client, topic):
    with client.create_producer(topic, batching_enabled=False) as producer:
        for size in (10, 5000, 10, 10):
            producer.send(b"x" * size)
    query = driver(max_bytes_per_trigger="1000", max_messages_per_trigger="2")
    query.run()
    assert [len(batch) for batch in query.batches] == [1, 1, 2]


def test_a_restart_with_limits_continues_at_its_position(driver, client, topic):
    query = driver(max_messages_per_trigger="30")
    fill(client, topic, range(100))
    query.run()
    assert [len(batch) for batch in query.batches] == [30, 30, 30, 10]
    fill(client, topic, range(100, 200))
    query.run(max_messages_per_trigger="50")
    assert [len(batch) for batch in query.batches[4:]] == [50, 50]
    assert query.values == [b"%d" % value for value in range(200)]


def test_chunked_messages_across_the_end_of_a_batch_are_read_once(cluster, driver, client, topic):
    query = driver(max_messages_per_trigger="1")
    with client.create_producer(topic, batching_enabled=False) as producer:
        producer.send(b"1")
        append_chunk(cluster, topic, "u", 0, 3, b"u" * 100)
        append_chunk(cluster, topic, "v", 0, 2, b"v" * 100)
        producer.send(b"2")
        append_chunk(cluster, topic, "u", 1, 3, b"u" * 100)
        query.run()
        assert query.batches == [[b"1"], [b"2"]]
        append_chunk(cluster, topic, "u", 2, 3, b"u" * 100)
        producer.send(b"3")
        append_chunk(cluster, topic, "v", 1, 2, b"v" * 100)
    begin_ledger(cluster, topic)
    with client.create_producer(topic) as producer:
        producer.send(b"4")
    do_round(cluster, topic)  # the first chunks are still kept
    assert query.run()[2:] == [b"u" * 300, b"3", b"v" * 200, b"4"]


def test_an_unfinished_message_does_not_hold_up_a_query_without_limits(
    cluster, driver, client, topic
):
    query = driver()
    with client.create_producer(topic, batching_enabled=False) as producer:
        producer.send(b"1")
        append_chunk(cluster, topic, "dead", 0, 2, b"d")
        append_chunk(cluster, topic, "u", 0, 2, b"u")
        query.run()
        producer.send(b"2")
        query.run()
        append_chunk(cluster, topic, "u", 1, 2, b"u")
        query.run()
    assert query.batches == [[b"1"], [b"2"], [b"uu"]]


@pytest.mark.parametrize("value", ["0", "-1", "many", "1.5"])
def test_limits_are_whole_numbers(driver, value):
    with pytest.raises(InvalidConfiguration, match="max_messages_per_trigger="):
        driver(max_messages_per_trigger=value).run()
