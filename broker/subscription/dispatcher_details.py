"""Reports of a subscription's dispatcher about its entries, as samples."""

from __future__ import annotations

from itertools import islice
from typing import Any

from velaray.actors.dispatch.dispatcher import Dispatcher
from velaray.actors.subscription.cursor import mask_to_words
from velaray.actors.subscription.machine import SubscriptionState
from velaray.broker.subscription.messages import Details, PendingAcks, Point, Stats
from velaray.broker.subscription.tracing import Trace
from velaray.events.ids import TransactionId

SHOWN = 20
"""The most ranges, batches, held ranges and counts in a report: the first ones."""


def stats(state: SubscriptionState, dispatcher: Dispatcher, end_offset: int) -> Stats:
    """The cursor and the consumers; ``end_offset`` is the end of the partition's log."""
    cursor = state.cursor
    kind = dispatcher.type
    pending = pending_stats(state)
    return {
        "acked_before": cursor.acked_before,
        "backlog": cursor.backlog(end_offset),
        "holes": cursor.acked_range_count(),
        "expired": dict(state.expired),
        "partial": cursor.partial_count(),
        "type": None if kind is None else kind.name,
        "next_offset": dispatcher.next_offset,
        "waiting": dispatcher.waiting(),
        "draining": dispatcher.draining(),
        "blocked": dispatcher.blocked,
        "delayed": dispatcher.delayed(),
        "pending_transactions": pending["pending_transactions"],
        "pending_entries": pending["pending_entries"],
        "consumers": [
            {
                "number": view.consumer_id,
                "name": view.name,
                "permits": view.permits,
                "unacked": view.unacked,
                "active": view.active,
                "blocked": view.blocked,
                "priority": view.priority,
            }
            for view in dispatcher.consumers()
        ],
    }


def details(
    state: SubscriptionState, dispatcher: Dispatcher, end_offset: int, trace: Trace | None
) -> Details:
    """`stats` and samples. Ranges are (first, end) offsets, batches are (offset, unacknowledged
    words)."""
    cursor = state.cursor
    partial = islice(cursor.beyond.all_masks(), SHOWN)
    return {
        **stats(state, dispatcher, end_offset),
        "end_offset": end_offset,
        "last_left_ms": None if trace is None else trace.last_left_ms,
        "dead_letters": len(state.dead.intended),
        "first_holes": [list(acked_range) for acked_range in islice(cursor.acked_ranges(), SHOWN)],
        "first_partial": [[offset, mask_to_words(mask)] for offset, mask in partial],
        "held": {
            view.consumer_id: [list(part) for part in dispatcher.unacked(view.consumer_id)[:SHOWN]]
            for view in dispatcher.consumers()
        },
        "redelivered": [list(pair) for pair in dispatcher.redelivery_counts(cursor, SHOWN)],
    }


def message_status(state: SubscriptionState, dispatcher: Dispatcher, offset: int) -> dict[str, Any]:
    """The status of one entry: a word, a sentence, and the consumer that holds it."""
    if state.cursor.is_acked(offset):
        return {"where": "acknowledged", "consumer": "", "text": "it is acknowledged"}
    if offset in state.dead.intended:
        text = "it is on its way to the dead-letter topic"
        return {"where": "dead-letter", "consumer": "", "text": text}
    if transaction := pending_in(state, offset):
        text = f"it is acknowledged in transaction {transaction}, which hasn't ended"
        pending = {"where": "pending", "consumer": "", "text": text}
        return {**pending, "transaction": list(transaction)}
    if dispatcher.is_delayed(offset):
        text = "it waits for its delivery time"
        return {"where": "delayed", "consumer": "", "text": text}
    if holder := dispatcher.holder_of(offset):
        text = f"{holder} has it and hasn't acknowledged it"
        return {"where": "delivered", "consumer": holder, "text": text}
    if not dispatcher.consumers():
        return {"where": "waiting", "consumer": "", "text": "no consumer is connected"}
    if offset >= dispatcher.next_offset:
        text = "it hasn't been delivered yet; the description of the subscription says why"
        return {"where": "not-delivered", "consumer": "", "text": text}
    failed = dispatcher.failed_deliveries.get(offset)
    waits = "it waits for its redelivery" if failed else "it waits for a consumer"
    why = dispatcher.why_it_waits(offset)
    more = f": {why}" if why else "; the description of the subscription says why"
    return {"where": "waiting", "consumer": "", "text": f"{waits}{more}"}


def pending_acks(state: SubscriptionState, transaction: Point | None) -> PendingAcks:
    """Counts of what is pending in a transaction (None: in all of them).

    ``before`` is the cumulative acknowledgement: an offset, and the unacknowledged words of the
    batch there or None.
    """
    found = state.pending.items()
    before: list[Any] | None = None
    if transaction is not None:
        found = [(each, acks) for each, acks in found if each == TransactionId(*transaction)]
    for _, acks in found:
        if acks.before is not None:
            offset, mask = acks.before
            before = [offset, None if mask is None else mask_to_words(mask)]
    return {
        "transactions": len(found),
        "entries": sum(acks.ranges.size() for _, acks in found),
        "batches": sum(len(acks.partial) for _, acks in found),
        "before": before,
    }


def pending_transactions(state: SubscriptionState) -> list[Point]:
    """The transactions that have acknowledgements pending."""
    return sorted((each.coordinator, each.sequence) for each, _ in state.pending.items())


def pending_stats(state: SubscriptionState) -> dict[str, int]:
    """The number of transactions with pending acknowledgements, and of their entries."""
    found = pending_acks(state, None)
    entries = found["entries"] + found["batches"]
    return {"pending_transactions": found["transactions"], "pending_entries": entries}


def pending_at(state: SubscriptionState, offset: int, index: int | None) -> str:
    """Pulsar's name for the state of the entry at ``offset``, or of one message of its batch."""
    if state.cursor.is_acked(offset):
        return "MarkDelete"
    bits = -1 if index is None else 1 << index
    known = state.cursor.ack_set(offset)
    if known is not None and not known & bits:
        return "MarkDelete"
    size = state.pending.messages_of(offset)
    if index is not None and size is not None and index >= size:
        return "InvalidPosition"
    pending = pending_in(state, offset, bits) is not None
    return "PendingAck" if pending else "NotInPendingAck"


def pending_in(state: SubscriptionState, offset: int, bits: int = -1) -> TransactionId | None:
    """The open transaction that acknowledges the entry at ``offset``, or some of the messages
    ``bits`` of it; None if there is none or the entry is acknowledged."""
    pending = state.pending
    if state.cursor.is_acked(offset):
        return None
    if pending.advancing is not None:
        transaction, (end, ack_set) = pending.advancing
        if offset < end or (offset == end and ack_set is not None and ~ack_set & bits):
            return transaction
    return pending.holder_of(offset, bits)
