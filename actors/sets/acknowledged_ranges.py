"""Acknowledged offsets beyond a cursor's mark, in segments with bounded memory.

Segments have a fixed number of offsets, independent of the partition's ledgers, so none is large. A
segment is *open* (a set of offsets and the masks of partly acknowledged batches), *packed* (its
stored form, not decoded yet), or *cold* (only its summary and its place in a checkpoint are in
memory). A change drops the segment's place and makes it *dirty* until the next checkpoint stores
it. Only segments that aren't dirty become cold, so a segment that isn't in memory is on disk.

Beyond the budget `AcknowledgedRanges.evict` makes the least recently used segments cold. Nothing
here reads the disk. A machine names the cold segments that a command touches
(`AcknowledgedRanges.cold_within` and the like), and its host loads them before. Whatever else reads
a cold segment gets a `ColdSegment`; `velaray.actors.sets.ranges_in_memory` is a view without them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from sortedcontainers import SortedDict

from velaray.actors.machine import ColdSegment, require
from velaray.actors.sets.ack_segments import (
    Mask,
    Summary,
    decode_segment,
    encode_segment,
    read_summary,
    summarize,
)
from velaray.actors.sets.bitmaps import Bitmap
from velaray.actors.sets.offset_sets import Members, OffsetSet, Range, gaps
from velaray.events.segments import Segment, StoredSegment, segment_digest

SEGMENT = 1 << 16
"""Offsets per segment; as bits they take 8 KiB."""
BUDGET = 3 << 20
"""Bytes of memory of one subscription beyond which segments become cold. Pulsar planned the same as
``maxIndividualAckCacheBytesPerCursor``."""
FORM: type[OffsetSet] = Bitmap
"""The form of open segments: `Bitmap` or `RangeSet`."""

_SHORT = 16
"""Ranges of at most this many offsets are looked up offset by offset."""
_SEGMENT_BYTES = 500
_MASK_BYTES = 200


class _Segment:
    """One segment; see the module's docstring. An open one has no ``summary``."""

    __slots__ = ("acked", "packed", "partial", "stored", "summary")

    def __init__(self) -> None:
        self.acked: OffsetSet | None = None
        self.partial: SortedDict | None = None
        self.packed: bytes | None = None
        self.stored: StoredSegment | None = None
        self.summary: Summary | None = None

    def memory(self) -> int:
        """Its approximate size in bytes."""
        size = _SEGMENT_BYTES + len(self.packed or b"")
        if self.acked is not None:
            size += self.acked.memory() + _MASK_BYTES * len(self.partial or ())
        return size

    def masks(self, first: int, end: int) -> list[Mask]:
        """The masks from ``first`` to ``end`` - 1 of an open segment."""
        partial = self.partial
        if not partial:
            return []
        return [(offset, partial[offset]) for offset in partial.irange(first, end - 1)]

    def drop_masks(self, first: int, end: int) -> None:
        """Drop the masks from ``first`` to ``end`` - 1."""
        for offset, _ in self.masks(first, end):
            assert self.partial is not None
            del self.partial[offset]


