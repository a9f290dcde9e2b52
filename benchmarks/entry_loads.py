"""Loads whose cost per entry is measured, each in one process with a whole cluster.

The client writes bytes that are encoded beforehand, and looks at what comes back with one search
per read. So nearly all that the process does is the server's work. `benchmarks.entry_costs`
measures them.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.dispatch import FakePartition
from velaray.actors.dispatch.consumers import SubscriptionType
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.batches import pack_plain
from velaray.wire.commands import Message, command, send_header
from velaray.wire.frames import FrameParser
from velaray.wire.messages import build_entry

SIZE = 100
CONSUMERS = 10
SUBSCRIPTIONS = 5
TOPICS = 16
BATCH = 64
"""Messages of an entry of 16 topics: what the official client gathers in 10 ms."""
PERMITS = 1000
WARM_UP = 500
PATIENCE_S = 600.0
_MARK = b"the end of a message"
_PIPE = 1 << 18

Measuring = Callable[[], AbstractContextManager[Any]]


class RawConnection(asyncio.Protocol):
    """A connection that parses commands until `count` is called, and then counts a text."""

    def __init__(self) -> None:
        self.news = asyncio.Event()
        self.counted = 0
        self._frames: list[Any] = []
        self._parser = FrameParser()
        self._wanted: bytes | None = None
        self._rest = b""
        self._writable = asyncio.Event()
        self._writable.set()
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(_PIPE)

    def data_received(self, data: bytes) -> None:
        """Parse commands, or count the text."""
        if self._wanted is None:
            self._parser.feed(data)
            while (frame := self._parser.next_frame()) is not None:
                self._frames.append(frame.command)
        else:
            data = self._rest + data
            self.counted += data.count(self._wanted)
            self._rest = data[1 - len(self._wanted) :]
        self.news.set()

    def pause_writing(self) -> None:
        """The peer is slow."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """The peer has read."""
        self._writable.set()

    def count(self, text: bytes) -> None:
        """Count this text in all that comes from now on."""
        self._wanted, self.counted, self._rest = text, 0, b""

    def parse(self) -> None:
        """Parse commands again."""
        self._wanted, self._parser = None, FrameParser()

    async def write(self, data: bytes) -> None:
        """Write, and wait while too much is unsent."""
        self._transport.write(data)
        await self._writable.wait()

    async def ask(self, request: Any, kind: type) -> Any:
        """Send a command, and wait for the next one of ``kind``."""
        self._transport.write(command(request))
        return await self.next(kind)

    async def next(self, kind: type) -> Any:
        """Wait for the next command of ``kind``; earlier ones are dropped."""
        while True:
            while self._frames:
                if type(found := self._frames.pop(0)) is kind:
                    return found
            await self._come()

    async def counted_to(self, count: int) -> None:
        """Wait until the text came ``count`` times."""
        while self.counted < count:
            await self._come()

    async def _come(self) -> None:
        self.news.clear()
        async with asyncio.timeout(PATIENCE_S):
            await self.news.wait()

    def close(self) -> None:
        """Close the connection."""
        self._transport.close()


async def connect_raw(url: str, topic: str, token: str = "") -> RawConnection:
    """A connection to the partition of the topic; with a token if it isn't empty."""
    connect = pb.CommandConnect(client_version="raw", protocol_version=20)
    if token:
        connect.auth_method_name, connect.auth_data = "token", token.encode()
    loop = asyncio.get_running_loop()
    at = urlsplit(url)
    _, proxy = await loop.create_connection(RawConnection, at.hostname, at.port)
    await proxy.ask(connect, pb.CommandConnected)
    lookup = pb.CommandLookupTopic(topic=topic, request_id=1)
    found = await proxy.ask(lookup, pb.CommandLookupTopicResponse)
    proxy.close()
    at = urlsplit(found.brokerServiceUrl)
    _, connection = await loop.create_connection(RawConnection, at.hostname, at.port)
    await connection.ask(connect, pb.CommandConnected)
    return connection


