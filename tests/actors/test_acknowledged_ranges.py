"""Acknowledgements in segments, some of which are only on disk: results are the same.

The first part compares a cursor with sets of integers, for every form of its segments and every
moment at which they leave memory. The second part is the test plan of Pulsar's PIP-81.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.actors.test_cursor import NaiveCursor, compare, step
from velaray.actors.machine import ColdSegment, InvariantViolation
from velaray.actors.sets import acknowledged_ranges as module
from velaray.actors.sets.acknowledged_ranges import AcknowledgedRanges
from velaray.actors.sets.bitmaps import Bitmap
from velaray.actors.sets.ranges import RangeSet
from velaray.actors.subscription.cursor import Cursor
from velaray.actors.testing import Contents
from velaray.events.segments import StoredSegment

FORMS = [RangeSet, Bitmap]
LIMIT = 30
OFFSETS = st.integers(0, LIMIT)
RANGES = st.tuples(OFFSETS, st.integers(0, 12)).map(lambda pair: (pair[0], pair[0] + pair[1]))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("range"), RANGES),
        st.tuples(st.just("partial"), OFFSETS, st.integers(0, 15)),
        st.tuples(st.just("before"), OFFSETS),
        st.tuples(st.just("reset"), OFFSETS),
        st.tuples(st.just("checkpoint")),
        st.tuples(st.just("recover")),
    ),
    max_size=30,
)


class Disk:
    """What checkpoints wrote; counts what is read again."""

    def __init__(self) -> None:
        self.reads = 0
        self.written: list[int] = []
        self.contents = Contents()

    def ranges(self, form: type = Bitmap, budget: int = 0) -> Loading:
        """Ranges whose cold segments are loaded when they are read."""
        return Loading(self, form, budget)

    def checkpoint(self, held: AcknowledgedRanges) -> dict[int, StoredSegment]:
        """Store what isn't stored, and say where everything is."""
        places: dict[int, StoredSegment] = {}
        self.written = []
        for number, kept in held.snapshot().items():
            if isinstance(kept, bytes):
                self.written.append(number)
                kept = self.contents.store({f"{number}": kept})[f"{number}"]
            places[number] = kept
        held.on_checkpoint(places)
        held.evict()
        return places

    def read(self, place: StoredSegment) -> bytes:
        """The bytes of a segment."""
        self.reads += 1
        return self.contents.raw_of(place)


class Loading(AcknowledgedRanges):
    """What a host does, in one: it loads what is read."""

    def __init__(self, disk: Disk, form: type, budget: int) -> None:
        super().__init__(form, budget)
        self._disk = disk

    def _open_cold(self, number: int):
        (place,) = self._cold([number])
        self._grown = True
        self.evict()
        self.provide(number, self._disk.read(place))
        return self._open(number)


def contents_of(cursor: Cursor, disk: Disk) -> dict[int, bytes]:
    """The segments as bytes."""
    return {
        number: kept if isinstance(kept, bytes) else disk.contents.raw_of(kept)
        for number, kept in cursor.beyond.snapshot().items()
    }


def recovered(cursor: Cursor, disk: Disk, form: type, budget: int) -> Cursor:
    """Another cursor, from what a checkpoint has of the first."""
    places = disk.checkpoint(cursor.beyond)
    again = Cursor(cursor.acked_before, beyond=disk.ranges(form, budget))
    packed = {number: disk.contents.raw_of(place) for number, place in places.items()}
    again.beyond.restore(cursor.beyond.segment_size, packed)
    again.beyond.on_checkpoint(places)
    again.beyond.evict()
    return again


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SEGMENT", 8)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("budget", [0, 1_500, 1 << 20])
def test_evicted_segments_do_not_change_results(form, budget) -> None:
    """K5 and K7: both forms, with segments that come and go, are the same set of offsets."""

    @settings(max_examples=60, deadline=None)
    @given(STEPS, RANGES)
    def check(steps, window) -> None:
        naive, disk = NaiveCursor(), Disk()
        cursor = Cursor(beyond=disk.ranges(form, budget))
        for taken in steps:
            if taken == ("checkpoint",):
                disk.checkpoint(cursor.beyond)
                assert cursor.beyond.memory() <= budget or len(cursor.beyond._recent) == 1
            elif taken == ("recover",):
                cursor = recovered(cursor, disk, form, budget)
            else:
                step(cursor, naive, taken)
            compare(cursor, naive, window)
            assert cursor.acked_count() == len(naive.acked)
            assert cursor.partial_count() == len(naive.masks)

    check()


@settings(max_examples=100, deadline=None)
@given(STEPS)
def test_the_forms_store_the_same_bytes(steps) -> None:
    disks, naive = [Disk() for _ in FORMS], NaiveCursor()
    cursors = [Cursor(beyond=disk.ranges(form)) for form, disk in zip(FORMS, disks, strict=True)]
    for taken in steps:
        for cursor, disk in zip(cursors, disks, strict=True):
            if taken[0] in ("checkpoint", "recover"):
                disk.checkpoint(cursor.beyond)
            else:
                step(cursor, naive, taken)
        first, second = map(contents_of, cursors, disks)
        assert first == second
        assert cursors[0] == cursors[1]


