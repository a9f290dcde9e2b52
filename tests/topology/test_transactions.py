"""Messages in transactions, over the wire: a coordinator, a partition, producers and consumers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.official.raw import RawClient
from tests.support.by_name import call_by_name
from velaray.actors.coordinator.machine import Begin, Decide
from velaray.actors.coordinator.state import Status
from velaray.actors.machine import Reason
from velaray.broker.coordinator.coordinator_actor import CoordinatorActor
from velaray.broker.coordinator.messages import MayJoin
from velaray.broker.partition.partition_actor import PartitionActor
from velaray.broker.subscription.messages import GetStats
from velaray.events.ids import ActorKey, TopicName
from velaray.geo.actor_kinds import make_actor
from velaray.journal.memory import MemoryDisk, MemoryStore
from velaray.topology.actor_system import Address
from velaray.topology.config import ClusterConfig
from velaray.topology.in_process import InProcessActorSystem
from velaray.topology.rpc import RemoteError
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.commands import Message, entry_header
from velaray.wire.messages import build_entry, split_entry

TOPIC = "persistent://public/default/t"
COORDINATOR = ActorKey.of_coordinator(3)


class Setting:
    """A cluster in memory with a coordinator and one topic, and a connection to each."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000
        self.actor_system = InProcessActorSystem(
            ClusterConfig("nowhere", 1, b"key", deleters=0), MemoryStore(MemoryDisk()), make_actor
        )
        self.actor_system.clock_ms = lambda: self.now_ms  # type: ignore[method-assign]
        self.key: ActorKey
        self.producer: RawClient
        self.requests = 0
        self.sent = 0

    async def start(self) -> None:
        names = {"cluster": "c", "service_url": "pulsar://h:1", "admin_url": "http://h:2"}
        await call_by_name(self.actor_system, ActorKey.catalog(), "bootstrap", names)
        await self.enter()

    async def enter(self) -> None:
        """Connect to the topic, which is made if there is none, and to the coordinator."""
        found = await call_by_name(
            self.actor_system, ActorKey.catalog(), "ensure_topic", {"topic": TOPIC}
        )
        self.key = ActorKey.of_partition(TopicName.parse(TOPIC), found["incarnation"])
        self.producer = await self.connect(self.key)
        self.producer.send(
            pb.CommandProducer(topic=TOPIC, producer_id=1, request_id=1, producer_name="p")
        )
        await self.producer.next(pb.CommandProducerSuccess)
        self.coordinator = await self.connect(COORDINATOR)

    async def connect(self, key: ActorKey) -> RawClient:
        address = await self.actor_system.reach(key)
        return await RawClient.connect(address.host, address.service_port)

    @property
    def partition(self) -> PartitionActor:
        actor = self.actor_system.actors[self.key]
        assert isinstance(actor, PartitionActor)
        return actor

    @property
    def coordinating(self) -> CoordinatorActor:
        actor = self.actor_system.actors[COORDINATOR]
        assert isinstance(actor, CoordinatorActor)
        return actor

    # -- the coordinator -----------------------------------------------------------

    async def ask(self, command: Any, answer: type) -> Any:
        self.requests += 1
        command.request_id = self.requests
        self.coordinator.send(command)
        found = await self.coordinator.next(answer)
        assert found.request_id == self.requests
        return found

    async def begin(self, *topics: str, timeout_ms: int = 60_000) -> int:
        found = await self.ask(
            pb.CommandNewTxn(txn_ttl_millis=timeout_ms, tc_id=3), pb.CommandNewTxnResponse
        )
        assert found.txnid_most_bits == 3 and not found.HasField("error")
        if topics:
            added = await self.add(found.txnid_least_bits, *topics)
            assert not added.HasField("error"), added
        return int(found.txnid_least_bits)

    async def add(self, sequence: int, *topics: str) -> Any:
        command = pb.CommandAddPartitionToTxn(
            txnid_most_bits=3, txnid_least_bits=sequence, partitions=topics
        )
        return await self.ask(command, pb.CommandAddPartitionToTxnResponse)

    async def end(self, sequence: int, commit: bool = True) -> Any:
        action = pb.COMMIT if commit else pb.ABORT
        command = pb.CommandEndTxn(txnid_most_bits=3, txnid_least_bits=sequence, txn_action=action)
        return await self.ask(command, pb.CommandEndTxnResponse)

    def status(self, sequence: int) -> Status | None:
        return self.coordinating.runtime.state.status(sequence)

    # -- the partition -------------------------------------------------------------

    def send(self, payload: bytes, transaction: int | None = None, coordinator: int = 3) -> None:
        command = pb.CommandSend(producer_id=1, sequence_id=self.sent, num_messages=1)
        if transaction is not None:
            command.txnid_most_bits, command.txnid_least_bits = coordinator, transaction
        metadata = pb.MessageMetadata(producer_name="p", sequence_id=self.sent, publish_time=1)
        self.sent += 1
        entry = build_entry(metadata, payload)
        self.producer._connection.write(entry_header(command, len(entry)) + bytes(entry))

    async def publish(self, payload: bytes, transaction: int | None = None) -> None:
        self.send(payload, transaction)
        await self.producer.next(pb.CommandSendReceipt)

    async def publish_after(self, payload: bytes) -> None:
        """By a producer that connects anew."""
        await (await self.connect(self.key)).produce(TOPIC, [payload])

    async def consume(self, name: str = "s", **kwargs: Any) -> RawClient:
        consumer = await self.connect(self.key)
        await consumer.subscribe(TOPIC, subscription=name, **kwargs)
        consumer.flow(1000)
        return consumer


