"""Simulation of rates among the tests: a few seeds, fresh ones, and mutants."""

from __future__ import annotations

from random import Random

import pytest

from tests.sim.mutants import rates as mutants
from tests.sim.rates import RATES, first_rates
from tests.sim.test_sim import FRESH, assert_sound, digest_of_code, simulate
from velaray.actors.catalog.policies import POLICIES


def test_three_seeds_with_rates_are_sound() -> None:
    found = simulate("--rates", "--seeds", "3")
    assert_sound(found)
    first, *_, last = found.stdout.splitlines()
    assert first == "seeds 1 to 3: each one with python -m tests.sim --seed N --rates"
    assert last.startswith("3 seeds in ") and last.endswith("failing: 0")


def test_seeds_draw_valid_values_of_every_policy() -> None:
    drawn = set()
    for seed in range(50):
        for name, value in first_rates(Random(f"{seed}/rates")):
            assert POLICIES[name].type.parse(value) == value
            drawn.add(name)
    assert drawn == RATES.keys()


@pytest.mark.slow
def test_fresh_seeds_with_rates_are_sound() -> None:
    first = FRESH + int.from_bytes(digest_of_code()[:3], "big")
    assert_sound(simulate("--rates", "--first", str(first), "--seeds", "3"))


@pytest.mark.long
def test_mutants_of_rates_are_found() -> None:
    quick = [name for name, mutant in mutants.MUTANTS.items() if mutant.within <= 20]
    found = simulate("--mutants", *quick)
    assert found.returncode == 0, found.stdout + found.stderr
