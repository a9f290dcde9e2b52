"""Bars of the comparison as a PNG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.model import Result
from benchmarks.plan import IN_FLIGHT

_PANELS = (
    ("throughput", "100 B", "publish", "publish 100 B, messages/s"),
    ("throughput", "1 KiB", "publish", "publish 1 KiB, messages/s"),
    ("throughput", "64 KiB", "publish", "publish 64 KiB, messages/s"),
    ("throughput", "100 B", "drain", "drain 100 B, messages/s"),
    ("throughput", "1 KiB", "drain", "drain 1 KiB, messages/s"),
    ("topics", "100 B, 16 topics", "publish", "16 producers, 16 topics, messages/s"),
    ("latency", "500 msg/s", "end to end p50", "latency p50 at 500/s, µs"),
    ("latency", "500 msg/s", "end to end p99", "latency p99 at 500/s, µs"),
    ("transactions", "1 + 1", f"transactions, {IN_FLIGHT} in flight", "1 + 1, transactions/s"),
    ("transactions", "100 + 100", f"messages, {IN_FLIGHT} in flight", "100 + 100, messages/s"),
    ("transactions", "100 + 100", "commit p50, one at a time", "100 + 100, commit p50, µs"),
    ("fan-out", "1 KiB, 5 subscriptions", "deliveries", "5 subscriptions, deliveries/s"),
)
_OURS, _OTHERS, _MEMORY = "#2a6f97", "#a9a9a9", "#e0e0e0"
_ACROSS = 3


def draw(results: Sequence[Result], headline: str, path: Path) -> None:
    """Write the plot. Logarithmic, since the slowest and the fastest differ a thousandfold."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = [panel for panel in _PANELS if _bars(results, panel)]
    down = -(-len(panels) // _ACROSS)
    figure, all_axes = pyplot.subplots(down, _ACROSS, figsize=(16, 4.2 * down), squeeze=False)
    for axes in all_axes.flat[len(panels) :]:
        axes.axis("off")
    for axes, panel in zip(all_axes.flat, panels, strict=False):
        _panel(axes, _bars(results, panel), panel[3])
    figure.suptitle(headline, fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=100)
    pyplot.close(figure)


def _bars(results: Sequence[Result], panel: tuple[str, str, str, str]) -> list[tuple[str, float]]:
    load, case, measure, _ = panel
    rows = [
        row
        for result in results
        if result.name == load
        for row in result.rows
        if (row.case, row.measure) == (case, measure)
    ]
    return [(row.subject, row.median) for row in sorted(rows, key=lambda row: row.median)]


def _panel(axes: Any, bars: list[tuple[str, float]], title: str) -> None:
    colours = [_colour(name) for name, _ in bars]
    drawn = axes.barh([name for name, _ in bars], [value for _, value in bars], color=colours)
    axes.bar_label(drawn, fmt="{:,.0f}", fontsize=7, padding=2)
    axes.set_xscale("log")
    values = [value for _, value in bars]
    axes.set_xlim(min(values) / 5, max(values) * 5)
    axes.xaxis.set_minor_formatter("")
    axes.set_title(title, fontsize=10)
    axes.tick_params(labelsize=8)


def _colour(name: str) -> str:
    if name.startswith("velaray"):
        return _OURS
    return _MEMORY if name == "ray-queue" else _OTHERS
