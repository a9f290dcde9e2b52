"""The oracle's recording holds for today's machines, and finds a machine that was changed."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.oracle.runs import read_rows, read_traces, replay_all
from tests.oracle.trace import Differs, replay
from velaray.actors.machine import Decision
from velaray.actors.partition.machine import PartitionMachine

ROOT = Path(__file__).resolve().parent.parent.parent
SAMPLE = 30


def test_machines_behave_as_recorded() -> None:
    assert replay_all(SAMPLE) > 50_000


@pytest.mark.slow
def test_histories_match_the_recorded_digests() -> None:
    every = len(read_rows()) // 10
    command = [sys.executable, "-m", "tests.oracle", "histories", "--every", str(every)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def _first_trace() -> Any:
    _, trace = next(iter(read_traces()))
    return trace


def test_a_changed_decision_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    decide = PartitionMachine.decide
    turns = itertools.count()

    def changed(self: Any, state: Any, command: Any, now_ms: int) -> Decision:
        decision = decide(self, state, command, now_ms)
        return Decision(decision.events, "changed") if next(turns) == 20 else decision

    monkeypatch.setattr(PartitionMachine, "decide", changed)
    with pytest.raises(Differs, match="decide"):
        replay(_first_trace())


def test_a_changed_state_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = PartitionMachine.snapshot

    def changed(self: Any, state: Any) -> Any:
        return {**snapshot(self, state), "more": b"1"}

    monkeypatch.setattr(PartitionMachine, "snapshot", changed)
    with pytest.raises(Differs, match="snapshot"):
        replay(_first_trace())
