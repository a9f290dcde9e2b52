"""Transactions: messages and acknowledgements that count all together, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from velaray.aio.connection import Connection
from velaray.aio.core import Core
from velaray.enums import TransactionState
from velaray.events.ids import TopicName, TransactionId
from velaray.exceptions import (
    InvalidConfiguration,
    InvalidTxnStatusError,
    TransactionHasOperationFailed,
    TransactionNotFound,
    VelarayError,
    from_server,
)
from velaray.wire import pulsar_pb2 as pb

ASSIGN = TopicName("pulsar", "system", "transaction_coordinator_assign")
"""The topic whose partitions stand for the coordinators."""

T = TypeVar("T")


class Coordinators:
    """The way to the coordinators of the service; new transactions go to them in turn."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self._turn = 0
        self._greeted: dict[int, Connection] = {}

    async def begin(self, timeout_s: float) -> Transaction:
        """Begin a transaction. Raises `InvalidConfiguration` if the service has no coordinators,
        and what its refusal says."""
        count = await self.core.partitions_of(str(ASSIGN), create=False)
        if not count:
            raise InvalidConfiguration("this service has no transaction coordinators")
        number, self._turn = self._turn % count, self._turn + 1
        timeout_ms = max(1, round(timeout_s * 1000))
        answer = await self.request(
            number, lambda: pb.CommandNewTxn(txn_ttl_millis=timeout_ms, tc_id=number)
        )
        found = TransactionId(answer.txnid_most_bits, answer.txnid_least_bits)
        return Transaction(self, found, timeout_s)

    async def request(self, number: int, command: Callable[[], Any]) -> Any:
        """The answer of a coordinator, asked again while that may help, for one operation's time.

        What is asked must be harmless twice.
        """

        async def attempt() -> Any:
            connection = await self._connection(number)
            try:
                answer = await connection.request(command(), self.core.attempt_timeout)
            except VelarayError:
                self._greeted.pop(number, None)  # it may be elsewhere by now
                raise
            if answer.HasField("error"):
                raise from_server(answer.error, answer.message)
            return answer

        return await self.core.retrying(f"asking transaction coordinator {number}", attempt)

    async def _connection(self, number: int) -> Connection:
        known = self._greeted.get(number)
        if known is not None:
            return known
        connection = await self.core.lookup.server_of(str(ASSIGN.of_partition(number)))
        hello = pb.CommandTcClientConnectRequest(tc_id=number)
        answer = await connection.request(hello, self.core.attempt_timeout)
        if answer.HasField("error"):
            raise from_server(answer.error, answer.message)
        self._greeted[number] = connection
        return connection


class Transaction:
    """One transaction of a client: pass it to ``send`` and ``acknowledge``, then commit it.

    As an asynchronous context manager it commits on leaving, and aborts if an exception leaves.
    After its timeout it is aborted, by the service as well.
    """

    def __init__(self, coordinators: Coordinators, txn_id: TransactionId, timeout_s: float) -> None:
        self._coordinators = coordinators
        self._id = txn_id
        self._state = TransactionState.OPEN
        self._joined: dict[tuple[str, str | None], asyncio.Task[Any]] = {}
        self._under_way: set[asyncio.Task[Any]] = set()
        self._failed: BaseException | None = None
        loop = coordinators.core.loop
        self._timer = loop.call_later(timeout_s, self._time_out)

    def __repr__(self) -> str:
        return f"<Transaction {self._id} {self._state.name}>"

    @property
    def txn_id(self) -> TransactionId:
        """Its id: the coordinator's number, and its sequence there."""
        return self._id

    @property
    def state(self) -> TransactionState:
        """Where it is, as far as this client knows."""
        return self._state

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._state != TransactionState.OPEN:
            return
        if error is None:
            await self.commit()
        else:
            await self.abort()

    # -- what is done in it --------------------------------------------------------

    async def run(self, operation: Coroutine[Any, Any, T]) -> T:
        """Do something that belongs to the transaction; committing waits for it.

        Raises `InvalidTxnStatusError` if the transaction isn't open.
        """
        if self._state != TransactionState.OPEN:
            operation.close()
            raise InvalidTxnStatusError(f"{self!r} takes nothing any more")
        task = self._coordinators.core.loop.create_task(operation)
        self._under_way.add(task)
        task.add_done_callback(self._done)
        return await asyncio.shield(task)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._under_way.discard(task)
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is not None and self._failed is None:
            self._failed = error

    async def join_topic(self, topic: str) -> None:
        """Tell the coordinator, once, that the topic partition gets messages in it."""
        most, least = self._id
        command = pb.CommandAddPartitionToTxn(
            txnid_most_bits=most, txnid_least_bits=least, partitions=[topic]
        )
        await self._join((topic, None), command)

    async def join_subscription(self, topic: str, subscription: str) -> None:
        """Tell the coordinator, once, that the subscription gets acknowledgements in it."""
        most, least = self._id
        command = pb.CommandAddSubscriptionToTxn(txnid_most_bits=most, txnid_least_bits=least)
        command.subscription.add(topic=topic, subscription=subscription)
        await self._join((topic, subscription), command)

    async def _join(self, who: tuple[str, str | None], command: Any) -> None:
        joining = self._joined.get(who)
        if joining is None:
            work = self._coordinators.request(self._id.coordinator, lambda: command)
            joining = self._joined[who] = self._coordinators.core.spawn(work)
        await asyncio.shield(joining)

    # -- its end -------------------------------------------------------------------

    async def commit(self) -> None:
        """Commit, once everything done in it is stored. When it returns everybody has the verdict.

        Raises `TransactionHasOperationFailed` if something done in it failed: then it is aborted.
        Raises `InvalidTxnStatusError` if it isn't open, or was aborted by its timeout. On
        `Timeout` it may be committed or not: another ``commit`` tells.
        """
        self._leave(TransactionState.OPEN, TransactionState.COMMITTING)
        await self._finish_operations()
        if self._failed is not None:
            await self._end(pb.ABORT, TransactionState.ABORTING, TransactionState.ABORTED)
            raise TransactionHasOperationFailed(
                f"{self!r}: {self._failed}; the transaction was aborted"
            ) from self._failed
        await self._end(pb.COMMIT, TransactionState.COMMITTING, TransactionState.COMMITTED)

    async def abort(self) -> None:
        """Abort: nothing of it ever counts. Raises as `commit`, but for what failed in it."""
        self._leave(TransactionState.OPEN, TransactionState.ABORTING)
        await self._finish_operations()
        await self._end(pb.ABORT, TransactionState.ABORTING, TransactionState.ABORTED)

    def _leave(self, state: TransactionState, to: TransactionState) -> None:
        # An end whose outcome isn't known may be asked for again.
        if self._state not in (state, to):
            raise InvalidTxnStatusError(f"{self!r} can't be {to.name}")
        self._state = to
        self._timer.cancel()

    async def _finish_operations(self) -> None:
        while self._under_way:
            await asyncio.wait(self._under_way)

    async def _end(self, action: Any, ending: TransactionState, ended: TransactionState) -> None:
        self._state = ending
        most, least = self._id
        command = pb.CommandEndTxn(txnid_most_bits=most, txnid_least_bits=least, txn_action=action)
        try:
            await self._coordinators.request(self._id.coordinator, lambda: command)
        except (InvalidTxnStatusError, TransactionNotFound):
            self._state = TransactionState.ERROR
            raise
        self._state = ended

    def _time_out(self) -> None:
        if self._state == TransactionState.OPEN:
            self._state = TransactionState.TIME_OUT
