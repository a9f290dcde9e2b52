"""The messages between a partition and the dispatcher of one of its subscriptions.

Offsets are those of the partition's log. A flat range list is ``first, end, first, end, ...``:
ascending, without overlaps, each ``end`` after the last offset. A batch that is acknowledged in
part is ``(offset, words)``: the set bits of the 64-bit words, lowest first, are the messages that
aren't acknowledged. ``number`` identifies a consumer within one connection of the partition.

The messages of a dispatch lease are in `velaray.actors.dispatch.lease`'s terms: `GrantLease` gives
a lease, `LeaseReport` lists what the partition delivered under it. A lease ends with any of
`ENDS_LEASE`, which includes `ReleaseLease`, the answer to `RevokeLease`. Both sides count these
messages, and `GrantLease` names the dispatcher's count. The partition ignores a lease that names
another count than its own: the two messages crossed, so both sides know that there is no lease.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NotRequired, TypedDict

from velaray.broker.actor_messages import ACTOR_REQUESTS
from velaray.topology.messages import Codec, Encoded, Message, Request, Value, encode

Batches = Sequence[tuple[int, Sequence[int]]]
Point = tuple[int, int]
"""A ledger and an entry."""
Progress = tuple[
    Point,
    Sequence[tuple[int, int, int]],
    Sequence[tuple[int, int, Sequence[int]]],
    Sequence[tuple[int, int, int, int]],
]
"""What another cluster acknowledged of one origin: everything up to a point, then entry ranges
(ledger, first, end), batches (ledger, entry, words), and delivery counts of entry ranges (ledger,
first, end, times)."""

# -- replies ---------------------------------------------------------------------------


class ConsumerStats(TypedDict):
    """A connected consumer; ``permits`` and ``unacked`` are messages."""

    number: int
    name: str
    permits: int
    unacked: int
    active: bool
    blocked: bool
    priority: int


class Stats(TypedDict):
    """A subscription's cursor and consumers."""

    acked_before: int
    backlog: int
    holes: int
    expired: dict[str, int]
    partial: int
    type: str | None
    next_offset: int
    waiting: int
    draining: int
    blocked: bool
    delayed: int
    pending_transactions: int
    pending_entries: int
    consumers: list[ConsumerStats]


class Details(Stats):
    """`Stats` and samples of what the subscription holds; ranges are ``[first, end]``.

    ``last_left_ms`` is the time at which the last consumer left; None if this activation of the
    subscription had none.
    """

    end_offset: int
    last_left_ms: NotRequired[int | None]
    dead_letters: int
    first_holes: list[list[int]]
    first_partial: list[list[Any]]
    held: dict[int, list[list[int]]]
    redelivered: list[list[int]]


class PendingAcks(TypedDict):
    """Counts of what transactions acknowledge; ``before`` is the one that does so cumulatively."""

    transactions: int
    entries: int
    batches: int
    before: list[Any] | None


# -- requests --------------------------------------------------------------------------


class OpenDispatcher(Request[int]):
    """Start to serve a partition whose log ends at ``end`` and lacks ``gone``.

    A new subscription starts at ``start``. Returns the mark: the first offset that isn't
    acknowledged.
    """

    start: int
    terminated_at: int | None
    end: int
    gone: Sequence[int] = ()
    epoch: int = 0


class ResetCursor(Request[None]):
    """Move the cursor to ``offset`` and drop all consumers."""

    offset: int
    reason: str
    gone: Sequence[int] = ()
    shared: bool = False


class PlanUndo(Request[dict[str, Any] | None]):
    """What `UndoMoves` would change; None if the cursor hasn't moved since that point in time."""

    sequence: int | None
    at_ms: int | None
    gone: Sequence[int]


class UndoMoves(Request[dict[str, Any]]):
    """Move the cursor back to a point in time; returns what changed."""

    sequence: int | None
    at_ms: int | None
    gone: Sequence[int]
    shared: bool


class SkipTo(Request[None]):
    """Acknowledge everything before ``offset``."""

    end: int
    offset: int
    reason: str = "by an administrator"


class ExpireEntries(Request[int]):
    """Acknowledge entries that expired; returns the new mark."""

    end: int
    ranges: Sequence[int]
    why: str


class ForgetMessages(Request[None]):
    """Acknowledge messages of one batch for everybody, by command."""

    end: int
    partial: Batches


class GetHoldings(Request[tuple[int, list[int]]]):
    """The mark, and the indexes of those ranges that are wholly acknowledged."""

    ranges: Sequence[int]


class PassOver(Request[None]):
    """Acknowledge entries that no consumer will get."""

    end: int
    ranges: Sequence[int]
    partial: Batches


class TakeRemoteProgress(Request[list[str]]):
    """Apply what another cluster's subscription acknowledged.

    ``came`` are the newest stored positions by origin. Returns the origins of which something
    waits for entries that aren't stored yet.
    """

    cluster: str
    end: int
    oldest: int
    ranges: Sequence[tuple[int, int]]
    partial: Batches
    counts: Sequence[tuple[int, int, int]]
    ahead: dict[str, Progress]
    came: dict[str, Point]


