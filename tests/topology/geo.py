"""Clusters in memory, in one event loop, and a replicator written by hand between two of them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

from tests.support.by_name import call_by_name
from tests.support.local_cluster import REPLICATION_SECRET
from velaray.actors.partition.machine import Publish
from velaray.actors.subscription.cursor import mask_to_words
from velaray.broker.client_session import ClientSession
from velaray.broker.partition.partition_actor import PartitionActor
from velaray.events.ids import ActorKey, Position, TopicName
from velaray.events.ids_pb2 import MessageIdData
from velaray.geo.actor_kinds import make_actor
from velaray.journal.memory import MemoryDisk, MemoryStore
from velaray.topology.auth import replicator_proof
from velaray.topology.config import ClusterConfig
from velaray.topology.in_process import InProcessActorSystem
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.commands import Send, decode_command
from velaray.wire.messages import build_entry, open_entry
from velaray.wire.plausible import SMALLEST_MESSAGE
from velaray.wire.replication import (
    DATA_ID,
    PROOF,
    REPLICATED_SUBSCRIPTION,
    SOURCE_POSITION,
    Marker,
    replicator_name,
)
from velaray.wire.replication_pb2 import EntryRange, OriginProgress, SubscriptionProgress

TOPIC = TopicName.parse("persistent://public/default/t")
LIMIT_S = 30.0
_EPOCHS = itertools.count(1)
"""A later life of a replicator takes the place of an earlier one."""
_LAST = itertools.count()


class Client:
    """Stands for a `WireConnection` whose client sends commands; keeps what it is sent."""

    peer = "client:1"
    writable = True
    closed = False
    bytes_written = 0

    def __init__(self, partition: PartitionActor) -> None:
        self.sent: list[Any] = []
        self.entries: list[tuple[Any, bytes]] = []
        self.session = ClientSession(partition.listener)
        self.session.on_connected(self)  # type: ignore[arg-type]
        self.session._connected = True

    def send(self, message: Any) -> None:
        self.sent.append(message)

    def write(self, frames: bytes) -> None:
        """Keep one frame, or a run of deliveries."""
        at = 0
        while at < len(frames):
            size, command_size = (int.from_bytes(frames[i : i + 4], "big") for i in (at, at + 4))
            end = at + 8 + command_size
            command = decode_command(bytes(frames[at + 8 : end]))
            at += 4 + size
            if end < at:
                self.entries.append((command, bytes(frames[end:at])))
            else:
                self.sent.append(command)

    def write_two(self, head: bytes, entry: bytes) -> None:
        size = int.from_bytes(head[4:8], "big")
        self.entries.append((decode_command(bytes(head[8 : 8 + size])), bytes(entry)))

    def pause_reading(self, reason: object = None) -> None:
        """Nothing more is said meanwhile anyhow."""

    resume_reading = pause_reading

    def establish(self) -> None: ...

    def close(self, error: Exception | None = None) -> None:
        self.closed = True

    abort = close

    def leave(self) -> None:
        """As a client whose connection breaks."""
        self.session.on_closed(self, None)  # type: ignore[arg-type]

    def say(self, command: Any, entry: bytes | None = None) -> None:
        self.session.on_frame(self, command, entry)  # type: ignore[arg-type]

    async def answer(self, *kinds: type) -> Any:
        """The next message of one of these kinds; what came before it is forgotten."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                while self.sent:
                    message = self.sent.pop(0)
                    if isinstance(message, kinds):
                        return message
                await asyncio.sleep(0.001)


