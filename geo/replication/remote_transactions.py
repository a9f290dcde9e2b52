"""A partition's part in transactions of other clusters, as participant and as deciding partition.

See `velaray.actors.partition.remote_transactions`. A participant reports a complete transaction to
its deciding partition until that confirms, and repeats the report until the verdict comes: this
activates a deciding partition that crashed. The deciding partition sends its verdict to all
participants until all have applied it.

Finished transactions are dropped from the state. Before a deciding partition records the first
report of an unknown
transaction it asks the participant whether the transaction still waits: a late report may belong
to a finished one.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

from google.protobuf.message import DecodeError

from velaray.actors.machine import Reason, Refusal
from velaray.actors.partition.remote_transactions import (
    Arrive,
    Completion,
    EndRemote,
    ForgetRemote,
    GiveUp,
    Judged,
    TakeComplete,
    called_there,
    is_remote,
    name_of,
    remote_id,
)
from velaray.actors.partition.state import PartitionState
from velaray.actors.runtime import Runtime
from velaray.broker.actor_messages import Describe
from velaray.broker.catalog.messages import Topic
from velaray.broker.partition.geo_replication import Handler
from velaray.broker.partition.partition_metrics import PartitionMetrics
from velaray.events.ids import ActorKey, InvalidNameError, Position, TopicName, TransactionId
from velaray.geo.replication import messages as m
from velaray.geo.transient import TRANSIENT_ABROAD
from velaray.topology.actor_system import ActorSystem
from velaray.topology.messages import Message, ReplyT, Request
from velaray.topology.rpc import RemoteError, reason_of
from velaray.wire.replication_pb2 import TransactionsComplete

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 5.0
FIRST_REMINDER_S = 5.0
LONGEST_REMINDER_S = 300.0
"""The interval between repeated reports to a deciding partition."""
AT_ONCE = 256
"""The most concurrent calls, over all transactions."""
SETTLE_S = 10.0

ResultT = TypeVar("ResultT")


class Partition(Protocol):
    """What transactions of other clusters need of the partition."""

    topic: str
    actor_system: ActorSystem
    runtime: Runtime[PartitionState]
    meter: PartitionMetrics

    def spawn(self, work: Any) -> asyncio.Task[Any]:
        """Run a coroutine that is cancelled with the partition."""
        ...

    async def handle(self, request: Message) -> Any:
        """Answer a request as if it came from another actor."""

    async def read_certain(self, query: Callable[[Any], ResultT]) -> ResultT:
        """Read the state of the newest activation."""


@dataclass(slots=True)
class _Telling:
    """The report of a complete transaction to its deciding partition."""

    task: asyncio.Task[None]
    heard: asyncio.Event
    error: str = ""


class RemoteTransactionSide:
    """The transactions of other clusters in one partition."""

    def __init__(self, partition: Partition, ended: Callable[[], None]) -> None:
        """``ended`` is called when more may be readable."""
        self._partition = partition
        self._on_end = ended
        self._doing: set[asyncio.Task[Any]] = set()
        self._telling: dict[TransactionId, _Telling] = {}
        self._untold: dict[TransactionId, set[str]] = {}  # partitions that the verdict concerns
        self._ending: dict[TransactionId, asyncio.Task[None]] = {}
        self._errors: dict[TransactionId, str] = {}
        self._keys: dict[str, ActorKey] = {}
        self._locks: weakref.WeakValueDictionary[TransactionId, asyncio.Lock] = (
            weakref.WeakValueDictionary()
        )
        self._room = asyncio.Semaphore(AT_ONCE)

    def begin(self) -> None:
        """Continue the work of the former activation."""
        arriving = self._partition.runtime.state.arriving
        for transaction in arriving.complete:
            self._tell(transaction)
        for transaction, known in arriving.kept.items():
            if known.commit is not None:
                self._untold[transaction] = set(known.arrived)
                self._end(transaction)

    @property
    def busy(self) -> bool:
        """Whether a report or a verdict is unconfirmed."""
        untold = any(not each.heard.is_set() for each in self._telling.values())
        return untold or bool(self._ending)

    def reason(self, transaction: TransactionId) -> str:
        """The last error about a transaction; empty if there is none."""
        telling = self._telling.get(transaction)
        return (telling.error if telling else "") or self._errors.get(transaction, "")

    # -- completions -------------------------------------------------------------------

    async def take(self, cluster: str, payload: bytes) -> None:
        """Record transactions that a replicator reports complete, durably. Raises `RemoteError`."""
        topic = self._partition.topic
        command = TakeComplete(cluster, list(_completions(cluster, payload, topic)))
        await self._to_the_end(self._take(command))

    async def _to_the_end(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        """Complete the work even if the caller is cancelled."""
        doing = asyncio.ensure_future(work)
        self._doing.add(doing)
        doing.add_done_callback(self._done)
        return await asyncio.shield(doing)

    def _done(self, doing: asyncio.Task[Any]) -> None:
        self._doing.discard(doing)
        if not doing.cancelled():
            doing.exception()  # the caller may be gone

    async def _take(self, command: TakeComplete) -> None:
        for transaction in (await self._ask(command)).transactions:
            self._tell(transaction)

    def _tell(self, transaction: TransactionId) -> None:
        """Report a complete transaction to its deciding partition until it is finished. One with
        no other participant is finished at once."""
        if transaction not in self._telling:
            heard = asyncio.Event()
            task = self._partition.spawn(self._keep_telling(transaction))
            self._telling[transaction] = _Telling(task, heard)

    async def _keep_telling(self, transaction: TransactionId) -> None:
        actor_system = self._partition.actor_system
        backoff = actor_system.backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        reminders = actor_system.backoff(FIRST_REMINDER_S, LONGEST_REMINDER_S)
        arriving = self._partition.runtime.state.arriving
        while (topics := arriving.complete.get(transaction)) is not None:
            telling = self._telling[transaction]
            given_up = transaction in arriving.given_up
            arrived = m.ForeignArrived(
                transaction,
                self._partition.topic,
                list(topics),
                given_up,
                again=telling.heard.is_set(),
            )
            try:
                if len(topics) == 1:
                    await self.end(transaction, commit=not given_up, over=True)
                    return
                await self._request(topics[0], arrived)
            except TRANSIENT_ABROAD as error:
                telling.error = (
                    f"its deciding partition {topics[0]} doesn't answer: {reason_of(error)}"
                )
                await backoff.wait()
            else:
                telling.error = ""
                telling.heard.set()
                await reminders.wait()
            arriving = self._partition.runtime.state.arriving
        self._telling.pop(transaction, None)

    async def settle(self) -> dict[str, str]:
        """Report all complete transactions; returns the errors, by transaction."""
        waiting = [each.heard.wait() for each in self._telling.values()]
        with suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_S):
                await asyncio.gather(*waiting)
        return {
            name_of(transaction): each.error or "its deciding partition doesn't answer"
            for transaction, each in self._telling.items()
            if not each.heard.is_set()
        }

    # -- verdicts ----------------------------------------------------------------------

    async def end(
        self, transaction: TransactionId, *, commit: bool, over: bool, judged: bool = True
    ) -> None:
        """Apply a verdict, durably and idempotently. See `EndRemote`.

        Raises `RemoteError`: CONFLICT to give up a complete transaction without a verdict
        (``judged``), or to commit one that was given up.
        """
        ended = await self._ask(EndRemote(transaction, commit, over, judged))
        if ended.entries:
            self._partition.meter.transaction_ended(commit=commit)
        # Nothing may have been written: a newer activation may know more than this one.
        await self._partition.read_certain(lambda state: None)
        telling = self._telling.pop(transaction, None) if over else None
        if telling is not None and telling.task is not asyncio.current_task():
            telling.task.cancel()
        self._on_end()

    async def give_up(self, cluster: str | None) -> dict[str, int]:
        """Give up unreleased transactions of one cluster, or of all; returns the counts of those
        given up and of those released.

        Raises `RemoteError` and `Unreachable` if one can't be decided. Others may have been given
        up then; repeat the call.
        """
        committed = 0
        waiting = self._waiting(cluster)
        for transaction in waiting:
            committed += await self._give_up(transaction)
        return {"given_up": len(waiting) - committed, "released": committed}

    def _waiting(self, cluster: str | None) -> list[TransactionId]:
        state = self._partition.runtime.state
        found = {each: None for each in state.transactions.ongoing if is_remote(each)}
        found |= dict.fromkeys(state.arriving.complete)
        return [each for each in found if cluster is None or _is_of(each, cluster)]

    async def _give_up(self, transaction: TransactionId) -> bool:
        """Whether it is released anyway."""
        topics = self._partition.runtime.state.arriving.complete.get(transaction)
        commit = False
        if topics is None:
            try:
                await self.end(transaction, commit=False, over=False, judged=False)
                return False
            except RemoteError as error:
                topics = self._partition.runtime.state.arriving.complete.get(transaction)
                if error.kind != Reason.CONFLICT or topics is None:
                    raise  # else it became complete just now
        try:
            if len(topics) == 1:
                commit = transaction not in self._partition.runtime.state.arriving.given_up
            else:
                commit = await self._request(topics[0], m.GiveUpKept(transaction, list(topics)))
        except RemoteError as error:
            if error.kind != Reason.NOT_FOUND:
                raise
            # Without its deciding partition it can never be released.
        if transaction in self._partition.runtime.state.arriving.complete:  # it was faster
            await self.end(transaction, commit=commit, over=commit or len(topics) == 1)
        return commit

    # -- as the deciding partition -----------------------------------------------------------------

    async def arrived(
        self,
        transaction: TransactionId,
        topic: str,
        topics: list[str],
        *,
        given_up: bool,
        again: bool,
    ) -> None:
        """Record that it is complete at ``topic``, durably. Raises `RemoteError`."""
        async with self._locks.setdefault(transaction, asyncio.Lock()):
            if transaction not in self._kept and not await self._waits(topic, transaction):
                return
            self._untold.setdefault(transaction, set()).add(topic)
            judged = await self._to_the_end(
                self._judge(Arrive(transaction, topic, topics, given_up))
            )
        known = self._kept.get(transaction)
        if again and judged.commit is None and known is not None:
            for missing in known.missing:  # a participant may have crashed and be passive
                self._partition.spawn(self._wake(missing))

    async def give_up_kept(self, transaction: TransactionId, topics: list[str]) -> bool:
        """Give it up unless it is released; returns whether it is. Raises `RemoteError`."""
        async with self._locks.setdefault(transaction, asyncio.Lock()):
            judged = await self._to_the_end(self._judge(GiveUp(transaction, topics)))
        return bool(judged.commit)

    async def _judge(self, command: Arrive | GiveUp) -> Judged:
        judged: Judged = await self._ask(command)
        self._judged(command.transaction, judged)
        return judged

    @property
    def _kept(self) -> dict[TransactionId, Any]:
        return self._partition.runtime.state.arriving.kept

    async def _waits(self, topic: str, transaction: TransactionId) -> bool:
        """Whether it is complete at ``topic`` and unfinished."""
        return await self._request(topic, m.ForeignWaits(transaction))

    def _judged(self, transaction: TransactionId, judged: Judged) -> None:
        known = self._kept.get(transaction)
        if judged.commit is None or known is None:
            return
        ending = self._ending.get(transaction)
        if ending is None or ending.done():
            self._untold.setdefault(transaction, set()).update(known.arrived)
            self._end(transaction)

    def _end(self, transaction: TransactionId) -> None:
        task = self._partition.spawn(self._end_everywhere(transaction))
        self._ending[transaction] = task
        task.add_done_callback(partial(self._ended, transaction))

    def _ended(self, transaction: TransactionId, task: asyncio.Task[None]) -> None:
        if self._ending.get(transaction) is task:
            del self._ending[transaction]

    async def _end_everywhere(self, transaction: TransactionId) -> None:
        """Send the verdict until all participants have applied it."""
        untold = self._untold[transaction]
        backoff = self._partition.actor_system.backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        while True:
            commit = bool(self._kept[transaction].commit)
            await asyncio.gather(*(self._end_at(topic, transaction, commit) for topic in untold))
            if not untold:
                if self._kept[transaction].missing:
                    return  # continues when the transaction arrives there
                with suppress(RemoteError):  # the disk is full
                    await self._ask(ForgetRemote(transaction))
                    del self._untold[transaction]
                    self._errors.pop(transaction, None)
                    return
            await backoff.wait()

    async def _end_at(self, topic: str, transaction: TransactionId, commit: bool) -> None:
        try:
            await self._request(topic, m.EndForeign(transaction, commit))
        except TRANSIENT_ABROAD as error:
            deleted = isinstance(error, RemoteError) and error.kind == Reason.NOT_FOUND
            if not deleted:
                self._errors[transaction] = f"{topic} doesn't answer: {reason_of(error)}"
                return
        self._untold[transaction].discard(topic)

    # -- other partitions --------------------------------------------------------------

    async def _wake(self, topic: str) -> None:
        with suppress(*TRANSIENT_ABROAD):
            await self._request(topic, Describe())

    async def _request(self, topic: str, request: Request[ReplyT]) -> ReplyT:
        """Ask a partition. Raises what requests raise; NOT_FOUND if there is none."""
        if topic == self._partition.topic:
            own: ReplyT = await self._partition.handle(request)
            return own
        actor_system = self._partition.actor_system
        async with self._room:
            key = self._keys.get(topic)
            if key is None or actor_system.shared_rpc(key) is None:  # a connected partition exists
                found = await actor_system.request(ActorKey.catalog(), Topic(topic))
                key = ActorKey.of_partition(TopicName.parse(topic), found["incarnation"])
                self._keys[topic] = key
            return await actor_system.request(key, request)

    async def _ask(self, command: Any) -> Any:
        reply = await self._partition.runtime.ask(command)
        if isinstance(reply, Refusal):
            raise RemoteError(reply.reason, reply.message)
        return reply


def _is_of(transaction: TransactionId, cluster: str) -> bool:
    return remote_id(cluster, called_there(transaction)) == transaction


def _told(state: PartitionState, transaction: TransactionId, **more: Any) -> dict[str, Any]:
    """A transaction by its own cluster's name for it; that cluster, if it is known."""
    clusters = {*state.origins.by_cluster, *state.arriving.heard}
    found = [cluster for cluster in clusters if _is_of(transaction, cluster)]
    name = str(called_there(transaction))
    return {"transaction": name, "cluster": found[0] if found else None, **more}


