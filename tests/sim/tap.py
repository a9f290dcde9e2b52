"""Client connections that note in the history what goes over them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.sim.history import History
from velaray.client.connection import Connection
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.commands import Message
from velaray.wire.messages import is_batch, read_metadata


def bits(words: Iterable[int]) -> int:
    """An ack set of the wire: bit i is set if message i of the batch isn't acknowledged."""
    return sum((word & (1 << 64) - 1) << 64 * at for at, word in enumerate(words))


def open_messages(delivery: Message, entry: bytes) -> int:
    """The messages of an entry that aren't acknowledged, as bits."""
    if delivery.ack_set:
        return bits(delivery.ack_set)
    metadata = read_metadata(entry)
    return (1 << metadata.num_messages_in_batch) - 1 if is_batch(metadata) else 1


class TappedConnection(Connection):
    """A `Connection` with a listener; ``history`` is set for each run."""

    history: History
    opened = 0

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        TappedConnection.opened += 1
        self.number = TappedConnection.opened
        self._asked: dict[tuple[int, int], tuple[float, pb.CommandAck]] = {}

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
                    name=message.consumer_name,
                    topic=message.topic,
                    kind=int(message.subType),
                    durable=message.durable,
                )
            case pb.CommandFlow():
                permits = message.messagePermits
                note("flow", connection=self.number, consumer=message.consumer_id, permits=permits)
            case pb.CommandAck() if message.HasField("txnid_least_bits"):
                note("ack in txn", connection=self.number, consumer=message.consumer_id)
            case pb.CommandAck() if message.request_id:
                asked = (self.history.now(), message)
                self._asked[message.consumer_id, message.request_id] = asked
            case pb.CommandRedeliverUnacknowledgedMessages():
                note("redeliver", connection=self.number, consumer=message.consumer_id)
            case pb.CommandCloseConsumer():
                note("close consumer", connection=self.number, consumer=message.consumer_id)

    def on_frame(self, connection: Any, command: Any, entry: bytes | None) -> None:
        """Note deliveries, and acknowledgements of parts of batches that are durable."""
        if isinstance(command, pb.CommandAckResponse) and not command.HasField("error"):
            self._note_durable(command)
        if type(command) is Message and entry is not None:
            messages = open_messages(command, entry)
            self.history.add(
                "deliver",
                connection=self.number,
                consumer=command.consumer_id,
                ledger=command.ledger_id,
                entry=command.entry_id,
                messages=messages.bit_count(),
                open=messages,
                redelivery=command.redelivery_count,
            )
        super().on_frame(connection, command, entry)

    def _note_durable(self, answer: pb.CommandAckResponse) -> None:
        began, asked = self._asked.pop((answer.consumer_id, answer.request_id), (0.0, None))
        if asked is None or asked.ack_type == pb.CommandAck.Cumulative:
            return
        for acked in asked.message_id:
            if any(acked.ack_set):
                self.history.add(
                    "part durable",
                    connection=self.number,
                    consumer=answer.consumer_id,
                    began=began,
                    ledger=acked.ledgerId,
                    entry=acked.entryId,
                    left=bits(acked.ack_set),
                )
