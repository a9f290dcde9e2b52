"""Message ids of other clusters: what clients got there, and acknowledge or seek here.

The ledgers of different clusters have different numbers, so such an id is known as one. What a
cluster stored first is found by where it came from; an id of a copy that a cluster had isn't known
anywhere else. What isn't found is as if it were trimmed away. A cumulative acknowledgement means
what that cluster stored first, up to there: what else the client had got before that, is known
there alone, and comes with that cluster's progress.
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
"""So many runs of consecutive entries are acknowledged at once."""
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
    """Where an entry is that another cluster stored first at a position, if it's known."""
    for origin in partition.runtime.state.origins.by_cluster.values():
        offset = origin.offset_of(position)
        if offset is not None:
            return offset
    return otherwise


def _origin_of(partition: Log, position: Position) -> Origin | None:
    """What came from the cluster whose position this is."""
    number = cluster_number_of(position.ledger_id)
    for origin in partition.runtime.state.origins.by_cluster.values():
        if cluster_number_of(origin.last.ledger_id) == number:
            return origin
    return None


def at_or_after(partition: Log, position: Position, *, compacted: bool = False) -> int:
    """Where to go on for who seeks a position, at most at the end of the log.

    For one of another cluster that is the first entry of that cluster that isn't before it; behind
    all there is if there were only such before it; with the oldest entry if there never were any.
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
    """Whether an entry was never here, as far as is known: it's of another topic of this cluster,
    one that had this one's name perhaps, or of a cluster that nothing came from."""
    if is_remote(partition, position):
        return _origin_of(partition, position) is None
    own = partition.ledgers[-1].ledger_id >> LEDGER_INDEX_BITS
    return position.ledger_id >> LEDGER_INDEX_BITS != own


class UpTo(NamedTuple):
    """What a cumulative acknowledgement of another cluster's position means here: whole entries
    from some offset on, and what remains of the batch at the position, if it isn't meant as a
    whole; up to which offset it goes."""

    ranges: list[Range]
    partial: list[tuple[int, list[int]]]
    end: int


def up_to(partition: Log, first: int, position: Position, words: list[int] | None) -> UpTo | None:
    """That, from offset ``first`` on; None if it consists of too many parts to do it at once."""
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
    """The same, from the mark on, by and by. Raises as `SubscriptionChannel.ask` does."""
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
    """The same for a transaction, which takes all before an offset: that, and what remains there.

    Raises `RemoteError` (NOT_ALLOWED) if something else is before it that isn't acknowledged.
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
    """As channels tell them: first, last + 1, first, ..."""
    return [at for each in ranges for at in each]
