"""The figures of a run: lines in the form of ``pulsar-perf``, and facts for JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from velaray.bench.histogram import Histogram
from velaray.bench.load import Load
from velaray.bench.meter import Figures, Meter
from velaray.bench.run import Interval, Outcome

_SHARES = {
    "p50": 50.0,
    "p95": 95.0,
    "p99": 99.0,
    "p99.9": 99.9,
    "p99.99": 99.99,
    "p99.999": 99.999,
}
_TITLES = {"p50": "med", **{name: f"{name[1:]}pct" for name in list(_SHARES)[1:]}}
_NS_PER_MS = 1e6
Server = Mapping[str, float | int | None]


def interval_lines(interval: Interval) -> list[str]:
    """The lines of an interval, as ``pulsar-perf produce`` and ``consume`` print them."""
    lines, length_s = [], interval.length_s
    if interval.sent is not None:
        sent = interval.sent
        failing = f"failure {sent.failures / length_s:8.1f} msg/s"
        lines.append(
            f"Throughput produced: {interval.stored:7d} msg --- {sent.messages / length_s:8.1f} "
            f"msg/s --- {_mbit(sent.size, length_s):8.1f} Mbit/s  --- {failing} "
            f"--- {_latency(sent.latency, 'p99.99')}"
        )
    if interval.received is not None:
        received = interval.received
        lines.append(
            f"Throughput received: {interval.arrived:7d} msg --- "
            f"{received.messages / length_s:.3f}  msg/s --- "
            f"{_mbit(received.size, length_s):.3f} Mbit/s  "
            f"--- {_latency(received.latency, 'p99.99')}"
        )
    return lines


def total_lines(load: Load, outcome: Outcome) -> list[str]:
    """The lines at the end, as ``pulsar-perf produce`` and ``consume`` print them."""
    lines = []
    if load.sending:
        rates = _aggregated(outcome.sending.meter, "sent")
        latency = _latency(outcome.sending.meter.total.latency, "p99.999")
        lines += [rates, f"Aggregated latency stats --- {latency}"]
    if load.receiving:
        meter = outcome.receiving.meter
        acks = outcome.receiving.acknowledged / _seconds(meter)
        latency = _latency(meter.total.latency, "p99.999")
        lines += [
            f"{_aggregated(meter, 'received')} --- AckRate: {acks:.3f}  msg/s --- ack failed 0 msg",
            f"Aggregated latency stats --- {latency}",
        ]
    return lines


def own_lines(load: Load, outcome: Outcome, server: Server | str) -> list[str]:
    """What ``pulsar-perf`` doesn't print; ``server``: its figures, or why there are none."""
    sending = outcome.sending
    lines = []
    if not sending.meter.total.messages and sending.meter.stored:
        lines.append(
            f"All {sending.meter.stored} messages were sent in the warm-up of {load.warmup_s:g} s"
        )
    if load.rate is not None:
        late = sending.lateness
        p50, p99 = (late.percentile(share) / _NS_PER_MS for share in (50, 99))
        lines.append(
            f"Open loop: {load.rate:g} msg/s intended --- sent late by: med: {p50:.3f} ms - "
            f"99pct: {p99:.3f} - Max: {late.max / _NS_PER_MS:.3f} --- {sending.unsent} not sent"
        )
    cpu = 100 * outcome.cpu_s / outcome.elapsed_s
    lines.append(f"Client: {outcome.cpu_s:.2f} CPU s --- {cpu:.0f} % of one core")
    if isinstance(server, str):
        lines.append(f"Server: no figures: {server}")
    else:
        known = [f"{name} {value:g}" for name, value in server.items() if value is not None]
        lines.append(f"Server: {' --- '.join(known) or 'reports none of the metrics'}")
    lines += [f"{count} messages failed: {text}" for text, count in sending.errors.items()]
    return lines


def facts(load: Load, outcome: Outcome, server: Server | str) -> dict[str, Any]:
    """The whole report as JSON. Latencies are milliseconds."""
    sending, receiving = outcome.sending, outcome.receiving
    client: dict[str, Any] = {
        "cpuSeconds": round(outcome.cpu_s, 3),
        "elapsedSeconds": round(outcome.elapsed_s, 3),
    }
    if load.sending:
        client["produced"] = _facts_of(sending.meter, failures=sending.meter.failed)
        client["errors"] = dict(sending.errors)
    if load.rate is not None:
        client["sentLate"] = _latency_facts(sending.lateness)
        client["notSent"] = sending.unsent
    if load.receiving:
        client["received"] = _facts_of(
            receiving.meter, expected=outcome.expected, ofThisRun=receiving.own
        )
    figures = {"unavailable": server} if isinstance(server, str) else dict(server)
    return {"load": load.describe(), "client": client, "server": figures}


def _facts_of(meter: Meter, **more: int) -> dict[str, Any]:
    total, seconds = meter.total, _seconds(meter)
    return {
        "messages": total.messages,
        "messagesWithWarmup": meter.stored,
        **more,
        "seconds": round(meter.elapsed_s, 3),
        "messagesPerSecond": round(total.messages / seconds, 3),
        "mbitPerSecond": round(_mbit(total.size, seconds), 3),
        "latencyMs": _latency_facts(total.latency),
    }


def _latency_facts(latency: Histogram) -> dict[str, float]:
    found = {"mean": latency.mean() / _NS_PER_MS}
    found |= {name: latency.percentile(share) / _NS_PER_MS for name, share in _SHARES.items()}
    found["max"] = latency.max / _NS_PER_MS
    return {name: round(value, 3) for name, value in found.items()}


def _aggregated(meter: Meter, verb: str) -> str:
    total: Figures = meter.total
    seconds = _seconds(meter)
    return (
        f"Aggregated throughput stats --- {total.messages} records {verb} --- "
        f"{total.messages / seconds:.3f} msg/s --- {_mbit(total.size, seconds):.3f} Mbit/s"
    )


def _latency(latency: Histogram, last: str) -> str:
    """The latencies of a line, in milliseconds, up to the percentile ``last``."""
    found = _latency_facts(latency)
    names = list(_TITLES)[: list(_TITLES).index(last) + 1]
    levels = [f"{_TITLES[name]}: {found[name]:7.3f}" for name in names]
    return " - ".join(
        [f"Latency: mean: {found['mean']:7.3f} ms", *levels, f"Max: {found['max']:7.3f}"]
    )


def _seconds(meter: Meter) -> float:
    return max(meter.elapsed_s, 1e-9)


def _mbit(size: int, seconds: float) -> float:
    """Megabits a second, of 2^20 bits, as ``pulsar-perf`` has them."""
    return size * 8 / seconds / (1 << 20)
