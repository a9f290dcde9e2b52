"""The machine of a partition: a log of entries, its producers, and its subscriptions' names.

An entry is opaque; the machine sees its producer and sequence id, and gives it the next offset. A
partition takes entries from the first ledger of its journal on; once terminated it never takes any
again. A producer name gets a small number with its first entry and keeps it until it is forgotten;
numbers, subscription incarnations and topic epochs come from counters and are never reused.

De-duplication is by producer name and sequence id, of a batch by its highest one. Ids that a
producer skipped may still arrive; see `velaray.actors.partition.skipped_sequence_ids`. The chunks
of one message share a sequence id and arrive one after the other: until the last one is stored the
message isn't complete, and a chunk is a duplicate if the same message (same uuid) already has it.
The last sequence id is tracked whether de-duplication is on or not. Batches by key interleave; see
`velaray.actors.partition.interleaving`.

Parts of the state have modules of their own in this package:

* `publish_run`: entries of one producer that are decided at once;
* `compacted`: the current generation of compacted entries;
* `delayed`: entries with a delivery time;
* `transactions`: entries of undecided and aborted transactions;
* `unsettled_sequence_ids`: the sequence ids that an abort releases;
* `outgoing_transactions` and `remote_transactions`: transactions that go to, and come from, other
  clusters.

Entries that another cluster stored first (*replicated* entries) are de-duplicated by their position
in that cluster and by nothing else; see `velaray.actors.partition.origins`. Their producers are
recorded apart from the partition's own ones. No decision depends on them until such a producer
moves here with its sequence ids (`velaray.actors.partition.producer_transfer`).

Commands: `Publish`, `Damaged`, `RaiseTopicEpoch`, `CreateSubscription`, `DeleteSubscription`,
`ConfirmSwept`, `Terminate`, `FindProducer`, `ForgetProducer`, `ExpireProducers`, `AdoptProducers`.
Events: LedgerOpened, ProducerRegistered, ProducerAdopted, EntryAppended, TopicEpochRaised,
ProducerForgotten, TopicTerminated, SubscriptionCreated, SubscriptionDeleted, SubscriptionSwept; and
those of compaction, of `velaray.actors.partition.trimming`, of
`velaray.actors.partition.transactions`, of `velaray.actors.partition.migration_fence`, of
`velaray.actors.partition.subscription_properties`, of
`velaray.actors.partition.outgoing_transactions`, of
`velaray.actors.partition.skipped_entries` and of `velaray.actors.partition.remote_transactions`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from dataclasses import fields as dataclass_fields
from enum import Enum
from typing import Any, NamedTuple

from google.protobuf.message import Message

from velaray.actors.machine import Decision, Reason, RunDecision, refuse, require
from velaray.actors.partition import (
    compacted,
    delayed,
    migration_fence,
    origins,
    outgoing_transactions,
    producer_transfer,
    publish_run,
    remote_transactions,
    skipped_entries,
    skipped_sequence_ids,
    transactions,
    unsettled_sequence_ids,
)
from velaray.actors.partition import subscription_properties as properties
from velaray.actors.partition.compacted import (
    BeginCompaction,
    Compactions,
    ConfirmCompactionSwept,
    PublishCompaction,
)
from velaray.actors.partition.delayed import DelayedIndex, ReleaseDelayed
from velaray.actors.partition.interleaving import Interleaving, is_sparse
from velaray.actors.partition.ledger_table import LedgerTable
from velaray.actors.partition.migration_fence import Fence, FencePartition, UnfencePartition
from velaray.actors.partition.outgoing_transactions import (
    ConfirmReplicated,
    NameParticipants,
)
from velaray.actors.partition.producer_state import Producer
from velaray.actors.partition.producer_transfer import AdoptProducers
from velaray.actors.partition.publish_run import EntriesAppended, PublishRun
from velaray.actors.partition.remote_transactions import (
    Arrive,
    EndRemote,
    ForgetRemote,
    GiveUp,
    TakeComplete,
)
from velaray.actors.partition.skipped_entries import SkipEntries, UnskipEntries
from velaray.actors.partition.skipped_sequence_ids import Skipped
from velaray.actors.partition.state import PartitionState, Subscription, SubscriptionRef
from velaray.actors.partition.subscription_properties import SetProperty
from velaray.actors.partition.transactions import EndTransaction
from velaray.actors.partition.trimming import (
    ForgetTrimmed,
    NoteActivity,
    Trim,
    decide_activity,
    decide_forget,
    decide_trim,
    evolve_idle,
    evolve_trimmed,
    evolve_unlisted,
    needs_of_trim,
)
from velaray.actors.sets.ranges import RangeSet
from velaray.events.events_pb2 import (
    CompactionBegun,
    CompactionPublished,
    CompactionSwept,
    DelayedEntriesDue,
    EntriesSkipped,
    EntriesTrimmed,
    EntriesUnskipped,
    EntryAppended,
    ForeignTransactionArrived,
    ForeignTransactionComplete,
    ForeignTransactionEnded,
    ForeignTransactionForgotten,
    ForeignTransactionJudged,
    LedgerOpened,
    LedgersUnlisted,
    ParticipantsNamed,
    PartitionFenced,
    PartitionUnfenced,
    ProducerAdopted,
    ProducerForgotten,
    ProducerRegistered,
    SubscriptionCreated,
    SubscriptionDeleted,
    SubscriptionIdle,
    SubscriptionPropertiesSet,
    SubscriptionSwept,
    TopicEpochRaised,
    TopicTerminated,
    TransactionEnded,
    TransactionsReplicated,
)
from velaray.events.ids import Position, TransactionId
from velaray.events.segments import Segment, StoredSegment


@dataclass(slots=True)
class Chunk:
    """A chunk of a message that is too large for one entry; ``chunk_id`` is 0 to chunks - 1."""

    uuid: str
    chunk_id: int
    chunks: int


class Replicated(NamedTuple):
    """The cluster that stored an entry first, and its position there; ``after`` is the position of
    the entry that the replicator sent just before, if any."""

    cluster: str
    position: Position
    after: Position | None = None


@dataclass(slots=True)
class Publish:
    """Append an entry of ``messages`` messages; ``blob`` is stored as it is.

    Reply: `Published`; `Duplicate` if ``deduplicate`` is set and the producer's entry is stored
    already; refused TERMINATED, or UNAVAILABLE while no ledger is open. A ``highest_sequence_id``
    below ``sequence_id`` (an entry that is no batch) counts as that.

    ``deliver_at_ms`` (0: at once) and ``key_hash`` are kept for `velaray.actors.partition.delayed`;
    refused NOT_ALLOWED if the delay is more than ``max_delay_ms``, unless that is 0.

    For an ``exact`` producer only a stored entry is a duplicate: ids that it skips may still
    arrive. So may those that an entry with ``deliver_at_ms`` skips.

    The first entry of a ``transaction`` must not come before its coordinator has confirmed that it
    is open and has this partition as a participant: the machine doesn't ask.

    A ``replicated`` entry has the producer and sequence ids of that cluster. It is a `Duplicate`,
    whatever ``deduplicate``, unless it is behind everything that arrived from there. It is refused
    UNAVAILABLE if the entry that was sent before it isn't stored: that one would become a duplicate
    for ever.
    """

    producer: str
    sequence_id: int
    highest_sequence_id: int
    messages: int
    blob: bytes | memoryview
    deduplicate: bool
    chunk: Chunk | None = None
    deliver_at_ms: int = 0
    key_hash: int = 0
    max_delay_ms: int = 0
    transaction: TransactionId | None = None
    replicated: Replicated | None = None
    exact: bool = False


@dataclass(slots=True)
class Damaged:
    """An entry that was damaged in transit. Refused INVALID, in its turn."""

    detail: str


@dataclass(slots=True)
class Published:
    """The entry is stored."""

    offset: int
    position: Position
    messages: int


@dataclass(frozen=True, slots=True)
class Duplicate:
    """Nothing was stored: the producer's entry with this sequence id is stored already."""

    sequence_id: int


