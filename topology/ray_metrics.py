"""The metrics in `ray.util.metrics`, for Ray's dashboard and agents."""

from __future__ import annotations

from collections.abc import Iterable

from ray.util.metrics import Counter, Gauge

from velaray.topology.metrics import METRICS, Kind, Sample

EXPORT_S = 10.0
"""The period at which an actor's process reports to Ray."""

_TAGS = ("cluster", "namespace", "topic", "subscription", "kind", "coordinator_id")


class RayMetrics:
    """The metrics that this process reports to Ray; each is created with its first value."""

    def __init__(self) -> None:
        self._gauges: dict[str, Gauge] = {}
        self._counters: dict[str, Counter] = {}
        self._told: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}

    def tell(self, samples: Iterable[Sample]) -> None:
        """Set the gauges; add the increments since the last call to the counters."""
        for name, labels, value in samples:
            tags = {**dict.fromkeys(_TAGS, ""), **labels}
            kind, text = METRICS[name]
            if kind is Kind.GAUGE:
                if name not in self._gauges:
                    self._gauges[name] = Gauge(name, text, tag_keys=_TAGS)
                self._gauges[name].set(value, tags)
                continue
            if name not in self._counters:
                self._counters[name] = Counter(name, text, tag_keys=_TAGS)
            key = name, frozenset(labels.items())
            before = self._told.get(key, 0)
            if value > before:  # less: its subscription was deleted and created again
                self._counters[name].inc(value - before, tags)
            self._told[key] = value
