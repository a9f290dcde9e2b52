"""The metrics in `ray.util.metrics`, for Ray's dashboard and agents.

Histograms are left out, since Ray's can't be set to counts of classes; `/metrics` has them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from ray.util.metrics import Counter, Gauge

from velaray.topology.metrics import METRICS, PARTS, Kind, Sample

EXPORT_S = 10.0
"""The period at which an actor's process reports to Ray."""

MOST_SERIES = 50_000
"""The most series of values that a process reports; each takes 2 KiB of memory. Ray keeps the
series of topics that have left, so a process with ever new topics would grow without limit."""

logger = logging.getLogger("velaray")

_TAGS = (
    *("cluster", "namespace", "topic", "subscription", "kind", "remote_cluster"),
    *("coordinator_id", "deleter_id"),
)


class RayMetrics:
    """The metrics that this process reports to Ray; each is created with its first value."""

    def __init__(self) -> None:
        self._gauges: dict[str, Gauge] = {}
        self._counters: dict[str, Counter] = {}
        self._told: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        self._full = False

    def tell(self, samples: Iterable[Sample]) -> None:
        """Set the gauges; add the increments since the last call to the counters. New series
        beyond `MOST_SERIES` are left out."""
        for sample in samples:
            if sample.name in PARTS:
                continue
            key = sample.name, frozenset(sample.labels.items())
            if key in self._told or self._has_room():
                before = self._told.get(key, 0)
                self._told[key] = sample.value
                self._tell(sample, before)

    def _has_room(self) -> bool:
        if len(self._told) < MOST_SERIES:
            return True
        if not self._full:
            self._full = True
            logger.warning(
                "this process reports %d series of metrics to Ray, and no further ones; "
                "/metrics has all",
                MOST_SERIES,
            )
        return False

    def _tell(self, sample: Sample, before: float) -> None:
        name, labels, value = sample
        tags = {**dict.fromkeys(_TAGS, ""), **labels}
        kind, text = METRICS[name]
        if kind is Kind.GAUGE:
            if name not in self._gauges:
                self._gauges[name] = Gauge(name, text, tag_keys=_TAGS)
            self._gauges[name].set(value, tags)
            return
        if name not in self._counters:
            self._counters[name] = Counter(name, text, tag_keys=_TAGS)
        if value > before:  # less: its subscription was deleted and created again
            self._counters[name].inc(value - before, tags)
