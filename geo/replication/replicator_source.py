"""Source of a replicator: the only consumer of its subscription, over the wire protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from velaray.client.connection import Connection
from velaray.client.exceptions import NotConnected
from velaray.events.ids import MessageId, Position, TopicName
from velaray.geo.replication.replicator_connections import Way
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.commands import Message as Delivery

CONSUMER_ID = 1
REQUEST_TIMEOUT_S = 30.0

OnEntries = Callable[[Sequence[tuple[Delivery, bytes]]], None]


class SourceLost(NotConnected):
    """The partition closed the consumer or disconnected."""


class Source:
    """One consumer on one connection."""

    def __init__(
        self,
        way: Way,
        topic: TopicName,
        subscription: str,
        on_entries: OnEntries,
        on_lost: Callable[[SourceLost], None],
    ) -> None:
        """``topic`` is the partition's; ``on_entries`` gets the entries of one read."""
        self._way = way
        self._topic = topic
        self._subscription = subscription
        self._on_entries = on_entries
        self._on_lost = on_lost
        self._connection: Connection | None = None
        self._came: list[tuple[Delivery, bytes]] = []
        self._closed = False

    async def open(self) -> None:
        """Subscribe; no entries arrive before `flow`.

        Raises `VelarayError`, `OSError`, `TimeoutError` and what the way raises.
        """
        connection = await self._way.connect()
        self._connection = connection
        connection.consumers[CONSUMER_ID] = self
        await connection.request(self.command(), REQUEST_TIMEOUT_S)

    def command(self) -> pb.CommandSubscribe:
        """The command that subscribes."""
        return pb.CommandSubscribe(
            topic=str(self._topic),
            subscription=self._subscription,
            subType=pb.CommandSubscribe.Exclusive,
            consumer_id=CONSUMER_ID,
            consumer_name=self._subscription,
        )

    def flow(self, permits: int) -> None:
        """Request more messages."""
        if self._connection is not None:
            self._connection.send(pb.CommandFlow(consumer_id=CONSUMER_ID, messagePermits=permits))

    def acknowledge(self, position: Position) -> None:
        """Acknowledge everything up to ``position``, without waiting."""
        if self._connection is not None:
            self._connection.send(
                pb.CommandAck(
                    consumer_id=CONSUMER_ID,
                    ack_type=pb.CommandAck.Cumulative,
                    message_id=[MessageId(*position, self._topic.partition).to_proto()],
                )
            )

    def pause(self, paused: bool) -> None:
        """Pause or resume reading."""
        if self._connection is not None:
            if paused:
                self._connection.pause_reading()
            else:
                self._connection.resume_reading()

    def on_message(self, message: Delivery, entry: bytes) -> None:
        """An entry was delivered."""
        if not self._came:
            asyncio.get_running_loop().call_soon(self._hand_over)
        self._came.append((message, entry))

    def _hand_over(self) -> None:
        came, self._came = self._came, []
        if came and not self._closed:
            self._on_entries(came)

    def on_closed(self, connection: Connection) -> None:
        """The partition closed its consumer or disconnected."""
        if not self._closed:
            self._hand_over()
            self._on_lost(SourceLost(f"the partition closed the consumer of {self._topic}"))

    def on_end_of_topic(self) -> None:
        """The topic is terminated; the subscription stays."""

    def abort(self) -> None:
        """Cut the connection."""
        self._closed = True
        self._way.abort()

    async def close(self) -> None:
        """Close, after everything is written out."""
        self._closed = True
        await self._way.close()
