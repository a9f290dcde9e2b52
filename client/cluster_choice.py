"""Which of several clusters to use, as probes tell. No I/O and no timers."""

from __future__ import annotations

from collections.abc import Generator


class ClusterChoice:
    """Counts what probes tell of clusters, of which number 0 is the primary one."""

    def __init__(self, clusters: int, failover_threshold: int, switch_back_threshold: int) -> None:
        self.current = 0
        self._clusters = clusters
        self._failover_threshold = failover_threshold
        self._switch_back_threshold = switch_back_threshold
        self._failures = 0  # of the current one
        self._answers = 0  # of the primary one, while another one is in use

    def round(self) -> Generator[int, bool, None]:
        """One round of probes: yields which cluster to probe, and takes whether it answered.

        `current` may be another one when it's over.
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
