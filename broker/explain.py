"""The history of one message of a subscription, read from the journals.

It contains only journaled facts. Deliveries that were not journaled before a crash are missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Final

from google.protobuf.message import Message

from velaray.actors.partition.remote_transactions import name_of
from velaray.actors.subscription.cursor import Cursor, unpack_ranges
from velaray.actors.subscription.machine import SubscriptionMachine
from velaray.actors.subscription.tracing import FACTS, deliveries_of
from velaray.actors.subscription.undoing import move_of
from velaray.broker.explain_log import EVENTS_AT_ONCE, Fact, facts_of_log
from velaray.broker.history import positions_of
from velaray.broker.subscription.dispatcher_details import pending_in
from velaray.events.codec import decode
from velaray.events.events_pb2 import (
    ConsumerAttached,
    ConsumerDetached,
    CursorCreated,
    DeadLettersIntended,
    DeadLettersMoved,
    DeliveriesReturned,
    DeliveriesTraced,
    EntriesAcked,
    EntriesAskedAgain,
    EntriesDelivered,
    EntriesExpired,
    LedgerOpened,
    MarkDeleted,
    TransactionAcksEnded,
)
from velaray.events.ids import ActorKey, Position, TransactionId
from velaray.journal.replay import replay
from velaray.journal.store import LedgerStore

EARLY_MS: Final = 1000
"""The time of a delivery may be so much too early: it is that of the first one in its event."""


async def history_of(store: LedgerStore, key: ActorKey, position: Position) -> list[Fact]:
    """The journaled events of an entry: its publishing, then the others by their times.

    Raises `NoHistory` if there is no such entry; `NotStored`, `CorruptJournal`.
    """
    table = await positions_of(store, key)
    of_log = await facts_of_log(store, key, position, table)
    offset = table.offset_of(position)
    hidden = any(fact.what == "aborted" for fact in of_log)
    machine, story = SubscriptionMachine(), _Story(offset, hidden=hidden)
    state, seen = machine.initial(), 0
    traced: list[Fact] = []
    changes: list[Fact] = []
    async for record in replay(store, key.text()):
        event = decode(bytes(record.event))
        before, pending = _ack_state(state.cursor, offset), pending_in(state, offset)
        machine.evolve(state, event)
        after = _ack_state(state.cursor, offset)
        told = [*story.told(event, before, after, pending)]
        told += story.told_of_pending(event, pending, pending_in(state, offset), after)
        at_ms = int(getattr(event, "at_ms", 0)) or record.at_ms
        facts = traced if isinstance(event, (*FACTS, LedgerOpened)) else changes
        facts += [Fact(at_ms, record.sequence, *each) for each in told]
        seen += 1
        if seen % EVENTS_AT_ONCE == 0:
            await asyncio.sleep(0)  # let other tasks of the loop run
    return _in_order(of_log, traced, changes)


def _in_order(of_log: list[Fact], traced: list[Fact], changes: list[Fact]) -> list[Fact]:
    """All facts by time, the publishing first.

    At equal times the facts of the log come first, and changes of the cursor last. Facts about
    consumers may be journaled after the changes that follow from them, and the time of a delivery
    is that of the first one in its event: it isn't before the log lets consumers read the entry.
    """
    readable_ms = max(fact.at_ms for fact in of_log)
    traced = [
        fact._replace(at_ms=max(_after_aborts(fact.at_ms, changes), readable_ms))
        if fact.what == "delivered"
        else fact
        for fact in traced
    ]
    rest = [*of_log[1:], *traced, *changes]
    return [of_log[0], *sorted(rest, key=lambda fact: fact.at_ms)]


def _after_aborts(at_ms: int, changes: list[Fact]) -> int:
    """The time of a delivery, which is after an abort rather than just before it: an entry that is
    acknowledged in an open transaction isn't delivered."""
    pending = [fact.at_ms for fact in changes if fact.what == "pending" and fact.at_ms < at_ms]
    for fact in changes:
        if pending and fact.what == "ack-aborted" and fact.at_ms - EARLY_MS <= at_ms <= fact.at_ms:
            return fact.at_ms + 1
    return at_ms


def _ack_state(cursor: Cursor, offset: int) -> bool | int | None:
    """The state of the entry: True if acknowledged, the mask of the rest of a batch, or None."""
    return True if cursor.is_acked(offset) else cursor.ack_set(offset)


Told = tuple[str, str, str]


