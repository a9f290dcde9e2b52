"""What a partition says on the wire that the official client keeps to itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.official.raw import RawClient
from tests.official.support import ask, backlog, eventually, numbered, partition_key
from velaray.events.ids import ActorKind
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.commands import Message, Send
from velaray.wire.messages import build_entry

Connect = Callable[..., Awaitable[RawClient]]
ANSWERS = (pb.CommandSendReceipt, pb.CommandSendError)


def run(local, topic: str, scenario: Callable[[Connect], Awaitable[None]]) -> None:
    """Run ``scenario`` with a way to connect to the partition of ``topic``."""

    async def main() -> None:
        clients: list[RawClient] = []

        async def connect(version: str = "raw") -> RawClient:
            key = await asyncio.to_thread(partition_key, local, topic)
            found = await asyncio.to_thread(
                lambda: local.cluster.run(local.cluster.actor_system.reach(key))
            )
            clients.append(await RawClient.connect(found.host, found.service_port, version))
            return clients[-1]

        async with asyncio.timeout(60):
            await scenario(connect)
        for client in clients:
            client.close()

    asyncio.run(main())


def _kill(local, kind: ActorKind, topic: str) -> None:
    name = topic.rpartition("/")[2]
    keys = [key for key in local.cluster.keys(kind) if key.topic == name]
    assert len(keys) == 1
    local.cluster.kill(keys[0])


def test_an_ack_with_a_receipt_survives_a_crash(local, topic):
    async def scenario(connect: Connect) -> None:
        client = await connect()
        await client.produce(topic, numbered(10))
        await client.subscribe(topic)
        client.flow(100)
        messages = await client.messages(10)
        for number, message in enumerate(messages[::2]):
            answer = await client.ack(message, request_id=100 + number)
            assert not answer.HasField("error")
        await asyncio.to_thread(_kill, local, ActorKind.SUBSCRIPTION, topic)
        closed = await client.next(pb.CommandCloseConsumer)
        assert closed.consumer_id == 1
        await client.subscribe(topic)
        client.flow(100)
        again = await client.messages(5)
        assert [m.entry_id for m in again] == [m.entry_id for m in messages[1::2]]

    run(local, topic, scenario)


def test_a_repeated_ack_gets_a_receipt(local, topic):
    async def scenario(connect: Connect) -> None:
        client = await connect()
        await client.produce(topic, [b"x"])
        await client.subscribe(topic)
        client.flow(1)
        (message,) = await client.messages(1)
        for request_id in (7, 8):
            assert not (await client.ack(message, request_id)).HasField("error")
        beyond = message._replace(entry_id=99)
        assert not (await client.ack(beyond, 9)).HasField("error")  # nothing to keep
        assert (await client.ack(message, 10, consumer_id=5)).HasField("error")

    run(local, topic, scenario)


def test_receipts_arrive_after_the_consumer_left(local, topic):
    async def scenario(connect: Connect) -> None:
        client = await connect()
        await client.produce(topic, numbered(3))
        await client.subscribe(topic)
        client.flow(10)
        for number, message in enumerate(await client.messages(3)):
            client.send_ack(message, 60 + number)
        client.send(pb.CommandCloseConsumer(consumer_id=1, request_id=70))
        await client.next(pb.CommandSuccess)
        answers = [await client.next(pb.CommandAckResponse) for _ in range(3)]
        assert [answer.request_id for answer in answers] == [60, 61, 62]
        assert not any(answer.HasField("error") for answer in answers)

    run(local, topic, scenario)


def test_every_ack_is_answered_after_the_subscription_died(local, topic):
    """The answer is success or an error; every client gets one."""

    async def scenario(connect: Connect) -> None:
        client = await connect()
        await client.produce(topic, numbered(3))
        await client.subscribe(topic)
        client.flow(10)
        for number, message in enumerate(await client.messages(3)):
            client.send_ack(message, 60 + number)
        await asyncio.to_thread(_kill, local, ActorKind.SUBSCRIPTION, topic)
        answers = [await client.next(pb.CommandAckResponse) for _ in range(3)]
        assert {answer.request_id for answer in answers} == {60, 61, 62}
        refused = [answer.request_id for answer in answers if answer.HasField("error")]
        await client.subscribe(topic)
        client.flow(10)
        await client.produce(topic, numbered(1, "end"), producer_id=2)
        again = {(await client.messages(1))[0].entry_id}
        while 3 not in again:
            again.add((await client.messages(1))[0].entry_id)
        # One that was refused may have been stored: its answer got lost on the way.
        assert {60 + entry for entry in again - {3}} <= set(refused)

    run(local, topic, scenario)


class _WatchedPort:
    """A channel's connection to its dispatcher that records the messages."""

    def __init__(self, port) -> None:
        self._port = port
        self.calls: list[str] = []

    @property
    def closed(self) -> bool:
        return self._port.closed

    def tell(self, notice) -> None:
        self.calls.append(type(notice).__name__)
        self._port.tell(notice)

    async def ask(self, request):
        answer = await self._port.ask(request)
        self.calls.append(f"{type(request).__name__} answered")
        return answer

    def close(self) -> None:
        self.calls.append("close")
        self._port.close()


