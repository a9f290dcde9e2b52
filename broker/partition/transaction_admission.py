"""The gate of a partition for transactions: nothing of one is taken before it may be.

A partition keeps nothing of transactions that are over. So the first entry or acknowledgement of a
transaction waits until its coordinator has said that the transaction is open and has this
participant; and so does one that comes when it is over, and is refused. A verdict that arrives
while the coordinator is being asked makes the answer void: it was given before the verdict. And a
verdict waits for acknowledgements that were let through and are on their way to the subscription:
one that came behind it would be pending for ever.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from velaray.actors.machine import Reason
from velaray.events.ids import ActorKey, TransactionId
from velaray.topology.actor_system import ActorSystem
from velaray.topology.rpc import RemoteError
from velaray.topology.transient import TRANSIENT

Participation = tuple[TransactionId, str | None]
"""A transaction, and the subscription that is its participant; None: the partition itself."""


class TransactionAdmission:
    """Which participations were found open, and whose coordinator is being asked."""

    def __init__(
        self, key: ActorKey, actor_system: ActorSystem, spawn: Callable[[Any], Any]
    ) -> None:
        """``key`` is the partition's."""
        self._topic = str(key.topic_name)
        self._incarnation = key.topic_incarnation
        self._actor_system = actor_system
        self._spawn = spawn
        self._open: set[Participation] = set()
        self._asked: dict[Participation, asyncio.Future[None]] = {}
        self._inside: Counter[Participation] = Counter()
        self._left: dict[Participation, asyncio.Future[None]] = {}

    def is_open(self, transaction: TransactionId, subscription: str | None = None) -> bool:
        """Whether it was found open, and no verdict has come since."""
        return (transaction, subscription) in self._open

    async def pass_through(
        self, transaction: TransactionId, subscription: str | None = None
    ) -> None:
        """Return once it is known to be open; it is until the caller waits for something.

        Raises `RemoteError`: NOT_FOUND if there never was such a transaction, CONFLICT if it is
        over, NOT_ALLOWED if this is no participant of it; `Unreachable` if its coordinator can't
        be had.
        """
        what = (transaction, subscription)
        while what not in self._open:  # a verdict may come before this task has its turn again
            asked = self._asked.get(what)
            if asked is None:
                asked = self._asked[what] = asyncio.get_running_loop().create_future()
                self._spawn(self._ask(what, asked))
            await asyncio.shield(asked)

    @asynccontextmanager
    async def through(self, transaction: TransactionId, subscription: str) -> AsyncIterator[None]:
        """As `pass_through`; no verdict is applied before what is done inside is over."""
        await self.pass_through(transaction, subscription)
        what = (transaction, subscription)
        self._inside[what] += 1
        try:
            yield
        finally:
            self._inside[what] -= 1
            if not self._inside[what]:
                del self._inside[what]
                if what in self._left:
                    self._left.pop(what).set_result(None)

    async def _ask(self, what: Participation, asked: asyncio.Future[None]) -> None:
        transaction, subscription = what
        coordinator = ActorKey.of_coordinator(transaction.coordinator)
        args = {
            "sequence": transaction.sequence,
            "topic": self._topic,
            "subscription": subscription,
            "incarnation": self._incarnation,
        }
        try:
            await self._actor_system.call(coordinator, "may_join", args)
        except TRANSIENT as error:
            self._answer(what, asked, error)
        else:
            self._answer(what, asked, None)

    def _answer(
        self, what: Participation, asked: asyncio.Future[None], error: Exception | None
    ) -> None:
        if self._asked.get(what) is asked:
            del self._asked[what]
        if asked.done():
            return  # a verdict came meanwhile
        if error is None:
            self._open.add(what)
            asked.set_result(None)
        else:
            asked.set_exception(error)
            asked.exception()  # who asked may be gone

    async def end(self, transaction: TransactionId, subscription: str | None = None) -> None:
        """The verdict came: nothing more is taken. Returns once nobody is `through`."""
        what = (transaction, subscription)
        self._open.discard(what)
        asked = self._asked.pop(what, None)
        if asked is not None and not asked.done():
            asked.set_exception(RemoteError(Reason.CONFLICT, f"transaction {transaction} is over"))
            asked.exception()
        while self._inside[what]:
            left = self._left.setdefault(what, asyncio.get_running_loop().create_future())
            await asyncio.shield(left)
