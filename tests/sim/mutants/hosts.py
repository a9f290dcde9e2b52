"""Bugs of hosts and of what ends with one of their actors."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from tests.sim.mutants.mutant import Mutant
from velaray.actors.machine import digest
from velaray.actors.runtime import Runtime
from velaray.broker.actor_tasks import ActorTasks
from velaray.broker.partition.channel.delivery import Delivery
from velaray.events.ids import ActorKey
from velaray.topology.actor_system import Activation, Address
from velaray.topology.hosted_actors import HostedActors
from velaray.topology.placed_actors import PlacedActors
from velaray.topology.placement import group_of

LEAVING_S = 0.2


def _end_all_actors(original: Any) -> Any:
    def fail(self: HostedActors, actor: Activation) -> None:
        for key in list(self.actors):
            self.kill(key)

    return fail


def _leave_the_timer(original: Any) -> Any:
    def drop_lease(self: Delivery) -> None:
        self._reporting = None
        original(self)

    return drop_lease


def _leave_tasks(original: Any) -> Any:
    def cancel(self: ActorTasks) -> list[asyncio.Task[Any]]:
        return []

    return cancel


def _release_after_the_end(original: Any) -> Any:
    def drop(self: Runtime[Any]) -> None:
        flushing = self._flushing
        original(self)
        if self._error is not None:
            self._flushing = flushing

    return drop


def _write_a_last_checkpoint(original: Any) -> Any:
    async def flush_forever(self: Runtime[Any]) -> None:
        await original(self)
        if self._error is not None:
            segments = self._machine.snapshot(self._state)
            await self._journal.roll(segments, digest(segments))

    return flush_forever


def _forget_without_ending(original: Any) -> Any:
    def kill(self: HostedActors, key: ActorKey) -> None:
        self._starts.pop(key, None)
        self.actors.pop(key, None)

    return kill


def _answer_without_writing(original: Any) -> Any:
    def forget(journal: Any) -> Callable[[], Awaitable[int]]:
        async def commit() -> int:
            journal._drop_staged()
            return int(journal.next_sequence) - 1

        return commit

    async def hand_over(self: PlacedActors, group: str) -> None:
        for key, actor in self.hosted:
            runtime = getattr(actor, "runtime", None)
            if group_of(key) == group and runtime is not None:
                runtime.journal.commit = forget(runtime.journal)
        await asyncio.sleep(LEAVING_S)
        await original(self, group)

    return hand_over


def _start_without_asking(original: Any) -> Any:
    async def start(self: PlacedActors, key: ActorKey, placed: str = "") -> Address:
        return await self.hosted.address(key)

    return start


MUTANTS: dict[str, Mutant] = {
    "end-the-host-of-a-failed-actor": Mutant(
        "an actor's failure ends the other actors of its host",
        ((HostedActors, "fail", _end_all_actors),),
        within=20,
        hosts=True,
    ),
    "leave-a-timer": Mutant(
        "the timer of a late report isn't cancelled with its channel",
        ((Delivery, "drop_lease", _leave_the_timer),),
        within=20,
        hosts=True,
    ),
    "leave-tasks": Mutant(
        "the tasks of an actor aren't cancelled with it",
        ((ActorTasks, "cancel", _leave_tasks),),
        within=20,
        hosts=True,
    ),
    "release-after-the-end": Mutant(
        "receipts of a commit that is under way leave after the end of their partition",
        ((Runtime, "_drop", _release_after_the_end),),
        within=100,
        hosts=True,
    ),
    "write-after-the-end": Mutant(
        "an actor that has failed writes a last checkpoint",
        ((Runtime, "_flush_forever", _write_a_last_checkpoint),),
        within=20,
        hosts=True,
    ),
    "keep-the-former-copy": Mutant(
        "an actor that failed isn't ended, and its next use starts it beside that",
        ((HostedActors, "kill", _forget_without_ending),),
        within=20,
        hosts=True,
    ),
    "answer-without-writing": Mutant(
        "actors that are about to move answer what they don't write",
        ((PlacedActors, "hand_over", _answer_without_writing),),
        within=50,
        hosts=True,
    ),
    "start-without-asking": Mutant(
        "a host starts an actor without asking the directory",
        ((PlacedActors, "start", _start_without_asking),),
        within=20,
        hosts=True,
    ),
}
