"""What users of Pulsar's transactions complain of, each as a history that would show it here."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from tests.topology.test_transactions import (
    TOPIC,
    Setting,
    ack_in,
    add_subscription,
    arrival,
    backlog,
    payloads,
    run,
)
from velaray.actors.partition import transactions
from velaray.actors.partition.machine import PartitionMachine
from velaray.actors.testing import Contents
from velaray.broker.subscription.messages import GetStats
from velaray.broker.subscription.subscription_actor import SubscriptionActor
from velaray.events.codec import decode
from velaray.events.events_pb2 import EntryAppended, TransactionEnded
from velaray.events.ids import ActorKey, ActorKind, TransactionId
from velaray.events.segments import StoredSegment
from velaray.journal.journal import JournalSettings
from velaray.journal.replay import replay
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.messages import read_metadata

SHARED, EXCLUSIVE = pb.CommandSubscribe.Shared, pb.CommandSubscribe.Exclusive
CUMULATIVE = pb.CommandAck.Cumulative


def subscription(setting: Setting) -> SubscriptionActor:
    (key,) = [key for key in setting.actor_system.actors if key.kind is ActorKind.SUBSCRIPTION]
    body = setting.actor_system.actors[key]
    assert isinstance(body, SubscriptionActor)
    return body


async def opened(setting: Setting, count: int) -> list[int]:
    """So many transactions that have the subscription as a participant."""
    found = [await setting.begin() for _ in range(count)]
    for transaction in found:
        await add_subscription(setting, transaction)
    return found


# ---- subscriptions


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("commit", [True, False])
def test_a_cumulative_ack_of_another_transaction_keeps_pending_acks(
    commit: bool, crash: bool
) -> None:
    """CD-1: a commit that did nothing. CD-2: an abort of the wrong kind."""

    async def scenario(setting: Setting) -> None:
        consumer = await setting.consume(kind=EXCLUSIVE)
        for number in range(6):
            await setting.publish(b"%d" % number)
        messages = [await arrival(consumer) for _ in range(6)]
        one, two, three = await opened(setting, 3)
        assert not (await ack_in(consumer, messages[4], one)).HasField("error")
        answer = await ack_in(consumer, messages[5], two, kind=CUMULATIVE)
        assert answer.error == pb.TransactionConflict  # it would cover what the first one has
        answer = await ack_in(consumer, messages[2], two, kind=CUMULATIVE)
        assert not answer.HasField("error")
        assert not (await setting.end(one, commit)).HasField("error")
        if crash:
            setting.actor_system.kill(setting.key)
            setting.actor_system.kill(subscription(setting).key)
        assert not (await setting.end(two, commit=False)).HasField("error")
        consumer.close()
        consumer = await setting.consume(kind=EXCLUSIVE)
        found = [await arrival(consumer) for _ in range(5 if commit else 6)]
        left = [0, 1, 2, 3, 5] if commit else [0, 1, 2, 3, 4, 5]
        assert [message.entry_id for message in found] == left
        answer = await ack_in(consumer, messages[4], three)  # at once
        assert answer.HasField("error") == commit

    run(scenario)


def test_a_refused_acknowledgement_leaves_no_trace() -> None:
    """CD-4: it was in the log, and a replay decided anew. Here decisions are journaled."""

    async def scenario(setting: Setting) -> None:
        consumer = await setting.consume(kind=SHARED)
        for number in range(3):
            await setting.publish(b"%d" % number)
        messages = [await arrival(consumer) for _ in range(3)]
        one, two = await opened(setting, 2)
        await ack_in(consumer, messages[0], one)
        body = subscription(setting)
        written = body.runtime.journal.next_sequence
        answer = await ack_in(consumer, messages[0], two)
        assert answer.error == pb.TransactionConflict
        assert body.runtime.journal.next_sequence == written
        await setting.end(one, commit=False)  # what was refused would be taken now
        setting.actor_system.kill(body.key)
        setting.actor_system.kill(setting.key)
        consumer = await setting.consume(kind=SHARED)
        assert not subscription(setting).runtime.state.pending
        back = [(await arrival(consumer)).entry_id for _ in range(3)]
        assert sorted(back) == [0, 1, 2]

    run(scenario)


def test_a_refused_request_has_no_effect() -> None:
    """CD-7: what was held no longer, although its acknowledgement was refused, came never again."""

    async def scenario(setting: Setting) -> None:
        consumer = await setting.consume(kind=SHARED)
        for number in range(2):
            await setting.publish(b"%d" % number)
        messages = [await arrival(consumer) for _ in range(2)]
        one, two = await opened(setting, 2)
        await ack_in(consumer, messages[0], one)
        command = pb.CommandAck(
            consumer_id=1,
            ack_type=pb.CommandAck.Individual,
            request_id=8,
            txnid_most_bits=3,
            txnid_least_bits=two,
        )
        for message in (messages[1], messages[0]):
            command.message_id.add(ledgerId=message.ledger_id, entryId=message.entry_id)
        consumer.send(command)
        assert (await consumer.next(pb.CommandAckResponse)).error == pb.TransactionConflict
        stats = await setting.partition.subscriptions.channels["s"].ask(
            GetStats(setting.partition.log.end_offset)
        )
        assert [each["unacked"] for each in stats["consumers"]] == [1]
        other = await setting.consume(kind=SHARED)
        consumer.close()
        assert (await arrival(other)).entry_id == 1
        await setting.end(one, commit=False)
        assert (await arrival(other)).entry_id == 0

    run(scenario)


def test_a_pending_ack_can_be_dropped_without_another_transactional_ack() -> None:
    """The seed's open question: here the cursor's own progress is enough."""

    async def scenario(setting: Setting) -> None:
        consumer = await setting.consume(kind=SHARED)
        for number in range(40):
            await setting.publish(b"%d" % number)
        messages = [await arrival(consumer) for _ in range(40)]
        state = subscription(setting).runtime.state
        ended, abandoned = await opened(setting, 2)
        for number, message in enumerate(messages[1:30]):  # the first one holds the mark
            await ack_in(consumer, message, abandoned if number % 2 else ended)
        assert "pending" in segments(setting)
        await setting.end(ended)
        assert next(iter(state.pending.items()))[0].sequence == abandoned
        for number, message in enumerate(messages[1:30]):
            if number % 2:  # without a transaction
                assert not (await consumer.ack(message, request_id=900 + number)).HasField("error")
        assert not state.pending and not list(state.pending.items())
        assert "pending" not in segments(setting)
        assert not (await setting.end(abandoned, commit=False)).HasField("error")
        assert await backlog(setting) == 11

    def segments(setting: Setting) -> Any:
        body = subscription(setting)
        return body._machine.snapshot(body.runtime.state)

    run(scenario)


# ---- partitions


async def journaled(setting: Setting) -> list[Any]:
    records = replay(setting.actor_system.store, setting.key.text())
    return [decode(bytes(record.event)) async for record in records]


def test_a_participating_partition_stores_the_entries_and_one_end() -> None:
    async def scenario(setting: Setting) -> None:
        one, two = await setting.begin(TOPIC), await setting.begin(TOPIC)
        for transaction in (one, None, two, one):
            await setting.publish(b"x", transaction)
        for _ in range(2):  # the second time it is over
            await setting.end(one)
            await setting.end(two, commit=False)
        found = await journaled(setting)
        entries = [event.txn_sequence for event in found if isinstance(event, EntryAppended)]
        assert entries == [one, 0, two, one]
        markers = [
            (event.coordinator, event.sequence, event.commit)
            for event in found
            if isinstance(event, TransactionEnded)
        ]
        assert markers == [(3, one, True), (3, two, False)]
        first = await setting.partition.log.entry(0)
        metadata = read_metadata(first.data)
        assert not metadata.HasField("marker_type")
        assert setting.partition.log.end_offset == 4  # and no marker in the log

    run(scenario)


@pytest.mark.parametrize("crash", ["nobody", "partition", "coordinator"])
def test_a_late_message_of_a_finished_transaction_harms_nothing(crash: str) -> None:
    """CD-5, T19: it was taken, then aborted, and the committed ones of its transaction with it."""

    async def scenario(setting: Setting) -> None:
        transaction, newer = await setting.begin(TOPIC), await setting.begin(TOPIC)
        await setting.publish(b"1", transaction)
        await setting.publish(b"newer", newer)
        await setting.end(newer, commit=False)
        await setting.end(transaction)
        if crash == "partition":
            setting.actor_system.kill(setting.key)
            setting.producer = await setting.connect(setting.key)
            hello = pb.CommandProducer(topic=TOPIC, producer_id=1, request_id=1, producer_name="p")
            setting.producer.send(hello)
            await setting.producer.next(pb.CommandProducerSuccess)
        elif crash == "coordinator":
            setting.actor_system.kill(ActorKey.of_coordinator(3))
        for sequence in (transaction, newer, newer + 1):
            setting.send(b"late", sequence)
            assert (await setting.producer.next(pb.CommandSendError)).error == pb.NotAllowedError
        assert not setting.partition.runtime.state.transactions.ongoing
        await setting.publish(b"2")
        assert await payloads(await setting.consume(), 2) == [b"1", b"2"]

    run(scenario)


def test_nothing_is_read_behind_an_open_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    """T2: waiting behind an open transaction costs nothing until it ends."""

    async def scenario(setting: Setting) -> None:
        consumers = [
            await setting.consume("a", kind=SHARED),
            await setting.consume("b", kind=EXCLUSIVE),
            await setting.consume("c", kind=SHARED),
        ]
        await setting.consume("c", kind=SHARED)  # to two of them nothing goes without asking
        await setting.publish(b"0")
        for consumer in consumers[:2]:
            await arrival(consumer)
        transaction = await setting.begin(TOPIC)
        await setting.publish(b"1", transaction)
        reads: Counter[str] = Counter()
        cache = setting.partition.log.cache
        for name in ("get", "run", "load"):
            original = getattr(cache, name)

            def counted(*args: Any, name: str = name, original: Any = original) -> Any:
                reads[name] += 1
                return original(*args)

            monkeypatch.setattr(cache, name, counted)
        for number in range(200):
            await setting.publish(b"%d" % number)
        for consumer in consumers:
            consumer.flow(1000)
        for _ in range(1000):
            await asyncio.sleep(0)
        assert not reads
        await setting.end(transaction)
        for consumer in consumers[:2]:
            for _ in range(201):
                await arrival(consumer)
        assert 0 < sum(reads.values()) < 1000

    run(scenario)


def test_the_newest_message_before_an_open_transaction_is_found_in_another_ledger() -> None:
    async def scenario(setting: Setting) -> None:
        consumer = await setting.consume()

        async def last() -> tuple[int, int]:
            consumer.send(pb.CommandGetLastMessageId(consumer_id=1, request_id=9))
            answer = await consumer.next(pb.CommandGetLastMessageIdResponse)
            return answer.last_message_id.ledgerId, answer.last_message_id.entryId

        await setting.publish(b"0")
        first = await last()
        aborted, still_open = await setting.begin(TOPIC), await setting.begin(TOPIC)
        await setting.publish(b"1", aborted)
        await setting.end(aborted, commit=False)
        while setting.partition.runtime.state.table.next_position().ledger_id == first[0]:
            await setting.publish(b"open", still_open)
        await setting.publish(b"open", still_open)
        assert await last() == first
        await setting.end(still_open)
        assert (await last())[0] > first[0]

    run_with(JournalSettings(roll_records=12), scenario)


def test_aborts_are_recovered_from_a_checkpoint_however_many_there_were() -> None:
    """T10: what a recovery reads doesn't grow with them; of each very little is kept."""

    async def scenario(setting: Setting) -> None:
        aborts = 150
        replayed, sizes = [], []
        for _ in range(3):
            for number in range(aborts):
                transaction = await setting.begin(TOPIC)
                await setting.publish(b"%d" % number, transaction)
                await setting.publish(b"plain")
                await setting.end(transaction, commit=False)
            setting.actor_system.kill(setting.key)
            setting.producer = await setting.connect(setting.key)
            hello = pb.CommandProducer(topic=TOPIC, producer_id=1, request_id=1, producer_name="p")
            setting.producer.send(hello)
            await setting.producer.next(pb.CommandProducerSuccess)
            body = setting.partition
            replayed.append(body.runtime.stats.replayed)
            segments = body._machine.snapshot(body.runtime.state)
            hidden = [found for name, found in segments.items() if name.startswith("hidden/")]
            sizes.append(
                sum(
                    found.size if isinstance(found, StoredSegment) else len(found)
                    for found in hidden
                )
            )
        assert max(replayed) <= ROLL + 10, replayed
        assert sizes[-1] <= 3 * 3 * aborts, sizes
        hidden = await setting.partition.log.visibility.find_hidden(
            0, setting.partition.log.end_offset
        )
        assert len(hidden) == 3 * aborts
        assert await payloads(await setting.consume(kind=SHARED), 3) == [b"plain"] * 3

    run_with(JournalSettings(roll_records=ROLL), scenario)


