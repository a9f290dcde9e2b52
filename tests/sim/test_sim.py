"""Simulation among the tests: registered seeds, fresh ones, and that a seed means something."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.sim.mutants import MUTANTS

ROOT = Path(__file__).resolve().parents[2]
REGISTRY = tomllib.loads((Path(__file__).parent / "seeds.toml").read_text(encoding="utf-8"))
FRESH = 1_000_000


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command line as a user does; it sets its own hash seed."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONHASHSEED"}
    return subprocess.run(
        [sys.executable, "-m", "tests.sim", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def assert_sound(found: subprocess.CompletedProcess[str]) -> None:
    assert found.returncode == 0, found.stdout + found.stderr


def test_the_first_line_names_the_seed_and_the_command() -> None:
    found = simulate("--seed", "3", "--faults", "0")
    assert_sound(found)
    assert found.stdout.splitlines()[0] == "seed 3: python -m tests.sim --seed 3"


def test_ten_seeds_are_sound() -> None:
    assert_sound(simulate("--seeds", "10"))


def test_a_seed_has_one_history_in_every_process() -> None:
    alone = [simulate("--seed", "7", "--digest").stdout.splitlines()[1] for _ in range(2)]
    after_another = simulate("--first", "6", "--seeds", "2", "--digest").stdout.splitlines()[2]
    assert alone[0].startswith("history of seed 7: ")
    assert [*alone, after_another] == [alone[0]] * 3


@pytest.mark.slow
@pytest.mark.parametrize("entry", REGISTRY["seed"], ids=lambda entry: str(entry["number"]))
def test_a_seed_that_failed_once_is_sound(entry: dict[str, object]) -> None:
    assert_sound(simulate("--seed", str(entry["number"])))


@pytest.mark.slow
def test_fresh_seeds_are_sound() -> None:
    first = FRESH + int.from_bytes(os.urandom(3), "big")
    assert_sound(simulate("--first", str(first), "--seeds", "100"))


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found(name: str) -> None:
    found = simulate("--mutant", name, "--seeds", str(MUTANTS[name].within))
    assert found.returncode == 1, found.stdout + found.stderr
    assert "fails:" in found.stdout, found.stdout + found.stderr