async def payloads(consumer: RawClient, count: int) -> list[bytes]:
    """The next that come, in order; each is acknowledged."""
    found = []
    for _ in range(count):
        async with asyncio.timeout(20):
            while not (frames := [f for f in consumer.received if type(f[0]) is Message]):
                consumer._news.clear()
                await consumer._news.wait()
        consumer.received.remove(frames[0])
        message, entry = frames[0]
        assert isinstance(message, Message) and entry is not None
        found.append(bytes(split_entry(entry)[1]))
        answer = await consumer.ack(message, request_id=len(consumer.history))
        assert not answer.HasField("error")
    return found


async def backlog(setting: Setting, name: str = "s") -> int:
    stats = await setting.partition.subscriptions.channels[name].ask(
        GetStats(setting.partition.log.end_offset)
    )
    return int(stats["backlog"])


def run(scenario: Callable[[Setting], Awaitable[None]]) -> None:
    async def main() -> None:
        setting = Setting()
        await setting.start()
        await scenario(setting)
        await setting.actor_system.stop()

    asyncio.run(main())


def test_committed_messages_are_delivered_in_log_order_and_none_overtakes_them() -> None:
    async def scenario(setting: Setting) -> None:
        consumer = await setting.consume()
        await setting.publish(b"before")
        transaction = await setting.begin(TOPIC)
        await setting.publish(b"1", transaction)
        await setting.publish(b"plain")
        await setting.publish(b"2", transaction)
        assert await payloads(consumer, 1) == [b"before"]
        assert setting.partition.log.visibility.readable_end == 1
        answer = await setting.end(transaction)
        assert not answer.HasField("error")
        assert setting.partition.log.visibility.readable_end == 4
        assert await payloads(consumer, 3) == [b"1", b"plain", b"2"]

    run(scenario)


@pytest.mark.parametrize("kind", [pb.CommandSubscribe.Exclusive, pb.CommandSubscribe.Shared])
def test_aborted_messages_are_never_delivered_and_leave_the_backlog(kind: int) -> None:
    async def scenario(setting: Setting) -> None:
        consumer = await setting.consume(kind=kind)
        first, second = await setting.begin(TOPIC), await setting.begin(TOPIC)
        for number in range(6):
            transaction = (None, first, second)[number % 3]
            await setting.publish(str(number).encode(), transaction)
        assert (await setting.end(first, commit=False)).txnid_least_bits == first
        assert not (await setting.end(second)).HasField("error")
        assert await payloads(consumer, 4) == [b"0", b"2", b"3", b"5"]
        assert await backlog(setting) == 0
        late = await setting.consume("late", kind=kind)
        assert await payloads(late, 4) == [b"0", b"2", b"3", b"5"]
        assert await backlog(setting, "late") == 0

    run(scenario)


