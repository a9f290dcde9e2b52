"""The policy `encryptionRequired`: producers that don't encrypt, and their entries, are refused."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import pulsar
import pytest

import velaray
from tests.official.raw import RawClient
from tests.official.support import (
    PATIENCE_MS,
    LocalServer,
    eventually,
    numbered,
    partition_key,
    publish,
)
from tests.official.test_wire_behaviour import Connect, run
from tests.support.encryption import written_keys
from tests.topology.test_admin_api import V2, Http
from velaray.broker.partition.session.connected_clients import ConnectedClients
from velaray.client.exceptions import BrokerMetadataError
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.commands import Send
from velaray.wire.messages import build_entry

POLICY = "encryptionRequired"
_numbers = itertools.count(1)


class Place(NamedTuple):
    """A namespace of one test, and a topic in it."""

    http: Http
    namespace: str
    topic: str

    def require(self, required: bool = True) -> None:
        path = f"{V2}/namespaces/{self.namespace}/{POLICY}"
        assert self.http("POST", path, required).status == 204


@pytest.fixture
def place(local: LocalServer) -> Place:
    http, namespace = Http(local.cluster.admin_url), f"public/encrypted-{next(_numbers)}"
    assert http("PUT", f"{V2}/namespaces/{namespace}").status == 204
    return Place(http, namespace, f"persistent://{namespace}/t")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    return written_keys(tmp_path_factory.mktemp("keys"), "app")


@pytest.fixture
def ours(local: LocalServer) -> Iterator[velaray.Client]:
    with velaray.Client(local.service_url) as made:
        yield made


def clients_of(local: LocalServer, topic: str) -> ConnectedClients:
    actor: Any = local.cluster.actor_system.actors[partition_key(local, topic)]
    clients: ConnectedClients = actor.clients
    return clients


def test_a_producer_must_encrypt(ours, place, keys):
    place.require()
    refused = f"Encryption is required in {place.topic}.*policy {POLICY}"
    with pytest.raises(velaray.NotAllowedError, match=refused):
        ours.create_producer(place.topic)
    reader = velaray.CryptoKeyReader(*keys)
    consumer = ours.subscribe(place.topic, "s", crypto_key_reader=reader)
    for batching in (True, False):
        producer = ours.create_producer(
            place.topic, encryption_key="app", crypto_key_reader=reader, batching_enabled=batching
        )
        for payload in numbered(20):
            producer.send_async(payload, lambda *_: None)
        producer.flush()
        assert [consumer.receive(PATIENCE_MS).data() for _ in range(20)] == numbered(20)
    place.require(False)
    eventually(lambda: _connects(ours, place.topic))


def _connects(client: velaray.Client, topic: str) -> bool:
    try:
        client.create_producer(topic).close()
    except velaray.NotAllowedError:
        return False
    return True


def test_an_entry_that_could_not_be_encrypted_is_refused(ours, place, keys, tmp_path):
    place.require()
    producer = ours.create_producer(
        place.topic,
        encryption_key="app",
        crypto_key_reader=velaray.CryptoKeyReader(str(tmp_path / "absent"), keys[1]),
        crypto_failure_action=velaray.ProducerCryptoFailureAction.SEND,
    )
    with pytest.raises(BrokerMetadataError, match=f"Messages must be encrypted.*{POLICY}"):
        producer.send(b"in plain")
    with (
        pytest.raises(BrokerMetadataError, match="Messages must be encrypted"),
        ours.transaction() as txn,
    ):
        producer.send(b"in plain, too", txn=txn)


def test_the_official_client_must_encrypt(local, connect, place, keys):
    place.require()
    client = connect(local.service_url, operation_timeout_seconds=2)
    with pytest.raises(pulsar.PulsarException):
        client.create_producer(place.topic)
    reader = pulsar.CryptoKeyReader(*keys)
    consumer = client.subscribe(place.topic, "s", crypto_key_reader=reader)
    producer = client.create_producer(place.topic, encryption_key="app", crypto_key_reader=reader)
    publish(producer, numbered(50))
    assert [consumer.receive(PATIENCE_MS).data() for _ in range(50)] == numbered(50)


def test_connected_producers_that_do_not_encrypt_are_closed(local, ours, place, keys):
    reader = velaray.CryptoKeyReader(*keys)
    plain = ours.create_producer(place.topic, send_timeout_millis=PATIENCE_MS)
    encrypted = ours.create_producer(place.topic, encryption_key="app", crypto_key_reader=reader)
    plain.send(b"before")
    place.require()
    eventually(lambda: len(clients_of(local, place.topic).producers()) == 1)
    with pytest.raises(velaray.NotAllowedError, match=POLICY):
        plain.send(b"after")
    encrypted.send(b"goes on")
    consumer = ours.subscribe(
        place.topic,
        "s",
        initial_position=velaray.InitialPosition.Earliest,
        crypto_key_reader=reader,
    )
    received = [consumer.receive(PATIENCE_MS).data() for _ in range(2)]
    assert received == [b"before", b"goes on"]


def _entry(name: str, sequence_id: int, *key_names: str) -> bytes:
    metadata = pb.MessageMetadata(producer_name=name, sequence_id=sequence_id, publish_time=1)
    for key in key_names:
        metadata.encryption_keys.add(key=key, value=b"v")
    return build_entry(metadata, b"payload")


async def _producer(client: RawClient, topic: str, **fields: Any) -> pb.CommandProducerSuccess:
    client.send(pb.CommandProducer(topic=topic, producer_id=1, request_id=7, **fields))
    success: pb.CommandProducerSuccess = await client.next(pb.CommandProducerSuccess)
    return success


def test_the_codes_are_pulsars(local, place):
    place.require()

    async def scenario(connect: Connect) -> None:
        client = await connect()
        client.send(pb.CommandProducer(topic=place.topic, producer_id=1, request_id=6))
        refused = await client.next(pb.CommandError)
        assert (refused.request_id, refused.error) == (6, pb.MetadataError)
        assert refused.message.startswith(f"Encryption is required in {place.topic} ")
        assert POLICY in refused.message
        name = (await _producer(client, place.topic, encrypted=True)).producer_name
        client.write_entry(Send(1, 0), _entry(name, 0, "k"))
        client.write_entry(Send(1, 1), _entry(name, 1))
        client.write_entry(Send(1, 2), _entry(name, 2, "k"))
        assert (await client.next(pb.CommandSendReceipt)).sequence_id == 0
        error = await client.next(pb.CommandSendError)
        assert (error.sequence_id, error.error) == (1, pb.MetadataError)
        assert error.message.startswith("Messages must be encrypted") and POLICY in error.message
        assert (await client.next(pb.CommandSendReceipt)).sequence_id == 2

    run(local, place.topic, scenario)


def test_a_producer_that_encrypts_gets_the_exclusivity_of_a_closed_one(local, place):
    async def scenario(connect: Connect) -> None:
        client = await connect()

        def producer(number: int, mode: Any, **fields: Any) -> pb.CommandProducer:
            return pb.CommandProducer(
                topic=place.topic,
                producer_id=number,
                request_id=number,
                producer_access_mode=mode,
                **fields,
            )

        client.send(producer(1, pb.Exclusive))
        assert (await client.next(pb.CommandProducerSuccess)).producer_ready
        for number, encrypted in ((2, False), (3, True)):
            client.send(producer(number, pb.WaitForExclusive, encrypted=encrypted))
            assert not (await client.next(pb.CommandProducerSuccess)).producer_ready
        await asyncio.to_thread(place.require)
        refused = await client.next(pb.CommandError)
        assert (refused.request_id, refused.error) == (2, pb.ServiceNotReady)
        assert (await client.next(pb.CommandCloseProducer)).producer_id == 1
        ready = await client.next(pb.CommandProducerSuccess)
        assert (ready.request_id, ready.producer_ready) == (3, True)

    run(local, place.topic, scenario)


def test_the_policy_is_in_pulsars_forms(place):
    path = f"{V2}/namespaces/{place.namespace}"
    assert place.http("GET", f"{path}/{POLICY}").body is False
    assert place.http("GET", path).body == {}
    place.require()
    assert place.http("GET", f"{path}/{POLICY}").body is True
    assert place.http("GET", path).body == {"encryption_required": True}
    assert place.http("DELETE", f"{path}/{POLICY}").status == 204
    assert place.http("GET", f"{path}/{POLICY}").body is False
    refused = place.http("POST", f"{path}/{POLICY}", 17)
    assert (refused.status, POLICY in refused.body["reason"]) == (422, True)
    made = f"{path}-made"
    assert place.http("PUT", made, {"encryption_required": True}).status == 204
    assert place.http("GET", f"{made}/{POLICY}").body is True
    on_topic = f"{V2}/persistent/{place.namespace}/t"
    assert place.http("PUT", on_topic).status == 204
    assert place.http("PUT", f"{on_topic}/policies/{POLICY}", True).status == 422
