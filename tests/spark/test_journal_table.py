"""``format("velaray-journal")``: what happened to actors, as a table."""

import importlib
import json
from collections import Counter
from pathlib import Path

import pytest

import velaray
from velaray.events.ids import ActorKind

pytestmark = pytest.mark.slow


@pytest.fixture
def journal(spark, cluster):
    def read(**options):
        options = {"data_dir": cluster.config.data_dir} | options
        return spark.read.format("velaray-journal").options(**options).load()

    return read


def test_the_table_has_events_with_times_and_transactions(journal, cluster, client, topic):
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


def test_actors_are_selected_by_key_kind_and_pattern(journal, client, topic):
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


def test_the_example_plots_the_journals_of_a_cluster(
    spark, cluster, client, topic, tmp_path, monkeypatch
):
    pytest.importorskip("matplotlib", reason="matplotlib isn't installed")
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "examples")
    plots = importlib.import_module("journal_plots")
    consumer = client.subscribe(topic, "some", velaray.ConsumerType.Shared)
    with client.create_producer(topic) as producer:
        for n in range(4):
            with client.transaction() as txn:
                producer.send(b"%d" % n, txn=txn)
        client.transaction().abort()
        consumer.acknowledge(consumer.receive(10_000))
    consumer.close()
    data, name = Path(cluster.config.data_dir), topic.rpartition("/")[2]
    assert plots.draw(spark, data, tmp_path, name, "some") >= 5
    assert plots.backlog(spark, data, name, "some").iloc[-1] == 3
    verdicts = Counter(plots.decisions(spark, data).committed)
    assert verdicts[True] >= 4 and verdicts[False] >= 1
    drawn = sorted(each.name for each in tmp_path.iterdir())
    assert drawn == ["backlog.png", "commits.png", "transactions.png"]
