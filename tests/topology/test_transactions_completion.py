"""Ends of transactions, and of what takes part in them: races with verdicts, topics and
subscriptions that are terminated, unloaded or deleted."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.support.by_name import call_by_name
from tests.topology.test_transactions import (
    COORDINATOR,
    TOPIC,
    Setting,
    ack_in,
    add_subscription,
    arrival,
    backlog,
    payloads,
    run,
)
from velaray.actors.coordinator.machine import Decide
from velaray.actors.coordinator.state import Status
from velaray.actors.runtime import Stopped
from velaray.broker.coordinator.messages import MayJoin
from velaray.broker.partition import transaction_admission
from velaray.broker.subscription.messages import (
    AckEntriesInTransaction,
    EndPendingAcks,
    ReleaseLease,
)
from velaray.events.ids import ActorKey, ActorKind, TransactionId
from velaray.journal.journal import Journal, JournalSettings
from velaray.journal.memory import MemoryStore
from velaray.topology.messages import Message, ReplyT, Request
from velaray.topology.rpc import RemoteError
from velaray.wire import pulsar_pb2 as pb

SHARED = pb.CommandSubscribe.Shared


def test_an_end_right_after_the_coordinators_answer_refuses_a_message() -> None:
    """Nothing would end the transaction again: its message would hide all that follows."""

    async def scenario(setting: Setting) -> None:
        transaction = await setting.begin(TOPIC)
        gate, call = setting.partition.publishing.admission, setting.actor_system.request
        answered = gate._answer

        async def decided_meanwhile(key: Any, request: Any, *args: Any) -> Any:
            found = await call(key, request, *args)
            if isinstance(request, MayJoin):
                await setting.coordinating.runtime.ask(Decide(transaction, True))
            return found

        def and_the_verdict_came(what: Any, asked: Any, error: Exception | None) -> None:
            answered(what, asked, error)
            gate._open.discard(what)

        setting.actor_system.request = decided_meanwhile  # type: ignore[method-assign]
        gate._answer = and_the_verdict_came  # type: ignore[method-assign]
        setting.send(b"late", transaction)
        error = await setting.producer.next(pb.CommandSendError)
        assert error.error == pb.NotAllowedError
        assert (
            setting.partition.log.visibility.readable_end == setting.partition.log.end_offset == 0
        )

    run(scenario)


def test_a_participant_restarts_a_coordinator_that_failed_after_its_decision(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Simulation found it, seed 1975: no client asked the coordinator again."""
    monkeypatch.setattr(transaction_admission, "WATCH_S", 0.05)

    async def scenario(setting: Setting) -> None:
        consumer = await setting.consume()
        transaction = await setting.begin(TOPIC)
        await setting.publish(b"1", transaction)
        await setting.coordinating.runtime.ask(Decide(transaction, True))
        setting.actor_system.kill(COORDINATOR)
        assert await payloads(consumer, 1) == [b"1"]
        admission = setting.partition.publishing.admission
        async with asyncio.timeout(20):
            while admission._watch is not None:
                await asyncio.sleep(0.01)

    run(scenario)


def test_an_end_is_answered_when_the_participants_have_applied_it() -> None:
    """Recording that they have takes another sync, for which no client waits."""

    async def scenario(setting: Setting) -> None:
        consumer = await setting.consume()
        transaction = await setting.begin(TOPIC)
        await setting.publish(b"1", transaction)
        completion, recorded = setting.coordinating.completion, asyncio.Event()
        persist = completion._persist

        async def persist_later(command: Any) -> Any:
            await recorded.wait()
            return await persist(command)

        completion._persist = persist_later  # type: ignore[method-assign]
        assert not (await setting.end(transaction)).HasField("error")
        assert setting.partition.log.visibility.readable_end == 1
        assert await payloads(consumer, 1) == [b"1"]
        assert setting.status(transaction) is Status.COMMITTING
        assert not (await setting.end(transaction)).HasField("error"), "a repetition"
        recorded.set()
        async with asyncio.timeout(5):
            while setting.status(transaction) is not Status.COMMITTED:
                await asyncio.sleep(0.005)

    run(scenario)


def test_an_end_waits_for_acknowledgements_in_flight() -> None:
    """One that came behind it would be pending for ever."""

    async def scenario(setting: Setting) -> None:
        consumer = await setting.consume(kind=SHARED)
        await setting.publish(b"1")
        message = await arrival(consumer)
        transaction = await setting.begin()
        await add_subscription(setting, transaction)
        channel = setting.partition.subscriptions.channels["s"]
        ask, asked, gate, order = channel.ask, asyncio.Event(), asyncio.Event(), []

        async def slow(request: Request[ReplyT]) -> ReplyT:
            if isinstance(request, AckEntriesInTransaction):
                asked.set()
                await gate.wait()
            order.append(type(request))
            return await ask(request)

        channel.ask = slow  # type: ignore[method-assign]
        acking = asyncio.create_task(ack_in(consumer, message, transaction))
        await asked.wait()
        ending = asyncio.create_task(setting.end(transaction, commit=False))
        async with asyncio.timeout(20):
            while setting.partition.publishing.admission.is_open((3, transaction), "s"):  # type: ignore[arg-type]
                await asyncio.sleep(0)
        gate.set()
        assert not (await acking).HasField("error")
        assert not (await ending).HasField("error")
        assert order == [AckEntriesInTransaction, EndPendingAcks]
        again = await arrival(consumer)
        assert (again.entry_id, again.redelivery_count) == (0, 1)

    run(scenario)


