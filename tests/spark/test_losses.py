"""A query never goes on in silence when what it was to read next may be gone."""

from collections import Counter

import pytest

import velaray
from tests.client.test_trimming import begin_ledger, do_round

pytestmark = pytest.mark.slow

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
def copied(copy, topic, contents, counted):
    """Copies what there is under subscription "mark", and returns all that was copied so far."""

    def copied(**options):
        copy(subscription="mark", **options)
        return counted(contents(topic + "-copy"))

    return copied


def trim(cluster, topic, admin, send):
    """Trim all that nobody keeps, but for one message more."""
    begin_ledger(cluster, topic)
    send("last")
    do_round(cluster, topic)


def test_a_query_whose_mark_was_deleted_says_so_and_may_go_on(admin, topic, send, copied):
    send("a", "b")
    copied()
    admin.delete_subscription(topic, "mark")
    with pytest.raises(Exception, match=r"'mark', which keeps .* was deleted; nothing is trimmed"):
        copied()  # though nothing new came meanwhile
    assert copied(**GO_ON) == Counter("ab")
    send("c")
    assert copied() == Counter("abc")


def test_what_was_trimmed_for_want_of_a_mark_is_named(cluster, admin, topic, send, copied):
    send("a", "b")
    copied()
    send("c")
    admin.delete_subscription(topic, "mark")
    trim(cluster, topic, admin, send)
    with pytest.raises(Exception, match=r"DataLossError.* was deleted; 1 entries are trimmed"):
        copied()
    assert copied(**GO_ON) == Counter(["a", "b", "last"])


def test_a_mark_that_others_moved_is_seen_when_all_it_kept_is_trimmed(
    cluster, admin, topic, send, copied
):
    send("a")
    copied()
    ids = send("b", "c")
    admin.seek(topic, "mark", velaray.MessageId(-1, ids[1].ledger_id(), ids[1].entry_id() + 1))
    trim(cluster, topic, admin, send)
    with pytest.raises(Exception, match=r"moved forward by others.* next 2 entries; 2 .* trimmed"):
        copied()
    assert copied(**GO_ON) == Counter(["a", "last"])


def test_a_mark_that_moves_back_loses_nothing(admin, topic, send, copied):
    send("a", "b")
    copied()
    admin.seek(topic, "mark", velaray.MessageId.earliest)
    send("c")
    assert copied() == Counter("abc")


def test_a_topic_that_was_made_again_is_read_from_its_beginning_by_option_only(
    admin, topic, send, copied
):
    send("a", "b", "c")
    copied()
    admin.delete_topic(topic, force=True)
    send("new")
    with pytest.raises(Exception, match=r"the topic was deleted and made again"):
        copied()
    assert copied(**GO_ON) == Counter(["a", "b", "c", "new"])


def test_what_a_query_has_yet_to_read_is_not_trimmed_and_what_it_has_read_is(
    cluster, client, admin, topic, send, copied
):
    send("a", "b")
    copied()
    begin_ledger(cluster, topic)
    send("c")
    copied()  # notes that the first batch is over, and lets go of it
    begin_ledger(cluster, topic)
    send("d")
    do_round(cluster, topic)
    with client.create_reader(topic, velaray.MessageId.earliest) as reader:
        assert reader.read_next(10_000).data() == b"c"
    assert copied() == Counter("abcd")


def test_a_running_query_sees_that_its_mark_goes(admin, topic, send, writing, tmp_path):
    send("a")
    seen = []
    query = (
        writing(subscription="mark")
        .foreachBatch(lambda frame, _: seen.extend(bytes(row.value) for row in frame.collect()))
        .start()
    )
    try:
        while b"a" not in seen:
            query.processAllAvailable()
        admin.delete_subscription(topic, "mark", force=True)
        send("b")
        with pytest.raises(Exception, match=r"DataLossError.*'mark', which keeps"):
            query.processAllAvailable()
    finally:
        query.stop()
    assert seen == [b"a"]


def test_a_batch_that_is_done_again_is_checked_too(admin, topic, send, copied, tmp_path):
    send("a")
    copied()
    send("b")
    copied()
    for name in ("1", ".1.crc"):  # its commit wasn't noted
        (tmp_path / "checkpoint" / "commits" / name).unlink()
    admin.delete_subscription(topic, "mark")
    with pytest.raises(Exception, match=r"DataLossError"):
        copied()
