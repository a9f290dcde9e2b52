"""Completion of decided transactions: notifies participants until all have applied the verdict.

Replicated partitions answer with the clusters that the transaction goes to. Partitions with a
common cluster then get each other's names. The other cluster must show all of the transaction or
nothing, so each partition must send it all names. See
`velaray.actors.partition.outgoing_transactions`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from velaray.actors.coordinator.machine import Finish, Spread, SpreadIs
from velaray.actors.coordinator.state import CoordinatorState, Status, Transaction
from velaray.actors.machine import Reason, Refusal
from velaray.actors.runtime import Runtime
from velaray.broker.catalog.messages import Topic
from velaray.broker.partition.messages import EndTransaction, NameParticipants
from velaray.events.ids import ActorKey, TopicName
from velaray.topology.actor_system import ActorSystem
from velaray.topology.rpc import RemoteError, reason_of
from velaray.topology.transient import TRANSIENT

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 5.0
AT_ONCE = 1000
"""Participants that are notified at the same time, over all transactions."""

Participant = tuple[str, str | None]
"""A topic partition, and the name of the subscription if the participant is one of its
subscriptions."""


Told = EndTransaction | NameParticipants


@dataclass(slots=True)
class Untold:
    """A participant that hasn't applied a verdict: the time of the first attempt, the number of
    failed attempts, and the last error."""

    topic: str
    subscription: str | None
    since_ms: int
    failures: int = 0
    error: str = ""


class TransactionCompletion:
    """One task per decided transaction; participants that answered aren't notified again."""

    def __init__(
        self,
        number: int,
        actor_system: ActorSystem,
        runtime: Runtime[CoordinatorState],
        spawn: Callable[[Any], asyncio.Task[Any]],
        ended: Callable[[Transaction], None],
    ) -> None:
        """``number`` is the coordinator's; ``ended`` is called for each transaction that has
        ended."""
        self._number = number
        self._actor_system = actor_system
        self._runtime = runtime
        self._spawn = spawn
        self._ended = ended
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._applied: dict[int, asyncio.Future[None]] = {}  # by all participants
        self._untold: dict[int, dict[Participant, Untold]] = {}
        self._keys: dict[int, dict[str, ActorKey]] = {}  # of partitions that asked to join
        self._room = asyncio.Semaphore(AT_ONCE)

    def __len__(self) -> int:
        """The number of transactions that are being completed."""
        return len(self._tasks)

    def untold(self, sequence: int) -> list[Untold]:
        """The participants that the end of a transaction waits for."""
        return list(self._untold.get(sequence, {}).values())

    def joined(self, sequence: int, topic: str, incarnation: int) -> None:
        """Note an incarnation of a partition that may have entries of an open transaction. While it
        is connected, it is notified without asking the catalog whether it exists."""
        if sequence in self._runtime.state.unfinished:
            keys = self._keys.setdefault(sequence, {})
            if topic not in keys or keys[topic].topic_incarnation < incarnation:
                keys[topic] = ActorKey.of_partition(TopicName.parse(topic), incarnation)

    def begin(self, sequences: Iterable[int]) -> None:
        """Begin the completion of transactions with durable verdicts."""
        for sequence in sequences:
            self._begin(sequence)

    async def finish(self, sequence: int) -> None:
        """Wait until all participants of a durably decided transaction have applied its verdict."""
        applied = self._begin(sequence)
        if applied is not None:
            await asyncio.shield(applied)

    def _begin(self, sequence: int) -> asyncio.Future[None] | None:
        known = self._runtime.state.unfinished.get(sequence)
        if known is None:
            return None
        if sequence not in self._tasks:
            applied = asyncio.get_running_loop().create_future()
            self._applied[sequence] = applied
            task = self._tasks[sequence] = self._spawn(self._end(known, applied))
            task.add_done_callback(lambda _: applied.cancel())  # no effect if it is done
        return self._applied[sequence]

    async def _end(self, known: Transaction, applied: asyncio.Future[None]) -> None:
        spread: Mapping[str, Sequence[str]] = known.spread or await self._apply(known)
        if spread:
            kept = await self._persist(Spread(known.sequence, spread))
            assert isinstance(kept, SpreadIs)
        # The verdict is durable wherever it applies. After a crash from here on, a recovery asks
        # the participants once more.
        applied.set_result(None)
        if spread:
            await self._name_participants(known, kept.clusters)
        await self._persist(Finish(known.sequence))
        del self._tasks[known.sequence], self._untold[known.sequence]
        del self._applied[known.sequence]
        self._keys.pop(known.sequence, None)
        self._ended(known)

    async def _apply(self, known: Transaction) -> dict[str, list[str]]:
        """Make all participants apply the verdict; returns the partitions with entries by
        cluster."""
        commit, alone = known.status == Status.COMMITTING, len(known.partitions) == 1
        verdict = (self._number, known.sequence, commit, alone)
        participants: list[Participant] = [(topic, None) for topic in known.partitions]
        participants += known.subscriptions
        answers = await self._tell_all(
            known.sequence,
            {each: EndTransaction(*verdict, each[1]) for each in participants},
        )
        spread: dict[str, list[str]] = {}
        for (topic, _), clusters in answers.items():
            for cluster in clusters or ():
                spread.setdefault(cluster, []).append(topic)
        return spread

    async def _name_participants(
        self, known: Transaction, spread: Mapping[str, Sequence[str]]
    ) -> None:
        topics = {topic for topics in spread.values() for topic in topics}
        clusters = {
            topic: {name: list(topics) for name, topics in spread.items() if topic in topics}
            for topic in sorted(topics)
        }
        telling: dict[Participant, Told] = {
            (topic, None): NameParticipants(self._number, known.sequence, named)
            for topic, named in clusters.items()
        }
        await self._tell_all(known.sequence, telling)

    async def _tell_all(
        self, sequence: int, telling: Mapping[Participant, Told]
    ) -> dict[Participant, Any]:
        """The answers of the participants; None for deleted ones."""
        now_ms = self._actor_system.clock_ms()
        untold = {each: Untold(*each, now_ms) for each in telling}
        self._untold[sequence] = dict(untold)
        async with asyncio.TaskGroup() as group:
            tasks = {
                each: group.create_task(self._tell(sequence, untold[each], what))
                for each, what in telling.items()
            }
        return {each: task.result() for each, task in tasks.items()}

    async def _persist(self, command: Spread | Finish) -> Any:
        """Repeat the command until the disk has room for it; return the reply."""
        backoff = self._actor_system.backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        while isinstance(reply := await self._runtime.ask(command), Refusal):
            await backoff.wait()
        return reply

    async def _tell(self, sequence: int, participant: Untold, what: Told) -> Any:
        """Repeat until the participant answers; returns its answer. A deleted participant has
        nothing to apply."""
        backoff, answer = self._actor_system.backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S), None
        while True:
            try:
                async with self._room:
                    answer = await self._tell_once(sequence, participant, what)
                break
            except TRANSIENT as error:
                if isinstance(error, RemoteError) and error.kind == Reason.NOT_FOUND:
                    break
                participant.failures += 1
                participant.error = reason_of(error)
            await backoff.wait()
        del self._untold[sequence][participant.topic, participant.subscription]
        return answer

    async def _tell_once(self, sequence: int, participant: Untold, what: Told) -> Any:
        key = self._keys.get(sequence, {}).get(participant.topic)
        # A connected participant exists. Otherwise ask the catalog: the topic may have been
        # deleted.
        rpc_connection = None if key is None else self._actor_system.shared_rpc(key)
        if rpc_connection is not None:
            return await rpc_connection.ask(what)
        topic = TopicName.parse(participant.topic)
        found = await self._actor_system.request(ActorKey.catalog(), Topic(str(topic)))
        key = ActorKey.of_partition(topic, found["incarnation"])
        return await self._actor_system.request(key, what)
