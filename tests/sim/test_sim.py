"""Simulation among the tests: registered seeds, fresh ones, and that a seed means something."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.sim import shrink
from tests.sim.campaign import Hunt
from tests.sim.faults import Fault
from tests.sim.history import History
from tests.sim.mutants import MUTANTS
from tests.sim.run import Outcome
from tests.sim.table import row
from tools.layers import LAYERS

ROOT = Path(__file__).resolve().parents[2]
REGISTRY = tomllib.loads((Path(__file__).parent / "seeds.toml").read_text(encoding="utf-8"))
# Fresh seeds are above this number and depend on the state of the code: a test run can be repeated,
# and each change gets new seeds.
FRESH = 1_000_000

# One mutant of each kind that few seeds find; `python -m tests.sim --mutants` finds all of them.
QUICK_MUTANTS = (
    "acknowledge-before-sync",
    "seal-without-the-last-record",
    "credit-another-producer",
    "take-a-part-for-the-whole",
    "dispatch-past-permits",
    "keep-journals-of-the-deleted",
    "confirm-acks-early",
    "resend-in-reverse",
    "acknowledge-unsynced-entries",
    "trim-unacknowledged-middles",
    "keep-deleted-schemas",
)


def simulate(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command line as a user does; it sets its own hash seed."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONHASHSEED"}
    return subprocess.run(
        [sys.executable, "-m", "tests.sim", *arguments],
        cwd=ROOT,
        env=environment | variables,
        capture_output=True,
        text=True,
        check=False,
    )


def failures(found: subprocess.CompletedProcess[str]) -> list[str]:
    """The lines that say which seeds fail and how to run them again."""
    return [line for line in found.stdout.splitlines() if " fails: " in line]


def assert_sound(found: subprocess.CompletedProcess[str]) -> None:
    assert found.returncode == 0, "\n".join([*failures(found), found.stdout, found.stderr])


def test_the_first_line_names_the_seed_and_the_command() -> None:
    found = simulate("--seed", "3", "--faults", "0")
    assert_sound(found)
    assert found.stdout.splitlines()[0] == "seed 3: python -m tests.sim --seed 3 --faults 0"


def test_five_seeds_are_sound() -> None:
    found = simulate("--seeds", "5")
    assert_sound(found)
    first, *_, last = found.stdout.splitlines()
    assert first == "seeds 1 to 5: each one with python -m tests.sim --seed N"
    assert last.startswith("5 seeds in ") and last.endswith("failing: 0")


def test_five_seeds_are_sound_with_partitions_that_are_synced_on_a_timer() -> None:
    found = simulate("--seeds", "5", "--relaxed")
    assert_sound(found)
    first = "seeds 1 to 5: each one with python -m tests.sim --seed N --relaxed"
    assert found.stdout.splitlines()[0] == first


def test_a_seed_has_one_history_in_every_process() -> None:
    def digests(*arguments: str, **variables: str) -> list[str]:
        found = simulate(*arguments, "--digest", **variables)
        return [line for line in found.stdout.splitlines() if line.startswith("history of seed 7")]

    alone = digests("--seed", "7")
    assert len(alone) == 1
    assert digests("--seed", "7", PYTHONHASHSEED="random") == alone
    assert digests("--first", "6", "--seeds", "2", "--jobs", "1") == alone


def test_a_failing_run_shrinks_to_its_shortest_failing_prefix(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    faults = [Fault(float(at), "kill", "CATALOG", 0.5) for at in range(6)]

    def run(seed: int, fault_count: int, relaxed: bool = False) -> Outcome:
        problems = ["broken"] if fault_count in (3, 5) else []
        return Outcome(seed, faults[:fault_count], problems, History(lambda: 0.0), 1)

    monkeypatch.setattr(shrink, "run", run)
    whole = Outcome(9, faults, ["broken"], History(lambda: 0.0), 1)
    assert shrink.shrink(whole).faults == faults[:3]


def test_a_failing_run_prints_how_to_repeat_it_and_keeps_its_history(tmp_path: Path) -> None:
    broken = ("--mutant", "acknowledge-before-sync")
    found = simulate("--seeds", "100", *broken, "--history", str(tmp_path))
    assert found.returncode == 1, found.stdout + found.stderr
    (failure,) = failures(found)
    _, _, command = failure.partition("python -m tests.sim ")
    seed, number, faults, count, *mutant = command.split()
    assert (seed, faults, tuple(mutant)) == ("--seed", "--faults", broken)
    # Another process may have left the history of a later seed.
    (history,) = tmp_path.glob(f"*-{number}.jsonl")
    lines = history.read_text(encoding="utf-8").splitlines()
    events = [json.loads(line) for line in lines]
    assert sum(event["event"] == "fault" for event in events) == int(count)
    assert number in failure
    assert simulate(*command.split()).returncode == 1


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        ("permits_are_kept: 3 s: consumer (1, 0) got an entry with 0", "permits are kept"),
        ("backlogs at the end: [0, 4]", "everything is drained"),
        (
            "harness: Exception in callback f(): InvariantViolation: no entry is lost: [(1, 2)]",
            "invariant: no entry is lost",
        ),
        ("the run got stuck while draining", "the run got stuck while draining"),
    ],
)
def test_the_table_says_briefly_how_a_mutant_was_found(problem: str, words: str) -> None:
    line = row(Hunt("drop-acks", 3, problem, 0.5))
    what, within = MUTANTS["drop-acks"].what, MUTANTS["drop-acks"].within
    assert line == f"| drop-acks | {what} | 3 | {words} | {within} |"


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_fits_what_it_breaks(name: str) -> None:
    """Otherwise a removed name is noticed only in a hunt of all mutants."""
    with MUTANTS[name].applied():
        pass


def test_an_unknown_mutant_is_refused() -> None:
    assert MUTANTS.keys() >= set(QUICK_MUTANTS)
    found = simulate("--mutants", "nothing-at-all")
    assert found.returncode == 2
    assert "no mutant is called nothing-at-all" in found.stderr


def digest_of_code() -> bytes:
    """Of everything that a simulated run executes."""
    digest = hashlib.sha256()
    folders = ("tests/sim", *(layer for layer in LAYERS if layer != "pipelines"))
    for path in sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.digest()


BATCH = 4
"""Seeds of a process, which needs seconds to start."""


def batches_of(registry: dict[str, list[dict[str, object]]], size: int = BATCH) -> list[Any]:
    """The registered seeds as parameters, ``size`` in each.

    `make test` runs one batch, chosen by the state of the code, so that changes replay all batches
    in turn; `make test-long` runs the others.
    """
    numbers = [str(entry["number"]) for entry in registry["seed"]]
    batches = [numbers[at : at + size] for at in range(0, len(numbers), size)]
    chosen = digest_of_code()[3] % len(batches)
    return [
        pytest.param(
            seeds, id=f"{seeds[0]} and more", marks=[] if at == chosen else pytest.mark.long
        )
        for at, seeds in enumerate(batches)
    ]


def thirds_of(mutants: tuple[str, ...]) -> list[Any]:
    """The mutants as parameters: one third, chosen as in `batches_of`, and the other ones."""
    chosen = digest_of_code()[4] % 3
    return [
        pytest.param(
            mutants[third::3],
            id=f"{mutants[third]} and more",
            marks=[] if third == chosen else pytest.mark.long,
        )
        for third in range(3)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("seeds", batches_of(REGISTRY))
def test_seeds_that_failed_once_are_sound(seeds: list[str]) -> None:
    assert_sound(simulate("--jobs", "1", "--seed", *seeds))


@pytest.mark.slow
def test_fresh_seeds_are_sound() -> None:
    first = FRESH + int.from_bytes(digest_of_code()[:3], "big")
    assert_sound(simulate("--first", str(first), "--seeds", "3"))


@pytest.mark.slow
@pytest.mark.parametrize("mutants", thirds_of(QUICK_MUTANTS))
def test_mutants_are_found(mutants: tuple[str, ...]) -> None:
    found = simulate("--mutants", *mutants)
    assert found.returncode == 0, found.stdout + found.stderr