@dataclass(frozen=True, slots=True)
class RaiseTopicEpoch:
    """Raise the topic epoch for an exclusive producer. Reply: `TopicEpoch`, greater than all
    before."""

    producer_name: str


@dataclass(frozen=True, slots=True)
class TopicEpoch:
    """The present topic epoch."""

    epoch: int


class StartAt(Enum):
    """The start of a new subscription that isn't at a given offset."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class CreateSubscription:
    """Create a subscription, unless one of this name exists. Reply: `SubscriptionRef`.

    ``start`` is the first offset it will receive; trimmed offsets count as the oldest stored one,
    offsets beyond the end are refused INVALID. If the subscription exists, start and properties are
    ignored and its own ref is the reply. A new one is refused NOT_ALLOWED if there are ``limit``
    (0: any number) already. A ``compacted`` subscription reads compacted entries: nothing below the
    horizon is trimmed for it.
    """

    name: str
    start: StartAt | int
    properties: Mapping[str, str] = field(default_factory=dict)
    limit: int = 0
    compacted: bool = False


@dataclass(frozen=True, slots=True)
class DeleteSubscription:
    """Delete a subscription. Reply: the deleted `SubscriptionRef`; refused NOT_FOUND. The host
    deletes its journal and then sends `ConfirmSwept`: until then `PartitionState.deleted` has it.

    With an incarnation (not 0) only that one is deleted, so a late or repeated command can't delete
    a later subscription of the same name. ``idle_before_ms`` (not 0) makes the command refused BUSY
    unless the subscription has had no consumers since then at least.
    """

    name: str
    incarnation: int = 0
    idle_before_ms: int = 0


@dataclass(frozen=True, slots=True)
class ConfirmSwept:
    """Confirm that nothing of a deleted subscription is stored any more. Reply: `Swept`, also for a
    repetition."""

    incarnation: int


@dataclass(frozen=True, slots=True)
class Swept:
    """The confirmation is recorded."""


@dataclass(frozen=True, slots=True)
class Terminate:
    """Terminate the topic: it takes no more entries. Reply: `Terminated`; a repetition changes
    nothing."""


@dataclass(frozen=True, slots=True)
class Terminated:
    """The log ends at ``end_offset``; the last entry's position, entry id -1 if it's empty."""

    end_offset: int
    last_position: Position


@dataclass(frozen=True, slots=True)
class FindProducer:
    """Find a producer's last sequence id. Reply: `ProducerAt`.

    It is a command rather than a read because it must follow every entry sent before. It changes
    nothing, unless the producer begins ``anew``: then the ids that its predecessor skipped never
    arrive.
    """

    name: str
    anew: bool = False


@dataclass(frozen=True, slots=True)
class ProducerAt:
    """The highest sequence id of a producer's complete messages (-1: none), the topic epoch."""

    last_sequence_id: int
    topic_epoch: int


