"""Batches of Spark's source are no larger than they may be, and there are as many as it takes."""

from collections import Counter

import pytest

from tests.client.test_trimming import begin_ledger, do_round
from tests.support.chunks import append_chunk

pytestmark = pytest.mark.slow


def fill(client, topic, values):
    """Entries of ten messages."""
    values = list(values)
    with client.create_producer(topic) as producer:
        for at in range(0, len(values), 10):
            some = values[at : at + 10]
            producer.send_many([b"%d" % value for value in some], keys=[f"{at}"] * len(some))


def sizes(progress):
    return [each["numInputRows"] for each in progress if each["numInputRows"]]


def test_sixteen_partitions_are_read_in_limited_batches(
    copy, make_topic, client, topic, contents, counted
):
    make_topic(topic, 16)
    fill(client, topic, range(3000))
    progress = copy(max_messages_per_trigger=1000)
    assert len(sizes(progress)) <= 5
    assert max(sizes(progress)) <= 1000 and sum(sizes(progress)) == 3000
    assert counted(contents(topic + "-copy")) == Counter(map(str, range(3000)))


def test_bytes_limit_batches_and_a_batch_that_is_too_large_comes_alone(
    copy, client, topic, contents, counted
):
    with client.create_producer(topic, batching_enabled=False) as producer:
        for size in (10, 5000, 10, 10):
            producer.send(b"x" * size)
    progress = copy(max_bytes_per_trigger=1000, max_messages_per_trigger=2)
    assert sizes(progress) == [1, 1, 2]
    assert sum(counted(contents(topic + "-copy")).values()) == 4


def test_a_restart_goes_on_with_limits_where_it_was(copy, client, topic, contents, counted):
    fill(client, topic, range(100))
    assert sum(sizes(copy(max_messages_per_trigger=30))) == 100
    fill(client, topic, range(100, 200))
    assert max(sizes(copy(max_messages_per_trigger=50))) <= 50
    assert counted(contents(topic + "-copy")) == Counter(map(str, range(200)))


def test_chunked_messages_that_lie_on_both_sides_of_an_end_are_read_once(
    cluster, collect, client, topic, tmp_path
):
    with client.create_producer(topic, batching_enabled=False) as producer:
        producer.send(b"1")
        append_chunk(cluster, topic, "u", 0, 3, b"u" * 100)
        append_chunk(cluster, topic, "v", 0, 2, b"v" * 100)
        producer.send(b"2")
        append_chunk(cluster, topic, "u", 1, 3, b"u" * 100)
    assert collect(max_messages_per_trigger=1) == [[b"1"], [b"2"]]
    begin_ledger(cluster, topic)
    with client.create_producer(topic, batching_enabled=False) as producer:
        append_chunk(cluster, topic, "u", 2, 3, b"u" * 100)
        producer.send(b"3")
        append_chunk(cluster, topic, "v", 1, 2, b"v" * 100)
    begin_ledger(cluster, topic)
    with client.create_producer(topic) as producer:
        producer.send(b"4")
    do_round(cluster, topic)  # the first chunks are still kept
    values = [value for batch in collect(max_messages_per_trigger=1) for value in batch]
    assert values == [b"u" * 300, b"3", b"v" * 200, b"4"]


@pytest.mark.parametrize("value", ["0", "-1", "many", "1.5"])
def test_limits_are_whole_numbers(copy, client, topic, value):
    with pytest.raises(Exception, match="max_messages_per_trigger="):
        copy(max_messages_per_trigger=value)
