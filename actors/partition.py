"""The partition: a log of entries, who wrote them, and the names of its subscriptions.

An entry is opaque; the machine sees who sent it and under which sequence id, and gives it the
next offset. States: a partition takes entries from the first ledger on that its journal opens;
once terminated it takes none, for ever. A producer name gets a small number with its first
entry and keeps it until it is forgotten; numbers, subscription incarnations and topic epochs
come from counters and are never given twice.

De-duplication is by producer name and sequence id, of a batch by its highest one. The chunks
of one message share a sequence id and arrive one after the other: until the last one is
stored the message isn't complete, and a chunk is a duplicate if the same message (same uuid)
already has it. The last sequence id is tracked whether de-duplication is on or not.

Commands: `Publish`, `RaiseTopicEpoch`, `CreateSubscription`, `DeleteSubscription`,
`Terminate`, `ForgetProducer`, `ExpireProducers`. Events: LedgerOpened, ProducerRegistered,
EntryAppended, TopicEpochRaised, ProducerForgotten, TopicTerminated, SubscriptionCreated,
SubscriptionDeleted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from google.protobuf.message import Message

from velaray.actors.ledger_table import LedgerTable
from velaray.actors.machine import Decision
from velaray.events.ids import Position


@dataclass(slots=True)
class Chunk:
    """One part of a message that is too large for one entry; ``chunk_id`` is 0 to chunks - 1."""

    uuid: str
    chunk_id: int
    chunks: int


@dataclass(slots=True)
class Publish:
    """Append an entry of ``messages`` messages; ``blob`` is stored as it is.

    Reply: `Published`; `Duplicate` if ``deduplicate`` and the producer's entry is there
    already; refused TERMINATED, or UNAVAILABLE while no ledger is open. A
    ``highest_sequence_id`` below ``sequence_id`` (an entry that is no batch) counts as that.
    """

    producer: str
    sequence_id: int
    highest_sequence_id: int
    messages: int
    blob: bytes | memoryview
    deduplicate: bool
    chunk: Chunk | None = None


@dataclass(slots=True)
class Published:
    """The entry is stored."""

    offset: int
    position: Position
    messages: int


@dataclass(frozen=True, slots=True)
class Duplicate:
    """Nothing was stored: the producer's entry with this sequence id is there already."""

    sequence_id: int


@dataclass(frozen=True, slots=True)
class RaiseTopicEpoch:
    """An exclusive producer takes over. Reply: `TopicEpoch`, greater than all before."""

    producer_name: str


@dataclass(frozen=True, slots=True)
class TopicEpoch:
    """The topic epoch now."""

    epoch: int


class StartAt(Enum):
    """Where a new subscription starts, when not at a certain offset."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class CreateSubscription:
    """Create a subscription, unless one of this name exists. Reply: `SubscriptionRef`.

    ``start`` is the first offset it will receive; offsets that are trimmed away count as the
    oldest one kept, offsets beyond the end are refused INVALID. If the subscription exists,
    start and properties are ignored and its own ref is the reply.
    """

    name: str
    start: StartAt | int
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SubscriptionRef:
    """A subscription; the incarnation tells it from others that had or will have its name."""

    name: str
    incarnation: int
    start_offset: int


@dataclass(frozen=True, slots=True)
class DeleteSubscription:
    """Reply: the deleted `SubscriptionRef`; refused NOT_FOUND.

    With an incarnation (not 0) only that one is deleted, so that a command that arrives late
    or twice can't delete a later subscription of the same name.
    """

    name: str
    incarnation: int = 0


@dataclass(frozen=True, slots=True)
class Terminate:
    """Take no more entries. Reply: `Terminated`; doing it again changes nothing."""


@dataclass(frozen=True, slots=True)
class Terminated:
    """The log ends at ``end_offset``; the last entry's position, entry id -1 if it's empty."""

    end_offset: int
    last_position: Position


@dataclass(frozen=True, slots=True)
class ForgetProducer:
    """Drop a producer's de-duplication state. Reply: `Forgotten`; refused NOT_FOUND."""

    name: str


@dataclass(frozen=True, slots=True)
class ExpireProducers:
    """Forget producers that sent nothing since ``before_ms``, and the most silent ones beyond
    ``keep``; never one whose name is in ``connected``. Reply: `Forgotten`.
    """

    before_ms: int
    keep: int = 10_000
    connected: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Forgotten:
    """Producers whose state was dropped, by name."""

    names: tuple[str, ...]


@dataclass(slots=True)
class Producer:
    """What is known of a producer name. Sequence ids are -1 until there is one."""

    index: int
    name: str
    at_ms: int
    last_sequence_id: int = -1
    chunk_sequence_id: int = -1
    chunk_uuid: str = ""
    chunk_id: int = -1


@dataclass(slots=True)
class Subscription:
    """A subscription of this partition."""

    ref: SubscriptionRef
    properties: dict[str, str]


@dataclass(slots=True)
class PartitionState:
    """Everything a partition's journal says, but for the entries themselves."""

    table: LedgerTable = field(default_factory=LedgerTable)
    producers: dict[str, Producer] = field(default_factory=dict)
    by_index: dict[int, Producer] = field(default_factory=dict)
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    next_producer: int = 1
    next_incarnation: int = 1
    topic_epoch: int = 0
    terminated: bool = False

    @property
    def end_offset(self) -> int:
        """One more than the last entry's offset."""
        return self.table.end_offset

    @property
    def first_offset(self) -> int:
        """The offset of the oldest entry that is kept; `end_offset` if there is none."""
        return self.table.first_offset


def last_sequence_id(state: PartitionState, producer: str) -> int:
    """The highest sequence id of a complete message of ``producer``; -1 if there is none."""
    known = state.producers.get(producer)
    return -1 if known is None else known.last_sequence_id


class PartitionMachine:
    """Decides for one topic partition."""

    def initial(self) -> PartitionState:
        """An empty log without a ledger."""
        return PartitionState()

    def decide(self, state: PartitionState, command: Any, now_ms: int) -> Decision:
        """What ``command`` leads to."""
        raise NotImplementedError

    def evolve(self, state: PartitionState, event: Message) -> None:
        """Apply ``event``."""
        raise NotImplementedError

    def check(self, state: PartitionState) -> None:
        """Raise `InvariantViolation` if an invariant is broken."""
        raise NotImplementedError

    def snapshot(self, state: PartitionState) -> Mapping[str, bytes]:
        """Segments: ledgers, producers, subscriptions, partition."""
        raise NotImplementedError

    def restore(self, segments: Mapping[str, bytes]) -> PartitionState:
        """The state whose snapshot is ``segments``."""
        raise NotImplementedError
