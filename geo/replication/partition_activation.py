"""Activates a replicator's partition again for work that is left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from velaray.actors.machine import Reason
from velaray.broker.actor_messages import Describe
from velaray.broker.journaled_actor import WasDeleted
from velaray.events.backoff import Backoff
from velaray.events.ids import ActorKey
from velaray.topology.actor_system import ActorSystem
from velaray.topology.rpc import RemoteError
from velaray.topology.transient import NO_ANSWER


class Actor(Protocol):
    """What the activation needs of the replicator's actor."""

    key: ActorKey
    actor_system: ActorSystem

    def spawn(self, work: Any) -> asyncio.Task[Any]:
        """Run a coroutine that is cancelled with the actor."""
        ...


class PartitionActivation:
    """Calls the partition until it reconnects or its topic is deleted."""

    def __init__(self, actor: Actor, connected: Callable[[], bool]) -> None:
        """``connected`` returns whether the partition is connected."""
        self._actor = actor
        self._connected = connected
        self._running: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def running(self) -> bool:
        """Whether the partition is to be activated."""
        return self._running is not None and not self._running.done()

    def begin(self, delay_s: float) -> None:
        """Activate the partition after a delay, unless that is under way."""
        if not self._closed and not self.running:
            backoff = self._actor.actor_system.backoff(delay_s)
            self._running = self._actor.spawn(self._run(backoff))

    def cancel(self) -> None:
        """End, because the partition is connected."""
        if self._running is not None:
            self._running.cancel()
            self._running = None

    def close(self) -> None:
        """Begin no more: the actor is about to stop."""
        self._closed = True

    async def _run(self, backoff: Backoff) -> None:
        key = self._actor.key
        partition = ActorKey.of_partition(key.topic_name, key.topic_incarnation)
        while not self._connected():
            await backoff.wait()
            try:
                await self._actor.actor_system.ask(partition, Describe())
            except WasDeleted:
                return
            except RemoteError as error:
                if error.kind == Reason.NOT_FOUND:
                    return
            except NO_ANSWER:
                continue
