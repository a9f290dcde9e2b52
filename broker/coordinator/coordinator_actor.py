"""The actor of a transaction coordinator: clients connect to it as to a topic partition."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

from velaray.actors.coordinator.commit_sequence import (
    CommitInSequence,
    ForgetCommitSequence,
    InSequence,
    LastInSequence,
    LookUpCommitSequence,
)
from velaray.actors.coordinator.machine import (
    AddPartitions,
    AddSubscriptions,
    Begin,
    Begun,
    CoordinatorMachine,
    Decide,
    Decided,
    Expire,
    MayJoin,
)
from velaray.actors.coordinator.state import CoordinatorState, Transaction
from velaray.actors.machine import Refusal
from velaray.actors.runtime import Runtime
from velaray.broker.client_listener import ClientListener
from velaray.broker.coordinator import coordinator_admin
from velaray.broker.coordinator import messages as m
from velaray.broker.coordinator.coordinator_handlers import CoordinatorHandlers
from velaray.broker.coordinator.coordinator_metrics import CoordinatorMetrics
from velaray.broker.coordinator.transaction_completion import TransactionCompletion
from velaray.broker.journaled_actor import JournaledActor
from velaray.events.ids import ActorKey
from velaray.topology.actor_system import ActorSystem, Address
from velaray.topology.messages import Message
from velaray.topology.metrics import Labels, Sample
from velaray.topology.rpc import RemoteError

Command = (
    Begin
    | AddPartitions
    | AddSubscriptions
    | MayJoin
    | Decide
    | CommitInSequence
    | LookUpCommitSequence
    | ForgetCommitSequence
)

FULL_DISK_PAUSE_S = 1.0
"""The pause before commands that a full disk refused are tried again."""


class CoordinatorActor(JournaledActor):
    """Serves clients that begin and end transactions, and calls of participants."""

    accepts = m.TO_COORDINATOR
    runtime: Runtime[CoordinatorState]

    def __init__(self, key: ActorKey, actor_system: ActorSystem) -> None:
        super().__init__(key, actor_system, CoordinatorMachine())
        self.number = key.partition
        self.clients: dict[CoordinatorHandlers, None] = {}
        self.begun_by: dict[int, str] = {}
        self.completion: TransactionCompletion
        labels = Labels(actor_system.config.name, key)
        self.meter = CoordinatorMetrics(labels, actor_system.clock_ms())
        self._listener = self.host.part(ClientListener)
        self._alarm_ms: int | None = None  # the deadline of the alarm
        self._earlier = asyncio.Event()  # set when an earlier deadline is added

    async def start(self) -> Address:
        """Recover, continue the completion of decided transactions, and listen."""

        def on_ended(known: Transaction) -> None:
            self.begun_by.pop(known.sequence, None)
            self.meter.ended(known, self.actor_system.clock_ms())

        address = await super().start()
        self.completion = TransactionCompletion(
            *(self.number, self.actor_system, self.runtime, self.spawn),
            ended=on_ended,
        )
        address = await self._listener.open(address)
        self.completion.begin([known.sequence for known in self.runtime.state.decided()])
        self.runtime.on_applied = self._applied
        self.spawn(self._keep_deadlines())
        self._listener.add_coordinator(self)
        return address

    # -- transactions --------------------------------------------------------------

    async def ask(self, command: Command) -> Any:
        """The durable reply. Raises `RemoteError` with the reason of a refusal."""
        reply = await self.runtime.ask(command)
        if isinstance(reply, Refusal):
            raise RemoteError(reply.reason, reply.message)
        if isinstance(reply, Begun):
            self.meter.created += 1
        return reply

    async def end(self, command: Decide) -> Decided:
        """Decide, and wait until all participants have applied the verdict.

        The verdict is durable before any participant gets it. A caller whose answer was lost may
        ask again and gets the same answer. Raises `RemoteError`.
        """
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        decided: Decided = await self.ask(command)
        if not decided.finished:
            await self.completion.finish(command.sequence)
        if command.commit:
            self.meter.committed_in(loop.time() - began_s)
        return decided

    async def commit_in_sequence(self, command: CommitInSequence) -> InSequence:
        """Like `end`, for all transactions of one number of a commit sequence, and those that the
        commit aborts."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        found: InSequence = await self.ask(command)
        ending = (*command.sequences, *found.dropped)
        await asyncio.gather(*map(self.completion.finish, ending))
        if found.now:
            self.meter.committed_in(loop.time() - began_s)
        return found

    async def forget_commit_sequence(self, command: ForgetCommitSequence) -> None:
        """End a commit sequence and abort its open transactions. Raises `RemoteError`."""
        found: LastInSequence = await self.ask(command)
        await asyncio.gather(*map(self.completion.finish, found.dropped))

    async def _keep_deadlines(self) -> None:
        """Abort transactions past their deadline; those that passed while the actor was down, at
        once."""
        backoff = self.actor_system.backoff(FULL_DISK_PAUSE_S, FULL_DISK_PAUSE_S)
        while True:
            self._earlier.clear()
            expired = await self.runtime.ask(Expire())
            if isinstance(expired, Refusal):  # the disk is full
                await backoff.wait()
            elif expired.sequences:
                self.meter.timed_out += len(expired.sequences)
                self.completion.begin(expired.sequences)
            else:
                await self._until_the_next_deadline()

    def _applied(self, events: Sequence[Any], reply: Any) -> None:
        """Wake the alarm for an earlier deadline, even if the caller is gone by now."""
        deadline = self.runtime.state.next_deadline_ms
        if deadline is not None and (self._alarm_ms is None or deadline < self._alarm_ms):
            self._earlier.set()

    async def _until_the_next_deadline(self) -> None:
        deadline = self._alarm_ms = self.runtime.state.next_deadline_ms
        pause = None if deadline is None else (deadline - self.actor_system.clock_ms()) / 1000
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self._earlier.wait()

    # -- calls ---------------------------------------------------------------------

    async def handle(self, request: Message) -> Any:
        """Answer a request of `velaray.broker.coordinator.messages`. Raises `RemoteError`."""
        if isinstance(request, m.MayJoin):
            return await self._may_join(request)
        handler = coordinator_admin.HANDLERS.get(type(request))
        if handler is None:
            return await super().handle(request)
        return await handler(self, request)

    async def _may_join(self, request: m.MayJoin) -> None:
        await self.ask(MayJoin(request.sequence, request.topic, request.subscription))
        self.completion.joined(request.sequence, request.topic, request.incarnation)
        await self.read_certain(lambda state: None)  # owned the journal when it answered

    async def metrics(self) -> list[Sample]:
        """The metrics of every actor, and those of transactions."""
        now_ms = self.actor_system.clock_ms()
        found = await self.runtime.read(lambda state: self.meter.samples(state, now_ms))
        return [*await super().metrics(), *found]

    # -- life ----------------------------------------------------------------------

    def idle(self) -> bool:
        """Whether no client uses it and no transaction is unfinished."""
        return (
            not self.clients
            and not self.rpc_server.connections
            and not self.runtime.state.unfinished
        )

    async def stop(self) -> None:
        """Answer no clients any more, then stop as every actor does."""
        self._leave()
        await super().stop()

    def abort(self) -> None:
        """Stop as a crash would."""
        self._leave()
        super().abort()

    def _leave(self) -> None:
        self._listener.remove_coordinator(self)
        clients, self.clients = self.clients, {}
        for client in clients:
            client.abandon(self)
