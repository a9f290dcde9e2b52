"""The origins of a partition's entries: part of its state.

The cluster that stored an entry first is its *origin*. The partition keeps, for each origin, the
position of the newest entry that arrived, and runs. A run is a number of entries from a source
position on, which are stored from a local offset on. Both ascend, so a bisection finds either from
the other. Entries without an origin are this cluster's own.

An entry at or before its origin's newest position is a duplicate, even if it isn't stored any more.
Since replicators send in order, the newest position suffices.

Runs are kept in blocks that don't change once they are full, so a checkpoint writes only the last
one. Trimming the log removes whole blocks, except the newest `KEPT_BLOCKS`, so the origins of
trimmed entries stay known for a while.
"""

from __future__ import annotations

import json
import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

from velaray.actors.machine import require
from velaray.actors.sets.offset_sets import Range, gaps
from velaray.events.ids import Position
from velaray.events.segments import Segment, StoredSegment

BLOCK = 4096
"""Runs per block: 128 KiB."""
KEPT_BLOCKS = 16
"""Blocks of trimmed entries that are kept for each origin."""

NOWHERE = Position(-1, -1)
"""Before every position."""

_PREFIX = "origin/"


LAST_ENTRY = (1 << 32) - 3
"""A bound of entry ids: no ledger has an entry beyond it."""


def place_before(position: Position) -> Position:
    """The place directly before a position."""
    ledger_id, entry_id = position
    return Position(ledger_id, entry_id - 1) if entry_id else Position(ledger_id - 1, LAST_ENTRY)


class Run(NamedTuple):
    """``size`` entries, from a position of their origin on and from a local offset on."""

    ledger_id: int
    entry_id: int
    offset: int
    size: int

    @property
    def end(self) -> int:
        """The local offset after the last one."""
        return self.offset + self.size

    def within(self, first: int, end: int) -> Run:
        """The part of the run at the local offsets ``first`` to ``end`` - 1."""
        skipped = max(first - self.offset, 0)
        size = min(self.end, end) - self.offset - skipped
        return Run(self.ledger_id, self.entry_id + skipped, self.offset + skipped, size)


class _Block:
    """Runs, by columns; ``stored`` is their place in a checkpoint, unless they changed since."""

    __slots__ = ("entries", "ledgers", "offsets", "sizes", "stored")

    def __init__(self) -> None:
        self.ledgers = array("q")
        self.entries = array("q")
        self.offsets = array("q")
        self.sizes = array("q")
        self.stored: StoredSegment | None = None

    def __len__(self) -> int:
        return len(self.offsets)

    def run(self, index: int) -> Run:
        return Run(self.ledgers[index], self.entries[index], self.offsets[index], self.sizes[index])

    @property
    def first_offset(self) -> int:
        return self.offsets[0]

    @property
    def first_position(self) -> tuple[int, int]:
        return self.ledgers[0], self.entries[0]

    @property
    def end(self) -> int:
        """The local offset after its last entry."""
        return self.offsets[-1] + self.sizes[-1]

    def last_at_or_before(self, position: Position) -> int:
        """The number of the last run that begins at or before a position; -1 if there is none."""
        ledger_id, entry_id = position
        low = bisect_left(self.ledgers, ledger_id)
        high = bisect_right(self.ledgers, ledger_id, low)
        return bisect_right(self.entries, entry_id, low, high) - 1

    def encode(self) -> bytes:
        columns = (self.ledgers, self.entries, self.offsets, self.sizes)
        return b"".join(struct.pack(f"<{len(self)}q", *column) for column in columns)

    @classmethod
    def decode(cls, raw: bytes) -> _Block:
        block, size = cls(), len(raw) // 4
        columns = (block.ledgers, block.entries, block.offsets, block.sizes)
        for place, column in enumerate(columns):
            column.extend(struct.unpack_from(f"<{size // 8}q", raw, place * size))
        return block


_BY_OFFSET = attrgetter("first_offset")
_BY_POSITION = attrgetter("first_position")


