"""Poisoned values: commands and REST bodies beyond the limits are refused, and change nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.official.raw import RawClient
from tests.support.local_cluster import LocalCluster
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.commands import entry_header
from velaray.wire.messages import build_entry

TOPIC = "persistent://public/default/poisoned"
LONG = "n" * 5_000_000
MANY = [pb.KeyValue(key=str(number), value="v") for number in range(100_000)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    path: Path = tmp_path_factory.mktemp("data")
    with LocalCluster(path, hosts=1) as running:
        yield running


def run(cluster: LocalCluster, scenario: Callable[[RawClient], Awaitable[Any]]) -> Any:
    """Run a scenario with a client that is connected to the host of `TOPIC`."""

    async def connected() -> Any:
        proxy = await RawClient.connect("127.0.0.1", cluster.proxy.port)
        proxy.send(pb.CommandLookupTopic(topic=TOPIC, request_id=1))
        found = await proxy.next(pb.CommandLookupTopicResponse)
        proxy.close()
        port = int(found.brokerServiceUrl.rpartition(":")[2])
        client = await RawClient.connect("127.0.0.1", port)
        try:
            return await scenario(client)
        finally:
            client.close()

    return asyncio.run(connected())


def subscribe(**fields: Any) -> pb.CommandSubscribe:
    given = {"topic": TOPIC, "subscription": "s", "consumer_id": 1, "request_id": 7, **fields}
    return pb.CommandSubscribe(subType=pb.CommandSubscribe.Shared, **given)


def producer(**fields: Any) -> pb.CommandProducer:
    return pb.CommandProducer(**{"topic": TOPIC, "producer_id": 1, "request_id": 7, **fields})


POISONED = {
    "the name of a consumer": subscribe(consumer_name=LONG[:4_000_000]),
    "the metadata of a consumer": subscribe(metadata=MANY),
    "the properties of a subscription": subscribe(subscription_properties=MANY),
    "a subscription": subscribe(subscription=LONG[:4_000_000]),
    "the name of a producer": producer(producer_name=LONG[:4_000_000]),
    "the metadata of a producer": producer(metadata=MANY),
    "the epoch of a producer": producer(epoch=2**64 - 1),
    "the topic epoch": producer(topic_epoch=2**64 - 1),
    "the initial subscription": producer(initial_subscription_name=LONG[:4_000_000]),
    "a topic": producer(topic=LONG[:4_000_000]),
}


@pytest.mark.parametrize("what", POISONED)
def test_long_names_and_many_properties_are_refused(cluster: LocalCluster, what: str) -> None:
    async def scenario(client: RawClient) -> None:
        client.send(POISONED[what])
        refusal = await client.next(pb.CommandError)
        assert refusal.request_id == 7
        wanted = pb.InvalidTopicName if what == "a topic" else pb.NotAllowedError
        assert refusal.error == wanted
        assert "is refused" in refusal.message
        assert len(refusal.message) < 300
        await client.subscribe(TOPIC, 2, subscription=f"after {what}")

    run(cluster, scenario)


async def _send(client: RawClient, command: pb.CommandSend) -> Any:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
    entry = build_entry(metadata, b"x")
    client._connection.write(entry_header(command, len(entry)))
    client._connection.write(entry)


def test_a_poisoned_sequence_id_leaves_the_producers_name_usable(cluster: LocalCluster) -> None:
    async def scenario(client: RawClient) -> None:
        client.send(producer(producer_name="p"))
        await client.next(pb.CommandProducerSuccess)
        await _send(client, pb.CommandSend(producer_id=1, sequence_id=2**64 - 1))
        refused = await client.next(pb.CommandSendError)
        assert refused.error == pb.NotAllowedError
        poison = pb.CommandSend(producer_id=1, sequence_id=1, num_messages=2**31 - 1)
        await _send(client, poison)
        await client.next(pb.CommandSendError)
        await _send(client, pb.CommandSend(producer_id=1, sequence_id=1))
        receipt = await client.next(pb.CommandSendReceipt)
        assert receipt.message_id.entryId < 2**63

    run(cluster, scenario)


@pytest.mark.parametrize(
    "command",
    [
        pb.CommandFlow(consumer_id=1, messagePermits=2**32 - 1),
        pb.CommandAck(consumer_id=1, ack_type=pb.CommandAck.Cumulative),
    ],
)
def test_a_command_without_an_answer_closes_the_connection(
    cluster: LocalCluster, command: Any
) -> None:
    async def scenario(client: RawClient) -> None:
        await client.subscribe(TOPIC, 1, subscription=f"closed by {type(command).__name__}")
        client.send(command)
        async with asyncio.timeout(20):
            await client.closed.wait()

    run(cluster, scenario)


def test_an_acknowledgement_with_a_receipt_is_answered(cluster: LocalCluster) -> None:
    async def scenario(client: RawClient) -> None:
        await client.subscribe(TOPIC, 1, subscription="answered")
        client.send(pb.CommandAck(consumer_id=1, ack_type=pb.CommandAck.Cumulative, request_id=3))
        answer = await client.next(pb.CommandAckResponse)
        assert (answer.request_id, answer.error) == (3, pb.NotAllowedError)

    run(cluster, scenario)
