"""``format("velaray-journal")``: what happened to actors, as a table."""

import json
from collections import Counter

import pytest

from velaray.events.ids import ActorKind

pytestmark = pytest.mark.slow


@pytest.fixture
def journal(spark, cluster):
    def read(**options):
        options = {"data_dir": cluster.config.data_dir} | options
        return spark.read.format("velaray-journal").options(**options).load()

    return read


def test_it_tells_what_happened_when_and_in_which_transaction(journal, cluster, client, topic):
    with client.create_producer(topic) as producer:
        producer.send(b"alone")
        txn = client.transaction()
        producer.send(b"in it", txn=txn)
        producer.send(b"in it, too", txn=txn)
        txn.commit()
    (key,) = [each for each in cluster.keys(ActorKind.PARTITION) if str(each.topic_name) == topic]
    rows = journal(actor=key.text()).orderBy("sequence").collect()
    assert [row.sequence for row in rows] == list(range(rows[0].sequence, rows[-1].sequence + 1))
    entries = [row for row in rows if row.type == "EntryAppended"]
    assert [row.offset for row in entries] == [row.entry for row in entries] == [0, 1, 2]
    assert [len(row.transactions) for row in entries] == [0, 1, 1]
    assert all(row.bytes > 0 and "producer" in json.loads(row.event) for row in entries)
    (ended,) = [row for row in rows if row.type == "TransactionEnded"]
    assert ended.transactions == entries[1].transactions and ended.time >= entries[1].time
    story = (
        journal(actor="coordinator")
        .where(f"array_contains(transactions, '{ended.transactions[0]}')")
        .orderBy("sequence")
    )
    assert [row.type for row in story.collect()] == [
        "TransactionBegun",
        "PartitionsJoined",
        "TransactionDecided",
        "TransactionFinished",
    ]


def test_actors_are_chosen_by_key_by_kind_and_by_pattern(journal, client, topic):
    client.create_producer(topic).close()
    client.subscribe(topic, "some").close()
    local = topic.removeprefix("persistent://")

    def kinds(**options):
        return Counter(row.kind for row in journal(**options).select("kind", "actor").collect())

    assert set(kinds(actor=f"*/{local}/*")) == {"partition", "subscription"}
    assert set(kinds(actor="catalog")) == {"catalog"}
    assert {"catalog", "coordinator", "partition"} <= set(kinds())
    with pytest.raises(Exception, match="velaray journal list"):
        journal(actor="partition/public/default/nothing/*").collect()
    with pytest.raises(Exception, match="needs"):
        journal(data_dir="").collect()
    with pytest.raises(Exception, match="no journals of a cluster"):
        journal(data_dir="/nowhere").collect()