def _completions(cluster: str, payload: bytes, here: str) -> Iterable[Completion]:
    """Parse a marker. Raises `RemoteError` (INVALID)."""
    try:
        marker = TransactionsComplete.FromString(payload)
        for each in marker.transactions:
            topics = sorted({str(TopicName.parse(topic)) for topic in each.topics})
            if here not in topics:
                raise RemoteError(
                    Reason.INVALID, f"a transaction of {topics}, which doesn't include {here}"
                )
            yield Completion(
                remote_id(cluster, TransactionId(each.coordinator, each.sequence)),
                topics,
                Position(each.last_ledger, each.last_entry),
            )
    except (DecodeError, InvalidNameError, ValueError) as error:
        problem = f"transactions that are complete in {cluster!r}: {error}"
        raise RemoteError(Reason.INVALID, problem) from error


# -- requests --------------------------------------------------------------------------


async def remote_arrived(side: RemoteTransactionSide, request: m.ForeignArrived) -> None:
    """Answer `ForeignArrived`."""
    await side.arrived(
        TransactionId(*request.transaction),
        request.topic,
        request.topics,
        given_up=request.given_up,
        again=request.again,
    )


async def remote_waits(partition: Partition, request: m.ForeignWaits) -> bool:
    """Answer `ForeignWaits`."""
    transaction = TransactionId(*request.transaction)
    return await partition.read_certain(lambda state: transaction in state.arriving.complete)