def test_the_last_message_id_is_that_of_the_newest_readable_message() -> None:
    async def scenario(setting: Setting) -> None:
        consumer = await setting.consume()

        async def last() -> tuple[int, int]:
            consumer.send(pb.CommandGetLastMessageId(consumer_id=1, request_id=9))
            answer = await consumer.next(pb.CommandGetLastMessageIdResponse)
            return answer.last_message_id.entryId

        await setting.publish(b"0")
        aborted, open_ = await setting.begin(TOPIC), await setting.begin(TOPIC)
        await setting.publish(b"1", aborted)
        assert await last() == 0
        await setting.end(aborted, commit=False)
        assert await last() == 0
        await setting.publish(b"2")
        assert await last() == 2
        await setting.publish(b"3", open_)
        await setting.publish(b"4")
        assert await last() == 2
        await setting.end(open_)
        assert await last() == 4

    run(scenario)


def test_a_transaction_accepts_nothing_before_a_topic_is_added_or_after_its_end() -> None:
    async def refused(setting: Setting, transaction: int, coordinator: int = 3) -> str:
        setting.send(b"x", transaction, coordinator)
        error = await setting.producer.next(pb.CommandSendError)
        assert error.error == pb.NotAllowedError
        return str(error.message)

    async def scenario(setting: Setting) -> None:
        assert "there is no transaction 1" in await refused(setting, 1)
        assert "there is no transaction 1" in await refused(setting, 1, 4)
        transaction = await setting.begin()
        assert "was not added to transaction 1" in await refused(setting, transaction)
        await setting.add(transaction, TOPIC)
        await setting.publish(b"1", transaction)
        await setting.end(transaction)
        assert "transaction 1 is COMMITTED" in await refused(setting, transaction)
        assert setting.partition.log.end_offset == 1

    run(scenario)


def test_entries_behind_an_undecided_one_wait() -> None:
    async def scenario(setting: Setting) -> None:
        transaction = await setting.begin(TOPIC)
        setting.send(b"1", transaction)
        setting.send(b"2")
        setting.send(b"3", transaction + 1)  # refused, in its turn
        setting.send(b"4", transaction)
        receipts = [await setting.producer.next(pb.CommandSendReceipt) for _ in range(3)]
        assert [each.sequence_id for each in receipts] == [0, 1, 3]
        await setting.end(transaction)
        assert await payloads(await setting.consume(), 3) == [b"1", b"2", b"4"]
        assert setting.partition.publishing.pending_bytes == 0

    run(scenario)


@pytest.mark.parametrize("commit", [True, False])
def test_an_outcome_survives_the_coordinator_and_reaches_all_participants(commit: bool) -> None:
    """It dies when the verdict is durable and unanswered; the client doesn't repeat the request."""

    async def scenario(setting: Setting) -> None:
        consumer = await setting.consume()
        transaction = await setting.begin(TOPIC)
        await setting.publish(b"1", transaction)
        await setting.coordinating.runtime.ask(Decide(transaction, commit))
        setting.actor_system.kill(COORDINATOR)
        setting.actor_system.kill(setting.key)
        await setting.actor_system.reach(COORDINATOR)
        async with asyncio.timeout(20):
            while setting.coordinating.runtime.state.unfinished:
                await asyncio.sleep(0.01)
        setting.coordinator = await setting.connect(COORDINATOR)
        assert not (await setting.end(transaction, commit)).HasField("error")
        assert (await setting.end(transaction, not commit)).error == pb.InvalidTxnStatus
        consumer = await setting.consume()
        await setting.actor_system.reach(setting.key)
        assert setting.partition.log.visibility.readable_end == 1
        if commit:
            assert await payloads(consumer, 1) == [b"1"]
        else:
            assert await setting.partition.log.visibility.last_readable() == -1

    run(scenario)