@settings(max_examples=100, deadline=None)
@given(STEPS)
def test_only_changed_segments_are_written(steps) -> None:
    """A segment that is given by place has there what it has in memory."""
    naive, disk = NaiveCursor(), Disk()
    cursor = Cursor(beyond=disk.ranges())
    for taken in steps:
        if taken[0] in ("checkpoint", "recover"):
            disk.checkpoint(cursor.beyond)
        else:
            step(cursor, naive, taken)
        copy = Cursor(cursor.acked_before, cursor.acked_ranges(), cursor.all_partials())
        assert contents_of(cursor, disk) == contents_of(copy, disk)


# -- PIP-81's test plan ------------------------------------------------------------


def alternating(segments: int, budget: int) -> tuple[Cursor, Disk]:
    """Every second entry is acknowledged, but the first; a checkpoint has it."""
    disk = Disk()
    cursor = Cursor(beyond=disk.ranges(Bitmap, budget))
    for offset in range(1, 8 * segments, 2):
        cursor.ack_range(offset, offset + 1)
    disk.checkpoint(cursor.beyond)
    return cursor, disk


def test_saved_and_restored() -> None:
    cursor, disk = alternating(20, 0)
    again = recovered(cursor, disk, Bitmap, 0)
    assert again == cursor and again.acked_range_count() == 80


def test_the_marker_shrinks_when_the_mark_moves() -> None:
    cursor, disk = alternating(20, 0)
    assert len(disk.checkpoint(cursor.beyond)) == 20 and disk.written == []
    reads = disk.reads
    cursor.ack_before(8 * 12)
    assert sorted(disk.checkpoint(cursor.beyond)) == list(range(12, 20))
    assert disk.reads <= reads + 1  # what is below the mark isn't read to be dropped
    cursor.ack_before(8 * 20)
    assert disk.checkpoint(cursor.beyond) == {} and not cursor.beyond


def test_a_segment_is_kept_until_the_mark_has_passed_it() -> None:
    cursor, disk = alternating(3, 0)
    cursor.ack_before(13)
    assert sorted(disk.checkpoint(cursor.beyond)) == [1, 2]
    assert list(cursor.acked_ranges()) == [(o, o + 1) for o in range(15, 24, 2)]


def test_a_budget_smaller_than_one_segment() -> None:
    cursor, disk = alternating(20, 0)
    assert cursor.beyond.cold_count() == 19  # all but the last, which changes most often
    assert cursor.is_acked(9) and not cursor.is_acked(90)
    assert cursor.acked_range_count() == 80 and cursor.backlog(160) == 80
    assert cursor.beyond.cold_count() == 18 and disk.reads == 2


def test_the_least_recently_used_segment_is_evicted() -> None:
    one = alternating(1, 1 << 20)[0].beyond.memory()
    cursor, disk = alternating(4, 3 * one)
    assert cursor.beyond.cold_count() == 1  # the first one
    cursor.is_acked(8)  # the second is used again
    cursor.is_acked(0)  # the first comes back, the third goes
    cursor.beyond.evict()
    reads = disk.reads
    cursor.is_acked(8)
    cursor.is_acked(24)
    assert disk.reads == reads
    cursor.is_acked(16)
    assert disk.reads == reads + 1


def test_loading_a_segment_may_evict_several() -> None:
    disk = Disk()
    cursor = Cursor(beyond=disk.ranges(RangeSet, 1 << 20))
    for first in (9, 11, 13, 15):  # the second segment has the most ranges
        cursor.ack_range(first, first + 1)
    big = cursor.beyond.memory()
    for number in (2, 3, 4):
        cursor.ack_range(8 * number + 1, 8 * number + 2)
    small = (cursor.beyond.memory() - big) // 3
    cursor.beyond._budget = 3 * small
    cursor.is_acked(17), cursor.is_acked(25), cursor.is_acked(33)
    disk.checkpoint(cursor.beyond)
    assert cursor.beyond.cold_count() == 1
    assert cursor.is_acked(9)
    cursor.beyond.evict()
    assert cursor.beyond.cold_count() == 2
    assert cursor.beyond.memory() <= 3 * small


def test_an_unstored_segment_is_never_evicted() -> None:
    cursor, disk = alternating(4, 0)
    cursor.ack_range(10, 11)
    assert cursor.beyond.needs_checkpoint()
    for offset in range(32):
        cursor.is_acked(offset)
    reads = disk.reads
    assert cursor.is_acked(10) and disk.reads == reads
    disk.checkpoint(cursor.beyond)
    assert disk.written == [1] and not cursor.beyond.needs_checkpoint()


