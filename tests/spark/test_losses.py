"""A query never goes on in silence when what it was to read next may be gone."""

from collections import Counter

import pytest

import velaray
from tests.client.test_trimming import begin_ledger, do_round
from velaray.pipelines.spark_losses import DataLossError

GO_ON = {"fail_on_data_loss": "false"}


@pytest.fixture
def admin(cluster):
    return velaray.Admin(cluster.admin_url)


@pytest.fixture
def send(client, topic):
    def send(*values):
        with client.create_producer(topic, batching_enabled=False) as producer:
            return [producer.send(value.encode()) for value in values]

    return send


@pytest.fixture
def read(driver):
    """Reads what there is, batch by batch, and returns all that was read so far."""
    made = driver(subscription="mark")

    def read(**options):
        return b"".join(made.run(**options)).decode()

    read.driver = made
    return read


def trim(cluster, topic, admin, send):
    """Trim all unneeded messages, except one."""
    begin_ledger(cluster, topic)
    send("z")
    do_round(cluster, topic)


def test_a_query_whose_mark_was_deleted_reports_it_and_may_continue(admin, topic, send, read):
    send("a", "b")
    read()
    admin.delete_subscription(topic, "mark")
    deleted = r"'mark', which retains .* was deleted; nothing is trimmed"
    with pytest.raises(DataLossError, match=deleted):
        read()  # though nothing new came meanwhile
    assert read(**GO_ON) == "ab"
    send("c")
    assert read() == "abc"


def test_messages_trimmed_without_a_mark_are_reported(cluster, admin, topic, send, read):
    send("a", "b")
    read()
    send("c")
    admin.delete_subscription(topic, "mark")
    trim(cluster, topic, admin, send)
    with pytest.raises(DataLossError, match=r"was deleted; 1 entries are trimmed"):
        read()
    assert read(**GO_ON) == "abz"


def test_a_mark_moved_by_others_is_reported_after_its_messages_are_trimmed(
    cluster, admin, topic, send, read
):
    send("a")
    read()
    ids = send("b", "c")
    admin.seek(topic, "mark", velaray.MessageId(-1, ids[1].ledger_id(), ids[1].entry_id() + 1))
    trim(cluster, topic, admin, send)
    moved = r"moved .* forward.* next 2 entries; 2 entries are trimmed"
    with pytest.raises(DataLossError, match=moved):
        read()
    assert read(**GO_ON) == "az"


def test_a_mark_that_moves_back_loses_nothing(admin, topic, send, read):
    send("a", "b")
    read()
    admin.seek(topic, "mark", velaray.MessageId.earliest)
    send("c")
    assert read() == "abc"


def test_a_recreated_topic_is_read_from_its_beginning_only_by_option(admin, topic, send, read):
    send("a", "b", "c")
    read()
    admin.delete_topic(topic, force=True)
    send("d")
    with pytest.raises(DataLossError, match="the topic was deleted and created again"):
        read()
    assert read(**GO_ON) == "abcd"


def test_a_backlog_that_was_cleared_is_a_loss(admin, topic, send, read):
    send("a")
    read()
    send("b")
    admin.skip(topic, "mark")
    send("c")
    with pytest.raises(DataLossError, match=r"moved .* forward"):
        read()
    assert read(**GO_ON) == "abc"


def test_trimming_keeps_exactly_the_messages_that_a_query_has_not_read(
    cluster, client, admin, topic, send, read
):
    send("a", "b")
    read()
    begin_ledger(cluster, topic)
    send("c")
    read()
    begin_ledger(cluster, topic)
    send("d")
    do_round(cluster, topic)
    with client.create_reader(topic, velaray.MessageId.earliest) as reader:
        assert reader.read_next(10_000).data() == b"d"
    assert read() == "abcd"


def test_a_batch_planned_before_a_restart_is_kept_and_read_as_planned(
    cluster, admin, topic, send, read
):
    send("a")
    read()
    send("b")
    source = read.driver.start()
    assert read.driver.plan(source)
    source.stop()
    trim(cluster, topic, admin, send)
    assert read() == "abz"
    assert read.driver.batches[-2:] == [[b"b"], [b"z"]]


def test_a_batch_planned_and_trimmed_before_a_restart_is_a_loss(cluster, admin, topic, send, read):
    send("a")
    read()
    send("b")
    source = read.driver.start()
    assert read.driver.plan(source)
    source.stop()
    admin.delete_subscription(topic, "mark")
    trim(cluster, topic, admin, send)
    with pytest.raises(DataLossError, match="1 entries are trimmed"):
        read()


def test_a_mark_deleted_while_the_query_runs_is_reported_at_the_next_batch(
    admin, topic, send, read
):
    send("a")
    source = read.driver.start()
    assert read.driver.plan(source)
    admin.delete_subscription(topic, "mark", force=True)
    send("b")
    with pytest.raises(DataLossError, match="'mark', which retains"):
        read.driver.plan(source)
    source.stop()


@pytest.mark.slow
def test_spark_reports_the_losses(admin, copy, topic, send, contents, counted):
    send("a")
    copy(subscription="mark")
    admin.delete_subscription(topic, "mark", force=True)
    with pytest.raises(Exception, match=r"DataLossError.*'mark', which retains"):
        copy(subscription="mark")
    copy(subscription="mark", **GO_ON)
    assert counted(contents(topic + "-copy")) == Counter("a")