def test_a_deadline_that_passed_during_downtime_aborts_at_once() -> None:
    async def scenario(setting: Setting) -> None:
        consumer = await setting.consume()
        transaction = await setting.begin(TOPIC, timeout_ms=5000)
        await setting.publish(b"1", transaction)
        await setting.publish(b"2")
        setting.actor_system.kill(COORDINATOR)
        setting.now_ms += 10_000
        await setting.actor_system.reach(COORDINATOR)
        assert await payloads(consumer, 1) == [b"2"]
        assert setting.status(transaction) in (Status.ABORTING, Status.ABORTED)

    run(scenario)


def test_a_partition_activates_the_coordinators_of_its_open_transactions() -> None:
    async def scenario(setting: Setting) -> None:
        transaction = await setting.begin(TOPIC, timeout_ms=5000)
        await setting.publish(b"1", transaction)
        setting.actor_system.kill(COORDINATOR)
        setting.actor_system.kill(setting.key)
        setting.now_ms += 10_000
        await setting.publish_after(b"2")
        assert await payloads(await setting.consume(), 1) == [b"2"]

    run(scenario)


def test_a_partition_outlives_a_coordinator_that_finds_the_disk_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(setting: Setting) -> None:
        transaction = await setting.begin(TOPIC, timeout_ms=5000)
        await setting.publish(b"1", transaction)
        address, refused = setting.actor_system.address, asyncio.Event()

        async def refuse_once(key: ActorKey) -> Address:
            if key == COORDINATOR and not refused.is_set():
                refused.set()
                raise RemoteError(Reason.STORAGE_FULL, "all used")
            return await address(key)

        monkeypatch.setattr(setting.actor_system, "address", refuse_once)
        setting.actor_system.kill(COORDINATOR)
        setting.actor_system.kill(setting.key)
        setting.now_ms += 10_000
        await setting.publish_after(b"2")
        await refused.wait()
        assert await payloads(await setting.consume(), 1) == [b"2"]
        assert not setting.actor_system.failures

    run(scenario)


def test_a_deleted_topic_does_not_block_completion() -> None:
    async def scenario(setting: Setting) -> None:
        other = "persistent://public/default/other"
        await call_by_name(
            setting.actor_system, ActorKey.catalog(), "ensure_topic", {"topic": other}
        )
        transaction = await setting.begin(TOPIC, other)
        await setting.publish(b"1", transaction)
        await call_by_name(
            setting.actor_system, ActorKey.catalog(), "delete_topic", {"topic": other}
        )
        assert not (await setting.end(transaction)).HasField("error")
        assert await payloads(await setting.consume(), 1) == [b"1"]

    run(scenario)


def test_an_end_during_a_request_to_the_coordinator_invalidates_its_answer() -> None:
    async def scenario(setting: Setting) -> None:
        transaction = await setting.begin(TOPIC)
        answered, gate = asyncio.Event(), asyncio.Event()
        call = setting.actor_system.request

        async def slow(key: ActorKey, request: Any, *args: Any) -> Any:
            found = await call(key, request, *args)
            if isinstance(request, MayJoin):
                answered.set()
                await gate.wait()
            return found

        setting.actor_system.request = slow  # type: ignore[method-assign]
        setting.send(b"1", transaction)
        await answered.wait()
        assert not (await setting.end(transaction)).HasField("error")
        gate.set()
        error = await setting.producer.next(pb.CommandSendError)
        assert error.error == pb.NotAllowedError and "is over" in error.message
        assert setting.partition.log.end_offset == 0

    run(scenario)


def test_an_abandoned_transaction_ends_by_its_deadline() -> None:
    async def scenario(setting: Setting) -> None:
        begun = await setting.coordinating.ask(Begin(timeout_ms=100))
        setting.now_ms += 200
        async with asyncio.timeout(20):
            while setting.status(begun.sequence) != Status.ABORTED:
                await asyncio.sleep(0.01)

    run(scenario)


