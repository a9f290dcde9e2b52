"""The metrics of a coordinator: numbers and durations of transactions."""

from __future__ import annotations

from velaray.actors.coordinator.state import CoordinatorState, Status, Transaction
from velaray.actors.runtime import LATENCY_CLASSES_S
from velaray.topology.histograms import ClassRates, Durations
from velaray.topology.metrics import (
    COMMIT_LATENCY,
    EXECUTION_LATENCY,
    EXECUTION_NAMES,
    EXECUTION_STEPS_MS,
    Labels,
    Rates,
    Sample,
)


class CoordinatorMetrics:
    """Counts for one activation of a coordinator."""

    def __init__(self, labels: Labels, now_ms: int) -> None:
        self._labels = labels
        self.created = 0
        self.timed_out = 0
        self._committed = 0
        self._aborted = 0
        self._executions = Durations([step / 1000 for step in EXECUTION_STEPS_MS])
        self._commits = Durations(LATENCY_CLASSES_S)
        self._rates = ClassRates(EXECUTION_NAMES, EXECUTION_STEPS_MS, Rates(now_ms / 1000))

    def ended(self, known: Transaction, now_ms: int) -> None:
        """Count a transaction whose verdict all participants have applied."""
        if known.status == Status.COMMITTING:
            self._committed += 1
        else:
            self._aborted += 1
        self._executions.add((now_ms - known.begun_ms) / 1000)

    def committed_in(self, seconds: float) -> None:
        """Record the time between a request to commit and its answer."""
        self._commits.add(seconds)

    def samples(self, state: CoordinatorState, now_ms: int) -> list[Sample]:
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
        }
        executions = self._executions
        return [
            *(Sample(name, labels, value) for name, value in values.items()),
            *executions.samples(EXECUTION_LATENCY, labels),
            *self._rates.samples(now_ms / 1000, labels, executions.steps_s, executions.counts),
            *self._commits.samples(COMMIT_LATENCY, labels),
        ]