@dataclass(frozen=True, slots=True)
class ForgetProducer:
    """Drop a producer's de-duplication state. Reply: `Forgotten`; refused NOT_FOUND."""

    name: str


@dataclass(frozen=True, slots=True)
class ExpireProducers:
    """Drop producers that sent nothing since ``before_ms``, and the longest silent ones beyond
    ``keep``; never one whose name is in ``connected``. Reply: `Forgotten`."""

    before_ms: int
    keep: int = 10_000
    connected: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Forgotten:
    """The producers whose state was dropped, by name."""

    names: tuple[str, ...]


def last_sequence_id(state: PartitionState, producer: str) -> int:
    """The highest sequence id of a complete message of ``producer``; -1 if there is none."""
    known = state.producers.get(producer)
    return -1 if known is None else known.last_sequence_id


def _is_duplicate(producer: Producer, first: int, highest: int, chunk: Chunk | None) -> bool:
    half_sent = producer.chunk_sequence_id, producer.chunk_uuid
    if chunk is not None and half_sent == (highest, chunk.uuid):
        return chunk.chunk_id <= producer.chunk_id
    if producer.skipped and first in producer.skipped:
        return False
    if producer.interleaving is not None and chunk is None:
        return producer.interleaving.has(first, highest)
    return highest <= producer.last_sequence_id


def _skips(producer: Producer | None, sequence_id: int) -> int:
    """The number of ids that the producer newly skips with this one."""
    if producer is None:
        return sequence_id
    if producer.interleaving is not None:
        return 0
    known = producer.last_sequence_id + 1
    if producer.skipped:
        known = max(known, producer.skipped.end)
    return max(sequence_id - known, 0)


def _publish(state: PartitionState, command: Publish, now_ms: int) -> Decision:
    sequence_id, highest, chunk = command.sequence_id, command.highest_sequence_id, command.chunk
    if highest < sequence_id:
        highest = sequence_id
    replicated, follows = command.replicated, False
    if replicated is not None:
        known = state.remote_producers.get((replicated.cluster, command.producer))
        newest = state.origins.last(replicated.cluster)
        if replicated.position <= newest:
            return Decision(reply=Duplicate(sequence_id))
        if replicated.after is not None and newest < replicated.after:
            return refuse(
                Reason.UNAVAILABLE, "an earlier entry isn't stored: send that again first"
            )
    else:
        known = state.producers.get(command.producer)
        follows = known is not None and sequence_id == known.last_sequence_id + 1  # nearly always
        if (
            known is not None
            and command.deduplicate
            and not (follows and chunk is None and known.interleaving is None)
            and _is_duplicate(known, sequence_id, highest, chunk)
        ):
            return Decision(reply=Duplicate(sequence_id))
    if state.terminated:
        return refuse(Reason.TERMINATED, "the topic is terminated: it accepts no more messages")
    messages, table = command.messages, state.table
    if messages < 1:
        return refuse(Reason.INVALID, f"an entry of {messages} messages")
    position = table.next_position()
    if position is None:
        return refuse(Reason.UNAVAILABLE, "no ledger is open yet: try again")
    event = EntryAppended()  # set field by field, which is faster
    event.producer = state.next_producer if known is None else known.index
    event.sequence_id = sequence_id
    event.at_ms = now_ms
    if highest > sequence_id:
        event.highest_sequence_id = highest
    if messages > 1:
        event.messages = messages
    if (command.exact or command.deliver_at_ms) and not follows:
        event.skipped = _skips(known, sequence_id)
    if command.deliver_at_ms:
        if 0 < command.max_delay_ms < command.deliver_at_ms - now_ms:
            longest = f"delays of {command.max_delay_ms} ms at most are allowed on this topic"
            return refuse(Reason.NOT_ALLOWED, longest)
        event.deliver_at_ms = command.deliver_at_ms
        event.key_hash = command.key_hash
    if chunk is not None:
        if not chunk.uuid or not 0 <= chunk.chunk_id < chunk.chunks:
            return refuse(Reason.INVALID, f"no such chunk: {chunk}")
        event.chunk_uuid = chunk.uuid
        event.chunk_id = chunk.chunk_id
        event.chunks = chunk.chunks
    if command.transaction is not None:
        if command.transaction.sequence < 1:
            return refuse(Reason.INVALID, f"no such transaction: {command.transaction}")
        event.txn_coordinator, event.txn_sequence = command.transaction
    if replicated is not None:
        event.source_ledger, event.source_entry = replicated.position
    reply = Published(table.end_offset, position, messages)
    if known is not None:
        return Decision((event,), reply, (), command.blob)
    registered = ProducerRegistered(
        producer=state.next_producer, name=command.producer, at_ms=now_ms
    )
    if replicated is not None:
        registered.origin = replicated.cluster
    return Decision((registered, event), reply, (), command.blob)


