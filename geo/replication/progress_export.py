"""Export the progress of a partition's subscriptions to other clusters, by origin and position.

The dispatcher reports new progress by offset (`velaray.actors.subscription.progress_exports`). The
partition maps these offsets to positions in the cluster that stored the entries first. Entries
that were first stored here have positions of this cluster. So do entries from a cluster that isn't
a *peer*: they are forwarded as if they had been published here.

Trimmed entries are exported as acknowledged if their positions are known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple, Protocol

from velaray.actors.machine import Reason
from velaray.actors.partition.origins import NOWHERE, place_before
from velaray.actors.partition.state import PartitionState
from velaray.actors.runtime import Runtime
from velaray.broker.partition.geo_replication import Handler
from velaray.broker.partition.subscription_channel import SubscriptionChannel
from velaray.broker.subscription.messages import (
    ExportProgress,
    FindUnacked,
    GetAckStatus,
    GetDetails,
    GetHoldings,
    GetMark,
    GetPendingAcks,
    GetStats,
    GetUnacked,
    LocateEntry,
)
from velaray.events.ids import Position
from velaray.geo.replication import messages as m
from velaray.topology.config import ClusterConfig
from velaray.topology.messages import Message, ReplyT, Request
from velaray.topology.rpc import RemoteError, RpcConnectionClosed
from velaray.wire.replication import REPLICATOR_PREFIX, is_replicated
from velaray.wire.replication_pb2 import EntryRange, OriginProgress, SubscriptionProgress

PART_BYTES = 64 << 10
"""The largest part, without its envelope."""
PARTS = 8
"""About the most parts of one call."""
_RANGE_BYTES = 26
_BATCH_BYTES = 22
_WORD_BYTES = 9
_COUNT_BYTES = 36
_NOWHERE = 1 << 62
_STEPS = 1000
"""The most runs of remote entries that the search for the newest local entry skips."""
_LOOKS = (
    *(GetMark, GetDetails, ExportProgress, FindUnacked, GetHoldings, GetPendingAcks, GetAckStatus),
    *(GetStats, GetUnacked, LocateEntry),
)
"""The requests to subscriptions that change nothing."""


class Subscriptions(Protocol):
    """What the export needs of the table of subscriptions."""

    channels: dict[str, SubscriptionChannel]

    async def ask_subscription(self, name: str, request: Request[ReplyT]) -> ReplyT:
        """Call a subscription's dispatcher, connected or not."""


class Partition(Protocol):
    """What the export needs of the partition."""

    topic: str
    config: ClusterConfig
    runtime: Runtime[PartitionState]

    @property
    def subscriptions(self) -> Subscriptions:
        """The table of subscriptions."""
        ...