@pytest.mark.parametrize("commit", [True, False])
def test_a_terminated_topic_completes_its_transactions(commit: bool) -> None:
    """In one step: no marker has to be appended to a log that takes nothing any more (T16)."""

    async def scenario(setting: Setting) -> None:
        consumer = await setting.consume()
        transaction = await setting.begin(TOPIC)
        await setting.publish(b"1")
        await setting.publish(b"2", transaction)
        await call_by_name(setting.actor_system, setting.key, "terminate", {})
        assert await payloads(consumer, 1) == [b"1"]
        assert setting.partition.log.visibility.readable_end == 1
        assert not (await setting.end(transaction, commit)).HasField("error")
        assert setting.partition.log.end_offset == 2
        if commit:
            assert await payloads(consumer, 1) == [b"2"]
        await consumer.next(pb.CommandReachedEndOfTopic)
        assert await backlog(setting) == 0

    run(scenario)


@pytest.mark.parametrize("commit", [True, False])
def test_an_unloaded_topic_recovers_its_transactions(commit: bool) -> None:
    async def scenario(setting: Setting) -> None:
        consumer = await setting.consume(kind=SHARED)
        await setting.publish(b"1")
        message = await arrival(consumer)
        transaction = await setting.begin(TOPIC)
        await add_subscription(setting, transaction)
        await setting.publish(b"2", transaction)
        await ack_in(consumer, message, transaction)
        await setting.actor_system.dismiss(setting.key)
        consumer = await setting.consume(kind=SHARED)
        assert not (await setting.end(transaction, commit)).HasField("error")
        assert await payloads(consumer, 1) == [b"2" if commit else b"1"]
        assert await backlog(setting) == 0

    run(scenario)


def test_an_unreadable_partition_recovers_its_transactions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While it can't be read, nothing of it is delivered, and nothing wrong."""

    async def scenario(setting: Setting) -> None:
        aborted, transaction = await setting.begin(TOPIC), await setting.begin(TOPIC)
        await setting.publish(b"never", aborted)
        await setting.publish(b"1", transaction)
        await setting.publish(b"2")
        await setting.end(aborted, commit=False)
        setting.actor_system.kill(setting.key)
        read, failures = MemoryStore.read, []

        async def failing(store: Any, journal: str, *args: Any) -> bytes:
            if journal == setting.key.text() and len(failures) < 3:
                failures.append(journal)
                raise OSError("the disk can't be read now")
            return await read(store, journal, *args)

        monkeypatch.setattr(MemoryStore, "read", failing)
        consumer = await setting.consume()
        assert len(failures) == 3
        assert setting.partition.log.visibility.readable_end == 1
        assert not (await setting.end(transaction)).HasField("error")
        assert await payloads(consumer, 2) == [b"1", b"2"]

    run(scenario)


def test_unfed_pending_entries_are_delivered_to_a_new_consumer_after_an_abort() -> None:
    """The dispatcher remembers the pending entries that it skipped: an abort returns them."""

    async def scenario(setting: Setting) -> None:
        consumer = await setting.consume(kind=SHARED)
        for number in range(3):
            await setting.publish(b"%d" % number)
        messages = [await arrival(consumer) for _ in range(3)]
        transaction = await setting.begin()
        await add_subscription(setting, transaction)
        for message in messages:
            await ack_in(consumer, message, transaction)
        consumer.close()
        await setting.actor_system.dismiss(setting.key)
        again, other = [await setting.consume(kind=SHARED) for _ in range(2)]  # nothing stands
        other.close()
        assert not (await setting.end(transaction, commit=False)).HasField("error")
        assert await payloads(again, 3) == [b"0", b"1", b"2"]

    run(scenario)


def test_a_transaction_completes_without_connected_clients() -> None:
    async def scenario(setting: Setting) -> None:
        consumer = await setting.consume(kind=SHARED)
        for number in range(3):
            await setting.publish(b"%d" % number)
        messages = [await arrival(consumer) for _ in range(3)]
        one, two = await setting.begin(), await setting.begin()
        for transaction, message in ((one, messages[0]), (two, messages[1])):
            await add_subscription(setting, transaction)
            await ack_in(consumer, message, transaction)
        consumer.close()
        async with asyncio.timeout(20):
            while setting.partition.subscriptions.channels:
                await asyncio.sleep(0.01)
        assert not (await setting.end(one)).HasField("error")
        assert not (await setting.end(two, commit=False)).HasField("error")
        again = await setting.consume(kind=SHARED)
        assert await payloads(again, 2) == [b"1", b"2"]
        assert await backlog(setting) == 0

    run(scenario)


