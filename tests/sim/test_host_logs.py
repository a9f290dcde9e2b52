"""Simulated hosts with journals in one object store; see `tests.sim.host_logs`."""

from __future__ import annotations

import pytest

from tests.sim.host_logs import Violated, run_seed
from tests.sim.mutants.host_logs import HOST_LOG_MUTANTS
from velaray.journal.errors import JournalError

pytestmark = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
"""Actors of hosts that were killed before they began."""

FOUND = {
    "acknowledge-out-of-order": 32,
    "no-seal": 2,
    "seal-behind-the-highest": 2,
    "exists-means-success": 6,
    "take-overwrites-the-tail": 1,
    "close-without-waiting": 2,
    "acknowledge-after-the-cut": 2,
    "no-look-at-the-floor": 5,
    "remembered-seal": 1,
    "list-before-the-copy": 1,
    "no-copy": 1,
    "unpack-what-is-under-way": 1,
    "floor-before-the-record": 1,
    "floor-forgets-lost-journals": 3,
    "floor-forgets-pending-adoptions": 54,
    "send-what-was-cut": 4,
    "merged-part-deleted-early": 1,
    "copy-unlisted-ledgers": 3,
    "record-without-comparing": 2,
    "confirm-without-looking": 143,
    "release-one-object-less": 2,
    "release-without-the-cut": 3,
}
"""For each mutant a seed that finds it."""


@pytest.mark.parametrize("first", range(1, 21, 5))
def test_host_logs_are_sound(first: int) -> None:
    acknowledged = 0
    for seed in range(first, first + 5):
        acknowledged += run_seed(seed)["acknowledged"]
    assert acknowledged > 100


@pytest.mark.parametrize("seed", [3, 59, 431, 3455, 5442])
def test_seeds_that_found_a_bug_are_sound(seed: int) -> None:
    """3: an unlisted ledger was copied. 59: a late answer. 431: a ledger about to be listed was
    skipped by an unpack. 3455: parts that a successor's record named were deleted. 5442: a take
    whose answer came late replaced a newer owner."""
    run_seed(seed)


def test_every_mutant_has_a_seed() -> None:
    assert FOUND.keys() == HOST_LOG_MUTANTS.keys()


@pytest.mark.parametrize("name", FOUND)
def test_mutants_are_found(name: str) -> None:
    with HOST_LOG_MUTANTS[name].applied(), pytest.raises((Violated, JournalError)):
        run_seed(FOUND[name])
