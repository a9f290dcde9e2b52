"""The progress of other clusters' subscriptions of the same name: part of a subscription's state.

Another cluster reports its *progress*: the acknowledged messages, by their positions in the cluster
that stored them first (their origin), and the counts of failed deliveries. The partition translates
the positions. Progress of entries that are here is *taken in*: acknowledged as by any consumer, and
counted at least as often. Progress of entries that aren't here yet *waits*, by origin and position,
until the partition reports their arrival; it is taken in before they are delivered.

Progress only grows: late, repeated or reordered reports change nothing. Progress is taken in once.
After the cursor moves back here, a repeated report of another cluster acknowledges none of the
entries that are delivered again; only new progress does. Other clusters receive and report back
what is acknowledged here, so a move counts everything acknowledged here as taken in, too. (No more
of a partly acknowledged batch is taken in: it is delivered again as a whole.) Waiting progress
stays: a move concerns entries that are here.

Nothing is kept of trimmed entries. Waiting progress is always behind the newest entry that arrived
from its origin.

Command: `TakeProgress`. Events: ProgressTaken, and EntriesAcked for what is new to the cursor.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from velaray.actors.machine import require
from velaray.actors.sets.acknowledged_ranges import AcknowledgedRanges
from velaray.actors.sets.offset_sets import Range
from velaray.actors.sets.ranges import RangeSet, normalized
from velaray.actors.subscription.cursor import (
    Cursor,
    mask_to_words,
    new_partials,
    pack_ranges,
    unpack_ranges,
    words_to_mask,
)
from velaray.actors.subscription.redelivery import CountRuns
from velaray.events.events_pb2 import (
    EntryPosition,
    LedgerProgress,
    PartialAck,
    ProgressTaken,
    ProgressWaiting,
)
from velaray.events.ids import Position
from velaray.events.segments import Segment, StoredSegment

SegmentT = TypeVar("SegmentT")

NOWHERE = Position(-1, -1)
LAST_ENTRY = (1 << 32) - 3
"""The largest entry id that can wait: no ledger has so many entries."""

_TAKEN = "taken/"
_WAITING = "waiting/"


class EntryRange(NamedTuple):
    """Entries ``first`` to ``end`` - 1 of a ledger."""

    ledger_id: int
    first: int
    end: int


class EntryMask(NamedTuple):
    """The messages of a batch that aren't acknowledged: bit i set = message i isn't."""

    ledger_id: int
    entry_id: int
    ack_set: int


class EntryCount(NamedTuple):
    """``times`` failed deliveries of entries ``first`` to ``end`` - 1 of a ledger."""

    ledger_id: int
    first: int
    end: int
    times: int


@dataclass(frozen=True, slots=True)
class Ahead:
    """Progress by positions of one origin: "all up to", and besides; see `TakeProgress`."""

    up_to: Position = NOWHERE
    ranges: Sequence[EntryRange] = ()
    partial: Sequence[EntryMask] = ()
    counts: Sequence[EntryCount] = ()

    def __bool__(self) -> bool:
        return self.up_to != NOWHERE or bool(self.ranges or self.partial or self.counts)


@dataclass(slots=True)
class TakeProgress:
    """Take in the progress of ``cluster``'s subscription.

    ``ranges``, ``partial`` and ``counts`` (first, last + 1, times) concern entries that are here,
    by offset: all of them are below ``end_offset`` and durable. ``ahead`` concerns entries that
    aren't here yet, by origin. ``came`` has the newest positions that arrived from origins, as far
    as the caller knows them: nothing up to there waits any longer. Everything before
    ``first_offset`` is trimmed.

    Reply: `Taken`. Refused INVALID, as a whole, if anything is at or beyond ``end_offset``, or
    can't be an entry; NOT_FOUND before the subscription is created.
    """

    cluster: str
    end_offset: int
    first_offset: int = 0
    ranges: Sequence[Range] = ()
    partial: Sequence[tuple[int, int]] = ()
    counts: Sequence[tuple[int, int, int]] = ()
    ahead: Mapping[str, Ahead] = field(default_factory=dict)
    came: Mapping[str, Position] = field(default_factory=dict)


@dataclass(slots=True)
class Taken:
    """The progress that is new to the cursor, as in `velaray.actors.subscription.machine.Acked`,
    and the new counts."""

    ranges: tuple[Range, ...] = ()
    partial: tuple[tuple[int, int], ...] = ()
    counts: tuple[tuple[int, int, int], ...] = ()


class Waiting:
    """The waiting progress of one origin; none of it is at or before ``passed``."""

    __slots__ = ("counts", "ledgers", "passed", "up_to")

    def __init__(self, passed: Position = NOWHERE, up_to: Position = NOWHERE) -> None:
        self.passed = passed
        self.up_to = up_to
        self.ledgers: dict[int, AcknowledgedRanges] = {}
        self.counts: dict[int, CountRuns] = {}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Waiting):
            return NotImplemented
        mine, theirs = (self.passed, self.up_to), (other.passed, other.up_to)
        return mine == theirs and self.ledgers == other.ledgers

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        held = {ledger_id: list(acked_ranges) for ledger_id, acked_ranges in self.ledgers.items()}
        return f"Waiting({tuple(self.passed)}, up_to={tuple(self.up_to)}, {held})"

    def __bool__(self) -> bool:
        return self.up_to > self.passed or bool(self.ledgers) or bool(self.counts)

    def concerns(self, came: Position) -> bool:
        """Whether any of it has arrived if ``came`` is the newest position that has."""
        if self.up_to > self.passed and came > self.passed:
            return True
        return any(
            ledger_id < came.ledger_id
            or (ledger_id == came.ledger_id and self.first_of(ledger_id) <= came.entry_id)
            for ledger_id in (*self.ledgers, *self.counts)
        )

    def first_of(self, ledger_id: int) -> int:
        """The first entry of the ledger with waiting progress."""
        firsts = []
        if ledger_id in self.ledgers:
            acked_ranges = self.ledgers[ledger_id]
            firsts += [
                acked_ranges.next_acked(0, LAST_ENTRY),
                *(at for at, _ in acked_ranges.all_masks()),
            ][:2]
        if ledger_id in self.counts:
            firsts += [run.first for run in self.counts[ledger_id]][:1]
        return min(firsts)

    def border(self, came: Position, most: int) -> Position:
        """The position up to which arrived progress is taken in at once, if ``came`` is the newest
        that arrived; bounded by a number of ranges and batches."""
        for ledger_id in sorted(self.ledgers):
            if ledger_id > came.ledger_id:
                break
            acked_ranges = self.ledgers[ledger_id]
            most -= acked_ranges.partial_count()
            for _, end in acked_ranges:
                most -= 1
                if most <= 0:
                    return min(came, Position(ledger_id, end - 1))
        return came

    def due(self, came: Position) -> Ahead:
        """The waiting progress of arrived entries, if ``came`` is the newest position that
        arrived."""
        ranges: list[EntryRange] = []
        partial: list[EntryMask] = []
        counts: list[EntryCount] = []
        for ledger_id in sorted({*self.ledgers, *self.counts}):
            if ledger_id > came.ledger_id:
                break
            end = came.entry_id + 1 if ledger_id == came.ledger_id else LAST_ENTRY + 1
            acked_ranges = self.ledgers.get(ledger_id, AcknowledgedRanges())
            ranges += (EntryRange(ledger_id, *part) for part in acked_ranges.within(0, end))
            partial += (EntryMask(ledger_id, *mask) for mask in acked_ranges.masks(0, end))
            for first, stop, times in self.counts.get(ledger_id, ()):
                if first < end:
                    counts.append(EntryCount(ledger_id, first, min(stop, end), times))
        return Ahead(min(self.up_to, came), tuple(ranges), tuple(partial), tuple(counts))

    def news(self, told: Ahead, came: Position) -> Ahead:
        """The part of ``told`` that neither waits already nor has arrived."""
        passed = max(self.passed, came)
        up_to = told.up_to if told.up_to > max(self.up_to, passed) else NOWHERE
        border = max(passed, self.up_to, up_to)
        ranges, partial, counts = [], [], []
        for ledger_id, first, end in told.ranges:
            first = beyond(border, ledger_id, first)
            acked_ranges = self.ledgers.get(ledger_id, AcknowledgedRanges())
            ranges += [EntryRange(ledger_id, *part) for part in acked_ranges.missing(first, end)]
        for ledger_id, entry_id, ack_set in told.partial:
            acked_ranges = self.ledgers.get(ledger_id, AcknowledgedRanges())
            if (ledger_id, entry_id) <= border or entry_id in acked_ranges:
                continue
            known = acked_ranges.mask(entry_id)
            if known is None or ack_set & known != known:
                partial.append(EntryMask(ledger_id, entry_id, ack_set))
        for ledger_id, first, end, times in told.counts:
            first = beyond(border, ledger_id, first)
            runs = self.counts.get(ledger_id, CountRuns())
            below = runs.below(first, end, times)
            counts += [EntryCount(ledger_id, start, stop, times) for start, stop in below]
        return Ahead(up_to, tuple(ranges), tuple(partial), tuple(counts))

    def add(self, news: Ahead) -> None:
        """Add waiting progress."""
        if news.up_to > self.up_to:
            self.up_to = news.up_to
        for ledger_id, first, end in news.ranges:
            self._acked_ranges(ledger_id).add(first, end)
        for ledger_id, entry_id, ack_set in news.partial:
            acked_ranges = self._acked_ranges(ledger_id)
            if entry_id in acked_ranges:
                continue
            known = acked_ranges.mask(entry_id)
            mask = ack_set if known is None else ack_set & known
            if mask:
                acked_ranges.put_mask(entry_id, mask)
            else:
                acked_ranges.add(entry_id, entry_id + 1)
        for ledger_id, first, end, times in news.counts:
            self.counts.setdefault(ledger_id, CountRuns()).raise_to(first, end, times)
        self._drop(max(self.passed, self.up_to))

    def needs(self, told: Ahead, came: Position) -> list[StoredSegment]:
        """The cold segments that `concerns`, `news`, `pass_to` and `add` may read."""
        if not any(acked_ranges.cold_count() for acked_ranges in self.ledgers.values()):
            return []
        found: list[StoredSegment] = []
        named = [*told.ranges, *(EntryRange(at, on, on + 1) for at, on, _ in told.partial)]
        for ledger_id, first, end in named:
            if ledger_id in self.ledgers:
                found += self.ledgers[ledger_id].cold_within(first, end)
        for ledger_id, entry_id in (came, told.up_to, self.passed, self.up_to):
            if ledger_id in self.ledgers:
                found += self.ledgers[ledger_id].cold_front()
                behind = entry_id + 1
                found += self.ledgers[ledger_id].cold_within(behind, behind + 1, full=True)
        return found

    def _acked_ranges(self, ledger_id: int) -> AcknowledgedRanges:
        return self.ledgers.setdefault(ledger_id, AcknowledgedRanges())

    def pass_to(self, came: Position) -> None:
        """Drop progress that has arrived: ``came`` is the newest position."""
        if came > self.passed:
            self.passed = came
        if self.up_to <= self.passed:
            self.up_to = NOWHERE
        self._drop(self.passed)

    def _drop(self, border: Position) -> None:
        """Drop individual acknowledgements and counts up to the border."""
        for ledger_id in [known for known in self.ledgers if known <= border.ledger_id]:
            if ledger_id == border.ledger_id:
                self.ledgers[ledger_id].drop_before(border.entry_id + 1)
            if ledger_id < border.ledger_id or not self.ledgers[ledger_id]:
                del self.ledgers[ledger_id]
        for ledger_id in [known for known in self.counts if known <= border.ledger_id]:
            runs = self.counts[ledger_id]
            left = runs.beyond(border.entry_id + 1) if ledger_id == border.ledger_id else []
            if left:
                self.counts[ledger_id] = CountRuns((at, end, times) for at, end, times in left)
            else:
                del self.counts[ledger_id]


def beyond(border: Position, ledger_id: int, first: int) -> int:
    """The first entry of the ledger from ``first`` on that is behind the border."""
    if ledger_id == border.ledger_id:
        return max(first, border.entry_id + 1)
    return first if ledger_id > border.ledger_id else LAST_ENTRY + 1


@dataclass(slots=True)
class TakenProgress:
    """The progress that was ``taken`` in, by offset, how often it was ``counted``, and the
    ``waiting`` progress by origin."""

    taken: Cursor = field(default_factory=Cursor)
    # Not compared: counts in taken progress don't matter.
    counted: CountRuns = field(default_factory=CountRuns, compare=False)
    waiting: dict[str, Waiting] = field(default_factory=dict)

    def __bool__(self) -> bool:
        taken = self.taken
        return bool(taken.acked_before or taken.beyond or self.counted or self.waiting)


def invalid(command: TakeProgress) -> str:
    """The reason why the command is invalid; empty if it is valid."""
    end_offset = command.end_offset
    for first, end in command.ranges:
        if not 0 <= first < end <= end_offset:
            return f"can't take in {first} to {end - 1}: the log ends at {end_offset}"
    for offset, mask in command.partial:
        if not 0 <= offset < end_offset or mask < 0:
            return f"can't take in part of {offset}: the log ends at {end_offset}"
    for first, end, times in command.counts:
        if not 0 <= first < end <= end_offset or times < 1:
            return f"can't count {first} to {end - 1}: the log ends at {end_offset}"
    for cluster, ahead in command.ahead.items():
        for ledger_id, first, end, *_ in (*ahead.ranges, *ahead.counts):
            if not (0 <= first < end <= LAST_ENTRY + 1 and ledger_id >= 0):
                return f"no such entries of cluster {cluster!r}: {ledger_id}:{first} to {end - 1}"
        for mask_of in ahead.partial:
            if not (0 <= mask_of.entry_id <= LAST_ENTRY and min(mask_of) >= 0):
                return f"no such batch of cluster {cluster!r}: {tuple(mask_of)}"
    return ""


@dataclass(slots=True)
class News:
    """The new progress in a command: entries to acknowledge, counts to raise, and the event to
    journal, if any."""

    ranges: list[Range]
    partial: list[tuple[int, int]]
    counts: list[tuple[int, int, int]]
    event: ProgressTaken | None


def news(remote: TakenProgress, command: TakeProgress) -> News:
    """The new progress in a valid `TakeProgress`."""
    taken, oldest = remote.taken, command.first_offset
    masks = new_partials(taken, [each for each in command.partial if each[0] >= oldest])
    whole = [(max(first, oldest), end) for first, end in command.ranges if end > oldest]
    whole += [(offset, offset + 1) for offset, mask in masks if mask == 0]
    ranges = [part for each in normalized(whole) for part in taken.unacked_ranges(*each)]
    acked = RangeSet(ranges)
    partial = [(offset, mask) for offset, mask in masks if mask and offset not in acked]
    counts = [
        (start, stop, times)
        for first, end, times in command.counts
        for start, stop in remote.counted.below(max(first, oldest), end, times)
    ]
    waiting = list(_news_waiting(remote, command))
    event = None
    if ranges or partial or counts or waiting:
        event = ProgressTaken(
            ranges=pack_ranges(ranges),
            partial=[_part(offset, mask) for offset, mask in partial],
            delivered=_pack_counts(counts),
            first_offset=oldest,
            waiting=waiting,
        )
    return News(ranges, partial, counts, event)


def _news_waiting(remote: TakenProgress, command: TakeProgress) -> Iterator[ProgressWaiting]:
    for cluster in sorted({*command.ahead, *command.came}):
        waiting = remote.waiting.get(cluster, Waiting())
        came = command.came.get(cluster, NOWHERE)
        new = waiting.news(command.ahead.get(cluster, Ahead()), came)
        concerned = waiting.concerns(came)
        if not concerned and not new:
            continue
        event = ProgressWaiting(cluster=cluster)
        if came > waiting.passed:
            event.came.CopyFrom(_position(came))
        if new.up_to != NOWHERE:
            event.up_to.CopyFrom(_position(new.up_to))
        for ledger_id in sorted({each[0] for each in (*new.ranges, *new.partial, *new.counts)}):
            event.ledgers.append(_ledger(ledger_id, new))
        yield event


def _ledger(ledger_id: int, new: Ahead) -> LedgerProgress:
    ranges = normalized(each[1:] for each in new.ranges if each.ledger_id == ledger_id)
    masks: dict[int, int] = {}
    for known, entry_id, ack_set in new.partial:
        if known == ledger_id:
            masks[entry_id] = masks.get(entry_id, ack_set) & ack_set
    counts = CountRuns()
    for known, first, end, times in new.counts:
        if known == ledger_id:
            counts.raise_to(first, end, times)
    return LedgerProgress(
        ledger_id=ledger_id,
        ranges=pack_ranges(ranges),
        partial=[_part(*mask) for mask in sorted(masks.items())],
        delivered=_pack_counts(counts),
    )


def _part(offset: int, mask: int) -> PartialAck:
    return PartialAck(offset=offset, remaining=mask_to_words(mask))


def _position(position: Position) -> EntryPosition:
    return EntryPosition(ledger_id=position.ledger_id, entry_id=position.entry_id)


def _pack_counts(runs: Iterable[tuple[int, int, int]]) -> list[int]:
    """Runs as triples: distance from the end of the previous run (may be negative), length,
    times."""
    packed: list[int] = []
    previous = 0
    for first, end, times in runs:
        packed += (first - previous, end - first, times)
        previous = end
    return packed


def _unpack_counts(packed: Sequence[int]) -> list[tuple[int, int, int]]:
    """The inverse of `_pack_counts`."""
    runs, at = [], 0
    numbers = iter(packed)
    for distance, length, times in zip(numbers, numbers, numbers, strict=True):
        first = at + distance
        at = first + length
        runs.append((first, at, times))
    return runs


# -- changes


def evolve(remote: TakenProgress, deliveries: CountRuns, event: ProgressTaken) -> None:
    """Record the progress that was taken in, and raise the counts."""
    taken = remote.taken
    taken.ack_before(event.first_offset)
    for first, end in unpack_ranges(event.ranges):
        taken.ack_range(first, end)
    for part in event.partial:
        taken.ack_partial(part.offset, words_to_mask(part.remaining))
    for run in _unpack_counts(event.delivered):
        remote.counted.raise_to(*run)
        deliveries.raise_to(*run)
    remote.counted.forget(0, taken.acked_before)
    for each in event.waiting:
        waiting = remote.waiting.setdefault(each.cluster, Waiting())
        if each.HasField("came"):
            waiting.pass_to(Position(each.came.ledger_id, each.came.entry_id))
        waiting.add(_read(each))
        if not waiting:
            del remote.waiting[each.cluster]


def _read(event: ProgressWaiting) -> Ahead:
    found: tuple[list[EntryRange], list[EntryMask], list[EntryCount]] = ([], [], [])
    for each in event.ledgers:
        known = each.ledger_id
        found[0].extend(EntryRange(known, *part) for part in unpack_ranges(each.ranges))
        masks = ((part.offset, words_to_mask(part.remaining)) for part in each.partial)
        found[1].extend(EntryMask(known, *mask) for mask in masks)
        found[2].extend(EntryCount(known, *run) for run in _unpack_counts(each.delivered))
    up_to = NOWHERE
    if event.HasField("up_to"):
        up_to = Position(event.up_to.ledger_id, event.up_to.entry_id)
    return Ahead(up_to, *found)


def moved(remote: TakenProgress, cursor: Cursor, deliveries: CountRuns, *, shared: bool) -> None:
    """Prepare for a move of the cursor; ``shared``: other clusters may have reports of it."""
    taken = remote.taken
    if shared:
        taken.ack_before(cursor.acked_before)
        for first, end in cursor.acked_ranges():
            taken.ack_range(first, end)
        for offset, _ in cursor.all_partials():
            taken.ack_range(offset, offset + 1)
        for run in deliveries:
            remote.counted.raise_to(*run)
        remote.counted.forget(0, taken.acked_before)
    for offset, _ in taken.all_partials():
        taken.ack_range(offset, offset + 1)


def check(remote: TakenProgress) -> None:
    """Raise `InvariantViolation` if an invariant is broken."""
    remote.taken.check()
    remote.counted.check()
    for cluster, waiting in remote.waiting.items():
        require(bool(waiting), "a waiting origin has progress", cluster)
        border = max(waiting.passed, waiting.up_to)
        for ledger_id, acked_ranges in waiting.ledgers.items():
            detail = f"{cluster}: {ledger_id}, {border}"
            require(bool(acked_ranges), "no ledger is empty of what waits", detail)
            acked_ranges.check(-1)
            require(
                (ledger_id, waiting.first_of(ledger_id)) > border,
                "what waits is behind what came",
                detail,
            )
        for counts in waiting.counts.values():
            counts.check()


# -- checkpoints


def snapshot(remote: TakenProgress) -> dict[str, Segment]:
    """Segments, if there is anything: ``taken`` and ``taken/<n>``, ``waiting`` and
    ``waiting/<n>/<ledger>/<cluster>``, numbered as those of
    `velaray.actors.sets.acknowledged_ranges`."""
    if not remote:
        return {}
    taken = remote.taken
    counts = remote.counted.beyond(taken.acked_before) if remote.counted else []
    about = [taken.acked_before, taken.beyond.segment_size, counts]
    segments: dict[str, Segment] = {"taken": _to_json(about)}
    for number, segment in taken.beyond.snapshot().items():
        segments[f"{_TAKEN}{number}"] = segment
    if not remote.waiting:
        return segments
    rows = {}
    for cluster, waiting in remote.waiting.items():
        sizes = {
            known: acked_ranges.segment_size for known, acked_ranges in waiting.ledgers.items()
        }
        runs = {known: [list(run) for run in found] for known, found in waiting.counts.items()}
        rows[cluster] = [waiting.passed, waiting.up_to, sorted(sizes.items()), sorted(runs.items())]
        for ledger_id, acked_ranges in waiting.ledgers.items():
            for number, segment in acked_ranges.snapshot().items():
                segments[f"{_WAITING}{number}/{ledger_id}/{cluster}"] = segment
    segments["waiting"] = _to_json(rows)
    return segments


def restore(segments: Mapping[str, bytes]) -> TakenProgress:
    """The inverse of `snapshot`; other segments are ignored."""
    remote = TakenProgress()
    if "taken" not in segments:
        return remote
    remote.taken.acked_before, size, counts = json.loads(segments["taken"])
    remote.taken.beyond.restore(size, _numbered(segments))
    remote.counted = CountRuns((first, end, times) for first, end, times in counts)
    blocks = _blocks(segments)
    for cluster, row in json.loads(segments.get("waiting", b"{}")).items():
        passed, up_to, sizes, runs = row
        waiting = remote.waiting[cluster] = Waiting(Position(*passed), Position(*up_to))
        for ledger_id, size in sizes:
            acked_ranges = waiting.ledgers[ledger_id] = AcknowledgedRanges()
            acked_ranges.restore(size, blocks[cluster, ledger_id])
        for ledger_id, found in runs:
            waiting.counts[ledger_id] = CountRuns((at, end, times) for at, end, times in found)
    return remote


def on_checkpoint(remote: TakenProgress, stored: Mapping[str, StoredSegment]) -> None:
    """Note where a durable checkpoint has the segments."""
    remote.taken.beyond.on_checkpoint(_numbered(stored))
    for (cluster, ledger_id), found in _blocks(stored).items():
        remote.waiting[cluster].ledgers[ledger_id].on_checkpoint(found)


def needs_checkpoint(remote: TakenProgress) -> bool:
    """Whether a checkpoint is due, so that memory can be freed."""
    waiting = (each.ledgers.values() for each in remote.waiting.values())
    return remote.taken.beyond.needs_checkpoint() or any(
        acked_ranges.needs_checkpoint() for ledgers in waiting for acked_ranges in ledgers
    )


# -- memory


def needs(remote: TakenProgress, command: object) -> list[StoredSegment]:
    """The cold segments that ``command`` may read, if it is a `TakeProgress`."""
    if not isinstance(command, TakeProgress):
        return []
    taken = remote.taken
    found: list[StoredSegment] = []
    if taken.beyond.cold_count():
        parts = [*command.ranges, *((at, at + 1) for at, _ in command.partial)]
        found += taken.cold_for_acks(parts)
        if command.first_offset > taken.acked_before:  # so the mark moves
            marks = [command.first_offset, *(end - 1 for _, end in parts)]
            found += [place for mark in marks for place in taken.cold_for_mark(mark)]
    for cluster in {*command.ahead, *command.came}:
        if waiting := remote.waiting.get(cluster):
            ahead, came = command.ahead.get(cluster, Ahead()), command.came.get(cluster, NOWHERE)
            found += waiting.needs(ahead, came)
    return found


def provide(remote: TakenProgress, name: str, raw: bytes) -> None:
    """Take the bytes of a stored segment into memory; others are ignored."""
    for number in _numbered({name: raw}):
        remote.taken.beyond.provide(number, raw)
    for (cluster, ledger_id), numbers in _blocks({name: raw}).items():
        waiting = remote.waiting.get(cluster)
        acked_ranges = waiting.ledgers.get(ledger_id) if waiting is not None else None
        for number in numbers if acked_ranges is not None else ():
            assert acked_ranges is not None
            acked_ranges.provide(number, raw)


def evict(remote: TakenProgress) -> bool:
    """Release the memory of stored segments until the budgets are kept; returns whether any segment
    isn't in memory."""
    cold = remote.taken.beyond.evict()
    for waiting in remote.waiting.values():
        for acked_ranges in waiting.ledgers.values():
            cold = acked_ranges.evict() or cold
    return cold


def _numbered(segments: Mapping[str, SegmentT]) -> dict[int, SegmentT]:
    """The segments of taken progress by their numbers."""
    return {
        int(name.removeprefix(_TAKEN)): segment
        for name, segment in segments.items()
        if name.startswith(_TAKEN)
    }


def _blocks(segments: Mapping[str, SegmentT]) -> dict[tuple[str, int], dict[int, SegmentT]]:
    """The segments of waiting progress by cluster, ledger and number."""
    found: dict[tuple[str, int], dict[int, SegmentT]] = {}
    for name, segment in segments.items():
        if name.startswith(_WAITING):
            number, ledger_id, cluster = name.removeprefix(_WAITING).split("/", 2)
            found.setdefault((cluster, int(ledger_id)), {})[int(number)] = segment
    return found


def _to_json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()
