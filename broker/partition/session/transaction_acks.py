"""Acknowledgements within transactions."""

from __future__ import annotations

from velaray.actors.machine import Reason
from velaray.broker.partition import remote_ids
from velaray.broker.partition.channel.feed import flat_ranges
from velaray.broker.partition.compacted_channel import GONE
from velaray.broker.partition.session.ack_sets import (
    fault_of_ack_set,
    position_of,
    remaining_words,
    words_of,
)
from velaray.broker.partition.session.consumers import ConnectedConsumer
from velaray.broker.partition.session.protocols import Client, PartitionLog
from velaray.broker.partition.session.requests import CALL_ERRORS, CONSUMER_CLOSED
from velaray.broker.subscription.messages import (
    AckEntriesBeforeInTransaction,
    AckEntriesInTransaction,
)
from velaray.broker.wire_errors import code_of
from velaray.events.ids import Position, TransactionId
from velaray.topology.rpc import RemoteError, RpcConnectionClosed, reason_of
from velaray.wire import pulsar_pb2 as pb

_CODES: dict[str, pb.ServerError] = {
    Reason.NOT_FOUND: pb.TransactionNotFound,
    Reason.CONFLICT: pb.InvalidTxnStatus,
}


class _Conflict(Exception):
    """A message is acknowledged already, or pending in a transaction."""


class TransactionAcks:
    """Acknowledges messages of one connection's consumers within transactions."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def acknowledge(self, found: ConnectedConsumer, command: pb.CommandAck) -> None:
        """Acknowledge messages, and answer when that is durable."""
        transaction = TransactionId(command.txnid_most_bits, command.txnid_least_bits)
        answer = pb.CommandAckResponse(
            consumer_id=command.consumer_id,
            request_id=command.request_id,
            txnid_most_bits=transaction.coordinator,
            txnid_least_bits=transaction.sequence,
        )
        try:
            await self._transact(found, transaction, command)
        except _Conflict as error:
            answer.error, answer.message = pb.TransactionConflict, str(error)
        except CALL_ERRORS as error:
            kind = error.kind if isinstance(error, RemoteError) else ""
            answer.error = _CODES.get(kind, code_of(error))
            answer.message = reason_of(error)
        self._client.connection.send(answer)

    async def _transact(
        self, found: ConnectedConsumer, transaction: TransactionId, command: pb.CommandAck
    ) -> None:
        consumer, channel, partition = found.consumer, found.channel, found.partition
        log = partition.log
        if not channel.durable:
            problem = "a reader can't acknowledge in a transaction"
            raise RemoteError(Reason.NOT_ALLOWED, problem)
        async with partition.publishing.admission.through(transaction, channel.name):
            request: AckEntriesInTransaction | AckEntriesBeforeInTransaction
            if command.ack_type == pb.CommandAck.Individual:
                last, request = await _individual(log, found, transaction, command)
            else:
                last, request = await _cumulative(log, found, transaction, command)
            channel.delivery.acknowledging(last)
            if last > log.synced_offset:
                await log.sync()
            if consumer.closed or channel.resetting:
                raise RpcConnectionClosed(CONSUMER_CLOSED)
            consumer.acknowledges()
            try:
                await channel.ask(request)
            except RemoteError as error:
                if error.kind == Reason.CONFLICT:
                    raise _Conflict(error.message) from error
                raise


async def _individual(
    log: PartitionLog,
    found: ConnectedConsumer,
    transaction: TransactionId,
    command: pb.CommandAck,
) -> tuple[int, AckEntriesInTransaction]:
    """Return the offset after the last entry, and the request to the subscription."""
    consumer, channel = found.consumer, found.channel
    span = log.table(channel.compacted).span
    offsets: list[int] = []
    partial: list[tuple[int, list[int], int]] = []
    for data in command.message_id:
        _, first, limit = span(data.ledgerId)
        offset = first + data.entryId
        if offset >= limit:
            position = Position(data.ledgerId, data.entryId)
            offset = remote_ids.offset_of(log, position, -1)
            if offset != log.kept_from(offset):
                raise _Conflict(f"{position} is trimmed away: it was acknowledged before")
        if fault := fault_of_ack_set(log, offset, len(data.ack_set)):
            raise RemoteError(Reason.INVALID, fault)
        if data.ack_set:  # without it the whole entry is meant
            entry = await channel.entry(offset)
            messages = data.batch_size if entry is GONE else entry.messages
            partial.append((offset, words_of(data), messages))
        else:
            offsets.append(offset)
    last = max([*offsets, *(at for at, _, _ in partial)], default=-1) + 1
    return last, AckEntriesInTransaction(
        consumer.number,
        transaction,
        log.end_offset,
        flat_ranges(offsets),
        partial,
        command.repeated_attempt,
    )


async def _cumulative(
    log: PartitionLog,
    found: ConnectedConsumer,
    transaction: TransactionId,
    command: pb.CommandAck,
) -> tuple[int, AckEntriesBeforeInTransaction]:
    """Return what `_individual` does."""
    consumer, channel = found.consumer, found.channel
    if len(command.message_id) != 1:
        problem = "a cumulative acknowledgement in a transaction must name exactly one message"
        raise RemoteError(Reason.NOT_ALLOWED, problem)
    position, words = position_of(command), remaining_words(command.message_id[0])
    if remote_ids.is_remote(log, position):
        offset, words = await remote_ids.before(log, channel, position, words)
    else:
        offset = log.table(channel.compacted).at_or_before(position)
        if words is None or offset < 0:
            offset, words = offset + 1, None
        elif fault := fault_of_ack_set(log, offset, len(words)):
            raise RemoteError(Reason.INVALID, fault)
    last = offset if words is None else offset + 1
    end, number = log.end_offset, consumer.number
    return last, AckEntriesBeforeInTransaction(number, transaction, end, offset, words)
