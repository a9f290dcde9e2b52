"""Actors that start while they are deleted: in any order, nothing of them stays stored."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.support.by_name import call_by_name
from velaray.actors.machine import Reason
from velaray.actors.partition.machine import DeleteSubscription, StartAt
from velaray.broker.garbage_collection.topic_deletion import delete_topic
from velaray.broker.journaled_actor import WasDeleted
from velaray.broker.partition.partition_actor import PartitionActor
from velaray.broker.subscription.messages import GetMark
from velaray.events.ids import ActorKey, TopicName, TransactionId
from velaray.geo.actor_kinds import make_actor
from velaray.journal.errors import Fenced
from velaray.journal.garbage_collection import purge
from velaray.journal.journal import Journal
from velaray.journal.memory import MemoryDisk, MemoryStore, Step
from velaray.topology.actor_system import Unreachable
from velaray.topology.config import ClusterConfig
from velaray.topology.in_process import InProcessActorSystem
from velaray.topology.rpc import RemoteError

TOPIC = TopicName.parse("persistent://public/default/t")
BEFORE_ADMISSION = (Step.READ_MANIFEST, Step.WRITE_MANIFEST, Step.MANIFEST_WRITTEN)


class Cluster(InProcessActorSystem):
    """A cluster in memory, in which something may happen at a step of one journal's store."""

    def __init__(self) -> None:
        self.disk = MemoryDisk()
        store = MemoryStore(self.disk, hook=self._on_step)
        super().__init__(ClusterConfig("nowhere", 1, b"key", deleters=0), store, make_actor)
        self._trap: tuple[ActorKey, Step, Callable[[], Awaitable[None]]] | None = None

    async def _on_step(self, step: Step, journal: str) -> None:
        if self._trap is not None and (journal, step) == (self._trap[0].text(), self._trap[1]):
            spring, self._trap = self._trap[2], None
            await spring()

    def at(self, key: ActorKey, step: Step, action: Callable[[], Awaitable[None]]) -> None:
        self._trap = (key, step, action)

    async def dismiss(self, key: ActorKey) -> None:
        """No process is known to run: one that still runs was taken for dead."""

    async def make_topic(self) -> ActorKey:
        names = {"cluster": "c", "service_url": "pulsar://h:1", "admin_url": "http://h:2"}
        await call_by_name(self, ActorKey.catalog(), "bootstrap", names)
        found = await call_by_name(self, ActorKey.catalog(), "ensure_topic", {"topic": str(TOPIC)})
        return ActorKey.of_partition(TOPIC, found["incarnation"])

    async def partition(self, key: ActorKey) -> PartitionActor:
        await self.address(key)
        actor = self.actors[key]
        assert isinstance(actor, PartitionActor)
        return actor

    async def stored(self) -> list[str]:
        return [name for name in await self.store.list_journals() if name != "catalog"]


def run(scenario: Callable[[Cluster], Awaitable[None]]) -> None:
    async def main() -> None:
        cluster = Cluster()
        async with asyncio.timeout(20):
            await scenario(cluster)
        cluster.drop_rpc()
        for key in list(cluster.actors):
            cluster.kill(key)

    asyncio.run(main())


@pytest.mark.parametrize("step", [*BEFORE_ADMISSION, Step.CREATE, Step.WRITE])
def test_a_partition_that_starts_while_its_topic_is_deleted_leaves_no_journal(step: Step) -> None:
    async def scenario(cluster: Cluster) -> None:
        key = await cluster.make_topic()
        cluster.at(key, step, lambda: delete_topic(cluster, TOPIC, force=True))
        expected = WasDeleted if step in BEFORE_ADMISSION else Fenced
        with pytest.raises(expected):
            await cluster.address(key)
        assert await cluster.stored() == []
        with pytest.raises(WasDeleted):
            await cluster.address(key)

    run(scenario)


