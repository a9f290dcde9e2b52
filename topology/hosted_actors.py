"""The actors of one process: starting, stopping, and ending them one by one."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

from velaray.actors.runtime import Stopped
from velaray.events.ids import ActorKey, ActorKind
from velaray.topology.actor_system import (
    Activation,
    ActorBase,
    Address,
    Unreachable,
    start_actor,
    whole,
)
from velaray.topology.pacing import Pace
from velaray.topology.rpc import RemoteError

STARTS_AT_ONCE = 16
"""The number of actors of a kind that a process starts at a time. More would make each start slow:
all would finish together, after their callers' time. Each kind has places of its own, because the
start of a subscription may wait for that of its partition, and both for the catalog."""


class HostedActors:
    """A table of actors. Each fails alone: nothing here ends the process.

    Starts take turns, in the order of their requests (`STARTS_AT_ONCE`). A start that still waits
    for its turn is dropped when all callers of `address` have been cancelled.
    """

    def __init__(self, make: Callable[[ActorKey], ActorBase]) -> None:
        self._make = make
        self._starts: dict[ActorKey, asyncio.Task[Address]] = {}
        self._places: dict[ActorKind, asyncio.Semaphore] = {}
        self._queued: dict[ActorKey, int] = {}
        """The actors that wait for their turn to start, with the number of callers."""
        self.actors: dict[ActorKey, ActorBase] = {}
        """The actors that start or have started."""

    def __iter__(self) -> Iterator[tuple[ActorKey, ActorBase]]:
        """The actors that have started."""
        return iter([each for each in self.actors.items() if self.has_started(each[0])])

    def has_started(self, key: ActorKey) -> bool:
        """Whether an actor serves."""
        start = self._starts.get(key)
        return start is not None and start.done() and not _failed(start)

    def has_begun(self, key: ActorKey) -> bool:
        """Whether an actor starts or has started."""
        start = self._starts.get(key)
        return start is not None and not (start.done() and _failed(start))

    def begun(self) -> list[ActorKey]:
        """The actors that start or have started."""
        return [key for key in self._starts if self.has_begun(key)]

    async def address(self, key: ActorKey) -> Address:
        """Start the actor unless it runs.

        Raises `Unreachable` if it was ended meanwhile, or else what its start raised. The next call
        tries again.
        """
        if not self.has_begun(key):
            start = asyncio.get_running_loop().create_task(self._start(key))
            # Without a caller left, nothing else reads the error; asyncio would report it as lost.
            start.add_done_callback(_failed)
            self._starts[key] = start
            self._queued[key] = 0
        start = self._starts[key]
        if key in self._queued:
            self._queued[key] += 1
        try:
            await asyncio.wait([start])  # a cancellation of one doesn't cancel the other
        except asyncio.CancelledError:
            self._caller_left(key, start)
            raise
        if start.cancelled():
            raise Unreachable(f"{key} was ended while it started")
        return start.result()

    def _caller_left(self, key: ActorKey, start: asyncio.Task[Address]) -> None:
        if self._starts.get(key) is start and key in self._queued:
            self._queued[key] -= 1
            if not self._queued[key]:
                self.kill(key)

    async def _start(self, key: ActorKey) -> Address:
        actor = self.actors[key] = self._make(key)
        started = False
        try:
            async with self._places.setdefault(key.kind, asyncio.Semaphore(STARTS_AT_ONCE)):
                del self._queued[key]
                address = await start_actor(actor)
            started = True
        finally:
            if not started and self.actors.get(key) is actor:
                del self.actors[key]
        return address

    async def answers(
        self, method: str, timeout_s: float, keep: Callable[[Any], Any] = whole
    ) -> dict[ActorKey, Any]:
        """What ``keep`` keeps of the answers of all started actors to a survey; None where one has
        no answer in time.

        They are asked one after the other, and the loop has pauses between them: an answer may come
        at once, and a host may have thousands of actors.
        """
        found: dict[ActorKey, Any] = {}
        pace = Pace()
        for key, actor in self:
            await pace.pause()
            found[key] = None
            with contextlib.suppress(TimeoutError, RemoteError, Stopped):
                async with asyncio.timeout(timeout_s):
                    found[key] = keep(await actor.call(method, {}))
        return found

    async def started(self, key: ActorKey) -> None:
        """Return when no start of the actor is under way."""
        start = self._starts.get(key)
        if start is not None:
            await asyncio.wait([start])

    async def dismiss(self, key: ActorKey) -> None:
        """Stop an actor in good order; the next use starts it again.

        Raises what its stop raised; it is aborted then.
        """
        start = self._starts.get(key)
        if start is not None:
            await asyncio.wait([start])  # otherwise its start would continue after the answer
            if self._starts.get(key) is start:
                del self._starts[key]
        actor = self.actors.pop(key, None)
        if actor is not None and start is not None and not _failed(start):
            stopped = False
            try:
                await actor.stop()
                stopped = True
            finally:
                if not stopped:
                    actor.abort()

    def fail(self, actor: Activation) -> None:
        """End an activation that failed. One that is being stopped, or has ended, is left alone,
        and so is its successor."""
        if self.actors.get(actor.key) is actor:
            self.kill(actor.key)

    def kill(self, key: ActorKey) -> None:
        """End an actor as a crash of its own would; the next use starts it again."""
        self._queued.pop(key, None)
        start = self._starts.pop(key, None)
        if start is not None and not start.done():
            start.cancel()
        actor = self.actors.pop(key, None)
        if actor is not None:
            actor.abort()


def _failed(start: asyncio.Task[Address]) -> bool:
    return start.cancelled() or start.exception() is not None


_LOOKS = 20
"""How many times actors are looked at within the time after which they count as idle: a host may
have thousands, and looking at them takes time."""


class IdleActors:
    """Finds the actors of a table that have been idle for a time."""

    def __init__(self, hosted: HostedActors) -> None:
        self._hosted = hosted
        self._busy_at: dict[ActorKey, float] = {}
        self._looked_at = -math.inf

    def due(self, limit_s: float) -> list[ActorKey]:
        """The actors that were idle at all looks of the last ``limit_s`` seconds."""
        now = asyncio.get_running_loop().time()
        if now - self._looked_at < limit_s / _LOOKS:
            return []
        self._looked_at = now
        before, self._busy_at = self._busy_at, {}
        found = []
        for key, actor in self._hosted:
            since = before.get(key, now) if actor.idle() else now
            self._busy_at[key] = since
            if now - since >= limit_s:
                found.append(key)
        return found
