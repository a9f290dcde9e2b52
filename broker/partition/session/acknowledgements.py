"""Acknowledgements of consumers, and requests for redelivery."""

from __future__ import annotations

from velaray.actors.partition.ledger_table import NoSuchEntryError
from velaray.broker.partition import remote_ids
from velaray.broker.partition.channel.feed import flat_ranges
from velaray.broker.partition.session.ack_sets import (
    fault_of_ack_set,
    position_of,
    remaining_words,
    words_of,
)
from velaray.broker.partition.session.consumers import IN_ORDER, ConnectedConsumer, ConsumerTable
from velaray.broker.partition.session.protocols import Client
from velaray.broker.partition.session.requests import CALL_ERRORS, CONSUMER_CLOSED
from velaray.broker.partition.session.transaction_acks import TransactionAcks
from velaray.broker.subscription.messages import AckEntries, AckEntriesBefore, Redeliver
from velaray.broker.wire_errors import code_of
from velaray.events.ids import Position
from velaray.journal.manifest import cluster_number_of
from velaray.topology.rpc import RpcConnectionClosed, reason_of
from velaray.wire import pulsar_pb2 as pb


class AcknowledgementHandlers:
    """Passes the acknowledgements of one connection's consumers to their subscriptions."""

    def __init__(self, client: Client, consumers: ConsumerTable) -> None:
        self._client = client
        self._consumers = consumers
        self._transactions = TransactionAcks(client)

    def on_ack(self, command: pb.CommandAck) -> None:
        """Acknowledge messages."""
        found = self._consumers.get(command.consumer_id)
        in_transaction = command.HasField("txnid_most_bits") or command.HasField("txnid_least_bits")
        if found is None:
            # Java's client has no class for ConsumerNotFound, and fails a transaction on it.
            code = pb.ServiceNotReady if in_transaction else pb.ConsumerNotFound
            problem = (
                "the consumer is not connected: subscribe again and repeat the acknowledgement"
            )
            self._refuse(command, code, problem)
            return
        consumer = found.consumer
        individual = command.ack_type == pb.CommandAck.Individual
        if not individual and consumer.type not in IN_ORDER:
            refusal = "cumulative acknowledgement needs an Exclusive or Failover subscription"
            self._refuse(command, pb.NotAllowedError, refusal)
        elif found.channel.resetting:
            # The cursor moves: this would acknowledge entries that a seek just went back to.
            self._refuse(command, pb.ServiceNotReady, "the subscription is being moved")
        elif in_transaction:
            self._client.spawn(self._transactions.acknowledge(found, command))
        elif individual:
            consumer.acknowledges()
            self._acknowledge(found, command)
        elif remote_ids.is_remote(found.partition.log, position_of(command)):
            self._acknowledge_remote(found, command)
        else:
            consumer.acknowledges()
            self._acknowledge_up_to(found, command)

    def _refuse(self, command: pb.CommandAck, code: pb.ServerError, message: str) -> None:
        if command.request_id:
            answer = pb.CommandAckResponse(
                consumer_id=command.consumer_id,
                request_id=command.request_id,
                error=code,
                message=message,
            )
            if command.HasField("txnid_most_bits"):
                answer.txnid_most_bits = command.txnid_most_bits
                answer.txnid_least_bits = command.txnid_least_bits
            self._client.connection.send(answer)

    # -- individual ----------------------------------------------------------------

    def _acknowledge(self, found: ConnectedConsumer, command: pb.CommandAck) -> None:
        log = found.partition.log
        span = log.table(found.channel.compacted).span
        ledger_id, first, limit = -1, 0, 0
        offsets: list[int] = []
        partial: list[tuple[int, list[int]]] = []
        for data in command.message_id:
            if data.ledgerId != ledger_id:
                ledger_id, first, limit = span(data.ledgerId)
            offset = first + data.entryId
            if offset >= limit:
                position = Position(data.ledgerId, data.entryId)
                offset = remote_ids.offset_of(log, position, -1)
                if offset < 0 and remote_ids.is_nobodys(log, position):
                    problem = f"message {position} is unknown: it is of another topic"
                    self._refuse(command, pb.NotAllowedError, problem)
                    return
                if offset < 0:
                    continue  # trimmed away, so it was acknowledged before
            if data.ack_set and any(data.ack_set):
                if fault := fault_of_ack_set(log, offset, len(data.ack_set)):
                    self._refuse(command, pb.NotAllowedError, fault)
                    return
                partial.append((offset, words_of(data)))
            else:
                offsets.append(offset)
        self._pass_on(found, command.request_id, flat_ranges(offsets), partial)

    def _pass_on(
        self,
        found: ConnectedConsumer,
        request_id: int,
        ranges: list[int],
        partial: list[tuple[int, list[int]]],
    ) -> None:
        consumer = found.consumer
        if request_id:
            found.channel.expect_receipt(consumer, request_id)
        end = found.partition.log.end_offset
        ends = [at + 1 for at, _ in partial] + ranges[-1:]
        last = max(ends, default=0)
        found.channel.delivery.acknowledging(last)
        notice = AckEntries(consumer.number, request_id, end, ranges, partial)
        found.channel.acknowledge(notice, min(last, end))

    # -- cumulative ----------------------------------------------------------------

    def _acknowledge_up_to(self, found: ConnectedConsumer, command: pb.CommandAck) -> None:
        consumer, log = found.consumer, found.partition.log
        offset = log.table(found.channel.compacted).at_or_before(position_of(command))
        words = remaining_words(command.message_id[0])
        if words is None or offset < 0:
            offset, words = offset + 1, None
        elif fault := fault_of_ack_set(log, offset, len(words)):
            self._refuse(command, pb.NotAllowedError, fault)
            return
        if command.request_id:
            found.channel.expect_receipt(consumer, command.request_id)
        end = log.end_offset
        last = offset if words is None else offset + 1
        found.channel.delivery.acknowledging(last)
        notice = AckEntriesBefore(consumer.number, command.request_id, end, offset, words)
        found.channel.acknowledge(notice, min(last, end))

    def _acknowledge_remote(self, found: ConnectedConsumer, command: pb.CommandAck) -> None:
        """Acknowledge up to a position of another cluster."""
        consumer, log = found.consumer, found.partition.log
        position, words = position_of(command), remaining_words(command.message_id[0])
        # What the consumer acknowledged so before is left out. That is safe, because a move of the
        # cursor closes all consumers.
        number = cluster_number_of(position.ledger_id)
        first = consumer.acked_up_to.get(number, log.table().first_offset)
        up_to = remote_ids.up_to(log, first, position, words)
        if up_to is None:
            self._client.spawn(self._acknowledge_remote_slowly(found, command))
            return
        consumer.acked_up_to[number] = up_to.end
        self._pass_on(found, command.request_id, remote_ids.flat(up_to.ranges), up_to.partial)

    async def _acknowledge_remote_slowly(
        self, found: ConnectedConsumer, command: pb.CommandAck
    ) -> None:
        consumer, log = found.consumer, found.partition.log
        channel, position = found.channel, position_of(command)
        words = remaining_words(command.message_id[0])
        try:
            up_to = await remote_ids.up_to_slowly(log, channel, position, words)
            if consumer.closed or channel.resetting:
                raise RpcConnectionClosed(CONSUMER_CLOSED)
        except CALL_ERRORS as error:
            self._refuse(command, code_of(error), reason_of(error))
            return
        consumer.acked_up_to[cluster_number_of(position.ledger_id)] = up_to.end
        self._pass_on(found, command.request_id, remote_ids.flat(up_to.ranges), up_to.partial)

    # -- redelivery ----------------------------------------------------------------

    def on_redeliver(self, command: pb.CommandRedeliverUnacknowledgedMessages) -> None:
        """Ask the subscription to deliver messages again: those named, or all that the consumer
        holds."""
        found = self._consumers.get(command.consumer_id)
        if found is None:
            return
        consumer, log = found.consumer, found.partition.log
        ranges = None
        if command.message_ids:
            table = log.table(found.channel.compacted)
            offsets = []
            for data in command.message_ids:
                position = Position(data.ledgerId, data.entryId)
                try:
                    offset = table.offset_of(position)
                except NoSuchEntryError:
                    offset = remote_ids.offset_of(log, position, -1)
                if offset >= 0:  # otherwise the entry doesn't exist any more
                    offsets.append(offset)
            ranges = flat_ranges(offsets)
        epoch = None
        if consumer.type in IN_ORDER and command.HasField("consumer_epoch"):
            epoch = command.consumer_epoch
        found.channel.tell(Redeliver(consumer.number, ranges, epoch))
