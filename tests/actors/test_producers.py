"""Access modes of connected producers."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from velaray.actors.machine import InvariantViolation, Reason, Refusal
from velaray.actors.partition.producers import (
    Accepted,
    AccessMode,
    ProducerRegistry,
    ProducerSpec,
    Promotion,
    Waiting,
)

SHARED, EXCLUSIVE, WAIT, FENCING = AccessMode


def spec(key, mode=SHARED, name=None, epoch=0, topic_epoch=None) -> ProducerSpec:
    return ProducerSpec(key, name or f"name of {key}", mode, epoch, topic_epoch)


def registry(*specs: ProducerSpec) -> ProducerRegistry:
    made = ProducerRegistry()
    for each in specs:
        made.connect(each, 0)
        made.check()
    return made


def refused(answer, reason: Reason, text: str = "") -> bool:
    return isinstance(answer, Refusal) and answer.reason is reason and text in answer.message


def test_shared_producers_have_no_epoch() -> None:
    made = registry(spec(1), spec(2))
    assert made.connect(spec(3), 7) == Accepted()
    assert made.disconnect(1) is None and not made.is_ready(1)
    assert made.names() == {"name of 2", "name of 3"}


def test_a_name_is_taken_once() -> None:
    made = registry(spec(1, name="p", epoch=4))
    assert refused(made.connect(spec(2, name="p", epoch=4), 0), Reason.BUSY, "'p'")
    assert made.connect(spec(3, name="p", epoch=5), 0) == Accepted(replaced=1)
    assert made.is_ready(3) and not made.is_ready(1)
    assert refused(made.connect(spec(4, EXCLUSIVE, "p", epoch=9), 0), Reason.BUSY)
    made.check()


def test_the_same_key_gets_the_same_answer() -> None:
    made = registry(spec(1, EXCLUSIVE), spec(2, WAIT))
    assert made.connect(spec(1, EXCLUSIVE), 0) == Accepted()
    assert made.connect(spec(2, WAIT), 0) == Waiting()


def test_an_exclusive_producer_excludes_all_others() -> None:
    made = ProducerRegistry()
    assert made.connect(spec(1, EXCLUSIVE), 0) == Accepted(raise_epoch=True)
    assert refused(made.connect(spec(2, EXCLUSIVE), 1), Reason.FENCED, "exclusive")
    assert refused(made.connect(spec(3, SHARED), 1), Reason.BUSY, "exclusive")
    made.disconnect(1)
    assert made.connect(spec(3, SHARED), 1) == Accepted()
    assert refused(made.connect(spec(2, EXCLUSIVE), 1), Reason.FENCED, "shared")
    made.check()


def test_an_exclusive_producer_reconnects_with_its_epoch() -> None:
    made = registry(spec(1, EXCLUSIVE, "p"))
    again = spec(2, EXCLUSIVE, "p", epoch=1, topic_epoch=1)
    assert made.connect(again, 1) == Accepted(raise_epoch=False, replaced=1)
    made.disconnect(2)
    assert made.connect(spec(3, EXCLUSIVE, "q"), 1) == Accepted(raise_epoch=True)
    made.disconnect(3)
    late = spec(4, EXCLUSIVE, "p", epoch=2, topic_epoch=1)
    assert refused(made.connect(late, 2), Reason.FENCED, "epoch has already moved")


def test_a_lost_answer_raises_the_epoch_again() -> None:
    made = registry(spec(1, EXCLUSIVE, "p"))
    assert made.connect(spec(2, EXCLUSIVE, "p", epoch=1), 1) == Accepted(True, replaced=1)


def test_waiting_producers_are_promoted_in_order() -> None:
    made = registry(spec(1), spec(2))
    assert made.connect(spec(3, WAIT), 0) == Waiting()
    assert made.connect(spec(4, WAIT), 0) == Waiting()
    assert made.connect(spec(5, WAIT), 0) == Waiting()
    assert refused(made.connect(spec(6), 0), Reason.BUSY)
    assert made.disconnect(1) is None
    assert made.disconnect(4) is None
    assert made.disconnect(2) == Promotion(3, "name of 3")
    assert made.is_ready(3) and not made.is_ready(5)
    assert made.disconnect(3) == Promotion(5, "name of 5")
    assert made.disconnect(5) is None
    assert made.connect(spec(7, WAIT), 2) == Accepted(raise_epoch=True)
    made.check()


def test_a_waiting_producer_that_reconnects_keeps_its_turn() -> None:
    made = registry(spec(1), spec(2, WAIT, "p"), spec(3, WAIT))
    assert made.connect(spec(4, WAIT, "p", epoch=1), 0) == Waiting(replaced=2)
    assert refused(made.connect(spec(5, WAIT, "p", epoch=1), 0), Reason.BUSY)
    assert made.disconnect(1) == Promotion(4, "p")


def test_a_fencing_producer_evicts_all_others() -> None:
    made = registry(spec(1), spec(2), spec(3, WAIT))
    assert made.connect(spec(4, FENCING), 0) == Accepted(True, None, (1, 2), (3,))
    assert made.connect(spec(5, FENCING, "name of 4"), 1) == Accepted(True, None, (4,))
    back = spec(6, FENCING, "name of 4", epoch=1, topic_epoch=1)
    assert refused(made.connect(back, 2), Reason.FENCED)
    again = spec(7, FENCING, "name of 4", epoch=1, topic_epoch=2)
    assert made.connect(again, 2) == Accepted(False, replaced=5)
    made.check()


def test_a_producer_leaves_only_once() -> None:
    made = registry(spec(1), spec(2, WAIT), spec(3, WAIT))
    assert made.disconnect(1) == Promotion(2, "name of 2")
    assert made.disconnect(1) is None
    assert made.is_ready(2)


@pytest.mark.parametrize(
    ("connected", "waiting", "name"),
    [
        ([spec(1, name="p"), spec(2, name="p")], [], "names are unique"),
        ([spec(1, EXCLUSIVE), spec(2)], [], "an exclusive producer is alone"),
        ([], [spec(3, WAIT)], "producers wait only while others are connected"),
        ([spec(1)], [spec(3, EXCLUSIVE)], "only those who asked to wait"),
    ],
)
def test_a_broken_registry_is_named(connected, waiting, name) -> None:
    made = ProducerRegistry()
    made._connected = {each.key: each for each in connected}
    made._waiting = {each.key: each for each in waiting}
    with pytest.raises(InvariantViolation, match=name):
        made.check()


STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(AccessMode), st.sampled_from("pqr"), st.integers(0, 3)),
        st.integers(0, 20),
    ),
    max_size=30,
)


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_random_histories_have_one_exclusive_producer_at_most(steps) -> None:
    """Clients act on the last answer they got; only the latest exclusive producer is exclusive."""
    made, epoch = ProducerRegistry(), 0
    ready: dict[int, AccessMode] = {}
    held: dict[str, int] = {}
    for key, taken in enumerate(steps):
        if isinstance(taken, int):
            answer = made.disconnect(taken)
            ready.pop(taken, None)
            if isinstance(answer, Promotion):
                epoch += 1
                ready[answer.key] = WAIT
        else:
            mode, name, times = taken
            request = spec(key, mode, name, times, held.get(name))
            answer = made.connect(request, epoch)
            if isinstance(answer, Accepted):
                for gone in (answer.replaced, *answer.fenced):
                    ready.pop(gone, None)
                ready[key] = mode
                epoch += answer.raise_epoch
                if mode is not SHARED:
                    held[name] = epoch
        made.check()
        assert set(ready) == {key for key in range(len(steps)) if made.is_ready(key)}
        exclusive = [key for key, mode in ready.items() if mode is not SHARED]
        assert not exclusive or len(ready) == 1
