"""Administration of transactions and their coordinators."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from annotated_types import Ge, Lt
from typing_extensions import TypedDict

from velaray.client.admin.calls import call
from velaray.client.admin.connection import ModeT, Resource
from velaray.client.admin.operations import (
    V3,
    Operation,
    Parameter,
    Query,
    Whole,
    flag,
    reads,
)
from velaray.client.admin.paths import of_subscription, of_topic

TRANSACTIONS = f"{V3}/transactions"
ONE = "{most}/{least}"
OF_TOPIC = "{tenant}/{namespace}/{topic}"


class TransactionFacts(TypedDict):
    """A transaction without its participants; one that has ended has only a status.

    ``owner`` is the role that may use it, empty without tokens. ``client`` is the program and the
    address that began it, empty after a restart of the coordinator.
    """

    txnId: str
    status: str
    openTimestamp: int
    timeoutAt: int
    owner: str | None
    client: str | None
    age: int | None
    timeLeft: int | None
    timedOut: bool | None


class ListedTransaction(TransactionFacts):
    """A transaction that hasn't ended, and the numbers of its participants."""

    producedPartitions: int
    ackedPartitions: int


class ListedTransactions(TypedDict):
    """The number of transactions that haven't ended, and the oldest of them."""

    total: int
    transactions: list[ListedTransaction]


class Waited(TypedDict):
    """A participant that hasn't applied the end of a transaction."""

    topic: str
    subscription: str | None
    since: int
    failures: int
    lastError: str | None


class InBuffer(TypedDict):
    """What a topic holds of a transaction."""

    startPosition: Any
    aborted: bool
    entries: int | None


class InPendingAck(TypedDict):
    """What a subscription holds of a transaction."""

    cumulativeAckPosition: Any
    entries: Any
    batches: Any


class Produced(InBuffer):
    """The same, or why it isn't known."""

    error: str | None


class Acked(InPendingAck):
    """The same, or why it isn't known."""

    error: str | None


class TransactionMetadata(TransactionFacts):
    """A transaction with what its participants hold of it."""

    producedPartitions: dict[str, Produced]
    ackedPartitions: dict[str, dict[str, Acked]]
    waitsFor: list[Waited]


class CoordinatorStats(TypedDict):
    """The statistics of a transaction coordinator."""

    state: str
    leastSigBits: int
    lowWaterMark: int
    ongoingTxnSize: int
    recoverStartTime: int
    recoverEndTime: int
    openTxnSize: int
    endingTxnSize: int
    committedTxnCount: int
    abortedTxnCount: int
    timedOutTxnCount: int


class BufferStats(TypedDict):
    """The open transactions of a topic, and up to where consumers may read."""

    state: str
    maxReadPosition: str
    ongoingTxnSize: int
    hiddenEntries: int
    recoverStartTime: int
    recoverEndTime: int
    lowWaterMarks: NotRequired[dict[str, int]]


class PendingAckStats(TypedDict):
    """The pending acknowledgements in a subscription."""

    state: str
    ongoingTxnSize: int
    pendingEntries: int
    pendingBatches: int
    recoverStartTime: int
    recoverEndTime: int
    lowWaterMarks: NotRequired[dict[str, int]]


Coordinators = Annotated[int, Ge(1), Lt(1 << 16)]

STATUS: Parameter[str | None] = Parameter(
    "status", Literal["OPEN", "COMMITTING", "ABORTING"], None, "Only transactions in this state."
)
COORDINATOR: Parameter[int | None] = Parameter(
    "coordinatorId", Whole, None, "Only this coordinator."
)
OLDER_THAN = Parameter("olderThan", Whole, 0, "Only those that began so long ago (ms).")
MOST = Parameter("most", Whole, 1000, "Answer at most so many transactions.")

LOW_WATER_MARKS = flag("lowWaterMarks", "Add the low-water marks, which are always empty.")