def test_a_fully_acknowledged_segment_is_not_read() -> None:
    disk = Disk()
    cursor = Cursor(beyond=disk.ranges(Bitmap, 0))
    cursor.ack_range(3, 8 * 50)
    disk.checkpoint(cursor.beyond)
    assert cursor.next_unacked(80) == 400 and cursor.is_acked(77)
    assert cursor.unacked_ranges(8, 400) == [] and disk.reads == 0
    assert list(cursor.acked_ranges()) == [(3, 400)]
    cursor.ack_before(3)
    assert cursor.acked_before == 400 and not cursor.beyond


def cold(segments: int) -> tuple[Cursor, list[StoredSegment]]:
    """Every second entry is acknowledged, but the first; only the last segment is in memory."""
    cursor, disk = Cursor(beyond=AcknowledgedRanges(Bitmap, 0)), Disk()
    for offset in range(1, 8 * segments, 2):
        cursor.ack_range(offset, offset + 1)
    return cursor, list(disk.checkpoint(cursor.beyond).values())


def test_reading_a_cold_segment_is_an_error_that_says_what_to_load() -> None:
    cursor, places = cold(4)
    with pytest.raises(ColdSegment, match="segment 1 isn't in memory") as caught:
        cursor.is_acked(9)
    assert (caught.value.place, list(caught.value.behind)) == (places[1], [places[2]])
    with pytest.raises(ColdSegment):
        cursor.ack_range(10, 11)
    with pytest.raises(ColdSegment):
        list(cursor.acked_ranges())
    assert cursor.untouched_from() == 32 and cursor.backlog(32) == 16


def test_a_missing_segment_is_named() -> None:
    cursor, _ = alternating(4, 0)
    cursor.beyond._segments[2].stored = None
    with pytest.raises(InvariantViolation, match="what isn't in memory is stored"):
        cursor.check()
    cursor, _ = alternating(4, 1 << 20)
    del cursor.beyond._recent[2]
    with pytest.raises(InvariantViolation, match="what is in memory is known to be"):
        cursor.check()
    cursor, _ = alternating(4, 1 << 20)
    cursor.acked_before = 8
    with pytest.raises(InvariantViolation, match="no segment is below the mark"):
        cursor.check()
    assert AcknowledgedRanges() != 7


@settings(max_examples=50, deadline=None)
@given(st.permutations(range(24)), st.lists(st.integers(0, 23), max_size=6), st.data())
def test_acks_are_commutative_and_idempotent(order, again, data) -> None:
    """K4, and Pulsar's random-order scenario: in any order, no gap remains at the end."""
    disk = Disk()
    cursor = Cursor(beyond=disk.ranges(Bitmap, 0))
    for offset in (*order, *again):
        cursor.ack_range(offset, offset + 1)
        if data.draw(st.booleans()):
            disk.checkpoint(cursor.beyond)
        cursor.check()
    assert cursor == Cursor(24) and cursor.acked_range_count() == 0 and not cursor.beyond


@settings(max_examples=50, deadline=None)
@given(st.permutations([(o, 1 << bit) for o in (1, 2, 9) for bit in range(3)]), st.data())
def test_parts_of_batches_survive_and_complete(order, data) -> None:
    """The last part of a batch moves the mark, also after a recovery."""
    disk = Disk()
    cursor = Cursor(1, [(3, 9)], beyond=disk.ranges(Bitmap, 0))
    left = {1: 0b111, 2: 0b111, 9: 0b111}
    for offset, bit in order:
        left[offset] &= ~bit
        cursor.ack_partial(offset, 0b111 & ~bit)
        if data.draw(st.booleans()):
            cursor = recovered(cursor, disk, Bitmap, 0)
        partly = {o: mask for o, mask in left.items() if mask not in (0, 0b111)}
        assert dict(cursor.all_partials()) == partly
    assert cursor == Cursor(10)


def test_acks_below_the_mark_change_nothing() -> None:
    cursor, disk = alternating(4, 0)
    cursor.ack_before(17)
    before = contents_of(cursor, disk)
    for first, end in ((0, 5), (3, 17), (9, 10)):
        cursor.ack_range(first, end)
        cursor.ack_partial(first, 0b1)
        cursor.check()
    assert cursor.acked_before == 18 and contents_of(cursor, disk) == before


def test_the_next_unacked_entry_is_found_without_reading_full_segments() -> None:
    disk = Disk()
    cursor = Cursor(beyond=disk.ranges(Bitmap, 0))
    cursor.ack_range(24, 8 * 50)
    cursor.ack_partial(401, 0b1)
    disk.checkpoint(cursor.beyond)
    assert cursor.next_acked(3, 500) == 24 and cursor.next_acked(3, 20) == 20
    assert disk.reads == 0
    assert cursor.untouched_from() == 402 and cursor.next_acked(400, 500) == 500
