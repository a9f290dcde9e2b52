"""The two forms of a set of offsets give the same answers after any operations (K5)."""

from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from velaray.actors.sets.ack_segments import decode_segment, encode_segment, read_summary, summarize
from velaray.actors.sets.bitmaps import Bitmap
from velaray.actors.sets.offset_sets import OffsetSet, gaps, pack_bits, unpack_bits
from velaray.actors.sets.ranges import RangeSet

SIZE = 1 << 16
FORMS: list[Callable[[], OffsetSet]] = [RangeSet, Bitmap]
# Small offsets meet each other often; large ones are at the borders of what a segment can be.
OFFSETS = st.one_of(st.integers(0, 40), st.integers(SIZE - 20, SIZE), st.integers(0, SIZE))
RANGES = st.tuples(OFFSETS, st.one_of(st.integers(0, 12), OFFSETS)).map(
    lambda pair: (min(pair[0], SIZE), min(pair[0] + pair[1], SIZE))
)
STEPS = st.lists(
    st.tuples(st.sampled_from(["add", "discard", "look", "clear", "bits"]), RANGES, OFFSETS),
    max_size=25,
)


def alternating(first: int = 0, end: int = SIZE) -> bytes:
    return pack_bits(((at, at + 1) for at in range(first, end, 2)), SIZE)


def look(found: OffsetSet, first: int, end: int, offset: int) -> list[object]:
    """Everything that can be asked."""
    found.check()
    return [
        list(found),
        bool(found),
        found.size(),
        found.range_count(),
        found.lowest(end),
        found.end(),
        offset in found,
        found.within(first, end),
        found.missing(first, end),
        found.next_missing(offset),
        found.next_start(offset, end),
    ]


def ranges_and_bits_are_equal(ranges: OffsetSet, bits: OffsetSet, at: tuple[int, int, int]) -> None:
    """K5: the two forms of the same acknowledgements answer every question alike."""
    assert look(ranges, *at) == look(bits, *at)
    assert ranges.to_bits(SIZE) == bits.to_bits(SIZE)
    assert encode_segment(ranges, [], SIZE) == encode_segment(bits, [], SIZE)


@settings(max_examples=120, deadline=None)
@given(STEPS)
@example([("add", (0, SIZE), 0), ("discard", (8, 9), 8), ("look", (0, SIZE), 7)])
def test_ranges_and_bits_are_equal_after_every_sequence(steps) -> None:
    ranges, bits = RangeSet(), Bitmap()
    for what, (first, end), offset in steps:
        match what:
            case "add":
                ranges.add(first, end)
                bits.add(first, end)
            case "discard":
                assert ranges.discard(first, end) == bits.discard(first, end)
            case "clear":
                ranges.clear()
                bits.clear()
            case "bits":  # many ranges at once
                end = min(end, first + 100)
                ranges.add_bits(alternating(first, end))
                bits.add_bits(alternating(first, end))
        at = (max(0, offset - 30), min(SIZE, offset + 30), offset)
        assert look(ranges, *at) == look(bits, *at)
    ranges_and_bits_are_equal(ranges, bits, (0, SIZE, 20))


def test_ranges_and_bits_are_equal_with_thousands_of_acked_ranges() -> None:
    ranges, bits = RangeSet(), Bitmap()
    for found in (ranges, bits):
        found.add_bits(alternating(100, 30_000))
    ranges_and_bits_are_equal(ranges, bits, (0, 900, 301))
    assert ranges.discard(5, 9_001) == bits.discard(5, 9_001)
    ranges_and_bits_are_equal(ranges, bits, (8_000, 12_000, 9_001))


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=40, deadline=None)
@given(whole=st.lists(RANGES, max_size=8), dense=st.sampled_from([0, 100]))
@example(whole=[(5, 30)], dense=9_000)
@example(whole=[(5, 30), (40_000, 50_000)], dense=9_000)
@example(whole=[], dense=0)
def test_a_stored_segment_is_read_back_unchanged(form, whole, dense) -> None:
    acked, again = form(), form()
    for first, end in whole:
        acked.add(first, end)
    if dense:
        acked.add_bits(alternating(0, dense))
    masks = [(offset, 5 << offset) for offset in (3, 70) if offset not in acked]
    raw = encode_segment(acked, masks, SIZE)
    assert len(raw) < SIZE // 8 + 100
    assert decode_segment(raw, again) == masks
    assert list(again) == list(acked)
    assert read_summary(raw) == summarize(acked, len(masks), SIZE)
    assert encode_segment(again, masks, SIZE) == raw


@pytest.mark.parametrize("form", FORMS)
def test_a_stored_segment_takes_the_shortest_form(form) -> None:
    sparse, runs, dense = form(), form(), form()
    for at in range(0, 2000, 2):
        sparse.add(at * 30, at * 30 + 1)
    runs.add(3, 60_000)
    dense.add_bits(alternating())
    sizes = [len(encode_segment(acked, [], SIZE)) for acked in (sparse, runs, dense)]
    assert sizes[0] < 2_100 and sizes[1] < 30 and SIZE // 8 < sizes[2] < SIZE // 8 + 40


def test_a_bitmap_takes_less_memory_than_its_ranges() -> None:
    ranges, bits = RangeSet(), Bitmap()
    for found in (ranges, bits):
        found.add_bits(alternating())
    assert bits.memory() < 9_000 < 6_000_000 < ranges.memory()
    assert Bitmap([(7, 8)]).memory() < 300
    assert Bitmap().memory() < 300


@settings(max_examples=100, deadline=None)
@given(st.lists(RANGES, max_size=6), RANGES)
def test_bits_and_gaps_of_ranges(whole, window) -> None:
    kept = RangeSet(whole)
    assert list(unpack_bits(pack_bits(kept, SIZE))) == list(kept)
    first, end = window
    inside = kept.within(first, end)
    assert kept.overlaps(first, end) == bool(inside)
    assert sorted([*inside, *gaps(first, end, inside)]) == sorted(
        [*inside, *kept.missing(first, end)]
    )
    assert sum(stop - start for start, stop in gaps(first, end, inside)) == max(
        end - first, 0
    ) - sum(stop - start for start, stop in inside)


def test_sets_of_other_types_are_never_equal() -> None:
    assert Bitmap() != 7 and Bitmap([(1, 3)]) == Bitmap([(1, 2), (2, 3)]) != Bitmap([(1, 2)])
    assert repr(Bitmap([(1, 3)])) == "Bitmap([(1, 3)])"


def test_the_first_ranges_within_others_are_found() -> None:
    found = RangeSet([(2, 5), (7, 8), (10, 20), (30, 31)])
    assert found.first_within(0, 40, 2) == [(2, 5), (7, 8)]
    assert found.first_within(3, 15, 9) == [(3, 5), (7, 8), (10, 15)]
    assert found.first_within(3, 15, 1) == [(3, 5)]
    assert found.first_within(20, 30, 9) == []
    assert found.first_within(40, 3, 9) == []
