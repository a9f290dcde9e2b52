"""Transactions: messages and acknowledgements that are committed together, or not at all."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from random import randrange
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from velaray.client.batcher import Done
from velaray.client.connection import Connection
from velaray.client.core import PARTITIONS_UPDATE_SECONDS, Core
from velaray.client.enums import TransactionState
from velaray.client.exceptions import (
    AlreadyClosed,
    AuthorizationError,
    InvalidConfiguration,
    InvalidTxnStatusError,
    ServiceUnitNotReady,
    TransactionCoordinatorNotFoundError,
    TransactionHasOperationFailed,
    TransactionNotFound,
    UnknownError,
    VelarayError,
    from_server,
)
from velaray.client.message import OutgoingMessage
from velaray.client.message_id import MessageId
from velaray.events.ids import TopicName, TransactionId
from velaray.wire import pulsar_pb2 as pb

logger = logging.getLogger("velaray")

ASSIGN = TopicName("pulsar", "system", "transaction_coordinator_assign")
"""The topic whose partitions represent the coordinators."""
OPEN_AT_ONCE = 64
"""Number of open transactions for which a client stays with one coordinator."""
MOST_EXPECTED = 16
"""The most participants that a transaction begins with."""

Participant = tuple[str, str | None]
"""A topic partition, and the name of the subscription if the participant is one of its
subscriptions."""

T = TypeVar("T")


class Sender(Protocol):
    """Sends messages to one topic partition."""

    topic: str

    def send(self, message: OutgoingMessage, done: Done) -> None:
        """Take one message."""

    def flush_batch(self) -> None:
        """Send the current batch without waiting for more messages."""

    def awaits(self, joining: asyncio.Future[None]) -> None:
        """Wait for ``joining`` when waiting for all messages: more messages are sent after it."""


class Coordinators:
    """Access to the coordinators of the service.

    A client stays with one coordinator, so that the records of its transactions share syncs and no
    unnecessary coordinators run. Every coordinator is suitable. A client with many open
    transactions uses further ones.

    A transaction begins with the participants that the last two committed ones of this client had
    in common, which saves their registration. An expected participant that gets nothing only gets
    the verdict.
    """

    def __init__(self, core: Core) -> None:
        self.core = core
        self.open: set[Transaction] = set()
        self._first = randrange(2**16)
        self._count = 0
        self._counted_at = 0.0
        self._greeted: dict[int, Connection] = {}
        self._committed: deque[frozenset[Participant]] = deque(maxlen=2)
        self.left = False
        """Whether the client has left the cluster: these coordinators get no more requests then."""
        core.when_switched.add(self._leave)

    def _leave(self) -> None:
        # Ids belong to other transactions there, or to none.
        self.left = True
        self.core.when_switched.discard(self._leave)
        for txn in list(self.open):
            txn.lost()

    def check(self) -> None:
        """Raise `TransactionNotFound` if the client has left their cluster."""
        if self.left:
            raise TransactionNotFound(
                "the client has switched to another cluster, where the transaction doesn't exist;"
                " the outcome of a commit that was under way is unknown"
            )

    async def begin(self, timeout_s: float) -> Transaction:
        """Begin a transaction.

        Raises `InvalidConfiguration` if the service has no coordinators, and the service's
        refusals.
        """
        number = (self._first + len(self.open) // OPEN_AT_ONCE) % await self.count()
        try:
            return await self.begin_at(number, timeout_s)
        except VelarayError:
            self._first += 1  # a retry uses another coordinator
            raise

    async def begin_at(
        self, number: int, timeout_s: float, of_sequence: tuple[str, int] | None = None
    ) -> Transaction:
        """Begin a transaction of this coordinator.

        ``number`` is the number of a commit sequence, if it belongs to one. Raises the service's
        refusals.
        """
        timeout_ms = max(1, round(timeout_s * 1000))
        command = pb.CommandNewTxn(txn_ttl_millis=timeout_ms, tc_id=number)
        if of_sequence is not None:
            command.series, command.series_number = of_sequence
        expected = self._expected()
        _expect(command, expected)
        try:
            answer = await self.request(number, lambda: command)
        except AuthorizationError:
            if not expected:
                raise
            # A right to a participant was revoked, which this transaction perhaps doesn't need.
            self._committed.clear()
            return await self.begin_at(number, timeout_s, of_sequence)
        found = TransactionId(answer.txnid_most_bits, answer.txnid_least_bits)
        return Transaction(self, found, timeout_s, expected if answer.joined else ())

    def _expected(self) -> list[Participant]:
        if len(self._committed) < 2:
            return []
        common = self._committed[0] & self._committed[1]
        return sorted(common, key=_order)[:MOST_EXPECTED]

    def committed(self, participants: Iterable[Participant]) -> None:
        """Note the participants that a committed transaction used."""
        self._committed.append(frozenset(participants))

    async def count(self) -> int:
        """Return the number of coordinators. Raises `InvalidConfiguration` if there are none."""
        now = self.core.loop.time()
        if not self._count or now - self._counted_at > PARTITIONS_UPDATE_SECONDS:
            self._count = await self.core.partitions_of(str(ASSIGN), create=False)
            self._counted_at = now
        if not self._count:
            raise InvalidConfiguration("this service has no transaction coordinators")
        return self._count

    async def request(self, number: int, command: Callable[[], Any]) -> Any:
        """Return a coordinator's response; repeat after transient errors for one operation timeout.

        The request must be idempotent.
        """

        async def attempt() -> Any:
            self.check()
            try:
                connection = await self._connection(number)
                answer = await connection.request(command(), self.core.attempt_timeout)
                if answer.HasField("error"):
                    raise from_server(answer.error, answer.message)
            except TransactionCoordinatorNotFoundError as error:
                self._greeted.pop(number, None)
                raise ServiceUnitNotReady(f"the coordinator has moved: {error}") from error
            except VelarayError:
                self._greeted.pop(number, None)  # it may have moved
                raise
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

    async def close(self) -> None:
        """Abort the open transactions.

        Those that can't be aborted within one operation timeout end by their timeouts.
        """
        await asyncio.gather(*(self._give_up(txn) for txn in self._still_open()))

    def _still_open(self) -> list[Transaction]:
        return [txn for txn in self.open if txn.state == TransactionState.OPEN]

    async def _give_up(self, txn: Transaction) -> None:
        try:
            async with asyncio.timeout(self.core.timeout):
                await txn.abort()
        except (VelarayError, TimeoutError) as error:
            logger.warning("can't abort %r, its timeout will: %s", txn, error)


class _Joining:
    """The registration of a participant with the coordinator, and the work that waits for it."""

    __slots__ = ("error", "over", "waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.over: asyncio.Future[None] = loop.create_future()
        self.error: VelarayError | None = None
        self.waiting: list[Callable[[VelarayError | None], None]] = []


class _Sent:
    """The operation of a message that is sent in a transaction; it ends with the receipt.

    One object for each message: more of them would take time in cycle collection.
    """

    __slots__ = ("_done", "_txn")

    def __init__(self, txn: Transaction, done: Done) -> None:
        self._txn = txn
        self._done = done

    def go(
        self, part: Sender, message: OutgoingMessage, urgent: bool, error: VelarayError | None
    ) -> None:
        """Send the message, unless its topic can't be registered with the coordinator."""
        if error is not None:
            self(error, None)
            return
        part.send(message, self)
        if urgent or self._txn.state != TransactionState.OPEN:
            # With everything sent until then.
            asyncio.get_running_loop().call_soon(part.flush_batch)

    def __call__(self, error: VelarayError | None, message_id: MessageId | None) -> None:
        self._txn.release(error)
        self._done(error, message_id)