LIST = reads(TRANSACTIONS, ListedTransactions, STATUS, COORDINATOR, OLDER_THAN, MOST)
GET = reads(f"{TRANSACTIONS}/transactionMetadata/{ONE}", TransactionMetadata)
ABORT = Operation("POST", f"{TRANSACTIONS}/abortTransaction/{ONE}", answers={204: None, 202: None})
COORDINATOR_STATS = reads(
    f"{TRANSACTIONS}/coordinatorStats", CoordinatorStats | dict[str, CoordinatorStats], COORDINATOR
)
SCALE = Operation("POST", f"{TRANSACTIONS}/transactionCoordinator/replicas", body=Coordinators)
BUFFER_STATS = reads(
    f"{TRANSACTIONS}/transactionBufferStats/{OF_TOPIC}", BufferStats, LOW_WATER_MARKS
)
PENDING_ACK_STATS = reads(
    f"{TRANSACTIONS}/pendingAckStats/{OF_TOPIC}/{{subscription}}", PendingAckStats, LOW_WATER_MARKS
)


class Transactions(Resource[ModeT]):
    """The transactions of all coordinators."""

    @call
    async def __call__(
        self,
        *,
        status: str | None = None,
        coordinator: int | None = None,
        older_than_ms: int = 0,
        most: int = 1000,
    ) -> dict[str, Any]:
        """Return the ``transactions`` that haven't ended, oldest first: ``most`` of ``total``.

        ``status`` selects those that are OPEN, COMMITTING or ABORTING, ``coordinator`` those of one
        coordinator, ``older_than_ms`` those that began so long ago. Ages and remaining timeouts are
        in milliseconds.
        """
        query: Query = {
            STATUS: status,
            COORDINATOR: coordinator,
            OLDER_THAN: older_than_ms,
            MOST: most,
        }
        return dict(await self._ask(LIST, query=query))

    @call
    async def get(self, txn_id: tuple[int, int]) -> dict[str, Any]:
        """Return a transaction (coordinator, sequence): what every participant holds of it, and
        what its end ``waitsFor``. The ``status`` of one that ended, COMMITTED or ABORTED, is kept
        permanently.

        Raises `NotFound` if there was never such a transaction.
        """
        return dict(await self._ask(GET, _variables(txn_id)))

    @call
    async def abort(self, txn_id: tuple[int, int]) -> bool:
        """Abort a transaction (coordinator, sequence) of any client. A repetition changes nothing.

        The transaction is aborted when this returns; False: some participants haven't applied it
        yet. Raises `Conflict` if it is committed, `NotFound` if there was never such a transaction.
        """
        return (await self._exchange(ABORT, _variables(txn_id))).status != 202

    @call
    async def coordinators(self) -> dict[int, dict[str, Any]]:
        """Return the statistics of every transaction coordinator, by its number."""
        found = await self._ask(COORDINATOR_STATS)
        return {int(number): stats for number, stats in found.items()}

    @call
    async def scale_coordinators(self, count: int) -> None:
        """Increase the number of transaction coordinators to ``count``. Clients use the new ones
        after they connect again.

        Raises `PreconditionFailed` if there are as many already.
        """
        await self._ask(SCALE, body=count)

    @call
    async def buffer_stats(self, topic: str) -> dict[str, Any]:
        """Return the ongoing transactions of a plain topic or a partition, and the position up to
        which consumers may read."""
        return dict(await self._ask(BUFFER_STATS, of_topic(topic)))

    @call
    async def pending_ack_stats(self, topic: str, subscription: str) -> dict[str, Any]:
        """Return the pending acknowledgements in a subscription of a plain topic or partition."""
        return dict(await self._ask(PENDING_ACK_STATS, of_subscription(topic, subscription)))


def _variables(txn_id: tuple[int, int]) -> dict[str, int]:
    coordinator, sequence = txn_id
    return {"most": coordinator, "least": sequence}