class Site:
    """A cluster with one partition of the topic; its actors can be killed at any moment."""

    def __init__(self, name: str, number: int, **settings: Any) -> None:
        self.name = name
        self.disk = MemoryDisk()
        config = ClusterConfig(
            "nowhere",
            1,
            b"key",
            name=name,
            cluster_number=number,
            replication_secret=REPLICATION_SECRET,
            **{"deleters": 0} | settings,
        )
        store = MemoryStore(self.disk, number_base=config.number_base)
        self.actor_system = InProcessActorSystem(config, store, make_actor)
        self.key: ActorKey

    async def start(self) -> None:
        names = {"cluster": self.name, "service_url": "pulsar://h:1", "admin_url": "http://h:2"}
        await call_by_name(self.actor_system, ActorKey.catalog(), "bootstrap", names)
        found = await call_by_name(
            self.actor_system, ActorKey.catalog(), "ensure_topic", {"topic": str(TOPIC)}
        )
        self.key = ActorKey.of_partition(TOPIC, found["incarnation"])
        await self.partition()

    async def partition(self) -> PartitionActor:
        """The body that serves the topic now."""
        await self.actor_system.address(self.key)
        actor = self.actor_system.actors[self.key]
        assert isinstance(actor, PartitionActor)
        return actor

    async def client(self) -> Client:
        return Client(await self.partition())

    async def call(self, method: str, **args: Any) -> Any:
        return await call_by_name(self.actor_system, self.key, method, args)

    async def publish(self, number: int, messages: int = 1, producer: str = "p") -> Position:
        """Store an entry that says who sent it; the same number is a duplicate."""
        metadata = pb.MessageMetadata(producer_name=producer, sequence_id=number, publish_time=1)
        if messages > 1:
            metadata.num_messages_in_batch = messages
        payload = f"{self.name}-{producer}-{number}".ljust(messages * SMALLEST_MESSAGE)
        entry = build_entry(metadata, payload.encode())
        partition = await self.partition()
        command = Publish(producer, number, 0, messages, entry, True)
        return Position(*(await partition.publishing.append(command)).position)

    async def entries(self) -> list[bytes]:
        """All that the log holds."""
        partition = await self.partition()
        first = partition.runtime.state.first_offset
        found = [await partition.log.entry(at) for at in range(first, partition.log.end_offset)]
        return [bytes(entry.data) for entry in found]

    async def payloads(self) -> list[str]:
        return [payload_of(entry) for entry in await self.entries()]


def proved(source: str, target: str, data_id: str = "") -> list[pb.KeyValue]:
    """What a replicator's producer says of itself."""
    proof = replicator_proof(REPLICATION_SECRET, source, target, data_id)
    told = {DATA_ID: data_id, PROOF: proof} if data_id else {PROOF: proof}
    return [pb.KeyValue(key=key, value=value) for key, value in told.items()]


def payload_of(entry: bytes) -> str:
    return entry[open_entry(entry)[1] :].decode().rstrip()


def stamped(entry: bytes, source: str, position: Position | str | None) -> bytes:
    """The entry as a replicator sends it."""
    metadata, start = open_entry(entry)
    metadata.replicated_from = source
    if position is not None:
        at = position if isinstance(position, str) else ":".join(map(str, position))
        metadata.properties.add(key=SOURCE_POSITION, value=at)
    return build_entry(metadata, entry[start:])


class Replicator:
    """Sends from one site to another, as its replicator does; a new one takes its place."""

    def __init__(self, source: Site, target: Site) -> None:
        self.source, self.target = source, target
        self.client: Client
        self._number = 0

    async def connect(self) -> Replicator:
        self.client = await self.target.client()
        self.client.say(
            pb.CommandProducer(
                topic=str(TOPIC),
                producer_id=1,
                request_id=1,
                producer_name=replicator_name(self.source.name, self.target.name),
                epoch=next(_EPOCHS),
                metadata=proved(self.source.name, self.target.name),
            )
        )
        await self.client.answer(pb.CommandProducerSuccess)
        self._number = 0
        return self

    async def send(self, entry: bytes) -> Any:
        """Its receipt, or why it is refused."""
        number, self._number = self._number, self._number + 1
        self.client.say(Send(1, number), entry)
        answer = await self.client.answer(pb.CommandSendReceipt, pb.CommandSendError)
        assert answer.sequence_id == number
        return answer

    async def tell(self, progress: SubscriptionProgress) -> Any:
        """Send a part of a subscription's progress; its receipt, or why it is refused."""
        return await self.send(marker(Marker.PROGRESS, progress.SerializeToString()))

    async def replicate(self, first: int = 0, end: int | None = None) -> list[Any]:
        """Send what the source stored first of these offsets; their receipts."""
        partition, answers = await self.source.partition(), []
        for offset in range(first, partition.log.end_offset if end is None else end):
            entry = bytes((await partition.log.entry(offset)).data)
            if not open_entry(entry)[0].replicated_from:
                position = partition.log.position_of(offset)
                answers.append(await self.send(stamped(entry, self.source.name, position)))
        return answers


