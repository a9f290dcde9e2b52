"""The state of a partition; see `velaray.actors.partition.machine`."""

from __future__ import annotations

from dataclasses import dataclass, field

from velaray.actors.partition.compacted import Compactions
from velaray.actors.partition.delayed import DelayedIndex
from velaray.actors.partition.ledger_table import LedgerTable
from velaray.actors.partition.migration_fence import Fence
from velaray.actors.partition.origins import Origins
from velaray.actors.partition.outgoing_transactions import Outgoing
from velaray.actors.partition.producer_state import Producer
from velaray.actors.partition.remote_transactions import RemoteTransactions
from velaray.actors.partition.transactions import Transactions
from velaray.actors.partition.unsettled_sequence_ids import UnsettledSequenceIds
from velaray.actors.sets.ranges import RangeSet


@dataclass(frozen=True, slots=True)
class SubscriptionRef:
    """A subscription; the incarnation distinguishes it from earlier and later ones of its name."""

    name: str
    incarnation: int
    start_offset: int


@dataclass(slots=True)
class Subscription:
    """A subscription of this partition; ``idle_since_ms`` is 0 unless it is known to be idle."""

    ref: SubscriptionRef
    properties: dict[str, str]
    idle_since_ms: int = 0


@dataclass(slots=True)
class PartitionState:
    """The state of a partition: everything in its journal except the entries themselves.

    ``deleted`` has the names of deleted subscriptions by incarnation, while parts of them may be
    stored; ``trimmed`` the ledgers that are unreadable but still listed, with the bytes of their
    entries. No entry from ``chunks_end`` on is a chunk. ``foreign`` are the producers of other
    clusters, by origin and name; ``skipped`` are the offsets that are not delivered.
    """

    table: LedgerTable = field(default_factory=LedgerTable)
    producers: dict[str, Producer] = field(default_factory=dict)
    by_index: dict[int, Producer] = field(default_factory=dict)
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    next_producer: int = 1
    next_incarnation: int = 1
    topic_epoch: int = 0
    terminated: bool = False
    deleted: dict[int, str] = field(default_factory=dict)
    compactions: Compactions = field(default_factory=Compactions)
    delayed: DelayedIndex = field(default_factory=DelayedIndex)
    transactions: Transactions = field(default_factory=Transactions)
    unsettled: dict[int, UnsettledSequenceIds] = field(default_factory=dict)
    trimmed: dict[int, int] = field(default_factory=dict)
    chunks_end: int = 0
    fence: Fence = field(default_factory=Fence)
    origins: Origins = field(default_factory=Origins)
    remote_producers: dict[tuple[str, str], Producer] = field(default_factory=dict)
    outgoing: Outgoing = field(default_factory=Outgoing)
    arriving: RemoteTransactions = field(default_factory=RemoteTransactions)
    skipped: RangeSet = field(default_factory=RangeSet)

    @property
    def end_offset(self) -> int:
        """One more than the last entry's offset."""
        return self.table.end_offset

    @property
    def first_offset(self) -> int:
        """The offset of the oldest stored entry; `end_offset` if there is none."""
        return self.table.first_offset

    @property
    def max_read_offset(self) -> int:
        """The offset from which on nothing may be delivered; see
        `velaray.actors.partition.transactions`."""
        return self.transactions.max_read_offset(self.table.end_offset)