@pytest.mark.parametrize("step", [*BEFORE_ADMISSION, Step.CREATE, Step.WRITE])
def test_a_subscription_that_starts_while_its_topic_is_deleted_leaves_no_journal(
    step: Step,
) -> None:
    async def scenario(cluster: Cluster) -> None:
        key = await cluster.make_topic()
        ref = await (await cluster.partition(key)).subscriptions.create_subscription(
            "s", StartAt.EARLIEST, {}
        )
        dispatcher = key.of_subscription("s", ref.incarnation)
        cluster.at(dispatcher, step, lambda: delete_topic(cluster, TOPIC, force=True))
        with pytest.raises((WasDeleted, Fenced)):
            await cluster.address(dispatcher)
        assert await cluster.stored() == []

    run(scenario)


@pytest.mark.parametrize("step", [*BEFORE_ADMISSION, Step.CREATE, Step.WRITE])
def test_a_subscription_that_starts_while_it_is_deleted_leaves_no_journal(step: Step) -> None:
    async def scenario(cluster: Cluster) -> None:
        key = await cluster.make_topic()
        partition = await cluster.partition(key)
        ref = await partition.subscriptions.create_subscription("s", StartAt.EARLIEST, {})
        dispatcher = key.of_subscription("s", ref.incarnation)
        cluster.at(
            dispatcher,
            step,
            lambda: partition.deletion.delete_subscription(DeleteSubscription("s")),
        )
        with pytest.raises((WasDeleted, Fenced)):
            await cluster.address(dispatcher)
        assert await cluster.stored() == [key.text()]
        assert await partition.subscriptions.create_subscription("s", StartAt.EARLIEST, {})

    run(scenario)


def test_a_partition_whose_topic_was_deleted_lets_no_subscription_start() -> None:
    async def scenario(cluster: Cluster) -> None:
        key = await cluster.make_topic()
        partition = await cluster.partition(key)
        ref = await partition.subscriptions.create_subscription("s", StartAt.EARLIEST, {})
        await delete_topic(cluster, TOPIC, force=True)
        assert cluster.actors[key] is partition
        with pytest.raises(WasDeleted):
            await cluster.address(key.of_subscription("s", ref.incarnation))
        assert await cluster.stored() == []

    run(scenario)


def test_a_subscription_that_starts_before_its_partition_is_purged_is_deleted() -> None:
    async def scenario(cluster: Cluster) -> None:
        key = await cluster.make_topic()
        ref = await (await cluster.partition(key)).subscriptions.create_subscription(
            "s", StartAt.EARLIEST, {}
        )
        dispatcher = key.of_subscription("s", ref.incarnation)

        async def start() -> None:
            await cluster.address(dispatcher)
            assert dispatcher.text() in await cluster.stored()

        cluster.at(key, Step.WRITE_MANIFEST, start)
        await delete_topic(cluster, TOPIC, force=True)
        assert await cluster.stored() == []

    run(scenario)


def test_a_partition_that_uses_a_subscription_deleted_elsewhere_ends() -> None:
    """It is superseded; its consumer gets a retriable error."""

    async def scenario(cluster: Cluster) -> None:
        key = await cluster.make_topic()
        former = await cluster.partition(key)
        ref = await former.subscriptions.create_subscription("s", StartAt.EARLIEST, {})
        del cluster.actors[key], cluster._hosted._starts[key]  # taken for dead
        cluster.drop_rpc()
        latter = await cluster.partition(key)
        assert latter is not former
        await latter.deletion.delete_subscription(DeleteSubscription("s"))
        with pytest.raises(Unreachable, match="served by another activation"):
            await former.subscriptions.durable_channel("s", StartAt.EARLIEST, {})
        with pytest.raises(Unreachable, match="served by another activation"):
            await former.subscriptions.ask_subscription("s", GetMark())
        assert {type(error) for _, error in cluster.failures} == {Fenced}
        dispatcher = key.of_subscription("s", ref.incarnation)
        assert dispatcher.text() not in await cluster.stored()
        former.abort()

    run(scenario)