def run(scenario: Callable[[Site, Site], Awaitable[None]], **settings: Any) -> None:
    """With the clusters east (number 1) and west (number 2)."""

    async def main() -> None:
        east, west = Site("east", 1, **settings), Site("west", 2, **settings)
        await east.start()
        await west.start()
        try:
            await scenario(east, west)
        finally:
            await east.actor_system.stop()
            await west.actor_system.stop()

    asyncio.run(main())


class Consumer:
    """A consumer of a site's subscription."""

    def __init__(self, site: Site, name: str, kind: int) -> None:
        self.site, self.name, self.kind = site, name, kind
        self.client: Client

    async def connect(self, permits: int = 10_000) -> Consumer:
        self.client = await self.site.client()
        self.client.say(
            pb.CommandSubscribe(
                topic=str(TOPIC),
                subscription=self.name,
                subType=self.kind,
                consumer_id=1,
                request_id=1,
                initialPosition=pb.CommandSubscribe.Earliest,
            )
        )
        await self.client.answer(pb.CommandSuccess)
        self.client.say(pb.CommandFlow(consumer_id=1, messagePermits=permits))
        return self

    async def received(self, count: int) -> list[str]:
        """The payloads of all that came, once so many did."""
        await soon(lambda: len(self.client.entries) >= count)
        return [payload_of(entry) for _, entry in self.client.entries]

    async def all_of(self) -> list[str]:
        """The payloads of all there is to get: a message sent now comes behind it."""
        await self.site.publish(next(_LAST), producer="last")
        while True:
            found = await self.received(1)
            if "-last-" in found[-1]:
                return [payload for payload in found if "-last-" not in payload]
            await asyncio.sleep(0.001)

    async def acknowledge(self, payload: str, left: list[int] | None = None) -> None:
        """Durably; of a batch all but the messages whose bits are set in ``left``."""
        found = next(each for each in self.client.entries if payload_of(each[1]) == payload)
        at = found[0]
        data = MessageIdData(ledgerId=at.ledger_id, entryId=at.entry_id, ack_set=left or [])
        ack = pb.CommandAck(
            consumer_id=1, ack_type=pb.CommandAck.Individual, message_id=[data], request_id=9
        )
        self.client.say(ack)
        assert not (await self.client.answer(pb.CommandAckResponse)).HasField("error")


async def soon(condition: Callable[[], bool]) -> None:
    """Return when it holds."""
    async with asyncio.timeout(LIMIT_S):
        while not condition():
            await asyncio.sleep(0.001)


async def exported(site: Site, name: str) -> SubscriptionProgress:
    """All that a subscription has, as its site would tell another one; entry by entry."""
    partition = await site.partition()
    state = partition.runtime.state
    at = partition.key.of_subscription(name, state.subscriptions[name].ref.incarnation)
    await site.actor_system.address(at)
    found = site.actor_system.actors[at].runtime.state  # type: ignore[attr-defined]
    told = SubscriptionProgress(subscription=name)
    told.properties[REPLICATED_SUBSCRIPTION] = "true"
    origins: dict[str, OriginProgress] = {}
    for offset in range(state.first_offset, partition.log.end_offset):
        cluster, position = site.name, partition.log.position_of(offset)
        for origin, run in state.origins.came(offset, offset + 1):
            cluster, position = origin, Position(run.ledger_id, run.entry_id)
        progress = origins.setdefault(cluster, OriginProgress(cluster=cluster))
        ledger_id, entry_id = position
        where = EntryRange(ledger=ledger_id, first_entry=entry_id, last_entry=entry_id)
        left, times = found.cursor.ack_set(offset), found.deliveries.get(offset)
        if found.cursor.is_acked(offset):
            progress.acked.append(where)
            continue
        if left is not None:
            words = mask_to_words(left)
            progress.partial.add(ledger=ledger_id, entry=entry_id, remaining=words)
        if times:
            progress.delivered.add(entries=where, times=times)
    told.origins.extend(origins.values())
    return told


def marker(kind: int, payload: bytes) -> bytes:
    """What a replicator sends beside entries."""
    metadata = pb.MessageMetadata(producer_name="r", sequence_id=0, publish_time=1)
    metadata.marker_type = kind
    return build_entry(metadata, payload)
