"""Origins: which entries came from which cluster, both ways, beside a naive model."""

from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given as examples
from hypothesis import settings
from hypothesis import strategies as st

from velaray.actors.machine import InvariantViolation
from velaray.actors.partition import origins
from velaray.actors.partition.origins import NOWHERE, Origin, Origins, Run, place_before
from velaray.actors.testing import Contents
from velaray.events.ids import Position


@pytest.fixture(autouse=True, scope="module")
def _small_blocks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(origins, "BLOCK", 3)
        patch.setattr(origins, "KEPT_BLOCKS", 1)
        yield


CLUSTERS = ("", "east", "west")
ENTRIES = st.lists(
    st.tuples(st.sampled_from(CLUSTERS), st.sampled_from((1, 1, 1, 2, 5)), st.booleans()),
    max_size=60,
)
"""Who stored an entry first, how far its position is behind the one before, in a new ledger."""


def logged(entries) -> list[tuple[str, Position]]:
    """By local offset: the cluster (empty: the own one) and the position there."""
    newest = {cluster: Position(1, -1) for cluster in CLUSTERS}
    log = []
    for cluster, step, rolls in entries:
        ledger_id, entry_id = newest[cluster]
        at = Position(ledger_id + 1, step - 1) if rolls else Position(ledger_id, entry_id + step)
        newest[cluster] = at
        log.append((cluster, at))
    return log


def built(log) -> Origins:
    state = Origins()
    for offset, (cluster, position) in enumerate(log):
        if cluster:
            state.append(cluster, position, offset)
    origins.check(state, len(log))
    return state


def offsets_of(ranges) -> list[int]:
    return [offset for first, end in ranges for offset in range(first, end)]


POSITIONS = st.builds(Position, st.integers(0, 9), st.integers(-1, 12))


@settings(deadline=None)
@examples(ENTRIES, POSITIONS, POSITIONS)
def test_positions_are_found_as_a_naive_model_finds_them(entries, first, last) -> None:
    log = logged(entries)
    for cluster, origin in built(log).by_cluster.items():
        came = {at: offset for offset, (whose, at) in enumerate(log) if whose == cluster}
        for position in (first, last, *came):
            assert origin.offset_of(position) == came.get(position)
            behind = [offset for at, offset in came.items() if at >= position]
            assert origin.at_or_after(position) == (behind[0] if behind else None)
            before = [offset for at, offset in came.items() if at <= position]
            assert origin.before(position) == (before[-1] + 1 if before else 0)
            assert origin.has(position) == (position <= max(came))
        wanted = [offset for at, offset in came.items() if first <= at <= last]
        ranges = origin.offsets(first, last)
        assert offsets_of(ranges) == wanted
        assert all(a[1] < b[0] for a, b in pairwise(ranges))


@settings(deadline=None)
@examples(ENTRIES, st.integers(0, 60), st.integers(0, 60))
def test_offsets_are_found_as_a_naive_model_finds_them(entries, first, end) -> None:
    log = logged(entries)
    state = built(log)
    found = [
        (offset, cluster, Position(run.ledger_id, run.entry_id + offset - run.offset))
        for cluster, run in state.came(first, end)
        for offset in range(run.offset, run.end)
    ]
    wanted = [(at, *log[at]) for at in range(first, min(end, len(log))) if log[at][0]]
    assert found == wanted
    own = [at for at in range(first, end) if at >= len(log) or not log[at][0]]
    assert offsets_of(state.own(first, end)) == own
    for cluster, origin in state.by_cluster.items():
        mine = [(offset, at) for offset, (whose, at) in enumerate(log) if whose == cluster]
        assert origin.next_offset(first, end) == next((o for o, _ in mine if first <= o < end), end)
        before = [at for offset, at in mine if offset < end]
        assert origin.last_before(end) == (before[-1] if before else NOWHERE)


@settings(deadline=None)
@examples(ENTRIES, ENTRIES, st.integers(0, 120))
def test_a_restored_state_behaves_like_the_original(before, after, first_offset) -> None:
    log = logged(before + after)
    state = built(log[: len(before)])
    state.trim(min(first_offset, len(before)))
    segments = origins.snapshot(state)
    contents = Contents()
    again = origins.restore(contents.bytes_of(segments))
    assert again == state
    assert origins.snapshot(again) == segments
    origins.on_checkpoint(state, contents.store(segments))
    for offset, (cluster, position) in enumerate(log[len(before) :], len(before)):
        if cluster:
            state.append(cluster, position, offset)
            again.append(cluster, position, offset)
    origins.check(state, len(log))
    assert contents.bytes_of(origins.snapshot(state)) == origins.snapshot(again)
    assert again == state


def test_an_unchanged_block_is_not_written_again() -> None:
    state = built([("east", Position(1, 2 * at)) for at in range(7)])
    origins.on_checkpoint(state, Contents().store(origins.snapshot(state)))
    state.append("east", Position(2, 0), 7)
    new = {name for name, found in origins.snapshot(state).items() if isinstance(found, bytes)}
    assert new == {"origins", "origin/2/east"}


def test_trimmed_positions_are_remembered_for_a_while() -> None:
    state = built([("east", Position(1, 2 * at)) for at in range(12)])
    origin = state.by_cluster["east"]
    state.trim(8)  # two blocks are behind it, one of which is kept
    assert [origin.offset_of(Position(1, entry)) for entry in (4, 6, 22)] == [None, 3, 11]
    assert origin.has(Position(1, 4))
    assert not origin.has(Position(1, 23))
    assert [origin.last_before(end) for end in (2, 4)] == [NOWHERE, Position(1, 6)]
    assert origin.first_offset == 3
    state.trim(12)
    assert list(origin) == [Run(1, 18, 9, 1), Run(1, 20, 10, 1), Run(1, 22, 11, 1)]
    assert origins.restore(Contents().bytes_of(origins.snapshot(state))) == state
    origins.check(state, 12)


def test_the_beginning_of_a_run_is_found_by_offset() -> None:
    entries = [Position(1, at) for at in (0, 1, 2, 5, 6, 9, 20, 21)]
    log = [("east", at) for at in entries[:5]] + [("", Position(1, 0))]
    origin = built([*log, *(("east", at) for at in entries[5:])]).by_cluster["east"]
    begins = [origin.begin_of(offset) for offset in range(10)]
    assert begins == [0, 0, 0, 3, 3, None, 6, 7, 7, None]
    assert Origin().begin_of(0) is None


def test_every_position_has_a_predecessor() -> None:
    assert place_before(Position(4, 1)) == Position(4, 0)
    before = place_before(Position(4, 0))
    assert Position(3, 1 << 31) < before < Position(4, 0)


def test_a_broken_order_is_noticed() -> None:
    origin = Origin()
    origin.append(Position(2, 0), 4)
    origin.append(Position(1, 0), 5)
    with pytest.raises(InvariantViolation, match="ascend"):
        origins.check(Origins({"east": origin}), 6)
    both = built([("east", Position(1, 0))])
    both.append("west", Position(1, 0), 0)
    with pytest.raises(InvariantViolation, match="from one cluster"):
        origins.check(both, 1)