def _create_subscription(state: PartitionState, command: CreateSubscription) -> Decision:
    existing = state.subscriptions.get(command.name)
    if existing is not None:
        return Decision(reply=existing.ref)
    if not command.name:
        return refuse(Reason.INVALID, "a subscription needs a name")
    if 0 < command.limit <= len(state.subscriptions):
        return refuse(
            Reason.NOT_ALLOWED,
            f"exceeds the maximum number of subscriptions of the topic: {command.limit}",
        )
    oldest = state.first_offset
    if command.compacted and state.compactions.current is not None:
        oldest = 0
    match command.start:
        case StartAt.EARLIEST:
            start = oldest
        case StartAt.LATEST:
            start = state.end_offset
        case offset:
            start = max(offset, oldest)
    if start > state.end_offset:
        return refuse(
            Reason.INVALID,
            f"subscription {command.name!r} can't start at offset {start}: "
            f"the partition ends at {state.end_offset}",
        )
    ref = SubscriptionRef(command.name, state.next_incarnation, start)
    created = SubscriptionCreated(
        name=ref.name,
        incarnation=ref.incarnation,
        start_offset=start,
        properties=command.properties,
    )
    return Decision((created,), ref)


def _delete_subscription(state: PartitionState, command: DeleteSubscription) -> Decision:
    existing = state.subscriptions.get(command.name)
    if existing is None or command.incarnation not in (0, existing.ref.incarnation):
        return refuse(Reason.NOT_FOUND, f"no subscription {command.name!r}")
    if command.idle_before_ms and not 0 < existing.idle_since_ms <= command.idle_before_ms:
        return refuse(Reason.BUSY, f"subscription {command.name!r} is in use")
    return Decision((SubscriptionDeleted(name=command.name),), existing.ref)


def _confirm_swept(state: PartitionState, incarnation: int) -> Decision:
    events = (SubscriptionSwept(incarnation=incarnation),) if incarnation in state.deleted else ()
    return Decision(events, Swept())


def _terminate(state: PartitionState) -> Decision:
    end = state.end_offset
    reply = Terminated(end, state.table.position_before(end))
    return Decision(reply=reply) if state.terminated else Decision((TopicTerminated(),), reply)


def _find(state: PartitionState, command: FindProducer) -> Decision:
    known = state.producers.get(command.name)
    found = ProducerAt(last_sequence_id(state, command.name), state.topic_epoch)
    if known is None or not command.anew or not known.skipped:
        return Decision(reply=found)
    return Decision((producer_transfer.without_skipped(known),), found)


def _forget(producers: Sequence[Producer]) -> Decision:
    return Decision(
        tuple(ProducerForgotten(producer=producer.index) for producer in producers),
        Forgotten(tuple(producer.name for producer in producers)),
    )


def _expire(state: PartitionState, command: ExpireProducers) -> Decision:
    silent = sorted(
        (
            known
            for known in state.by_index.values()
            if known.origin or known.name not in command.connected
        ),
        key=lambda known: (known.at_ms, known.index),
    )
    excess = len(state.by_index) - command.keep
    return _forget(
        [
            known
            for place, known in enumerate(silent)
            if known.at_ms < command.before_ms or place < excess
        ]
    )


