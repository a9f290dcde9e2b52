"""Spark's batch source on the files of ledgers: what the service would give, without it."""

import itertools
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import velaray
from tests.support.by_name import call_by_name
from tests.support.local_cluster import LocalCluster
from velaray.client.exceptions import InvalidConfiguration, ReadError, TopicNotFound
from velaray.events.ids import ActorKey
from velaray.journal.journal import JournalSettings
from velaray.pipelines.rows import COLUMNS
from velaray.pipelines.spark_positions import Start

pytest.importorskip("pyarrow", reason="pyarrow isn't installed")
from velaray.pipelines import service_parts
from velaray.pipelines.ledgers import plan
from velaray.pipelines.spark_client import Service

pytestmark = pytest.mark.slow

_numbers = itertools.count(1)
EARLIEST, LATEST = Start.parse("earliest"), Start.parse("latest")
WHOLE = 1 << 40


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A cluster whose ledgers have a few records each, and whose messages are short.

    What no subscription wants isn't trimmed while a test runs.
    """
    made = LocalCluster(tmp_path_factory.mktemp("ledgers"))
    made.config = replace(made.config, max_message_size=20_000, maintenance_s=3600)
    with made as running:
        running.actor_system.journal_settings = JournalSettings(roll_records=15)
        yield running


@pytest.fixture(scope="module")
def client(cluster):
    with velaray.Client(cluster.service_url, operation_timeout_seconds=15) as made:
        yield made


@pytest.fixture
def topic():
    return f"persistent://public/default/stored-{next(_numbers)}"


def stored(cluster, topic, size=WHOLE, start=EARLIEST, end=LATEST, columns=tuple(COLUMNS)):
    """The rows of the files, read here."""
    parts = plan(cluster.config.data_dir, [topic], start, end, size)
    return [row for part in parts for batch in part.read(columns) for row in batch.to_pylist()]


@pytest.fixture
def table(spark, cluster, topic):
    """Reads the topic with Spark: from the files, or over the wire."""

    def read(files, **options):
        where = (
            {"data_dir": cluster.config.data_dir} if files else {"service_url": cluster.service_url}
        )
        return spark.read.format("velaray").options(topic=topic, **where, **options).load()

    return read


def fill(client, topic):
    """Everything that a topic can have."""
    with client.create_producer(topic) as producer:
        producer.send_many([b"%d" % n for n in range(50)], keys=[f"k{n % 7}" for n in range(50)])
        for n in range(20):
            producer.send(b"alone %d" % n, {"n": str(n)}, event_timestamp=1_700_000_000_000 + n)
        producer.send(None, partition_key="k1")
        producer.send(b"later", deliver_after=timedelta(hours=1))
        for n, verdict in enumerate(("commit", "abort", "commit", "abort")):
            txn = client.transaction()
            producer.send_many([b"in %d: %d" % (n, m) for m in range(30)], txn=txn)
            producer.send(b"between %d" % n)
            getattr(txn, verdict)()
    with client.create_producer(
        topic, compression_type=velaray.CompressionType.ZLib, batching_enabled=True
    ) as producer:
        producer.send_many([b"squeezed " * 100] * 20)
    with client.create_producer(f"{topic}-partition-0", chunking_enabled=True) as producer:
        for n in range(6):
            producer.send(bytes([n]) * 90_000)


def in_order(rows):
    return sorted(
        ({**row, "properties": dict(row["properties"])} for row in rows),
        key=lambda row: (row["partition"], *row["message_id"].values()),
    )


def test_messages_from_files_equal_those_of_the_service(cluster, client, topic, table):
    make = call_by_name(
        cluster.actor_system, ActorKey.catalog(), "create_topic", {"topic": topic, "partitions": 2}
    )
    cluster.run(make)
    fill(client, topic)
    txn = client.transaction(timeout=600)
    with client.create_producer(f"{topic}-partition-1") as producer:
        producer.send(b"open", txn=txn)
        producer.send(b"behind what is open")
        by_wire = table(files=False).collect()
        by_file = table(files=True).collect()
    assert len(by_wire) == 50 + 22 + 2 * 30 + 4 + 20 + 6
    assert in_order(row.asDict(recursive=True) for row in by_file) == in_order(
        row.asDict(recursive=True) for row in by_wire
    )
    assert len({row.message_id.ledger for row in by_file}) > 3
    whole = in_order(stored(cluster, topic))
    assert [row["value"] for row in whole] == [
        row["value"] for row in in_order(row.asDict(recursive=True) for row in by_wire)
    ]
    for size in (1, 30_000, 200_000):
        assert in_order(stored(cluster, topic, size)) == whole
    names = [f"{topic}-partition-{n}" for n in range(2)]
    parts = service_parts.plan(
        Service(cluster.service_url), lambda client: names, EARLIEST, LATEST, 1
    )
    assert len(parts) > 20
    rows = [row for part in parts for each in part.read(tuple(COLUMNS)) for row in each.to_pylist()]
    assert in_order(rows) == whole
    assert len(plan(cluster.config.data_dir, [topic], EARLIEST, LATEST, 1)) > 5
    txn.abort()


def test_positions_and_times_equal_those_of_the_service(cluster, client, topic, table):
    with client.create_producer(topic) as producer:
        ids = [producer.send(b"%d" % n) for n in range(40)]
        middle = datetime.now(UTC) + timedelta(milliseconds=5)
        while datetime.now(UTC) < middle:
            pass
        ids += [producer.send(b"%d" % n) for n in range(40, 60)]
    at = [f"{ids[n].ledger_id()}:{ids[n].entry_id()}" for n in (7, 50)]
    for options in (
        {"starting_position": at[0], "ending_position": at[1]},
        {"starting_position": middle.isoformat()},
        {"ending_position": middle.isoformat()},
        {"starting_position": "latest"},
    ):
        by_wire = table(files=False, columns="value", **options).collect()
        bounds = [options.get(f"{which}_position") for which in ("starting", "ending")]
        start = Start.parse(bounds[0] or "earliest")
        by_file = stored(cluster, topic, 1, start, Start.parse(bounds[1] or "latest"), ("value",))
        assert [int(row["value"]) for row in by_file] == [int(row.value) for row in by_wire]
    assert len(by_wire) == 0
    assert len(table(files=True, columns="value", starting_position=at[0]).collect()) == 53


def test_a_chunked_message_is_read_once_for_any_split_into_parts(cluster, client, topic):
    with (
        client.create_producer(topic, chunking_enabled=True) as chunks,
        client.create_producer(topic) as plain,
    ):
        for n in range(12):
            chunks.send(bytes([n]) * 150_000)
            plain.send(b"between")
    by_wire = service_parts.plan(
        Service(cluster.service_url), lambda client: [topic], EARLIEST, LATEST, 1
    )
    for parts in (plan(cluster.config.data_dir, [topic], EARLIEST, LATEST, 1), by_wire):
        assert len(parts) > 5
        found = [row for part in parts for batch in part.read(("value",)) for row in batch["value"]]
        assert sorted(row.as_py() for row in found if len(row.as_py()) > 10) == [
            bytes([n]) * 150_000 for n in range(12)
        ]
        assert len(found) == 24


def test_acknowledged_entries_of_an_open_ledger_are_read(cluster, client, topic):
    with client.create_producer(topic) as producer:
        producer.send(b"first")
        (part,) = plan(cluster.config.data_dir, [topic], EARLIEST, LATEST)
        producer.send(b"second")
        (batch,) = part.read(("value",))
        assert batch.to_pylist() == [{"value": b"first"}]
        assert len(stored(cluster, topic)) == 2
        for mark in Path(cluster.config.data_dir).glob(
            f"journals/**/{topic.split('/')[-1]}/**/*.mark"
        ):
            mark.write_bytes(b"")
        assert stored(cluster, topic) == []


def test_entries_trimmed_between_plan_and_task_are_an_error(cluster, client, topic):
    with client.create_producer(topic) as producer:
        for n in range(40):
            producer.send(b"%d" % n)
    parts = plan(cluster.config.data_dir, [topic], EARLIEST, LATEST, 1)
    folder = Path(cluster.config.data_dir) / "journals" / parts[0].portions[0].journal
    (folder / f"{parts[0].portions[0].ledger_id}.ledger").unlink()
    with pytest.raises(ReadError, match="is gone"):
        list(parts[0].read(("value",)))
    assert sum(batch.num_rows for part in parts[-1:] for batch in part.read(("value",)))


def test_missing_topics_and_journals_are_named(cluster, client, topic, table, tmp_path):
    with pytest.raises(TopicNotFound, match=topic):
        stored(cluster, topic)
    client.create_producer(topic).close()
    assert stored(cluster, topic) == []
    with pytest.raises(InvalidConfiguration, match="no journals of a cluster"):
        plan(str(tmp_path), [topic], EARLIEST, LATEST)
    with pytest.raises(InvalidConfiguration, match="no journals of a cluster"):
        plan(str(tmp_path / "nowhere"), [topic], EARLIEST, LATEST)
    with pytest.raises(Exception, match="without it"):
        table(files=True, service_url=cluster.service_url).collect()
