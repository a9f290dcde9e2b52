"""The turns of the connections of a listener: what clients ask for is done in small pieces.

An iteration of the loop serves all sockets that have bytes. Without a bound, a thousand small
requests on each of some connections would be one iteration of seconds, during which no message of
another client moves. So an iteration does a bounded amount of such work, and the connections that
have more of it wait in a queue. Groups of connections, such as all of one address, take turns, and
so do the connections of a group. Published messages don't wait. While a thread writes a journal,
waiting requests pause.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from contextvars import Context, copy_context
from typing import Any, Generic, TypeVar

ITERATION = 120
"""The work that an iteration of the loop does, in units of about 4 µs."""

TURN = 60
"""The work of one connection in an iteration, before others have their turns."""

BURST = 2_000
"""The work that is done besides without waiting: so much in a second after a rest."""

FRAME = 1
"""The work for a command without a message."""

REQUEST = 60
"""The further work for one that a task answers: with it, the catalog or another actor is asked."""

TRANSACTION = 15
"""The further work for one about a transaction, which its coordinator does alone."""

CREATION = 180
"""The further work for a topic that a request has created."""

BYTES_PER_UNIT = 8192
"""The bytes that are sent with the work of one unit."""

PAUSE_S = 0.001
"""The longest pause after an iteration for a write that a thread does. Without it the thread waits
up to 5 ms for Python's lock, several times for each write."""


T = TypeVar("T")
WriteInWork = Callable[[], asyncio.Future[Any] | None]
"""Returns a write that a thread does for this loop, if there is one."""


class GroupQueue(Generic[T]):
    """A queue of items, whose groups take turns. It is true while it has items."""

    def __init__(self) -> None:
        self._groups: OrderedDict[Hashable, deque[T]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._groups)

    def append(self, group: Hashable, item: T) -> None:
        """Add an item behind those of its group."""
        items = self._groups.get(group)
        if items is None:
            items = self._groups[group] = deque()
        items.append(item)

    def popleft(self) -> T:
        """Remove the first item of the group whose turn it is. Raises `KeyError` if there is
        none."""
        group, items = self._groups.popitem(last=False)
        item = items.popleft()
        if items:
            self._groups[group] = items
        return item


class Turns:
    """The turns of one listener, which has one event loop."""

    def __init__(self, write_in_work: WriteInWork = lambda: None) -> None:
        self.write_in_work = write_in_work
        self.left = ITERATION
        """The work that may still be done in this iteration: at or below 0, none."""
        self._waiting: GroupQueue[tuple[Context, Callable[[], None]]] = GroupQueue()
        self._counting = False
        self._burst = float(BURST)
        self._rested_s = 0.0

    @property
    def least(self) -> int:
        """The value of ``left`` down to which a connection may work now."""
        return 0 if self._burst > 0 else max(self.left - TURN, 0)

    def spend(self, units: int) -> None:
        """Count work of this iteration. What exceeds the bound is subtracted from the next ones."""
        if not self._counting:
            self._begin()
        self.left -= units
        if self.left <= 0 < self._burst:
            more = min(1 - self.left, int(self._burst) + 1)
            self.left += more
            self._burst -= more

    def wait(self, group: Hashable, resume: Callable[[], None]) -> None:
        """Call ``resume`` once in the present context, in a later iteration, when it is the group's
        turn. It does work of about `TURN` units at most."""
        self._waiting.append(group, (copy_context(), resume))
        if not self._counting:
            self._begin()

    async def take(self, group: Hashable, units: int) -> None:
        """Return when it is the group's turn, and count the work that follows."""
        if self.left > 0:
            self.spend(units)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def begin() -> None:
            if not turn.done():  # it may have been cancelled
                self.spend(units)
                turn.set_result(None)

        self.wait(group, begin)
        await turn

    def _begin(self) -> None:
        """Count the work of iterations until there is none. It was idle until now."""
        self._counting = True
        now_s = asyncio.get_running_loop().time()
        self._burst = min(self._burst + (now_s - self._rested_s) * BURST, BURST)
        self._rested_s = now_s
        self._count()

    def _count(self) -> None:
        asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        """Begin an iteration."""
        self.left = min(self.left + ITERATION, ITERATION)
        waiting = self._waiting
        try:
            while waiting and self.left > 0:
                context, resume = waiting.popleft()
                context.run(resume)
        finally:
            if waiting and (write := self.write_in_work()) is not None:
                self._pause(write)
            elif waiting or self.left < ITERATION:
                self._count()
            else:
                self._counting = False

    def _pause(self, write: asyncio.Future[Any]) -> None:
        """Begin the next iteration when the write has ended, or after `PAUSE_S`."""

        def go_on(_ended: object = None) -> None:
            if not timer.cancelled():  # the first call
                timer.cancel()
                write.remove_done_callback(go_on)
                self._next()

        timer = asyncio.get_running_loop().call_later(PAUSE_S, go_on)
        write.add_done_callback(go_on)
