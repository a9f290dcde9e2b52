"""The wire itself, for what the official client doesn't show: receipts of acks, notices."""

from __future__ import annotations

import asyncio
from typing import Any

from velaray.events.ids import TopicName
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.commands import Command, Message, Send, entry_header
from velaray.wire.connection import WireConnection
from velaray.wire.messages import build_entry

PATIENCE_S = 20.0


class RawClient:
    """One connection to a partition. Every command that comes is kept, in order."""

    def __init__(self) -> None:
        self.received: list[tuple[Command, bytes | None]] = []
        self.history: list[Command] = []
        self.closed = asyncio.Event()
        self._news = asyncio.Event()
        self._connection: WireConnection

    @classmethod
    async def connect(cls, host: str, port: int, version: str = "raw") -> RawClient:
        client = cls()
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: WireConnection(client, server=False), host, port)
        client.send(pb.CommandConnect(client_version=version, protocol_version=20))
        await client.next(pb.CommandConnected)
        return client

    def on_connected(self, connection: WireConnection) -> None:
        self._connection = connection

    def on_frame(self, connection: WireConnection, command: Command, entry: bytes | None) -> None:
        self.received.append((command, entry))
        self.history.append(command)
        self._news.set()

    def on_corrupt_entry(self, connection: WireConnection, error: Any) -> None:
        raise AssertionError(error)

    def on_writable(self, connection: WireConnection) -> None: ...

    def on_closed(self, connection: WireConnection, error: Exception | None) -> None:
        self.closed.set()
        self._news.set()

    @property
    def writable(self) -> bool:
        """While False, what is sent piles up and nothing is received."""
        return self._connection.writable

    def send(self, command: Any) -> None:
        self._connection.send(command)

    def pause_reading(self) -> None:
        self._connection.pause_reading()

    def resume_reading(self) -> None:
        self._connection.resume_reading()

    def close(self) -> None:
        self._connection.close()

    async def next(self, kind: type) -> Any:
        """The first command of this kind that came and wasn't taken yet; takes it out."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                for index, (command, _) in enumerate(self.received):
                    if type(command) is kind:
                        return self.received.pop(index)[0]
                assert not self.closed.is_set(), f"closed while waiting for {kind.__name__}"
                self._news.clear()
                await self._news.wait()

    async def produce(self, topic: str, payloads: list[bytes], producer_id: int = 1) -> list[Any]:
        """Publish under a name of its own; the receipts, in order."""
        self.send(pb.CommandProducer(topic=topic, producer_id=producer_id, request_id=1000))
        success = await self.next(pb.CommandProducerSuccess)
        for sequence_id, payload in enumerate(payloads):
            metadata = pb.MessageMetadata(
                producer_name=success.producer_name, sequence_id=sequence_id, publish_time=1
            )
            self.write_entry(Send(producer_id, sequence_id), build_entry(metadata, payload))
        return [await self.next(pb.CommandSendReceipt) for _ in payloads]

    def write_entry(self, send: Send, entry: bytes) -> None:
        command = pb.CommandSend(
            producer_id=send.producer_id, sequence_id=send.sequence_id, num_messages=1
        )
        self._connection.write(entry_header(command, len(entry)))
        self._connection.write(entry)

    async def subscribe(self, topic: str, consumer_id: int = 1, **kwargs: Any) -> None:
        """Subscribe to "s" unless told otherwise, from the start of the topic."""
        command = pb.CommandSubscribe(
            topic=str(TopicName.parse(topic)),
            subscription=kwargs.pop("subscription", "s"),
            subType=kwargs.pop("kind", pb.CommandSubscribe.Exclusive),
            consumer_id=consumer_id,
            request_id=consumer_id,
            initialPosition=pb.CommandSubscribe.Earliest,
            **kwargs,
        )
        self.send(command)
        await self.next(pb.CommandSuccess)

    def flow(self, permits: int, consumer_id: int = 1) -> None:
        self.send(pb.CommandFlow(consumer_id=consumer_id, messagePermits=permits))

    async def messages(self, count: int) -> list[Message]:
        return [await self.next(Message) for _ in range(count)]

    async def ack(self, message: Message, request_id: int, consumer_id: int = 1) -> Any:
        """Acknowledge one message and wait for the receipt."""
        self.send_ack(message, request_id, consumer_id)
        answer = await self.next(pb.CommandAckResponse)
        assert answer.request_id == request_id
        return answer

    def send_ack(self, message: Message, request_id: int, consumer_id: int = 1) -> None:
        ack = pb.CommandAck(
            consumer_id=consumer_id, ack_type=pb.CommandAck.Individual, request_id=request_id
        )
        ack.message_id.add(ledgerId=message.ledger_id, entryId=message.entry_id)
        self.send(ack)
