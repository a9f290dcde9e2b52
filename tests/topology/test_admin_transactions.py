"""Administration of transactions over HTTP: coordinators, participants, owners, limits."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jwt
import pulsar
import pytest

import velaray
from tests.support.local_cluster import LocalCluster
from tests.support.waiting import wait_until
from tests.topology.test_admin_api import V2, Http
from tests.topology.test_metrics import scrape
from velaray.actors.machine import Reason
from velaray.aio import Client, Transaction
from velaray.broker.coordinator import coordinator_admin
from velaray.broker.coordinator.coordinators import ASSIGN
from velaray.broker.partition.partition_actor import PartitionActor
from velaray.client.auth import AuthenticationToken
from velaray.client.transactions import Coordinators
from velaray.events.ids import ActorKey, ActorKind
from velaray.topology.config import AuthSettings
from velaray.topology.metrics import COMMIT_LATENCY, EXECUTION_LATENCY, EXECUTION_NAMES
from velaray.topology.rpc import RemoteError

SECRET = b"a secret that is long enough for HS256"
V3 = "/admin/v3/transactions"


@pytest.fixture(scope="module")
def http(cluster: LocalCluster) -> Http:
    return Http(cluster.admin_url)


# -- what belongs to the system ----------------------------------------------------


@pytest.mark.parametrize("name", [ASSIGN.local, f"{ASSIGN.local}-partition-0", "new"])
def test_topics_of_the_system_belong_to_no_tenant(
    cluster: LocalCluster, http: Http, name: str
) -> None:
    path = f"{V2}/persistent/pulsar/system/{name}"
    for method, rest, body in (
        ("PUT", "", None),
        ("DELETE", "?force=true", None),
        ("PUT", "/partitions", 4),
        ("POST", "/partitions", 40),
        ("DELETE", "/partitions?force=true", None),
        ("POST", "/terminate", None),
        ("PUT", "/unload", None),
        ("GET", "/stats", None),
        ("PUT", "/subscription/s", None),
    ):
        refused = http(method, path + rest, body)
        assert refused.status == 405, (method, rest, refused)
        assert "belongs to the system" in refused.body["reason"]
    for gone in (f"{V2}/namespaces/pulsar/system", f"{V2}/tenants/pulsar"):
        assert http("DELETE", gone).status == 412
    assert http("GET", f"{V2}/persistent/pulsar/system/{ASSIGN.local}/partitions").body == {
        "partitions": 1
    }
    assert not [key for key in cluster.keys(ActorKind.PARTITION) if key.tenant == "pulsar"]


def test_clients_cannot_publish_to_or_read_topics_of_the_system(
    cluster: LocalCluster, client: pulsar.Client
) -> None:
    with velaray.Client(cluster.service_url) as ours:
        for name in (str(ASSIGN), str(ASSIGN.of_partition(0))):
            with pytest.raises(velaray.NotAllowedError):
                ours.create_producer(name)
            with pytest.raises(velaray.NotAllowedError):
                ours.subscribe(name, "s")
            with pytest.raises(pulsar.PulsarException):
                client.create_producer(name)
        with pytest.raises(velaray.VelarayError, match="pulsar/system/new"):
            ours.create_producer("persistent://pulsar/system/new")
        with pytest.raises(velaray.TopicNotFound):
            ours.create_producer(str(ASSIGN.of_partition(1)))
    assert not [key for key in cluster.keys(ActorKind.PARTITION) if key.tenant == "pulsar"]


def test_system_topics_cannot_join_a_transaction(cluster: LocalCluster) -> None:
    async def main() -> None:
        client = Client(cluster.service_url)
        transaction = await client.new_transaction()
        for name in (str(ASSIGN), str(ASSIGN.of_partition(0))):
            with pytest.raises(velaray.NotAllowedError, match="belongs to the system"):
                await transaction.join_topic(name)
            with pytest.raises(velaray.NotAllowedError, match="belongs to the system"):
                await transaction.join_subscription(name, "s")
        await transaction.abort()
        await client.close()

    asyncio.run(main())


# -- whose it is -------------------------------------------------------------------


def token_of(role: str) -> str:
    return jwt.encode({"sub": role}, SECRET, algorithm="HS256")


def test_a_transaction_is_used_only_by_its_owner(tmp_path: Path) -> None:
    async def scenario(url: str) -> None:
        clients = {
            role: Client(url, authentication=AuthenticationToken(token_of(role)))
            for role in ("alice", "bob")
        }
        transaction = await clients["alice"].new_transaction()
        coordinators = Coordinators(clients["bob"]._live())
        stolen = Transaction(coordinators, transaction.txn_id, 60)
        topic = "persistent://public/default/owned"
        refused: list[Callable[[], Awaitable[None]]] = [
            lambda: stolen.join_topic(topic),
            lambda: stolen.join_subscription(topic, "s"),
            stolen.commit,
        ]
        for each in refused:
            with pytest.raises(velaray.NotAllowedError, match="another role"):
                await each()
        producer = await clients["alice"].create_producer(topic)
        await producer.send(b"1", txn=transaction)
        await transaction.commit()
        for client in clients.values():
            await client.close()

    with LocalCluster(tmp_path, auth=AuthSettings(secret=SECRET)) as cluster:
        asyncio.run(scenario(cluster.service_url))


# -- how many ----------------------------------------------------------------------


def test_the_number_of_open_transactions_of_a_coordinator_is_limited(tmp_path: Path) -> None:
    async def scenario(url: str) -> None:
        client = Client(url, operation_timeout_seconds=1)
        first = await client.new_transaction()
        with pytest.raises(velaray.Timeout, match="1 transactions are active already"):
            await client.new_transaction()
        waiting = asyncio.ensure_future(client.new_transaction())
        await first.commit()
        await (await waiting).abort()
        await client.close()

    limited = LocalCluster(tmp_path)
    limited.config = replace(limited.config, max_active_transactions=1)
    with limited as cluster:
        asyncio.run(scenario(cluster.service_url))


# -- transactions and what participants hold ---------------------------------------

EARLIEST = velaray.InitialPosition.Earliest


class Story:
    """A transaction of a client, with two messages in a topic and two acknowledged in another."""

    def __init__(self, client: velaray.Client, name: str, timeout_s: float = 60) -> None:
        self.topic = f"persistent://public/default/{name}"
        self.source = f"{self.topic}-source"
        self.path, self.source_path = (
            each.removeprefix("persistent://") for each in (self.topic, self.source)
        )
        self.consumer = client.subscribe(self.source, "s", initial_position=EARLIEST)
        with client.create_producer(self.source, batching_enabled=False) as filled:
            self.ids = [filled.send(b"%d" % number) for number in range(3)]
        self.producer = client.create_producer(self.topic, batching_enabled=False)
        self.transaction = client.transaction(timeout_s)
        self.first = self.producer.send(b"a", txn=self.transaction)
        self.producer.send(b"b", txn=self.transaction)
        for _ in range(2):
            self.consumer.acknowledge(self.consumer.receive(20_000), txn=self.transaction)
        coordinator, sequence = self.transaction.txn_id
        self.id = f"({coordinator},{sequence})"
        self.bits = f"{coordinator}/{sequence}"

    def close(self) -> None:
        self.consumer.close()
        self.producer.close()


@pytest.fixture
def story(cluster: LocalCluster, request: pytest.FixtureRequest) -> Iterator[Story]:
    with velaray.Client(cluster.service_url) as client:
        made = Story(client, request.node.name.split("[")[0])
        yield made
        made.close()
        if made.transaction.state == velaray.TransactionState.OPEN:
            made.transaction.abort()


def text_of(position: velaray.MessageId) -> str:
    return f"{position.ledger_id()}:{position.entry_id()}"


def test_an_open_transaction_is_described_completely(http: Http, story: Story) -> None:
    first = text_of(story.first)
    found = http("GET", f"{V3}/transactionMetadata/{story.bits}").body
    assert found["txnId"] == story.id
    assert found["status"] == "OPEN"
    assert found["timeoutAt"] == 60_000
    assert 0 < found["timeLeft"] <= 60_100
    assert found["openTimestamp"] > 1_600_000_000_000
    assert found["producedPartitions"] == {
        story.topic: {"startPosition": first, "aborted": False, "entries": 2, "error": None}
    }
    assert found["ackedPartitions"] == {
        story.source: {
            "s": {"cumulativeAckPosition": None, "entries": 2, "batches": 0, "error": None}
        }
    }
    assert found["waitsFor"] == []
    in_topic = http("GET", f"{V3}/transactionInBufferStats/{story.path}/{story.bits}").body
    assert in_topic == {"startPosition": first, "aborted": False, "entries": 2}
    whole = http("GET", f"{V3}/transactionBufferStats/{story.path}?lowWaterMarks=true").body
    assert whole.pop("recoverStartTime") <= whole.pop("recoverEndTime")
    assert whole == {
        "state": "Ready",
        "maxReadPosition": f"{story.first.ledger_id()}:-1",
        "ongoingTxnSize": 1,
        "hiddenEntries": 0,
        "lowWaterMarks": {},
    }
    pending = http("GET", f"{V3}/pendingAckStats/{story.source_path}/s").body
    assert (pending["state"], pending["ongoingTxnSize"], pending["pendingEntries"]) == (
        *("Ready", 1),
        2,
    )
    mine = f"{V3}/transactionInPendingAckStats/{story.source_path}/s/{story.bits}"
    assert http("GET", mine).body["entries"] == 2
    assert story.id in http("GET", f"{V3}/slowTransactions/0").body
    assert story.id not in http("GET", f"{V3}/slowTransactions/3600000?coordinatorId=0").body


def test_cumulative_acknowledgements_are_reported(
    cluster: LocalCluster, http: Http, story: Story
) -> None:
    with velaray.Client(cluster.service_url) as client, client.transaction() as transaction:
        consumer = client.subscribe(story.source, "all", initial_position=EARLIEST)
        for _ in range(2):
            last = consumer.receive(20_000)
        consumer.acknowledge_cumulative(last, txn=transaction)
        bits = "/".join(map(str, transaction.txn_id))
        path = f"{V3}/transactionInPendingAckStats/{story.source_path}/all/{bits}"
        assert http("GET", path).body == {
            "cumulativeAckPosition": text_of(story.ids[1]),
            "entries": 0,
            "batches": 0,
        }
        states = [
            http("GET", f"{V3}/positionStatsInPendingAck/{story.source_path}/all/{place}").body
            for place in (text_of(each).replace(":", "/") for each in story.ids)
        ]
        assert [each["state"] for each in states] == ["PendingAck", "PendingAck", "NotInPendingAck"]


def test_a_position_is_pending_acknowledged_or_neither(http: Http, story: Story) -> None:
    def state(ledger: int, entry: int, query: str = "") -> str:
        path = f"{V3}/positionStatsInPendingAck/{story.source_path}/s/{ledger}/{entry}{query}"
        return str(http("GET", path).body["state"])

    places = [(each.ledger_id(), each.entry_id()) for each in story.ids]
    assert [state(*place) for place in places] == ["PendingAck", "PendingAck", "NotInPendingAck"]
    assert state(*places[0], "?batchIndex=0") == "PendingAck"
    assert state(places[0][0], 99) == "InvalidPosition"
    story.transaction.commit()
    assert [state(*place) for place in places] == ["MarkDelete", "MarkDelete", "NotInPendingAck"]


@pytest.mark.parametrize("commit", [True, False])
def test_the_outcome_of_a_transaction_can_be_read_for_ever(
    cluster: LocalCluster, http: Http, story: Story, commit: bool
) -> None:
    def metadata() -> tuple[str, object, object]:
        found = http("GET", f"{V3}/transactionMetadata/{story.bits}").body
        assert found["ackedPartitions"] == {} and found["waitsFor"] == []
        return found["status"], found["producedPartitions"], found["timeLeft"]

    if commit:
        story.transaction.commit()
    else:
        story.transaction.abort()
    ended = ("COMMITTED" if commit else "ABORTED", {}, None)
    assert metadata() == ended
    cluster.kill(ActorKey.of_coordinator(0))
    assert metadata() == ended
    in_topic = http("GET", f"{V3}/transactionInBufferStats/{story.path}/{story.bits}").body
    assert in_topic == {"startPosition": None, "aborted": not commit, "entries": 0}
    aborting = http("POST", f"{V3}/abortTransaction/{story.bits}")
    assert aborting.status == (409 if commit else 204)
    assert metadata() == ended


def test_an_administrator_aborts_any_open_transaction(
    cluster: LocalCluster, http: Http, story: Story
) -> None:
    before = http("GET", f"{V3}/coordinatorStats?coordinatorId=0").body
    for _ in range(2):
        assert http("POST", f"{V3}/abortTransaction/{story.bits}").status == 204
    after = http("GET", f"{V3}/coordinatorStats?coordinatorId=0").body
    assert after["abortedTxnCount"] == before["abortedTxnCount"] + 1
    assert after["lowWaterMark"] == after["leastSigBits"] >= int(story.bits.split("/")[1])
    buffer = http("GET", f"{V3}/transactionBufferStats/{story.path}").body
    assert (buffer["ongoingTxnSize"], buffer["hiddenEntries"]) == (0, 2)
    with pytest.raises(velaray.InvalidTxnStatusError):
        story.transaction.commit()
    story.consumer.redeliver_unacknowledged_messages()
    assert story.consumer.receive(20_000).data() in (b"0", b"1", b"2")


def test_an_idle_transaction_ends_at_its_deadline(cluster: LocalCluster, http: Http) -> None:
    with velaray.Client(cluster.service_url) as client:
        story = Story(client, "idle", timeout_s=2)
        reader = client.subscribe(story.topic, "r", initial_position=EARLIEST)
        plain = story.producer.send(b"plain")
        before = http("GET", f"{V3}/coordinatorStats?coordinatorId=0").body
        path = f"{V3}/transactionMetadata/{story.bits}"
        wait_until(lambda: http("GET", path).body["status"] == "ABORTED")
        after = http("GET", f"{V3}/coordinatorStats?coordinatorId=0").body
        assert after["timedOutTxnCount"] == before["timedOutTxnCount"] + 1
        message = reader.receive(20_000)  # what was in the transaction never comes
        assert (message.data(), text_of(message.message_id())) == (b"plain", text_of(plain))
        pending = http("GET", f"{V3}/pendingAckStats/{story.source_path}/s").body
        assert (pending["ongoingTxnSize"], pending["pendingEntries"]) == (0, 0)
        story.consumer.redeliver_unacknowledged_messages()
        assert [story.consumer.receive(20_000).data() for _ in range(3)] == [b"0", b"1", b"2"]
        with pytest.raises(velaray.InvalidTxnStatusError):
            story.producer.send(b"late", txn=story.transaction)
        with pytest.raises(velaray.InvalidTxnStatusError):
            story.transaction.commit()
        story.close()


def test_the_participants_that_an_end_waits_for_are_reported(
    cluster: LocalCluster, http: Http, story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The partition's disk is full: it can't apply the verdict."""
    (key,) = [
        each for each in cluster.keys(ActorKind.PARTITION) if str(each.topic_name) == story.topic
    ]
    partition = cluster.actor_system.actors[key]
    assert isinstance(partition, PartitionActor)
    ending = partition.transactions.end_transaction

    async def refuse(*args: Any, **kwargs: Any) -> None:
        raise RemoteError(Reason.STORAGE_FULL, "no space is left")

    partition.transactions.end_transaction = refuse  # type: ignore[method-assign]
    monkeypatch.setattr(coordinator_admin, "ABORT_S", 0.2)
    try:
        assert http("POST", f"{V3}/abortTransaction/{story.bits}").status == 202
        found = http("GET", f"{V3}/transactionMetadata/{story.bits}").body
        assert (found["status"], found["timeLeft"]) == ("ABORTING", None)
        (waits,) = found["waitsFor"]
        assert (waits["topic"], waits["subscription"]) == (story.topic, None)
        assert waits["failures"] > 0 and "no space is left" in waits["lastError"]
        assert waits["since"] >= found["openTimestamp"]
        listed = http("GET", f"{V3}?status=ABORTING").body
        assert [each["txnId"] for each in listed["transactions"]] == [story.id]
    finally:
        partition.transactions.end_transaction = ending  # type: ignore[method-assign]

    def status() -> str:
        return str(http("GET", f"{V3}/transactionMetadata/{story.bits}").body["status"])

    wait_until(lambda: status() == "ABORTED")


