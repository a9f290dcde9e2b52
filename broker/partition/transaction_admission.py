"""Admission of transactions in a partition: entries and acknowledgements of open transactions only.

A partition keeps no record of finished transactions. So the first entry or acknowledgement of a
transaction waits until its coordinator has confirmed that the transaction is open and has this
participant. A late one of a finished transaction waits, too, and is then refused. A verdict that
arrives during the request to the coordinator invalidates the answer, which may be older. A verdict
waits for admitted acknowledgements that are in transit to the subscription: one that arrived after
it would stay pending for ever.

A coordinator ends its transactions in time while it runs. After a failure only its next use starts
it, and its clients may be gone. So a partition asks coordinators of transactions that stay open.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Set
from contextlib import asynccontextmanager, suppress
from typing import Any

from velaray.actors.machine import Reason
from velaray.broker.actor_messages import Describe
from velaray.broker.coordinator.messages import MayJoin
from velaray.events.ids import ActorKey, TransactionId
from velaray.topology.actor_system import ActorSystem, Unreachable
from velaray.topology.rpc import RemoteError
from velaray.topology.transient import TRANSIENT

Participation = tuple[TransactionId, str | None]
"""A transaction, and the subscription that is its participant; None: the partition itself."""

WATCH_S = 30.0
"""After one to two times this, the coordinator of a transaction that is still open is asked."""

_ENDED = "the partition has ended; its next activation answers"


class TransactionAdmission:
    """The participations that are known to be open, and the pending requests to coordinators."""

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
        self._watch: asyncio.TimerHandle | None = None
        self._closed = False

    def is_open(self, transaction: TransactionId, subscription: str | None = None) -> bool:
        """Whether the participation is known to be open; a verdict ends that."""
        return (transaction, subscription) in self._open

    async def pass_through(
        self, transaction: TransactionId, subscription: str | None = None
    ) -> None:
        """Return once the participation is known to be open. That is certain until the caller's
        next await.

        Raises `RemoteError`: NOT_FOUND if there never was such a transaction, CONFLICT if it is
        over, NOT_ALLOWED if this isn't one of its participants; `Unreachable` if its coordinator
        doesn't answer, or the partition ends meanwhile.
        """
        what = (transaction, subscription)
        while what not in self._open:  # a verdict may arrive before this task resumes
            if self._closed:
                raise Unreachable(_ENDED)
            asked = self._asked.get(what)
            if asked is None:
                asked = self._asked[what] = asyncio.get_running_loop().create_future()
                self._spawn(self._ask(what, asked))
            await asyncio.shield(asked)

    @asynccontextmanager
    async def through(self, transaction: TransactionId, subscription: str) -> AsyncIterator[None]:
        """Like `pass_through`, as a context: no verdict is applied before it ends."""
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

    def close(self) -> None:
        """Admit nothing more. Callers that wait get `Unreachable`: they are clients of a host that
        goes on, and the partition's own tasks are cancelled."""
        self._closed = True
        if self._watch is not None:
            self._watch.cancel()
        for asked in self._asked.values():
            if not asked.done():
                asked.set_exception(Unreachable(_ENDED))
                asked.exception()  # the callers may be gone
        self._asked.clear()

    async def _ask(self, what: Participation, asked: asyncio.Future[None]) -> None:
        transaction, subscription = what
        coordinator = ActorKey.of_coordinator(transaction.coordinator)
        may_join = MayJoin(transaction.sequence, self._topic, subscription, self._incarnation)
        try:
            await self._actor_system.request(coordinator, may_join)
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
            return  # a verdict arrived meanwhile
        if error is None:
            self._open.add(what)
            asked.set_result(None)
            if self._watch is None and not self._closed:
                self._look_later(frozenset())
        else:
            asked.set_exception(error)
            asked.exception()  # the callers may be gone

    def _look(self, before: Set[Participation]) -> None:
        """Activate the coordinators of participations that were open ``before``, too, and look
        again until none is open."""
        self._watch = None
        if self._open:
            numbers = {each.coordinator for each, _ in self._open & before}
            if numbers:
                self._spawn(self._activate(sorted(numbers)))
            self._look_later(frozenset(self._open))

    def _look_later(self, before: Set[Participation]) -> None:
        self._watch = asyncio.get_running_loop().call_later(WATCH_S, self._look, before)

    async def _activate(self, coordinators: Iterable[int]) -> None:
        for number in coordinators:
            with suppress(*TRANSIENT):  # the next look asks again
                await self._actor_system.ask(ActorKey.of_coordinator(number), Describe())

    async def end(self, transaction: TransactionId, subscription: str | None = None) -> None:
        """Admit nothing more of a decided transaction; return once no call is `through`."""
        what = (transaction, subscription)
        self._open.discard(what)
        asked = self._asked.pop(what, None)
        if asked is not None and not asked.done():
            asked.set_exception(RemoteError(Reason.CONFLICT, f"transaction {transaction} is over"))
            asked.exception()
        while self._inside[what]:
            left = self._left.setdefault(what, asyncio.get_running_loop().create_future())
            await asyncio.shield(left)
