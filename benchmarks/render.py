"""Results as tables for people at a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table as RichTable

from benchmarks import tables
from benchmarks.model import Result, Verdict
from benchmarks.tables import Table


def show_settings(console: Console, title: str, settings: Mapping[str, str]) -> None:
    """Names and values, one per line."""
    table = RichTable(title=title, title_justify="left", show_header=False, box=None)
    for name, value in settings.items():
        table.add_row(name, value)
    console.print(table)


def show_table(console: Console, table: Table) -> None:
    """One of the comparison's tables."""
    shown = RichTable(title=table.title, title_justify="left")
    for number, column in enumerate(table.columns):
        shown.add_column(column, justify="right" if number else "left")
    for row in table.rows:
        shown.add_row(*row)
    console.print(shown)


def show_comparison(
    console: Console, results: Sequence[Result], verdicts: Sequence[Verdict], notes: Sequence[str]
) -> None:
    """Every workload's tables, the goals, and what is missing."""
    for table in tables.compared(results):
        show_table(console, table)
    show_goals(console, verdicts)
    for note in notes:
        console.print(f"Note: {note}", markup=False)


def show_goals(console: Console, verdicts: Sequence[Verdict]) -> None:
    """Met or missed, with what was measured and what the goal is."""
    for verdict in verdicts:
        word = "[green]met[/]   " if verdict.met else "[red]missed[/]"
        interval = tables.between(verdict)
        measured = f"{verdict.measured:.2f}" + (f" ({interval})" if interval else "")
        console.print(f"{word}  {verdict.goal}: {measured}; goal {verdict.bound}")


def show(console: Console, result: Result) -> None:
    """One benchmark: settings, medians with range and ratios, goals, notes."""
    console.rule(result.name)
    show_settings(console, "Settings", result.settings)
    title = f"{result.name}: medians; ratio to {result.baseline}"
    table = RichTable(title=title, title_justify="left")
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
    show_goals(console, result.verdicts)
    for note in result.notes:
        console.print(f"Note: {note}")


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
