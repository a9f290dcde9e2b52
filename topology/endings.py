"""Telling the participants of decided transactions, until all of them have applied the verdict."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from velaray.actors.coordinator import Finish
from velaray.actors.coordinator_state import CoordinatorState, Status, Transaction
from velaray.actors.machine import Reason, Refusal
from velaray.actors.runtime import Runtime
from velaray.events.ids import ActorKey, TopicName
from velaray.topology.fabric import Fabric, Unreachable
from velaray.topology.links import RemoteError, reason_of

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 5.0
AT_ONCE = 1000
"""Participants that are told at the same time, over all transactions."""

Participant = tuple[str, str | None]
"""A topic partition and, if it is one of its subscriptions, that one's name."""


@dataclass(slots=True)
class Untold:
    """A participant that hasn't applied a verdict: since when it is being told, how often that
    has failed, and why it failed last."""

    topic: str
    subscription: str | None
    since_ms: int
    failures: int = 0
    error: str = ""


class Endings:
    """One task per decided transaction; a participant that answered isn't told again by it."""

    def __init__(
        self,
        number: int,
        fabric: Fabric,
        runtime: Runtime[CoordinatorState],
        spawn: Callable[[Any], asyncio.Task[Any]],
        ended: Callable[[Transaction], None],
    ) -> None:
        """``number`` is the coordinator's; ``ended`` is told of each that has ended for good."""
        self._number = number
        self._fabric = fabric
        self._runtime = runtime
        self._spawn = spawn
        self._ended = ended
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._untold: dict[int, dict[Participant, Untold]] = {}
        self._keys: dict[int, dict[str, ActorKey]] = {}  # of partitions that asked to join
        self._room = asyncio.Semaphore(AT_ONCE)

    def __len__(self) -> int:
        """How many transactions are being ended."""
        return len(self._tasks)

    def untold(self, sequence: int) -> list[Untold]:
        """The participants that the end of a transaction waits for."""
        return list(self._untold.get(sequence, {}).values())

    def joined(self, sequence: int, topic: str, incarnation: int) -> None:
        """This incarnation of a partition may have something of an open transaction: if it is
        connected, it is told without the catalog being asked whether it exists.
        """
        if sequence in self._runtime.state.unfinished:
            keys = self._keys.setdefault(sequence, {})
            if topic not in keys or keys[topic].topic_incarnation < incarnation:
                keys[topic] = ActorKey.of_partition(TopicName.parse(topic), incarnation)

    def begin(self, sequences: Iterable[int]) -> None:
        """Begin with these, which are decided durably."""
        for sequence in sequences:
            self._begin(sequence)

    async def finish(self, sequence: int) -> None:
        """Until all participants of a durably decided transaction have applied its verdict."""
        ending = self._begin(sequence)
        if ending is not None:
            await asyncio.shield(ending)

    def _begin(self, sequence: int) -> asyncio.Task[None] | None:
        known = self._runtime.state.unfinished.get(sequence)
        if known is None:
            return None
        task = self._tasks.get(sequence)
        if task is None:
            task = self._tasks[sequence] = self._spawn(self._end(known))
        return task

    async def _end(self, known: Transaction) -> None:
        what = {
            "coordinator": self._number,
            "sequence": known.sequence,
            "commit": known.status == Status.COMMITTING,
        }
        now_ms = self._fabric.clock_ms()
        untold = [Untold(topic, None, now_ms) for topic in known.partitions]
        untold += [Untold(topic, name, now_ms) for topic, name in known.subscriptions]
        self._untold[known.sequence] = {(each.topic, each.subscription): each for each in untold}
        async with asyncio.TaskGroup() as group:
            for each in untold:
                group.create_task(self._tell(each, {**what, "subscription": each.subscription}))
        pause = FIRST_PAUSE_S
        while isinstance(await self._runtime.ask(Finish(known.sequence)), Refusal):
            await asyncio.sleep(pause)  # the disk is full
            pause = min(2 * pause, LONGEST_PAUSE_S)
        del self._tasks[known.sequence], self._untold[known.sequence]
        self._keys.pop(known.sequence, None)
        self._ended(known)

    async def _tell(self, participant: Untold, what: dict[str, Any]) -> None:
        """Until it has it. What was deleted has nothing that could be applied to."""
        pause = FIRST_PAUSE_S
        while True:
            try:
                async with self._room:
                    await self._tell_once(participant, what)
                break
            except (RemoteError, Unreachable, OSError, TimeoutError) as error:
                if isinstance(error, RemoteError) and error.kind == Reason.NOT_FOUND:
                    break
                participant.failures += 1
                participant.error = reason_of(error)
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)
        del self._untold[what["sequence"]][participant.topic, participant.subscription]

    async def _tell_once(self, participant: Untold, what: dict[str, Any]) -> None:
        key = self._keys.get(what["sequence"], {}).get(participant.topic)
        # Who is connected exists; else the topic may have been deleted, as the catalog knows.
        link = None if key is None else self._fabric.shared_link(key)
        if link is not None:
            await link.request("end_transaction", what)
            return
        topic = TopicName.parse(participant.topic)
        found = await self._fabric.call(ActorKey.catalog(), "topic", {"topic": str(topic)})
        key = ActorKey.of_partition(topic, found["incarnation"])
        await self._fabric.call(key, "end_transaction", what)