class Origin:
    """The entries that arrived from one cluster. Positions are that cluster's."""

    __slots__ = ("_blocks", "_dropped", "last", "last_offset")

    def __init__(self) -> None:
        #: The newest entry's position and local offset; `NOWHERE` and -1 before the first one.
        self.last = NOWHERE
        self.last_offset = -1
        self._blocks: list[_Block] = []
        self._dropped = 0

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Origin):
            return NotImplemented
        mine, theirs = (self.last, self.last_offset), (other.last, other.last_offset)
        return mine == theirs and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Origin({[tuple(run) for run in self]}, last={tuple(self.last)})"

    def __iter__(self) -> Iterator[Run]:
        """All runs, ascending."""
        return (block.run(index) for block in self._blocks for index in range(len(block)))

    @property
    def first_offset(self) -> int:
        """The local offset of the oldest known entry; beyond all offsets if there is none."""
        return self._blocks[0].first_offset if self._blocks else 1 << 62

    def has(self, position: Position) -> bool:
        """Whether the entry has arrived before: it isn't behind the newest one."""
        return position <= self.last

    def append(self, position: Position, offset: int) -> None:
        """Record the entry at ``position``, behind all before it, as stored at ``offset``."""
        ledger_id, entry_id = self.last
        last = self._blocks[-1] if self._blocks else None
        consecutive = position == (ledger_id, entry_id + 1) and offset == self.last_offset + 1
        if last is not None and consecutive:
            last.sizes[-1] += 1
        else:
            if last is None or len(last) >= BLOCK:
                last = _Block()
                self._blocks.append(last)
            last.ledgers.append(position.ledger_id)
            last.entries.append(position.entry_id)
            last.offsets.append(offset)
            last.sizes.append(1)
        last.stored = None
        self.last, self.last_offset = position, offset

    def trim(self, first_offset: int) -> None:
        """Drop blocks of trimmed entries: the log begins at ``first_offset`` now."""
        needless = bisect_left(self._blocks, True, key=lambda block: block.end > first_offset)
        count = needless - KEPT_BLOCKS
        if count > 0:
            del self._blocks[:count]
            self._dropped += count

    # -- from positions to offsets -------------------------------------------------

    def _place_of(self, position: Position) -> tuple[int, int]:
        """The last block and run that begin at or before a position; (-1, -1) if there are none."""
        at = bisect_right(self._blocks, position, key=_BY_POSITION) - 1
        return at, self._blocks[at].last_at_or_before(position) if at >= 0 else -1

    def offset_of(self, position: Position) -> int | None:
        """The local offset of the entry; None if it didn't arrive, or isn't known any more."""
        at, index = self._place_of(position)
        if at < 0:
            return None
        run = self._blocks[at].run(index)
        skipped = position.entry_id - run.entry_id
        known = run.ledger_id == position.ledger_id and skipped < run.size
        return run.offset + skipped if known else None

    def at_or_after(self, position: Position) -> int | None:
        """The local offset of the first entry that isn't before ``position``; None if there is
        none."""
        found = self.offset_of(position)
        if found is not None:
            return found
        at, index = self._place_of(position)
        if at < 0:
            return self._blocks[0].first_offset if self._blocks else None
        if index + 1 < len(self._blocks[at]):
            return self._blocks[at].offsets[index + 1]
        return self._blocks[at + 1].first_offset if at + 1 < len(self._blocks) else None

    def before(self, position: Position) -> int:
        """The local offset after the last entry that isn't behind ``position``; 0 if there
        is none."""
        at, index = self._place_of(position)
        if at < 0:
            return 0
        run = self._blocks[at].run(index)
        if run.ledger_id != position.ledger_id:
            return run.end
        return run.offset + min(position.entry_id - run.entry_id + 1, run.size)

    def offsets(self, first: Position, last: Position) -> list[Range]:
        """The local ranges of the arrived entries from ``first`` to ``last``: ascending, and never
        touching."""
        start = self.at_or_after(first)
        if start is None:
            return []
        found: list[Range] = []
        for run in self.runs(start, self.before(last)):
            if found and found[-1][1] == run.offset:
                found[-1] = (found[-1][0], run.end)
            else:
                found.append((run.offset, run.end))
        return found

    # -- from offsets to positions -------------------------------------------------

    def runs(self, first: int, end: int) -> Iterator[Run]:
        """The parts of the local offsets ``first`` to ``end`` - 1 that came from this cluster,
        ascending."""
        if first >= end:
            return
        at = max(bisect_right(self._blocks, first, key=_BY_OFFSET) - 1, 0)
        for block in self._blocks[at:]:
            index = max(bisect_right(block.offsets, first) - 1, 0)
            for number in range(index, len(block)):
                if block.offsets[number] >= end:
                    return
                run = block.run(number)
                if run.end > first:
                    yield run.within(first, end)

    def next_offset(self, first: int, end: int) -> int:
        """The first local offset from ``first`` on that came from this cluster; ``end`` if there is
        none."""
        return next((run.offset for run in self.runs(first, end)), end)

    def last_before(self, end: int) -> Position:
        """The newest position whose entry is at a local offset below ``end``."""
        if self.last_offset < end:
            return self.last
        at = bisect_left(self._blocks, end, key=_BY_OFFSET) - 1
        if at < 0:
            return NOWHERE
        block = self._blocks[at]
        run = block.run(bisect_left(block.offsets, end) - 1)
        return Position(run.ledger_id, run.entry_id + min(run.end, end) - run.offset - 1)

    def begin_of(self, offset: int) -> int | None:
        """The beginning of the consecutive entries up to this local offset; None if the entry there
        has another origin."""
        at = bisect_right(self._blocks, offset, key=_BY_OFFSET) - 1
        if at < 0:
            return None
        block = self._blocks[at]
        run = block.run(bisect_right(block.offsets, offset) - 1)
        return run.offset if offset < run.end else None

    # -- checkpoints ---------------------------------------------------------------

    def check(self, end_offset: int) -> None:
        """Raise `InvariantViolation` if an invariant is broken."""
        position, offset = (-1, -1), -1
        for run in self:
            ascends = (run.ledger_id, run.entry_id) > position and run.offset > offset
            require(ascends and run.size > 0, "runs of an origin ascend", repr(run))
            position = (run.ledger_id, run.entry_id + run.size - 1)
            offset = run.end - 1
        require(offset < end_offset, "what came from an origin is stored", f"{offset}")
        if self._blocks:
            newest = (tuple(self.last), self.last_offset) == (position, offset)
            require(newest, "the newest entry of an origin ends its last run", repr(self.last))

    def snapshot(self) -> tuple[list[int], dict[int, Segment]]:
        """The content of a checkpoint: a few numbers, and the blocks by number."""
        blocks: dict[int, Segment] = {
            number: block.stored or block.encode()
            for number, block in enumerate(self._blocks, self._dropped)
        }
        return [*self.last, self.last_offset, self._dropped], blocks

    @classmethod
    def restore(cls, numbers: list[int], blocks: Mapping[int, bytes]) -> Origin:
        """The inverse of `snapshot`."""
        origin = cls()
        ledger_id, entry_id, origin.last_offset, origin._dropped = numbers
        origin.last = Position(ledger_id, entry_id)
        origin._blocks = [_Block.decode(blocks[number]) for number in sorted(blocks)]
        return origin

    def on_checkpoint(self, stored: Mapping[int, StoredSegment]) -> None:
        """Note the places of the unchanged blocks in a checkpoint."""
        for number, place in stored.items():
            self._blocks[number - self._dropped].stored = place


