"""Sets of pending acknowledgements by transaction; see
`velaray.actors.subscription.pending_acks`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from sortedcontainers import SortedDict

from velaray.actors.machine import require
from velaray.actors.sets.holdings import Holding, Holdings
from velaray.actors.sets.ranges import Range, RangeSet
from velaray.actors.subscription.cursor import Cursor, pack_ranges, unpack_ranges
from velaray.events.ids import TransactionId


class Before(NamedTuple):
    """A cumulative acknowledgement: everything before ``offset``, and with ``remaining`` also the
    messages of the batch at ``offset`` whose bits aren't set."""

    offset: int
    ack_set: int | None


@dataclass(slots=True)
class PendingAck:
    """The acknowledgements that a commit of one transaction makes: whole entries, messages of
    batches by offset (bit i set = message i is acknowledged), and everything ``before``."""

    ranges: RangeSet = field(default_factory=RangeSet)
    partial: dict[int, int] = field(default_factory=dict)
    before: Before | None = None

    def __bool__(self) -> bool:
        return bool(self.ranges) or bool(self.partial) or self.before is not None


@dataclass(slots=True)
class PendingBatch:
    """The size of a batch in messages, and the transactions in which messages of it are pending."""

    messages: int
    holders: set[TransactionId] = field(default_factory=set)