def _registered(state: PartitionState, event: ProducerRegistered) -> None:
    producer = Producer(event.producer, event.name, event.at_ms, origin=event.origin)
    state.by_index[producer.index] = producer
    if producer.origin:
        state.remote_producers[producer.origin, producer.name] = producer
    else:
        state.producers[producer.name] = producer


def _entry_appended(state: PartitionState, event: EntryAppended) -> None:
    state.table.end_offset += 1  # append(), without the call: this runs for every entry
    first, chunks = event.sequence_id, event.chunks
    if event.deliver_at_ms:
        delayed.appended(state.delayed, event, state.table.end_offset - 1)
    if chunks:
        state.chunks_end = state.table.end_offset
    producer = state.by_index[event.producer]
    if producer.origin:
        position = tuple.__new__(Position, (event.source_ledger, event.source_entry))
        state.origins.append(producer.origin, position, state.table.end_offset - 1)
    if event.txn_sequence:
        _transaction_appended(state, producer, event)
    elif state.unsettled:
        unsettled_sequence_ids.appended(state.unsettled, producer, event)
    producer.at_ms = event.at_ms
    highest = event.highest_sequence_id
    sequence_id = highest or first
    if producer.interleaving is not None:
        producer.interleaving.add(first, sequence_id)
    elif highest and is_sparse(first, sequence_id, event.messages or 1):
        # Earlier entries have lower ids than this batch's first message.
        producer.interleaving = Interleaving(first)
        producer.interleaving.add(first, sequence_id)
    if event.skipped:
        if producer.skipped is None:
            producer.skipped = Skipped()
        producer.skipped.add(first - event.skipped, first)
    late = producer.skipped is not None and first in producer.skipped
    if sequence_id <= producer.last_sequence_id and not late:
        return
    if chunks and event.chunk_id + 1 < chunks:
        producer.chunk_sequence_id = sequence_id
        producer.chunk_uuid = event.chunk_uuid
        producer.chunk_id = event.chunk_id
        return
    if late:
        _arrived_late(producer, event, sequence_id)
    if sequence_id > producer.last_sequence_id:
        producer.last_sequence_id = sequence_id
    if producer.chunk_sequence_id <= sequence_id:
        producer.chunk_sequence_id, producer.chunk_uuid, producer.chunk_id = -1, "", -1


def _arrived_late(producer: Producer, event: EntryAppended, highest: int) -> None:
    """Remove skipped ids that have arrived. Of a sparse batch only the first id is known."""
    assert producer.skipped is not None
    first = event.sequence_id
    sparse = is_sparse(first, highest, event.messages or 1)
    producer.skipped.remove(first, first + 1 if sparse else highest + 1)
    producer.skipped = producer.skipped or None


def _transaction_appended(state: PartitionState, producer: Producer, event: EntryAppended) -> None:
    offset = state.table.end_offset - 1
    if TransactionId(event.txn_coordinator, event.txn_sequence) in state.arriving.given_up:
        state.transactions.hidden.add(offset, offset + 1)
        return
    transactions.appended(state.transactions, event, offset)
    unsettled_sequence_ids.appended(state.unsettled, producer, event)


def _end_transaction(state: PartitionState, command: EndTransaction) -> Decision:
    ongoing, clusters = state.transactions.ongoing.get(command.transaction), []
    if ongoing is not None:
        clusters = state.outgoing.clusters(ongoing[-1][1] - 1)
    decision = transactions.decide(state.transactions, state.end_offset, command, clusters)
    if not decision.events:
        unnamed = state.outgoing.unnamed(command.transaction)
        return Decision(reply=replace(decision.reply, clusters=unnamed))
    return decision


def _transaction_ended(state: PartitionState, event: TransactionEnded) -> None:
    if event.clusters:
        ongoing = state.transactions.ongoing[TransactionId(event.coordinator, event.sequence)]
        last = ongoing[-1][1] - 1
        outgoing_transactions.ended(state.outgoing, event, last, state.table.position_of(last))
    transactions.evolve(state.transactions, event)
    unsettled_sequence_ids.ended(state.unsettled, state.by_index, event)


def _is_kept_out(state: PartitionState, command: Any) -> bool:
    """Whether a fence forbids a command."""
    match command:
        case Publish() | Damaged() | RaiseTopicEpoch() | Terminate() | DeleteSubscription():
            return True
        case CreateSubscription(name):
            return name not in state.subscriptions
    return False


