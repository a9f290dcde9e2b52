"""A dispatcher stops at acknowledgements that aren't in memory, and goes on once they are."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.actors.test_dispatch import EXCLUSIVE, SHARED, consumer, got
from velaray.actors.dispatch.consumers import SubscriptionType
from velaray.actors.dispatch.dispatcher import MIN_WINDOW, Dispatcher
from velaray.actors.sets import acknowledged_ranges
from velaray.actors.sets.acknowledged_ranges import AcknowledgedRanges
from velaray.actors.subscription.cursor import Cursor
from velaray.actors.subscription.redelivery import CountRuns
from velaray.actors.testing import Contents
from velaray.events.segments import StoredSegment

SEGMENT, END = 8, 400
ACKED = {offset for offset in range(1, END) if offset % 3}


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acknowledged_ranges, "SEGMENT", SEGMENT)


class Stored:
    """A cursor whose segments are all cold, except the last, and their bytes."""

    def __init__(self, acked: set[int] = ACKED) -> None:
        self.contents = Contents()
        self.cursor = Cursor(beyond=AcknowledgedRanges(budget=0))
        for offset in sorted(acked):
            self.cursor.ack_range(offset, offset + 1)
        self.checkpoint()

    def checkpoint(self) -> None:
        """Store everything, and release what may leave memory."""
        beyond = self.cursor.beyond
        named = {f"{number}": segment for number, segment in beyond.snapshot().items()}
        stored = self.contents.store(named)
        beyond.on_checkpoint({int(name): place for name, place in stored.items()})
        beyond.evict()

    def load(self, places: list[StoredSegment]) -> None:
        """Load segments."""
        for place in places:
            self.cursor.beyond.provide(int(place.name), self.contents.raw_of(place))


def serving(
    stored: Stored, kind: SubscriptionType = SHARED, counts: CountRuns | None = None
) -> Dispatcher:
    """A dispatcher with two consumers that take everything."""
    made = Dispatcher(stored.cursor, counts=counts)
    for number in (0, 1):
        if number == 0 or kind is SHARED:
            made.attach(consumer(number, kind))
            made.flow(number, 10_000)
    return made


def go_on(made: Dispatcher, stored: Stored, end: int = END) -> list[int]:
    """Dispatch, load and feed as a host does until nothing changes; returns what was delivered."""
    delivered: list[int] = []
    while True:
        delivered += got(made.dispatch())
        made.check()
        wanted = min(made.wants(), end)
        if made.feed_from < wanted:
            made.feed(made.feed_from, [1] * (wanted - made.feed_from))
        elif lacking := made.lacks():
            stored.load(lacking)
            made.wants()
            stored.cursor.beyond.evict()  # as after any turn
        else:
            return delivered


@pytest.mark.parametrize("kind", [SHARED, EXCLUSIVE])
def test_it_delivers_exactly_what_is_not_acknowledged(kind: SubscriptionType) -> None:
    stored = Stored()
    assert stored.cursor.beyond.cold_count() == END // SEGMENT - 1
    assert sorted(go_on(serving(stored, kind), stored)) == sorted(set(range(END)) - ACKED)


def test_it_stops_at_a_cold_segment_and_asks_for_it() -> None:
    stored = Stored({offset for offset in ACKED if offset >= 2 * SEGMENT})
    made = serving(stored)
    assert made.wants() == 2 * SEGMENT  # though its window is much larger
    assert made.feed(0, [1] * 100)
    assert made.feed_from == 2 * SEGMENT and made.size_of(2 * SEGMENT) is None
    assert got(made.dispatch()) == list(range(2 * SEGMENT))
    lacking = made.lacks()
    assert [place.name for place in lacking][:2] == ["2", "3"]
    assert len(lacking) >= MIN_WINDOW // SEGMENT
    assert made.lease() is None
    stored.load(lacking[:1])
    assert made.wants() == 3 * SEGMENT and made.lacks()[0].name == "3"


def test_segments_before_the_read_position_stay_in_memory() -> None:
    stored = Stored()
    made = serving(stored)
    delivered = go_on(made, stored)
    stored.checkpoint()
    assert stored.cursor.beyond.cold_count() == 0
    lost = [offset for first, end in made.unacked(0) for offset in range(first, end)]
    made.detach(0)
    assert lost and sorted(go_on(made, stored)) == lost and set(lost) <= set(delivered)
    made.cut_off()
    stored.checkpoint()
    assert stored.cursor.beyond.cold_count() == END // SEGMENT - 1


def test_a_reset_keeps_nothing_in_memory() -> None:
    stored = Stored()
    made = serving(stored)
    go_on(made, stored)
    made.reset(0)
    stored.checkpoint()
    assert stored.cursor.beyond.cold_count() == END // SEGMENT - 1
    assert sorted(go_on(made, stored)) == sorted(set(range(END)) - ACKED)


def test_what_is_acknowledged_beyond_memory_is_released_when_it_comes_there() -> None:
    stored = Stored()
    counts = CountRuns([(0, END, 1)])
    made = serving(stored, counts=counts)
    far = 300  # not acknowledged yet
    made.kill([(far, far + 1), (far + 3, far + 4)])
    stored.load(stored.cursor.cold_for_acks([(far, far + 1)]))
    stored.cursor.ack_range(far, far + 1)
    stored.checkpoint()
    made.acked([(far, far + 1)])  # it can't see that
    assert counts.get(far) == 1
    delivered = go_on(made, stored)
    assert sorted(delivered) == sorted(set(range(END)) - ACKED - {far, far + 3})
    assert counts.get(far) == 0 and counts.get(far + 3) == 1


def test_dead_letters_beyond_memory_are_condemned_when_it_comes_there() -> None:
    stored = Stored()
    made = serving(stored, counts=CountRuns([(0, END, 7)]))
    condemned, before = made.condemn(3), -1
    while before != made.cursor.kept_before:
        before = made.cursor.kept_before
        stored.load(made.lacks()[:1])
        made.wants()
        condemned += made.condemn(3)
    found = [offset for first, end in condemned for offset in range(first, end)]
    assert found == sorted(set(found)) and set(found).isdisjoint(ACKED)
    assert set(found) == set(range(max(found) + 1)) - ACKED and max(found) > MIN_WINDOW


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("ack"), st.integers(0, END - 1), st.integers(1, 20)),
        st.tuples(st.just("checkpoint")),
        st.tuples(st.just("go on")),
        st.tuples(st.just("nack"), st.integers(0, 1)),
    ),
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(st.sets(st.integers(0, END - 1), max_size=200), STEPS)
def test_nothing_is_lost_and_nothing_acknowledged_is_delivered(acked, steps) -> None:
    stored, known = Stored(set(acked)), set(acked)
    made = serving(stored)
    for name, *given_ in steps:
        match name:
            case "ack":
                first, end = given_[0], min(sum(given_), END)
                while needed := stored.cursor.cold_for_acks([(first, end)]):
                    stored.load(needed)
                new = stored.cursor.unacked_ranges(first, end)
                for part in new:
                    stored.cursor.ack_range(*part)
                stored.cursor.beyond.evict()
                made.acked([(first, end)])
                known |= set(range(first, end))
            case "checkpoint":
                stored.checkpoint()
            case "go on":
                assert known.isdisjoint(go_on(made, stored))
            case "nack":
                made.redeliver(given_[0])
        made.check()
    assert known.isdisjoint(go_on(made, stored))
    held = {
        offset
        for view in made.consumers()
        for first, end in made.unacked(view.consumer_id)
        for offset in range(first, end)
    }
    assert held == set(range(END)) - known
