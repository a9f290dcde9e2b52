"""Simulation of several clusters among the tests: fresh seeds, and those that failed once."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tests.sim.test_sim import FRESH, assert_sound, batches_of, digest_of_code, simulate

REGISTRY = tomllib.loads((Path(__file__).parent / "geo_seeds.toml").read_text(encoding="utf-8"))


def test_five_seeds_of_several_clusters_are_sound() -> None:
    found = simulate("--geo", "--seeds", "5")
    assert_sound(found)
    first, *_, last = found.stdout.splitlines()
    assert first == "seeds 1 to 5: each one with python -m tests.sim --seed N --geo"
    assert last.startswith("5 seeds in ") and last.endswith("failing: 0")


@pytest.mark.long
def test_a_seed_of_several_clusters_has_one_history_in_every_process() -> None:
    def digests(*arguments: str, **variables: str) -> list[str]:
        found = simulate("--geo", *arguments, "--digest", **variables)
        return [line for line in found.stdout.splitlines() if line.startswith("history of seed 7")]

    alone = digests("--seed", "7")
    assert len(alone) == 1
    assert digests("--seed", "7", PYTHONHASHSEED="random") == alone
    assert digests("--first", "6", "--seeds", "2", "--jobs", "1") == alone


@pytest.mark.slow
@pytest.mark.parametrize("seeds", batches_of(REGISTRY))
def test_seeds_of_several_clusters_that_failed_once_are_sound(seeds: list[str]) -> None:
    assert_sound(simulate("--geo", "--jobs", "1", "--seed", *seeds))


@pytest.mark.slow
def test_fresh_seeds_of_several_clusters_are_sound() -> None:
    first = FRESH + int.from_bytes(digest_of_code()[:3], "big")
    assert_sound(simulate("--geo", "--first", str(first), "--seeds", "2"))
