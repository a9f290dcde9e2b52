"""Simulation of machines that join and are lost, and of backups, among the tests."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests.sim.history import History
from tests.sim.store_backups import promises_before
from tests.sim.test_sim import assert_sound, simulate

REGISTRY = tomllib.loads(
    (Path(__file__).parent / "machines_seeds.toml").read_text(encoding="utf-8")
)


@pytest.mark.slow
def test_two_seeds_with_machines_are_sound() -> None:
    found = simulate("--machines", "--seeds", "2")
    assert_sound(found)
    first, *_, counts, last = found.stdout.splitlines()
    assert first == "seeds 1 to 2: each one with python -m tests.sim --seed N --machines"
    for what in ("backups made", "clusters on restored data", "machines joined", "machines lost"):
        assert re.search(rf"{what}: [1-9]", counts), counts
    assert last.startswith("2 seeds in ") and last.endswith("failing: 0")


@pytest.mark.long
def test_a_seed_with_machines_has_one_history_in_every_process() -> None:
    def digests(**variables: str) -> list[str]:
        found = simulate("--machines", "--seed", "3", "--digest", **variables)
        return [line for line in found.stdout.splitlines() if line.startswith("history of seed 3")]

    alone = digests()
    assert len(alone) == 1
    assert digests(PYTHONHASHSEED="random") == alone


@pytest.mark.slow
def test_seeds_with_machines_that_failed_once_are_sound() -> None:
    seeds = [str(seed["number"]) for seed in REGISTRY.get("seed", [])]
    if seeds:
        assert_sound(simulate("--machines", "--seed", *seeds))


@pytest.mark.slow
def test_mutants_of_machines_are_found() -> None:
    quick = ("no-place-in-joined-hosts", "numbers-without-comparing", "restore-without-numbers")
    found = simulate("--mutants", *(f"machines-{name}" for name in quick))
    assert found.returncode == 0, found.stdout + found.stderr


def test_promises_end_when_a_backup_begins() -> None:
    history = History(lambda: 0.0)
    history.events = [
        (1.0, "receipt", {}),
        (1.0, "deliver", {}),
        (2.0, "receipt", {}),
        (2.0, "send", {}),
    ]
    told = promises_before(history, 2.0)
    assert told.events == [(1.0, "receipt", {}), (2.0, "send", {})]