def test_a_deleted_participant_is_reported(http: Http, story: Story) -> None:
    story.producer.close()  # it would make the topic anew
    assert http("DELETE", f"{V2}/persistent/{story.path}").status == 204
    found = http("GET", f"{V3}/transactionMetadata/{story.bits}").body
    assert "no topic" in found["producedPartitions"][story.topic]["error"]
    assert found["ackedPartitions"][story.source]["s"]["entries"] == 2


def test_transactions_are_listed_oldest_first(
    cluster: LocalCluster, http: Http, client: pulsar.Client
) -> None:
    with velaray.Client(cluster.service_url) as ours:
        made = [ours.transaction() for _ in range(3)]
        ids = ["({},{})".format(*each.txn_id) for each in made]
        found = http("GET", V3).body
        assert found["total"] == 3
        assert [each["txnId"] for each in found["transactions"]] == ids
        one = http("GET", f"{V3}?most=1&status=OPEN&coordinatorId=0").body
        assert (one["total"], [each["txnId"] for each in one["transactions"]]) == (3, ids[:1])
        assert http("GET", f"{V3}?olderThan=3600000").body == {"total": 0, "transactions": []}
        assert http("GET", f"{V3}?status=COMMITTING").body["total"] == 0
        for each in made:
            each.abort()


