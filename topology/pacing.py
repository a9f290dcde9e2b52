"""Work in the background of an event loop, in small pieces: clients don't wait for it."""

from __future__ import annotations

import asyncio
from typing import Final

SLICE_S: Final = 0.002
"""The length of a piece, and of the pause after it."""
MOST_PAUSES: Final = 500
"""The pauses of a task, a second in all: a survey of many actors has a time limit."""


class Pace:
    """The pace of one task that computes for long.

    A task that only lets the others run between two steps keeps the loop busy all the same. Then
    every answer waits for a step, and the threads that read files wait for the interpreter.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._resumed_s = self._loop.time()
        self._used_s = 0.0
        self._left = MOST_PAUSES

    async def pause(self) -> None:
        """Let other tasks run; after `SLICE_S` of work leave the loop idle for as long, at most
        `MOST_PAUSES` times."""
        self._used_s += self._loop.time() - self._resumed_s
        pause_s = 0.0
        if self._used_s >= SLICE_S and self._left > 0:
            self._used_s, pause_s = 0.0, SLICE_S
            self._left -= 1
        await asyncio.sleep(pause_s)
        self._resumed_s = self._loop.time()
