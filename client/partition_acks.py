"""Acknowledging messages of one topic partition, with or without a transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence

from velaray.client.acknowledging import Acknowledger, AcksInTransaction, Part
from velaray.client.acks import Where, bits_at, indexes_of
from velaray.client.exceptions import InvalidMessage, VelarayError
from velaray.client.interceptors import ConsumerInterceptors
from velaray.client.message import EntryInfo
from velaray.client.message_id import MessageId
from velaray.client.read_position import ReadPosition
from velaray.client.redelivering import Redeliverer
from velaray.client.transactions import Transaction
from velaray.events.ids import TopicName


class PartitionAcks:
    """Records the user's acknowledgements, informs interceptors, and cancels redelivery."""

    def __init__(
        self,
        topic: TopicName,
        sending: Acknowledger,
        redelivery: Redeliverer,
        position: ReadPosition,
        interceptors: ConsumerInterceptors | None,
    ) -> None:
        self._topic = str(topic)
        self._partition = topic.partition
        self._sending = sending
        self._redelivery = redelivery
        self._position = position
        self._interceptors = interceptors

    def acknowledge(self, message_id: MessageId) -> None:
        """Add an acknowledgement to the next group. Raises as `AckTracker.individual`."""
        try:
            self.note(message_id)
        except InvalidMessage as error:
            if self._interceptors is not None:
                self._interceptors.failed(message_id, error)
            raise
        if self._interceptors is not None:
            self._interceptors.acknowledged([message_id])

    def note(self, message_id: MessageId) -> None:
        """Acknowledge as `acknowledge`, without informing interceptors."""
        if self._sending.tracker.individual(message_id):
            self.finished((message_id.ledger_id(), message_id.entry_id()))
        self._sending.schedule()

    def acknowledge_indexes(self, info: EntryInfo, indexes: Sequence[int]) -> None:
        """Add an acknowledgement of several messages of one entry to the next group."""
        bits = bits_at(indexes) if info.batch_size else 0
        if self._sending.tracker.individual_bits(info.where, info.batch_size, bits):
            self.finished(info.where)
        self._sending.schedule()
        if self._interceptors is not None:
            places = indexes if info.batch_size else [-1]
            self._interceptors.acknowledged(map(info.message_id, places))

    def acknowledge_elsewhere(self, info: EntryInfo, index: int) -> None:
        """Acknowledge a message that was moved to another topic."""
        if self._sending.elsewhere(info, index):
            self.finished(info.where)
        if self._interceptors is not None:
            self._interceptors.acknowledged([info.message_id(index)])

    def finished(self, where: Where) -> None:
        """Cancel the redelivery of a completely acknowledged entry."""
        self._redelivery.finished(where)
        self._position.finished(where)

    def acknowledge_cumulative(self, message_id: MessageId) -> None:
        """Add an acknowledgement of everything up to ``message_id`` to the next group."""
        done = self._sending.tracker.cumulative(message_id)
        self._redelivery.finished_until(done)
        self._sending.schedule()
        if self._interceptors is not None:
            self._interceptors.acknowledged_cumulatively(message_id)

    def acknowledge_in(self, txn: Transaction, acks: Mapping[Where, Part]) -> asyncio.Future[None]:
        """Acknowledge messages of these entries in a transaction: all of them, or none.

        The future is as that of `Acknowledger.in_transaction`.
        """
        return self._sending.in_transaction(txn, acks, self._recorded)

    def _recorded(self, turn: AcksInTransaction, error: VelarayError | None) -> None:
        interceptors, acks = self._interceptors, turn.acks
        if error is not None:
            if interceptors is not None:
                for message_id in self._ids(acks):
                    interceptors.failed(message_id, error)
            return
        if interceptors is not None:
            interceptors.acknowledged(self._ids(acks))
        if turn.moves != self._sending.moves:
            return  # a seek invalidated it: the same messages are delivered again
        tracker = self._sending.tracker
        for where, (size, bits) in acks.items():
            if tracker.in_transaction(where, size, bits):
                self._redelivery.finished(where)

        def ended(committed: bool) -> None:
            if turn.moves != self._sending.moves:
                return  # a seek invalidated it
            for where, (size, bits) in acks.items():
                if tracker.out_of_transaction(where, size, bits, committed):
                    self.finished(where)
            self._sending.schedule()

        turn.txn.when_ended(ended)

    def _ids(self, acks: Mapping[Where, Part]) -> Iterator[MessageId]:
        for where, (size, bits) in acks.items():
            for index in indexes_of(bits) if size else [-1]:
                at = (self._partition, *where, index)
                yield MessageId(*at, batch_size=size, topic=self._topic)

    async def acknowledge_until_in(self, txn: Transaction, message_id: MessageId) -> None:
        """Acknowledge everything up to ``message_id``; as `acknowledge_in`."""
        moves = self._sending.moves
        await self._sending.until_in_transaction(txn, message_id)
        if self._interceptors is not None:
            self._interceptors.acknowledged_cumulatively(message_id)
        self._redelivery.finished_until((message_id.ledger_id(), message_id.entry_id()))

        def ended(committed: bool) -> None:
            if committed and moves == self._sending.moves:
                until = self._sending.tracker.committed_until(message_id)
                self._redelivery.finished_until(until)

        txn.when_ended(ended)

    async def receipt(self) -> None:
        """Wait until every acknowledgement given so far is durable; as `Acknowledger.receipt`."""
        await self._sending.receipt()
