"""Handles on a cluster in this process: what they do and refuse, without Ray between both ends."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pulsar
import pytest
from ray import cloudpickle

import velaray
from tests.support.local_cluster import LocalCluster
from tests.support.waiting import wait_until
from tests.topology.replicating import clusters
from velaray import InitialPosition
from velaray.admin import handle_calls
from velaray.admin.handle_calls import _KINDS, HandleCalls
from velaray.events.ids import ActorKind, TransactionId
from velaray.handles import (
    CoordinatorHandle,
    Handle,
    ReplicatorHandle,
    SchemaRegistryHandle,
    SubscriptionHandle,
    TopicHandle,
)
from velaray.schema import Integer, JsonSchema, Record, String
from velaray.topology.config import AuthSettings


class Flight(Record):
    number = String()
    seats = Integer()


class Ends:
    """Both ends of handles: ``remote`` returns the result itself, after pickling as with Ray."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self.calls: HandleCalls = cluster.run(self._made())
        self._actor = SimpleNamespace(invoke=SimpleNamespace(remote=self._invoke))

    async def _made(self) -> HandleCalls:
        return HandleCalls(self._cluster.actor_system, self._cluster.service_url)

    def _invoke(self, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = cloudpickle.loads(cloudpickle.dumps((args, kwargs)))
        result = self._cluster.run(self.calls.invoke(*args, **kwargs), timeout=90)
        return cloudpickle.loads(cloudpickle.dumps(result))

    def topic(self, topic: str) -> Any:
        return TopicHandle(self._actor, topic)

    def subscription(self, topic: str, ack_timeout_s: float = 60.0) -> Any:
        return SubscriptionHandle(
            self._actor, topic, "board", ack_timeout_s, InitialPosition.Earliest
        )

    def coordinator(self, number: int = 0) -> Any:
        return CoordinatorHandle(self._actor, number)

    def registry(self, topic: str) -> Any:
        return SchemaRegistryHandle(self._actor, topic)

    def replicator(self, topic: str, cluster: str) -> Any:
        return ReplicatorHandle(self._actor, topic, cluster)

    def close(self) -> None:
        self._cluster.run(self.calls.client.close())


@pytest.fixture
def ends(cluster: LocalCluster) -> Iterator[Ends]:
    ends = Ends(cluster)
    yield ends
    ends.close()


def contents(messages: list[velaray.Message[bytes]]) -> list[bytes]:
    return [message.data() for message in messages]


def receive(subscription: Any, count: int) -> list[velaray.Message[bytes]]:
    """Receive this many messages, in as many calls as it takes."""
    found: list[velaray.Message[bytes]] = []
    while len(found) < count:
        more = subscription.receive.remote(count, 30)
        assert more, f"only {len(found)} messages in half a minute"
        found += more
    return found


@pytest.mark.parametrize("kind", _KINDS)
def test_both_ends_have_the_same_methods(kind: str) -> None:
    (face,) = (each for each in Handle.__subclasses__() if kind == each._KIND)
    served = _KINDS[kind]
    declared = {name for name, one in vars(face).items() if hasattr(one, "declared")}
    assert declared == set(served.ALLOWED)  # type: ignore[attr-defined]
    for name in declared:
        here = inspect.signature(vars(face)[name].declared).parameters
        assert str(here) == str(inspect.signature(getattr(served, name)).parameters)


def test_messages_are_published_received_and_acknowledged(ends: Ends) -> None:
    topic, subscription = ends.topic("simple"), ends.subscription("simple")
    first = topic.publish.remote(b"1", key="N14228", properties={"gate": "7"}, event_timestamp=5)
    rest = topic.publish_many.remote([b"2", b"3", b"4"])
    messages = receive(subscription, 4)
    assert contents(messages) == [b"1", b"2", b"3", b"4"]
    assert [message.message_id() for message in messages] == [first, *rest]
    assert messages[0].partition_key() == "N14228" and messages[0].event_timestamp() == 5
    assert messages[0].properties() == {"gate": "7"}
    subscription.acknowledge.remote(messages[:2])  # a part of the batch too
    subscription.acknowledge.remote([messages[3].message_id()])
    subscription.close.remote()
    assert contents(receive(subscription, 1)) == [b"3"]
    assert subscription.receive.remote(1, timeout_s=0.1) == []


def test_a_partitioned_topic_has_one_handle(ends: Ends, cluster: LocalCluster) -> None:
    velaray.Admin(cluster.admin_url).topics.create("wide", partitions=3)
    topic, subscription = ends.topic("wide"), ends.subscription("wide")
    topic.publish_many.remote([b"%d" % n for n in range(9)], [f"k{n}" for n in range(9)])
    messages = receive(subscription, 9)
    subscription.acknowledge.remote(messages)
    names = [f"persistent://public/default/wide-partition-{n}" for n in range(3)]
    assert topic.describe.remote() == {
        "topic": "persistent://public/default/wide",
        "partitions": names,
        "properties": {},
        "subscriptions": ["board"],
    }
    stats = topic.stats.remote()
    assert list(stats) == names
    assert sum(each["subscriptions"]["board"]["backlog"] for each in stats.values()) == 0
    assert list(subscription.describe.remote()) == names
    assert list(ends.topic("wide-partition-1").stats.remote()) == names[1:2]


@pytest.mark.slow
def test_messages_are_redelivered_after_the_acknowledgement_timeout(ends: Ends) -> None:
    ends.topic("slow").publish_many.remote([b"1", b"2"])
    subscription = ends.subscription("slow", ack_timeout_s=10)
    one, _ = receive(subscription, 2)
    subscription.acknowledge.remote([one])
    (again,) = subscription.receive.remote(timeout_s=30)
    assert again.data() == b"2" and again.redelivery_count() == 1


def test_a_killed_partition_loses_nothing_acknowledged(ends: Ends, cluster: LocalCluster) -> None:
    topic, subscription = ends.topic("killed"), ends.subscription("killed")
    topic.publish_many.remote([b"1", b"2", b"3"])
    one, two, _ = receive(subscription, 3)
    subscription.acknowledge.remote([one])
    for key in cluster.keys(ActorKind.PARTITION) + cluster.keys(ActorKind.SUBSCRIPTION):
        cluster.kill(key)
    subscription.acknowledge.remote([two])
    topic.publish.remote(b"4")
    subscription.close.remote()
    assert contents(receive(subscription, 2)) == [b"3", b"4"]


def test_transactions_span_topics_and_subscriptions(ends: Ends) -> None:
    coordinator, into = ends.coordinator(), ends.subscription("into")
    ends.topic("from").publish_many.remote([b"1", b"2"])
    source = ends.subscription("from")
    for end in ("abort", "commit"):
        txn = coordinator.begin.remote()
        messages = receive(source, 2)
        ends.topic("into").publish.remote(end.encode(), txn=txn)
        source.acknowledge.remote(messages, txn=txn)
        getattr(coordinator, end).remote(txn)
        source.close.remote()
    assert contents(into.receive.remote()) == [b"commit"]
    assert source.receive.remote(timeout_s=0.5) == []
    described = coordinator.describe.remote()
    assert (described["committed"], described["aborted"]) == (1, 1)


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_the_end_of_a_transaction_waits_for_its_calls(
    ends: Ends, cluster: LocalCluster, end: str
) -> None:
    async def overlap() -> list[Any]:
        def call(kind: str, target: Any, *args: Any, **options: Any) -> asyncio.Task[Any]:
            return asyncio.ensure_future(ends.calls.invoke(kind, (target,), *args, **options))

        txn = await call("coordinator", 0, "begin")
        # The first call of each opens its producer.
        under_way = [call("topic", f"{end}-{n}", "publish", b"1", txn=txn) for n in range(3)]
        return await asyncio.gather(call("coordinator", 0, end, txn), *under_way)

    assert len(cluster.run(overlap())) == 4
    for number in range(3):
        received = ends.subscription(f"{end}-{number}").receive.remote(timeout_s=1)
        assert contents(received) == [b"1"] * (end == "commit")


def test_a_transaction_with_a_failed_call_is_not_committed(ends: Ends) -> None:
    coordinator, topic = ends.coordinator(), ends.topic("failed")
    txn = coordinator.begin.remote()
    topic.publish.remote(b"1", txn=txn)
    with pytest.raises(velaray.MessageTooBig):
        topic.publish.remote(b"x" * (6 << 20), txn=txn)
    with pytest.raises(velaray.TransactionHasOperationFailed):
        coordinator.commit.remote(txn)
    for unknown in (txn, TransactionId(0, 1 << 40), TransactionId(7, 1)):
        with pytest.raises(velaray.TransactionNotFound):
            coordinator.commit.remote(unknown)
        with pytest.raises(velaray.TransactionNotFound):
            topic.publish.remote(b"2", txn=unknown)


def test_schemas_are_checked_and_described(ends: Ends) -> None:
    topic, registry = ends.topic("typed"), ends.registry("typed")
    schema = JsonSchema(Flight)
    with pytest.raises(velaray.TopicNotFound):
        registry.describe.remote()
    topic.publish.remote(b"of no schema")
    assert registry.get.remote() is None and registry.versions.remote() == []
    topic.publish.remote(Flight(number="LH1", seats=3), schema=schema)
    with pytest.raises(velaray.InvalidMessage):
        topic.publish.remote(Flight(number=7, seats="many"), schema=schema)
    message = receive(ends.subscription("typed"), 2)[1]
    assert schema.decode(message.data()) == Flight(number="LH1", seats=3)
    latest = registry.get.remote()
    assert latest == registry.get.remote(0) and registry.versions.remote() == [latest]
    assert (latest["version"], latest["type"]) == (0, "JSON")
    assert registry.get.remote(1) is None
    described = registry.describe.remote()
    assert described["versions"] == [0]
    assert described["policies"]["schemaCompatibilityStrategy"]
    with pytest.raises(velaray.IncompatibleSchema):
        topic.publish.remote("text", schema=velaray.schema.StringSchema())


REFUSED: list[tuple[Callable[[Ends], Any], type[Exception], str]] = [
    (lambda to: to.topic("t").invoke("terminate"), velaray.NotAllowedError, "publish_many"),
    (lambda to: to.topic("t").invoke("_producer"), velaray.NotAllowedError, "publish_many"),
    (lambda to: to.subscription("t").invoke("seek"), velaray.NotAllowedError, "acknowledge"),
    (lambda to: to.coordinator().invoke("may_join"), velaray.NotAllowedError, "begin, commit"),
    (lambda to: to.registry("t").invoke("delete"), velaray.NotAllowedError, "versions"),
    (lambda to: to.replicator("t", "eu").invoke("give_up"), velaray.NotAllowedError, "describe"),
    (lambda to: to._actor.invoke.remote("catalog", (), "x"), velaray.NotAllowedError, "subscrip"),
    (lambda to: to.topic("t").terminate, AttributeError, "publish_many"),
    (lambda to: to.topic("a/b").publish.remote(b""), velaray.InvalidTopicName, "a/b"),
    (lambda to: to.topic("none").stats.remote(), velaray.TopicNotFound, "none"),
    (lambda to: to.topic("none").describe.remote(), velaray.TopicNotFound, "none"),
    (
        lambda to: to.topic("t").publish.remote(b"x" * (6 << 20)),
        velaray.MessageTooBig,
        "too big|exceed|larger",
    ),
    (lambda to: to.subscription("t").describe.remote(), velaray.SubscriptionNotFound, "board"),
    (lambda to: to.subscription("t", 1).receive.remote(), velaray.InvalidConfiguration, "10000"),
    (
        lambda to: to.coordinator(99).begin.remote(),
        velaray.TransactionCoordinatorNotFoundError,
        "0 to 0",
    ),
    (
        lambda to: to.coordinator(99).describe.remote(),
        velaray.TransactionCoordinatorNotFoundError,
        "0 to 0",
    ),
]
SYSTEMS = "persistent://pulsar/system/transaction_coordinator_assign-partition-0"


@pytest.mark.parametrize(("call", "error", "told"), REFUSED)
def test_calls_are_refused_with_the_errors_of_the_client(
    ends: Ends, call: Callable[[Ends], Any], error: type[Exception], told: str
) -> None:
    ends.topic("t").publish.remote(b"")
    with pytest.raises(error, match=told):
        call(ends)


def test_a_refused_consumer_is_opened_again(ends: Ends, cluster: LocalCluster) -> None:
    subscription = ends.subscription("busy")
    client = pulsar.Client(cluster.service_url)
    exclusive = client.subscribe("busy", "board")
    with pytest.raises(velaray.ConsumerBusy):
        subscription.receive.remote()
    exclusive.unsubscribe()
    client.close()
    ends.topic("busy").publish.remote(b"1")
    assert contents(receive(subscription, 1)) == [b"1"]


def test_unused_producers_are_closed(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handle_calls, "PRODUCER_IDLE_S", 0.1)
    topic = ends.topic("idle")
    topic.publish.remote(b"1")
    (stats,) = topic.stats.remote()
    wait_until(lambda: not topic.stats.remote()[stats]["producers"])
    topic.publish.remote(b"2")
    assert contents(receive(ends.subscription("idle"), 2)) == [b"1", b"2"]


def test_a_cancelled_call_does_not_disturb_others(ends: Ends, cluster: LocalCluster) -> None:
    async def cancel() -> Any:
        target = ("cancelled", "board", 60.0, InitialPosition.Earliest)
        calls = [
            asyncio.ensure_future(ends.calls.invoke("subscription", target, "receive", 1, 30))
            for _ in range(2)
        ]
        await asyncio.sleep(0)
        calls[0].cancel()
        await ends.calls.invoke("topic", ("cancelled",), "publish", b"1")
        return await calls[1]

    assert contents(cluster.run(cancel())) == [b"1"]


def test_with_tokens_the_holder_of_a_handle_is_an_ordinary_client(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, auth=AuthSettings(secret=b"s" * 32)) as cluster:
        ends = Ends(cluster)
        ends.topic("t").publish.remote(b"1")
        assert contents(receive(ends.subscription("t"), 1)) == [b"1"]
        for refused in (ends.topic(SYSTEMS).publish, ends.topic(SYSTEMS).stats):
            with pytest.raises(velaray.NotAllowedError, match="belongs to the system"):
                refused.remote(*[b""] * (refused._method == "publish"))
        with pytest.raises(velaray.NotAllowedError, match="only replicators"):
            SubscriptionHandle(
                ends._actor, "t", "pulsar.repl.eu", 60.0, InitialPosition.Latest
            ).receive.remote()
        ends.close()


def test_replicators_are_described(tmp_path: Path) -> None:
    with clusters(tmp_path, "us", "eu") as (us, eu):
        us.replicate("t", {"eu": eu.describe()})
        ends = Ends(us.local)
        ends.topic("t").publish.remote(b"1")
        replicator = ends.replicator("t", "eu")
        wait_until(replicator.describe.remote)
        ((name, described),) = replicator.describe.remote().items()
        assert name == "persistent://public/default/t" and described
        assert ends.replicator("t", "asia").describe.remote() == {}
        ends.close()
