"""Simulated owners that offload their ledgers; see `tests.sim.offload`."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.sim.mutants.offload import OFFLOAD_MUTANTS
from tests.sim.offload import Violated, run_seed
from velaray.journal.errors import JournalError

pytestmark = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
"""Processes that were killed before they began."""

FOUND = {
    "recorded-before-the-copy": 1,
    "not-verified": 5,
    "deleted-before-recorded": 1,
    "copied-in-part": 1,
    "sweep-of-listed-ledgers": 1,
    "no-sweep": 13,
    "deleted-here-only": 1,
    "parts-are-left": 1,
    "marks-are-lost": 1,
    "another-block": 1,
    "other-parts-are-the-same": 5,
    "marks-too-many": 1,
}
"""For each mutant a seed that finds it."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Failed offloads are the subject here."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("first", range(1, 21, 5))
def test_offloading_is_sound(first: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(first, first + 5):
        counts.update(run_seed(seed))
    assert min(counts.values()) > 0


def test_every_mutant_has_a_seed() -> None:
    assert FOUND.keys() == OFFLOAD_MUTANTS.keys()


@pytest.mark.parametrize("name", FOUND)
def test_mutants_are_found(name: str) -> None:
    with OFFLOAD_MUTANTS[name].applied(), pytest.raises((Violated, JournalError)):
        run_seed(FOUND[name])
