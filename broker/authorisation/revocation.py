"""Closes producers and consumers whose rights were revoked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from velaray.topology.transient import TRANSIENT_OR_STORE

AGAIN_S = 1.0
"""The time until a second look: clients may have been connecting during the first one."""
LATE_S = 60.0
"""The time between looks without a notice, for clients that took long to connect."""

Look = Callable[[], Awaitable[None]]


class Revocation:
    """Looks at the open producers and consumers whenever grants may have changed."""

    def __init__(self, look: Look) -> None:
        """``look`` closes those whose rights have gone. It raises what calls of actors raise."""
        self._look = look
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def changed(self) -> None:
        """Look soon."""
        self._changed.set()

    def start(self) -> None:
        """Look from now on. Idempotent."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def stop(self) -> None:
        """Look no more. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self) -> None:
        wait_s = LATE_S
        while True:
            try:
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()
                wait_s = AGAIN_S
            except TimeoutError:
                wait_s = LATE_S
            self._changed.clear()
            try:
                await self._look()
            except TRANSIENT_OR_STORE:
                wait_s = AGAIN_S  # the catalog didn't answer: the first look is still to come