async def end_remote(side: RemoteTransactionSide, request: m.EndForeign) -> None:
    """Answer `EndForeign`."""
    await side.end(TransactionId(*request.transaction), commit=request.commit, over=True)


async def give_up_kept(side: RemoteTransactionSide, request: m.GiveUpKept) -> bool:
    """Answer `GiveUpKept`."""
    return await side.give_up_kept(TransactionId(*request.transaction), request.topics)


async def settle_remote(side: RemoteTransactionSide, request: m.SettleForeign) -> dict[str, str]:
    """Answer `SettleForeign`."""
    return await side.settle()


async def give_up_remote(side: RemoteTransactionSide, request: m.GiveUpForeign) -> dict[str, int]:
    """Answer `GiveUpForeign`."""
    return await side.give_up(request.cluster)


async def remote_transactions_of(
    partition: Partition, side: RemoteTransactionSide, request: m.ForeignTransactions
) -> dict[str, list[dict[str, Any]]]:
    """Answer `ForeignTransactions`."""

    def look(state: PartitionState) -> dict[str, list[dict[str, Any]]]:
        arriving = state.arriving
        ongoing = [each for each in state.transactions.ongoing if is_remote(each)]
        return {
            "incomplete": [_told(state, each) for each in ongoing if each not in arriving.complete],
            "complete": [
                _told(state, each, keeper=topics[0], reason=side.reason(each))
                for each, topics in arriving.complete.items()
            ],
            "kept": [
                _told(
                    *(state, each),
                    missing=known.missing,
                    released=known.commit,
                    reason=side.reason(each),
                )
                for each, known in arriving.kept.items()
            ],
        }

    return await partition.runtime.read(look)


def handlers(partition: Partition, side: RemoteTransactionSide) -> dict[type[Message], Handler]:
    """The requests about transactions of other clusters."""
    return {
        m.ForeignArrived: partial(remote_arrived, side),
        m.ForeignWaits: partial(remote_waits, partition),
        m.EndForeign: partial(end_remote, side),
        m.GiveUpKept: partial(give_up_kept, side),
        m.SettleForeign: partial(settle_remote, side),
        m.GiveUpForeign: partial(give_up_remote, side),
        m.ForeignTransactions: partial(remote_transactions_of, partition, side),
    }
