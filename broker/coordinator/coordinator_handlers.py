"""The requests of one client connection to transaction coordinators."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Protocol

from velaray.actors.coordinator.commit_sequence import (
    CommitInSequence,
    ForgetCommitSequence,
    InSequence,
    LastInSequence,
    LookUpCommitSequence,
)
from velaray.actors.coordinator.machine import AddPartitions, AddSubscriptions, Begin, Decide
from velaray.actors.machine import Reason
from velaray.actors.runtime import Stopped
from velaray.broker.coordinator.coordinators import check_not_systems
from velaray.broker.session import ClientInfo
from velaray.broker.wire_errors import code_of
from velaray.events.ids import InvalidNameError, TopicName
from velaray.journal.errors import StorageFull
from velaray.topology.actor_system import ActorSystem
from velaray.topology.config import ClusterConfig
from velaray.topology.rpc import RemoteError, reason_of
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.connection import WireConnection

_CODES: dict[str, pb.ServerError] = {
    Reason.NOT_FOUND: pb.TransactionNotFound,
    Reason.CONFLICT: pb.InvalidTxnStatus,
    Reason.BUSY: pb.TooManyRequests,
}
_ANSWERS: dict[type, type] = {
    pb.CommandNewTxn: pb.CommandNewTxnResponse,
    pb.CommandAddPartitionToTxn: pb.CommandAddPartitionToTxnResponse,
    pb.CommandAddSubscriptionToTxn: pb.CommandAddSubscriptionToTxnResponse,
    pb.CommandEndTxn: pb.CommandEndTxnResponse,
}
Command = Begin | AddPartitions | AddSubscriptions | LookUpCommitSequence
"""A command whose durable reply a client waits for."""
DEFAULT_TIMEOUT_MS = 60_000
"""The timeout of a transaction whose client sets none, as in Pulsar."""


def _users_topic(text: str) -> str:
    """The topic's full name. Raises `InvalidNameError`, and `RemoteError` for a system topic."""
    return str(check_not_systems(TopicName.parse(text)))


def _partitions(command: pb.CommandNewTxn | pb.CommandAddPartitionToTxn) -> list[str]:
    return [_users_topic(text) for text in command.partitions]


def _subscriptions(
    command: pb.CommandNewTxn | pb.CommandAddSubscriptionToTxn,
) -> list[tuple[str, str]]:
    return [(_users_topic(each.topic), each.subscription) for each in command.subscription]


class Coordinator(Protocol):
    """A coordinator, as the connections of its clients see it."""

    number: int
    config: ClusterConfig
    actor_system: ActorSystem
    clients: dict[CoordinatorHandlers, None]
    """The connections that have sent it a request."""
    begun_by: dict[int, str]
    """The programs and addresses of the clients that began unfinished transactions since the start
    of the coordinator, by sequence."""

    async def ask(self, command: Command) -> Any:
        """Return the durable reply to a command. Raises `RemoteError` for a refusal."""

    async def end(self, command: Decide) -> Any:
        """Decide, and return when all participants have applied the verdict."""

    async def commit_in_sequence(self, command: CommitInSequence) -> Any:
        """Commit all transactions of one number of a commit sequence, and return as `end` does."""

    async def forget_commit_sequence(self, command: ForgetCommitSequence) -> None:
        """End a commit sequence and abort its open transactions."""


_Work = Callable[[Coordinator, Any], Awaitable[Any]]
"""Carries out a request at a coordinator."""


class LocalCoordinators(Protocol):
    """The coordinators that a connection can use."""

    def find_coordinator(self, number: int) -> Coordinator | None:
        """Return a coordinator; None if it isn't served here."""
        ...