class Publisher:
    """A producer whose entries are encoded before they are sent."""

    def __init__(self, connection: RawConnection, number: int, name: str, batch: int) -> None:
        self._connection, self._name, self._batch = connection, name, batch
        self._number = number
        self._next = 1 << 14  # so all sequence ids take three bytes

    @classmethod
    async def open(
        cls, connection: RawConnection, topic: str, batch: int = 1, number: int = 1
    ) -> Publisher:
        """``batch`` is the number of messages of an entry; 1: entries aren't batches. ``number`` is
        the producer's on its connection."""
        request = pb.CommandProducer(topic=topic, producer_id=number, request_id=number)
        found = await connection.ask(request, pb.CommandProducerSuccess)
        return cls(connection, number, found.producer_name, batch)

    def encode(self, entries: int) -> tuple[list[bytes], bytes]:
        """SENDs of this many entries, and the text of the last one's receipt."""
        value = b"x" * (SIZE - len(_MARK)) + _MARK
        frames, batch = [], self._batch
        payload = value if batch == 1 else pack_plain([value] * batch)
        for sequence in range(self._next, self._next + entries):
            fields: dict[str, Any] = {} if batch == 1 else {"num_messages_in_batch": batch}
            metadata = pb.MessageMetadata(
                producer_name=self._name, sequence_id=sequence, publish_time=1, **fields
            )
            entry = build_entry(metadata, payload)
            frames.append(send_header(self._number, sequence, batch, len(entry)) + entry)
        self._next += entries
        receipt = pb.CommandSendReceipt(producer_id=self._number, sequence_id=self._next - 1)
        return frames, receipt.SerializeToString()[2:6]

    async def publish(self, encoded: tuple[list[bytes], bytes]) -> None:
        """Send, and wait for the receipt of the last entry."""
        await publish_in_turn(self._connection, [encoded])


async def publish_in_turn(
    connection: RawConnection, encoded: list[tuple[list[bytes], bytes]]
) -> None:
    """Send what producers of this connection have encoded, an entry of each in turn. Returns when
    the receipt of each one's last entry has come; they have as many entries."""
    frames = [frame for each in zip(*(some for some, _ in encoded), strict=True) for frame in each]
    (last,) = {last for _, last in encoded}
    connection.count(last)
    for at in range(0, len(frames), PERMITS):
        await connection.write(b"".join(frames[at : at + PERMITS]))
    await connection.counted_to(len(encoded))


class Drainer:
    """An Exclusive consumer that acknowledges each message by its id, many in a command."""

    def __init__(self, connection: RawConnection) -> None:
        self._connection = connection

    @classmethod
    async def open(cls, url: str, topic: str, subscription: str) -> Drainer:
        """Subscribe from the beginning."""
        connection = await connect_raw(url, topic)
        request = pb.CommandSubscribe(
            topic=topic,
            subscription=subscription,
            subType=pb.CommandSubscribe.Exclusive,
            consumer_id=1,
            request_id=1,
            initialPosition=pb.CommandSubscribe.Earliest,
        )
        await connection.ask(request, pb.CommandSuccess)
        return cls(connection)

    async def first(self) -> int:
        """The ledger of the first message, which stays un-acknowledged."""
        flow = pb.CommandFlow(consumer_id=1, messagePermits=1)
        return int((await self._connection.ask(flow, Message)).ledger_id)

    async def drain(self, acks: list[bytes], entries: int) -> None:
        """Take so many messages, and send one of the `acknowledgements` for each half queue.

        Returns when the last acknowledgement is confirmed.
        """
        connection, half = self._connection, PERMITS // 2
        flow = command(pb.CommandFlow(consumer_id=1, messagePermits=half))
        connection.count(_MARK)
        await connection.write(flow + flow)
        for number, ack in enumerate(acks[:-1], 1):
            await connection.counted_to(number * half)
            await connection.write(ack + flow)
        await connection.counted_to(entries)
        connection.parse()
        await connection.write(acks[-1])
        await connection.next(pb.CommandAckResponse)


def acknowledgements(ledger: int, first: int, end: int) -> list[bytes]:
    """Commands that name the entries one by one, half a queue in each; the last one asks for an
    answer."""
    found, size = [], PERMITS // 2
    for at in range(first, end, size):
        ack = pb.CommandAck(consumer_id=1, ack_type=pb.CommandAck.Individual)
        if at + size >= end:
            ack.request_id = 9
        for entry in range(at, min(at + size, end)):
            ack.message_id.add(ledgerId=ledger, entryId=entry)
        found.append(command(ack))
    return found


async def _publish(
    url: str, entries: int, measuring: Measuring, topic: str = "publish", token: str = ""
) -> None:
    publisher = await Publisher.open(await connect_raw(url, topic, token), topic)
    await publisher.publish(publisher.encode(WARM_UP))
    encoded = publisher.encode(entries)
    with measuring():
        await publisher.publish(encoded)


