"""Ray Data: topics as datasets, and datasets written to topics exactly once, under kills."""

import itertools
import os
import signal
from collections import Counter
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import pytest
import ray

import velaray
from tests.ray.support import RayNodes
from tests.support.by_name import call_by_name
from tests.support.local_cluster import LocalCluster
from velaray.client.exceptions import InvalidConfiguration, TopicNotFound
from velaray.events.ids import ActorKey
from velaray.journal.journal import JournalSettings
from velaray.pipelines import TopicSink, read_topic
from velaray.schema import JsonSchema

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def nodes():
    with RayNodes(workers=1) as nodes:
        ray.data.DataContext.get_current().enable_progress_bars = False
        yield nodes


@pytest.fixture(scope="module")
def cluster(nodes, tmp_path_factory):
    made = LocalCluster(tmp_path_factory.mktemp("cluster"))
    made.config = replace(made.config, maintenance_s=3600)  # nothing is trimmed while a test runs
    with made as running:
        running.actor_system.journal_settings = JournalSettings(roll_records=15)
        yield running


@pytest.fixture(scope="module")
def client(cluster):
    with velaray.Client(cluster.service_url, operation_timeout_seconds=15) as made:
        yield made


@pytest.fixture
def topic():
    return f"persistent://public/default/data-{next(_numbers)}"


def values(client, topic):
    found = Counter()
    with client.create_reader(topic, velaray.MessageId.earliest) as reader:
        while reader.has_message_available():
            found[reader.read_next(10_000).data().decode()] += 1
    return found


def numbers(count, blocks):
    rows = [{"value": f"{n}", "key": f"k{n % 3}"} for n in range(count)]
    return ray.data.from_items(rows, override_num_blocks=blocks)


def test_a_dataset_reads_the_same_messages_by_wire_and_from_files(cluster, client, topic):
    make = {"topic": topic, "partitions": 2}
    cluster.run(call_by_name(cluster.actor_system, ActorKey.catalog(), "create_topic", make))
    with client.create_producer(topic) as producer:
        for n in range(60):
            producer.send(b"%d" % n, partition_key=f"k{n}")
        txn = client.transaction()
        producer.send_many([b"never"] * 5, txn=txn)
        txn.abort()
        open_txn = client.transaction(timeout=600)
        for n in range(2):
            with client.create_producer(f"{topic}-partition-{n}") as part:
                part.send(b"open", txn=open_txn)
                part.send(b"behind")
        by_wire = read_topic(topic, service_url=cluster.service_url).take_all()
        data_dir = cluster.config.data_dir
        by_file = read_topic(topic, data_dir=data_dir, columns=["key", "value"], parallelism=3)
        assert by_file.schema().names == ["key", "value"]
    assert sorted(int(row["value"]) for row in by_wire) == list(range(60))
    found = sorted((row["value"], row["key"]) for row in by_file.take_all())
    assert found == sorted((b"%d" % n, f"k{n}") for n in range(60))
    at = next(row["message_id"] for row in by_wire if row["partition"] == 1)
    bounds = {"ending_position": f"0:0:0,{at['ledger']}:{at['entry'] + 2}:1"}
    for where in ({"data_dir": data_dir}, {"service_url": cluster.service_url}):
        assert read_topic(topic, **where, **bounds, columns=["value"]).count() == 2
    open_txn.abort()


def test_an_empty_topic_is_an_empty_dataset_with_columns(cluster, client, topic):
    client.create_producer(topic).close()
    dataset = read_topic(topic, service_url=cluster.service_url, columns=["key", "value"])
    assert dataset.count() == 0
    assert dataset.schema().names == ["key", "value"]


@dataclass
class Stop:
    """A record of a topic."""

    port: str
    at: datetime


