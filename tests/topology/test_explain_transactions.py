"""What `velaray messages explain` and subscription descriptions report of transactions."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import velaray
from tests.support.local_cluster import LocalCluster
from tests.support.waiting import wait_until
from velaray.broker.coordinator.messages import Transaction
from velaray.cli.app import main
from velaray.client.admin import Admin
from velaray.events.ids import ActorKey

EARLIEST = velaray.InitialPosition.Earliest
SHARED = velaray.ConsumerType.Shared
Client = velaray.Client
_numbers = itertools.count()


@pytest.fixture(scope="module")
def ours(cluster: LocalCluster) -> Iterator[Client]:
    with Client(cluster.service_url) as made:
        yield made


class Topic:
    """A topic with subscription ``s``, whose consumer is called carol."""

    def __init__(
        self, cluster: LocalCluster, client: Client, name: str, kind: velaray.ConsumerType
    ) -> None:
        self.name, self.admin, self.client = name, Admin(cluster.admin_url), client
        self.data = Path(cluster.config.data_dir)
        self.consumer = client.subscribe(
            name, "s", consumer_type=kind, consumer_name="carol", initial_position=EARLIEST
        )
        self.producer = client.create_producer(name, batching_enabled=False, producer_name="p")

    def explain(self, message: velaray.MessageId) -> dict[str, Any]:
        return self.admin.explain(self.name, "s", message)

    def told(self, message: velaray.MessageId) -> list[str]:
        """Words of what happened, deliveries that are only counted left out."""
        found = [fact["what"] for fact in self.explain(message)["facts"]]
        return [what for what in found if what not in ("counted", "returned")]

    def texts(self, message: velaray.MessageId) -> list[str]:
        return [str(fact["text"]) for fact in self.explain(message)["facts"]]

    def where(self, message: velaray.MessageId) -> str:
        return str(self.explain(message)["now"]["where"])

    def holdups(self) -> dict[str, str]:
        (found,) = self.admin.describe_subscription(self.name, "s").values()
        return {each["reason"]: each["text"] for each in found["holdups"]}

    def on_disk(self, message: velaray.MessageId) -> list[str]:
        """What the journals alone tell."""
        wanted = f"{message.ledger_id()}:{message.entry_id()}"
        words = [
            "messages",
            "explain",
            self.name,
            "s",
            wanted,
            "--data",
            str(self.data),
            "-o",
            "json",
        ]
        read = CliRunner().invoke(main, [*words, "-o", "json"], catch_exceptions=False)
        found = [fact["what"] for fact in json.loads(read.stdout)["facts"]]
        return [what for what in found if what not in ("counted", "returned")]


@pytest.fixture
def topic(cluster: LocalCluster, ours: Client, request: pytest.FixtureRequest) -> Iterator[Topic]:
    name, kind = f"why-{next(_numbers)}", getattr(request, "param", SHARED)
    made = Topic(cluster, ours, name, kind)
    yield made
    made.consumer.close()
    made.producer.close()


@pytest.mark.parametrize("commit", [True, False])
def test_a_message_of_an_open_transaction_is_explained(topic: Topic, commit: bool) -> None:
    transaction = topic.client.transaction()
    message = topic.producer.send(b"x", txn=transaction)
    now = topic.explain(message)["now"]
    assert (now["where"], now["status"]) == ("undecided", "OPEN")
    assert tuple(now["transaction"]) == transaction.txn_id
    assert f"it belongs to transaction {transaction.txn_id}" in now["text"]
    assert "and ends within" in now["text"]
    assert topic.told(message) == ["published"]
    assert f"in transaction {transaction.txn_id}" in topic.texts(message)[0]
    if not commit:
        transaction.abort()
        expected = ["published", "aborted", "passed-over"]
        wait_until(lambda: topic.told(message) == expected)
        assert topic.on_disk(message) == expected
        assert topic.where(message) == "aborted"
        return
    transaction.commit()
    topic.consumer.acknowledge(topic.consumer.receive(20_000))
    wait_until(lambda: topic.where(message) == "acknowledged")
    expected = ["published", "committed", "readable", "delivered", "acknowledged"]
    assert topic.told(message) == expected
    assert topic.on_disk(message) == expected


def test_a_plain_message_behind_open_transactions_is_explained(topic: Topic) -> None:
    one, two = topic.client.transaction(), topic.client.transaction()
    first = topic.producer.send(b"of one", txn=one)
    topic.producer.send(b"of two", txn=two)
    message = topic.producer.send(b"plain")
    later = topic.client.transaction()
    topic.producer.send(b"later", txn=later)
    now = topic.explain(message)["now"]
    assert (now["where"], tuple(now["transaction"])) == ("behind-transaction", one.txn_id)
    place = f"{first.ledger_id()}:{first.entry_id()}"
    assert f"transaction {one.txn_id}, whose first entry is before it, at {place}" in now["text"]
    assert now["deadline_ms"] > 1_600_000_000_000
    assert "and ends within" in now["text"]
    assert topic.told(message) == ["published", "held-back"]
    behind = f"waits for transaction {one.txn_id}, whose first entry {place} is before it"
    assert topic.texts(message)[1] == f"{behind}, and for 1 more"
    assert topic.holdups() == {
        "open-transaction": f"4 entries from {place} on wait for the end of "
        f"transaction {one.txn_id}"
    }
    one.commit()
    assert tuple(topic.explain(message)["now"]["transaction"]) == two.txn_id
    two.abort()
    assert topic.told(message)[:3] == ["published", "held-back", "readable"]
    assert str(two.txn_id) in topic.texts(message)[2]
    assert topic.consumer.receive(20_000).data() == b"of one"
    received = topic.consumer.receive(20_000)
    assert received.data() == b"plain"
    assert topic.where(message) == "delivered"
    topic.consumer.acknowledge(received)
    wait_until(lambda: topic.where(message) == "acknowledged")
    later.abort()


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize(
    ("topic", "cumulative"),
    [(SHARED, False), (velaray.ConsumerType.Exclusive, True)],
    indirect=["topic"],
)
def test_a_message_acknowledged_in_an_open_transaction_is_explained(
    topic: Topic, commit: bool, cumulative: bool
) -> None:
    message = topic.producer.send(b"x")
    transaction = topic.client.transaction()
    received = topic.consumer.receive(20_000)
    if cumulative:
        topic.consumer.acknowledge_cumulative(received, txn=transaction)
    else:
        topic.consumer.acknowledge(received, txn=transaction)
    now = topic.explain(message)["now"]
    assert (now["where"], tuple(now["transaction"])) == ("pending", transaction.txn_id)
    assert f"it is acknowledged in transaction {transaction.txn_id}" in now["text"]
    assert "and ends within" in now["text"]
    before = ["published", "delivered", "pending"]
    assert topic.told(message) == before
    pending = f"acknowledged by carol in transaction {transaction.txn_id}, which is still open"
    assert pending in topic.texts(message)
    if not cumulative:
        assert topic.holdups()["pending"] == (
            "1 entries are acknowledged in 1 transactions that haven't ended"
        )
    if commit:
        transaction.commit()
        assert topic.told(message) == topic.on_disk(message) == [*before, "acknowledged"]
        assert topic.texts(message)[-1] == (
            f"acknowledged by carol: transaction {transaction.txn_id} was committed"
        )
        assert topic.where(message) == "acknowledged"
        return
    transaction.abort()
    assert topic.told(message)[:4] == [*before, "ack-aborted"]
    if cumulative:
        topic.consumer.redeliver_unacknowledged_messages()
    topic.consumer.acknowledge(topic.consumer.receive(20_000))
    wait_until(lambda: topic.where(message) == "acknowledged")


def test_a_seek_drops_pending_acknowledgements(topic: Topic) -> None:
    message = topic.producer.send(b"x")
    transaction = topic.client.transaction()
    topic.consumer.acknowledge(topic.consumer.receive(20_000), txn=transaction)
    topic.admin.seek(topic.name, "s", velaray.MessageId.earliest)
    assert "not-pending" in topic.told(message)
    transaction.commit()
    assert topic.consumer.receive(20_000).data() == b"x"


def test_an_unreachable_coordinator_is_reported(
    cluster: LocalCluster, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    transaction = topic.client.transaction()
    message = topic.producer.send(b"x", txn=transaction)
    monkeypatch.setattr("velaray.broker.explain_log._DECIDING_S", 0.1)
    key = ActorKey.of_coordinator(transaction.txn_id.coordinator)
    handle = type(cluster.actor_system.actors[key]).handle

    async def hang(actor: Any, request: Any) -> Any:
        if isinstance(request, Transaction):
            await cluster.loop.create_future()
        return await handle(actor, request)

    monkeypatch.setattr(type(cluster.actor_system.actors[key]), "handle", hang)
    now = topic.explain(message)["now"]
    assert (now["where"], "status" in now) == ("undecided", False)
    assert "its coordinator doesn't answer" in now["text"]
    monkeypatch.undo()
    transaction.abort()