class PendingAcks:
    """Pending acknowledgements by transaction; they never overlap with acknowledged entries."""

    __slots__ = ("_advancing", "_batches", "_owners", "_transactions")

    def __init__(self) -> None:
        self._transactions: dict[TransactionId, PendingAck] = {}
        # Whole entries by offset.
        self._owners: Holdings[TransactionId] = Holdings()
        self._batches: SortedDict = SortedDict()  # offset -> PendingBatch
        self._advancing: TransactionId | None = None

    def __bool__(self) -> bool:
        return bool(self._transactions)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PendingAcks):
            return NotImplemented
        same = self._transactions == other._transactions
        return same and bool(self._batches == other._batches)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"PendingAcks({self._transactions})"

    # ---- queries

    def transactions(self) -> list[TransactionId]:
        """The transactions with pending acknowledgements, ascending."""
        return sorted(self._transactions)

    def items(self) -> list[tuple[TransactionId, PendingAck]]:
        """The pending acknowledgements of each transaction, ascending; read-only."""
        return sorted(self._transactions.items(), key=lambda item: item[0])

    def of(self, transaction: TransactionId) -> PendingAck | None:
        """The pending acknowledgements of a transaction, read-only; None if it has none."""
        return self._transactions.get(transaction)

    @property
    def advancing(self) -> tuple[TransactionId, Before] | None:
        """The transaction that acknowledges cumulatively, and its place."""
        if self._advancing is None:
            return None
        before = self._transactions[self._advancing].before
        assert before is not None
        return self._advancing, before

    def owner_of(self, offset: int) -> TransactionId | None:
        """The transaction in which the whole entry is pending."""
        return self._owners.owner_of(offset)

    def holder_of(
        self, offset: int, bits: int, but: TransactionId | None = None
    ) -> TransactionId | None:
        """A transaction other than ``but`` in which the whole entry or some of these messages are
        pending."""
        owner = self._owners.owner_of(offset)
        if owner is not None:
            return None if owner == but else owner
        if offset in self._batches:
            batch: PendingBatch = self._batches[offset]
            for holder in sorted(batch.holders):
                if holder != but and self._bits(holder, offset) & bits:
                    return holder
        return None

    def has_part(self, transaction: TransactionId, offset: int, bits: int) -> bool:
        """Whether these messages of a batch, or the whole entry, are pending in the transaction."""
        if self._owners.owner_of(offset) == transaction:
            return True
        batch = self._batches.get(offset)
        held = batch is not None and transaction in batch.holders
        return held and not bits & ~self._bits(transaction, offset)

    def messages_of(self, offset: int) -> int | None:
        """The size of a batch that is pending in part."""
        return self._batches[offset].messages if offset in self._batches else None

    def bits(self, offset: int) -> int:
        """The messages of a batch that are pending in any transaction; none of an entry that is
        pending as a whole."""
        if offset not in self._batches:
            return 0
        bits = 0
        for each in self._batches[offset].holders:
            bits |= self._bits(each, offset)
        return bits

    def _bits(self, transaction: TransactionId, offset: int) -> int:
        return self._transactions[transaction].partial[offset]

    def owned(self, first: int, end: int) -> list[Holding[TransactionId]]:
        """The pending whole entries of a range with their transactions, ascending."""
        return self._owners.within(first, end)

    def batches(self, first: int, end: int) -> list[int]:
        """Offsets of the batches with pending messages, ascending."""
        return list(self._batches.irange(first, end, (True, False)))

    def other_before(
        self, transaction: TransactionId, before: Before, cursor: Cursor
    ) -> tuple[int, TransactionId] | None:
        """An offset before a place that is pending in another transaction, and that transaction.
        Cumulative acknowledgements don't count."""
        first, (offset, ack_set) = cursor.acked_before, before
        for part in self._owners.within(first, offset) if first < offset else ():
            if part.owner != transaction:
                return part.first, part.owner
        for batch in self.batches(first, offset):
            holder = self.holder_of(batch, -1, transaction)
            if holder is not None:
                return batch, holder
        known = cursor.ack_set(offset)
        bits = 0 if ack_set is None else ~ack_set & (-1 if known is None else known)
        holder = self.holder_of(offset, bits, transaction) if bits else None
        return None if holder is None else (offset, holder)

    def end_of(self, offset: int) -> int:
        """The end of the run of entries that are pending in the same transaction as the one at
        ``offset``."""
        return self._owners.end_of(offset)

    def next_owned(self, offset: int, limit: int) -> int:
        """The next entry after ``offset`` that is pending as a whole, if the one at ``offset``
        isn't; at most ``limit``."""
        return self._owners.next_start(offset, limit)

    def end(self) -> int:
        """The offset from which on nothing is pending."""
        batches = self._batches
        return max(self._owners.end(), batches.peekitem(-1)[0] + 1 if batches else 0)

    # ---- changes

    def hold(self, transaction: TransactionId, ranges: Iterable[Range]) -> None:
        """Make whole entries pending."""
        mine = self._transactions.setdefault(transaction, PendingAck())
        for first, end in ranges:
            mine.ranges.add(first, end)
            self._owners.give(first, end, transaction)

    def hold_part(self, transaction: TransactionId, offset: int, bits: int, messages: int) -> None:
        """Make messages of a batch pending."""
        mine = self._transactions.setdefault(transaction, PendingAck())
        mine.partial[offset] = mine.partial.get(offset, 0) | bits
        batch = self._batches.setdefault(offset, PendingBatch(messages))
        batch.holders.add(transaction)

    def hold_before(self, transaction: TransactionId, before: Before) -> None:
        """Make everything before a place pending, cumulatively."""
        self._transactions.setdefault(transaction, PendingAck()).before = before
        self._advancing = transaction

    def drop(self, transaction: TransactionId) -> None:
        """Drop a transaction."""
        mine = self._transactions.get(transaction)
        if mine is None:
            return
        for first, end in mine.ranges:
            self._owners.take(first, end)
        for offset in list(mine.partial):
            self._drop_part(transaction, offset)
        if self._advancing == transaction:
            self._advancing = None
        del self._transactions[transaction]

    def clear(self) -> None:
        """Drop all transactions."""
        self._transactions.clear()
        self._owners.clear()
        self._batches.clear()
        self._advancing = None

    def forget(self, first: int, end: int) -> None:
        """Drop entries that are acknowledged."""
        for part in self._owners.take(first, end):
            self._transactions[part.owner].ranges.discard(part.first, part.end)
            self._drop_if_empty(part.owner)
        for offset in self.batches(first, end):
            for transaction in sorted(self._batches[offset].holders):
                self._drop_part(transaction, offset)
                self._drop_if_empty(transaction)

    def forget_part(self, offset: int, ack_set: int) -> None:
        """Drop the messages of a batch that are acknowledged: all but these."""
        if offset not in self._batches:
            return
        for transaction in sorted(self._batches[offset].holders):
            partial = self._transactions[transaction].partial
            partial[offset] &= ack_set
            if not partial[offset]:
                self._drop_part(transaction, offset)
                self._drop_if_empty(transaction)

    def forget_before(self, cursor: Cursor) -> None:
        """Drop the cumulative acknowledgement if the mark has reached it."""
        if self._advancing is not None:
            mine = self._transactions[self._advancing]
            if mine.before is not None and not advances(mine.before, cursor):
                mine.before = None
                self._drop_if_empty(self._advancing)
                self._advancing = None

    def _drop_part(self, transaction: TransactionId, offset: int) -> None:
        del self._transactions[transaction].partial[offset]
        batch = self._batches[offset]
        batch.holders.remove(transaction)
        if not batch.holders:
            del self._batches[offset]

    def _drop_if_empty(self, transaction: TransactionId) -> None:
        if not self._transactions[transaction]:
            del self._transactions[transaction]


