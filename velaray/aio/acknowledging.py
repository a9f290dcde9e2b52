"""Sending the acknowledgements of one topic partition: in groups, with receipts if asked for."""

from __future__ import annotations

import asyncio
from typing import Protocol

from velaray.aio.acks import AckTracker, PendingAck, PendingAcks, words
from velaray.aio.connection import Connection
from velaray.aio.core import Core
from velaray.aio.subscription import Subscription
from velaray.events.ids import UINT64_MAX
from velaray.events.ids_pb2 import MessageIdData
from velaray.exceptions import InvalidMessage, VelarayError, from_server
from velaray.message import EntryInfo
from velaray.message_id import MessageId
from velaray.wire import pulsar_pb2 as pb

MAX_ACK_GROUP = 1000
"""Acknowledgements that are sent at once, without waiting for the group's time."""


class Attachment(Protocol):
    """What acknowledging needs of the consumer."""

    topic: str
    consumer_id: int
    connection: Connection | None

    async def attached(self) -> Connection:
        """The connection, as soon as there is one. Raises the error that ended the consumer."""


class Acknowledger:
    """Collects what is acknowledged and has it sent in time; on the loop's thread."""

    def __init__(self, core: Core, subscription: Subscription, attachment: Attachment) -> None:
        self.tracker = AckTracker(subscription.batch_index_ack)
        self._core = core
        self._subscription = subscription
        self._attachment = attachment
        self._moves = 0  # how often a seek made void what was acknowledged
        self._timer: asyncio.TimerHandle | None = None
        self._receipt: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self.tracker)

    def elsewhere(self, info: EntryInfo, index: int) -> bool:
        """Note a message that went elsewhere; True if all of its entry is acknowledged now.

        The service is told even if it isn't told of other messages of batches.
        """
        bits = 1 << index if info.batch_size else 0
        whole = self.tracker.individual_bits(info.where, info.batch_size, bits, tell=True)
        self.schedule()
        return whole

    def in_transaction(self, message_id: MessageId, *, cumulative: bool) -> list[MessageIdData]:
        """What the service is to be told of a message that is acknowledged in a transaction."""
        where = (message_id.ledger_id(), message_id.entry_id())
        index, size = message_id.batch_index(), message_id.batch_size()
        if index < 0:
            entries = (where,) if cumulative else self.tracker.parts_of(where)
            return [_acked(PendingAck(entry)) for entry in entries]
        if size <= index:
            raise InvalidMessage(f"{message_id} is part of a batch of unknown size")
        everything = (1 << size) - 1
        left = everything >> index + 1 << index + 1 if cumulative else everything & ~(1 << index)
        return [_acked(PendingAck(where, left or None, size))]

    def moved(self) -> None:
        """A seek of this consumer's own has made void what was acknowledged."""
        self.tracker.reset()
        self._moves += 1

    def schedule(self) -> None:
        """Have what is noted sent when the group's time is over, or it's large enough."""
        group = self._subscription.ack_group_seconds
        waiting = len(self.tracker)
        if not waiting:
            return
        if group == 0 or waiting >= MAX_ACK_GROUP:
            self.flush()
        elif self._timer is None:
            self._timer = self._core.loop.call_later(group, self.flush)

    def flush(self) -> None:
        """Send what is noted."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        connection = self._attachment.connection
        if connection is None or self._receipt is not None:
            return  # they go when the subscription is back, or with the receipt being asked for
        for command in self._commands(self.tracker.take()):
            connection.send(command)

    def _commands(self, acks: PendingAcks) -> list[pb.CommandAck]:
        commands = []
        consumer_id = self._attachment.consumer_id
        if acks.cumulative is not None:
            command = pb.CommandAck(consumer_id=consumer_id, ack_type=pb.CommandAck.Cumulative)
            command.message_id.append(_acked(acks.cumulative))
            commands.append(command)
        for start in range(0, len(acks.individual), MAX_ACK_GROUP):
            command = pb.CommandAck(consumer_id=consumer_id, ack_type=pb.CommandAck.Individual)
            group = acks.individual[start : start + MAX_ACK_GROUP]
            command.message_id.extend(map(_acked, group))
            commands.append(command)
        return commands

    async def receipt(self) -> None:
        """Wait until every acknowledgement given so far is durable.

        Calls of one turn of the event loop share one request. Raises the service's refusal,
        or `Timeout` after one operation timeout, in which it tries again over reconnects.
        """
        if self._receipt is None:
            self._receipt = self._core.spawn(self._ask_receipts())
        await asyncio.shield(self._receipt)

    async def _ask_receipts(self) -> None:
        what = f"acknowledging to {self._subscription.name} on {self._attachment.topic}"
        await asyncio.sleep(0)  # let the other acknowledgements of this turn in
        acks, moves = self.tracker.take(receipt=True), self._moves
        self._receipt = None

        async def attempt() -> None:
            connection = await self._attachment.attached()
            if moves != self._moves:
                return  # a seek has made void what was acknowledged before it
            for command in self._commands(acks):
                answer = await connection.request(command, self._core.attempt_timeout)
                if answer.HasField("error"):
                    raise from_server(answer.error, answer.message)
            if moves == self._moves:
                self.tracker.durable(acks)

        try:
            await self._core.retrying(what, attempt)
        except VelarayError:
            # They were acknowledged all the same, by calls that asked for no receipt perhaps.
            if moves == self._moves:
                self.tracker.put_back(acks)
                self.schedule()
            raise

    def stop(self) -> None:
        """Send nothing by oneself any more."""
        if self._timer is not None:
            self._timer.cancel()


def _acked(ack: PendingAck) -> MessageIdData:
    (ledger, entry), bits, size = ack
    data = MessageIdData(ledgerId=ledger, entryId=entry & UINT64_MAX)
    if bits is not None:
        data.ack_set.extend(words(bits, size))
        data.batch_size = size
    return data