class Changes:
    """A version for each durable subscription, which grows when its progress may have changed."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._counts: Counter[str] = Counter()

    def note(self, name: str) -> None:
        """Count a possible change. Non-durable and deleted subscriptions have no version."""
        there = self._partition.runtime.state.subscriptions
        if name in there:
            self._counts[name] += 1
        if len(self._counts) > len(there):
            for gone in self._counts.keys() - there.keys():
                del self._counts[gone]

    def called(self, name: str, request: Request[Any]) -> None:
        """The subscription answered this request."""
        if not isinstance(request, _LOOKS):
            self.note(name)

    def revisions(self, *, all_of_them: bool) -> dict[str, list[int]]:
        """The versions of all subscriptions whose progress is replicated. Sends no request."""
        partition = self._partition
        epoch, there = partition.runtime.journal.epoch, partition.runtime.state.subscriptions
        return {
            name: [epoch, found.ref.incarnation, self._counts[name]]
            for name, found in there.items()
            if not name.startswith(REPLICATOR_PREFIX)
            and (all_of_them or is_replicated(found.properties))
        }


class Place(NamedTuple):
    """``size`` consecutive entries: their place at the origin and here."""

    cluster: str
    ledger_id: int
    entry_id: int
    offset: int
    size: int

    @property
    def end(self) -> int:
        """The local offset behind the entries."""
        return self.offset + self.size


class Places:
    """Maps a partition's entries to their positions in the clusters that stored them first."""

    def __init__(self, state: PartitionState, own: str, peers: Collection[str] | None) -> None:
        """Without ``peers`` every cluster is a peer."""
        self._table = state.table
        self._own = own
        self._origins = {
            cluster: origin
            for cluster, origin in state.origins.by_cluster.items()
            if peers is None or cluster in peers
        }

    @property
    def known_from(self) -> int:
        """The offset before which every recorded entry is this cluster's own."""
        return min((origin.first_offset for origin in self._origins.values()), default=_NOWHERE)

    def up_to(self, mark: int) -> dict[str, Position]:
        """The position up to which this cluster's own entries are acknowledged if every entry
        before ``mark`` is.

        Other clusters have no such position: they may have stored entries that never came here.
        """
        own = self._own_before(mark)
        return {self._own: own} if own >= (0, 0) else {}

    def came(self, first: int, end: int) -> Iterator[Place]:
        """The entries of other clusters at offsets ``first`` to ``end`` - 1."""
        return (place for place in self.of(first, end) if place.cluster != self._own)

    def _own_before(self, mark: int) -> Position:
        table, at = self._table, min(mark, self._table.end_offset) - 1
        for _ in range(_STEPS):
            begins = (origin.begin_of(at) for origin in self._origins.values())
            begin = next((each for each in begins if each is not None), None)
            if begin is None or at < table.first_offset:
                break
            at = begin - 1
        for run in table.runs(at, at + 1, with_gone=True):
            return Position(run.ledger_id, run.first_entry)
        trimmed = table.first_offset > 0 and table.is_open
        return place_before(Position(table.ledgers()[0][0], 0)) if trimmed else NOWHERE

    def of(self, first: int, end: int) -> Iterator[Place]:
        """The entries at offsets ``first`` to ``end`` - 1, ascending."""
        came = [
            Place(cluster, *run)
            for cluster, origin in self._origins.items()
            for run in origin.runs(first, end)
        ]
        came.sort(key=lambda place: place.offset)
        for place in came:
            yield from self._own_places(first, place.offset)
            yield place
            first = place.end
        yield from self._own_places(first, end)

    def _own_places(self, first: int, end: int) -> Iterator[Place]:
        first = max(first, self._table.first_offset)
        for run in self._table.runs(first, end, with_gone=True):
            yield Place(self._own, run.ledger_id, run.first_entry, first, run.entries)
            first += run.entries


class Parts:
    """Progress of one subscription in messages of bounded size."""

    def __init__(self, name: str, properties: Mapping[str, str]) -> None:
        self._name = name
        self._properties = properties
        self._done: list[bytes] = []
        self._part: SubscriptionProgress | None = None
        self._by_cluster: dict[str, OriginProgress] = {}
        self._size = 0

    @property
    def full(self) -> bool:
        """Whether there is enough for one call."""
        return len(self._done) >= PARTS

    def begin(self, up_to: Mapping[str, Position]) -> None:
        """Add the positions up to which every entry of an origin is acknowledged."""
        self._make_room(0)
        for cluster, position in up_to.items():
            at = self._origin(cluster, 30).up_to
            at.ledger_id, at.entry_id = position

    def acked(self, place: Place) -> None:
        """Add acknowledged entries."""
        _fill(self._origin(place.cluster, _RANGE_BYTES).acked.add(), place)

    def in_part(self, place: Place, words: list[int]) -> None:
        """Add the messages that remain of a batch."""
        origin = self._origin(place.cluster, _BATCH_BYTES + len(words) * _WORD_BYTES)
        origin.partial.add(ledger=place.ledger_id, entry=place.entry_id, remaining=words)

    def delivered(self, place: Place, times: int) -> None:
        """Add entries whose deliveries failed."""
        counted = self._origin(place.cluster, _COUNT_BYTES).delivered.add(times=times)
        _fill(counted.entries, place)

    def take(self) -> list[bytes]:
        """All parts."""
        self._end()
        return self._done

    def _origin(self, cluster: str, size: int) -> OriginProgress:
        self._make_room(size)
        assert self._part is not None
        origin = self._by_cluster.get(cluster)
        if origin is None:
            origin = self._by_cluster[cluster] = self._part.origins.add(cluster=cluster)
            self._size += len(cluster.encode()) + 10
        self._size += size
        return origin

    def _make_room(self, size: int) -> None:
        if self._part is not None and self._size + size > PART_BYTES:
            self._end()
        if self._part is None:
            self._part = SubscriptionProgress(subscription=self._name, properties=self._properties)
            self._size = 0

    def _end(self) -> None:
        if self._part is not None:
            self._done.append(self._part.SerializeToString())
        self._part = None
        self._by_cluster.clear()