def test_a_transaction_whose_client_left_before_the_answer_ends_by_its_deadline() -> None:
    async def scenario(setting: Setting) -> None:
        coordinator = setting.coordinating
        asked = asyncio.ensure_future(coordinator.ask(Begin(timeout_ms=100)))
        while not (begun := list(coordinator.runtime.state.unfinished)):
            await asyncio.sleep(0)
        asked.cancel()
        setting.now_ms += 200
        async with asyncio.timeout(20):
            while setting.status(begun[0]) != Status.ABORTED:
                await asyncio.sleep(0.01)

    run(scenario)


# ---- acknowledgements


async def arrival(consumer: RawClient) -> Message:
    found = await consumer.next(Message)
    assert isinstance(found, Message)
    return found


async def add_subscription(setting: Setting, sequence: int, name: str = "s") -> None:
    command = pb.CommandAddSubscriptionToTxn(txnid_most_bits=3, txnid_least_bits=sequence)
    command.subscription.add(topic=TOPIC, subscription=name)
    answer = await setting.ask(command, pb.CommandAddSubscriptionToTxnResponse)
    assert not answer.HasField("error"), answer


async def ack_in(consumer: RawClient, message: Message, sequence: int, **kwargs: Any) -> Any:
    command = pb.CommandAck(
        consumer_id=1,
        ack_type=kwargs.get("kind", pb.CommandAck.Individual),
        request_id=77,
        txnid_most_bits=3,
        txnid_least_bits=sequence,
    )
    command.message_id.add(
        ledgerId=message.ledger_id, entryId=message.entry_id, ack_set=kwargs.get("words", ())
    )
    consumer.send(command)
    answer = await consumer.next(pb.CommandAckResponse)
    assert (answer.txnid_most_bits, answer.txnid_least_bits) == (3, sequence)
    return answer


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("commit", [True, False])
def test_an_acknowledgement_counts_when_its_transaction_commits(commit: bool, crash: bool) -> None:
    async def scenario(setting: Setting) -> None:
        consumer = await setting.consume(kind=pb.CommandSubscribe.Shared)
        await setting.publish(b"1")
        await setting.publish(b"2")
        first = await arrival(consumer)
        await arrival(consumer)
        transaction = await setting.begin()
        await add_subscription(setting, transaction)
        assert not (await ack_in(consumer, first, transaction)).HasField("error")
        assert await backlog(setting) == 2
        if crash:
            setting.actor_system.kill(setting.key)
        else:
            consumer.close()
        again = await setting.consume(kind=pb.CommandSubscribe.Shared)
        other = await arrival(again)
        assert (other.entry_id, other.redelivery_count) == (1, 1)
        answer = await setting.end(transaction, commit)
        assert not answer.HasField("error"), answer
        if commit:
            assert await backlog(setting) == 1
        else:
            back = await arrival(again)
            assert back.entry_id == 0 and back.redelivery_count == 1
            assert await backlog(setting) == 2

    run(scenario)


def test_pending_messages_are_delivered_to_no_other_consumer() -> None:
    async def scenario(setting: Setting) -> None:
        consumer = await setting.consume()
        await setting.publish(b"1")
        message = await arrival(consumer)
        one, two = await setting.begin(), await setting.begin()
        refused = await ack_in(consumer, message, one)
        assert refused.error == pb.NotAllowedError and "not added" in refused.message
        for transaction in (one, two):
            await add_subscription(setting, transaction)
        assert not (await ack_in(consumer, message, one)).HasField("error")
        assert (await ack_in(consumer, message, two)).error == pb.TransactionConflict
        await setting.end(one)
        assert (await ack_in(consumer, message, two)).error == pb.TransactionConflict
        assert (await ack_in(consumer, message, one)).error == pb.InvalidTxnStatus
        assert await backlog(setting) == 0

    run(scenario)


def test_a_deleted_subscription_does_not_block_completion() -> None:
    async def scenario(setting: Setting) -> None:
        consumer = await setting.consume()
        await setting.publish(b"1")
        transaction = await setting.begin()
        await add_subscription(setting, transaction)
        await ack_in(consumer, await arrival(consumer), transaction)
        consumer.send(pb.CommandUnsubscribe(consumer_id=1, request_id=5))
        await consumer.next(pb.CommandSuccess)
        assert not (await setting.end(transaction)).HasField("error")

    run(scenario)
