"""The data of a lost cluster that never reached another cluster.

Journals are read in place, without the cluster. Nothing is written.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from velaray.actors.catalog.machine import CatalogMachine
from velaray.actors.partition.ledger_table import LedgerTable
from velaray.actors.partition.machine import (
    PartitionMachine,
)
from velaray.actors.partition.skipped_entries import hidden_within
from velaray.actors.partition.state import PartitionState
from velaray.actors.sets.offset_sets import Range, gaps
from velaray.actors.sets.ranges import RangeSet
from velaray.actors.subscription.cursor import words_to_mask
from velaray.actors.subscription.machine import SubscriptionMachine, SubscriptionState
from velaray.broker.history import NoHistory, PointInTime, replayed_to
from velaray.events.codec import decode
from velaray.events.events_pb2 import EntryAppended
from velaray.events.ids import ActorKey, Position
from velaray.journal.errors import NotStored
from velaray.journal.replay import replay
from velaray.journal.store import LedgerStore
from velaray.wire.replication import REPLICATOR_PREFIX
from velaray.wire.replication_pb2 import SubscriptionProgress

_NOW = PointInTime()


@dataclass(frozen=True, slots=True)
class LostPartition:
    """The data of one lost partition that is missing here.

    ``positions`` are the first and last entries of each range that was never replicated;
    ``messages`` is their total number of messages. ``unsynced`` is, by subscription, the number of
    replicated messages that are acknowledged there and not here.
    """

    topic: str
    entries: int
    messages: int
    positions: tuple[tuple[Position, Position], ...]
    unsynced: Mapping[str, int]


async def partitions_of(store: LedgerStore, tenant: str) -> list[ActorKey]:
    """The partitions of a tenant, from the lost cluster's data. Raises `JournalError`."""
    found = await replayed_to(store, ActorKey.catalog(), _NOW, CatalogMachine())
    return [
        key
        for (owner, _), topics in sorted(found.state.namespaces.items())
        if owner == tenant
        for _, topic in sorted(topics.items())
        for key in topic.actors()
    ]


async def lost_of(
    store: LedgerStore, key: ActorKey, cluster: str, here: Mapping[str, Any]
) -> LostPartition:
    """Compare a partition of the lost ``cluster`` with the entries that arrived ``here``.

    ``here`` is the answer of `Admin.received_from`. Raises `JournalError`.
    """
    topic = str(key.topic_name)
    try:
        state = (await replayed_to(store, key, _NOW, PartitionMachine())).state
    except (NotStored, NoHistory):  # the partition was never used
        return LostPartition(topic, 0, 0, (), {})
    newest = here["newest"]
    came = 0 if newest is None else state.table.at_or_after(Position(newest[0], newest[1] + 1))
    sizes = await _sizes(store, key, state.table)
    own = list(_own(state))
    missing = [(max(first, came), end) for first, end in own if end > came]
    unsynced = {}
    for name, known in sorted(state.subscriptions.items()):
        if name.startswith(REPLICATOR_PREFIX):
            continue
        actor = key.of_subscription(name, known.ref.incarnation)
        there = await _Acked.there(store, actor, known.ref.start_offset)
        ours = _Acked.here(here["subscriptions"].get(name, ()), cluster, state.table)
        replicated = [(first, min(end, came)) for first, end in own if first < came]
        unsynced[name] = _more(there, ours, replicated, sizes)
    return LostPartition(
        topic,
        sum(end - first for first, end in missing),
        sum(sizes.get(offset, 1) for first, end in missing for offset in range(first, end)),
        tuple(_positions(state.table, missing)),
        unsynced,
    )


async def _sizes(store: LedgerStore, key: ActorKey, table: LedgerTable) -> dict[int, int]:
    """The number of messages of each batch, by offset; all other entries hold one."""
    found = {}
    async for record in replay(store, key.text()):
        if record.position is None:
            continue
        event = decode(bytes(record.event))
        if isinstance(event, EntryAppended) and event.messages > 1:
            span = table.span(record.position.ledger_id)
            found[span.first + record.position.entry_id] = event.messages
    return found


def _own(state: PartitionState) -> Iterator[Range]:
    """The retained, readable entries that were first stored in this cluster."""
    gone = list(state.table.gone_ranges())
    for first, end in gaps(state.first_offset, state.end_offset, gone):
        for own_first, own_end in state.origins.own(first, end):
            hidden = hidden_within(state, own_first, own_end)
            yield from gaps(own_first, own_end, hidden)


def _positions(table: LedgerTable, ranges: Sequence[Range]) -> Iterator[tuple[Position, Position]]:
    for first, end in ranges:
        at = first
        while at < end:
            span = table.span_of(at)
            stop = min(end, span.end)
            begin = Position(span.ledger_id, at - span.first)
            yield begin, Position(span.ledger_id, stop - 1 - span.first)
            at = stop


@dataclass(slots=True)
class _Acked:
    """The acknowledgements of a subscription: whole entries, and the ack sets of batches."""

    whole: RangeSet
    remaining: dict[int, int]

    @classmethod
    async def there(cls, store: LedgerStore, key: ActorKey, start: int) -> _Acked:
        """The acknowledgements in the lost cluster's data."""
        try:
            found = await replayed_to(store, key, _NOW, SubscriptionMachine())
        except (NotStored, NoHistory):  # the subscription was never used
            return cls(RangeSet([(0, start)] if start else []), {})
        state: SubscriptionState = found.state
        cursor = state.cursor
        whole = RangeSet(cursor.acked_ranges())
        if mark := max(cursor.acked_before, start):
            whole.add(0, mark)
        return cls(whole, dict(cursor.all_partials()))

    @classmethod
    def here(cls, parts: Sequence[str], cluster: str, table: LedgerTable) -> _Acked:
        """The acknowledgements that were replicated to this cluster."""
        found = cls(RangeSet(), {})
        for part in parts:
            progress = SubscriptionProgress.FromString(base64.b64decode(part))
            for origin in progress.origins:
                if origin.cluster == cluster:
                    found._add(origin, table)
        return found

    def _add(self, origin: Any, table: LedgerTable) -> None:
        if origin.HasField("up_to"):
            last = Position(origin.up_to.ledger_id, origin.up_to.entry_id)
            if end := table.at_or_before(last) + 1:
                self.whole.add(0, end)
        for each in origin.acked:
            span = table.span(each.ledger)
            first, end = span.first + each.first_entry, span.first + each.last_entry + 1
            if first < min(end, span.end):
                self.whole.add(first, min(end, span.end))
        for each in origin.partial:
            span = table.span(each.ledger)
            if span.first + each.entry < span.end:
                self.remaining[span.first + each.entry] = words_to_mask(each.remaining)


def _more(there: _Acked, here: _Acked, within: Sequence[Range], sizes: Mapping[int, int]) -> int:
    """The number of messages that are acknowledged there and not here."""
    count = 0
    for first, end in within:
        for acked_first, acked_end in there.whole.within(first, end):
            for lacking_first, lacking_end in here.whole.missing(acked_first, acked_end):
                for offset in range(lacking_first, lacking_end):
                    whole = (1 << sizes.get(offset, 1)) - 1
                    count += here.remaining.get(offset, whole).bit_count()
        for offset, remaining in there.remaining.items():
            if first <= offset < end and offset not in here.whole:
                whole = (1 << sizes.get(offset, 1)) - 1
                count += (here.remaining.get(offset, whole) & ~remaining).bit_count()
    return count
