"""The requests that a topic partition answers, in addition to those of replication and migration.

A position is (ledger, entry), a message id (ledger, entry, partition), as clients see them. An
offset counts the entries of the partition's log. A request about a subscription is refused
NOT_FOUND if there is no durable one of this name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypedDict

from velaray.actors.partition.machine import StartAt
from velaray.topology.messages import Meta, Request, field

Place = tuple[int, int]
"""A position."""
Id = list[int]
"""A message id; its entry is -1 before the first entry of the ledger."""
PlaceOrId = Annotated[Sequence[int], Meta(min_length=2, max_length=3)]
"""A position, or a message id, whose partition is ignored."""
Row = dict[str, Any]

# -- replies ---------------------------------------------------------------------------


class Entry(TypedDict):
    """An entry as it is stored; ``publish_time`` in milliseconds."""

    id: Id
    metadata: bytes
    payload: bytes
    messages: int
    publish_time: int


class Backlog(TypedDict):
    """Counts of unacknowledged entries; not ``complete`` at the limit of one analysis."""

    entries: int
    messages: int
    complete: bool


class Unacked(TypedDict):
    """Entries as (message id, metadata, payload); ``next``: the offset to continue at, or None."""

    entries: Sequence[tuple[Id, bytes, bytes]]
    next: int | None


class Ref(TypedDict):
    """A subscription's incarnation, and the offset of its creation."""

    incarnation: int
    start_offset: int


class Mark(TypedDict):
    """A retention mark: its ``readers`` are connected consumers, ``last_left_ms`` is when the last
    one left, if this activation of the subscription had one; it holds ``entries`` of ``bytes``, the
    oldest of them for ``oldest_ms``."""

    subscription: str
    incarnation: int
    readers: int
    last_left_ms: int | None
    entries: int
    bytes: int
    oldest_ms: int


class OpenTransactions(TypedDict):
    """The number of open transactions and of hidden entries, the last position that consumers may
    read, and when the last recovery began and ended."""

    ongoing: int
    hidden: int
    max_read: str
    recovery_ms: list[int]


class OpenTransaction(TypedDict):
    """The number of a transaction's entries, and the position of the first."""

    entries: int
    first: str | None


class Pending(TypedDict):
    """Counts of what transactions acknowledge in a subscription; ``before``: the last position that
    is acknowledged cumulatively; when the last recovery of the partition began and ended."""

    transactions: int
    entries: int
    batches: int
    before: str | None
    recovery_ms: list[int]


# -- the log ---------------------------------------------------------------------------


class Stats(Request[Row]):
    """Counters of the log, its producers and its subscriptions."""


class IndividuallyAcked(Request[dict[str, Sequence[tuple[int, int, int]]]]):
    """The entries acknowledged beyond each subscription's mark-delete, by subscription: runs
    (ledger, first, last) within one ledger."""


class Terminate(Request[Id]):
    """Terminate the topic, so that it accepts no more messages; returns the last message id. A
    repetition changes nothing."""


class Compact(Request[None]):
    """Start a compaction. Refused CONFLICT while one runs."""


class CompactionStatus(Request[dict[str, str]]):
    """The ``status`` of the last compaction, NOT_RUN, RUNNING, SUCCESS or ERROR, and its
    ``lastError``."""


class Offload(Request[None]):
    """Begin to offload the sealed ledgers before ledger ``before``; None: all but the newest ones
    that have ``kept_bytes`` together. Refused CONFLICT while an offload runs, INVALID without an
    archive.
    """

    before: int | None = None
    kept_bytes: int = 0


class OffloadStatus(Request[Row]):
    """The ``status`` of the last offload, NOT_RUN, RUNNING, SUCCESS or ERROR, its ``last_error``,
    and the ``first`` ledger that isn't in the archive."""


class LastMessageId(Request[Id]):
    """The last entry's id; entry id -1 if there is none."""


class EntryAt(Request[Entry]):
    """The entry at ``position``. Refused NOT_FOUND if there is none."""

    position: Place


class NthEntry(Request[Entry | None]):
    """The ``number``-th (from 1) entry, counted from the oldest one or (``latest``) back from the
    newest one; the last one in that direction if there are fewer. None for an empty log."""

    number: int
    latest: bool


class EntriesBefore(Request[list[Entry]]):
    """The entries before ``position`` (None: all), newest first, ``most`` or fewer: the payloads of
    an answer have a limit. Empty only if there are none."""

    position: Place | None
    most: int


class IdAtTime(Request[Id | None]):
    """The id of the first entry that was published at ``time_ms`` or later; None if there is
    none."""

    time_ms: int


class BacklogSize(Request[int]):
    """The approximate number of bytes from ``position`` on."""

    position: Place


class Upkeep(Request[None]):
    """Run one round of maintenance: expiry, quotas, trimming."""


# -- producers ---------------------------------------------------------------------------


class Append(Request[None]):
    """Store one entry for another actor, once for its producer and number; durable then.

    The subscription ``initial_subscription`` is created first. Refused if the topic takes no
    entries.
    """

    producer: str
    number: int
    entry: bytes
    messages: int
    initial_subscription: str | None = None


class Origins(Request[dict[str, list[int]]]):
    """The newest durable position from each cluster that replicates to this one."""


class ExportProducers(Request[list[list[Any]]]):
    """The state of every producer, for a partition of another cluster to adopt."""


class AdoptProducers(Request[int]):
    """Take over the producer state in ``rows`` of `ExportProducers`, or that of the replicated
    entries of cluster ``origin``. Returns the number of producers whose state advanced.

    A repetition changes nothing, and no sequence id becomes lower. Refused INVALID if ``rows`` are
    malformed.
    """

    rows: Sequence[Sequence[Any]] = ()
    origin: str = ""