async def _drain(url: str, entries: int, measuring: Measuring) -> None:
    publisher = await Publisher.open(await connect_raw(url, "drain"), "drain")
    drainer = await Drainer.open(url, "drain", "s")
    await publisher.publish(publisher.encode(entries + 1))
    acks = acknowledgements(await drainer.first(), 1, entries + 1)
    with measuring():
        await drainer.drain(acks, entries)


async def _fan_out(url: str, entries: int, measuring: Measuring) -> None:
    publisher = await Publisher.open(await connect_raw(url, "fan-out"), "fan-out")
    drainers = [await Drainer.open(url, "fan-out", f"s{n}") for n in range(SUBSCRIPTIONS)]
    await publisher.publish(publisher.encode(1))
    ledgers = [await drainer.first() for drainer in drainers]
    encoded = publisher.encode(entries)
    acks = acknowledgements(ledgers[0], 1, entries + 1)
    with measuring():
        drains = (drainer.drain(acks, entries) for drainer in drainers)
        await asyncio.gather(publisher.publish(encoded), *drains)


async def _topics(url: str, entries: int, measuring: Measuring) -> None:
    names = [f"topic-{number}" for number in range(TOPICS)]
    for name in names[1:]:
        (await connect_raw(url, name)).close()  # activates it
    connection = await connect_raw(url, names[0])  # as official clients: one for each host
    publishers = [
        await Publisher.open(connection, name, BATCH, number)
        for number, name in enumerate(names, 1)
    ]
    await publish_in_turn(connection, [each.encode(20) for each in publishers])
    encoded = [each.encode(entries // TOPICS) for each in publishers]
    with measuring():
        await publish_in_turn(connection, encoded)


def _on_cluster(
    load: Callable[[str, int, Measuring], Awaitable[None]],
) -> Callable[[int, Measuring], None]:
    def run(entries: int, measuring: Measuring) -> None:
        # Its import takes two seconds.
        from tests.support.local_cluster import LocalCluster

        with (
            tempfile.TemporaryDirectory() as folder,
            LocalCluster(Path(folder), hosts=1) as cluster,
        ):
            cluster.run(load(cluster.service_url, entries, measuring), PATIENCE_S)

    return run


def _publish_authorised(entries: int, measuring: Measuring) -> None:
    """A role that may produce to this topic only, in a cluster with authorisation."""
    from tests.security.support import TOPIC, admin_of, guarded, token

    role = "publisher"
    with tempfile.TemporaryDirectory() as folder, guarded(Path(folder), hosts=1) as cluster:
        admin_of(cluster, "root").permissions.grant(TOPIC, role, ["produce"])
        work = _publish(cluster.service_url, entries, measuring, TOPIC, token(role))
        cluster.run(work, PATIENCE_S)


def _dispatch(
    kind: SubscriptionType, consumers: int = CONSUMERS, messages: int = 1
) -> Callable[[int, Measuring], None]:
    def run(entries: int, measuring: Measuring) -> None:
        async def on_loop() -> None:
            partition = FakePartition(kind, consumers, entries, messages)
            await partition.open()
            with measuring():
                await partition.drain()

        asyncio.run(on_loop())

    return run


LOADS: dict[str, Callable[[int, Measuring], None]] = {
    "publish": _on_cluster(_publish),
    "publish-authorised": _publish_authorised,
    "drain": _on_cluster(_drain),
    "fan-out": _on_cluster(_fan_out),
    "topics": _on_cluster(_topics),
    "shared": _dispatch(SubscriptionType.SHARED),
    "key-shared": _dispatch(SubscriptionType.KEY_SHARED),
    "shared-batches": _dispatch(SubscriptionType.SHARED, messages=BATCH),
    "key-shared-batches": _dispatch(SubscriptionType.KEY_SHARED, messages=BATCH),
    "shared-1": _dispatch(SubscriptionType.SHARED, 1),
    "key-shared-1": _dispatch(SubscriptionType.KEY_SHARED, 1),
    "shared-100": _dispatch(SubscriptionType.SHARED, 100),
    "key-shared-100": _dispatch(SubscriptionType.KEY_SHARED, 100),
}
"""Each runs so many entries in this process, and enters the context for the measured part."""
