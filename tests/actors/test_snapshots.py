"""Snapshots as Pulsar takes them: rounds, time-outs, silence, and the cache of a subscription."""

from __future__ import annotations

from random import Random

import pytest

from velaray.actors.machine import InvariantViolation
from velaray.actors.partition.cursor_snapshots import CACHED, Snapshot, SnapshotCache, SnapshotTaker
from velaray.events.ids import Position


def test_one_other_cluster_takes_one_round() -> None:
    taker = SnapshotTaker()
    assert taker.start("s1", ["b"], ["b"], 5, 0)
    assert taker.answer("s1", "b", Position(1, 2), 7) == Snapshot(7, {"b": Position(1, 2)})
    assert taker.answer("s1", "b", Position(1, 3), 8) is False
    assert taker.pending == 0


def test_two_others_take_two_rounds_with_the_positions_of_the_first() -> None:
    taker = SnapshotTaker()
    assert taker.start("s1", ["b", "c"], ["b", "c"], 5, 0)
    assert taker.answer("s1", "b", Position(1, 1), 5) is False
    assert taker.answer("s1", "b", Position(1, 9), 5) is False  # once is enough
    assert taker.answer("s1", "c", Position(2, 2), 6) is True
    assert taker.answer("s1", "c", Position(2, 8), 7) is False
    found = taker.answer("s1", "b", Position(1, 8), 9)
    assert found == Snapshot(9, {"b": Position(1, 1), "c": Position(2, 2)})


def test_a_snapshot_without_an_answer_in_time_is_abandoned() -> None:
    taker = SnapshotTaker(timeout_ms=100)
    assert taker.start("s1", ["b"], ["b"], 5, 0)
    assert not taker.start("s2", ["b"], ["b"], 6, 99)  # none was ever completed
    assert taker.start("s3", ["b"], ["b"], 6, 100)
    assert taker.answer("s1", "b", Position(1, 1), 6) is False
    assert taker.answer("s3", "b", Position(1, 1), 6) == Snapshot(6, {"b": Position(1, 1)})


def test_after_a_completed_snapshot_the_next_does_not_wait_for_an_unanswered_one() -> None:
    taker = SnapshotTaker()
    taker.start("s1", ["b"], ["b"], 5, 0)
    taker.answer("s1", "b", Position(1, 1), 5)
    assert taker.start("s2", ["b"], ["b"], 6, 1)
    assert taker.start("s3", ["b"], ["b"], 7, 2)


def test_no_snapshot_begins_without_new_entries_or_while_a_cluster_is_unreachable() -> None:
    taker = SnapshotTaker()
    assert not taker.start("s", ["b"], ["b"], 0, 0)
    assert not taker.start("s", [], [], 5, 0)
    assert not taker.start("s", ["b", "c"], ["b"], 5, 0)
    assert taker.start("s1", ["b"], ["b"], 5, 0)
    taker.answer("s1", "b", Position(1, 1), 8)
    assert taker.start("s2", ["b"], ["b"], 8, 1)  # what came meanwhile is new
    taker.answer("s2", "b", Position(1, 2), 8)
    assert not taker.start("s3", ["b"], ["b"], 8, 2)
    assert taker.start("s3", ["b"], ["b"], 9, 3)


def at(local: int) -> Snapshot:
    return Snapshot(local, {"b": Position(1, local)})


def test_the_newest_snapshot_below_the_mark_is_used() -> None:
    cache = SnapshotCache()
    for local in (10, 20, 30):
        cache.add(at(local))
    assert cache.advance(9) is None
    assert cache.advance(29) == at(20)
    assert cache.advance(29) is None
    assert cache.advance(30) == at(30)
    assert len(cache) == 0


def test_moving_a_subscription_back_drops_the_snapshots_ahead() -> None:
    cache = SnapshotCache()
    for local in (10, 20, 30):
        cache.add(at(local))
    assert cache.advance(15) == at(10)
    assert cache.advance(12) is None
    assert len(cache) == 0
    assert cache.advance(40) is None
    cache.add(at(50))
    assert cache.advance(50) == at(50)


def test_a_full_cache_drops_the_least_useful_snapshot() -> None:
    cache = SnapshotCache(4)
    for local in (0, 50, 55, 100, 200):
        cache.add(at(local))
    assert cache.locals == [0, 50, 100, 200]
    cache.add(at(201))
    assert cache.locals == [0, 100, 200, 201]  # 0 and 100 are nearer than 100 and 201


def test_the_first_and_the_last_snapshot_are_never_dropped() -> None:
    random, cache, local = Random(1), SnapshotCache(5), 0
    first = 0
    for _ in range(500):
        local += random.choice((1, 1, 1, 40))
        cache.add(at(local))
        first = first or local
        assert cache.locals[0] == first
        assert cache.locals[-1] == local
        assert len(cache) <= 5
        assert cache.locals == sorted(set(cache.locals))


def test_a_slow_subscription_with_a_fast_flow_finds_one_near_it() -> None:
    """With a message that is late, the mark stays; then it jumps."""
    cache = SnapshotCache()
    for local in range(1, 10_000):
        cache.add(at(local))
    assert len(cache) == CACHED
    found = cache.advance(5_000)
    assert found is not None and found.local > 3_500


def test_an_older_snapshot_changes_nothing() -> None:
    cache = SnapshotCache()
    cache.add(at(10))
    cache.add(at(10))
    cache.add(at(5))
    assert cache.locals == [10]


def test_snapshots_at_one_position_merge_to_the_furthest_positions() -> None:
    """An answer comes late, after the log has grown; the next snapshot begins at that end."""
    cache, taker = SnapshotCache(), SnapshotTaker()
    assert taker.start("s1", ["b"], ["b"], 5, 0)
    late = taker.answer("s1", "b", Position(1, 4), 9)
    assert taker.start("s2", ["b"], ["b"], 9, 0)
    full = taker.answer("s2", "b", Position(1, 8), 9)
    for each in (late, full, Snapshot(9, {"b": Position(1, 7), "c": Position(2, 3)})):
        assert isinstance(each, Snapshot)
        cache.add(each)
    assert cache.advance(9) == Snapshot(9, {"b": Position(1, 8), "c": Position(2, 3)})


def test_a_cache_that_is_too_small_is_refused() -> None:
    with pytest.raises(InvariantViolation):
        SnapshotCache(2)
