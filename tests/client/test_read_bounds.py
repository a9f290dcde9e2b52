"""Bounds of a reader's next step, and losses before it."""

import pytest

import velaray
from tests.client.test_trimming import begin_ledger, do_round
from tests.support.chunks import append_chunk
from velaray.client.read_bounds import SpanLimits, Spot

BEGINNING = Spot(velaray.MessageId(-1, -1, -1))


@pytest.fixture
def mark(client, topic):
    """A subscription that keeps everything."""
    return client.subscribe(
        topic,
        "mark",
        velaray.ConsumerType.Failover,
        receiver_queue_size=0,
        initial_position=velaray.InitialPosition.Earliest,
    )


@pytest.fixture
def step(mark, topic):
    """The next step from a spot."""

    def ask(start=BEGINNING, **limits):
        return mark.get_spans({topic: (start, SpanLimits(**limits))})[topic]

    return ask


def send_each(client, topic, values, **options):
    with client.create_producer(topic, batching_enabled=False, **options) as producer:
        return [producer.send(value) for value in values]


def send_batches(client, topic, sizes):
    with client.create_producer(topic, batching_enabled=True) as producer:
        for size in sizes:
            producer.send_many([b"%d" % number for number in range(size)])
            producer.flush()


def position(message_id):
    return message_id.position


def test_without_limits_a_step_ends_at_the_end(client, topic, step):
    ids = send_each(client, topic, [b"1", b"2"])
    span = step()
    assert position(span.end.after) == position(ids[-1])
    assert (span.end.entries, span.more, span.messages) == (2, False, 0)
    nothing = step(span.end)
    assert nothing.end == span.end
    (third,) = send_each(client, topic, [b"3"])
    assert position(step(span.end).end.after) == position(third)


def test_a_step_has_no_more_messages_than_its_limit_but_one_entry_if_it_must(client, topic, step):
    send_batches(client, topic, [3, 3, 5])
    first = step(messages=7)
    assert (first.end.entries, first.messages, first.more) == (2, 6, True)
    assert step(first.end, messages=4).end == first.end
    forced = step(first.end, messages=4, some=True)
    assert (forced.end.entries, forced.messages, forced.more) == (3, 5, False)
    assert step(messages=100).end == forced.end


def test_steps_are_limited_in_bytes_and_by_their_end(client, topic, step):
    ids = send_each(client, topic, [b"x" * 1000] * 10)
    span = step(bytes=3500)
    assert span.end.entries == 3 and 3000 < span.bytes <= 3500
    assert step(messages=5, bytes=3500).end == span.end
    assert step(messages=2, bytes=3500).end.entries == 2
    until = step(until=ids[4])
    assert position(until.end.after) == position(ids[4]) and not until.more
    assert step(span.end, until=ids[1]).end == span.end


def test_steps_over_entries_on_disk_have_the_same_bounds(cluster, client, topic, step):
    send_batches(client, topic, [2] * 5)
    begin_ledger(cluster, topic)
    send_batches(client, topic, [2] * 5)
    begin_ledger(cluster, topic)
    ends, at = [], BEGINNING
    while (span := step(at, messages=7)).end != at:
        ends.append(span.messages)
        at = span.end
    assert ends == [6, 6, 6, 2] and at.entries == 10


def test_aborted_messages_do_not_count_and_open_transactions_end_a_step(client, topic, step):
    send_each(client, topic, [b"1"])
    txn = client.transaction()
    with client.create_producer(topic, batching_enabled=False) as producer:
        for value in (b"2", b"3"):
            producer.send_many([value], txn=txn)
        producer.send(b"4")
        assert step().end.entries == 1
        txn.abort()
    span = step(messages=2)
    assert (span.messages, span.end.entries, span.more) == (2, 4, False)


def test_a_moved_or_deleted_mark_is_reported(client, topic, mark, step):
    ids = send_each(client, topic, [b"1", b"2", b"3"])
    start = step(until=ids[0]).end
    mark.acknowledge_cumulative(ids[0], receipt=True)
    before = step(start)
    assert (before.passed, before.trimmed) == (0, 0)
    mark.seek(ids[2])
    assert step(start).passed == 1
    mark.unsubscribe()
    again = client.subscribe(topic, "mark", velaray.ConsumerType.Failover, receiver_queue_size=0)
    after = again.get_spans({topic: (start, SpanLimits())})[topic]
    assert after.incarnation > before.incarnation


