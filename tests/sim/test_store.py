"""Simulation of clusters over an object store among the tests."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests.sim.test_sim import assert_sound, batches_of, simulate

REGISTRY = tomllib.loads((Path(__file__).parent / "store_seeds.toml").read_text(encoding="utf-8"))


def test_three_seeds_over_a_store_are_sound() -> None:
    found = simulate("--store", "--seeds", "3")
    assert_sound(found)
    first, *_, counts, last = found.stdout.splitlines()
    assert first == "seeds 1 to 3: each one with python -m tests.sim --seed N --store"
    assert re.search(r"hosts killed: [1-9]", counts)
    assert last.startswith("3 seeds in ") and last.endswith("failing: 0")


@pytest.mark.long
def test_a_seed_over_a_store_has_one_history_in_every_process() -> None:
    def digests(**variables: str) -> list[str]:
        found = simulate("--store", "--seed", "7", "--digest", **variables)
        return [line for line in found.stdout.splitlines() if line.startswith("history of seed 7")]

    alone = digests()
    assert len(alone) == 1
    assert digests(PYTHONHASHSEED="random") == alone


@pytest.mark.slow
@pytest.mark.parametrize("seeds", batches_of(REGISTRY))
def test_seeds_over_a_store_that_failed_once_are_sound(seeds: list[str]) -> None:
    assert_sound(simulate("--store", "--jobs", "1", "--seed", *seeds))


@pytest.mark.slow
def test_mutants_over_a_store_are_found() -> None:
    quick = ("delete-the-seal", "read-only-parts", "no-copy", "floor-forgets-lost-journals")
    found = simulate("--mutants", *(f"store-{name}" for name in quick))
    assert found.returncode == 0, found.stdout + found.stderr
