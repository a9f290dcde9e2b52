"""What a consumer of one topic partition has acknowledged, and what it still has to send.

No I/O: when its timer fires, the consumer asks `AckTracker.take` what to send.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from velaray.client.exceptions import InvalidMessage
from velaray.client.message_id import MessageId
from velaray.events.ids import cluster_number_of

Where = tuple[int, int]
"""Ledger id and entry id."""

_WHOLE = 1 << 31
_WORD = (1 << 64) - 1


class PendingAck(NamedTuple):
    """One entry to acknowledge: the whole entry, or the bits of its unacknowledged messages."""

    where: Where
    bits: int | None = None
    size: int = 0


class PendingAcks(NamedTuple):
    """Acknowledgements to send."""

    individual: list[PendingAck]
    cumulative: PendingAck | None


def of_one_cluster(one: Where, other: Where) -> bool:
    """Whether two ids can be compared: both are of one cluster, or one precedes everything."""
    return min(one[0], other[0]) < 0 or cluster_number_of(one[0]) == cluster_number_of(other[0])


def words(bits: int, size: int) -> list[int]:
    """``bits`` of a batch of ``size`` messages as the signed 64 bit words of the protocol."""
    unsigned = [bits >> shift & _WORD for shift in range(0, size, 64)]
    return [word - (1 << 64) if word >> 63 else word for word in unsigned]


def bits_of(ack_set: tuple[int, ...] | list[int]) -> int:
    """The reverse of `words`."""
    bits = 0
    for index, word in enumerate(ack_set):
        bits |= (word & _WORD) << 64 * index
    return bits


def bits_at(indexes: Sequence[int]) -> int:
    """The number whose set bits are ``indexes``, in ascending order."""
    if not indexes:
        return 0
    first, last = indexes[0], indexes[-1]
    if last - first == len(indexes) - 1:
        return ((1 << len(indexes)) - 1) << first
    digits = bytearray(b"0") * (last + 1)
    for index in indexes:
        digits[last - index] = 0x31
    return int(digits, 2)


def indexes_of(bits: int) -> list[int]:
    """The reverse of `bits_at`."""
    return [index for index, digit in enumerate(f"{bits:b}"[::-1]) if digit == "1"]


class AckTracker:
    """Collects acknowledgements and tracks the open messages of each batch.

    A batch is one entry. It counts as acknowledged when all its messages are acknowledged. With
    ``batch_index_ack`` acknowledgements of single messages are sent as well.
    """

    def __init__(self, batch_index_ack: bool = False) -> None:
        self._batch_index_ack = batch_index_ack
        self._open: dict[Where, int] = {}
        # Delivered messages of partly delivered batches. The other messages are acknowledged by
        # other consumers or pending in transactions, so they may still be delivered.
        self._outstanding: dict[Where, int] = {}
        self._sizes: dict[Where, int] = {}
        self._chunks: dict[Where, list[Where]] = {}
        # Messages, as bits, that are acknowledged in open transactions.
        self._in_transactions: dict[Where, int] = {}
        # Acknowledgements to send: None is a whole entry, bits are messages acknowledged since.
        self._individual: dict[Where, int | None] = {}
        self._cumulative: tuple[int, int, int] | None = None
        self._sent: tuple[int, int, int] = (-1, -1, -1)
        self._durable: tuple[int, int, int] = (-1, -1, -1)

    def __len__(self) -> int:
        return len(self._individual) + (self._cumulative is not None)

    @property
    def open_batches(self) -> int:
        """Number of batches with unacknowledged messages."""
        return len(self._open)

    def open_bits(self, where: Where) -> int | None:
        """The unacknowledged messages of a batch; None if the batch is unknown."""
        known = self._open.get(where)
        if known is None:
            return None
        return self._outstanding.get(where, known) & known & ~self._in_transactions.get(where, 0)

    def batch_arrived(self, where: Where, size: int, outstanding: int | None = None) -> int:
        """Note a delivery of a batch; return the bits of the messages to hand out.

        ``outstanding`` are the service's bits. Messages that were acknowledged here since are left
        out. 0 means that nothing is left: the acknowledgements are queued again.
        """
        here = self._open.get(where, (1 << size) - 1)
        self._sizes[where] = size
        if self._in_transactions.get(where):  # their transaction was aborted
            self._in_transactions[where] &= ~(here if outstanding is None else outstanding)
        if outstanding is None:
            self._outstanding.pop(where, None)
        else:
            self._outstanding[where] = outstanding
        bits = here if outstanding is None else here & outstanding
        if bits:
            self._open[where] = here
        else:
            self._done(where, here)
        return bits

    def _done(self, where: Where, left: int) -> None:
        """Queue the acknowledgement of a batch's delivered messages; only others are ``left``.

        The whole entry isn't acknowledged: messages pending in a transaction may still be
        delivered.
        """
        self._open.pop(where, None)
        self._outstanding.pop(where, None)
        if self._individual.get(where, 0) is not None:
            self._individual[where] = (1 << self._sizes[where]) - 1 & ~left
        else:
            del self._sizes[where]

    def chunks_arrived(self, where: Where, entries: list[Where]) -> None:
        """Note that the message at ``where`` consists of ``entries``, acknowledged together."""
        self._chunks[where] = entries

    def parts_of(self, where: Where) -> Sequence[Where]:
        """The entries that are acknowledged together with ``where``: the chunks of its message."""
        return self._chunks.get(where, (where,))

    def individual(self, message_id: MessageId) -> bool:
        """Acknowledge one message; True if its entry is now acknowledged as a whole.

        Raises `InvalidMessage` for an id within a batch of unknown size.
        """
        where = (message_id.ledger_id(), message_id.entry_id())
        index = message_id.batch_index()
        if index < 0:
            self._whole(where)
            return True
        return self._acknowledged(where, self._bits(message_id, where), 1 << index)

    def individual_bits(self, where: Where, size: int, bits: int, tell: bool = False) -> bool:
        """As `individual` for all messages of a batch of ``size`` whose bits are set.

        ``size`` 0 is an entry that is no batch. ``tell`` sends the acknowledgement even if
        acknowledgements of single messages aren't sent.
        """
        if not size:
            self._whole(where)
            return True
        known = self._open.get(where)
        if known is None:
            known, self._sizes[where] = (1 << size) - 1, size
        return self._acknowledged(where, known, bits, tell)

    def _acknowledged(self, where: Where, known: int, bits: int, tell: bool = False) -> bool:
        left = known & ~bits
        if not left:
            self._whole(where)
            return True
        if not left & self._outstanding.get(where, left):
            self._done(where, left)
            return True
        self._open[where] = left
        if self._batch_index_ack or tell:
            pending = self._individual.get(where, 0)
            if pending is not None:
                # Messages that were sent before aren't skipped: another client's seek may have
                # invalidated them.
                self._individual[where] = pending | known & bits
        return False

    def cumulative(self, message_id: MessageId) -> Where:
        """Acknowledge everything up to ``message_id``; return the last entry that is now complete.

        Raises `InvalidMessage` for an id within a batch of unknown size.
        """
        ledger, entry = where = (message_id.ledger_id(), message_id.entry_id())
        if not all(of_one_cluster(where, it[:2]) for it in (self._sent, self._cumulative or where)):
            # A cumulative acknowledgement can't be compared with one of another cluster: the last
            # one counts.
            self._sent = self._durable = (-1, -1, -1)
            self._cumulative = None
        index = message_id.batch_index()
        reached, told = (ledger, entry, _WHOLE), self._batch_index_ack
        if index >= 0:
            bits = self._bits(message_id, where) >> index + 1 << index + 1
            if bits:
                self._open[where] = bits
                reached = (ledger, entry, index)
                told = told or not bits & self._outstanding.get(where, bits)
        done = (ledger, entry) if reached[2] == _WHOLE else (ledger, entry - 1)
        self._forget_until(done)
        # An acknowledgement without a receipt may have been refused. A repeated one for a
        # redelivered message is sent again, up to the same position.
        known = self._durable
        if reached[2] != _WHOLE and not told:
            reached, known = (ledger, entry - 1, _WHOLE), self._sent
        if reached > known:
            self._cumulative = max(reached, self._cumulative or self._sent)
        return done

    def in_transaction(self, where: Where, size: int, bits: int) -> bool:
        """Note messages of an entry acknowledged in a transaction; True if none of it is left.

        ``size`` 0 is an entry that is no batch.
        """
        if not size:
            return True
        held = self._in_transactions[where] = self._in_transactions.get(where, 0) | bits
        here = self._open.get(where, (1 << size) - 1)
        return not here & self._outstanding.get(where, here) & ~held

    def out_of_transaction(self, where: Where, size: int, bits: int, committed: bool) -> bool:
        """Note the end of the transaction; True if all of the entry is acknowledged by it."""
        if not size:
            if committed:
                self._chunks.pop(where, None)
            return committed
        left = self._in_transactions.get(where, 0) & ~bits
        if left:
            self._in_transactions[where] = left
        else:
            self._in_transactions.pop(where, None)
        # Other acknowledged messages of the batch may be known only here, so all of them are sent.
        return committed and self.individual_bits(where, size, bits)

    def committed_until(self, message_id: MessageId) -> Where:
        """Note a committed cumulative acknowledgement; return the last complete entry."""
        ledger, entry = where = (message_id.ledger_id(), message_id.entry_id())
        done = where
        index = message_id.batch_index()
        if index >= 0 and (bits := self._bits(message_id, where) >> index + 1 << index + 1):
            self._open[where] = bits
            done = (ledger, entry - 1)
        self._forget_until(done)
        return done

    def take(self, receipt: bool = False) -> PendingAcks:
        """Return the acknowledgements to send now; they count as sent.

        With ``receipt`` the last cumulative acknowledgement is included if it isn't known to be
        durable: a later call that goes no further has nothing of its own to send.
        """
        if receipt and self._cumulative is None and self._sent > self._durable:
            self._cumulative = self._sent
        individual = [self._pending(where, acked) for where, acked in self._individual.items()]
        self._individual = {}
        cumulative = None
        if self._cumulative is not None:
            ledger, entry, index = self._sent = self._cumulative
            self._cumulative = None
            where = (ledger, entry)
            cumulative = PendingAck(where)
            if index != _WHOLE and where in self._open:
                cumulative = PendingAck(where, self._open[where], self._sizes[where])
        return PendingAcks(individual, cumulative)

    def _pending(self, where: Where, acked: int | None) -> PendingAck:
        if acked is None:
            return PendingAck(where)
        size = self._sizes[where]
        if where not in self._open:
            del self._sizes[where]
        return PendingAck(where, (1 << size) - 1 & ~acked, size)

    def durable(self, acks: PendingAcks) -> None:
        """Note that the service confirmed ``acks``."""
        if acks.cumulative is not None:
            (ledger, entry), bits, _ = acks.cumulative
            # For a partial batch the acknowledged messages are known, but no cumulative position.
            reached = (ledger, entry, _WHOLE) if bits is None else (ledger, entry - 1, _WHOLE)
            self._durable = max(self._durable, reached)

    def put_back(self, acks: PendingAcks) -> None:
        """Return ``acks`` that could not be sent to the pending ones."""
        for where, bits, size in acks.individual:
            pending = self._individual.get(where, 0)
            if bits is None:
                self._individual[where] = None
            elif pending is not None:
                self._individual[where] = pending | (1 << size) - 1 & ~bits
                self._sizes[where] = size
        if acks.cumulative is not None:
            (ledger, entry), bits, _ = acks.cumulative
            # A partial batch is sent with its current bits, so its index is only used for ordering.
            reached = (ledger, entry, _WHOLE if bits is None else 0)
            self._cumulative = max(reached, self._cumulative or self._sent)

    def reset(self) -> None:
        """Clear everything: a seek moved the subscription."""
        self.__init__(self._batch_index_ack)  # type: ignore[misc]

    def subscribed_again(self) -> None:
        """Discard the acknowledgements that were sent before; keep those that are still to send.

        Another consumer, or an administrator, may have moved the subscription back: then the
        service delivers everything again. Otherwise its deliveries say which messages are
        acknowledged. Without ``batch_index_ack`` it delivers all messages of a partly acknowledged
        batch.
        """
        self._sent = self._durable = (-1, -1, -1)
        unsent = {
            where: (1 << self._sizes[where]) - 1 & ~acked
            for where, acked in self._individual.items()
            if acked is not None
        }
        if self._cumulative is not None:
            ledger, entry, index = self._cumulative
            where = (ledger, entry)
            if index != _WHOLE and where in self._open:
                # The bits include cumulative acknowledgements: no lower message is open.
                unsent[where] = self._open[where]
        self._open = unsent
        self._outstanding = {}
        self._sizes = {where: self._sizes[where] for where in unsent}

    def _whole(self, where: Where) -> None:
        self._open.pop(where, None)
        self._outstanding.pop(where, None)
        self._sizes.pop(where, None)
        for entry in self._chunks.pop(where, (where,)):
            self._individual[entry] = None

    def _bits(self, message_id: MessageId, where: Where) -> int:
        bits = self._open.get(where)
        if bits is not None:
            return bits
        size = message_id.batch_size()
        if size <= message_id.batch_index():
            raise InvalidMessage(
                f"{message_id} is part of a batch of unknown size: acknowledge the message "
                "as received, or an id with its batch size"
            )
        self._sizes[where] = size
        return (1 << size) - 1

    def _forget_until(self, done: Where) -> None:
        tables = (self._open, self._outstanding, self._sizes, self._chunks, self._individual)
        for table in tables:
            gone = [at for at in table if at <= done and of_one_cluster(at, done)]
            for where in gone:
                del table[where]