def advances(before: Before, cursor: Cursor) -> bool:
    """Whether a cumulative acknowledgement goes beyond the cursor."""
    offset, ack_set = before
    if cursor.acked_before != offset or ack_set is None:
        return cursor.acked_before < offset
    known = cursor.ack_set(offset)
    return known is None or bool(known & ~ack_set)


def check(pending: PendingAcks, cursor: Cursor) -> None:
    """Raise `InvariantViolation` if an invariant is broken."""
    for transaction in pending.transactions():
        mine = pending.of(transaction)
        assert mine is not None
        require(bool(mine), "a transaction is known for what is pending in it", f"{transaction}")
        for first, end in mine.ranges:
            unacked = cursor.unacked_ranges(first, end) == [(first, end)]
            require(unacked, "nothing acknowledged is pending", f"{first} to {end}")
            owned = pending.owned(first, end) == [(first, end, transaction)]
            require(owned, "an entry is pending in one transaction", f"{first} to {end}")
            batches = pending.batches(first, end)
            require(not batches, "an entry is pending as a whole or in part", f"{batches}")
        if mine.before is not None:
            require(
                advances(mine.before, cursor),
                "a cumulative acknowledgement is beyond the mark",
                f"{mine.before} at {cursor.acked_before}",
            )
            other = pending.other_before(transaction, mine.before, cursor)
            require(other is None, "an entry is pending in one transaction", f"{other}")
    going = [who for who, mine in pending.items() if mine.before is not None]
    advancing = [] if pending.advancing is None else [pending.advancing[0]]
    require(going == advancing, "one transaction at most acknowledges cumulatively", f"{going}")
    ranges = sum(mine.ranges.size() for _, mine in pending.items())
    owned_ranges = sum(end - first for first, end, _ in pending.owned(0, pending.end()))
    require(ranges == owned_ranges, "the owners of entries have them pending", f"{ranges}")
    _check_batches(pending, cursor)


def _check_batches(pending: PendingAcks, cursor: Cursor) -> None:
    parts: dict[int, int] = {}
    for transaction, mine in pending.items():
        for offset, bits in mine.partial.items():
            messages = pending.messages_of(offset)
            require(
                messages is not None and 0 < bits < 1 << messages,
                "parts of batches are of their messages",
                f"{offset} in {transaction}",
            )
            once = not parts.get(offset, 0) & bits
            require(once, "a message is pending in one transaction", f"{offset} in {transaction}")
            parts[offset] = parts.get(offset, 0) | bits
    for offset, bits in parts.items():
        require(
            pending.bits(offset) == bits, "the holders of messages have them pending", f"{offset}"
        )
        known = cursor.ack_set(offset)
        require(
            not cursor.is_acked(offset) and (known is None or not bits & ~known),
            "nothing acknowledged is pending",
            f"part of {offset}",
        )
    require(
        sorted(parts) == pending.batches(0, pending.end()), "batches are known that are pending"
    )


def snapshot(pending: PendingAcks) -> bytes | None:
    """The pending acknowledgements as a segment; None if there are none."""
    if not pending:
        return None
    listed = []
    for transaction, mine in pending.items():
        parts = [
            [offset, bits, pending.messages_of(offset)]
            for offset, bits in sorted(mine.partial.items())
        ]
        listed.append([transaction, pack_ranges(mine.ranges), parts, mine.before])
    return json.dumps(listed, separators=(",", ":")).encode()


def restore(segment: bytes | None) -> PendingAcks:
    """The inverse of `snapshot`."""
    pending = PendingAcks()
    for numbers, packed, parts, before in json.loads(segment or b"[]"):
        transaction = TransactionId(*numbers)
        pending.hold(transaction, unpack_ranges(packed))
        for offset, bits, messages in parts:
            pending.hold_part(transaction, offset, bits, messages)
        if before is not None:
            pending.hold_before(transaction, Before(*before))
    return pending
