"""Producers and consumers with schemas, as they speak on the wire."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable
from typing import Any

from tests.official.raw import RawClient
from tests.support.by_name import call_by_name
from tests.support.local_cluster import LocalCluster
from velaray.events.ids import ActorKey, TopicName
from velaray.schemas import SchemaInfo, SchemaType
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.commands import Send
from velaray.wire.messages import build_entry
from velaray.wire.schemas import read_version, to_proto, version_bytes

TEXT = SchemaInfo(SchemaType.STRING, "s")
AUTO = SchemaInfo(SchemaType.AUTO_CONSUME)


def avro(*fields: str, type_: SchemaType = SchemaType.AVRO) -> SchemaInfo:
    """A record; a field whose name ends in ``?`` has a default."""
    named = [
        {"name": field.rstrip("?"), "type": "int"} | ({"default": 1} if "?" in field else {})
        for field in fields
    ]
    data = json.dumps({"type": "record", "name": "R", "fields": named})
    return SchemaInfo(type_, "R", data.encode())


ONE, TWO, THREE = avro("f1"), avro("f1", "f2?"), avro("f1", "f2")


class Refused(Exception):
    """The server's answer was an error: its code and text."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{pb.ServerError.Name(code)}: {text}")
        self.code = code


class Peer:
    """One connection to a partition."""

    def __init__(self, raw: RawClient, topic: str) -> None:
        self.raw = raw
        self.topic = topic
        self._numbers = itertools.count(1)

    async def _answer(self, request_id: int) -> Any:
        async with asyncio.timeout(30):
            while True:
                for index, (command, _) in enumerate(self.raw.received):
                    if getattr(command, "request_id", None) == request_id:
                        del self.raw.received[index]
                        if isinstance(command, pb.CommandError):
                            raise Refused(command.error, command.message)
                        return command
                assert not self.raw.closed.is_set()
                self.raw._news.clear()
                await self.raw._news.wait()

    async def ask(self, command: Any) -> Any:
        """Send a command with a request id; the answer to it. Raises `Refused`."""
        command.request_id = next(self._numbers)
        self.raw.send(command)
        return await self._answer(command.request_id)

    async def produce(self, schema: SchemaInfo | None, *payloads: bytes) -> int | None:
        """Connect a producer, send under its schema; the version that it was given."""
        number = next(self._numbers)
        command = pb.CommandProducer(topic=self.topic, producer_id=number)
        if schema is not None:
            command.schema.CopyFrom(to_proto(schema))
        success = await self.ask(command)
        for sequence_id, payload in enumerate(payloads):
            metadata = pb.MessageMetadata(
                producer_name=success.producer_name,
                sequence_id=sequence_id,
                publish_time=1,
                schema_version=success.schema_version,
            )
            self.raw.write_entry(Send(number, sequence_id), build_entry(metadata, payload))
            await self.raw.next(pb.CommandSendReceipt)
        return read_version(success.schema_version)

    async def leave(self) -> None:
        """Close the connection, and with it all producers and consumers."""
        self.raw.close()
        await self.raw.closed.wait()

    async def consume(self, schema: SchemaInfo | None, subscription: str = "s") -> int:
        """Connect a consumer; its number."""
        number = next(self._numbers)
        command = pb.CommandSubscribe(
            topic=self.topic,
            subscription=subscription,
            subType=pb.CommandSubscribe.Shared,
            consumer_id=number,
            initialPosition=pb.CommandSubscribe.Earliest,
        )
        if schema is not None:
            command.schema.CopyFrom(to_proto(schema))
        await self.ask(command)
        return number

    async def get(self, version: int | None = None) -> Any:
        """The answer to GET_SCHEMA."""
        command = pb.CommandGetSchema(topic=self.topic)
        if version is not None:
            command.schema_version = version_bytes(version)
        return await self.ask(command)

    async def get_or_create(self, schema: SchemaInfo) -> Any:
        """The answer to GET_OR_CREATE_SCHEMA."""
        return await self.ask(
            pb.CommandGetOrCreateSchema(topic=self.topic, schema=to_proto(schema))
        )


class World:
    """A topic of a cluster, and connections to it."""

    def __init__(self, cluster: LocalCluster, topic: str) -> None:
        self.cluster = cluster
        self.topic = str(TopicName.parse(topic))
        self.peers: list[Peer] = []

    async def call(self, key: ActorKey, method: str, args: dict[str, Any] | None = None) -> Any:
        """Call an actor."""
        work = call_by_name(self.cluster.actor_system, key, method, args)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self.cluster.loop))

    async def partition(self, number: int = -1) -> ActorKey:
        """The partition's key."""
        name = TopicName.parse(self.topic).of_partition(number)
        found = await self.call(ActorKey.catalog(), "ensure_topic", {"topic": str(name)})
        return ActorKey.of_partition(name, found["incarnation"])

    async def registry(self) -> ActorKey:
        """The registry's key."""
        key = await self.partition()
        return ActorKey.of_schema_registry(key.topic_name, key.topic_incarnation)

    async def connect(self, number: int = -1) -> Peer:
        """A connection to a partition."""
        key = await self.partition(number)
        work = self.cluster.actor_system.reach(key)
        found = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self.cluster.loop))
        raw = await RawClient.connect(found.host, found.service_port)
        self.peers.append(Peer(raw, str(key.topic_name)))
        return self.peers[-1]

    async def at_the_proxy(self) -> Peer:
        """A connection to the proxy."""
        raw = await RawClient.connect("127.0.0.1", self.cluster.proxy.port)
        self.peers.append(Peer(raw, self.topic))
        return self.peers[-1]

    async def set_policy(self, name: str, value: Any, **scope: str) -> None:
        """Set a policy, and wait until the partition applies it."""
        scope = scope or {"topic": self.topic}
        text = json.dumps(value).encode()
        await self.call(ActorKey.catalog(), "set_policy", {"name": name, "value": text, **scope})
        actor = self.cluster.actor_system.actors.get(await self.partition())
        async with asyncio.timeout(30):
            while actor is not None and actor.policies.raw[name] != value:
                await asyncio.sleep(0.01)


def run(cluster: LocalCluster, topic: str, scenario: Callable[[World], Awaitable[None]]) -> None:
    """Run ``scenario`` on a topic of ``cluster``."""

    async def main() -> None:
        world = World(cluster, topic)
        async with asyncio.timeout(120):
            await scenario(world)
        for peer in world.peers:
            peer.raw.close()

    asyncio.run(main())
