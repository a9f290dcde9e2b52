"""Snapshots, as Pulsar maps positions of one cluster to those of others: rules without I/O.

A snapshot says: who has got everything before ``local`` here has got everything up to certain
positions in the other clusters. One is taken by asking each of them where it is now. Its answer
comes behind all that it published itself before. With more than one of them a second round is
needed: what one got from another by then may come here later than its answer; that other one's
second answer comes behind it. So the remote positions are those of the first round, the local one
is that of the last answer of the last.

All of it is volatile: a snapshot that is lost is taken again. Time and numbers are arguments.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from velaray.actors.machine import require
from velaray.events.ids import Position

TIMEOUT_MS = 30_000
CACHED = 30
"""So many snapshots are kept for a subscription that gets on slowly."""
LEAST_CACHED = 3


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything before offset ``local`` here is everything up to ``remote`` elsewhere."""

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
        """How many are being taken."""
        return len(self._pending)

    def start(
        self, name: str, clusters: Iterable[str], connected: Iterable[str], end: int, now_ms: int
    ) -> bool:
        """Begin one called ``name`` if it is worth it: then ask all ``clusters``.

        It isn't if nothing was published since the last completed one began (the log ends at
        ``end``), if any of them isn't connected, or if none was ever completed and one is under
        way: perhaps they don't answer at all.
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
        """A cluster says that it is at ``position``; the log ends at ``end`` here.

        Returns the snapshot if that was the last answer, True if all are to be asked again;
        else False: it isn't waited for any more, or others still are.
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


class SnapshotCache:
    """The snapshots that one subscription has yet to pass, oldest first."""

    def __init__(self, size: int = CACHED) -> None:
        require(size >= LEAST_CACHED, "a cache has a head, a tail and room between", str(size))
        self._size = size
        self._snapshots: list[Snapshot] = []
        self._mark = 0

    def __len__(self) -> int:
        return len(self._snapshots)

    @property
    def locals(self) -> list[int]:
        """Where they are."""
        return [each.local for each in self._snapshots]

    def add(self, snapshot: Snapshot) -> None:
        """A snapshot was taken. If there are too many, the one goes whose neighbours are nearest
        to each other, never the first or the last: so slow and fast ones find some near them."""
        found = self._snapshots
        if found and snapshot.local <= found[-1].local:
            return  # one that tells as much is there
        found.append(snapshot)
        if len(found) > self._size:
            del found[min(range(1, len(found) - 1), key=self._distance)]

    def _distance(self, index: int) -> int:
        return self._snapshots[index + 1].local - self._snapshots[index - 1].local

    def advance(self, mark: int) -> Snapshot | None:
        """The subscription has acknowledged everything before ``mark``: the newest snapshot that
        it has passed, if any. That one and all before it are let go.

        If it was moved back below the last one, all are: what it passed once, it passes again.
        """
        if mark < self._mark and self._snapshots and mark < self._snapshots[-1].local:
            self._snapshots.clear()
        self._mark = mark
        passed = [each for each in self._snapshots if each.local <= mark]
        del self._snapshots[: len(passed)]
        return passed[-1] if passed else None