# -- transactions ------------------------------------------------------------------------


class EndTransaction(Request[list[str]]):
    """Apply a coordinator's verdict, to the partition or to one of its subscriptions.

    ``alone``: no other partition takes part. Returns the clusters that are to know the
    transaction's participants.
    """

    coordinator: int
    sequence: int
    commit: bool
    alone: bool = False
    subscription: str | None = None


class Transactions(Request[OpenTransactions]):
    """The open transactions of the log."""


class Transaction(Request[OpenTransaction]):
    """The entries of an open transaction; none for other transactions."""

    coordinator: int
    sequence: int


class PendingAcks(Request[Pending]):
    """The pending acknowledgements of a subscription, of one transaction or of all."""

    name: str
    coordinator: int | None = None
    sequence: int | None = None


class PendingAt(Request[str]):
    """Pulsar's name for the state of the message at ``position`` (and ``index`` in its batch)."""

    name: str
    position: Place
    index: int | None = None


# -- subscriptions -----------------------------------------------------------------------


class Subscriptions(Request[list[str]]):
    """The names of the durable subscriptions."""


class SubscriptionProperties(Request[dict[str, dict[str, str]]]):
    """The properties of the durable subscriptions, by name; no subscription is activated."""


class Marks(Request[list[Mark]]):
    """The durable subscriptions that are retention marks."""


class Subscription(Request[Ref]):
    """The incarnation and the start of a subscription."""

    name: str


class DescribeSubscription(Request[Row]):
    """The current state of a subscription, durable or not, by offset and by position."""

    name: str


class CreateSubscription(Request[None]):
    """Create a durable subscription at ``position``, "earliest" or "latest", unless it exists."""

    name: str
    position: StartAt | PlaceOrId = StartAt.LATEST
    properties: dict[str, str] = field(default_factory=dict)


class DeleteSubscription(Request[None]):
    """Delete a subscription. Refused BUSY while consumers are connected, unless ``force``."""

    name: str
    force: bool = False


class SetReplicated(Request[None]):
    """Set whether a subscription's progress is replicated to other clusters."""

    name: str
    replicated: bool


class SetProperties(Request[None]):
    """Replace the properties of a subscription, except the one that says whether it is
    replicated."""

    name: str
    properties: Mapping[str, str]


class Seek(Request[Id]):
    """Move a subscription to ``position`` or to publish time ``time_ms``; returns the id of the
    entry before the new position."""

    name: str
    position: PlaceOrId | None = None
    time_ms: int | None = None


class SkipTo(Request[None]):
    """Acknowledge everything before ``offset`` or ``position`` durably; without either, the whole
    backlog."""

    name: str
    offset: int | None = None
    position: Place | None = None


class Expire(Request[None]):
    """Expire a subscription's messages that are older than ``age_ms``."""

    name: str
    age_ms: int


class WhoWaits(Request[dict[str, list[int]]]):
    """By durable subscription, which of these ``messages`` it hasn't acknowledged: their numbers in
    the list. A message is (ledger, entry, index in the batch), the index -1 for a whole entry.
    Entries that aren't stored count as acknowledged."""

    messages: list[tuple[int, int, int]]


class Forget(Request[list[str]]):
    """Acknowledge the entry at ``position``, or one message (``index``) of its batch, durably in
    every durable subscription; returns those that hadn't acknowledged it. Refused NOT_FOUND if
    there is no such message."""

    position: Place
    index: int = -1


class PlanUndo(Request[Row | None]):
    """What `Undo` would change: back to after event ``sequence``, to time ``at_ms`` or, without
    either, to before the last move. None if the cursor hasn't moved since."""

    name: str
    sequence: int | None = None
    at_ms: int | None = None


class Undo(Request[Row]):
    """Undo moves of a subscription's cursor, back to after event ``sequence``.

    An undo is a move itself, so a repetition without an event would undo it.
    """

    name: str
    sequence: int


class Whereabouts(Request[Row]):
    """The status of the entry at ``position`` in a subscription: the first entry for
    `velaray.events.ids.EARLIEST`, the last one for ``LATEST``. Facts about deliveries so far are
    durable on return. Refused NOT_FOUND if there is no such entry."""

    name: str
    position: Place


class Peek(Request[Entry | None]):
    """The ``number``-th (from 1) unacknowledged entry of a subscription, or None."""

    name: str
    number: int


class UnackedEntries(Request[Unacked]):
    """The first ``most`` entries from offset ``first`` on that a subscription hasn't acknowledged.

    Delayed and delivered entries are included.
    """

    name: str
    first: int
    most: int


class AnalyzeBacklog(Request[Backlog]):
    """Count a subscription's unacknowledged entries and messages, from ``position`` on if it is
    given, by reading them."""

    name: str
    position: Place | None = None


class FindUnacked(Request[int | None]):
    """The offset of a subscription's ``number``-th (from 1) unacknowledged entry, or None.

    Refused NOT_FOUND if there is no such subscription.
    """

    name: str
    number: int


class HasSubscription(Request[None]):
    """Refused NOT_FOUND if there is no subscription of this name and incarnation: it was deleted.

    A superseded activation doesn't answer.
    """

    name: str
    incarnation: int


class ResumeDeadLetters(Request[None]):
    """Resume publishing the dead letters that a subscription decided on before a crash."""

    name: str
    incarnation: int


class NameParticipants(Request[None]):
    """Store the partitions of a committed transaction whose entries go to the same clusters, by
    cluster.

    They are durable then. `velaray.broker.partition.geo_replication.GeoReplication` answers it.
    """

    coordinator: int
    sequence: int
    clusters: dict[str, list[str]]
