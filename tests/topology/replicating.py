"""Clusters in this process that replicate to each other."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pulsar
import pytest

from tests.official.raw import RawClient
from tests.support.by_name import call_by_name
from tests.support.local_cluster import LocalCluster
from tests.support.waiting import wait_until
from velaray.actors.catalog.state import Scope
from velaray.broker.catalog.catalog_actor import CatalogActor
from velaray.broker.catalog.messages import Serving
from velaray.events.ids import ActorKey, ActorKind, TopicName
from velaray.wire.commands import Send
from velaray.wire.messages import build_entry
from velaray.wire.pulsar_pb2 import (
    CommandProducer,
    CommandProducerSuccess,
    CommandSendReceipt,
    MessageMetadata,
)
from velaray.wire.replication import REPLICATOR_PREFIX

QUIET = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
PATIENCE_MS = 60_000
_told: dict[tuple[str, str], dict[str, Any]] = {}


class Official:
    """Has the official client of a cluster."""

    client: pulsar.Client

    def publish(self, topic: str, payloads: Sequence[bytes], **options: Any) -> None:
        """Publish, and wait for the receipts."""
        producer = self.client.create_producer(topic, block_if_queue_full=True, **options)
        for payload in payloads:
            producer.send_async(payload, lambda result, at: None)
        producer.flush()
        producer.close()

    def subscribe(self, topic: str, name: str = "s", **options: Any) -> pulsar.Consumer:
        """A consumer from the beginning on."""
        earliest = {"initial_position": pulsar.InitialPosition.Earliest}
        return self.client.subscribe(topic, name, **{**earliest, **options})


class Cluster(Official):
    """One cluster, and the official client of it."""

    def __init__(self, local: LocalCluster) -> None:
        self.local = local
        self.name = local.config.name
        self.client = pulsar.Client(local.service_url, logger=QUIET)

    def meet(self, others: Sequence[Cluster]) -> None:
        """Know these clusters, and let tenant public use them."""
        catalog = ActorKey.catalog()
        for other in others:
            if other is not self:
                met = {"cluster": other.name, **other.local.urls}
                self.call(catalog, "register_cluster", met)
        allowed = {"tenant": "public", "allowed_clusters": [each.name for each in others]}
        self.call(catalog, "update_tenant", allowed)

    def set_replication(self, where: dict[str, str], clusters: Sequence[str]) -> None:
        """Say where a namespace or topic is replicated to."""
        self.set_policy(where, "replication", list(clusters))

    def set_policy(self, where: dict[str, str], name: str, value: Any) -> None:
        """Set a policy of a namespace or topic."""
        policy = {**where, "name": name, "value": json.dumps(value).encode()}
        self.call(ActorKey.catalog(), "set_policy", policy)

    def remove_policy(self, where: dict[str, str], name: str) -> None:
        """Remove the policy, so that the wider scope decides."""
        self.call(ActorKey.catalog(), "remove_policy", {**where, "name": name})

    def describe(self, **more: Any) -> dict[str, Any]:
        """What another cluster must know to replicate here."""
        rest = {"token": None, "progress": "", "all_subscriptions": False}
        return {**self.local.urls, **rest, **more}

    def call(self, key: ActorKey, method: str, args: dict[str, Any] | None = None) -> Any:
        """Call an actor."""
        return self.local.run(call_by_name(self.local.actor_system, key, method, args))

    def partition(self, topic: str) -> ActorKey:
        """The partition's key; the topic is made if need be."""
        name = TopicName.parse(topic)
        found = self.call(ActorKey.catalog(), "ensure_topic", {"topic": str(name)})
        return ActorKey.of_partition(name, found["incarnation"])

    def replicate(self, topic: str, to: Mapping[str, dict[str, Any]]) -> None:
        """The policy of ``topic`` names these clusters from now on."""
        name = TopicName.parse(topic)
        _told[self.name, str(name)] = dict(to)

        async def tell() -> None:
            actor = self.local.actor_system.actors[ActorKey.catalog()]
            assert isinstance(actor, CatalogActor)
            for partition in [name, *(name.of_partition(number) for number in range(8))]:
                actor._watchers.tell(Scope.of_topic(partition))

        self.local.run(tell())

    def replicator(self, topic: str, remote: str) -> Any:
        """The body of a replicator, if it runs."""
        name = str(TopicName.parse(topic))
        for key in self.local.keys(ActorKind.SUBSCRIPTION):
            if (str(key.topic_name), key.subscription) == (name, REPLICATOR_PREFIX + remote):
                return self.local.actor_system.actors[key]
        return None

    def status(self, topic: str, remote: str) -> dict[str, Any]:
        """What the replicator says of itself; empty if it doesn't run."""
        actor = self.replicator(topic, remote)
        replicator = None if actor is None else actor.control.replicator
        return {} if replicator is None else replicator.status()

    def publish_raw(self, topic: str, payload: bytes, **fields: Any) -> None:
        """Publish one entry whose metadata has these fields."""
        metadata = MessageMetadata(
            **{"producer_name": "raw", "sequence_id": 0, "publish_time": 1, **fields}
        )
        self.publish_entry(topic, build_entry(metadata, payload))

    def publish_entry(self, topic: str, entry: bytes) -> None:
        """Publish what may be no entry at all."""
        key = self.partition(topic)

        async def publish() -> None:
            address = await self.local.actor_system.reach(key)
            raw = await RawClient.connect(address.host, address.service_port)
            name = str(key.topic_name)
            raw.send(CommandProducer(topic=name, producer_id=1, request_id=1))
            await raw.next(CommandProducerSuccess)
            raw.write_entry(Send(1, 0), entry)
            await raw.next(CommandSendReceipt)
            raw.close()

        self.local.run(publish())


