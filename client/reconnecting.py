"""The background task that attaches a partition's producer or consumer to the service again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from velaray.client.core import Core
from velaray.client.exceptions import VelarayError
from velaray.events.backoff import Backoff


class Reconnection:
    """Repeats ``attempt``, with back-off, until it succeeds or ``ended`` returns true.

    ``failed`` gets the error of each attempt that failed.
    """

    def __init__(
        self,
        core: Core,
        attempt: Callable[[], Awaitable[None]],
        failed: Callable[[VelarayError], None],
        ended: Callable[[], bool],
    ) -> None:
        self._core = core
        self._attempt = attempt
        self._failed = failed
        self._ended = ended
        self._task: asyncio.Task[None] | None = None

    @property
    def running(self) -> bool:
        """Whether attempts are made at the moment."""
        return self._task is not None

    def start(self) -> None:
        """Begin with the first attempt, in the background."""
        self._task = self._core.spawn(self._run())

    def stop(self) -> None:
        """Make no more attempts."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        backoff = Backoff()
        while not self._ended():
            try:
                await self._attempt()
            except VelarayError as error:
                self._failed(error)
            else:
                break
            await backoff.wait()
        self._task = None