class PartitionMachine:
    """The machine of one topic partition."""

    def initial(self) -> PartitionState:
        """An empty log without a ledger."""
        return PartitionState()

    def decide(self, state: PartitionState, command: Any, now_ms: int) -> Decision:
        """The decision on ``command``. Raises TypeError for a command of another machine."""
        if state.fence.up and _is_kept_out(state, command):
            return migration_fence.objection()
        if type(command) is Publish:  # nearly always
            return _publish(state, command, now_ms)
        match command:
            case Damaged(detail):
                return refuse(Reason.INVALID, detail)
            case RaiseTopicEpoch(producer_name):
                epoch = state.topic_epoch + 1
                raised = TopicEpochRaised(topic_epoch=epoch, producer_name=producer_name)
                return Decision((raised,), TopicEpoch(epoch))
            case CreateSubscription():
                return _create_subscription(state, command)
            case DeleteSubscription():
                return _delete_subscription(state, command)
            case ConfirmSwept(incarnation):
                return _confirm_swept(state, incarnation)
            case Terminate():
                return _terminate(state)
            case FindProducer():
                return _find(state, command)
            case ForgetProducer(name) if name in state.producers:
                return _forget([state.producers[name]])
            case ForgetProducer(name):
                return refuse(Reason.NOT_FOUND, f"no producer {name!r}")
            case ExpireProducers():
                return _expire(state, command)
            case AdoptProducers():
                return producer_transfer.decide(state, command)
            case ReleaseDelayed():
                return delayed.decide(state.delayed, command)
            case BeginCompaction() | PublishCompaction() | ConfirmCompactionSwept():
                return compacted.decide(state.compactions, state.max_read_offset, command, now_ms)
            case EndTransaction():
                return _end_transaction(state, command)
            case NameParticipants() | ConfirmReplicated():
                return outgoing_transactions.decide(state.outgoing, command)
            case TakeComplete() | EndRemote() | Arrive() | GiveUp() | ForgetRemote():
                return remote_transactions.decide(state.arriving, state.transactions, command)
            case Trim():
                return decide_trim(state, command, now_ms)
            case ForgetTrimmed():
                return decide_forget(state, command)
            case NoteActivity():
                return decide_activity(state, command, now_ms)
            case SetProperty():
                return properties.decide(state, command)
            case SkipEntries() | UnskipEntries():
                return skipped_entries.decide(state, command, now_ms)
            case FencePartition() | UnfencePartition():
                return migration_fence.decide(state.fence, command)
        raise TypeError(f"a partition doesn't handle {type(command).__name__}")

    def decide_run(self, state: PartitionState, run: PublishRun, now_ms: int) -> RunDecision | None:
        """The decision on a run of entries; None: decide its entries one by one."""
        return publish_run.decide(state, run, now_ms)

    def evolve_run(self, state: PartitionState, events: EntriesAppended) -> None:
        """Apply the events of a run."""
        publish_run.evolve(state, events)

    def evolve(self, state: PartitionState, event: Message) -> None:
        """Apply ``event``. Raises TypeError for an event of another machine."""
        if type(event) is EntryAppended:  # nearly always
            _entry_appended(state, event)
            return
        match event:
            case LedgerOpened(ledger_id=ledger_id):
                state.table.open(ledger_id)
            case ProducerRegistered(producer=index):
                _registered(state, event)
                state.next_producer = index + 1
            case ProducerForgotten(producer=index):
                gone = state.by_index.pop(index)
                if gone.origin:
                    del state.remote_producers[gone.origin, gone.name]
                else:
                    del state.producers[gone.name]
            case ProducerAdopted(producer=index):
                producer_transfer.evolve(state.by_index[index], event)
            case TopicEpochRaised(topic_epoch=epoch):
                state.topic_epoch = epoch
            case TopicTerminated():
                state.terminated = True
            case SubscriptionCreated(name=name, incarnation=incarnation, start_offset=start):
                ref = SubscriptionRef(name, incarnation, start)
                state.subscriptions[name] = Subscription(ref, dict(event.properties))
                outgoing_transactions.subscription_created(state.outgoing, name, start)
                state.next_incarnation = incarnation + 1
            case SubscriptionDeleted(name=name):
                ref = state.subscriptions.pop(name).ref
                state.deleted[ref.incarnation] = name
                outgoing_transactions.subscription_deleted(state.outgoing, name)
            case SubscriptionSwept(incarnation=incarnation):
                del state.deleted[incarnation]
            case DelayedEntriesDue(until_ms=until_ms):
                state.delayed.take(until_ms)
            case CompactionBegun() | CompactionPublished() | CompactionSwept():
                compacted.evolve(state.compactions, event)
            case TransactionEnded():
                _transaction_ended(state, event)
            case ParticipantsNamed() | TransactionsReplicated():
                outgoing_transactions.evolve(state.outgoing, event)
            case (
                ForeignTransactionComplete()
                | ForeignTransactionEnded()
                | ForeignTransactionArrived()
                | ForeignTransactionJudged()
                | ForeignTransactionForgotten()
            ):
                remote_transactions.evolve(state.arriving, event)
            case EntriesTrimmed():
                evolve_trimmed(state, event)
            case LedgersUnlisted():
                evolve_unlisted(state, event)
            case EntriesSkipped() | EntriesUnskipped():
                skipped_entries.evolve(state, event)
            case SubscriptionIdle():
                evolve_idle(state, event)
            case SubscriptionPropertiesSet():
                properties.evolve(state, event)
            case PartitionFenced() | PartitionUnfenced():
                migration_fence.evolve(state.fence, event)
            case _:
                raise TypeError(f"a partition doesn't handle {type(event).__name__}")

    def check(self, state: PartitionState) -> None:
        """Raise `InvariantViolation` if an invariant is broken."""
        state.table.check()
        state.delayed.check(state.end_offset)
        transactions.check(state.transactions, state.first_offset, state.end_offset)
        unsettled_sequence_ids.check(state.unsettled, state.transactions.ongoing)
        skipped_entries.check(state.skipped, state.first_offset, state.end_offset)
        compacted.check(state.compactions, state.max_read_offset)
        migration_fence.check(state.fence)
        for _, end in state.table.gone_ranges():
            require(end <= state.max_read_offset, "what is trimmed away is decided", str(end))
        origins.check(state.origins, state.end_offset)
        starts = {name: known.ref.start_offset for name, known in state.subscriptions.items()}
        outgoing_transactions.check(state.outgoing, starts, state.end_offset)
        remote_transactions.check(state.arriving, state.transactions)
        by_name = {(known.origin, known.name): known for known in state.by_index.values()}
        named = {
            ("", name): known for name, known in state.producers.items()
        } | state.remote_producers
        require(by_name == named, "producer names and numbers agree")
        for number, known in state.by_index.items():
            require(number == known.index, "a producer is found by its own number", known.name)
            require(number < state.next_producer, "producer numbers are never reused", known.name)
            pending = known.chunk_sequence_id
            skips = known.skipped or Skipped()
            skips.check()
            require(
                pending == -1 or pending > known.last_sequence_id or pending in skips,
                "a half-sent message comes after the complete ones, or was skipped",
                known.name,
            )
        incarnations = [known.ref.incarnation for known in state.subscriptions.values()]
        incarnations += state.deleted
        require(len(set(incarnations)) == len(incarnations), "incarnations are unique")
        for name, subscription in state.subscriptions.items():
            ref = subscription.ref
            require(ref.name == name, "a subscription is found by its own name", name)
            require(ref.incarnation < state.next_incarnation, "incarnations aren't reused", name)
            require(ref.start_offset <= state.end_offset, "subscriptions start in the log", name)
        for ledger_id in state.trimmed:
            require(state.table.is_closed(ledger_id), "the current ledger stays", str(ledger_id))
            span = state.table.span(ledger_id)
            require(span.end == 0, "nothing is found in a trimmed ledger", str(ledger_id))

    def snapshot(self, state: PartitionState) -> Mapping[str, Segment]:
        """Segments: ledgers, producers, subscriptions, partition; and if there are any: deleted,
        trimmed, gone (between others), idle, compactions, delayed/<n>, transactions, hidden/<n>,
        undecided, chunks_end, skipped, skipped_entries, foreign (producers), origins,
        origin/<n>/<cluster>, fence, outgoing, outgoing/<n>, arriving.

        Segments of hidden entries, origins and outgoing transactions that didn't change since a
        checkpoint are given by their places.
        """
        everybody = [state.by_index[index] for index in sorted(state.by_index)]
        numbered = [known for known in everybody if not known.origin]
        remote_producers = [known for known in everybody if known.origin]
        named = [state.subscriptions[name] for name in sorted(state.subscriptions)]
        rare = {
            "deleted": sorted(state.deleted.items()),
            "trimmed": sorted(state.trimmed.items()),
            "gone": state.table.gone(),
            "undecided": unsettled_sequence_ids.to_fields(state.unsettled),
            "idle": [
                [known.ref.name, known.idle_since_ms] for known in named if known.idle_since_ms
            ],
            "compactions": compacted.to_fields(state.compactions)
            if state.compactions.last
            else None,
            "chunks_end": state.chunks_end,
            "fence": list(astuple(state.fence)) if state.fence != Fence() else None,
            "foreign": [[known.origin, *_producer_fields(known)] for known in remote_producers],
            "skipped_entries": list(state.skipped),
            "skipped": [
                [known.index, *skipped_sequence_ids.to_fields(known.skipped)]
                for known in everybody
                if known.skipped
            ],
        }
        return {
            **{name: _to_json(found) for name, found in rare.items() if found},
            **state.delayed.snapshot(),
            **transactions.snapshot(state.transactions),
            **origins.snapshot(state.origins),
            **outgoing_transactions.snapshot(state.outgoing),
            **remote_transactions.snapshot(state.arriving),
            "ledgers": _to_json([state.end_offset, state.table.ledgers()]),
            "producers": _to_json([_producer_fields(producer) for producer in numbered]),
            "subscriptions": _to_json(
                [[*astuple(known.ref), sorted(known.properties.items())] for known in named]
            ),
            "partition": _to_json(
                {
                    "next_producer": state.next_producer,
                    "next_incarnation": state.next_incarnation,
                    "topic_epoch": state.topic_epoch,
                    "terminated": state.terminated,
                }
            ),
        }

    def restore(self, segments: Mapping[str, bytes]) -> PartitionState:
        """The state whose snapshot is ``segments``."""
        end_offset, ledgers = json.loads(segments["ledgers"])
        known = [_producer("", fields) for fields in json.loads(segments["producers"])]
        rare = {name: json.loads(segments.get(name, b"[]")) for name in _RARE}
        idle = dict(rare["idle"])
        remote_producers = [_producer(origin, fields) for origin, *fields in rare["foreign"]]
        named = json.loads(segments["subscriptions"])
        starts = {name: start for name, _, start, _ in named}
        by_index = {producer.index: producer for producer in (*known, *remote_producers)}
        for index, *runs in rare["skipped"]:
            by_index[index].skipped = skipped_sequence_ids.from_fields(runs)
        return PartitionState(
            table=LedgerTable(ledgers, end_offset, rare["gone"]),
            producers={producer.name: producer for producer in known},
            by_index=by_index,
            remote_producers={
                (producer.origin, producer.name): producer for producer in remote_producers
            },
            origins=origins.restore(segments),
            outgoing=outgoing_transactions.restore(segments, starts),
            arriving=remote_transactions.restore(segments),
            subscriptions={
                name: Subscription(
                    SubscriptionRef(name, incarnation, start), dict(properties), idle.get(name, 0)
                )
                for name, incarnation, start, properties in named
            },
            delayed=DelayedIndex.restore(segments),
            transactions=transactions.restore(segments),
            unsettled=unsettled_sequence_ids.from_fields(rare["undecided"]),
            compactions=compacted.from_fields(json.loads(segments["compactions"]))
            if "compactions" in segments
            else Compactions(),
            deleted=dict(rare["deleted"]),
            trimmed=dict(rare["trimmed"]),
            chunks_end=json.loads(segments.get("chunks_end", b"0")),
            fence=Fence(*rare["fence"]),
            skipped=RangeSet((first, end) for first, end in rare["skipped_entries"]),
            **json.loads(segments["partition"]),
        )

    def on_checkpoint(self, state: PartitionState, stored: Mapping[str, StoredSegment]) -> None:
        """Note where a durable checkpoint of the state has its segments."""
        transactions.on_checkpoint(state.transactions, stored)
        origins.on_checkpoint(state.origins, stored)
        outgoing_transactions.on_checkpoint(state.outgoing, stored)

    def needs_checkpoint(self, state: PartitionState) -> bool:
        """Whether a checkpoint is due, so that memory can be freed."""
        return state.transactions.hidden.needs_checkpoint()

    def needs(self, state: PartitionState, command: Any, now_ms: int) -> Sequence[StoredSegment]:
        """The stored segments that ``command`` may read and that aren't in memory."""
        hidden = state.transactions.hidden
        if not hidden.cold_count():
            return ()
        match command:
            case Publish() if command.transaction is not None:
                return hidden.cold_within(state.end_offset, state.end_offset + 1)
            case EndTransaction() | EndRemote():
                return transactions.needs(state.transactions, command.transaction)
            case Trim():
                return needs_of_trim(state, command, now_ms)
        return ()

    def provide(self, state: PartitionState, name: str, raw: bytes) -> None:
        """Take the bytes of a stored segment into memory."""
        transactions.provide(state.transactions, name, raw)

    def evict(self, state: PartitionState) -> bool:
        """Release the memory of stored segments until the budget is kept."""
        return state.transactions.hidden.evict()


_RARE = (
    "deleted",
    "trimmed",
    "gone",
    "idle",
    "undecided",
    "foreign",
    "fence",
    "skipped",
    "skipped_entries",
)


_PLAIN = tuple(each.name for each in dataclass_fields(Producer))[:-3]
"""The fields of a producer that a checkpoint keeps as they are."""


def _producer_fields(producer: Producer) -> list[Any]:
    """All fields except the origin and the skipped ids."""
    interleaving = producer.interleaving
    return [
        *(getattr(producer, name) for name in _PLAIN),
        None if interleaving is None else [interleaving.floor, list(interleaving.entries.items())],
    ]


def _producer(origin: str, fields: Sequence[Any]) -> Producer:
    *plain, interleaving = fields
    producer = Producer(*plain)
    producer.origin = origin
    if interleaving is not None:
        floor, entries = interleaving
        producer.interleaving = Interleaving(floor, dict(map(tuple, entries)))
    return producer


def _to_json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()
