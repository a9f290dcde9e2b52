"""The metrics of a coordinator: numbers and durations of transactions."""

from __future__ import annotations

from bisect import bisect_left

from velaray.actors.coordinator.state import CoordinatorState, Status, Transaction
from velaray.topology.metrics import (
    COMMIT_NAMES,
    EXECUTION_NAMES,
    EXECUTION_STEPS_MS,
    LATENCY_STEPS_MS,
    Labels,
    Sample,
)


class CoordinatorMetrics:
    """Counts for one activation of a coordinator."""

    def __init__(self, labels: Labels) -> None:
        self._labels = labels
        self.created = 0
        self.timed_out = 0
        self._committed = 0
        self._aborted = 0
        self._executions = [0] * len(EXECUTION_NAMES)
        self._commits = [0] * len(COMMIT_NAMES)

    def ended(self, known: Transaction, now_ms: int) -> None:
        """Count a transaction whose verdict all participants have applied."""
        if known.status == Status.COMMITTING:
            self._committed += 1
        else:
            self._aborted += 1
        self._executions[bisect_left(EXECUTION_STEPS_MS, now_ms - known.begun_ms)] += 1

    def committed_in(self, seconds: float) -> None:
        """Record the time between a request to commit and its answer."""
        self._commits[bisect_left(LATENCY_STEPS_MS, seconds * 1000)] += 1

    def samples(self, state: CoordinatorState) -> list[Sample]:
        """All metrics, as they are now."""
        labels, ending = self._labels.of_coordinator(), len(state.decided())
        counts = {
            "created": self.created,
            "committed": self._committed,
            "aborted": self._aborted,
            "timeout": self.timed_out,
        }
        values: dict[str, float] = {
            "pulsar_txn_active_count": len(state.unfinished),
            **{f"pulsar_txn_{what}_count": count for what, count in counts.items()},
            **{f"pulsar_txn_{what}_total": count for what, count in counts.items()},
            "velaray_txn_open": len(state.unfinished) - ending,
            "velaray_txn_ending": ending,
            **dict(zip(EXECUTION_NAMES, self._executions, strict=True)),
            **dict(zip(COMMIT_NAMES, self._commits, strict=True)),
        }
        return [Sample(name, labels, value) for name, value in values.items()]