class AcknowledgedRanges:
    """Acknowledged offsets, and the masks of partly acknowledged batches."""

    __slots__ = ("_budget", "_form", "_grown", "_keepers", "_recent", "_segments", "_size")

    def __init__(self, form: type[OffsetSet] | None = None, budget: int | None = None) -> None:
        self._form = FORM if form is None else form
        self._budget = BUDGET if budget is None else budget
        self._size = SEGMENT
        self._grown = False  # since the last eviction
        self._segments: SortedDict = SortedDict()  # number -> _Segment
        self._recent: OrderedDict[int, _Segment] = OrderedDict()  # those in memory
        self._keepers: list[RangesInMemory] = []  # views that keep segments in memory

    # -- queries -------------------------------------------------------------------

    def __bool__(self) -> bool:
        return bool(self._segments)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AcknowledgedRanges):
            return NotImplemented
        return self._segments.keys() == other._segments.keys() and all(
            self._encoded(number) == other._encoded(number) for number in self._segments
        )

    __hash__ = None  # type: ignore[assignment]

    def __iter__(self) -> Iterator[Range]:
        """The acknowledged ranges, ascending. The segments must not change during the iteration."""
        waiting: Range | None = None
        for number in self._segments:
            for first, end in self._part(number, 0, self._size):
                if waiting is not None and waiting[1] == first:
                    first = waiting[0]
                elif waiting is not None:
                    yield waiting
                waiting = (first, end)
        if waiting is not None:
            yield waiting

    def size(self) -> int:
        """The number of acknowledged entries."""
        return sum(self._count(segment) for segment in self._segments.values())

    def range_count(self) -> int:
        """The number of acknowledged ranges."""
        count, border = 0, -1
        for number, segment in self._segments.items():
            known = self._summary(segment)
            count += known.ranges - (known.first and border == number)
            border = number + 1 if known.last else -1
        return count

    def partial_count(self) -> int:
        """The number of partly acknowledged batches."""
        return sum(self._summary(segment).partial for segment in self._segments.values())

    def all_masks(self) -> Iterator[Mask]:
        """(offset, remaining mask) of all partly acknowledged batches, ascending."""
        for number, segment in self._segments.items():
            if self._summary(segment).partial:
                base = number * self._size
                for offset, mask in self._open(number).masks(0, self._size):
                    yield base + offset, mask

    def masks(self, first: int, end: int) -> list[Mask]:
        """(offset, remaining mask) of partly acknowledged batches from ``first`` to ``end`` - 1."""
        found = []
        for number in self._numbers(first, end):
            base = number * self._size
            if self._summary(self._segments[number]).partial:
                parts = self._open(number).masks(first - base, min(end - base, self._size))
                found += [(base + offset, mask) for offset, mask in parts]
        return found

    def mask(self, offset: int) -> int | None:
        """The remaining mask of the batch at ``offset``; None unless it is partly acknowledged."""
        number, within = divmod(offset, self._size)
        segment = self._segments.get(number)
        if segment is None or (segment.summary is not None and not segment.summary.partial):
            return None
        partial = self._open(number).partial
        mask: int | None = partial.get(within) if partial else None
        return mask

    def __contains__(self, offset: int) -> bool:
        number, within = divmod(offset, self._size)
        segment = self._segments.get(number)
        if segment is None:
            return False
        return self._count(segment) == self._size or within in self._acked(number)

    def within(self, first: int, end: int) -> list[Range]:
        """The acknowledged ranges of ``first`` to ``end`` - 1, ascending."""
        found: list[Range] = []
        for number in self._numbers(first, end):
            base = number * self._size
            part = self._part(number, max(first - base, 0), min(end - base, self._size))
            if found and part and found[-1][1] == part[0][0]:
                part[0] = (found.pop()[0], part[0][1])
            found += part
        return found

    def count(self, first: int, end: int) -> int:
        """The number of acknowledged entries from ``first`` to ``end`` - 1."""
        found = 0
        for number in self._numbers(first, end):
            base = number * self._size
            if first <= base and base + self._size <= end:
                found += self._count(self._segments[number])
            else:
                parts = self._part(number, max(first - base, 0), min(end - base, self._size))
                found += sum(stop - start for start, stop in parts)
        return found

    def missing(self, first: int, end: int) -> list[Range]:
        """The parts of ``first`` to ``end`` - 1 that aren't acknowledged, ascending."""
        return gaps(first, end, self.within(first, end))

    def missing_of(self, ranges: Iterable[Range]) -> list[Range]:
        """The parts of all these ranges that aren't acknowledged, in the order of the ranges. A
        range that ends before it begins is empty."""
        found: list[Range] = []
        size, base = self._size, -self._size
        acked: Members = range(0)
        for part in ranges:
            first, end = part
            within = first - base
            if not 0 <= within < size:
                number, within = divmod(first, size)
                base, acked = number * size, self._members(number)
            if end - first == 1:
                if within not in acked:
                    found.append(part)
            elif end <= first:
                continue
            elif end - first > _SHORT or end > base + size:
                found += self.missing(first, end)
            else:
                known = [at in acked for at in range(within, end - base)]
                if True not in known:
                    found.append(part)
                elif False in known:
                    found += self.missing(first, end)
        return found

    def _members(self, number: int) -> Members:
        """The acknowledged offsets of a segment, from its start."""
        segment = self._segments.get(number)
        count = 0 if segment is None else self._count(segment)
        if count in (0, self._size):
            return range(count)
        return self._acked(number).members()

    def next_missing(self, offset: int) -> int:
        """The first offset at or after ``offset`` that isn't acknowledged."""
        while True:
            number, within = divmod(offset, self._size)
            segment = self._segments.get(number)
            if segment is None:
                return offset
            if self._count(segment) < self._size:
                found = self._acked(number).next_missing(within)
                if found < self._size:
                    return number * self._size + found
            offset = (number + 1) * self._size

    def next_acked(self, offset: int, limit: int) -> int:
        """The first acknowledged offset at or after ``offset``; at most ``limit``."""
        for number in self._numbers(offset, limit):
            base, count = number * self._size, self._count(self._segments[number])
            if count == self._size:
                return min(max(base, offset), limit)
            if not count:
                continue
            acked, within = self._acked(number), max(offset - base, 0)
            if within in acked:
                return base + within
            found = acked.next_start(within, self._size)
            if found < self._size:
                return min(base + found, limit)
        return limit

    def end(self) -> int:
        """The offset after the last one that is acknowledged, wholly or in part; 0 if there is
        none."""
        if not self._segments:
            return 0
        number = self._segments.peekitem(-1)[0]
        segment = self._open(number)
        assert segment.acked is not None
        masked = segment.partial.peekitem(-1)[0] + 1 if segment.partial else 0
        return int(number * self._size + max(segment.acked.end(), masked))

    # -- changes -------------------------------------------------------------------

    def add(self, first: int, end: int) -> None:
        """Acknowledge ``first`` to ``end`` - 1 as a whole."""
        size = self._size
        while first < end:
            number, within = divmod(first, size)
            stop = min(end - number * size, size)
            segment = self._changing(number)
            assert segment.acked is not None
            segment.acked.add(within, stop)
            if segment.partial:
                segment.drop_masks(within, stop)
            first = (number + 1) * size

    def add_all(self, ranges: Sequence[Range]) -> None:
        """Acknowledge all these ranges as a whole; they are ascending and apart."""
        size = self._size
        number = ranges[0][0] // size if ranges else 0
        base = number * size
        if len(ranges) < 2 or ranges[-1][1] > base + size:
            for first, end in ranges:
                self.add(first, end)
            return
        segment = self._changing(number)
        assert segment.acked is not None
        single = []
        for first, end in ranges:
            if end - first == 1:
                single.append(first - base)
            else:
                segment.acked.add(first - base, end - base)
        segment.acked.add_each(single)
        if segment.partial:
            for first, end in ranges:
                segment.drop_masks(first - base, end - base)

    def put_mask(self, offset: int, mask: int) -> None:
        """Set the remaining mask (not 0) of the batch at ``offset``, which isn't acknowledged."""
        number, within = divmod(offset, self._size)
        segment = self._changing(number)
        if segment.partial is None:
            segment.partial = SortedDict()
        segment.partial[within] = mask

    def drop_before(self, mark: int) -> None:
        """Drop everything before ``mark``."""
        number, within = divmod(mark, self._size)
        for passed in list(self._segments.irange(maximum=number, inclusive=(True, False))):
            self._remove(passed)
        if not within or number not in self._segments:
            return
        segment = self._open(number)
        assert segment.acked is not None
        if segment.acked.lowest(within) == within and not segment.masks(0, within):
            return
        self._changing(number)
        segment.acked.discard(0, within)
        segment.drop_masks(0, within)
        if not segment.acked and not segment.partial:
            self._remove(number)

    def clear(self) -> None:
        """Drop everything."""
        self._segments.clear()
        self._recent.clear()

    # -- checkpoints and memory ----------------------------------------------------

    def snapshot(self) -> dict[int, Segment]:
        """Every segment by number: its place if it is stored, else its stored form."""
        return {
            number: segment.stored or self._encoded(number)
            for number, segment in self._segments.items()
        }

    @property
    def segment_size(self) -> int:
        """Offsets per segment; a restored state keeps the size that it was made with."""
        return self._size

    def restore(self, segment_size: int, packed: Mapping[int, bytes]) -> None:
        """Restore the set from its `snapshot`, where every segment is in its stored form."""
        self.clear()
        self._size = segment_size
        for number in sorted(packed):
            segment = self._segments[number] = _Segment()
            segment.packed = packed[number]
            segment.summary = read_summary(segment.packed)
            self._recent[number] = segment

    def on_checkpoint(self, stored: Mapping[int, StoredSegment]) -> None:
        """Note the places of segments in a durable checkpoint of the present content."""
        for number, place in stored.items():
            self._segments[number].stored = place
        self._grown = True

    def cold(self) -> list[StoredSegment]:
        """The places of all cold segments, ascending."""
        return [] if not self.cold_count() else self._cold(self._segments)

    def cold_within(self, first: int, end: int, *, full: bool = False) -> list[StoredSegment]:
        """The places of the cold segments that reading or acknowledging ``first`` to ``end`` - 1
        touches; ``full``: also those whose every entry is acknowledged."""
        if not self.cold_count():
            return []
        numbers = self._numbers(first, end)
        if not full:
            numbers = [at for at in numbers if self._count(self._segments[at]) < self._size]
        return self._cold(numbers)

    def cold_ahead(self, offset: int) -> list[StoredSegment]:
        """The place of the cold segment that `next_missing` of ``offset`` reads, or that has its
        result; none if that is in memory."""
        number, within = divmod(offset, self._size)
        while self.cold_count() and (segment := self._segments.get(number)) is not None:
            if self._count(segment) < self._size:
                if number not in self._recent:
                    return self._cold([number])
                if self._acked(number).next_missing(within) < self._size:
                    return []
            number, within = number + 1, 0
        return []

    def cold_front(self) -> list[StoredSegment]:
        """The places of the cold segments with the first acknowledged entry and the first partly
        acknowledged batch."""
        if not self.cold_count():
            return []
        known = [(at, self._summary(segment)) for at, segment in self._segments.items()]
        whole = [at for at, each in known if each.acked][:1]
        return self._cold({*whole, *[at for at, each in known if each.partial][:1]})

    def known_until(self, first: int, end: int) -> int:
        """The start of the first cold segment that reading ``first`` to ``end`` - 1 touches, but at
        least ``first``; ``end`` if there is none."""
        if len(self._segments) == len(self._recent):
            return end
        for number in self._numbers(first, end):
            if number not in self._recent and self._count(self._segments[number]) < self._size:
                return max(number * self._size, first)
        return end

    def _cold(self, numbers: Iterable[int]) -> list[StoredSegment]:
        found = []
        for number in numbers:
            if number not in self._recent:
                place = self._segments[number].stored
                assert place is not None
                found.append(place)
        return found

    def provide(self, number: int, raw: bytes) -> None:
        """Take the stored bytes of a cold segment into memory; ignored if the segment isn't cold,
        or changed meanwhile."""
        segment: _Segment | None = self._segments.get(number)
        if segment is None or number in self._recent:
            return
        assert segment.stored is not None
        if segment.stored.digest == segment_digest(raw):
            segment.packed = raw
            self._recent[number] = segment
            self._grown = True

    def evict(self) -> bool:
        """Make segments cold until the budget is kept, if more than before is in memory; returns
        whether there are any."""
        if self._grown:
            self._grown = False
            self._evict()
        return len(self._segments) > len(self._recent)

    def memory(self) -> int:
        """The approximate size in bytes of the segments in memory."""
        return sum(segment.memory() for segment in self._recent.values())

    def dirty_memory(self) -> int:
        """The approximate size in bytes of dirty segments, which only a checkpoint can free."""
        return sum(s.memory() for s in self._recent.values() if s.stored is None)

    def needs_checkpoint(self) -> bool:
        """Whether a checkpoint is due because dirty segments exceed the budget."""
        return self.dirty_memory() > self._budget

    def cold_count(self) -> int:
        """The number of cold segments."""
        return len(self._segments) - len(self._recent)

    def check(self, mark: int) -> None:
        """Raise `InvariantViolation` if an invariant is broken; reads nothing."""
        for number, segment in self._segments.items():
            base, known = number * self._size, self._summary(segment)
            require(bool(known.acked or known.partial), "no segment is empty", str(number))
            require(base + self._size > mark, "no segment is below the mark", f"{number} {mark}")
            if number not in self._recent:
                cold = segment.acked is None and segment.packed is None
                require(cold, "what is in memory is known to be", str(number))
                require(segment.stored is not None, "what isn't in memory is stored", str(number))
            if segment.acked is None:
                continue
            segment.acked.check()
            lowest = base + segment.acked.lowest(self._size)
            detail = f"{lowest} {mark}"
            require(lowest > mark, "holes are beyond the mark and don't touch it", detail)
            for offset, mask in segment.masks(0, self._size):
                place = str(base + offset)
                require(mask > 0, "something remains of a partly acknowledged batch", place)
                whole = offset in segment.acked or base + offset < mark
                require(not whole, "an entry is acked or partly acked", place)

    # -- inside --------------------------------------------------------------------

    def _numbers(self, first: int, end: int) -> list[int]:
        if first >= end or not self._segments:
            return []
        return list(self._segments.irange(first // self._size, (end - 1) // self._size))

    def _part(self, number: int, first: int, end: int) -> list[Range]:
        """The acknowledged ranges of one segment within ``first`` to ``end`` - 1, which count from
        its start; the result has offsets of the log."""
        base, segment = number * self._size, self._segments[number]
        count = self._count(segment)
        if count in (0, self._size):
            return [(base + first, base + end)] if count else []
        return [
            (base + start, base + stop) for start, stop in self._acked(number).within(first, end)
        ]

    def _summary(self, segment: _Segment) -> Summary:
        if segment.acked is None:
            assert segment.summary is not None
            return segment.summary
        return summarize(segment.acked, len(segment.partial or ()), self._size)

    def _count(self, segment: _Segment) -> int:
        if segment.acked is None:
            assert segment.summary is not None
            return segment.summary.acked
        return segment.acked.size()

    def _encoded(self, number: int) -> bytes:
        segment = self._segments[number]
        if segment.packed is not None:
            return bytes(segment.packed)
        self._open(number)
        return encode_segment(segment.acked, segment.masks(0, self._size), self._size)

    def _acked(self, number: int) -> OffsetSet:
        acked = self._open(number).acked
        assert acked is not None
        return acked

    def _open(self, number: int) -> _Segment:
        segment: _Segment = self._segments[number]
        if segment.acked is None:
            if segment.packed is None:
                return self._open_cold(number)
            self._unpack(segment, segment.packed)
        self._recent.move_to_end(number)
        return segment

    def _open_cold(self, number: int) -> _Segment:
        """Raise `ColdSegment`."""
        (place,) = self._cold([number])
        raise ColdSegment(place, self._cold_behind(number))

    def _cold_behind(self, number: int) -> Iterator[StoredSegment]:
        """The places of the cold segments after this one that reading may need."""
        for at in self._segments.irange(number + 1):
            if self._count(self._segments[at]) < self._size:
                yield from self._cold([at])

    def _unpack(self, segment: _Segment, packed: bytes) -> None:
        acked = self._form()
        masks = decode_segment(packed, acked)
        segment.acked, segment.partial = acked, SortedDict(masks) if masks else None
        segment.packed = segment.summary = None
        self._grown = True

    def _changing(self, number: int) -> _Segment:
        """The open segment, without its stored place: it is about to change."""
        segment: _Segment | None = self._segments.get(number)
        if segment is None:
            segment = self._segments[number] = self._recent[number] = _Segment()
            segment.acked = self._form()
        else:
            self._open(number)
        segment.stored = None
        return segment

    def _remove(self, number: int) -> None:
        del self._segments[number]
        self._recent.pop(number, None)

    def _evict(self) -> None:
        """Make segments cold until the budget is kept: least recently used first, never dirty ones
        nor the last one, and those that are kept only if every entry is acknowledged: reading these
        needs only their summary."""
        left = self.memory()
        last = self._segments.peekitem(-1)[0] if self._segments else 0
        kept = max((each.kept_before for each in self._keepers), default=0) // self._size
        for number, segment in list(self._recent.items()):
            if left <= self._budget:
                return
            if segment.stored is None or number == last:
                continue
            if number >= kept or self._count(segment) == self._size:
                left -= segment.memory()
                segment.summary = self._summary(segment)
                segment.acked = segment.partial = segment.packed = None
                del self._recent[number]


class RangesInMemory(AcknowledgedRanges):
    """A view for a reader that doesn't wait: it never reads a cold segment.

    Entries in cold segments count as not acknowledged. The reader moves forward with `reach`, which
    keeps everything before an offset in memory, so that what it once saw it sees for ever. It must
    not change the ranges.
    """

    __slots__ = ("_nothing", "_whole", "kept_before")

    def __init__(self, whole: AcknowledgedRanges) -> None:
        super().__init__(whole._form, whole._budget)
        self._whole = whole
        self._size = whole._size
        self._segments, self._recent = whole._segments, whole._recent
        self._nothing = _Segment()
        self._nothing.acked = self._form()
        #: Everything before this offset is in memory.
        self.kept_before = 0

    def reach(self, offset: int) -> int:
        """Keep everything before ``offset`` in memory from now on, or before the first cold segment
        if that is earlier; returns the end of it."""
        if offset <= self.kept_before:
            return offset
        size, end = self._size, self.known_until(self.kept_before, offset)
        number = -(-end // size)
        if number * size > self.kept_before:
            if not self.kept_before:
                self._whole._keepers.append(self)
            self.kept_before = number * size
        return end

    def release(self) -> None:
        """Keep nothing in memory any longer."""
        self.kept_before = 0
        keepers = self._whole._keepers
        keepers[:] = [each for each in keepers if each is not self]

    def _open_cold(self, number: int) -> _Segment:
        return self._nothing

    def _unpack(self, segment: _Segment, packed: bytes) -> None:
        self._whole._unpack(segment, packed)