def test_a_channel_closes_only_after_the_dispatcher_received_its_acks(local, topic):
    """Otherwise the next channel's connection could overtake the acks on this one."""
    ports: list[_WatchedPort] = []

    async def watch() -> None:
        (actor,) = (
            actor
            for key, actor in local.cluster.actor_system.actors.items()
            if key.kind is ActorKind.PARTITION and key.topic == topic.rpartition("/")[2]
        )
        channel = actor.subscriptions.channels["s"]
        channel.link.port = _WatchedPort(channel.link.port)
        ports.append(channel.link.port)

    async def scenario(connect: Connect) -> None:
        client = await connect()
        await client.produce(topic, [b"x"])
        await client.subscribe(topic)
        await asyncio.to_thread(local.cluster.run, watch())
        client.flow(1)
        (message,) = await client.messages(1)
        client.send_ack(message, 0)
        client.send(pb.CommandCloseConsumer(consumer_id=1, request_id=2))
        await client.next(pb.CommandSuccess)
        while "close" not in ports[0].calls:
            await asyncio.sleep(0.01)

    run(local, topic, scenario)
    told = ["AddPermits", "LeaseReport", "AckEntries", "Detach"]
    assert ports[0].calls == [*told, "GetMark answered", "close"]


def test_failover_consumers_are_notified_of_the_active_one(local, topic):
    async def scenario(connect: Connect) -> None:
        client = await connect()
        kind = pb.CommandSubscribe.Failover
        await client.subscribe(topic, 1, kind=kind, consumer_name="a")
        told = await client.next(pb.CommandActiveConsumerChange)
        assert (told.consumer_id, told.is_active) == (1, True)
        await client.subscribe(topic, 2, kind=kind, consumer_name="b")
        client.flow(1, 2)
        told = await client.next(pb.CommandActiveConsumerChange)
        assert (told.consumer_id, told.is_active) == (2, False)
        client.send(pb.CommandCloseConsumer(consumer_id=1, request_id=70))
        told = await client.next(pb.CommandActiveConsumerChange)
        assert (told.consumer_id, told.is_active) == (2, True)

    run(local, topic, scenario)


@pytest.mark.parametrize(
    "version, told",
    [("raw", True), ("Pulsar-CPP-v4.2.0", False), ("Pulsar-Go-v0.19.0", False)],
)
def test_the_end_of_a_topic_is_announced_after_the_last_entry(local, topic, version, told):
    async def scenario(connect: Connect) -> None:
        client = await connect(version)
        await client.produce(topic, numbered(300))
        await client.subscribe(topic)
        client.flow(299)
        await client.messages(299)
        await asyncio.to_thread(ask, local, topic, "terminate")
        client.send(pb.CommandGetLastMessageId(consumer_id=1, request_id=80))
        await client.next(pb.CommandGetLastMessageIdResponse)
        kinds = {type(command) for command, _ in client.received}
        assert pb.CommandReachedEndOfTopic not in kinds
        client.flow(10)
        await client.messages(1)
        if told:
            assert (await client.next(pb.CommandReachedEndOfTopic)).consumer_id == 1
        else:
            client.send(pb.CommandGetLastMessageId(consumer_id=1, request_id=81))
            await client.next(pb.CommandGetLastMessageIdResponse)
            kinds = {type(command) for command, _ in client.received}
            assert pb.CommandReachedEndOfTopic not in kinds

    run(local, topic, scenario)


