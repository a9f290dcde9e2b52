"""A partition whose tenant moves: nothing passes, clients reconnect, nothing is lost."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

from tests.official.raw import RawClient
from tests.support.by_name import call_by_name
from tests.support.local_cluster import LocalCluster
from tests.support.waiting import wait_until
from velaray.broker.partition.channel_opening import ChannelOpener
from velaray.broker.partition.partition_actor import PartitionActor
from velaray.events.ids import ActorKey, TopicName
from velaray.topology.rpc import RemoteError
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.commands import Send
from velaray.wire.messages import build_entry


def partition_of(cluster: LocalCluster, topic: str) -> ActorKey:
    name = TopicName.parse(topic)
    catalog = ActorKey.catalog()
    found = cluster.run(
        call_by_name(cluster.actor_system, catalog, "ensure_topic", {"topic": str(name)})
    )
    return ActorKey.of_partition(name, found["incarnation"])


def ask(cluster: LocalCluster, key: ActorKey, method: str, **args: Any) -> Any:
    return cluster.run(call_by_name(cluster.actor_system, key, method, args))


def test_a_fence_refuses_everything_and_earlier_requests_are_settled(cluster: LocalCluster) -> None:
    key = partition_of(cluster, "fenced")

    async def work() -> None:
        address = await cluster.actor_system.reach(key)
        client = await RawClient.connect(address.host, address.service_port)
        topic = str(key.topic_name)
        await client.produce(topic, [b"0", b"1", b"2"])
        await client.subscribe(topic)
        client.flow(10)
        messages = await client.messages(3)
        client.send_ack(messages[0], 0)  # without a receipt
        client.send_ack(messages[1], 7)
        await client.next(pb.CommandAckResponse)
        await call_by_name(cluster.actor_system, key, "fence", {"migration": 1})
        await client.next(pb.CommandCloseProducer)
        await client.next(pb.CommandCloseConsumer)
        metadata = pb.MessageMetadata(producer_name="p", sequence_id=3, publish_time=1)
        client.write_entry(Send(1, 3), build_entry(metadata, b"late"))
        client.send_ack(messages[2], 8)
        refused = await client.next(pb.CommandAckResponse)
        assert refused.error == pb.ConsumerNotFound
        client.send(pb.CommandProducer(topic=topic, producer_id=2, request_id=5))
        assert (await client.next(pb.CommandError)).error == pb.ServiceNotReady
        subscribe = {"subscription": "s", "subType": pb.CommandSubscribe.Shared, "consumer_id": 2}
        client.send(pb.CommandSubscribe(topic=topic, request_id=6, **subscribe))
        assert (await client.next(pb.CommandError)).error == pb.ServiceNotReady
        assert not any(isinstance(each, pb.CommandSendReceipt) for each, _ in client.received)
        assert not any(isinstance(each, pb.CommandSendError) for each, _ in client.received)

    cluster.run(work())
    stats = ask(cluster, key, "stats")
    assert stats["entries"] == 3
    assert stats["subscriptions"]["s"]["acked_before"] == 2  # the late one counts for nothing


def test_a_consumer_that_subscribes_while_the_fence_is_set_gets_nothing(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = partition_of(cluster, "fenced-meanwhile")
    connect = ChannelOpener.connect
    connecting, go_on = asyncio.Event(), asyncio.Event()

    async def slowly(actor: ChannelOpener, *args: Any, **more: Any) -> Any:
        connecting.set()
        await go_on.wait()
        return await connect(actor, *args, **more)

    async def work() -> None:
        address = await cluster.actor_system.reach(key)
        client = await RawClient.connect(address.host, address.service_port)
        topic = str(key.topic_name)
        await call_by_name(cluster.actor_system, key, "create_subscription", {"name": "s"})
        await client.produce(topic, [b"0"])
        monkeypatch.setattr(ChannelOpener, "connect", slowly)
        subscribe = {"subscription": "s", "subType": pb.CommandSubscribe.Shared, "consumer_id": 2}
        client.send(pb.CommandSubscribe(topic=topic, request_id=6, **subscribe))
        await connecting.wait()
        await call_by_name(cluster.actor_system, key, "fence", {"migration": 1})
        go_on.set()
        assert (await client.next(pb.CommandError)).error == pb.ServiceNotReady

    cluster.run(work())
    assert ask(cluster, key, "stats")["subscriptions"]["s"]["consumers"] == []


@pytest.mark.parametrize(
    ("method", "args"),
    [
        ("seek", {"name": "s", "position": [-1, -1]}),
        ("skip_to", {"name": "s"}),
        ("expire", {"name": "s", "age_ms": 0}),
        ("undo", {"name": "s", "sequence": 1}),
        ("create_subscription", {"name": "new"}),
        ("delete_subscription", {"name": "s"}),
        ("terminate", {}),
    ],
)
def test_administrative_changes_are_refused_behind_a_fence(
    cluster: LocalCluster, method: str, args: dict[str, Any]
) -> None:
    key = partition_of(cluster, f"fenced-for-{method}")
    ask(cluster, key, "create_subscription", name="s")
    ask(cluster, key, "fence", migration=1)
    with pytest.raises(RemoteError, match="moving to another cluster") as refused:
        ask(cluster, key, method, **args)
    assert refused.value.kind == "unavailable"
    ask(cluster, key, "unfence", migration=1)
    if method != "undo":  # there is nothing to undo
        ask(cluster, key, method, **args)


def test_a_fence_survives_a_restart_of_its_partition(cluster: LocalCluster) -> None:
    key = partition_of(cluster, "fenced-and-killed")
    ask(cluster, key, "fence", migration=1)
    cluster.kill(key)
    with pytest.raises(RemoteError, match="moving to another cluster"):
        ask(cluster, key, "skip_to", name="s")
    ask(cluster, key, "fence", migration=1)
    with pytest.raises(RemoteError, match="is over"):
        ask(cluster, key, "fence", migration=0)
    ask(cluster, key, "unfence", migration=1)
    cluster.kill(key)
    ask(cluster, key, "create_subscription", name="s")


def test_acknowledgements_are_refused_behind_a_durable_fence(cluster: LocalCluster) -> None:
    key = partition_of(cluster, "acknowledged-late")

    async def work() -> None:
        address = await cluster.actor_system.reach(key)
        client = await RawClient.connect(address.host, address.service_port)
        topic = str(key.topic_name)
        await client.produce(topic, [b"0"])
        await client.subscribe(topic)
        client.flow(10)
        (message,) = await client.messages(1)
        partition = cluster.actor_system.actors[key]
        assert isinstance(partition, PartitionActor)
        async with partition.subscriptions.lock("s"):  # its channel can't be closed yet
            fencing = asyncio.ensure_future(
                call_by_name(cluster.actor_system, key, "fence", {"migration": 1})
            )
            await client.next(pb.CommandCloseProducer)
            assert (await client.ack(message, 5)).error == pb.ServiceNotReady
        await fencing

    cluster.run(work())
    assert ask(cluster, key, "stats")["subscriptions"]["s"]["acked_before"] == 0


def test_unknown_message_ids_get_no_receipt(cluster: LocalCluster) -> None:
    """Not for nothing: who moved there and back may have ids of the time before."""
    key, other = partition_of(cluster, "asked"), partition_of(cluster, "another")

    async def work() -> None:
        address = await cluster.actor_system.reach(other)
        client = await RawClient.connect(address.host, address.service_port)
        (elsewhere,) = await client.produce(str(other.topic_name), [b"0"])
        address = await cluster.actor_system.reach(key)
        client = await RawClient.connect(address.host, address.service_port)
        topic = str(key.topic_name)
        await client.produce(topic, [b"0"])
        await client.subscribe(topic)
        client.flow(1)
        (message,) = await client.messages(1)
        ack = {"consumer_id": 1, "ack_type": pb.CommandAck.Individual}
        strangers = (elsewhere.message_id.ledgerId, 7 << 52)
        for request_id, ledger_id in enumerate(strangers, 2):
            command = pb.CommandAck(request_id=request_id, **ack)
            command.message_id.add(ledgerId=message.ledger_id, entryId=message.entry_id)
            command.message_id.add(ledgerId=ledger_id, entryId=0)
            client.send(command)
            answer = await client.next(pb.CommandAckResponse)
            assert (answer.request_id, answer.error) == (request_id, pb.NotAllowedError)
        assert not (await client.ack(message, 9)).HasField("error")

    cluster.run(work())


class Publishing:
    """The official client publishes 0, 1, ... from a thread, and counts its receipts."""

    def __init__(self, client: pulsar.Client, topic: str) -> None:
        self._producer = client.create_producer(topic, producer_name="p")
        self._stop = threading.Event()
        self.confirmed: list[int] = []
        self.failed: list[Any] = []
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            try:
                self._producer.send(str(number).encode())
            except pulsar.PulsarException as error:
                self.failed.append(error)
                return
            self.confirmed.append(number)
            number += 1

    def __enter__(self) -> Publishing:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()
        self._producer.close()


@pytest.fixture
def lone(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path) as running:
        yield running


def test_clients_continue_after_the_fence_is_removed(lone: LocalCluster) -> None:
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    client = pulsar.Client(lone.service_url, logger=quiet, operation_timeout_seconds=30)
    key = partition_of(lone, "busy")
    consumer = client.subscribe("busy", "s", consumer_type=pulsar.ConsumerType.Shared)
    with Publishing(client, "busy") as publishing:
        for migration in (1, 2, 3):
            before = len(publishing.confirmed)
            wait_until(lambda before=before: len(publishing.confirmed) > before + 50)
            ask(lone, key, "fence", migration=migration)
            behind = ask(lone, key, "stats")["end_offset"]
            # A receipt may still be on its way to the client, and no more than that.
            assert len(publishing.confirmed) <= behind
            assert ask(lone, key, "stats")["end_offset"] == behind
            ask(lone, key, "unfence", migration=migration)
        before = len(publishing.confirmed)
        wait_until(lambda: len(publishing.confirmed) > before + 50, 60)
    assert not publishing.failed
    got = []
    for _ in publishing.confirmed:
        message = consumer.receive(20_000)
        got.append(int(message.data()))
        consumer.acknowledge(message)
    assert sorted(got) == publishing.confirmed  # each once
    client.close()


def test_a_message_without_a_receipt_gets_none_behind_the_fence(
    cluster: LocalCluster,
) -> None:
    key = partition_of(cluster, "hurried")

    async def work() -> int:
        address = await cluster.actor_system.reach(key)
        client = await RawClient.connect(address.host, address.service_port)
        topic = str(key.topic_name)
        client.send(pb.CommandProducer(topic=topic, producer_id=1, request_id=1))
        name = (await client.next(pb.CommandProducerSuccess)).producer_name
        numbers = itertools.count()

        def publish() -> None:
            number = next(numbers)
            metadata = pb.MessageMetadata(producer_name=name, sequence_id=number, publish_time=1)
            client.write_entry(Send(1, number), build_entry(metadata, b"x"))

        for _ in range(100):
            publish()
        fencing = asyncio.ensure_future(
            call_by_name(cluster.actor_system, key, "fence", {"migration": 1})
        )
        while pb.CommandCloseProducer not in map(type, client.history):
            publish()
            await asyncio.sleep(0)
        for _ in range(100):
            publish()
        await fencing
        client.send(pb.CommandProducer(topic=topic, producer_id=2, request_id=2))
        await client.next(pb.CommandError)
        kinds = list(map(type, client.history))
        assert pb.CommandSendReceipt not in kinds[kinds.index(pb.CommandCloseProducer) :]
        assert pb.CommandSendError not in kinds  # clients would lose their connection by it
        return kinds.count(pb.CommandSendReceipt)

    receipts = cluster.run(work())
    assert receipts >= 100
    assert ask(cluster, key, "stats")["end_offset"] == receipts
