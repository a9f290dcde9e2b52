"""A partition's connection: what fails half-way, and what must not leave ahead of the disk."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.support.by_name import call_by_name
from velaray.actors.machine import Reason
from velaray.actors.partition.machine import DeleteSubscription, Publish, StartAt
from velaray.actors.runtime import Stopped
from velaray.broker.client_session import ClientSession
from velaray.broker.partition.partition_actor import PartitionActor
from velaray.broker.partition.session import producer as producer_module
from velaray.broker.partition.session.producers import BEYOND
from velaray.events.backoff import Backoff
from velaray.events.ids import ActorKey, ActorKind, TopicName
from velaray.geo.actor_kinds import make_actor
from velaray.journal.memory import MemoryDisk, MemoryStore
from velaray.topology.actor_system import Unreachable, persist
from velaray.topology.config import ClusterConfig
from velaray.topology.in_process import InProcessActorSystem
from velaray.topology.messages import Request
from velaray.topology.rpc import RemoteError
from velaray.topology.rpc_server import RpcListener
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.commands import Message
from velaray.wire.errors import CorruptEntryError

TOPIC = TopicName.parse("persistent://public/default/t")


class Client:
    """Stands for a `WireConnection` whose client sends commands; keeps what it is sent."""

    peer = "client:1"
    writable = True
    closed = False

    def __init__(self, partition: PartitionActor) -> None:
        self.sent: list[Any] = []
        self.session = ClientSession(partition.listener)
        self.session.on_connected(self)  # type: ignore[arg-type]
        self.session._connected = True

    def send(self, message: Any) -> None:
        self.sent.append(message)

    def establish(self) -> None: ...

    def close(self, error: Exception | None = None) -> None:
        self.closed = True

    abort = close

    def say(self, command: Any) -> None:
        self.session.on_frame(self, command, None)  # type: ignore[arg-type]

    async def answer(self, kind: type) -> Any:
        """The next message of a kind; what came before it is forgotten."""
        async with asyncio.timeout(5):
            while True:
                while self.sent:
                    message = self.sent.pop(0)
                    if isinstance(message, kind):
                        return message
                await asyncio.sleep(0.001)


class Setting:
    """A cluster in memory with one running partition, and one client of it."""

    def __init__(self) -> None:
        self.disk = MemoryDisk()
        self.actor_system = InProcessActorSystem(
            ClusterConfig("nowhere", 1, b"key", deleters=0), MemoryStore(self.disk), make_actor
        )
        self.partition: PartitionActor
        self.client: Client

    async def start(self) -> None:
        names = {"cluster": "c", "service_url": "pulsar://h:1", "admin_url": "http://h:2"}
        await call_by_name(self.actor_system, ActorKey.catalog(), "bootstrap", names)
        found = await call_by_name(
            self.actor_system, ActorKey.catalog(), "ensure_topic", {"topic": str(TOPIC)}
        )
        key = ActorKey.of_partition(TOPIC, found["incarnation"])
        await self.actor_system.address(key)
        actor = self.actor_system.actors[key]
        assert isinstance(actor, PartitionActor)
        self.partition = actor
        self.client = Client(actor)

    def hold_commits(self) -> asyncio.Event:
        """Nothing of the partition becomes durable before the event is set."""
        gate = asyncio.Event()
        commit = self.partition.runtime.journal.commit

        async def held() -> int:
            await gate.wait()
            return await commit()

        self.partition.runtime.journal.commit = held  # type: ignore[method-assign]
        return gate

    def dispatchers(self) -> list[ActorKey]:
        return [key for key in self.actor_system.actors if key.kind is ActorKind.SUBSCRIPTION]

    async def stored_dispatchers(self) -> list[str]:
        journals = await self.actor_system.store.list_journals()
        return [name for name in journals if name.startswith("subscription")]


def run(scenario: Callable[[Setting], Awaitable[None]]) -> None:
    async def main() -> None:
        setting = Setting()
        await setting.start()
        await scenario(setting)
        await setting.actor_system.stop()

    asyncio.run(main())


def producer(number: int, access_mode: int = 1) -> pb.CommandProducer:
    return pb.CommandProducer(
        topic=str(TOPIC), producer_id=number, request_id=1, producer_access_mode=access_mode
    )


SUBSCRIBE = pb.CommandSubscribe(
    topic=str(TOPIC),
    subscription="s",
    subType=pb.CommandSubscribe.Exclusive,
    consumer_id=1,
    request_id=1,
)


def test_an_exclusive_producer_needs_its_epoch_on_disk() -> None:
    async def scenario(setting: Setting) -> None:
        client = setting.client
        setting.disk.capacity = 0
        client.say(producer(1))
        refused = await client.answer(pb.CommandError)
        assert refused.error == pb.PersistenceError
        setting.disk.capacity = None
        client.say(producer(1))
        accepted = await client.answer(pb.CommandProducerSuccess)
        assert accepted.topic_epoch == 1

    run(scenario)


def test_a_consumer_whose_unsubscribe_failed_must_subscribe_again() -> None:
    async def scenario(setting: Setting) -> None:
        client = setting.client
        client.say(SUBSCRIBE)
        await client.answer(pb.CommandSuccess)
        setting.disk.capacity = 0
        client.say(pb.CommandUnsubscribe(consumer_id=1, request_id=2))
        assert (await client.answer(pb.CommandCloseConsumer)).consumer_id == 1
        assert (await client.answer(pb.CommandError)).error == pb.PersistenceError
        setting.disk.capacity = None
        client.say(SUBSCRIBE)
        await client.answer(pb.CommandSuccess)

    run(scenario)


def test_a_producer_that_connects_during_a_termination_is_notified() -> None:
    async def scenario(setting: Setting) -> None:
        gate = setting.hold_commits()
        termination = asyncio.create_task(setting.partition.call("terminate", {}))
        await asyncio.sleep(0)
        setting.client.say(producer(1, access_mode=0))
        await asyncio.sleep(0.01)
        gate.set()
        await termination
        refused = await setting.client.answer(pb.CommandError)
        assert refused.error == pb.TopicTerminatedError

    run(scenario)


def test_a_producer_continues_behind_the_last_id_of_its_predecessor() -> None:
    async def scenario(setting: Setting) -> None:
        runtime = setting.partition.runtime
        runtime._parked = deque()  # as while the journal rolls over
        runtime.submit(Publish("p", 7, 7, 1, b"entry", True), lambda reply, effects: None)
        setting.client.say(
            pb.CommandProducer(topic=str(TOPIC), producer_id=1, request_id=1, producer_name="p")
        )
        await asyncio.sleep(0.01)
        assert not setting.client.sent
        runtime._unpark()
        answer = await setting.client.answer(pb.CommandProducerSuccess)
        assert answer.last_sequence_id == 7

    run(scenario)


@pytest.mark.parametrize(
    ("client_version", "command", "reported"),
    [
        ("Pulsar-CPP-v4.2.0", {}, -1),
        ("Pulsar-CPP-v4.2.0", {"producer_name": "p"}, 7),
        ("Pulsar-CPP-v4.2.0", {"producer_name": "p", "topic_epoch": 0}, 7 + BEYOND),
        ("Pulsar-Java-v4.0.8", {"producer_name": "p", "topic_epoch": 0}, 7),
        ("Pulsar-Java-v4.0.8", {"producer_name": "p", "user_provided_producer_name": False}, None),
        ("unknown", {"producer_name": "q", "user_provided_producer_name": False}, BEYOND - 1),
    ],
    ids=["first", "named", "named and back", "Java's", "Java's and unnamed", "unnamed and back"],
)
def test_the_id_reported_after_a_reconnect_exceeds_ids_that_the_client_may_hold(
    client_version: str, command: dict[str, Any], reported: int | None
) -> None:
    async def scenario(setting: Setting) -> None:
        await setting.partition.publishing.append(Publish("p", 7, 7, 1, b"entry", True))
        client = setting.client
        client.session._connected = False
        client.say(pb.CommandConnect(client_version=client_version, protocol_version=20))
        client.say(
            pb.CommandProducer(topic=str(TOPIC), producer_id=1, request_id=1, epoch=1, **command)
        )
        answer = await client.answer(pb.CommandProducerSuccess)
        assert answer.last_sequence_id == (7 + BEYOND if reported is None else reported)

    run(scenario)


def test_generated_producer_names_differ_between_data_and_incarnations() -> None:
    async def scenario(setting: Setting) -> None:
        partition = setting.partition
        names = {partition.publishing.producer_name()}
        for data_id, incarnation in (("", 77), ("0123456789", 77), ("9876543210", 77)):
            partition.config = replace(partition.config, data_id=data_id)
            partition.key = replace(partition.key, topic_incarnation=incarnation)
            names.add(partition.publishing.producer_name().rpartition("-")[0])
        assert len(names) == 4

    run(scenario)


def test_a_full_disk_of_the_dispatcher_does_not_end_a_partition_without_consumers() -> None:
    async def scenario(setting: Setting) -> None:
        setting.client.say(SUBSCRIBE)
        await setting.client.answer(pb.CommandSuccess)
        channel = setting.partition.subscriptions.channels["s"]
        assert channel.link.port is not None

        async def full(request: Request[Any]) -> None:
            raise RemoteError(Reason.STORAGE_FULL, "all used")

        channel.link.port.ask = full  # type: ignore[method-assign]
        setting.client.say(pb.CommandCloseConsumer(consumer_id=1, request_id=2))
        async with asyncio.timeout(5):
            while not channel.closed:
                await asyncio.sleep(0.001)
        assert not setting.actor_system.failures

    run(scenario)


def test_a_deletion_continues_without_its_caller() -> None:
    async def scenario(setting: Setting) -> None:
        partition = setting.partition
        setting.client.say(SUBSCRIBE)
        await setting.client.answer(pb.CommandSuccess)
        may_dismiss = asyncio.Event()
        dismiss = setting.actor_system.dismiss

        async def slow_dismiss(key: ActorKey) -> None:
            await may_dismiss.wait()
            await dismiss(key)

        setting.actor_system.dismiss = slow_dismiss  # type: ignore[method-assign]
        deletion = asyncio.create_task(
            partition.deletion.delete_subscription(DeleteSubscription("s"))
        )
        while "s" in partition.runtime.state.subscriptions:
            await asyncio.sleep(0)
        deletion.cancel()
        may_dismiss.set()
        async with asyncio.timeout(5):
            while await setting.stored_dispatchers():
                await asyncio.sleep(0.001)
        assert deletion.cancelled()

    run(scenario)


def test_a_deletion_that_a_crash_interrupts_is_finished_by_the_next_activation() -> None:
    async def scenario(setting: Setting) -> None:
        partition, actor_system = setting.partition, setting.actor_system
        setting.client.say(SUBSCRIBE)
        await setting.client.answer(pb.CommandSuccess)
        (dispatcher,) = await setting.stored_dispatchers()
        dismiss = actor_system.dismiss

        async def crash(key: ActorKey) -> None:
            actor_system.kill(key)
            actor_system.kill(partition.key)
            await asyncio.Event().wait()

        actor_system.dismiss = crash  # type: ignore[method-assign]
        with pytest.raises(asyncio.CancelledError):
            await partition.deletion.delete_subscription(DeleteSubscription("s"))
        assert await setting.stored_dispatchers() == [dispatcher]
        actor_system.dismiss = dismiss  # type: ignore[method-assign]
        await actor_system.address(partition.key)
        again = actor_system.actors[partition.key]
        assert isinstance(again, PartitionActor)
        async with asyncio.timeout(5):
            while again.runtime.state.deleted:
                await asyncio.sleep(0.001)
        assert not await setting.stored_dispatchers()

    run(scenario)


def test_a_dispatcher_is_not_asked_before_its_subscription_is_durable() -> None:
    async def scenario(setting: Setting) -> None:
        partition = setting.partition
        gate = setting.hold_commits()
        creation = asyncio.create_task(
            partition.subscriptions.create_subscription("s", StartAt.EARLIEST, {})
        )
        await asyncio.sleep(0)
        question = asyncio.create_task(partition.call("stats", {}))
        names = asyncio.create_task(partition.call("subscriptions", {}))
        await asyncio.sleep(0.05)
        assert not setting.dispatchers() and not question.done() and not names.done()
        gate.set()
        assert list((await question)["subscriptions"]) == ["s"] == await names
        await creation

    run(scenario)


def test_a_partition_that_cannot_read_its_log_stops() -> None:
    async def scenario(setting: Setting) -> None:
        setting.partition.log.reading_failed(0, OSError("input/output error"))
        assert [str(error) for _, error in setting.actor_system.failures] == ["input/output error"]

    run(scenario)


def test_closed_producers_are_not_remembered_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_module, "CLOSED_KEPT", 2)

    async def scenario(setting: Setting) -> None:
        client = setting.client
        for number in range(4):
            client.say(producer(number, access_mode=0))
            await client.answer(pb.CommandProducerSuccess)
            client.say(pb.CommandCloseProducer(producer_id=number, request_id=2))
            await client.answer(pb.CommandSuccess)
        assert list(client.session._producer_table.closed) == [2, 3]

    run(scenario)


def test_a_damaged_entry_of_another_command_than_send_closes_its_connection() -> None:
    async def scenario(setting: Setting) -> None:
        client = setting.client
        damaged = CorruptEntryError("damaged", Message(1, 1, 1))
        client.session.on_corrupt_entry(client, damaged)  # type: ignore[arg-type]
        assert client.closed

    run(scenario)


def test_a_schema_of_an_invalid_topic_is_refused_also_for_the_empty_version() -> None:
    async def scenario(setting: Setting) -> None:
        for version in (b"", b"\0" * 8):
            asked = pb.CommandGetSchema(topic="a/b", request_id=1, schema_version=version)
            setting.client.say(asked)
            answer = await setting.client.answer(pb.CommandGetSchemaResponse)
            assert answer.error_code == pb.InvalidTopicName

    run(scenario)


def test_an_unused_connection_keeps_no_partition_in_memory() -> None:
    async def scenario(setting: Setting) -> None:
        async with asyncio.timeout(5):
            while not setting.partition.idle():  # until the calls that set it up are over
                setting.actor_system.drop_rpc()
                await asyncio.sleep(0.001)
        client = setting.client
        client.say(producer(1))
        await asyncio.sleep(0)  # the request begins
        assert not setting.partition.idle()
        await client.answer(pb.CommandProducerSuccess)
        assert not setting.partition.idle()
        client.say(pb.CommandCloseProducer(producer_id=1, request_id=2))
        await client.answer(pb.CommandSuccess)
        client.say(SUBSCRIBE)
        await client.answer(pb.CommandSuccess)
        assert not setting.partition.idle()
        client.say(pb.CommandCloseConsumer(consumer_id=1, request_id=2))
        await client.answer(pb.CommandSuccess)
        await asyncio.sleep(0)
        assert setting.partition.idle()

    run(scenario)


def test_an_actor_whose_start_fails_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    async def failing_listen(listener: RpcListener, host: str) -> int:
        raise OSError("no port left")

    async def scenario(setting: Setting) -> None:
        key = setting.partition.key
        setting.actor_system.kill(key)
        monkeypatch.setattr(RpcListener, "open", failing_listen)
        start = asyncio.create_task(setting.actor_system.address(key))
        while key not in setting.actor_system.actors:
            await asyncio.sleep(0)
        half_started = setting.actor_system.actors[key]
        assert isinstance(half_started, PartitionActor)
        with pytest.raises(OSError, match="no port left"):
            await start
        assert key not in setting.actor_system.actors
        with pytest.raises(Stopped):
            await half_started.runtime.read(lambda state: None)
        monkeypatch.undo()
        await setting.actor_system.address(key)

    run(scenario)


def test_a_missing_answer_is_named_as_the_reason() -> None:
    async def main() -> None:
        with pytest.raises(Unreachable, match=r"could not call it within 0.05 s: no answer"):
            await persist(lambda: asyncio.sleep(10), 0.05, "call it", Backoff(0.02))

    asyncio.run(main())
