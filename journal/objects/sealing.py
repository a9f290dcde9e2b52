"""When the log of another process may be ended.

The log of an earlier start of the cluster may be ended at once: its processes don't own the data
any more. A log of the same start belongs to a process that may be alive. If it creates no object
for a while, it is taken for dead. One that goes on creating objects is given more time, since a
SEAL costs that process all its journals. All this limits disruptions only: a SEAL is safe at any
time.
"""

from __future__ import annotations

import asyncio
from typing import Final

from velaray.journal.objects.conditional import ConditionalObjects
from velaray.journal.objects.host_log import log_object

QUIET_S: Final = 5.0
"""A log without a new object for so long belongs to a dead process, or to an idle one."""
LONGEST_S: Final = 30.0
"""After this time a log is ended although its process goes on."""
LOOK_S: Final = 0.5


def incarnation_name(generation: int, unique: str) -> str:
    """The name of a log's incarnation; ``generation`` counts the starts of the cluster."""
    return f"{generation:08d}-{unique}"


def generation_of(incarnation: str) -> int:
    """The start of the cluster that a log belongs to."""
    return int(incarnation.partition("-")[0])


class SealPatience:
    """Waits before a log is ended; one for each process."""

    def __init__(
        self, objects: ConditionalObjects, generation: int, quiet_s: float = QUIET_S
    ) -> None:
        self._objects = objects
        self._generation = generation
        self._quiet_s = quiet_s
        self._since: dict[str, float] = {}

    async def wait(self, incarnation: str, number: int) -> None:
        """Return when the log may be ended, or when it has an object ``number``."""
        if generation_of(incarnation) < self._generation:
            return
        loop = asyncio.get_running_loop()
        latest_s = self._since.setdefault(incarnation, loop.time()) + LONGEST_S
        until_s = min(loop.time() + self._quiet_s, latest_s)
        while loop.time() < until_s:
            await asyncio.sleep(LOOK_S)
            if await self._objects.get(log_object(incarnation, number)) is not None:
                return