class _Story:
    """Collects the facts about one entry from events, and tracks which consumer holds it."""

    def __init__(self, offset: int, *, hidden: bool) -> None:
        """``hidden``: the entry is known to belong to an aborted transaction."""
        self._offset = offset
        self._hidden = hidden
        self._names: dict[int, str] = {}
        self._addresses: dict[int, str] = {}
        self._holder = 0
        self._epoch = 0
        self._delivered = 0
        self._pending_by = ""

    def _name(self, consumer: int) -> str:
        return self._names.get(consumer, f"consumer {consumer}" if consumer else "")

    def _within(self, event: Any) -> bool:
        return any(first <= self._offset < end for first, end in unpack_ranges(event.ranges))

    def told(
        self, event: Message, before: Any, after: Any, pending: TransactionId | None
    ) -> Iterator[Told]:
        """The facts in ``event``. ``pending`` is the transaction in which the entry was
        acknowledged before the event; the other arguments are its states before and after the
        event."""
        yield from self._of_consumers(event, is_acked=after is True)
        yield from self._of_counts(event)
        if before is not True and after is True:
            yield self._acknowledged(event, pending)
        elif before is True and after is not True:
            move = move_of(event)
            yield "unacknowledged", "", f"to be delivered again, by {move}"
        elif before != after and after is not None:
            left = [index for index in range(after.bit_length()) if after >> index & 1]
            who = self._name(getattr(event, "consumer", 0))
            by = _by(who, getattr(event, "cluster", ""))
            text = f"acknowledged in part{by}: messages {left} of the batch are left"
            yield "acknowledged-in-part", who, text

    def told_of_pending(
        self,
        event: Message,
        before: TransactionId | None,
        after: TransactionId | None,
        ack_state: Any,
    ) -> Iterator[Told]:
        """The facts in ``event`` about acknowledgements in open transactions. ``before`` and
        ``after`` are the transactions in which the entry is pending before and after the event."""
        if before == after:
            return
        if after is not None:
            self._pending_by = who = self._name(getattr(event, "consumer", 0))
            yield "pending", who, f"acknowledged{_by(who)} in {name_of(after)}, which is still open"
        elif before is not None and ack_state is not True:
            who, name = self._pending_by, name_of(before)
            if not isinstance(event, TransactionAcksEnded):
                text = f"no longer acknowledged in {name}: the cursor was moved"
                yield "not-pending", who, text
            elif not event.commit:
                yield "ack-aborted", who, f"{name} was aborted: its acknowledgement doesn't count"

    def _of_consumers(self, event: Message, *, is_acked: bool) -> Iterator[Told]:
        match event:
            case LedgerOpened(epoch=epoch) if epoch != self._epoch:
                self._epoch = epoch
                if self._holder:
                    name = self._name(self._holder)
                    yield (
                        "released",
                        name,
                        f"the subscription's actor restarted; the delivery to {name} ended",
                    )
                self._names.clear()
                self._addresses.clear()
                self._holder = 0
            case ConsumerAttached():
                self._names[event.consumer] = event.name
                self._addresses[event.consumer] = event.address
            case ConsumerDetached(consumer=consumer):
                if consumer == self._holder:
                    name, self._holder = self._name(consumer), 0
                    yield "released", name, f"consumer {name} left"
            case DeliveriesTraced():
                for consumer, first, end in deliveries_of(event):
                    if first <= self._offset < end:
                        self._holder = 0 if is_acked else consumer
                        self._delivered += 1
                        name = self._name(consumer)
                        address = self._addresses.get(consumer, "")
                        whom = f"{name} at {address}" if address else name
                        text = f"delivered to {whom} (known delivery {self._delivered})"
                        yield "delivered", name, text
            case EntriesAskedAgain(consumer=consumer):
                if consumer == self._holder and (event.all or self._within(event)):
                    name, self._holder = self._name(consumer), 0
                    text = f"{name} requested redelivery: a negative acknowledgement or a timeout"
                    yield "asked-again", name, text

    def _of_counts(self, event: Message) -> Iterator[Told]:
        match event:
            case EntriesDelivered() if self._within(event):
                yield "counted", "", "a delivery was counted"
            case DeliveriesReturned() if self._within(event):
                yield "returned", "", "its delivery ended in an orderly way and doesn't count"
            case DeadLettersIntended() if self._within(event):
                yield "dead-letter", "", "it will be moved to the dead-letter topic"

    def _acknowledged(self, event: Message, pending: TransactionId | None) -> Told:
        consumer = getattr(event, "consumer", 0)
        who = self._name(consumer)
        self._holder = 0
        if move := move_of(event):
            return "passed-over", "", f"skipped by {move}"
        if self._hidden and isinstance(event, EntriesAcked):
            return "passed-over", "", "skipped: its transaction was aborted"
        if pending is not None and not consumer and isinstance(event, EntriesAcked | MarkDeleted):
            text = f"acknowledged{_by(self._pending_by)}: {name_of(pending)} was committed"
            return "acknowledged", self._pending_by, text
        match event:
            case EntriesAcked(cluster=cluster):
                return "acknowledged", who, f"acknowledged{_by(who, cluster)}"
            case MarkDeleted():
                return "acknowledged", who, f"acknowledged with all before it{_by(who)}"
            case EntriesExpired(reason=reason):
                return "expired", "", f"expired: {reason}"
            case DeadLettersMoved():
                return "dead-letter", "", "moved to the dead-letter topic"
            case CursorCreated():
                return "before-the-start", "", "the subscription starts after it"
        return "acknowledged", who, f"acknowledged by {type(event).__name__}"


def _by(who: str, cluster: str = "") -> str:
    if cluster:
        return f" in cluster {cluster}, as that cluster reported"
    return f" by {who}" if who else " (the consumer isn't recorded)"


_DONE = {
    "before-the-start": "it lies before the subscription's start: it is never delivered",
    "passed-over": "it was skipped",
    "expired": "it has expired",
    "dead-letter": "it was moved to the dead-letter topic",
    "acknowledged": "it is acknowledged",
}


def described(facts: list[Fact], now: dict[str, Any] | None, cluster: str = "") -> dict[str, Any]:
    """The history for people and JSON. ``now`` is the subscription's own report; None if it wasn't
    asked. To the subscription all that it doesn't deliver any more is acknowledged; the last fact
    about that tells what it is.

    The subscription may be the replicator to another ``cluster``, whose receipts are its
    acknowledgements.
    """
    done = _DONE | ({"acknowledged": f"it is in cluster {cluster}"} if cluster else {})
    if cluster:
        text = f"cluster {cluster} has stored it"
        facts = [
            fact._replace(text=text) if fact.what == "acknowledged" else fact for fact in facts
        ]
    last = [fact.what for fact in facts if fact.what in done]
    if now is not None and now["where"] == "acknowledged" and last:
        now = {**now, "where": last[-1], "text": done[last[-1]]}
    return {"facts": [fact._asdict() for fact in facts], "now": now}