def test_a_superseded_partition_ends_no_transaction_in_a_subscription_deleted_elsewhere() -> None:
    """Not found would tell the coordinator that there is nothing to end. A new subscription of the
    name may hold acknowledgements of the transaction."""

    async def scenario(cluster: Cluster) -> None:
        key = await cluster.make_topic()
        former = await cluster.partition(key)
        ref = await former.subscriptions.create_subscription("s", StartAt.EARLIEST, {})
        dispatcher = key.of_subscription("s", ref.incarnation)
        await cluster.address(dispatcher)
        cluster.kill(dispatcher)
        await purge(cluster.store, dispatcher.text(), _deleted_later)
        with pytest.raises(RemoteError, match="served by another activation"):
            await former.transactions.end_transaction(TransactionId(0, 1), "s", commit=True)
        assert {type(error) for _, error in cluster.failures} == {Fenced}

    run(scenario)


async def _deleted_later(*_: object) -> None:
    """Leave the ledgers of a purged journal to a later sweep."""


def test_the_next_activation_removes_leftovers_of_one_that_crashed_before_admission() -> None:
    async def scenario(cluster: Cluster) -> None:
        key = await cluster.make_topic()
        await delete_topic(cluster, TOPIC, force=True)
        journal = await Journal.open(MemoryStore(cluster.disk), key.text(), clock_ms=lambda: 0)
        await journal.close()
        with pytest.raises(WasDeleted):
            await cluster.address(key)
        assert await cluster.stored() == []

    run(scenario)


def test_an_activation_that_cannot_reach_the_catalog_deletes_nothing() -> None:
    """Not to know is no reason to delete."""

    async def scenario(cluster: Cluster) -> None:
        key = await cluster.make_topic()
        ref = await (await cluster.partition(key)).subscriptions.create_subscription(
            "s", StartAt.EARLIEST, {}
        )
        dispatcher = key.of_subscription("s", ref.incarnation)
        ask = cluster.ask

        async def refused(key: ActorKey, method: str, *rest: object) -> None:
            raise RemoteError(Reason.UNAVAILABLE, "out of reach")

        cluster.ask = refused  # type: ignore[assignment]
        with pytest.raises(RemoteError, match="out of reach"):
            await cluster.address(dispatcher)
        assert dispatcher.text() in await cluster.stored()
        cluster.ask = ask  # type: ignore[method-assign]
        await cluster.address(dispatcher)

    run(scenario)


def test_a_subscription_with_a_ledger_starts_without_its_partition() -> None:
    async def scenario(cluster: Cluster) -> None:
        key = await cluster.make_topic()
        ref = await (await cluster.partition(key)).subscriptions.create_subscription(
            "s", StartAt.EARLIEST, {}
        )
        dispatcher = key.of_subscription("s", ref.incarnation)
        await cluster.address(dispatcher)
        for actor in (dispatcher, key, ActorKey.catalog()):
            cluster.kill(actor)
        cluster.drop_rpc()
        await cluster.address(dispatcher)
        assert cluster.actors.keys() == {dispatcher}

    run(scenario)


@pytest.mark.parametrize("method", ["topic", "serving"])
def test_a_superseded_catalog_does_not_answer_requests_that_deletions_depend_on(
    method: str,
) -> None:
    async def scenario(cluster: Cluster) -> None:
        key = await cluster.make_topic()
        former = cluster.actors[ActorKey.catalog()]
        successor = await Journal.open(MemoryStore(cluster.disk), "catalog", clock_ms=lambda: 0)
        await successor.close()
        question: dict[str, Any] = {"topic": str(TOPIC)}
        if method == "serving":
            question["incarnation"] = key.topic_incarnation
        assert await call_by_name(cluster, ActorKey.catalog(), method, question)
        assert cluster.actors[ActorKey.catalog()] is not former
        ((ended, error),) = cluster.failures
        assert ended == ActorKey.catalog()
        assert isinstance(error, Fenced)

    run(scenario)


def test_a_certain_answer_waits_for_a_roll_over() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.make_topic()
        catalog = cluster.actors[ActorKey.catalog()]
        looked = 0

        async def confirm(within_s: float = 0.0) -> bool:
            nonlocal looked
            looked += 1
            return looked == 3

        catalog.runtime.journal.confirm = confirm  # type: ignore[attr-defined]
        await call_by_name(cluster, ActorKey.catalog(), "topic", {"topic": str(TOPIC)})
        assert looked == 3

    run(scenario)