class GetWaiting(Request[tuple[dict[str, tuple[Point, Progress]], list[str]]]):
    """Remote progress that waited for entries up to ``came``, and the origins with any."""

    came: dict[str, Point]


class AckEntriesInTransaction(Request[None]):
    """Keep acknowledgements until the transaction ends; batches are (offset, words, messages).

    ``may_repeat``: an earlier attempt may have been recorded, so that it is no conflict.
    """

    number: int
    transaction: Point
    end: int
    ranges: Sequence[int]
    partial: Sequence[tuple[int, Sequence[int], int]]
    may_repeat: bool


class AckEntriesBeforeInTransaction(Request[None]):
    """Keep a cumulative acknowledgement until the transaction ends."""

    number: int
    transaction: Point
    end: int
    offset: int
    words: Sequence[int] | None


class EndPendingAcks(Request[bool]):
    """Apply or drop a transaction's acknowledgements; returns whether there were any."""

    coordinator: int
    sequence: int
    commit: bool


class GetMark(Request[int]):
    """The first offset that isn't acknowledged, durably."""


class FindUnacked(Request[int | None]):
    """The offset of the ``number``-th (from 1) unacknowledged entry before ``end``."""

    number: int
    end: int


class GetUnacked(Request[list[int]]):
    """The ``most`` first unacknowledged offsets between ``first`` and ``end``, as a flat list."""

    first: int
    most: int
    end: int


class GetPendingAcks(Request[PendingAcks]):
    """The pending acknowledgements of a transaction, or of all transactions."""

    transaction: Point | None = None


class GetPendingTransactions(Request[list[Point]]):
    """The transactions that have acknowledgements pending."""


class GetAckStatus(Request[str]):
    """Pulsar's name for the state of an entry, or of one message of its batch."""

    offset: int
    index: int | None


class GetStats(Request[Stats]):
    """The cursor and the consumers; ``end`` is the end of the partition's log."""

    end: int


class GetDetails(Request[Details]):
    """`GetStats` and samples of what the subscription holds."""

    end: int


class LocateEntry(Request[dict[str, Any]]):
    """Request the status of one entry: acknowledged, delivered to a consumer, waiting, ..."""

    offset: int


class ExportProgress(Request[dict[str, Any]]):
    """Request the progress of the subscription that ``cluster`` doesn't have yet."""

    cluster: str
    token: list[Any] | None
    known_from: int


# -- notices of the partition ----------------------------------------------------------


class Attach(Message):
    """A consumer connects; the dispatcher answers with `Attached`.

    ``key_shared`` is the mode, the hash ranges and whether delivery out of order is allowed.
    """

    number: int
    name: str
    type: int
    priority: int
    key_shared: tuple[int, Sequence[tuple[int, int]], bool]
    address: str


class Detach(Message):
    """A consumer left; ``lost``: its connection broke, which fails its deliveries."""

    number: int
    lost: bool


class AddPermits(Message):
    """A consumer accepts this many more messages."""

    number: int
    permits: int


class FeedEntries(Message):
    """New entries from ``first`` on: messages of each, chunk ids and key hashes, if needed.

    ``delayed`` is a flat list of those that may not be delivered yet.
    """

    first: int
    sizes: Sequence[int]
    chunk_keys: dict[int, str]
    hashes: Sequence[int] | None
    delayed: Sequence[int]


class EntriesDue(Message):
    """The delivery time of delayed entries has come."""

    ranges: Sequence[int]


class AckEntries(Message):
    """A consumer acknowledges entries and parts of batches.

    A ``request_id`` other than 0 asks for an `AckReceipt`. ``end`` is the end of the log.
    """

    number: int
    request_id: int
    end: int
    ranges: Sequence[int]
    partial: Batches


class AckEntriesBefore(Message):
    """A consumer acknowledges everything before ``offset``, and all but ``words`` of the batch
    there."""

    number: int
    request_id: int
    end: int
    offset: int
    words: Sequence[int] | None


class Redeliver(Message):
    """A consumer wants entries (None: all that it holds) delivered again."""

    number: int
    ranges: Sequence[int] | None
    epoch: int | None


class LeaseReport(Message):
    """Entries from ``first`` on were delivered under the lease; fields as in `FeedEntries`."""

    first: int
    sizes: Sequence[int]
    chunk_keys: dict[int, str]
    hashes: Sequence[int] = ()


class ReleaseLease(Message):
    """The partition delivers nothing more under its lease."""


class TopicTerminated(Message):
    """The log ends for good at ``end``."""

    end: int | None


class SetPolicies(Message):
    """The policies that subscriptions apply, by Pulsar's names."""

    values: dict[str, Any]


class EntriesTrimmed(Message):
    """The log, which ends at ``end``, lacks entries from now on."""

    end: int
    ranges: Sequence[int]