def test_a_deleted_topics_successor_applies_its_own_transactions() -> None:
    """And not its predecessor, which took something in the same transaction."""

    async def scenario(setting: Setting) -> None:
        transaction = await setting.begin(TOPIC)
        await setting.publish(b"gone", transaction)
        deleted = {"topic": TOPIC}
        await call_by_name(setting.actor_system, ActorKey.catalog(), "delete_topic", deleted)
        await setting.enter()
        await setting.publish(b"kept", transaction)
        assert setting.partition.log.visibility.readable_end == 0
        assert not (await setting.end(transaction)).HasField("error")
        assert await payloads(await setting.consume(), 1) == [b"kept"]

    run(scenario)


def test_connected_participants_need_no_request_to_the_catalog() -> None:
    async def scenario(setting: Setting) -> None:
        consumer = await setting.consume(kind=SHARED)
        asked, call = [], setting.actor_system.request

        async def listening(key: Any, request: Any, *args: Any) -> Any:
            asked.append(type(request))
            return await call(key, request, *args)

        for _ in range(2):
            await setting.publish(b"1")
            message = await arrival(consumer)
            transaction = await setting.begin(TOPIC)
            await add_subscription(setting, transaction)
            await setting.publish(b"2", transaction)
            await ack_in(consumer, message, transaction)
            assert not (await setting.end(transaction)).HasField("error")
            await arrival(consumer)
            setting.actor_system.request = listening  # type: ignore[method-assign]
        assert asked == [MayJoin] * 2
        assert await backlog(setting) == 2

    run(scenario)


def test_ends_of_several_transactions_run_concurrently() -> None:
    """So that the subscription can make all of them durable at once."""

    async def scenario(setting: Setting) -> None:
        consumer = await setting.consume(kind=SHARED)
        await setting.publish(b"1")
        await setting.publish(b"2")
        transactions = [await setting.begin() for _ in range(2)]
        for transaction in transactions:
            await add_subscription(setting, transaction)
            message = await arrival(consumer)
            assert not (await ack_in(consumer, message, transaction)).HasField("error")
        channel = setting.partition.subscriptions.channels["s"]
        ask, both = channel.ask, asyncio.Barrier(2)

        async def together(request: Request[ReplyT]) -> ReplyT:
            await both.wait()
            return await ask(request)

        channel.ask = together  # type: ignore[method-assign]
        ends = [
            setting.partition.transactions.end_transaction(TransactionId(3, each), "s", commit=True)
            for each in transactions
        ]
        async with asyncio.timeout(20):
            await asyncio.gather(*ends)

    run(scenario)


@pytest.mark.parametrize("commit", [True, False])
def test_a_lease_continues_over_a_commit(commit: bool) -> None:
    """Only an abort causes deliveries that the partition doesn't know of."""

    async def scenario(setting: Setting) -> None:
        consumer = await setting.consume()
        await setting.publish(b"1")
        message = await arrival(consumer)
        transaction = await setting.begin()
        await add_subscription(setting, transaction)
        assert not (await ack_in(consumer, message, transaction)).HasField("error")
        port = setting.partition.subscriptions.channels["s"].link.port
        told, tell = [], port.tell

        def listening(notice: Message) -> None:
            told.append(type(notice))
            tell(notice)

        port.tell = listening
        assert not (await setting.end(transaction, commit)).HasField("error")
        assert (ReleaseLease in told) == (not commit)
        await setting.publish(b"2")
        again = [] if commit else [b"1"]
        assert await payloads(consumer, len(again) + 1) == [*again, b"2"]

    run(scenario)


async def superseded(setting: Setting, key: ActorKey) -> None:
    """A newer activation owns the actor's journal, and this one doesn't know that yet."""
    store, clock_ms = setting.actor_system.store, setting.actor_system.clock_ms
    await Journal.open(store, key.text(), JournalSettings(), clock_ms=clock_ms)


def test_only_the_newest_activations_report_an_unknown_transaction() -> None:
    """Another one may have taken messages and acknowledgements that they know nothing of."""

    async def scenario(setting: Setting) -> None:
        consumer = await setting.consume(kind=SHARED)
        await setting.publish(b"1")
        await arrival(consumer)
        (key,) = [key for key in setting.actor_system.actors if key.kind is ActorKind.SUBSCRIPTION]
        partition = setting.partition
        unknown = TransactionId(3, 99)
        for subscription in (None, "s", "deleted"):
            await partition.transactions.end_transaction(unknown, subscription, commit=True)
        await superseded(setting, key)
        with pytest.raises(RemoteError):  # the link to it broke: the coordinator tries again
            await partition.transactions.end_transaction(unknown, "s", commit=True)
        await superseded(setting, setting.key)
        for subscription in (None, "deleted"):
            with pytest.raises(Stopped):
                await partition.transactions.end_transaction(unknown, subscription, commit=True)

    run(scenario)