@dataclass(slots=True)
class Origins:
    """The origins of a partition, by cluster name."""

    by_cluster: dict[str, Origin] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.by_cluster)

    def append(self, cluster: str, position: Position, offset: int) -> None:
        """Record an entry of ``cluster``, stored at ``offset``."""
        origin = self.by_cluster.get(cluster)
        if origin is None:
            origin = self.by_cluster[cluster] = Origin()
        origin.append(position, offset)

    def trim(self, first_offset: int) -> None:
        """Drop blocks of trimmed entries: the log begins at ``first_offset`` now."""
        for origin in self.by_cluster.values():
            origin.trim(first_offset)

    def last(self, cluster: str) -> Position:
        """The newest position that arrived from a cluster; `NOWHERE` if there is none."""
        origin = self.by_cluster.get(cluster)
        return NOWHERE if origin is None else origin.last

    def came(self, first: int, end: int) -> list[tuple[str, Run]]:
        """The parts of the local offsets ``first`` to ``end`` - 1 with their origins, ascending."""
        found = [
            (cluster, run)
            for cluster, origin in self.by_cluster.items()
            for run in origin.runs(first, end)
        ]
        return sorted(found, key=lambda each: each[1].offset)

    def own(self, first: int, end: int) -> list[Range]:
        """The parts of the local offsets ``first`` to ``end`` - 1 without an origin, ascending."""
        return gaps(first, end, [(run.offset, run.end) for _, run in self.came(first, end)])


def check(state: Origins, end_offset: int) -> None:
    """Raise `InvariantViolation` if an invariant is broken; the log ends at ``end_offset``."""
    for origin in state.by_cluster.values():
        origin.check(end_offset)
    stop = 0
    for cluster, run in state.came(0, end_offset):
        require(run.offset >= stop, "an entry came from one cluster", f"{cluster}: {run}")
        stop = run.end


def snapshot(state: Origins) -> dict[str, Segment]:
    """Segments, if there is anything: ``origins``, and ``origin/<number>/<cluster>``."""
    if not state:
        return {}
    segments: dict[str, Segment] = {}
    about = {}
    for cluster in sorted(state.by_cluster):
        about[cluster], blocks = state.by_cluster[cluster].snapshot()
        segments |= {f"{_PREFIX}{number}/{cluster}": block for number, block in blocks.items()}
    segments["origins"] = json.dumps(about, separators=(",", ":"), sort_keys=True).encode()
    return segments


def restore(segments: Mapping[str, bytes]) -> Origins:
    """The inverse of `snapshot`; other segments are ignored."""
    about: dict[str, list[int]] = json.loads(segments.get("origins", b"{}"))
    blocks: dict[str, dict[int, bytes]] = {cluster: {} for cluster in about}
    for cluster, number, name in _blocks_among(segments):
        blocks[cluster][number] = segments[name]
    return Origins({name: Origin.restore(about[name], blocks[name]) for name in about})


def on_checkpoint(state: Origins, stored: Mapping[str, StoredSegment]) -> None:
    """Note where a durable checkpoint has the blocks: unchanged ones aren't written again."""
    for cluster, number, name in _blocks_among(stored):
        state.by_cluster[cluster].on_checkpoint({number: stored[name]})


def _blocks_among(names: Iterable[str]) -> Iterator[tuple[str, int, str]]:
    """The cluster, number and name of each segment that is a block."""
    for name in names:
        if name.startswith(_PREFIX):
            number, _, cluster = name.removeprefix(_PREFIX).partition("/")
            yield cluster, int(number), name