def test_permits_count_messages(local, topic):
    async def scenario(connect: Connect) -> None:
        client = await connect()
        await client.produce(topic, numbered(20))
        await client.subscribe(topic)
        for permits, expected in ((3, 3), (0, 0), (5, 5)):
            client.flow(permits)
            await client.messages(expected)
            client.send(pb.CommandConsumerStats(consumer_id=1, request_id=90))
            stats = await client.next(pb.CommandConsumerStatsResponse)
            assert stats.availablePermits == 0
            assert stats.msgBacklog == 20
            assert stats.type == "Exclusive"
        assert stats.unackedMessages == 8

    run(local, topic, scenario)


def test_a_newer_subscribe_replaces_one_in_progress(local, topic):
    """One of them must not stay attached unseen: it would hold the Exclusive subscription."""

    async def scenario(connect: Connect) -> None:
        client, other = await connect(), await connect()
        await client.produce(topic, numbered(3))
        command = pb.CommandSubscribe(
            topic=topic,
            subscription="s",
            subType=pb.CommandSubscribe.Exclusive,
            consumer_id=1,
            initialPosition=pb.CommandSubscribe.Earliest,
        )
        for request_id in range(1, 6):
            command.request_id = request_id
            client.send(command)
        assert (await client.next(pb.CommandSuccess)).request_id == 5
        client.flow(10)
        await client.messages(3)
        stats = await asyncio.to_thread(ask, local, topic, "stats")
        assert len(stats["subscriptions"]["s"]["consumers"]) == 1
        client.send(pb.CommandCloseConsumer(consumer_id=1, request_id=6))
        await client.next(pb.CommandSuccess)
        await other.subscribe(topic)

    run(local, topic, scenario)


def test_a_consumer_closed_while_it_subscribes_is_not_attached(local, topic):
    async def scenario(connect: Connect) -> None:
        client, other = await connect(), await connect()
        for round_number in range(20):
            client.send(
                pb.CommandSubscribe(
                    topic=topic,
                    subscription="s",
                    subType=pb.CommandSubscribe.Exclusive,
                    consumer_id=1,
                    request_id=round_number,
                )
            )
            await asyncio.sleep(0.001 * round_number)
            client.send(pb.CommandCloseConsumer(consumer_id=1, request_id=1000 + round_number))
            answered = (await client.next(pb.CommandSuccess)).request_id
            if answered == round_number:
                answered = (await client.next(pb.CommandSuccess)).request_id
            assert answered == 1000 + round_number
            await other.subscribe(topic, 2)
            other.send(pb.CommandCloseConsumer(consumer_id=2, request_id=3))
            await other.next(pb.CommandSuccess)

    run(local, topic, scenario)


def test_a_client_that_vanishes_while_it_subscribes_is_not_attached(local, topic):
    async def scenario(connect: Connect) -> None:
        staying = await connect()
        for round_number in range(10):
            client = await connect()
            client.send(
                pb.CommandSubscribe(
                    topic=topic,
                    subscription="s",
                    subType=pb.CommandSubscribe.Exclusive,
                    consumer_id=1,
                    request_id=1,
                )
            )
            await asyncio.sleep(0.001 * round_number)
            client.close()
            await client.closed.wait()
        stats = None

        async def nobody_is_left() -> bool:
            nonlocal stats
            stats = await asyncio.to_thread(ask, local, topic, "stats")
            return not stats["subscriptions"]["s"]["consumers"]

        while not await nobody_is_left():
            await asyncio.sleep(0.02)
        await staying.subscribe(topic)

    run(local, topic, scenario)


def test_a_reader_may_not_take_a_durable_subscriptions_name(local, topic):
    async def scenario(connect: Connect) -> None:
        client = await connect()
        await client.subscribe(topic)
        client.send(
            pb.CommandSubscribe(
                topic=topic,
                subscription="s",
                subType=pb.CommandSubscribe.Exclusive,
                consumer_id=2,
                request_id=2,
                durable=False,
            )
        )
        assert (await client.next(pb.CommandError)).error == pb.NotAllowedError

    run(local, topic, scenario)


