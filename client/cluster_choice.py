"""The choice between several clusters, from probe results. No I/O and no timers."""

from __future__ import annotations

from collections.abc import Generator


class ClusterChoice:
    """Counts the probe results of clusters; number 0 is the primary one."""

    def __init__(self, clusters: int, failover_threshold: int, switch_back_threshold: int) -> None:
        self.current = 0
        self._clusters = clusters
        self._failover_threshold = failover_threshold
        self._switch_back_threshold = switch_back_threshold
        self._failures = 0  # failures of the current cluster
        self._answers = 0  # successes of the primary cluster, while another one is in use

    def round(self) -> Generator[int, bool, None]:
        """One round of probes: yields the cluster to probe, and receives whether it answered.

        `current` may change by the end of the round.
        """
        answered = yield self.current
        self._failures = 0 if answered else self._failures + 1
        if self._failures >= self._failover_threshold:
            self._answers = 0
            for other in range(self._clusters):
                if other != self.current and (yield other):
                    self._use(other)
                    return
        elif self.current:
            self._answers = self._answers + 1 if (yield 0) else 0
            if self._answers >= self._switch_back_threshold:
                self._use(0)

    def _use(self, number: int) -> None:
        self.current = number
        self._failures = self._answers = 0
