"""Bugs of hosts and of what ends with one of their actors."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.sim.mutants.mutant import Mutant
from velaray.actors.runtime import Runtime
from velaray.broker.actor_tasks import ActorTasks
from velaray.broker.partition.channel.delivery import Delivery
from velaray.events.ids import ActorKey
from velaray.topology.actor_system import Activation, Address
from velaray.topology.hosted_actors import HostedActors
from velaray.topology.placed_actors import PlacedActors


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


def _keep_the_records(original: Any) -> Any:
    def drop(self: Runtime[Any]) -> None:
        staged = self._staged
        original(self)
        if self._error is not None:
            self._staged = staged

    return drop


def _commit_after_the_end(original: Any) -> Any:
    async def flush_forever(self: Runtime[Any]) -> None:
        await original(self)
        if self._staged:
            await self._commit()

    return flush_forever


def _forget_without_ending(original: Any) -> Any:
    def kill(self: HostedActors, key: ActorKey) -> None:
        self._starts.pop(key, None)
        self.actors.pop(key, None)

    return kill


def _answer_before_the_last_commit(original: Any) -> Any:
    async def close(self: Runtime[Any]) -> None:
        for release, reply, effects in self._waiting:
            release(reply, effects)
        self._waiting, self._staged = [], []
        await original(self)

    return close


def _believe_the_caller(original: Any) -> Any:
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
    "commit-after-the-end": Mutant(
        "an actor that has failed writes what waits for its next commit",
        (
            (Runtime, "_drop", _keep_the_records),
            (Runtime, "_flush_forever", _commit_after_the_end),
        ),
        within=100,
        hosts=True,
    ),
    "keep-the-former-copy": Mutant(
        "an actor that failed isn't ended, and its next use starts it beside that",
        ((HostedActors, "kill", _forget_without_ending),),
        within=20,
        hosts=True,
    ),
    "answer-before-the-last-commit": Mutant(
        "an actor that is stopped for a move answers what it doesn't write",
        ((Runtime, "close", _answer_before_the_last_commit),),
        within=100,
        hosts=True,
    ),
    "believe-a-stale-placement": Mutant(
        "a host starts every actor that it is asked for, without asking the directory",
        ((PlacedActors, "start", _believe_the_caller),),
        within=20,
        hosts=True,
    ),
}
