"""What the server says about a run: the difference of two readings of its Prometheus metrics."""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from velaray.client.admin.connection import AdminConnection
from velaray.client.admin.errors import AdminError

_LINE = re.compile(r"^(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_MESSAGES_IN, _MESSAGES_OUT = "pulsar_in_messages_total", "pulsar_out_messages_total"
_BYTES_IN, _BYTES_OUT = "pulsar_in_bytes_total", "pulsar_out_bytes_total"
_OF_TOPICS = (_MESSAGES_IN, _MESSAGES_OUT, _BYTES_IN, _BYTES_OUT)
_CPU = ("velaray_host_cpu_seconds_total", "process_cpu_seconds_total")
"""CPU seconds: velaray's name, and the one that a broker of Pulsar has."""
_WRITES = "velaray_storage_write_latency_seconds_bucket"
_OF_SUBSCRIPTIONS = " of subscriptions"
"""Counters that exist for topics and for their subscriptions must not be added up."""
_MOVED = (301, 302)


@dataclass(slots=True)
class Reading:
    """The sums of the counters that matter."""

    counters: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    writes: dict[float, float] = field(default_factory=lambda: defaultdict(float))
    """Writes by the upper bound of their latency in seconds, each with those below it."""


def read(connection: AdminConnection, topics: Collection[str]) -> Reading:
    """Read the metrics of these topics. Raises `AdminError` if the server refuses or is away."""
    answer = asyncio.run(connection.send("GET", "/metrics"))
    if answer.status in _MOVED:  # a broker of Pulsar serves it there only
        answer = asyncio.run(connection.send("GET", "/metrics/"))
    if answer.status != 200:
        raise AdminError(answer.status, f"{connection.url}/metrics has no metrics")
    return parse(answer.content.decode(), topics)


def parse(text: str, topics: Collection[str]) -> Reading:
    """The counters in Prometheus' text form. ``topics``: their full names, without partitions."""
    found = Reading()
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        name, labels = match["name"], dict(_LABEL.findall(match["labels"] or ""))
        if name in _CPU:
            found.counters["cpu"] += float(match["value"])
        elif (name in _OF_TOPICS or name == _WRITES) and _is_of(labels, topics):
            if name == _WRITES:
                found.writes[float(labels["le"])] += float(match["value"])
            else:
                whose = _OF_SUBSCRIPTIONS if "subscription" in labels else ""
                found.counters[name + whose] += float(match["value"])
    return found


def _is_of(labels: Mapping[str, str], topics: Collection[str]) -> bool:
    """Whether a metric is of one of these topics or of a partition of one."""
    return re.sub(r"-partition-\d+$", "", labels.get("topic", "")) in topics


def figures(before: Reading, after: Reading) -> dict[str, float | int | None]:
    """What happened between two readings; None for what this server doesn't report."""

    def passed(name: str) -> float | None:
        if name not in after.counters:
            name += _OF_SUBSCRIPTIONS
        if name not in after.counters:
            return None
        return after.counters[name] - before.counters.get(name, 0.0)

    cpu_s, messages = passed("cpu"), passed(_MESSAGES_IN)
    writes = {at: after.writes[at] - before.writes.get(at, 0.0) for at in sorted(after.writes)}
    return {
        "messagesIn": _whole(messages),
        "messagesOut": _whole(passed(_MESSAGES_OUT)),
        "bytesIn": _whole(passed(_BYTES_IN)),
        "bytesOut": _whole(passed(_BYTES_OUT)),
        "cpuSeconds": None if cpu_s is None else round(cpu_s, 3),
        "cpuSecondsPerMillionIn": (
            round(cpu_s / messages * 1e6, 3) if messages and cpu_s is not None else None
        ),
        "writeLatencyP50Ms": _quantile(writes, 0.5),
        "writeLatencyP99Ms": _quantile(writes, 0.99),
    }


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def _quantile(writes: Mapping[float, float], share: float) -> float | None:
    """A quantile in milliseconds, interpolated within its bucket as Prometheus does."""
    total = max(writes.values(), default=0.0)
    if not total:
        return None
    lower, below = 0.0, 0.0
    for upper, count in writes.items():
        if count >= share * total:
            if upper == float("inf"):
                return round(lower * 1000, 3)
            part = (share * total - below) / (count - below)
            return round((lower + (upper - lower) * part) * 1000, 3)
        lower, below = upper, count
    return None