def test_an_initial_subscription_of_a_producer(local, topic):
    async def scenario(connect: Connect) -> None:
        client = await connect()
        client.send(
            pb.CommandProducer(
                topic=topic, producer_id=1, request_id=1, initial_subscription_name="first"
            )
        )
        await client.next(pb.CommandProducerSuccess)
        assert await asyncio.to_thread(ask, local, topic, "subscriptions") == ["first"]

    run(local, topic, scenario)
    assert backlog(local, topic, "first") == 0


def test_a_waiting_producer_that_asks_again_still_waits(local, topic):
    async def scenario(connect: Connect) -> None:
        client = await connect()
        exclusive, wait = pb.Exclusive, pb.WaitForExclusive
        client.send(
            pb.CommandProducer(
                topic=topic, producer_id=1, request_id=1, producer_access_mode=exclusive
            )
        )
        assert (await client.next(pb.CommandProducerSuccess)).producer_ready
        for request_id in (2, 3):
            client.send(
                pb.CommandProducer(
                    topic=topic,
                    producer_id=2,
                    request_id=request_id,
                    producer_access_mode=wait,
                )
            )
            answer = await client.next(pb.CommandProducerSuccess)
            assert (answer.request_id, answer.producer_ready) == (request_id, False)
            assert answer.HasField("schema_version")  # Java's client reads it in any case
        client.send(pb.CommandCloseProducer(producer_id=1, request_id=4))
        ready = await client.next(pb.CommandProducerSuccess)
        assert (ready.request_id, ready.producer_ready) == (3, True)
        assert ready.HasField("schema_version")

    run(local, topic, scenario)


def test_the_read_position_survives_the_dispatcher(local, topic):
    """A subscription actor that dies takes nothing along that was acknowledged."""

    async def scenario(connect: Connect) -> None:
        client = await connect()
        await client.produce(topic, numbered(50))
        await client.subscribe(topic, kind=pb.CommandSubscribe.Shared)
        got: list[int] = []
        for _ in range(5):
            client.flow(10)
            batch = await client.messages(10)
            for number, message in enumerate(batch):
                assert not (await client.ack(message, 1 + number)).HasField("error")
                got.append(message.entry_id)
            await asyncio.to_thread(_kill, local, ActorKind.SUBSCRIPTION, topic)
            await client.next(pb.CommandCloseConsumer)
            await client.subscribe(topic, kind=pb.CommandSubscribe.Shared)
        assert got == list(range(50))
        assert Message not in {type(command) for command, _ in client.received}

    run(local, topic, scenario)
    eventually(lambda: backlog(local, topic, "s") == 0)


def test_a_damaged_entry_is_refused_in_order(local, topic):
    async def scenario(connect: Connect) -> None:
        client = await connect()
        await client.produce(topic, [])
        for sequence_id in range(3):
            metadata = pb.MessageMetadata(
                producer_name="raw", sequence_id=sequence_id, publish_time=1
            )
            entry = build_entry(metadata, b"payload")
            if sequence_id == 1:
                entry = entry[:-1] + b"X"
            client.write_entry(Send(1, sequence_id), entry)
        await client.next(pb.CommandSendReceipt)
        error = await client.next(pb.CommandSendError)
        assert (error.sequence_id, error.error) == (1, pb.ChecksumError)
        assert (await client.next(pb.CommandSendReceipt)).sequence_id == 2
        order = [type(command) for command in client.history if type(command) in ANSWERS]
        assert order == [pb.CommandSendReceipt, pb.CommandSendError, pb.CommandSendReceipt]

    run(local, topic, scenario)


def test_acknowledgements_that_arrive_during_a_seek_are_ignored(local, topic):
    async def scenario(connect: Connect) -> None:
        client = await connect()
        await client.produce(topic, numbered(10))
        await client.subscribe(topic)
        client.flow(100)
        messages = await client.messages(10)
        seek = pb.CommandSeek(consumer_id=1, request_id=77)
        seek.message_id.ledgerId = messages[4].ledger_id
        seek.message_id.entryId = messages[4].entry_id
        client.send(seek)
        while not any(isinstance(command, pb.CommandSuccess) for command, _ in client.received):
            for message in messages if client.writable else []:
                client.send_ack(message, request_id=0)
            await asyncio.sleep(0)
        await client.next(pb.CommandSuccess)
        await client.subscribe(topic)
        client.flow(100)
        again = await client.messages(6)
        assert [m.entry_id for m in again] == [m.entry_id for m in messages[4:]]

    run(local, topic, scenario)
