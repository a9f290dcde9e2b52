"""Resumes the moves of dead letters after a restart or a lost connection of the partition."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from velaray.actors.runtime import Runtime
from velaray.topology.actor_system import ActorSystem
from velaray.topology.transient import TRANSIENT


class Subscription(Protocol):
    """What the resumption needs of the subscription's actor."""

    actor_system: ActorSystem
    runtime: Runtime[Any]

    def spawn(self, work: Any) -> asyncio.Task[Any]:
        """Run a coroutine that is cancelled with the actor."""
        ...


class DeadLetterResumption:
    """Activates the partition as long as dead letters wait for it."""

    def __init__(
        self,
        subscription: Subscription,
        resume: Callable[[], Awaitable[Any]],
        connected: Callable[[], bool],
    ) -> None:
        """``resume`` asks the partition to connect; ``connected`` returns whether it is: then it
        moves dead letters."""
        self._subscription = subscription
        self._resume = resume
        self._connected = connected
        self._running: asyncio.Task[Any] | None = None
        self._closed = False

    def begin(self) -> None:
        """Activate the partition if dead letters wait."""
        running = self._running is not None and not self._running.done()
        if self._subscription.runtime.state.dead.intended and not running and not self._closed:
            self._running = self._subscription.spawn(self._run())

    def close(self) -> None:
        """Begin no more: the actor is about to stop."""
        self._closed = True

    async def _run(self) -> None:
        subscription = self._subscription
        backoff = subscription.actor_system.backoff()
        while not self._connected() and subscription.runtime.state.dead.intended:
            with contextlib.suppress(*TRANSIENT):
                await self._resume()
            await backoff.wait()