class ReadCompacted(Message):
    """Consumers read a compacted view up to ``horizon``: no lease starts before it."""

    horizon: int


class GrantsSkipped(Message):
    """Granted entries, or parts of batches, that are compacted away: nothing was sent of them.

    The bits of the words that are set were sent.
    """

    number: int
    end: int
    partial: Batches


class DeadLettersMoved(Message):
    """Entries are durable in the dead-letter topic."""

    offsets: Sequence[int]


# -- notices of the dispatcher ---------------------------------------------------------


class DispatchGrant(Value):
    """Consecutive entries for one consumer; ``words``: the unacknowledged part of a batch."""

    number: int
    first: int
    count: int
    redelivery_count: int
    words: Sequence[int]


class Deliver(Message):
    """Write these entries to consumers, in this order."""

    grants: Sequence[DispatchGrant]


class Attached(Message):
    """A consumer is connected, or refused with (reason, text)."""

    number: int
    refusal: tuple[str, str] | None


class FeedFrom(Message):
    """Feed entries from ``offset`` up to ``wanted``, with key hashes if ``hashing``."""

    offset: int
    wanted: int
    hashing: bool


class WantEntries(Message):
    """Feed entries up to this offset."""

    wanted: int


class GrantLease(Message):
    """See `velaray.actors.dispatch.lease.DispatchLease`; ``endings`` counts `ENDS_LEASE`."""

    number: int
    first: int
    debited: int
    room: int
    lease_ends: int


class RevokeLease(Message):
    """End the lease; the partition answers with `ReleaseLease`."""


class AckReceipt(Message):
    """An acknowledgement is durable, or refused with a text."""

    number: int
    request_id: int
    error: str | None


class ActiveChanged(Message):
    """Whether a consumer is the one that receives messages."""

    number: int
    active: bool


class Redelivering(Message):
    """Later grants are the answer to the consumer's `Redeliver` with this epoch."""

    number: int
    epoch: int


class MoveDeadLetters(Message):
    """Publish entries to the dead-letter topic: (offset, number, words), as in `DispatchGrant`."""

    dead_letters: Sequence[tuple[int, int, Sequence[int]]]


class EndOfTopic(Message):
    """A consumer has everything of a terminated topic."""

    number: int


class ProgressMade(Message):
    """There is something new for `ExportProgress`; sent once until it is requested."""


class Restart(Message):
    """The dispatcher lost its state: close the connection and consumers, and open it again."""


SubscriptionRequest = (
    *(OpenDispatcher, ResetCursor, PlanUndo, UndoMoves, SkipTo, ExpireEntries, GetHoldings),
    *(ForgetMessages, PassOver, TakeRemoteProgress, GetWaiting, AckEntriesInTransaction),
    *(AckEntriesBeforeInTransaction, EndPendingAcks, GetMark, FindUnacked, GetUnacked),
    *(GetPendingAcks, GetPendingTransactions, GetAckStatus, GetStats, GetDetails, LocateEntry),
    ExportProgress,
)
"""The requests that a subscription answers."""

ENDS_LEASE: frozenset[type[Message]] = frozenset(
    (
        *(Attach, Detach, Redeliver, EntriesDue, SetPolicies, ReleaseLease, EntriesTrimmed),
        GrantsSkipped,
    )
)
"""Notices of the partition before which it ends its lease, if it has one."""

TO_PARTITION = Codec(
    *(Deliver, Attached, FeedFrom, WantEntries, GrantLease, RevokeLease, AckReceipt),
    *(ActiveChanged, Redelivering, MoveDeadLetters, EndOfTopic, ProgressMade, Restart),
)
"""The messages that the partition's end of the connection accepts."""

_REQUESTS = Codec(*SubscriptionRequest)


class CallSubscription(Request[Encoded]):
    """A request of a partition that isn't connected: the activation ``epoch`` of the partition.

    A subscription without a journal starts at ``start``.
    """

    epoch: int
    start: int
    request: Encoded

    def unwrap(self) -> Request[Any]:
        """The request. Raises `MessageError` if it has the wrong shape."""
        request = _REQUESTS.decode(bytes(self.request))
        assert isinstance(request, Request)
        return request


def call_of(epoch: int, start: int, request: Request[Any]) -> CallSubscription:
    """``request`` for a subscription that the partition isn't connected to."""
    return CallSubscription(epoch, start, Encoded(encode(request)))


TO_SUBSCRIPTION = Codec(
    *ACTOR_REQUESTS,
    *SubscriptionRequest,
    CallSubscription,
    *(Attach, Detach, AddPermits, FeedEntries, EntriesDue, AckEntries, AckEntriesBefore),
    *(Redeliver, LeaseReport, ReleaseLease, TopicTerminated, SetPolicies, EntriesTrimmed),
    *(ReadCompacted, GrantsSkipped, DeadLettersMoved),
)
"""The messages that the subscription's end of the connection accepts."""