def metadata_at(cluster: Cluster, topic: str, number: int) -> MessageMetadata:
    """Of the entry of this number, from 1."""
    key = cluster.partition(topic)
    cluster.call(key, "create_subscription", {"name": "look", "position": "earliest"})
    peeked = cluster.call(key, "peek", {"name": "look", "number": number})
    return MessageMetadata.FromString(peeked["metadata"])


def received(consumer: pulsar.Consumer, count: int) -> list[bytes]:
    """The payloads of the next messages, acknowledged."""
    found = []
    for _ in range(count):
        message = consumer.receive(PATIENCE_MS)
        consumer.acknowledge(message)
        found.append(message.data())
    return found


def nothing_more(consumer: pulsar.Consumer, within_ms: int = 300) -> None:
    """Fail if a message comes."""
    with pytest.raises(pulsar.Timeout):
        consumer.receive(within_ms)


def replicating(cluster: Cluster, topic: str, remote: str) -> None:
    """Wait until the replicator is connected."""
    wait_until(lambda: cluster.status(topic, remote).get("state") == "replicating", 20)


@contextmanager
def clusters(path: Path, *names: str, first: int = 1, **settings: Any) -> Iterator[list[Cluster]]:
    """Clusters of these names, numbered from ``first`` on, which know each other, and which tenant
    public may use. One alone stays as it is.

    What `Cluster.replicate` says counts instead of policies.
    """
    query = CatalogActor._query

    async def telling(self: CatalogActor, request: Any, within_s: float = 0.0) -> Any:
        answer = await query(self, request, within_s)
        if isinstance(request, Serving):
            name = str(TopicName.parse(request.topic))
            whole = str(TopicName.parse(request.topic).topic)
            for told in ((self.config.name, name), (self.config.name, whole)):
                if told in _told:
                    return {**answer, "replication": _told[told]}
        return answer

    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.setattr(CatalogActor, "_query", telling)
        _told.clear()
        found = []
        for number, name in enumerate(names, first):
            local = LocalCluster(path / name, name=name, cluster_number=number, **settings)
            found.append(Cluster(stack.enter_context(local)))
            stack.callback(found[-1].client.close)
        for each in found if len(found) > 1 else ():
            each.meet(found)
        yield found


def soon(condition: Any) -> Any:
    """`wait_until`, with patience."""
    return wait_until(condition, 20)