# -- coordinators ------------------------------------------------------------------


@pytest.fixture
def in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients begin transactions at one coordinator after the other, not at one of their own."""
    turns = itertools.count()

    async def begin(coordinators: Coordinators, timeout_s: float) -> Transaction:
        number = next(turns) % await coordinators.count()
        return await coordinators.begin_at(number, timeout_s)

    monkeypatch.setattr(Coordinators, "begin", begin)


def test_coordinators_are_counted_described_and_added(tmp_path: Path, in_turns: None) -> None:
    with LocalCluster(tmp_path) as cluster:
        http = Http(cluster.admin_url)
        unused = http("GET", f"{V3}/coordinatorStats").body["0"]
        assert (unused["state"], unused["recoverStartTime"]) == ("None", 0)
        assert (
            http("GET", f"{V3}/coordinatorInternalStats/0").body["transactionLogStats"][
                "managedLedgerInternalStats"
            ]["ledgers"]
            == []
        )
        assert not cluster.keys(ActorKind.COORDINATOR)
        replicas = f"{V3}/transactionCoordinator/replicas"
        assert http("POST", replicas, 3).status == 204
        for wrong, status in ((3, 406), (1, 406), (0, 400), ("many", 400), (None, 400)):
            assert http("POST", replicas, wrong).status == status
        assert http("GET", f"{V3}/coordinators").body == [
            {"id": number, "brokerServiceUrl": cluster.service_url} for number in range(3)
        ]
        with velaray.Client(cluster.service_url) as client:
            used = {client.transaction().txn_id.coordinator for _ in range(3)}
            assert used == {0, 1, 2}
            stats = http("GET", f"{V3}/coordinatorStats").body
            assert list(stats) == ["0", "1", "2"]
            for each in stats.values():
                assert 0 < each.pop("recoverStartTime") <= each.pop("recoverEndTime")
                assert each == {
                    "state": "Ready",
                    "leastSigBits": 1,
                    "lowWaterMark": 0,
                    "ongoingTxnSize": 1,
                    "openTxnSize": 1,
                    "endingTxnSize": 0,
                    "committedTxnCount": 0,
                    "abortedTxnCount": 0,
                    "timedOutTxnCount": 0,
                }
        log = http("GET", f"{V3}/coordinatorInternalStats/2").body["transactionLogStats"]
        assert log["managedLedgerName"] == ActorKey.of_coordinator(2).text()
        assert log["managedLedgerInternalStats"]["numberOfEntries"] >= 2


def test_the_journals_of_coordinators_are_reported(http: Http, story: Story) -> None:
    buffer = http("GET", f"{V3}/transactionBufferInternalStats/{story.path}").body
    assert buffer["segmentInternalStats"]["managedLedgerInternalStats"]["totalSize"] > 0
    pending = http("GET", f"{V3}/pendingAckInternalStats/{story.source_path}/s").body
    assert "/s/" in pending["pendingAckLogStats"]["managedLedgerName"]
    assert pending["pendingAckLogStats"]["managedLedgerInternalStats"]["numberOfEntries"] > 0


# -- what is measured --------------------------------------------------------------


def test_coordinators_partitions_and_subscriptions_are_measured(
    tmp_path: Path, in_turns: None
) -> None:
    with LocalCluster(tmp_path) as cluster, velaray.Client(cluster.service_url) as client:
        Http(cluster.admin_url)("POST", f"{V3}/transactionCoordinator/replicas", 2)
        committed, aborted = Story(client, "committed"), Story(client, "aborted")
        committed.transaction.commit()
        aborted.transaction.abort()
        late = client.transaction(timeout=0.1)
        wait_until(lambda: late.state == velaray.TransactionState.TIME_OUT)
        left = Story(client, "left")

        def of(coordinator: int, *names: str) -> list[float | None]:
            labels = {"cluster": "standalone", "coordinator_id": str(coordinator)}
            return [found.get(name, labels) for name in names]

        def ended() -> bool:
            nonlocal found
            found = scrape(cluster)
            return of(0, "pulsar_txn_aborted_total", "pulsar_txn_timeout_total") == [1, 1]

        found = scrape(cluster)
        wait_until(ended)
        counts = ("pulsar_txn_active_count", "velaray_txn_open", "velaray_txn_ending")
        totals = ("pulsar_txn_created_total", "pulsar_txn_committed_total")
        assert of(0, *counts, *totals) == [0, 0, 0, 2, 1]
        assert of(1, *counts, *totals) == [1, 1, 0, 2, 0]
        assert of(1, "pulsar_txn_aborted_total", "pulsar_txn_timeout_total") == [1, 0]
        for what in ("created", "committed", "aborted", "timeout"):
            names = (f"pulsar_txn_{what}_count", f"pulsar_txn_{what}_total")
            assert len(set(of(0, *names))) == 1
        latencies = (f"{EXECUTION_LATENCY}_count", f"{COMMIT_LATENCY}_count")
        assert [of(number, *latencies) for number in (0, 1)] == [[2, 1], [1, 0]]
        assert all(sum(of(n, *EXECUTION_NAMES)) > 0 for n in (0, 1))  # type: ignore[arg-type]
        for number in (0, 1):
            actor = {"cluster": "standalone", "coordinator_id": str(number), "kind": "coordinator"}
            assert found.get("velaray_journal_events_total", actor)
        per_topic = (
            *("velaray_topic_ongoing_transactions", "velaray_topic_hidden_entries"),
            "velaray_topic_committed_transactions_total",
            "velaray_topic_aborted_transactions_total",
        )
        for story, expected in (
            (committed, [0, 0, 1, 0]),
            (aborted, [0, 2, 0, 1]),
            (left, [1, 0, 0, 0]),
        ):
            labels = {"cluster": "standalone", "namespace": "public/default"}
            labels["topic"] = story.topic
            assert [found.get(name, labels) for name in per_topic] == expected
            of_pulsar = [
                f"pulsar_txn_tb_{what}_total" for what in ("active", "committed", "aborted")
            ]
            assert [found.get(name, labels) for name in of_pulsar] == [expected[0], *expected[2:]]
            stats = Http(cluster.admin_url)("GET", f"{V2}/persistent/{story.path}/stats").body
            assert [
                stats[name] for name in ("ongoingTxnCount", "committedTxnCount", "abortedTxnCount")
            ] == [expected[0], *expected[2:]]
        per_subscription = (
            *("velaray_subscription_pending_transactions", "velaray_subscription_pending_entries"),
            "pulsar_subscription_back_log",
        )
        for story, expected in ((committed, [0, 0, 1]), (aborted, [0, 0, 3]), (left, [1, 2, 3])):
            labels["topic"], labels["subscription"] = story.source, "s"
            assert [found.get(name, labels) for name in per_subscription] == expected
        stats = Http(cluster.admin_url)("GET", f"{V2}/persistent/{left.source_path}/stats").body
        of_s = stats["subscriptions"]["s"]
        assert (of_s["pendingTransactions"], of_s["pendingEntries"]) == (1, 2)
        left.transaction.abort()


def test_transactions_that_end_after_their_consumers_left_are_measured(
    cluster: LocalCluster, story: Story
) -> None:
    labels = {"cluster": "standalone", "namespace": "public/default"}
    labels |= {"topic": story.source, "subscription": "s"}

    def measured() -> list[float | None]:
        found = scrape(cluster)
        return [
            found.get(name, labels)
            for name in ("velaray_subscription_pending_entries", "pulsar_subscription_back_log")
        ]

    assert measured() == [2, 3]
    story.consumer.close()
    wait_until(lambda: measured() == [2, 3])
    story.transaction.commit()
    wait_until(lambda: measured() == [0, 1])


# -- what is refused ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "transactionMetadata/0/4711", 404),
        ("GET", "transactionMetadata/9/1", 404),
        ("GET", "transactionMetadata/0/0", 404),
        ("GET", "transactionMetadata/zero/1", 400),
        ("POST", "abortTransaction/0/4711", 404),
        ("POST", "abortTransaction/9/1", 404),
        ("GET", "coordinatorStats?coordinatorId=9", 404),
        ("GET", "coordinatorStats?coordinatorId=x", 400),
        ("GET", "coordinatorInternalStats/9", 404),
        ("GET", "slowTransactions/soon", 400),
        ("GET", "transactionBufferStats/public/default/nowhere", 404),
        ("GET", "transactionBufferStats/public/default/errors", 405),
        ("GET", "transactionInBufferStats/public/default/errors/0/1", 405),
        ("GET", "transactionInBufferStats/public/default/errors-partition-0/0/4711", 404),
        ("GET", "pendingAckStats/public/default/errors/s", 405),
        ("GET", "pendingAckStats/public/default/errors-partition-0/s", 404),
        ("GET", "pendingAckInternalStats/public/default/errors-partition-0/s", 404),
        ("GET", "transactionInPendingAckStats/public/default/errors-partition-0/s/0/1", 404),
        ("GET", "positionStatsInPendingAck/public/default/errors-partition-0/s/0/x", 400),
        ("GET", f"transactionBufferStats/pulsar/system/{ASSIGN.local}-partition-0", 405),
        ("GET", "?status=ENDED", 400),
        ("GET", "?most=all", 400),
    ],
)
def test_invalid_requests_are_refused(http: Http, method: str, path: str, status: int) -> None:
    http("PUT", f"{V2}/persistent/public/default/errors/partitions", 2)
    refused = http(method, f"{V3}/{path}" if path[0] != "?" else f"{V3}{path}")
    assert (refused.status, list(refused.body)) == (status, ["reason"])


def test_a_partition_is_addressed_by_its_name(http: Http) -> None:
    http("PUT", f"{V2}/persistent/public/default/errors/partitions", 2)
    path = f"{V3}/transactionBufferStats/public/default/errors-partition-1"
    assert http("GET", path).body["ongoingTxnSize"] == 0
