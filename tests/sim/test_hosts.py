"""Simulation of hosts among the tests: fresh seeds, and those that failed once."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tests.sim.mutants import hosts
from tests.sim.test_sim import FRESH, assert_sound, batches_of, digest_of_code, simulate

REGISTRY = tomllib.loads((Path(__file__).parent / "hosts_seeds.toml").read_text(encoding="utf-8"))


def test_three_seeds_with_hosts_are_sound() -> None:
    found = simulate("--hosts", "--seeds", "3")
    assert_sound(found)
    first, *_, last = found.stdout.splitlines()
    assert first == "seeds 1 to 3: each one with python -m tests.sim --seed N --hosts"
    assert last.startswith("3 seeds in ") and last.endswith("failing: 0")


def digests(*arguments: str, **variables: str) -> list[str]:
    """The line about the history of seed 7."""
    found = simulate("--hosts", *arguments, "--digest", **variables)
    return [line for line in found.stdout.splitlines() if line.startswith("history of seed 7")]


def test_a_seed_with_hosts_has_one_history_in_every_process() -> None:
    alone = digests("--seed", "7")
    assert len(alone) == 1
    assert digests("--seed", "7", PYTHONHASHSEED="random") == alone


@pytest.mark.long
def test_a_seed_with_hosts_has_one_history_after_another_seed() -> None:
    assert digests("--first", "6", "--seeds", "2", "--jobs", "1") == digests("--seed", "7")


@pytest.mark.slow
@pytest.mark.parametrize("seeds", batches_of(REGISTRY, 2))
def test_seeds_with_hosts_that_failed_once_are_sound(seeds: list[str]) -> None:
    assert_sound(simulate("--hosts", "--jobs", "1", "--seed", *seeds))


@pytest.mark.slow
def test_fresh_seeds_with_hosts_are_sound() -> None:
    first = FRESH + int.from_bytes(digest_of_code()[:3], "big")
    assert_sound(simulate("--hosts", "--first", str(first), "--seeds", "3"))


@pytest.mark.slow
def test_mutants_of_hosts_are_found() -> None:
    quick = [name for name, mutant in hosts.MUTANTS.items() if mutant.within <= 20]
    found = simulate("--mutants", *quick)
    assert found.returncode == 0, found.stdout + found.stderr