class Transaction:
    """One transaction of a client.

    Pass it to the methods that send and acknowledge, then commit it.

    As an asynchronous context manager it commits at the end of the block, or aborts after an
    exception. It is aborted after its timeout, by the service as well; this includes transactions
    of clients that were shut down or died. Closing the client in good order aborts its open
    transactions at once.
    """

    def __init__(
        self,
        coordinators: Coordinators,
        txn_id: TransactionId,
        timeout_s: float,
        joined: Iterable[Participant] = (),
    ) -> None:
        """``joined`` are the participants that it began with."""
        self._coordinators = coordinators
        self._core = coordinators.core
        self._id = txn_id
        self._state = TransactionState.OPEN
        self._began_with = frozenset(joined)
        self._joined: dict[Participant, _Joining] = {}
        self._senders: set[Sender] = set()
        self._under_way = 0
        self._idle: asyncio.Future[None] | None = None
        self._failed: BaseException | None = None
        self._on_end: list[Callable[[bool], object]] = []
        self._timer = self._core.loop.call_later(timeout_s, self._time_out)
        coordinators.open.add(self)

    def __repr__(self) -> str:
        return f"<Transaction {self._id} {self._state.name}>"

    @property
    def txn_id(self) -> TransactionId:
        """The id: the coordinator's number, and the sequence number there."""
        return self._id

    @property
    def state(self) -> TransactionState:
        """The state, as far as this client knows."""
        return self._state

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._state in (TransactionState.COMMITTED, TransactionState.ABORTED):
            return
        if error is None:
            await self.commit()
        elif self._state == TransactionState.OPEN:
            try:
                await self.abort()
            except VelarayError as failure:  # the exception of the block is the one to raise
                logger.warning("can't abort %r, its timeout will: %s", self, failure)

    # -- operations; not for users -------------------------------------------------

    def belongs_to(self, core: Core) -> None:
        """Raise `InvalidConfiguration` unless the client with this core made it."""
        if core is not self._core:
            raise InvalidConfiguration(f"{self!r} was made by another client")

    def check(self) -> None:
        """Raise `TransactionNotFound` if the client has left its cluster."""
        self._coordinators.check()

    async def run(self, operation: Coroutine[Any, Any, T]) -> T:
        """Run an operation of the transaction; committing waits for it.

        The operation runs to its end, even if the caller is cancelled. Raises
        `InvalidTxnStatusError` if the transaction isn't open.
        """
        try:
            self.check_open()
        except InvalidTxnStatusError:
            operation.close()
            raise
        self.hold()
        task = self._core.loop.create_task(operation)
        task.add_done_callback(self._done)
        return await asyncio.shield(task)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self.release(asyncio.CancelledError() if task.cancelled() else task.exception())

    def send(
        self, part: Sender, message: OutgoingMessage, done: Done, urgent: bool = False
    ) -> None:
        """Send a message with ``part``, as soon as its topic is registered with the coordinator.

        Committing waits for it. ``done`` is called exactly once. Messages to one topic partition
        keep their order; an urgent one doesn't wait for its batch to fill. Raises
        `InvalidTxnStatusError` if the transaction isn't open.
        """
        self.check_open()
        self.hold()
        message.transaction = self._id
        self._senders.add(part)
        go = partial(_Sent(self, done).go, part, message, urgent)
        joining = self._when_joined((part.topic, None), go)
        if not joining.over.done():
            part.awaits(joining.over)

    def check_open(self) -> None:
        """Raise `InvalidTxnStatusError` if the transaction isn't open."""
        if self._state != TransactionState.OPEN:
            raise InvalidTxnStatusError(f"{self!r} takes nothing any more")

    def hold(self) -> None:
        """Begin an operation: committing waits until it is released."""
        self._under_way += 1

    def release(self, error: BaseException | None) -> None:
        """End an operation. After an error a commit aborts the transaction."""
        self._under_way -= 1
        if self._failed is None:
            self._failed = error
        if not self._under_way and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    def when_ended(self, tell: Callable[[bool], object]) -> None:
        """Call ``tell`` when the outcome is known: with True for a commit, False for an abort."""
        self._on_end.append(tell)

    # -- participants --------------------------------------------------------------

    async def join_topic(self, topic: str) -> None:
        """Register a topic partition that gets messages with the coordinator, once."""
        await self._join((topic, None))

    async def join_subscription(self, topic: str, subscription: str) -> None:
        """Register a subscription that gets acknowledgements with the coordinator, once."""
        await self._join((topic, subscription))

    async def _join(self, who: Participant) -> None:
        joined = self._core.loop.create_future()

        def go(error: VelarayError | None) -> None:
            if not joined.done():
                joined.set_result(error)

        self._when_joined(who, go)
        if (error := await joined) is not None:
            raise error

    def _when_joined(self, who: Participant, go: Callable[[VelarayError | None], None]) -> _Joining:
        joining = self._joined.get(who)
        if joining is None:
            joining = self._joined[who] = _Joining(self._core.loop)
            if who in self._began_with:
                joining.over.set_result(None)
            else:
                add = partial(_add, self._id, *who)
                telling = self._core.spawn(self._coordinators.request(self._id.coordinator, add))
                telling.add_done_callback(partial(self._told, joining))
        if joining.over.done():
            go(joining.error)
        else:
            joining.waiting.append(go)
        return joining

    def _told(self, joining: _Joining, task: asyncio.Task[Any]) -> None:
        error = AlreadyClosed("the client is closed") if task.cancelled() else task.exception()
        if error is not None:
            joining.error = error if isinstance(error, VelarayError) else UnknownError(str(error))
        joining.over.set_result(None)
        waiting, joining.waiting = joining.waiting, []
        for go in waiting:
            go(joining.error)

    # -- completion ----------------------------------------------------------------

    async def commit(self) -> None:
        """Commit, once all its operations are stored; every participant knows the result on return.

        Committing a committed transaction does nothing. Raises `TransactionHasOperationFailed` if
        one of its operations failed; it is aborted then. Raises `InvalidTxnStatusError` if it was
        aborted, or its timeout is over. On `Timeout` it may be committed or not: another ``commit``
        returns the result.
        """
        if self._state == TransactionState.COMMITTED:
            return
        await self._complete()
        await self._end(pb.COMMIT, TransactionState.COMMITTING, TransactionState.COMMITTED)

    async def prepare(self) -> TransactionId:
        """Complete the operations; a commit sequence ends it (`velaray.client.commit_sequence`).

        All its operations are stored on return, and no more are accepted. The service keeps it
        open, even after the client has left, until it is committed, or aborted by its timeout.
        Raises as `commit` if one of its operations failed, or it isn't open.
        """
        await self._complete()
        self._coordinators.open.discard(self)
        return self._id

    async def _complete(self) -> None:
        self._leave(TransactionState.COMMITTING)
        await self._finish_operations()
        if self._failed is not None:
            await self._end(pb.ABORT, TransactionState.ABORTING, TransactionState.ABORTED)
            raise TransactionHasOperationFailed(
                f"{self!r}: {self._failed}; the transaction was aborted"
            ) from self._failed

    async def abort(self) -> None:
        """Abort: its operations never take effect.

        Raises as `commit`, except for failures of its operations.
        """
        if self._state == TransactionState.ABORTED:
            return
        self._leave(TransactionState.ABORTING)
        await self._finish_operations()
        await self._end(pb.ABORT, TransactionState.ABORTING, TransactionState.ABORTED)

    def _leave(self, to: TransactionState) -> None:
        # An end whose outcome is unknown may be requested again.
        if self._state not in (TransactionState.OPEN, to):
            raise InvalidTxnStatusError(f"{self!r} can't change to {to.name}")
        self._state = to
        self._timer.cancel()

    async def _finish_operations(self) -> None:
        for sender in self._senders:
            sender.flush_batch()
        while self._under_way:
            if self._idle is None or self._idle.done():
                self._idle = self._core.loop.create_future()
            await asyncio.shield(self._idle)

    async def _end(self, action: Any, ending: TransactionState, ended: TransactionState) -> None:
        self._state = ending
        most, least = self._id
        command = pb.CommandEndTxn(txnid_most_bits=most, txnid_least_bits=least, txn_action=action)
        try:
            await self._coordinators.request(self._id.coordinator, lambda: command)
        except (InvalidTxnStatusError, TransactionNotFound):
            self._over(TransactionState.ERROR)
            raise
        if ended is TransactionState.COMMITTED:
            self._coordinators.committed(self._joined)
        self._over(ended)

    def _over(self, state: TransactionState) -> None:
        self._state = state
        self._coordinators.open.discard(self)
        on_end, self._on_end = self._on_end, []
        for tell in on_end:
            tell(state == TransactionState.COMMITTED)

    def lost(self) -> None:
        """Note that the client has left its cluster; not for users."""
        self._timer.cancel()
        self._over(TransactionState.ERROR)

    def _time_out(self) -> None:
        if self._state == TransactionState.OPEN:
            self._over(TransactionState.TIME_OUT)


def _order(participant: Participant) -> tuple[str, str]:
    topic, subscription = participant
    return topic, subscription or ""


def _expect(command: pb.CommandNewTxn, participants: Iterable[Participant]) -> None:
    for topic, subscription in participants:
        if subscription is None:
            command.partitions.append(topic)
        else:
            command.subscription.add(topic=topic, subscription=subscription)


def _add(txn: TransactionId, topic: str, subscription: str | None) -> Any:
    """Build the command that registers a participant."""
    most, least = txn
    if subscription is None:
        return pb.CommandAddPartitionToTxn(
            txnid_most_bits=most, txnid_least_bits=least, partitions=[topic]
        )
    command = pb.CommandAddSubscriptionToTxn(txnid_most_bits=most, txnid_least_bits=least)
    command.subscription.add(topic=topic, subscription=subscription)
    return command
