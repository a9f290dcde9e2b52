"""When the log of another process may be ended.

A SEAL costs a process all its journals, so it is for processes that have ended or can't be reached.
The log of an earlier start of the cluster may be ended at once: its processes don't own the data
any more. The process of another log is asked first. If it lives, it releases the one journal, and
the log goes on. If no process has the log, it is ended at once. Without an answer, a log with no
new object for a while is taken for that of a dead process. One that goes on creating objects is
given more time.

All this limits disruptions only: a SEAL is safe at any time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from velaray.journal.objects.conditional import ConditionalObjects
from velaray.journal.objects.host_log import log_object
from velaray.journal.objects.journal_record import Tail

QUIET_S: Final = 5.0
"""A log without a new object for so long belongs to a dead process, or to an idle one."""
LONGEST_S: Final = 30.0
"""After this time a log is ended although its process goes on."""
LOOK_S: Final = 0.5
GONE: Final = -1

AskOwner = Callable[[str, Tail], Awaitable[int | None]]
"""Asks the process whose log has a journal's tail to release the journal. The answer is the number
below which the bytes of that activation are: it is cut, and appends nothing more. `GONE`: no
process has this log. None: it isn't known."""


def incarnation_name(generation: int, unique: str) -> str:
    """The name of a log's incarnation; ``generation`` counts the starts of the cluster."""
    return f"{generation:08d}-{unique}"


def generation_of(incarnation: str) -> int:
    """The start of the cluster that a log belongs to."""
    return int(incarnation.partition("-")[0])


class SealPatience:
    """Waits before a log is ended; one for each process."""

    def __init__(
        self,
        objects: ConditionalObjects,
        generation: int,
        quiet_s: float = QUIET_S,
        ask: AskOwner | None = None,
    ) -> None:
        """Without ``ask`` no process is asked."""
        self._objects = objects
        self._generation = generation
        self._quiet_s = quiet_s
        self._ask = ask
        self._asking: dict[str, asyncio.Lock] = {}
        self._gone: set[str] = set()
        self._since: dict[str, float] = {}

    async def wait(self, journal: str, tail: Tail, number: int) -> int | None:
        """Return None when the log may be ended, or when it has an object ``number``; or the end of
        the journal, if its owner has released it."""
        incarnation = tail.incarnation
        if generation_of(incarnation) < self._generation:
            return None
        patience = asyncio.create_task(self._be_patient(incarnation, number))
        asking = asyncio.create_task(self._asked(journal, tail))
        try:
            await asyncio.wait({patience, asking}, return_when=asyncio.FIRST_COMPLETED)
            end = await asking if asking.done() else None
            if end is None:
                await patience
        finally:
            patience.cancel()
            asking.cancel()
            await asyncio.gather(patience, asking, return_exceptions=True)
        return None if end == GONE else end

    async def _asked(self, journal: str, tail: Tail) -> int | None:
        """Ask for one journal of a log at a time: if the process is gone, it is gone for all."""
        if self._ask is None:
            return None
        async with self._asking.setdefault(tail.incarnation, asyncio.Lock()):
            if tail.incarnation in self._gone:
                return GONE
            end = await self._ask(journal, tail)
            if end == GONE:
                self._gone.add(tail.incarnation)
            return end

    async def _be_patient(self, incarnation: str, number: int) -> None:
        loop = asyncio.get_running_loop()
        latest_s = self._since.setdefault(incarnation, loop.time()) + LONGEST_S
        until_s = min(loop.time() + self._quiet_s, latest_s)
        while loop.time() < until_s:
            await asyncio.sleep(LOOK_S)
            if await self._objects.get(log_object(incarnation, number)) is not None:
                return
