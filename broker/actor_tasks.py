"""Background tasks of an actor."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

from velaray.actors.runtime import Stopped
from velaray.topology.actor_system import ActorBase, ActorSystem
from velaray.topology.logs import with_facts


class ActorTasks:
    """Tasks that are cancelled with their actor. An error that one raises ends the actor."""

    def __init__(self, actor: ActorBase, actor_system: ActorSystem) -> None:
        self._actor = actor
        self._actor_system = actor_system
        self._running: set[asyncio.Task[Any]] = set()

    def __bool__(self) -> bool:
        """Whether a task is running."""
        return bool(self._running)

    def spawn(self, work: Awaitable[Any]) -> asyncio.Task[Any]:
        """Run an awaitable as a task. Its log lines carry the facts of the actor."""
        with with_facts(self._actor.rpc_server.log_facts):
            task: asyncio.Task[Any] = asyncio.ensure_future(work)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    def cancel(self) -> list[asyncio.Task[Any]]:
        """Cancel all tasks, and return them; they may end later."""
        running = list(self._running)
        for task in running:
            task.cancel()
        return running

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, Stopped):
            self._actor_system.fatal(self._actor, error)