ROLL = 100


def test_a_million_aborts_are_small_and_one_more_rewrites_one_segment() -> None:
    """T10: each between two messages that stay, which is the worst that can be."""
    machine = PartitionMachine()
    state = machine.initial()
    hidden = state.transactions.hidden
    for offset in range(0, 2_000_000, 2):
        hidden.add(offset, offset + 1)
    segments = transactions.snapshot(state.transactions)
    raw = {name: bytes(found) for name, found in segments.items()}  # type: ignore[arg-type]
    assert sum(map(len, raw.values())) < 31 * 8_400
    transactions.on_checkpoint(state.transactions, Contents().store(segments))
    one = TransactionId(0, 1)
    state.transactions.ongoing[one] = [(2_000_001, 2_000_002)]
    ended = TransactionEnded(coordinator=0, sequence=1)
    transactions.evolve(state.transactions, ended)
    after = transactions.snapshot(state.transactions)
    fresh = [name for name, found in after.items() if isinstance(found, bytes)]
    assert sorted(fresh) == ["hidden/30", "transactions"]


def run_with(settings: JournalSettings, scenario: Any) -> None:
    async def main() -> None:
        setting = Setting()
        setting.actor_system.journal_settings = settings
        await setting.start()
        await scenario(setting)
        await setting.actor_system.stop()

    asyncio.run(main())


def test_an_acknowledgement_before_the_consumer_is_back_is_retriable() -> None:
    """Pulsar's Java client has no class for ConsumerNotFound: the transaction would fail for it."""

    async def scenario(setting: Setting) -> None:
        consumer = await setting.consume(kind=SHARED)
        await setting.publish(b"1")
        message = await arrival(consumer)
        (transaction,) = await opened(setting, 1)
        setting.actor_system.kill(subscription(setting).key)
        await consumer.next(pb.CommandCloseConsumer)
        answer = await ack_in(consumer, message, transaction)
        assert answer.error == pb.ServiceNotReady
        assert "subscribe again and repeat" in answer.message

    run(scenario)
