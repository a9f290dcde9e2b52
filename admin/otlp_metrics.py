"""Metrics by OTLP: the samples of ``/metrics``, pushed at intervals. Needs the extra ``otel``."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from velaray.topology.metrics import METRICS, PARTS, Kind, Sample
from velaray.topology.store_spans import resource_of
from velaray.topology.telemetry import url_of

_UNKNOWN_NS = 0
"""When a series began: counters begin with their actors, which each have a time of their own."""
_UNITS = {"_seconds": "s", "_seconds_total": "s", "_bytes": "By", "_bytes_total": "By"}


class MetricsExporter:
    """Sends samples to an endpoint."""

    def __init__(self, endpoint: str, cluster: str) -> None:
        self._resource = resource_of(cluster)
        self._exporter = OTLPMetricExporter(endpoint=url_of(endpoint, "metrics"))

    def export(self, samples: Iterable[Sample]) -> bool:
        """Send the samples. Returns whether they were accepted; the exporter logs why not. Blocks,
        up to ten seconds."""
        metrics = metrics_of(samples, time.time_ns())
        scope = ScopeMetrics(InstrumentationScope("velaray"), metrics, "")
        data = MetricsData([ResourceMetrics(self._resource, [scope], "")])
        return self._exporter.export(data) is MetricExportResult.SUCCESS

    def close(self) -> None:
        """Close the connections."""
        self._exporter.shutdown()


def metrics_of(samples: Iterable[Sample], now_ns: int) -> list[Metric]:
    """Samples as OpenTelemetry's metrics, under the same names."""
    by_name: dict[str, list[Sample]] = {}
    for sample in samples:
        by_name.setdefault(PARTS.get(sample.name, sample.name), []).append(sample)
    return [_metric(name, found, now_ns) for name, found in by_name.items()]


def _metric(name: str, samples: list[Sample], now_ns: int) -> Metric:
    kind, text = METRICS[name]
    cumulative = AggregationTemporality.CUMULATIVE
    data: Gauge | Histogram | Sum
    if kind is Kind.HISTOGRAM:
        data = Histogram(_histogram_points(name, samples, now_ns), cumulative)
    else:
        points = [NumberDataPoint(each.labels, _UNKNOWN_NS, now_ns, each.value) for each in samples]
        data = Gauge(points) if kind is Kind.GAUGE else Sum(points, cumulative, True)
    unit = next((unit for end, unit in _UNITS.items() if name.endswith(end)), "")
    return Metric(name, text, unit, data)


def _histogram_points(name: str, samples: list[Sample], now_ns: int) -> list[HistogramDataPoint]:
    """One point for each set of labels. Only Prometheus's buckets contain those below them."""
    series: dict[tuple[tuple[str, str], ...], dict[str, float]] = {}
    for sample in samples:
        labels = {key: value for key, value in sample.labels.items() if key != "le"}
        part = sample.labels.get("le") or sample.name.removeprefix(f"{name}_")
        series.setdefault(tuple(sorted(labels.items())), {})[part] = sample.value
    return [_point(dict(labels), parts, now_ns) for labels, parts in series.items()]


def _point(
    labels: Mapping[str, str], parts: Mapping[str, float], now_ns: int
) -> HistogramDataPoint:
    steps = sorted((float(le), count) for le, count in parts.items() if le not in ("sum", "count"))
    counts, below = [], 0
    for _, count in steps:
        counts.append(round(count) - below)
        below = round(count)
    return HistogramDataPoint(
        labels,
        _UNKNOWN_NS,
        now_ns,
        round(parts["count"]),
        parts["sum"],
        counts,
        [bound for bound, _ in steps[:-1]],
        min=None,  # type: ignore[arg-type]  # optional in the protocol
        max=None,  # type: ignore[arg-type]
    )
