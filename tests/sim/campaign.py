"""Many runs, in as many processes as are wanted: of seeds, or of mutants until one is found."""

from __future__ import annotations

import gc
import multiprocessing
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from tests.sim.kind import Kind
from tests.sim.mutants import MUTANTS
from tests.sim.shrink import report, run_as

TaskT = TypeVar("TaskT")
ResultT = TypeVar("ResultT")

RUNS_PER_PROCESS = 100
"""A run leaves some megabytes behind; a new process has them back."""


@dataclass(frozen=True)
class Verdict:
    """What a run of a seed showed; ``report`` is empty if it was sound.

    ``digest`` is the history's, if it was asked for. ``counts`` are added up over a campaign.
    """

    seed: int
    digest: str
    report: str
    cpu_s: float
    counts: Counter[str]


@dataclass(frozen=True)
class Hunt:
    """How a mutant was found: by the first problem of ``seed``; None if it wasn't."""

    mutant: str
    seed: int | None
    problem: str
    cpu_s: float


@dataclass(frozen=True)
class Orders:
    """How to run seeds: with how many of their faults, with which mutant, whether to tell the
    digest of their histories, where histories of failing runs go, and the kind of runs."""

    faults: int | None
    mutant: str | None
    digest: bool
    histories: Path
    kind: Kind


def examine(orders: Orders, seed: int) -> Verdict:
    """Run a seed; if it fails, make it smaller and write its history."""
    mutant = orders.mutant
    kind = orders.kind
    if mutant is not None and not any(kind):
        kind = MUTANTS[mutant].kind()
    began = time.process_time()
    with MUTANTS[mutant].applied() if mutant else nullcontext():
        outcome = run_as(seed, orders.faults, kind)
        text = report(outcome, orders.histories, mutant) if outcome.problems else ""
    digest = outcome.history.digest() if orders.digest else ""
    return Verdict(seed, digest, text, time.process_time() - began, outcome.counts)


def hunt(mutant: str) -> Hunt:
    """Run seeds with the mutant, from 1 on, until one fails or there were enough of them."""
    began = time.process_time()
    found, problem = None, ""
    known = MUTANTS[mutant]
    with known.applied():
        for seed in range(1, known.within + 1):
            outcome = run_as(seed, None, known.kind())
            if outcome.problems:
                found, problem = seed, outcome.problems[0]
                break
    return Hunt(mutant, found, problem, time.process_time() - began)


def examine_all(seeds: Iterable[int], jobs: int, orders: Orders) -> Iterator[Verdict]:
    """The verdict on each seed, in order, from ``jobs`` processes (1: from this one)."""
    return _spread(partial(examine, orders), seeds, jobs)


def hunt_all(mutants: Iterable[str], jobs: int) -> Iterator[Hunt]:
    """How each mutant was found, in order, from ``jobs`` processes (1: from this one)."""
    return _spread(hunt, mutants, jobs)


def _spread(
    work: Callable[[TaskT], ResultT], tasks: Iterable[TaskT], jobs: int
) -> Iterator[ResultT]:
    gc.freeze()  # what was imported needn't be looked at again after every run
    if jobs == 1:
        yield from map(work, tasks)
        return
    # Forked, so that every process has the same hash seed and has imported everything.
    context = multiprocessing.get_context("fork")
    with context.Pool(jobs, maxtasksperchild=RUNS_PER_PROCESS) as processes:
        yield from processes.imap(work, tasks)
