"""Sends the acknowledgements of one topic partition: in groups, and with receipts if requested."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary

from velaray.client.acks import AckTracker, PendingAck, PendingAcks, Where, words
from velaray.client.connection import Connection
from velaray.client.core import Core
from velaray.client.exceptions import (
    AlreadyClosed,
    InvalidMessage,
    NotConnected,
    TransactionConflict,
    UnknownError,
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
"""Group size at which acknowledgements are sent at once, without waiting for the group time."""

Part = tuple[int, int]
"""Messages of an entry: the size of its batch (0 if it is no batch), and their bits."""


class Attachment(Protocol):
    """What acknowledging needs from the consumer."""

    topic: str
    consumer_id: int
    connection: Connection | None

    async def attached(self) -> Connection:
        """Return the connection, as soon as there is one.

        Raises the error that ended the consumer.
        """


class _Call(NamedTuple):
    """One call that acknowledges in a transaction."""

    acks: Mapping[Where, Part]
    entries: int
    recorded: asyncio.Future[None]


class AcksInTransaction:
    """The acknowledgements made in one transaction during one turn of the event loop."""

    def __init__(self, txn: Transaction, moves: int) -> None:
        """``moves`` is the number of seeks until now."""
        self.txn = txn
        self.moves = moves
        self.acks: dict[Where, Part] = {}
        self.calls: list[_Call] = []
        self._entries = 0
        txn.hold()

    def takes(self, entries: int) -> bool:
        """Whether this many entries can join: the result is still one request.

        The service refuses a request as a whole.
        """
        return self._entries + entries <= MAX_ACK_GROUP

    def add(self, call: _Call) -> None:
        """Add one more call."""
        self.calls.append(call)
        self._entries += call.entries
        for where, (size, bits) in call.acks.items():
            self.acks[where] = size, bits | self.acks.get(where, (size, 0))[1]

    def end(self, error: VelarayError | None) -> None:
        """Inform the callers, and the transaction."""
        for call in self.calls:
            if call.recorded.done():
                continue  # its caller was cancelled
            if error is None:
                call.recorded.set_result(None)
            else:
                call.recorded.set_exception(error)
        self.txn.release(error)


Recorded = Callable[[AcksInTransaction, VelarayError | None], object]
"""Is called when the service has recorded the acknowledgements, or with an error."""


class Acknowledger:
    """Collects acknowledgements and sends them in time; on the loop's thread."""

    def __init__(self, core: Core, subscription: Subscription, attachment: Attachment) -> None:
        self.tracker = AckTracker(subscription.batch_index_ack)
        self._core = core
        self._subscription = subscription
        self._attachment = attachment
        self._moves = 0  # number of seeks that invalidated earlier acknowledgements
        self._timer: asyncio.TimerHandle | None = None
        self._receipt: asyncio.Task[None] | None = None
        self._turns: dict[Transaction, AcksInTransaction] = {}
        # The messages acknowledged in each transaction, by entry, as bits; -1 is a whole entry.
        self._used: WeakKeyDictionary[Transaction, dict[Where, int]] = WeakKeyDictionary()

    def __len__(self) -> int:
        return len(self.tracker)

    def elsewhere(self, info: EntryInfo, index: int) -> bool:
        """Note a message that was moved elsewhere; True if all of its entry is acknowledged now.

        The acknowledgement is sent even if acknowledgements of single messages of batches aren't.
        """
        bits = 1 << index if info.batch_size else 0
        whole = self.tracker.individual_bits(info.where, info.batch_size, bits, tell=True)
        self.schedule()
        return whole

    def in_transaction(
        self, txn: Transaction, acks: Mapping[Where, Part], recorded: Recorded
    ) -> asyncio.Future[None]:
        """Acknowledge in a transaction; the future is done when the service has recorded it.

        Committing waits for it, even if the future is cancelled. Calls in one turn of the event
        loop share requests, and one call of ``recorded``. Requests are repeated, also after
        reconnects, for one operation timeout. The future has the service's refusal of what this
        call acknowledges, `TransactionConflict` if the transaction has acknowledged part of it
        before, or `Timeout` if the outcome is unknown.
        """
        entries = sum(
            1 if size else len(self.tracker.parts_of(at)) for at, (size, _) in acks.items()
        )
        call = _Call(acks, entries, self._core.loop.create_future())
        try:
            self._use(txn, acks)
        except TransactionConflict as error:
            refused = AcksInTransaction(txn, self._moves)
            refused.add(call)
            refused.end(error)
            recorded(refused, error)
            return call.recorded
        turn = self._turns.get(txn)
        if turn is None or not turn.takes(entries):
            turn = self._turns[txn] = AcksInTransaction(txn, self._moves)
            self._tell(turn, recorded)
        turn.add(call)
        return call.recorded

    def _tell(self, turn: AcksInTransaction, recorded: Recorded) -> None:
        telling = self._core.spawn(self._tell_turn(turn))
        # A task that is cancelled before its first step doesn't run its own cleanup.
        telling.add_done_callback(partial(self._told, turn, recorded))

    def _told(
        self, turn: AcksInTransaction, recorded: Recorded, telling: asyncio.Task[None]
    ) -> None:
        error: VelarayError | None = None
        if telling.cancelled():
            error = AlreadyClosed("the client is closed")
        elif (failed := telling.exception()) is not None:
            error = failed if isinstance(failed, VelarayError) else UnknownError(str(failed))
        if isinstance(error, TransactionConflict) and len(turn.calls) > 1:
            # None was accepted: find out which call is refused.
            for call in turn.calls:
                alone = AcksInTransaction(turn.txn, turn.moves)
                alone.add(call)
                self._tell(alone, recorded)
            turn.txn.release(None)
            return
        turn.end(error)  # first, so that an error in what follows leaves no caller waiting
        recorded(turn, error)

    def _use(self, txn: Transaction, acks: Mapping[Where, Part]) -> None:
        """Note what a transaction acknowledges. Raises `TransactionConflict` for a repetition.

        A message may be delivered twice, e.g. after another transaction was aborted. If a
        transaction used both copies, the results of both would be committed. The service refuses
        the second one as well, but not in a repeated attempt.
        """
        used = self._used.setdefault(txn, {})
        for where, (size, bits) in acks.items():
            if used.get(where, 0) & (bits if size else -1):
                raise TransactionConflict(
                    f"{txn!r} has already acknowledged a message of entry {where}: the message was"
                    " delivered twice; abort the transaction"
                )
        for where, (size, bits) in acks.items():
            used[where] = used.get(where, 0) | (bits if size else -1)

    async def _tell_turn(self, turn: AcksInTransaction) -> None:
        await asyncio.sleep(0)  # lets other acknowledgements of this turn join
        if self._turns.get(turn.txn) is turn:
            del self._turns[turn.txn]
        # Name all messages of a batch, even if that is the whole batch. The service then refuses a
        # message that another transaction or consumer acknowledged.
        entries = [
            PendingAck(entry, (1 << size) - 1 & ~bits if size else None, size)
            for where, (size, bits) in turn.acks.items()
            for entry in (self.tracker.parts_of(where) if not size else (where,))
        ]
        for start in range(0, len(entries), MAX_ACK_GROUP):
            group = entries[start : start + MAX_ACK_GROUP]
            await self._tell_in(turn.txn, pb.CommandAck.Individual, group, turn.moves)

    async def until_in_transaction(self, txn: Transaction, message_id: MessageId) -> None:
        """Acknowledge all messages up to ``message_id``; returns when the service has recorded it.

        Raises the errors that the future of `in_transaction` has.
        """
        where, size, bits = place_of(message_id)
        left = (1 << size) - 1 & ~(2 * bits - 1) or None if size else None
        acks = [PendingAck(where, left, size)]
        await self._tell_in(txn, pb.CommandAck.Cumulative, acks, self._moves)

    async def _tell_in(
        self, txn: Transaction, kind: Any, acks: list[PendingAck], moves: int
    ) -> None:
        attachment = self._attachment
        await txn.join_subscription(attachment.topic, self._subscription.name)
        command = pb.CommandAck(ack_type=kind)
        command.message_id.extend(map(_acked, acks))
        command.txnid_most_bits, command.txnid_least_bits = txn.txn_id

        async def attempt() -> None:
            connection = await attachment.attached()
            txn.check()  # the id means another transaction in another cluster
            if moves != self._moves:
                return  # a seek invalidated earlier acknowledgements
            command.consumer_id = attachment.consumer_id
            try:
                answer = await connection.request(command, self._core.attempt_timeout)
            finally:
                command.repeated_attempt = True  # the service may have recorded it
            if answer.error == pb.ConsumerNotFound:
                raise NotConnected(answer.message)  # closed there: subscribes again
            if answer.HasField("error"):
                raise from_server(answer.error, answer.message)

        what = f"acknowledging to {self._subscription.name} on {attachment.topic} in {txn!r}"
        await self._core.retrying(what, attempt)

    @property
    def moves(self) -> int:
        """Number of seeks of this consumer that invalidated acknowledgements."""
        return self._moves

    def moved(self) -> None:
        """Note that a seek of this consumer invalidated earlier acknowledgements."""
        self.tracker.reset()
        self._used.clear()
        self._turns.clear()
        self._moves += 1

    def schedule(self) -> None:
        """Send the group when its time is over, or at once if it is large enough."""
        group = self._subscription.ack_group_seconds
        waiting = len(self.tracker)
        if not waiting:
            return
        if group == 0 or waiting >= MAX_ACK_GROUP:
            self.flush()
        elif self._timer is None:
            self._timer = self._core.loop.call_later(group, self.flush)

    def flush(self) -> None:
        """Send the noted acknowledgements."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        connection = self._attachment.connection
        if connection is None or self._receipt is not None:
            return  # sent after subscribing again, or with the receipt that is being requested
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

        Calls in one turn of the event loop share one request. Raises the service's refusal, or
        `Timeout` after one operation timeout. Until then the request is repeated after reconnects.
        """
        if self._receipt is None:
            self._receipt = self._core.spawn(self._ask_receipts())
        await asyncio.shield(self._receipt)

    async def _ask_receipts(self) -> None:
        what = f"acknowledging to {self._subscription.name} on {self._attachment.topic}"
        await asyncio.sleep(0)  # lets other acknowledgements of this turn join
        acks, moves = self.tracker.take(receipt=True), self._moves
        self._receipt = None

        async def attempt() -> None:
            connection = await self._attachment.attached()
            if moves != self._moves:
                return  # a seek invalidated earlier acknowledgements
            for command in self._commands(acks):
                answer = await connection.request(command, self._core.attempt_timeout)
                if answer.error == pb.ConsumerNotFound:
                    raise NotConnected(answer.message)  # closed there: subscribes again
                if answer.HasField("error"):
                    raise from_server(answer.error, answer.message)
            if moves == self._moves:
                self.tracker.durable(acks)

        try:
            await self._core.retrying(what, attempt)
        except VelarayError:
            # They are acknowledged nevertheless, perhaps by calls that requested no receipt.
            if moves == self._moves:
                self.tracker.put_back(acks)
                self.schedule()
            raise

    def stop(self) -> None:
        """Stop sending on a timer."""
        if self._timer is not None:
            self._timer.cancel()


def place_of(message_id: MessageId) -> tuple[Where, int, int]:
    """Return a message's entry, the size of its batch (0: no batch) and the message's bit.

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
