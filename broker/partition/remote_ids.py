"""Translates message ids of other clusters, which clients acknowledge or seek here.

Ledger ids contain the cluster's number, so a remote id is recognized as one. An entry is found by
its position in the cluster that stored it first; the ids of copies are unknown elsewhere. An id
that isn't found is treated like a trimmed one. A cumulative acknowledgement of a remote id covers
the entries that the id's cluster stored first, up to that id. Only that cluster knows which other
entries its client had got before; they arrive with that cluster's progress.
"""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import Any, NamedTuple, Protocol

from velaray.actors.machine import Reason
from velaray.actors.partition.ledger_table import LedgerTable
from velaray.actors.partition.origins import Origin
from velaray.actors.partition.state import PartitionState
from velaray.actors.runtime import Runtime
from velaray.actors.sets.offset_sets import Range, gaps
from velaray.actors.sets.ranges import normalized
from velaray.broker.partition.subscription_channel import SubscriptionChannel
from velaray.broker.subscription.messages import GetMark, GetUnacked
from velaray.events.ids import LATEST, Position
from velaray.journal.manifest import LEDGER_INDEX_BITS, LedgerInfo, cluster_number_of
from velaray.topology.config import ClusterConfig
from velaray.topology.rpc import RemoteError

MOST_RUNS = 10_000
"""The number of runs of consecutive entries that are acknowledged at once."""
_ALL = 1 << 62


class Log(Protocol):
    """What these functions need of a partition."""

    config: ClusterConfig
    runtime: Runtime[PartitionState]

    @property
    def end_offset(self) -> int:
        """The offset after the newest durable entry."""

    @property
    def ledgers(self) -> tuple[LedgerInfo, ...]:
        """Every ledger of the journal, oldest first."""

    def table(self, compacted: bool = False) -> LedgerTable:
        """Return the position of every entry; with all entries of the compacted view."""


def is_remote(partition: Log, position: Position) -> bool:
    """Whether a position is one of another cluster."""
    ledger_id = position.ledger_id
    if ledger_id < 0 or ledger_id == LATEST.ledger_id:
        return False
    table, number = partition.runtime.state.table, partition.config.cluster_number
    return cluster_number_of(ledger_id) != number and not table.span(ledger_id).end


def offset_of(partition: Log, position: Position, otherwise: int) -> int:
    """The local offset of the entry that another cluster stored first at a position, if known."""
    for origin in partition.runtime.state.origins.by_cluster.values():
        offset = origin.offset_of(position)
        if offset is not None:
            return offset
    return otherwise


def _origin_of(partition: Log, position: Position) -> Origin | None:
    """The entries that came from the cluster of this position."""
    number = cluster_number_of(position.ledger_id)
    for origin in partition.runtime.state.origins.by_cluster.values():
        if cluster_number_of(origin.last.ledger_id) == number:
            return origin
    return None


def at_or_after(partition: Log, position: Position, *, compacted: bool = False) -> int:
    """The offset for a seek to a position, at most the end of the log.

    For a remote position it is the first entry of that cluster at or after the position, the end of
    the log if all its entries are before the position, or the oldest entry if none ever came from
    there.
    """
    table, end = partition.table(compacted), partition.end_offset
    if not is_remote(partition, position):
        return min(table.at_or_after(position), end)
    origin = _origin_of(partition, position)
    if origin is None:
        return table.first_offset
    found = origin.at_or_after(position)
    return end if found is None else min(table.kept_from(found), end)


def is_nobodys(partition: Log, position: Position) -> bool:
    """Whether no entry of this topic is known to have had this position: it is from another topic,
    perhaps a deleted one of the same name, or from a cluster of which no entry came."""
    if is_remote(partition, position):
        return _origin_of(partition, position) is None
    own = partition.ledgers[-1].ledger_id >> LEDGER_INDEX_BITS
    return position.ledger_id >> LEDGER_INDEX_BITS != own


class UpTo(NamedTuple):
    """A cumulative acknowledgement of another cluster's position in local terms: ranges of whole
    entries, the remaining messages of the batch at the position unless all of it is acknowledged,
    and the offset that it extends to."""

    ranges: list[Range]
    partial: list[tuple[int, list[int]]]
    end: int


def up_to(partition: Log, first: int, position: Position, words: list[int] | None) -> UpTo | None:
    """The acknowledgement from offset ``first`` on; None if it has too many parts for one
    request."""
    origin = _origin_of(partition, position)
    if origin is None:
        return UpTo([], [], first)
    runs = list(islice(origin.runs(first, origin.before(position)), MOST_RUNS + 1))
    if len(runs) > MOST_RUNS:
        return None
    ranges = normalized((run.offset, run.end) for run in runs)
    end = ranges[-1][1] if ranges else first
    if words is None or origin.offset_of(position) != end - 1 or not ranges:
        return UpTo(ranges, [], end)
    ranges[-1] = (ranges[-1][0], end - 1)
    return UpTo(normalized(ranges), [(end - 1, words)], end - 1)


async def up_to_slowly(
    partition: Log,
    channel: SubscriptionChannel,
    position: Position,
    words: list[int] | None,
) -> UpTo:
    """The same from the mark on, in several requests. Raises as `SubscriptionChannel.ask` does."""
    first = await channel.ask(GetMark())
    ranges: list[Range] = []
    while True:
        found = up_to(partition, first, position, words)
        if found is not None:
            return UpTo(normalized([*ranges, *found.ranges]), found.partial, found.end)
        origin = _origin_of(partition, position)
        assert origin is not None
        runs = list(islice(origin.runs(first, origin.before(position)), MOST_RUNS))
        ranges += [(run.offset, run.end) for run in runs]
        first = runs[-1].end
        await asyncio.sleep(0)


async def before(
    partition: Log,
    channel: SubscriptionChannel,
    position: Position,
    words: list[int] | None,
) -> tuple[int, list[int] | None]:
    """The same for a transaction, which acknowledges everything before an offset: returns that
    offset, and the remaining words of the batch there.

    Raises `RemoteError` (NOT_ALLOWED) if other unacknowledged entries are before it.
    """
    found = await up_to_slowly(partition, channel, position, words)
    unacked = await channel.ask(GetUnacked(0, _ALL, found.end))
    for first, stop in zip(unacked[::2], unacked[1::2], strict=True):
        covered = [(max(a, first), min(b, stop)) for a, b in found.ranges if a < stop and b > first]
        if gaps(first, stop, covered):
            problem = "messages that it doesn't cover are before it here: acknowledge one by one"
            raise RemoteError(
                Reason.NOT_ALLOWED, f"{position} is a position of another cluster; {problem}"
            )
    return found.end, found.partial[0][1] if found.partial else None


def flat(ranges: list[Range]) -> list[Any]:
    """The ranges as a flat list: first, last + 1, first, ..."""
    return [at for each in ranges for at in each]
