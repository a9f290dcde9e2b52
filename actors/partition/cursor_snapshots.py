"""Snapshots that map positions of this cluster to those of others, as in Pulsar: rules without I/O.

A snapshot means: a consumer that has everything before ``local`` here has everything up to certain
positions in the other clusters. To take one, the partition asks each other cluster for its present
position. The answer arrives behind everything that the cluster published itself before. With
several other clusters a second round is needed: entries that one of them got from another may
arrive here after its answer, but before the other one's second answer. So the remote positions are
those of the first round, and the local one is that of the last answer of the last round.

Snapshots are volatile: a lost one is taken again. Time and numbers are arguments.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from velaray.actors.machine import require
from velaray.events.ids import Position

TIMEOUT_MS = 30_000
CACHED = 30
"""The most snapshots that are kept for a slow subscription."""
LEAST_CACHED = 3


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot: everything before offset ``local`` here equals everything up to ``remote``
    elsewhere."""

    local: int
    remote: Mapping[str, Position]


@dataclass(slots=True)
class _Pending:
    """A snapshot that is being taken."""

    clusters: frozenset[str]
    started_ms: int
    missing: set[str]
    first_round: bool = True
    remote: dict[str, Position] = field(default_factory=dict)


class SnapshotTaker:
    """Takes snapshots of one partition."""

    def __init__(self, timeout_ms: int = TIMEOUT_MS) -> None:
        self._timeout_ms = timeout_ms
        self._pending: dict[str, _Pending] = {}
        self._completed: int | None = None  # the log's end when the last completed one began
        self._began: dict[str, int] = {}

    @property
    def pending(self) -> int:
        """The number of unfinished snapshots."""
        return len(self._pending)

    def start(
        self, name: str, clusters: Iterable[str], connected: Iterable[str], end: int, now_ms: int
    ) -> bool:
        """Begin a snapshot called ``name`` if it is useful; then ask all ``clusters``.

        It isn't useful if nothing was published since the last completed one began (the log ends at
        ``end``), if a cluster isn't connected, or if none was ever completed and one is unfinished:
        the clusters may not answer at all.
        """
        self._expire(now_ms)
        asked = frozenset(clusters)
        if not asked or not asked <= frozenset(connected) or end == self._completed or end == 0:
            return False
        if self._pending and self._completed is None:
            return False
        self._pending[name] = _Pending(asked, now_ms, set(asked))
        self._began[name] = end
        return True

    def answer(self, name: str, cluster: str, position: Position, end: int) -> Snapshot | bool:
        """Take a cluster's answer, its ``position``; the log ends at ``end`` here.

        Returns the snapshot after the last answer, True if all clusters must be asked again, and
        else False: others haven't answered yet, or the snapshot isn't expected any more.
        """
        pending = self._pending.get(name)
        if pending is None or cluster not in pending.missing:
            return False
        pending.missing.discard(cluster)
        if pending.first_round:
            pending.remote[cluster] = position
        if pending.missing:
            return False
        if pending.first_round and len(pending.clusters) > 1:
            pending.first_round = False
            pending.missing = set(pending.clusters)
            return True
        del self._pending[name]
        self._completed = max(self._began.pop(name), self._completed or 0)
        return Snapshot(end, MappingProxyType(pending.remote))

    def _expire(self, now_ms: int) -> None:
        for name, pending in list(self._pending.items()):
            if now_ms - pending.started_ms >= self._timeout_ms:
                del self._pending[name], self._began[name]


def _furthest(one: Snapshot, other: Snapshot) -> Snapshot:
    """The combined meaning of two snapshots at the same local place."""
    found = dict(one.remote)
    for cluster, position in other.remote.items():
        found[cluster] = max(position, found.get(cluster, position))
    return Snapshot(one.local, MappingProxyType(found))


class SnapshotCache:
    """The snapshots that one subscription hasn't passed yet, oldest first."""

    def __init__(self, size: int = CACHED) -> None:
        require(size >= LEAST_CACHED, "a cache has a head, a tail and room between", str(size))
        self._size = size
        self._snapshots: list[Snapshot] = []
        self._mark = 0

    def __len__(self) -> int:
        return len(self._snapshots)

    @property
    def locals(self) -> list[int]:
        """Their local offsets."""
        return [each.local for each in self._snapshots]

    def add(self, snapshot: Snapshot) -> None:
        """Add a snapshot. If there are too many, remove one of the two closest neighbours, never
        the first or the last: so slow and fast subscriptions find one nearby."""
        found = self._snapshots
        if found and snapshot.local == found[-1].local:
            found[-1] = _furthest(found[-1], snapshot)
        if found and snapshot.local <= found[-1].local:
            return  # an equivalent one is present
        found.append(snapshot)
        if len(found) > self._size:
            del found[min(range(1, len(found) - 1), key=self._distance)]

    def _distance(self, index: int) -> int:
        return self._snapshots[index + 1].local - self._snapshots[index - 1].local

    def advance(self, mark: int) -> Snapshot | None:
        """The newest snapshot that the mark has passed, if any; it and all earlier ones are
        removed.

        If the mark moved back below the last passed one, all are removed: it may pass them again.
        """
        if mark < self._mark and self._snapshots and mark < self._snapshots[-1].local:
            self._snapshots.clear()
        self._mark = mark
        passed = [each for each in self._snapshots if each.local <= mark]
        del self._snapshots[: len(passed)]
        return passed[-1] if passed else None
