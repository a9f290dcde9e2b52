"""The same metrics through `ray.util.metrics`: Ray's dashboard and agents show them."""

from __future__ import annotations

from collections.abc import Iterable

from ray.util.metrics import Counter, Gauge

from velaray.topology.metrics import METRICS, Kind, Sample

EXPORT_S = 10.0
"""How often an actor's process tells Ray."""

_TAGS = ("cluster", "namespace", "topic", "subscription", "kind", "coordinator_id")


class RayMetrics:
    """What this process tells Ray; each metric is made when it first has a value."""

    def __init__(self) -> None:
        self._gauges: dict[str, Gauge] = {}
        self._counters: dict[str, Counter] = {}
        self._told: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}

    def tell(self, samples: Iterable[Sample]) -> None:
        """Set the gauges; add to the counters what came since the last time."""
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
            if value > before:  # less: its subscription was deleted and made anew
                self._counters[name].inc(value - before, tags)
            self._told[key] = value
