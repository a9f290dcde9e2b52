"""Ranges and the cursor, against sets of integers that can't be wrong."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from velaray.actors.machine import InvariantViolation
from velaray.actors.sets.ranges import Range, RangeSet, normalized
from velaray.actors.subscription.cursor import (
    Cursor,
    mask_to_words,
    pack_ranges,
    unpack_ranges,
    words_to_mask,
)

LIMIT = 30
OFFSETS = st.integers(0, LIMIT)
RANGES = st.tuples(OFFSETS, st.integers(0, 12)).map(lambda pair: (pair[0], pair[0] + pair[1]))


def expand(ranges: list[Range]) -> set[int]:
    return {offset for first, end in ranges for offset in range(first, end)}


def canonical(members: set[int]) -> list[Range]:
    return normalized((member, member + 1) for member in members)


class NaiveCursor:
    """The same as `Cursor`, by brute force."""

    def __init__(self) -> None:
        self.acked: set[int] = set()
        self.masks: dict[int, int] = {}

    def ack(self, offsets: set[int]) -> None:
        self.acked |= offsets
        self.masks = {o: mask for o, mask in self.masks.items() if o not in self.acked}

    def ack_partial(self, offset: int, ack_set: int) -> None:
        if offset not in self.acked:
            self.masks[offset] = ack_set & self.masks.get(offset, ack_set)
            if not self.masks[offset]:
                self.ack({offset})

    def reset(self, offset: int) -> None:
        self.acked, self.masks = set(range(offset)), {}

    def mark(self) -> int:
        return next(o for o in range(10 * LIMIT) if o not in self.acked)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("range"), RANGES),
        st.tuples(st.just("ranges"), st.lists(RANGES, max_size=6)),
        st.tuples(st.just("partial"), st.integers(3, 6), st.integers(0, 15)),
        st.tuples(st.just("partial"), OFFSETS, st.integers(0, 15)),
        st.tuples(st.just("before"), OFFSETS),
        st.tuples(st.just("reset"), OFFSETS),
    ),
    max_size=30,
)


def step(cursor: Cursor, naive: NaiveCursor, taken: tuple) -> None:
    match taken:
        case ("range", (first, end)):
            cursor.ack_range(first, end)
            naive.ack(set(range(first, end)))
        case ("ranges", ranges):
            cursor.ack_ranges(normalized(ranges))
            naive.ack(expand(ranges))
        case ("partial", offset, ack_set):
            cursor.ack_partial(offset, ack_set)
            naive.ack_partial(offset, ack_set)
        case ("before", offset):
            cursor.ack_before(offset)
            naive.ack(set(range(offset)))
        case ("reset", offset):
            cursor.reset(offset)
            naive.reset(offset)


def compare(cursor: Cursor, naive: NaiveCursor, window: Range) -> None:
    cursor.check()
    mark = naive.mark()
    assert cursor.acked_before == mark
    beyond = {offset for offset in naive.acked if offset > mark}
    assert list(cursor.acked_ranges()) == canonical(beyond)
    assert cursor.acked_range_count() == len(canonical(beyond))
    assert dict(cursor.all_partials()) == naive.masks
    first, end = window
    unacked = {o for o in range(first, end) if o not in naive.acked}
    assert cursor.unacked_ranges(first, end) == canonical(unacked)
    singles = [(offset, offset + 1) for offset in range(first, end)]
    assert cursor.unacked_of(singles) == [(o, o + 1) for o in sorted(unacked)]
    assert cursor.unacked_of([*singles[:1], window]) == [
        *[(first, first + 1) for _ in singles[:1] if first in unacked],
        *canonical(unacked),
    ]
    assert dict(cursor.partials(first, end)) == {
        o: m for o, m in naive.masks.items() if o in unacked
    }
    assert cursor.next_unacked(first) == min(o for o in range(first, 999) if o not in naive.acked)
    assert cursor.is_acked(first) == (first in naive.acked)
    assert cursor.ack_set(first) == naive.masks.get(first)
    if first not in naive.acked:
        acked = [o for o in range(first, end) if o in naive.acked]
        assert cursor.next_acked(first, max(end, first)) == min([*acked, max(end, first)])
    highest = max(naive.acked, default=-1) + 1
    assert cursor.untouched_from() == max([highest, *(offset + 1 for offset in naive.masks)])
    end_offset = max(end, highest)
    assert cursor.backlog(end_offset) == end_offset - len(naive.acked)


@settings(max_examples=150, deadline=None)
@given(STEPS, RANGES)
def test_a_cursor_is_a_set_of_offsets(steps, window) -> None:
    cursor, naive = Cursor(), NaiveCursor()
    for taken in steps:
        step(cursor, naive, taken)
        compare(cursor, naive, window)
    assert Cursor(cursor.acked_before, cursor.acked_ranges(), cursor.all_partials()) == cursor


def test_partial_acks_of_a_batch_add_up() -> None:
    cursor = Cursor()
    for ack_set, left in [(0b0111, 0b0111), (0b1101, 0b0101), (0b1111, 0b0101)]:
        cursor.ack_partial(3, ack_set)
        assert cursor.ack_set(3) == left
    cursor.ack_partial(3, 0b1010)
    assert cursor.is_acked(3) and cursor.ack_set(3) is None
    cursor.ack_partial(3, 0b1)
    assert cursor == Cursor(0, [(3, 4)])


@settings(max_examples=60)
@given(st.lists(STEPS.map(lambda steps: [s for s in steps if s[0] != "reset"])), st.randoms())
def test_acks_commute_and_repeat(lists, random) -> None:
    steps = [taken for taken_list in lists for taken in taken_list]
    one, other = Cursor(), Cursor()
    naive = NaiveCursor()
    for taken in steps:
        step(one, naive, taken)
    shuffled = steps * 2
    random.shuffle(shuffled)
    for taken in shuffled:
        step(other, naive, taken)
    assert one == other


@given(st.lists(st.tuples(st.booleans(), RANGES), max_size=25), RANGES)
def test_a_range_set_is_a_set(steps, window) -> None:
    ranges, naive = RangeSet(), set()
    first, end = window
    for adds, (start, stop) in steps:
        members = set(range(start, stop))
        if adds:
            ranges.add(start, stop)
            naive |= members
        else:
            assert ranges.discard(start, stop) == canonical(naive & members)
            naive -= members
        ranges.check()
        assert list(ranges) == canonical(naive)
        assert ranges.size() == len(naive) and bool(ranges) == bool(naive)
        inside = naive & set(range(first, end))
        assert ranges.within(first, end) == canonical(inside)
        assert ranges.missing(first, end) == canonical(set(range(first, end)) - inside)
        assert (first in ranges) == (first in naive)
        assert ranges.first() == (canonical(naive)[0] if naive else None)
    assert RangeSet(ranges) == ranges


@given(st.sets(st.integers(0, 1 << 62), max_size=20))
def test_ranges_survive_packing(members) -> None:
    ranges = canonical(members)
    packed = pack_ranges(ranges)
    assert unpack_ranges(packed) == ranges
    assert all(number >= 0 for number in packed)


def test_packed_form_is_distance_and_length() -> None:
    assert pack_ranges([(5, 7), (10, 11)]) == [5, 2, 3, 1]


@given(st.integers(0, 1 << 300))
def test_masks_survive_packing(mask) -> None:
    words = mask_to_words(mask)
    assert words_to_mask(words) == mask and len(words) == (mask.bit_length() + 63) // 64
    signed = [word - (1 << 64) if word >> 63 else word for word in words]
    assert words_to_mask(signed) == mask


def _touching(ranges: RangeSet) -> None:
    ranges._ends[3] = 5


def _empty(ranges: RangeSet) -> None:
    ranges._ends[9] = 9


def _miscounted(ranges: RangeSet) -> None:
    ranges._size += 1


@pytest.mark.parametrize(
    ("damage", "name"),
    [(_touching, "ranges don't touch"), (_empty, "hold something"), (_miscounted, "the size is")],
)
def test_a_broken_range_set_is_named(damage, name) -> None:
    ranges = RangeSet([(0, 3)])
    damage(ranges)
    with pytest.raises(InvariantViolation, match=name):
        ranges.check()


def test_a_broken_cursor_is_named() -> None:
    cursor = Cursor(5)
    cursor._acked_ranges.add(5, 6)
    with pytest.raises(InvariantViolation, match="beyond the mark"):
        cursor.check()
    cursor = Cursor(5)
    cursor._acked_ranges.put_mask(3, 1)
    with pytest.raises(InvariantViolation, match="acked or partly acked"):
        cursor.check()
    cursor = Cursor(5)
    cursor._acked_ranges.put_mask(7, 0)
    with pytest.raises(InvariantViolation, match="something remains"):
        cursor.check()
