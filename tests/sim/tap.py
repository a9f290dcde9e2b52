"""Client connections that note in the history what goes over them."""

from __future__ import annotations

from typing import Any

from tests.sim.history import History
from velaray.aio.connection import Connection
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.commands import Message
from velaray.wire.messages import is_batch, read_metadata


def messages_in(delivery: Message, entry: bytes) -> int:
    """How many permits an entry takes."""
    if delivery.ack_set:
        return sum((word & (1 << 64) - 1).bit_count() for word in delivery.ack_set)
    metadata = read_metadata(entry)
    return metadata.num_messages_in_batch if is_batch(metadata) else 1


class TappedConnection(Connection):
    """A `Connection` with a listener; ``history`` is set for each run."""

    history: History
    opened = 0

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        TappedConnection.opened += 1
        self.number = TappedConnection.opened

    def send(self, message: Any) -> None:
        """Note what a consumer asks for."""
        if not self.closed:
            self._note(message)
        super().send(message)

    def _note(self, message: Any) -> None:
        note = self.history.add
        match message:
            case pb.CommandSubscribe():
                note(
                    "subscribe",
                    connection=self.number,
                    consumer=message.consumer_id,
                    subscription=message.subscription,
                    topic=message.topic,
                    kind=int(message.subType),
                )
            case pb.CommandFlow():
                permits = message.messagePermits
                note("flow", connection=self.number, consumer=message.consumer_id, permits=permits)
            case pb.CommandRedeliverUnacknowledgedMessages():
                note("redeliver", connection=self.number, consumer=message.consumer_id)

    def on_frame(self, connection: Any, command: Any, entry: bytes | None) -> None:
        """Note deliveries."""
        if type(command) is Message and entry is not None:
            self.history.add(
                "deliver",
                connection=self.number,
                consumer=command.consumer_id,
                ledger=command.ledger_id,
                entry=command.entry_id,
                messages=messages_in(command, entry),
                redelivery=command.redelivery_count,
            )
        super().on_frame(connection, command, entry)