def test_trimmed_messages_are_reported_after_their_ledger_is_gone(
    cluster, client, topic, mark, step
):
    ids = send_each(client, topic, [b"1", b"2", b"3"])
    start = step(until=ids[0]).end
    begin_ledger(cluster, topic)
    send_each(client, topic, [b"4"])
    mark.acknowledge_cumulative(ids[2], receipt=True)
    assert step(start).passed == 2
    do_round(cluster, topic)
    span = step(start)
    assert (span.passed, span.trimmed, span.end.entries) == (2, 2, 4)


def test_a_recreated_topic_is_another_one(cluster, client, topic, mark, step):
    send_each(client, topic, [b"1", b"2", b"3"])
    end = step().end
    mark.close()
    velaray.Admin(cluster.admin_url).delete_topic(topic, force=True)
    send_each(client, topic, [b"new"])
    again = client.subscribe(topic, "mark", initial_position=velaray.InitialPosition.Earliest)
    span = again.get_spans({topic: (end, SpanLimits())})[topic]
    assert span.foreign and span.end.entries == 1


def test_a_step_reports_the_first_chunk_of_an_incomplete_message_at_its_end(
    cluster, client, topic, step
):
    (plain,) = send_each(client, topic, [b"plain"])
    append_chunk(cluster, topic, "u", 0, 3, b"1")
    append_chunk(cluster, topic, "v", 0, 2, b"1")
    append_chunk(cluster, topic, "u", 1, 3, b"2")
    for limits in ({}, {"messages": 5}):
        begun = step(**limits).end
        assert begun.entries == 4 and position(begun.chunks_after) == position(plain)
    append_chunk(cluster, topic, "u", 2, 3, b"3")
    append_chunk(cluster, topic, "v", 1, 2, b"2")
    one = step(begun, messages=1)
    assert (one.messages, one.end.entries) == (1, 5)
    assert one.end.chunks_after.entry_id() == begun.chunks_after.entry_id() + 1
    both = step(begun)
    assert both.end.chunks_after is None and both.torn is None
    assert step(one.end).end == both.end


def test_chunks_too_far_apart_are_incomplete_and_endless_messages_abandoned(
    cluster, client, topic, step, monkeypatch
):
    monkeypatch.setattr("velaray.broker.partition.read_bounds.REACH_BYTES", 1000)
    send_each(client, topic, [b"plain"])
    append_chunk(cluster, topic, "u", 0, 2, b"1")
    begun = step().end
    assert begun.chunks_after is not None
    send_each(client, topic, [b"x" * 1500])
    later = step(begun, messages=100)
    assert later.end.given_up
    assert later.end.chunks_after is None and later.torn is None
    append_chunk(cluster, topic, "u", 1, 2, b"2")
    assert step(later.end).torn.entry_id() == 3


def test_a_message_that_began_before_the_first_step_is_no_loss(cluster, client, topic, step):
    send_each(client, topic, [b"plain"])
    append_chunk(cluster, topic, "u", 0, 2, b"1")
    (start,) = send_each(client, topic, [b"here"])
    append_chunk(cluster, topic, "u", 1, 2, b"2")
    span = step(Spot(start))
    assert (span.torn, span.end.entries) == (None, 4)


def test_a_reader_that_loses_its_connection_amid_chunks_skips_and_repeats_nothing(
    cluster, client, topic
):
    send_each(client, topic, [b"1"])
    append_chunk(cluster, topic, "u", 0, 2, b"u")
    append_chunk(cluster, topic, "v", 0, 2, b"v")
    send_each(client, topic, [b"2", b"3"])
    append_chunk(cluster, topic, "u", 1, 2, b"u")
    with client.create_reader(topic, velaray.MessageId.earliest) as reader:
        assert [reader.read_next(10_000).data() for _ in range(2)] == [b"1", b"2"]
        assert reader.has_message_available()
        begin_ledger(cluster, topic)
        send_each(client, topic, [b"4"])
        append_chunk(cluster, topic, "v", 1, 2, b"v")
        rest = [reader.read_next(10_000).data() for _ in range(4)]
    assert rest == [b"3", b"uu", b"4", b"vv"]
