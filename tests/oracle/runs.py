"""Which runs the oracle has, and how they are recorded and compared."""

from __future__ import annotations

import hashlib
import json
import lzma
import multiprocessing
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

from tests.oracle.names import NEW_KINDS, in_recorded_words
from tests.oracle.trace import Trace, dump_trace, load_trace, recording, replay
from tests.sim.history import History
from tests.sim.kind import Kind
from tests.sim.shrink import run_as

FOLDER = Path(__file__).resolve().parent / "recorded"
ROWS = FOLDER / "runs.json"
TRACES = FOLDER / "traces.xz"
RUNS_PER_PROCESS = 50


class Run(NamedTuple):
    """A simulated run: of one cluster, of a relaxed one, or of several (``geo``)."""

    kind: str
    seed: int


RUNS = (
    *(Run("cluster", seed) for seed in range(1, 181)),
    *(Run("relaxed", seed) for seed in range(1, 31)),
    *(Run("geo", seed) for seed in range(1, 91)),
)
"""Transactions, schemas, compaction and deletions of ledgers are parts of the cluster runs."""


@dataclass(frozen=True, slots=True)
class Row:
    """The record of a run: digests of its history and its machines' trace."""

    kind: str
    seed: int
    history: str
    trace: str
    calls: int


def record(run: Run) -> tuple[Row, bytes]:
    """Run it; returns its row and its trace, not compressed. Raises if the run isn't sound."""
    trace = Trace()
    with recording(trace):
        outcome = run_as(run.seed, None, Kind(run.kind == "relaxed", run.kind == "geo"))
    if outcome.problems:
        raise AssertionError(f"{run.kind} {run.seed} isn't sound: {outcome.problems[0]}")
    row = Row(*run, history_digest(outcome.history), trace.digest(), trace.calls())
    return row, dump_trace(trace)


def history_digest(history: History) -> str:
    """The digest of a history in the words of the recording."""
    hasher = hashlib.blake2b(digest_size=8)
    for (_, kind, _), line in zip(history.events, history.lines(), strict=True):
        if kind not in NEW_KINDS:
            hasher.update(in_recorded_words(line).encode() + b"\n")
    return hasher.hexdigest()


def record_all(jobs: int, runs: Iterable[Run] = RUNS) -> Iterator[tuple[Row, bytes]]:
    """Record runs in ``jobs`` processes, in order."""
    context = multiprocessing.get_context("fork")
    with context.Pool(jobs, maxtasksperchild=RUNS_PER_PROCESS) as processes:
        yield from processes.imap(record, runs)


def write_all(recorded: Iterable[tuple[Row, bytes]]) -> int:
    """Write rows and traces to the tree; returns how many runs there are."""
    FOLDER.mkdir(exist_ok=True)
    rows = []
    with lzma.open(TRACES, "wb", preset=9) as traces:
        for row, trace in recorded:
            rows.append(row)
            traces.write(len(trace).to_bytes(4, "big") + trace)
    _write_rows(rows)
    return len(rows)


def write_histories(jobs: int) -> int:
    """Write the digests of today's histories, and keep the traces; returns how many changed."""
    rows = read_rows()
    again = record_all(jobs, [Run(row.kind, row.seed) for row in rows])
    found = [replace(row, history=now.history) for row, (now, _) in zip(rows, again, strict=True)]
    _write_rows(found)
    return sum(row != before for row, before in zip(found, rows, strict=True))


def _write_rows(rows: Iterable[Row]) -> None:
    lines = ",\n".join(json.dumps(asdict(row)) for row in rows)
    ROWS.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def read_rows() -> list[Row]:
    """The recorded rows."""
    return [Row(**row) for row in json.loads(ROWS.read_text(encoding="utf-8"))]


def read_traces() -> Iterator[tuple[Row, Trace]]:
    """The recorded traces with their rows."""
    with lzma.open(TRACES, "rb") as traces:
        for row in read_rows():
            size = int.from_bytes(traces.read(4), "big")
            yield row, load_trace(traces.read(size))


def differing_histories(jobs: int, rows: Iterable[Row]) -> Iterator[str]:
    """Run again; name the runs whose histories are others now."""
    rows = list(rows)
    again = record_all(jobs, [Run(row.kind, row.seed) for row in rows])
    for row, (now, _) in zip(rows, again, strict=True):
        if now.history != row.history:
            yield f"{row.kind} {row.seed}: history {now.history}, recorded {row.history}"


def replay_all(most: int | None = None) -> int:
    """Replay the first ``most`` traces (None: all); returns how many calls were made.

    Raises `Differs`.
    """
    calls = 0
    for at, (_, trace) in enumerate(read_traces()):
        if at == most:
            break
        calls += replay(trace)
    return calls
