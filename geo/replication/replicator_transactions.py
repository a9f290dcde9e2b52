"""Replicates transactions to another cluster: their entries, and their completion there.

A replicated entry names its transaction if the partition knows of it, and the other cluster hides
the entry until the transaction is complete there. Once all entries up to the last one of a
transaction are confirmed, the replicator reports it complete, in the order of last entries. The
partition then drops it. See `velaray.actors.partition.outgoing_transactions` and
`velaray.actors.partition.remote_transactions`.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import insort
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from velaray.events.backoff import Backoff
from velaray.events.ids import Position, TransactionId
from velaray.geo.replication.messages import Committed, Replicated
from velaray.geo.transient import TRANSIENT_ABROAD
from velaray.topology.messages import ReplyT, Request
from velaray.topology.rpc import reason_of
from velaray.wire.replication_pb2 import TransactionComplete, TransactionsComplete

logger = logging.getLogger("velaray")

AT_ONCE = 1000
"""The most transactions in one report."""
LOOK_S = 1.0
"""The interval between looks for skipped entries, which are never confirmed."""
NOWHERE = Position(-1, -1)

Cursor = Callable[[], Awaitable[int]]
"""The offset up to which the replicator has acknowledged."""
Send = Callable[[bytes], Awaitable[None]]
"""Sends `TransactionsComplete`; it is durable in the other cluster when this returns."""


class Ask(Protocol):
    """Sends the partition a request."""

    async def __call__(self, request: Request[ReplyT]) -> ReplyT:
        """Return the answer. Raises what `RpcConnection.ask` raises."""


@dataclass(slots=True)
class Outgoing:
    """A transaction that the partition knows of; ``topics`` are its participants, once known."""

    number: int
    transaction: TransactionId
    last: int
    position: Position
    topics: list[str] | None


class Transactions:
    """The transactions of one partition for one cluster. Outlasts connections."""

    def __init__(self, ask: Ask, cursor: Cursor, told: Callable[[], None]) -> None:
        """``told`` is called when `pending` may have changed."""
        self._ask = ask
        self._cursor = cursor
        self._told = told
        self._known: dict[TransactionId, Outgoing] = {}
        self._in_order: list[tuple[Position, TransactionId]] = []  # by last entries
        self._unnamed: dict[int, Outgoing] = {}
        self._newest = 0
        self._decided = NOWHERE  # entries before it belong to known transactions or to none
        self._asked = False
        self._asking = asyncio.Lock()
        self._settled = NOWHERE
        self._skipped = 0
        self._news = asyncio.Event()
        self.reason = ""

    @property
    def pending(self) -> bool:
        """Whether a report may be due."""
        return bool(self._known) or not self._asked

    def is_of(self, transaction: TransactionId, position: Position) -> bool | None:
        """Whether the entry at ``position`` belongs to the transaction; None if unknown."""
        known = self._known.get(transaction)
        if known is not None:
            return position <= known.position
        return False if position < self._decided else None

    async def learn(self) -> None:
        """Request the transactions from the partition. Raises what the request raises."""
        async with self._asking:
            before = len(self._known)
            complete = None
            while complete is None:
                found = await self._ask(Committed(self._newest, list(self._unnamed)))
                for number, named in found["named"]:
                    self._unnamed.pop(number).topics = named
                for number, transaction, last, position, topics in found["transactions"]:
                    self._take(
                        Outgoing(
                            number, TransactionId(*transaction), last, Position(*position), topics
                        )
                    )
                complete = found["complete"]
            self._decided, self._asked = Position(*complete), True
        if len(self._known) != before:
            self._news.set()
        self._told()

    def _take(self, known: Outgoing) -> None:
        self._known[known.transaction] = known
        insort(self._in_order, (known.position, known.transaction))
        self._newest = known.number
        if known.topics is None:
            self._unnamed[known.number] = known

    def settled(self, position: Position) -> None:
        """Note that all entries up to this one are confirmed or not replicated."""
        self._settled = position
        if self._in_order and self._in_order[0][0] <= position:
            self._news.set()

    def news(self) -> None:
        """Note that the partition has news."""
        self._asked = False
        self._news.set()
        self._told()

    async def run(self, send: Send | None, backoff: Backoff) -> None:
        """Report complete transactions to the other cluster until cancelled; failed reports are
        retried. Without ``send`` nothing is reported, since entries are sent without their
        transactions."""
        while True:
            self._news.clear()
            try:
                # Reports must stay in order, so none that is due is left out.
                await self.learn()
                if self._known:
                    self._skipped = await self._cursor()
                due = self._due()
                if due:
                    if send is not None:
                        await send(_message(due))
                    await self._ask(Replicated([each.number for each in due]))
                    self._forget(due)
            except TRANSIENT_ABROAD as error:
                self.reason = reason_of(error)
                logger.warning("reporting complete transactions failed, retrying: %s", self.reason)
                await backoff.wait()
                continue
            self.reason = ""
            backoff.reset()
            if not due:
                await self._wait()

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(LOOK_S if self._known else None):
                await self._news.wait()
        except TimeoutError:
            return

    def _due(self) -> list[Outgoing]:
        due: list[Outgoing] = []
        for position, transaction in self._in_order[:AT_ONCE]:
            known = self._known[transaction]
            passed = position <= self._settled or known.last < self._skipped
            if not passed or known.topics is None:
                break
            due.append(known)
        return due

    def _forget(self, due: list[Outgoing]) -> None:
        gone = {each.transaction for each in due}
        self._in_order = [each for each in self._in_order if each[1] not in gone]
        for transaction in gone:
            del self._known[transaction]
        self._told()


def _message(due: list[Outgoing]) -> bytes:
    transactions = [
        TransactionComplete(
            coordinator=each.transaction.coordinator,
            sequence=each.transaction.sequence,
            last_ledger=each.position.ledger_id,
            last_entry=each.position.entry_id,
            topics=each.topics,
        )
        for each in due
    ]
    return TransactionsComplete(transactions=transactions).SerializeToString()