class Client(Protocol):
    """The client at the other end."""

    connection: WireConnection
    info: ClientInfo

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run work until it ends or the connection is closed."""
        ...


class CoordinatorHandlers:
    """Answers the requests of one client connection to the coordinators of a host."""

    def __init__(self, client: Client, coordinators: LocalCoordinators) -> None:
        self.client = client
        self._coordinators = coordinators
        self._under_way: dict[Coordinator, dict[asyncio.Task[None], Any]] = {}
        """The requests to each coordinator that it was ever asked for, and their answers."""
        works: dict[type, _Work] = {
            pb.CommandNewTxn: self._new,
            pb.CommandAddPartitionToTxn: self._add_partitions,
            pb.CommandAddSubscriptionToTxn: self._add_subscriptions,
            pb.CommandEndTxn: self._end,
        }
        self.handlers: dict[type, Callable[[Any], object]] = {
            kind: partial(self._begin, work) for kind, work in works.items()
        }
        self.handlers[pb.CommandTcClientConnectRequest] = self._on_client

    def on_closed(self) -> None:
        """Forget the connection, which is closed."""
        for coordinator in self._under_way:
            coordinator.clients.pop(self, None)
        self._under_way.clear()

    def abandon(self, coordinator: Coordinator) -> None:
        """Make the client look up a coordinator that has stopped, and repeat its requests."""
        for task, answer in self._under_way.pop(coordinator, {}).items():
            if not task.done():
                task.cancel()
                answer.error = pb.TransactionCoordinatorNotFound
                answer.message = f"coordinator {coordinator.number} has stopped: look it up again"
                self.client.connection.send(answer)

    def _on_client(self, command: pb.CommandTcClientConnectRequest) -> None:
        answer = pb.CommandTcClientConnectResponse(request_id=command.request_id)
        self._run(self._connect, command, command.tc_id, answer)

    def _begin(self, work: _Work, command: Any) -> None:
        begins = isinstance(command, pb.CommandNewTxn)
        number = command.tc_id if begins else command.txnid_most_bits
        answer = _ANSWERS[type(command)](request_id=command.request_id)
        answer.txnid_most_bits = number
        answer.txnid_least_bits = 0 if begins else command.txnid_least_bits
        self._run(work, command, number, answer)

    def _run(self, work: _Work, command: Any, number: int, answer: Any) -> None:
        coordinator = self._coordinators.find_coordinator(number)
        if coordinator is None:
            answer.error = pb.TransactionCoordinatorNotFound
            answer.message = f"coordinator {number} is not served here: look it up again"
            self.client.connection.send(answer)
            return
        coordinator.clients[self] = None
        tasks = self._under_way.setdefault(coordinator, {})
        task = self.client.spawn(self._answer(partial(work, coordinator, command), answer))
        tasks[task] = answer
        task.add_done_callback(lambda ended: tasks.pop(ended, None))

    async def _answer(self, work: Callable[[], Awaitable[Any]], answer: Any) -> None:
        try:
            found = await work()
        except (RemoteError, InvalidNameError, StorageFull) as error:
            kind = error.kind if isinstance(error, RemoteError) else ""
            answer.error = _CODES.get(kind, code_of(error))
            answer.message = reason_of(error)
        except Stopped as error:
            answer.error, answer.message = pb.TransactionCoordinatorNotFound, str(error)
        else:
            if isinstance(found, LastInSequence):
                answer.series_last = found.number
            elif isinstance(answer, pb.CommandNewTxnResponse):
                answer.txnid_least_bits = found.sequence
                answer.joined = True
            elif isinstance(found, InSequence):
                answer.series_repeated = not found.now
        self.client.connection.send(answer)

    async def _connect(
        self, coordinator: Coordinator, command: pb.CommandTcClientConnectRequest
    ) -> Any:
        if not command.series:
            return None
        return await coordinator.ask(LookUpCommitSequence(command.series))

    async def _new(self, coordinator: Coordinator, command: pb.CommandNewTxn) -> Any:
        timeout_ms = command.txn_ttl_millis or DEFAULT_TIMEOUT_MS
        most = coordinator.config.max_active_transactions
        begin = Begin(
            *(timeout_ms, self.client.info.role, most, command.series, command.series_number),
            topics=_partitions(command),
            subscriptions=_subscriptions(command),
        )
        begun = await coordinator.ask(begin)
        client = f"{self.client.info.version} at {self.client.connection.peer}"
        coordinator.begun_by[begun.sequence] = client
        return begun

    async def _add_partitions(
        self, coordinator: Coordinator, command: pb.CommandAddPartitionToTxn
    ) -> Any:
        return await coordinator.ask(
            AddPartitions(command.txnid_least_bits, _partitions(command), self.client.info.role)
        )

    async def _add_subscriptions(
        self, coordinator: Coordinator, command: pb.CommandAddSubscriptionToTxn
    ) -> Any:
        pairs = _subscriptions(command)
        return await coordinator.ask(
            AddSubscriptions(command.txnid_least_bits, pairs, self.client.info.role)
        )

    async def _end(self, coordinator: Coordinator, command: pb.CommandEndTxn) -> Any:
        commit = command.txn_action == pb.COMMIT
        if command.HasField("series"):
            return await self._end_in_sequence(coordinator, command, commit)
        return await coordinator.end(
            Decide(command.txnid_least_bits, commit, self.client.info.role)
        )

    async def _end_in_sequence(
        self, coordinator: Coordinator, command: pb.CommandEndTxn, commit: bool
    ) -> Any:
        if not commit:
            return await coordinator.forget_commit_sequence(
                ForgetCommitSequence(command.series, self.client.info.role)
            )
        number, sequences = command.series_number, tuple(command.series_transactions)
        return await coordinator.commit_in_sequence(
            CommitInSequence(command.series, number, sequences, self.client.info.role)
        )