def _fill(entries: EntryRange, place: Place) -> None:
    entries.ledger, entries.first_entry = place.ledger_id, place.entry_id
    entries.last_entry = place.entry_id + place.size - 1


def _add(parts: Parts, found: Mapping[str, Any], places: Places) -> None:
    """New progress as a dispatcher reports it."""
    if found["begins"]:
        parts.begin(places.up_to(found["mark"]))
    for first, end in found["ranges"]:
        for place in places.of(first, end):
            parts.acked(place)
    for first, end in found["before"]:
        for place in places.came(first, end):
            parts.acked(place)
    for offset, words in found["partial"]:
        for place in places.of(offset, offset + 1):
            parts.in_part(place, words)
    for first, end, times in found["counts"]:
        for place in places.of(first, end):
            parts.delivered(place, times)


async def _ask(partition: Partition, name: str, request: ExportProgress) -> dict[str, Any]:
    """Ask the subscription, without waiting for acknowledgements that wait for a sync."""
    channel, found = partition.subscriptions.channels.get(name), None
    if channel is not None and channel.link.port is not None:
        try:
            found = await channel.link.port.ask(request)
        except RpcConnectionClosed:
            found = None
    if found is None:
        found = await partition.subscriptions.ask_subscription(name, request)
    return found


async def export_progress(partition: Partition, request: m.ExportProgress) -> m.ExportedProgress:
    """Answer `ExportProgress`.

    The parts name only acknowledged entries, never acknowledgements that are pending in a
    transaction. Raises `RemoteError` (NOT_FOUND) for an unknown subscription, and what
    `Subscriptions.ask_subscription` raises.
    """
    name, cluster, given = request.subscription, request.cluster, request.since
    peers = None if request.peers is None else sorted(request.peers)
    since, before = (None, peers) if given is None else given
    if before != peers:
        since = None  # its entries have positions of another cluster
    known = await partition.runtime.read(lambda state: state.subscriptions.get(name))
    if known is None:
        raise RemoteError(Reason.NOT_FOUND, f"{partition.topic} has no subscription {name!r}")
    parts = Parts(name, known.properties)
    more = True
    while more and not parts.full:
        places = Places(partition.runtime.state, partition.config.name, peers)
        found = await _ask(partition, name, ExportProgress(cluster, since, places.known_from))
        since, more = found["token"], found["more"]
        if found["news"]:
            _add(parts, found, places)
    return {"token": [since, peers], "parts": parts.take(), "more": more}


async def replicated_subscriptions(
    changes: Changes, request: m.ReplicatedSubscriptions
) -> dict[str, list[int]]:
    """Answer `ReplicatedSubscriptions`."""
    return changes.revisions(all_of_them=request.all)


def handlers(partition: Partition, changes: Changes) -> dict[type[Message], Handler]:
    """The requests about progress."""
    return {
        m.ExportProgress: partial(export_progress, partition),
        m.ReplicatedSubscriptions: partial(replicated_subscriptions, changes),
    }
