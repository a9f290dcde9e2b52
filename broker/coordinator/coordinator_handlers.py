"""One client's connection to a transaction coordinator."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
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
from velaray.broker.session import Session
from velaray.broker.wire_errors import code_of
from velaray.events.ids import InvalidNameError, TopicName
from velaray.journal.errors import StorageFull
from velaray.topology.config import ClusterConfig
from velaray.topology.open_connections import OpenConnections
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
"""The wait of a session for its coordinator's answers."""
DEFAULT_TIMEOUT_MS = 60_000
"""The timeout of a transaction whose client sets none, as in Pulsar."""


def _users_topic(text: str) -> str:
    """The topic's full name. Raises `InvalidNameError`, and `RemoteError` for a system topic."""
    return str(check_not_systems(TopicName.parse(text)))


class Coordinator(Protocol):
    """The protocol of the coordinator for sessions."""

    number: int
    config: ClusterConfig
    sessions: OpenConnections[CoordinatorHandlers]

    async def ask(self, command: Command) -> Any:
        """Return the durable reply to a command. Raises `RemoteError` for a refusal."""

    async def end(self, command: Decide) -> Any:
        """Decide, and return when all participants have applied the verdict."""

    async def commit_in_sequence(self, command: CommitInSequence) -> Any:
        """Commit all transactions of one number of a commit sequence, and return as `end` does."""

    async def forget_commit_sequence(self, command: ForgetCommitSequence) -> None:
        """End a commit sequence and abort its open transactions."""


class CoordinatorHandlers(Session):
    """Serves one client connection of a coordinator."""

    def __init__(self, coordinator: Coordinator) -> None:
        super().__init__(coordinator.config)
        self._coordinator = coordinator
        works: dict[type, Callable[[Any], Awaitable[Any]]] = {
            pb.CommandNewTxn: self._new,
            pb.CommandAddPartitionToTxn: self._add_partitions,
            pb.CommandAddSubscriptionToTxn: self._add_subscriptions,
            pb.CommandEndTxn: self._end,
        }
        self.handlers = {kind: partial(self._begin, work) for kind, work in works.items()}
        self.handlers[pb.CommandTcClientConnectRequest] = self._on_client

    def on_connected(self, connection: WireConnection) -> None:
        """Add the connection to those that a stop closes."""
        super().on_connected(connection)
        if self._coordinator.sessions.ended:
            connection.abort()
        else:
            self._coordinator.sessions.add(self)

    def on_closed(self, connection: WireConnection, error: Exception | None) -> None:
        """Remove the connection."""
        super().on_closed(connection, error)
        self._coordinator.sessions.discard(self)

    def _on_client(self, command: Any) -> None:
        answer = pb.CommandTcClientConnectResponse(request_id=command.request_id)
        if command.tc_id != self._coordinator.number:
            answer.error = pb.TransactionCoordinatorNotFound
            answer.message = f"coordinator {command.tc_id} is not served here: look it up again"
        elif command.series:
            self.spawn(self._look_up(command.series, answer))
            return
        self.connection.send(answer)

    async def _look_up(
        self, commit_sequence: str, answer: pb.CommandTcClientConnectResponse
    ) -> None:
        try:
            found: LastInSequence = await self._coordinator.ask(
                LookUpCommitSequence(commit_sequence)
            )
        except (RemoteError, Stopped, StorageFull) as error:
            answer.error, answer.message = code_of(error), reason_of(error)
        else:
            answer.series_last = found.number
        self.connection.send(answer)

    def _begin(self, work: Callable[[Any], Awaitable[Any]], command: Any) -> None:
        self.spawn(self._answer(work, command))

    async def _answer(self, work: Callable[[Any], Awaitable[Any]], command: Any) -> None:
        answer = _ANSWERS[type(command)](request_id=command.request_id)
        answer.txnid_most_bits = self._coordinator.number
        answer.txnid_least_bits = getattr(command, "txnid_least_bits", 0)
        try:
            if not isinstance(command, pb.CommandNewTxn):
                self._check_coordinator(command)
            found = await work(command)
        except (RemoteError, InvalidNameError, Stopped, StorageFull) as error:
            kind = error.kind if isinstance(error, RemoteError) else ""
            answer.error = _CODES.get(kind, code_of(error))
            answer.message = reason_of(error)
        else:
            if isinstance(command, pb.CommandNewTxn):
                answer.txnid_least_bits = found.sequence
            elif isinstance(found, InSequence):
                answer.series_repeated = not found.now
        self.connection.send(answer)

    def _check_coordinator(self, command: Any) -> None:
        if command.txnid_most_bits != self._coordinator.number:
            raise RemoteError(
                Reason.NOT_FOUND,
                f"transaction ({command.txnid_most_bits},{command.txnid_least_bits}) belongs to "
                f"another coordinator than {self._coordinator.number}",
            )

    async def _new(self, command: pb.CommandNewTxn) -> Any:
        timeout_ms = command.txn_ttl_millis or DEFAULT_TIMEOUT_MS
        most = self.config.max_active_transactions
        begin = Begin(timeout_ms, self.info.role, most, command.series, command.series_number)
        return await self._coordinator.ask(begin)

    async def _add_partitions(self, command: pb.CommandAddPartitionToTxn) -> Any:
        topics = [_users_topic(text) for text in command.partitions]
        return await self._coordinator.ask(
            AddPartitions(command.txnid_least_bits, topics, self.info.role)
        )

    async def _add_subscriptions(self, command: pb.CommandAddSubscriptionToTxn) -> Any:
        pairs = [(_users_topic(each.topic), each.subscription) for each in command.subscription]
        return await self._coordinator.ask(
            AddSubscriptions(command.txnid_least_bits, pairs, self.info.role)
        )

    async def _end(self, command: pb.CommandEndTxn) -> Any:
        commit = command.txn_action == pb.COMMIT
        if command.HasField("series"):
            return await self._end_in_sequence(command, commit)
        return await self._coordinator.end(Decide(command.txnid_least_bits, commit, self.info.role))

    async def _end_in_sequence(self, command: pb.CommandEndTxn, commit: bool) -> Any:
        if not commit:
            return await self._coordinator.forget_commit_sequence(
                ForgetCommitSequence(command.series, self.info.role)
            )
        number, sequences = command.series_number, tuple(command.series_transactions)
        return await self._coordinator.commit_in_sequence(
            CommitInSequence(command.series, number, sequences, self.info.role)
        )