def test_values_have_the_type_of_their_schema(cluster, client, topic):
    at = datetime(2026, 11, 22, 12, tzinfo=UTC)
    with client.create_producer(topic, schema=JsonSchema(Stop)) as producer:
        producer.send(Stop("EWR", at))
    with client.create_producer(topic) as producer:
        producer.send(b"[]")
    wheres = {"data_dir": cluster.config.data_dir}, {"service_url": cluster.service_url}
    for where in wheres:
        wanted = {**where, "columns": ["value"], "value_schema": "typed"}
        with pytest.raises(Exception, match="it doesn't fit its schema") as caught:
            read_topic(topic, **wanted).take_all()
        assert "UndecodableMessage" in str(caught.value)
        rows = read_topic(topic, **wanted, on_undecodable="null").take_all()
        assert [row["value"] for row in rows] == [{"port": "EWR", "at": at}, None]


class Mortal(TopicSink):
    """Kills its worker: once in the middle of a task, once when all is published."""

    def __init__(self, folder, *args, **options):
        super().__init__(*args, **options)
        self._folder = folder

    def _strike(self, when):
        try:
            (self._folder / when).unlink()
        except FileNotFoundError:
            return
        os.kill(os.getpid(), signal.SIGKILL)

    def write(self, blocks, ctx):
        """Publish; perhaps die."""
        found = super().write(self._struck(blocks), ctx)
        self._strike("after")
        return found

    def _struck(self, blocks):
        for block in blocks:
            yield block
            self._strike("within")


def test_killed_tasks_cause_no_duplicates_and_a_run_is_written_once(
    cluster, client, topic, tmp_path
):
    for when in ("within", "after"):
        (tmp_path / when).touch()

    def write():
        sink = Mortal(tmp_path, topic, service_url=cluster.service_url, run_key=topic)
        numbers(200, 4).write_datasink(sink)

    write()
    assert not list(tmp_path.iterdir()), "both strikes hit"
    assert values(client, topic) == Counter(map(str, range(200)))
    write()
    assert values(client, topic) == Counter(map(str, range(200)))
    sink = TopicSink(topic, service_url=cluster.service_url, run_key=topic + "/another")
    numbers(200, 4).write_datasink(sink)
    assert values(client, topic) == Counter({str(n): 2 for n in range(200)})


def test_a_failed_write_commits_nothing_until_it_is_repeated(cluster, client, topic):
    def broken(row):
        if row["value"] == "150":
            raise ValueError("no such row")
        return row

    sink = TopicSink(topic, service_url=cluster.service_url, run_key=topic)
    with pytest.raises(Exception, match="no such row"):
        numbers(200, 4).map(broken).write_datasink(sink)
    assert not values(client, topic)
    numbers(200, 4).write_datasink(sink)
    assert values(client, topic) == Counter(map(str, range(200)))


def test_a_failed_write_without_a_key_does_not_block_others(cluster, client, topic):
    def broken(row):
        if row["value"] == "150":
            raise ValueError("no such row")
        return row

    with pytest.raises(Exception, match="no such row"):
        numbers(200, 4).map(broken).write_datasink(
            TopicSink(topic, service_url=cluster.service_url)
        )
    client.create_producer(topic).send(b"behind")
    assert values(client, topic) == Counter(["behind"])


def test_topics_are_taken_from_a_column_and_unknown_columns_refused(cluster, client, topic):
    rows = [{"value": b"%d" % n, "topic": f"{topic}-{n % 2}"} for n in range(10)]
    ray.data.from_items(rows).write_datasink(TopicSink(service_url=cluster.service_url))
    assert values(client, f"{topic}-1") == Counter("13579")
    for row, says in (({"value": 1}, "'value' of type"), ({"key": "k"}, 'a column "value"')):
        with pytest.raises(InvalidConfiguration, match=says):
            ray.data.from_items([row]).write_datasink(
                TopicSink(topic, service_url=cluster.service_url)
            )
    with pytest.raises(InvalidConfiguration, match="either service_url or data_dir"):
        read_topic(topic)


def test_a_mistyped_topic_is_refused_and_not_created(client, cluster, topic):
    with client.create_producer(topic + "-in") as producer:
        producer.send(b"x")
    data_dir = cluster.config.data_dir
    for where in ({"service_url": cluster.service_url}, {"data_dir": data_dir}):
        with pytest.raises(TopicNotFound, match=f"{topic}-im.* nearest .*{topic}-in"):
            read_topic(topic + "-im", **where)
    assert topic + "-im" not in velaray.Admin(cluster.admin_url).topics("public/default")
