"""Spark's source: every message that counts is a row, once, in the order of its partition."""

from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

import velaray
from tests.support.by_name import call_by_name

pytestmark = pytest.mark.slow


def send(client, topic, values, **options):
    with client.create_producer(topic, **options) as producer:
        producer.send_many([str(value).encode() for value in values])


def test_a_row_has_all_fields_of_its_message(source, client, topic):
    with client.create_producer(topic) as producer:
        ids = [producer.send(b"plain")]
        ids.append(producer.send(b"full", {"a": "b"}, "k", event_timestamp=1357095845678))
        ids.append(producer.send(None, partition_key="k"))
    rows = source().collect()
    assert [bytes(row.value) if row.value is not None else None for row in rows] == [
        b"plain",
        b"full",
        None,
    ]
    assert [row.key for row in rows] == [None, "k", "k"]
    assert [row.properties for row in rows] == [{}, {"a": "b"}, {}]
    assert [(row.topic, row.partition) for row in rows] == [(topic, -1)] * 3
    assert [row.message_id.entry for row in rows] == [each.entry_id() for each in ids]
    time = datetime(2013, 1, 2, 3, 4, 5, 678000)
    assert [row.event_time for row in rows] == [None, time, None]
    assert abs(datetime.now(UTC).replace(tzinfo=None) - rows[0].publish_time).seconds < 600
    assert [row.redelivery_count for row in rows] == [0, 0, 0]


def test_a_batch_is_read_between_two_positions(source, client, topic):
    with client.create_producer(topic) as producer:
        first, second, third = (producer.send(value) for value in (b"1", b"2", b"3"))
    time = datetime.now(UTC) + timedelta(seconds=1)

    def read(**options):
        return [bytes(row.value) for row in source(columns="value", **options).collect()]

    def at(message_id):
        return f"{message_id.ledger_id()}:{message_id.entry_id()}"

    assert read(starting_position=at(second)) == [b"2", b"3"]
    assert read(ending_position=at(third)) == [b"1", b"2"]
    assert read(starting_position=at(first), ending_position=at(second)) == [b"1"]
    assert read(starting_position="latest") == []
    assert read(ending_position=time.isoformat()) == [b"1", b"2", b"3"]
    assert read(starting_position=time.isoformat()) == []


def test_messages_of_open_transactions_are_not_read(source, copy, client, topic, contents, counted):
    send(client, topic, range(10))
    txn = client.transaction(timeout=600)
    with client.create_producer(topic) as producer:
        producer.send_many([b"open"], txn=txn)
        producer.send_many([b"behind"])
        assert source(columns="value").count() == 10
        copy()
        txn.abort()
        copy()
    assert counted(contents(topic + "-copy")) == Counter([*map(str, range(10)), "behind"])


@pytest.mark.long
def test_four_partitions_are_copied_exactly_once_over_restarts(
    copy, make_topic, client, topic, contents, counted, tmp_path
):
    make_topic(topic, 4)
    with client.create_producer(topic) as producer:
        producer.send_many(
            [b"%d" % n for n in range(2000)], keys=[str(n % 50) for n in range(2000)]
        )
    copy()
    assert counted(contents(topic + "-copy")) == Counter(map(str, range(2000)))
    for name in ("0", ".0.crc"):  # the answer to the commit was lost
        (tmp_path / "checkpoint" / "commits" / name).unlink()
    with client.create_producer(topic) as producer:
        producer.send_many([b"%d" % n for n in range(2000, 2100)])
    copy()
    found = contents(topic + "-copy")
    assert counted(found) == Counter(map(str, range(2100)))
    ordered = [int(each.data()) for each in found if each.partition_key() == "7"]
    assert ordered == sorted(ordered) and len(ordered) == 40


def test_new_partitions_are_read_from_their_beginning(
    copy, make_topic, cluster, client, topic, contents, counted
):
    make_topic(topic, 1)
    copy()
    work = call_by_name(
        cluster.actor_system,
        velaray.events.ids.ActorKey.catalog(),
        "grow_partitions",
        {"topic": topic, "partitions": 2},
    )
    cluster.run(work)
    for number in range(2):
        send(client, f"{topic}-partition-{number}", [f"in {number}"])
    copy()
    assert counted(contents(topic + "-copy")) == Counter(["in 0", "in 1"])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"topic": "a", "topics": "b"}, "only one"),
        ({"topic": ""}, "needs one of the options topic, topics, topics_pattern"),
        ({"cluster": "auto"}, "only one"),
        ({"token": "a", "token_file": "b"}, "not both"),
        ({"columns": "value,vaule"}, "columns="),
        ({"starting_position": "soon"}, "isn't a position"),
        ({"starting_position": "1:2,1:3"}, "isn't a position"),
        ({"starting_position": "1:2:7"}, "one position for each"),
        ({"max_rows": "1"}, "no option max_rows"),
    ],
)
def test_bad_options_are_refused(source, topic, make_topic, options, says):
    make_topic(topic, 1)
    with pytest.raises(Exception, match=says) as caught:
        source(**options).collect()
    assert "InvalidConfiguration" in str(caught.value)
