"""What subscriptions of a partition have, for other clusters: by origin and position, in parts.

The brain says what is new by offset (`velaray.actors.subscription.progress_exports`); the partition
knows where those entries are in the cluster that stored them first. What this cluster stored first
is told by its own positions, and so is what came from a cluster that isn't a *peer*: it goes on
from here as if it had been published here.

Of entries that are trimmed away it is told that they are acknowledged, as far as it's known where
they were.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from velaray.actors.machine import Reason
from velaray.actors.partition.origins import NOWHERE, place_before
from velaray.actors.partition.state import PartitionState
from velaray.broker.partition.geo_replication import Method
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
from velaray.topology.messages import Request
from velaray.topology.rpc import RemoteError, RpcConnectionClosed
from velaray.wire.replication import REPLICATOR_PREFIX, is_replicated
from velaray.wire.replication_pb2 import EntryRange, OriginProgress, SubscriptionProgress

if TYPE_CHECKING:
    from velaray.broker.partition.partition_actor import PartitionActor

PART_BYTES = 64 << 10
"""No part is larger, but for what surrounds it."""
PARTS = 8
"""About so many are made for one call."""
_RANGE_BYTES = 26
_BATCH_BYTES = 22
_WORD_BYTES = 9
_COUNT_BYTES = 36
_NOWHERE = 1 << 62
_STEPS = 1000
"""So many runs of other clusters' entries are passed over to find the newest own one."""
_LOOKS = (
    *(GetMark, GetDetails, ExportProgress, FindUnacked, GetHoldings, GetPendingAcks, GetAckStatus),
    *(GetStats, GetUnacked, LocateEntry),
)
"""The requests to subscriptions that change nothing."""


class Changes:
    """Counts, for each durable subscription, how often it may have got something new to tell."""

    def __init__(self, partition: PartitionActor) -> None:
        self._partition = partition
        self._counts: Counter[str] = Counter()

    def note(self, name: str) -> None:
        """It may have; of those that aren't durable, or deleted, nothing is kept."""
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
        """Of all whose progress is to go to other clusters. Asks nobody."""
        partition = self._partition
        epoch, there = partition.runtime.journal.epoch, partition.runtime.state.subscriptions
        return {
            name: [epoch, found.ref.incarnation, self._counts[name]]
            for name, found in there.items()
            if not name.startswith(REPLICATOR_PREFIX)
            and (all_of_them or is_replicated(found.properties))
        }


class Place(NamedTuple):
    """``size`` entries in a row: in a ledger of their origin, and here."""

    cluster: str
    ledger_id: int
    entry_id: int
    offset: int
    size: int

    @property
    def end(self) -> int:
        """The local offset behind them."""
        return self.offset + self.size


class Places:
    """Where a partition's entries are in the clusters that stored them first."""

    def __init__(self, state: PartitionState, own: str, peers: Collection[str] | None) -> None:
        """Without ``peers`` all clusters are."""
        self._table = state.table
        self._own = own
        self._origins = {
            cluster: origin
            for cluster, origin in state.origins.by_cluster.items()
            if peers is None or cluster in peers
        }

    @property
    def known_from(self) -> int:
        """Before this offset all is this cluster's own, as far as that is known."""
        return min((origin.first_offset for origin in self._origins.values()), default=_NOWHERE)

    def up_to(self, mark: int) -> dict[str, Position]:
        """Up to which position all that this cluster stored first is acknowledged, if all before
        ``mark`` is.

        Nothing is said so of other clusters: they may have stored what never came here.
        """
        own = self._own_before(mark)
        return {self._own: own} if own >= (0, 0) else {}

    def came(self, first: int, end: int) -> Iterator[Place]:
        """Of the entries at offsets ``first`` to ``end`` - 1 those of other clusters."""
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
    """Progress of one subscription, as it is sent: in messages of bounded size."""

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
        """Of each origin all is acknowledged up to there."""
        self._make_room(0)
        for cluster, position in up_to.items():
            at = self._origin(cluster, 30).up_to
            at.ledger_id, at.entry_id = position

    def acked(self, place: Place) -> None:
        """These entries are acknowledged."""
        _fill(self._origin(place.cluster, _RANGE_BYTES).acked.add(), place)

    def in_part(self, place: Place, words: list[int]) -> None:
        """Of this batch these messages remain."""
        origin = self._origin(place.cluster, _BATCH_BYTES + len(words) * _WORD_BYTES)
        origin.partial.add(ledger=place.ledger_id, entry=place.entry_id, remaining=words)

    def delivered(self, place: Place, times: int) -> None:
        """These were delivered in vain."""
        counted = self._origin(place.cluster, _COUNT_BYTES).delivered.add(times=times)
        _fill(counted.entries, place)

    def take(self) -> list[bytes]:
        """All of it."""
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
    """What a brain says is new."""
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


async def _ask(partition: PartitionActor, name: str, request: ExportProgress) -> dict[str, Any]:
    """Ask the subscription, without waiting for acknowledgements that wait for a sync."""
    channel, found = partition.channels.get(name), None
    if channel is not None and channel.port is not None:
        try:
            found = await channel.port.ask(request)
        except RpcConnectionClosed:
            found = None
    if found is None:
        found = await partition.ask_subscription(name, request)
    return found


async def export_progress(partition: PartitionActor, args: dict[str, Any]) -> dict[str, Any]:
    """What is new of ``subscription`` for ``cluster``, which has all up to the token ``since``.

    Returns ``parts``, each a SubscriptionProgress, ``token``, and whether there is ``more``: then
    it is to be asked with that token again, at once. What isn't acknowledged is never told, nor
    what is pending in a transaction. Raises `RemoteError` (NOT_FOUND) if there is no such
    subscription, and as `PartitionActor.ask_subscription` does.
    """
    name, cluster, given = args["subscription"], args["cluster"], args.get("since")
    peers = None if args.get("peers") is None else sorted(args["peers"])
    since, before = (None, peers) if given is None else given
    if before != peers:
        since = None  # what it has is told by other positions
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


async def replicated_subscriptions(changes: Changes, args: dict[str, Any]) -> dict[str, list[int]]:
    """The durable subscriptions whose progress is to go to other clusters (``all``: every one but
    replicators), with a value that is another one whenever there may be something new.

    No sleeping subscription is woken for this.
    """
    return changes.revisions(all_of_them=bool(args.get("all")))


def methods(partition: PartitionActor, changes: Changes) -> dict[str, Method]:
    """The calls about progress."""
    return {
        "export_progress": partial(export_progress, partition),
        "replicated_subscriptions": partial(replicated_subscriptions, changes),
    }
