"""Results as tables for people."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.table import Table

from benchmarks.model import Result


def show_settings(console: Console, title: str, settings: Mapping[str, str]) -> None:
    """Names and values, one per line."""
    table = Table(title=title, title_justify="left", show_header=False, box=None)
    for name, value in settings.items():
        table.add_row(name, value)
    console.print(table)


def show(console: Console, result: Result) -> None:
    """The settings, the medians with their range and ratios, the goals, the notes."""
    console.rule(result.name)
    show_settings(console, "Settings", result.settings)
    table = Table(title=f"{result.name}: medians; ratio to {result.baseline}", title_justify="left")
    for column in ("case", "measure", "subject"):
        table.add_column(column)
    for column in ("median", "lowest", "highest", "unit", "ratio"):
        table.add_column(column, justify="right")
    last = ("", "")
    for row in result.rows:
        ratio = result.ratio(row)
        place = (row.case, row.measure)
        table.add_row(
            *(place if place != last else ("", "")),
            row.subject,
            *(_number(value) for value in (row.median, min(row.values), max(row.values))),
            row.unit,
            "" if ratio is None else f"{ratio:.2f}",
        )
        last = place
    console.print(table)
    for verdict in result.verdicts:
        word = "[green]met[/]" if verdict.met else "[red]missed[/]"
        console.print(f"{word}  {verdict.goal}: {verdict.measured:.2f} (at most {verdict.limit:g})")
    for note in result.notes:
        console.print(f"Note: {note}")


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
