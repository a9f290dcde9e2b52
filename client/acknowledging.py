"""Sending the acknowledgements of one topic partition: in groups, with receipts if asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol

from velaray.client.acks import AckTracker, PendingAck, PendingAcks, Where, words
from velaray.client.connection import Connection
from velaray.client.core import Core
from velaray.client.exceptions import (
    InvalidMessage,
    NotConnected,
    TransactionConflict,
    VelarayError,
    from_server,
)
from velaray.client.message import EntryInfo
from velaray.client.message_id import MessageId
from velaray.client.subscription import Subscription
from velaray.client.transactions import Transaction
from velaray.events.ids import UINT64_MAX
from velaray.events.ids_pb2 import MessageIdData
from velaray.wire import pulsar_pb2 as pb

MAX_ACK_GROUP = 1000
"""Acknowledgements that are sent at once, without waiting for the group's time."""

Part = tuple[int, int]
"""Messages of an entry: the size of its batch, 0 if it is none, and their bits."""


class Attachment(Protocol):
    """What acknowledging needs of the consumer."""

    topic: str
    consumer_id: int
    connection: Connection | None

    async def attached(self) -> Connection:
        """The connection, as soon as there is one. Raises the error that ended the consumer."""


class _Turn:
    """What is acknowledged in a transaction in one turn of the event loop."""

    told: asyncio.Task[None]

    def __init__(self) -> None:
        self.acks: dict[Where, Part] = {}
        self.calls = self._entries = 0
        self.refused = False

    def takes(self, acks: Mapping[Where, Part], entries: int) -> bool:
        """Whether none of it is there already; and it remains one request, so that it is refused
        as a whole."""
        if self._entries + entries > MAX_ACK_GROUP:
            return False
        return not any(
            where in self.acks and (not size or self.acks[where][1] & bits)
            for where, (size, bits) in acks.items()
        )

    def add(self, acks: Mapping[Where, Part], entries: int) -> None:
        """One more call, of so many entries."""
        self.calls += 1
        self._entries += entries
        for where, (size, bits) in acks.items():
            self.acks[where] = size, bits | self.acks.get(where, (size, 0))[1]


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
        self._turns: dict[Transaction, _Turn] = {}

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

    async def in_transaction(self, txn: Transaction, acks: Mapping[Where, Part]) -> None:
        """Acknowledge in a transaction; returns when the service has it.

        Calls of one turn of the event loop share requests. They are repeated, over reconnects,
        for one operation timeout. Raises the service's refusal of what this call acknowledges, or
        `Timeout` if the outcome is unknown.
        """
        entries = sum(
            1 if size else len(self.tracker.parts_of(at)) for at, (size, _) in acks.items()
        )
        turn = self._turns.get(txn)
        if turn is None or not turn.takes(acks, entries):
            turn = self._turns[txn] = _Turn()
            turn.told = self._core.spawn(self._tell_turn(txn, turn))
        turn.add(acks, entries)
        await asyncio.shield(turn.told)
        if turn.refused:
            await self._tell_all(txn, acks)

    async def _tell_turn(self, txn: Transaction, turn: _Turn) -> None:
        await asyncio.sleep(0)  # let the other acknowledgements of this turn in
        if self._turns.get(txn) is turn:
            del self._turns[txn]
        try:
            await self._tell_all(txn, turn.acks)
        except TransactionConflict:
            if turn.calls == 1:
                raise
            turn.refused = True  # nothing of it was taken: which call is it?

    async def _tell_all(self, txn: Transaction, acks: Mapping[Where, Part]) -> None:
        # Of a batch even all messages are named: one that somebody else has refuses them then.
        entries = [
            PendingAck(entry, (1 << size) - 1 & ~bits if size else None, size)
            for where, (size, bits) in acks.items()
            for entry in (self.tracker.parts_of(where) if not size else (where,))
        ]
        for start in range(0, len(entries), MAX_ACK_GROUP):
            group = entries[start : start + MAX_ACK_GROUP]
            await self._tell_in(txn, pb.CommandAck.Individual, group)

    async def until_in_transaction(self, txn: Transaction, message_id: MessageId) -> None:
        """Acknowledge all up to ``message_id``; as `in_transaction`."""
        where, size, bits = place_of(message_id)
        left = (1 << size) - 1 & ~(2 * bits - 1) or None if size else None
        await self._tell_in(txn, pb.CommandAck.Cumulative, [PendingAck(where, left, size)])

    async def _tell_in(self, txn: Transaction, kind: Any, acks: list[PendingAck]) -> None:
        attachment, moves = self._attachment, self._moves
        await txn.join_subscription(attachment.topic, self._subscription.name)

        async def attempt() -> None:
            connection = await attachment.attached()
            txn.check()  # its id means another one elsewhere
            if moves != self._moves:
                return  # a seek has made void what was acknowledged before it
            command = pb.CommandAck(consumer_id=attachment.consumer_id, ack_type=kind)
            command.message_id.extend(map(_acked, acks))
            command.txnid_most_bits, command.txnid_least_bits = txn.txn_id
            # To the service the same again, in the same transaction, is a repetition.
            answer = await connection.request(command, self._core.attempt_timeout)
            if answer.error == pb.ConsumerNotFound:
                raise NotConnected(answer.message)  # it was closed there: subscribes again
            if answer.HasField("error"):
                raise from_server(answer.error, answer.message)

        what = f"acknowledging to {self._subscription.name} on {attachment.topic} in {txn!r}"
        await self._core.retrying(what, attempt)

    @property
    def moves(self) -> int:
        """How often a seek of this consumer's own has made void what was acknowledged."""
        return self._moves

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
                if answer.error == pb.ConsumerNotFound:
                    raise NotConnected(answer.message)  # it was closed there: subscribes again
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


def place_of(message_id: MessageId) -> tuple[Where, int, int]:
    """The entry of a message, the size of its batch (0: none) and the message's bit.

    Raises `InvalidMessage` for an id within a batch of unknown size.
    """
    where = (message_id.ledger_id(), message_id.entry_id())
    index, size = message_id.batch_index(), message_id.batch_size()
    if index < 0:
        return where, 0, 0
    if size <= index:
        raise InvalidMessage(
            f"{message_id} is part of a batch of unknown size: acknowledge the message as"
            " received, or an id with its batch size"
        )
    return where, size, 1 << index


def _acked(ack: PendingAck) -> MessageIdData:
    (ledger, entry), bits, size = ack
    data = MessageIdData(ledgerId=ledger, entryId=entry & UINT64_MAX)
    if bits is not None:
        data.ack_set.extend(words(bits, size))
        data.batch_size = size
    return data
