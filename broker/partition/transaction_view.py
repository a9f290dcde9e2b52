"""The calls that report the transactions of a partition and its subscriptions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from velaray.actors.machine import Reason
from velaray.actors.partition.ledger_table import NoSuchEntryError
from velaray.actors.partition.remote_transactions import name_of
from velaray.actors.partition.state import PartitionState
from velaray.actors.runtime import Runtime
from velaray.broker.partition import messages as m
from velaray.broker.subscription.messages import GetAckStatus, GetPendingAcks
from velaray.events.ids import Position, TransactionId
from velaray.topology.messages import Message, ReplyT, Request
from velaray.topology.rpc import RemoteError


class Subscriptions(Protocol):
    """What these calls need of the table of subscriptions."""

    async def ask_subscription(self, name: str, request: Request[ReplyT]) -> ReplyT:
        """Call a subscription's dispatcher."""


class Partition(Protocol):
    """What these calls need of a partition."""

    runtime: Runtime[PartitionState]
    recovery_ms: tuple[int, int]

    @property
    def subscriptions(self) -> Subscriptions:
        """The table of subscriptions."""
        ...


def _position(partition: Partition, offset: int) -> str:
    """``ledger:entry``; entry -1 before the first entry."""
    found = partition.runtime.state.table.position_before(offset + 1)
    return f"{found.ledger_id}:{found.entry_id}"


async def transactions(partition: Partition, request: m.Transactions) -> m.OpenTransactions:
    """The number of ongoing transactions, the max-read position, and the number of hidden
    entries."""

    def look(state: PartitionState) -> m.OpenTransactions:
        known = state.transactions
        return {
            "ongoing": len(known.ongoing),
            "hidden": known.hidden.size(),
            "max_read": _position(partition, state.max_read_offset - 1),
            "recovery_ms": list(partition.recovery_ms),
        }

    return await partition.runtime.read(look)


async def transaction(partition: Partition, request: m.Transaction) -> m.OpenTransaction:
    """The number of entries of an ongoing transaction, and the position of the first; no entries
    for other transactions."""
    wanted = TransactionId(request.coordinator, request.sequence)

    def look(state: PartitionState) -> m.OpenTransaction:
        ranges = state.transactions.ongoing.get(wanted)
        if ranges is None:
            return {"entries": 0, "first": None}
        entries = sum(end - first for first, end in ranges)
        return {"entries": entries, "first": _position(partition, ranges[0][0])}

    return await partition.runtime.read(look)


async def pending_acks(partition: Partition, request: m.PendingAcks) -> m.Pending:
    """The pending acknowledgements of a subscription, of one transaction (``coordinator``,
    ``sequence``) or of all. ``before`` is the last position that is acknowledged cumulatively.

    Raises `RemoteError` (NOT_FOUND) if there is no such durable subscription.
    """
    match request.coordinator, request.sequence:
        case int() as coordinator, int() as sequence:
            wanted = GetPendingAcks((coordinator, sequence))
        case None, None:
            wanted = GetPendingAcks()
        case _:
            text = "give both numbers of a transaction, its coordinator and sequence, or neither"
            raise RemoteError(Reason.INVALID, text)
    found = await partition.subscriptions.ask_subscription(request.name, wanted)
    last = None
    if found["before"] is not None:
        offset, words = found["before"]
        last = _position(partition, offset - (words is None))
    return {**found, "before": last, "recovery_ms": list(partition.recovery_ms)}


async def pending_at(partition: Partition, request: m.PendingAt) -> str:
    """Pulsar's name for the state of the message at ``position`` (and ``index`` in its batch).

    Raises `RemoteError` (NOT_FOUND) if there is no such durable subscription.
    """
    try:
        offset = partition.runtime.state.table.offset_of(Position(*request.position))
    except NoSuchEntryError:
        offset = -1
    wanted = GetAckStatus(max(offset, 0), request.index)
    found = await partition.subscriptions.ask_subscription(request.name, wanted)
    return found if offset >= 0 else "InvalidPosition"


async def unsettled(partition: Partition, offset: int) -> dict[str, Any] | None:
    """The status of the entry at ``offset`` if transactions decide it: it is never delivered, or
    not before an open transaction ends."""
    state = partition.runtime.state
    if await partition.runtime.look(lambda state: offset in state.transactions.hidden):
        text = "its transaction was aborted: it is never delivered"
        return {"where": "aborted", "consumer": "", "text": text}
    if offset < state.max_read_offset:
        return None
    oldest, ranges = next(iter(state.transactions.ongoing.items()))
    found = {"consumer": "", "transaction": list(oldest)}
    for each, own in state.transactions.ongoing.items():
        if any(first <= offset < end for first, end in own):
            text = f"it belongs to {name_of(each)}, which hasn't ended"
            return {**found, "where": "undecided", "transaction": list(each), "text": text}
    first = _position(partition, ranges[0][0])
    text = f"it waits for {name_of(oldest)}, whose first entry is before it, at {first}"
    return {**found, "where": "behind-transaction", "text": text}


def unsettled_from(partition: Partition) -> str:
    """A sentence about the open transaction that delays the newest entries; "" if there is none."""
    state = partition.runtime.state
    for oldest, ranges in state.transactions.ongoing.items():
        where, behind = _position(partition, ranges[0][0]), state.end_offset - ranges[0][0]
        return f"{behind} entries from {where} on wait for the end of {name_of(oldest)}"
    return ""


HANDLERS: dict[type[Message], Callable[[Partition, Any], Awaitable[Any]]] = {
    m.Transactions: transactions,
    m.Transaction: transaction,
    m.PendingAcks: pending_acks,
    m.PendingAt: pending_at,
}
