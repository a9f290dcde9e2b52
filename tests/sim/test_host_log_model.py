"""The exhaustive model of host logs: its configurations hold, and each missing rule is found."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from tests.sim.host_log_model import search
from tests.sim.host_log_states import Budget, Setup

ACKED, UNSEEN, DANGLING = "AckedIsRecovered", "NothingUnseenAppears", "NoDanglingTail"
ONE_TAKE, TWO_TAKES = Budget(takes=1), Budget(takes=2)
TWO = ((0, 2), (1, 2))
THREE = ((0, 1), (1, 1), (2, 1))
FAILED = Budget(takes=2, fails=1)


def setup(
    logs: tuple[tuple[int, int], ...] = TWO,
    budget: Budget = ONE_TAKE,
    does: str = "",
    owners: tuple[int, ...] = (0,),
    begun: int = 0,
    in_flight: int = 2,
) -> Setup:
    return Setup(logs, budget, owners, frozenset(does.split()), begun=begun, in_flight=in_flight)


CONFIGURATIONS = {
    "creations are repeated and a SEAL is late": (
        setup(budget=Budget(takes=1, repeats=1, strays=1)),
        6_812,
    ),
    "unpack and floor": (setup(does="unpack floor"), 21_764),
    "close and floor": (setup(((0, 2), (1, 1)), does="close floor"), 1_382),
    "roll and unpack": (setup(((0, 2), (1, 1)), does="roll unpack"), 5_521),
    "two processes take at once": (setup(THREE, TWO_TAKES), 4_456),
    "a process opens its failed journal again": (
        setup(((0, 2), (1, 1)), FAILED, "floor"),
        19_074,
    ),
    "a process goes on with a new log": (
        setup(((0, 1), (1, 1), (0, 1)), Budget(takes=2, unknown=1)),
        2_671,
    ),
    "the outcome of a write is unknown": (
        setup(((0, 2), (1, 1)), Budget(takes=1, unknown=1), "close unpack"),
        6_540,
    ),
    "an ended log is deleted": (setup(((0, 2), (1, 1)), Budget(takes=1, sweeps=1)), 2_209),
    "an adopter is ended while it opens": (
        setup(((0, 0), (1, 1), (2, 0)), Budget(takes=2, sweeps=1), owners=(0, 1)),
        16_971,
    ),
    "a journal is idle and a floor is late": (
        setup(((0, 3), (1, 1)), Budget(takes=1, strays=1), "floor", begun=2),
        9_708,
    ),
    "two journals share objects": (setup(((0, 2), (1, 1)), owners=(0, 0)), 15_037),
    "a closed journal is unpacked": (
        setup(((0, 2), (1, 1)), does="close floor unpack-closed"),
        2_300,
    ),
    "unpack, close and unpack again": (
        setup(((0, 2), (1, 1)), does="unpack close floor unpack-closed"),
        12_181,
    ),
    "an ended log has closed journals": (
        setup(((0, 2), (1, 1)), Budget(takes=1, sweeps=1), "close floor unpack-closed"),
        9_412,
    ),
    "four objects are in flight": (setup(((0, 4), (1, 1)), in_flight=4), 10_569),
}
"""Each with the number of its states."""

LONG = {
    "closed journals are unpacked, three processes": (
        setup(THREE, TWO_TAKES, "close floor unpack-closed"),
        52_524,
    ),
    "close, three processes": (setup(((0, 2), (1, 1), (2, 1)), TWO_TAKES, "close"), 61_598),
    "roll and unpack, three objects": (setup(((0, 3), (1, 1)), does="roll unpack"), 36_157),
    "roll, three processes": (setup(((0, 2), (1, 2), (2, 1)), TWO_TAKES, "roll"), 144_238),
    "unpack, close and floor": (setup(does="unpack close floor"), 61_207),
    "an ended log is deleted, its process goes on": (
        setup(((0, 2), (1, 1), (0, 1)), Budget(takes=2, unknown=1, sweeps=1)),
        78_240,
    ),
}


class Missing(NamedTuple):
    """A configuration without some rules: the invariant that is violated, and after how many
    steps."""

    rules: str
    broken: str
    steps: int
    setup: Setup


MUTANTS = [
    Missing("ack out of order", ACKED, 13, setup()),
    Missing("no SEAL", ACKED, 10, setup()),
    Missing("take overwrites the tail", ACKED, 9, setup()),
    Missing("SEAL behind the last object", ACKED, 13, setup(((0, 3), (1, 2)))),
    Missing("taken is stored", ACKED, 12, setup()),
    Missing("close keeps acknowledging", ACKED, 12, setup(does="close")),
    Missing("close before the commit,ack after the cut", ACKED, 12, setup(does="close")),
    Missing("floor omits journals that left", DANGLING, 7, setup(does="close floor")),
    Missing(
        "floor omits journals that left",
        DANGLING,
        6,
        setup(budget=Budget(takes=1, fails=1), does="floor"),
    ),
    Missing("floor before the record", DANGLING, 6, setup(does="unpack floor")),
    Missing(
        "floor before the record",
        DANGLING,
        9,
        setup(((0, 2), (1, 1)), does="close floor unpack-closed"),
    ),
    Missing("floor omits openings", DANGLING, 10, setup(does="floor")),
    Missing(
        "floor ignores a late write",
        DANGLING,
        12,
        setup(budget=Budget(takes=1, unknown=1), does="floor"),
    ),
    Missing(
        "sweep ignores openings",
        DANGLING,
        16,
        setup(((0, 0), (1, 1), (2, 0)), Budget(takes=2, sweeps=1), owners=(0, 1)),
    ),
    Missing("SEAL deleted", DANGLING, 10, setup(THREE[:2], Budget(takes=1, sweeps=1))),
    Missing("no look at the floor", ACKED, 13, setup(((0, 2), (1, 1)), does="floor", begun=1)),
    Missing(
        "floor read before the SEAL", ACKED, 13, setup(((0, 2), (1, 1)), does="floor", begun=1)
    ),
    Missing(
        "floor without compare-and-set",
        ACKED,
        15,
        setup(((0, 3), (1, 1)), Budget(takes=1, strays=1), "floor", begun=2),
    ),
    Missing("open before the copy", ACKED, 12, setup(((0, 2), (1, 1), (2, 1)), TWO_TAKES)),
    Missing("ack before open", ACKED, 11, setup(((0, 1), (1, 2), (2, 1)), TWO_TAKES)),
    Missing("frames without epochs", ACKED, 19, setup(((0, 2), (1, 1)), FAILED)),
    Missing("frames without epochs,send what was cut", UNSEEN, 18, setup(((0, 3), (1, 1)), FAILED)),
    Missing(
        "acks of a former activation,own log without waiting",
        ACKED,
        11,
        setup(((0, 3), (1, 1)), FAILED),
    ),
    Missing("record without compare-and-set", ACKED, 16, setup(THREE, TWO_TAKES)),
    Missing("copy of unlisted ledgers", UNSEEN, 11, setup(does="roll")),
    Missing("unpack past a new ledger", ACKED, 19, setup(((0, 2), (1, 1)), does="roll unpack")),
    Missing(
        "SEAL remembered",
        ACKED,
        14,
        setup(owners=(0, 0), budget=TWO_TAKES, does="floor", begun=1),
    ),
]


def without(rules: str, configuration: Setup) -> Setup:
    """The configuration without these rules."""
    return Setup(
        configuration.logs,
        configuration.budget,
        configuration.owners,
        configuration.does,
        frozenset(rules.split(",")),
        configuration.in_flight,
        configuration.begun,
    )


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_the_rules_hold_in_every_state(name: str) -> None:
    configuration, states = CONFIGURATIONS[name]
    found = search(configuration)
    assert (found.broken, found.trace, found.exhausted) == ("", (), True)
    assert found.states == states


@pytest.mark.long
@pytest.mark.parametrize("name", LONG)
def test_the_rules_hold_in_every_state_of_a_large_configuration(name: str) -> None:
    configuration, states = LONG[name]
    found = search(configuration, most_states=4_000_000)
    assert (found.broken, found.trace, found.exhausted) == ("", (), True)
    assert found.states == states


@pytest.mark.parametrize("missing", MUTANTS, ids=lambda missing: missing.rules)
def test_the_search_finds_what_a_missing_rule_breaks(missing: Missing) -> None:
    found = search(without(missing.rules, missing.setup))
    assert (found.broken, len(found.trace)) == (missing.broken, missing.steps), found.trace


@pytest.mark.parametrize(
    ("rules", "steps"), [("no SEAL", 10), ("taken is stored", 12)], ids=["no SEAL", "taken"]
)
def test_a_superseded_owner_acknowledges(rules: str, steps: int) -> None:
    """Most mutants violate AckedIsRecovered first; these go on after their successor has
    opened."""
    found = search(without(rules, setup()), wanted="OneAckerPerEpoch")
    assert (found.broken, len(found.trace)) == ("OneAckerPerEpoch", steps), found.trace


REDUNDANT = {
    "send what was cut": setup(((0, 2), (1, 1)), FAILED),
    "own log without waiting": setup(((0, 2), (1, 1)), FAILED),
    "ack after the cut": setup(((0, 2), (1, 1)), FAILED),
    "unpack what is under way": setup(((0, 2), (1, 1)), does="unpack floor"),
    "copy without the objects before it": setup(((0, 0), (1, 2)), TWO_TAKES, owners=(0, 1)),
}


@pytest.mark.parametrize("rules", REDUNDANT)
def test_rules_that_are_redundant_in_small_configurations(rules: str) -> None:
    """Without one of these nothing breaks while the others hold."""
    found = search(without(rules, REDUNDANT[rules]))
    assert (found.broken, found.exhausted) == ("", True), found.trace
