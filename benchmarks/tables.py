"""Results as tables: what the console, Markdown and README show alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks import plan
from benchmarks.model import Result, Row, Verdict

_SHOWN = {
    "throughput": (
        *("publish", "drain", "publish, server CPU", "publish, client CPU"),
        *("drain, server CPU", "drain, client CPU", "publish, disk per byte"),
    ),
    "latency": (
        *("end to end p50", "end to end p99", "end to end p99.9", "receipt p50", "receipt p99"),
        *("server CPU", "client CPU"),
    ),
    "fan-out": (
        *("deliveries", "deliveries per server CPU second", "deliveries per CPU second"),
        "read from files per byte published",
    ),
    "topics": ("publish", "server CPU", "client CPU"),
    "transactions": (
        *(f"{what}, {plan.IN_FLIGHT} in flight" for what in ("messages", "transactions")),
        *("transactions, one at a time", "commit p50, one at a time", "commit p99, one at a time"),
        *(f"{what}, {plan.IN_FLIGHT} in flight" for what in ("commit p50", "commit p99")),
        f"server CPU, {plan.IN_FLIGHT} in flight",
    ),
    "open transactions": (
        *("end to end p50", "end to end p99", "receipt p50", "receipt p99", "publish", "drain"),
    ),
    "disk": ("append and fdatasync per MiB",),
}
_RATIO_OF = ("msg/s", "µs")
QUIET = 0.9
"""So much of the processors idle before the measurement is as good as all."""


@dataclass(frozen=True, slots=True)
class Table:
    """A title, the names of columns, and rows of text."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def compared(results: Sequence[Result]) -> Iterator[Table]:
    """A table for each workload and case: subjects down, measures across."""
    for result in results:
        for case in dict.fromkeys(row.case for row in result.rows):
            yield _case(result, case)


def _case(result: Result, case: str) -> Table:
    rows = [row for row in result.rows if row.case == case]
    known = {(row.subject, row.measure): row for row in rows}
    units = {row.measure: row.unit for row in rows}
    measures = [measure for measure in _SHOWN[result.name] if measure in units]
    subjects = sorted(dict.fromkeys(row.subject for row in rows), key=_order)
    lines = tuple(
        (subject, *(_value(result, known.get((subject, measure))) for measure in measures))
        for subject in subjects
    )
    heads = (f"{measure}, {units[measure]}" if units[measure] else measure for measure in measures)
    return Table(f"{result.name}: {case}", ("system", *heads), lines)


def _order(subject: str) -> tuple[bool, str]:
    return not subject.startswith("velaray"), subject


def _value(result: Result, row: Row | None) -> str:
    """The median; for rates and latencies also the ratio to the baseline's."""
    if row is None:
        return ""
    ratio = result.ratio(row)
    if ratio is None or row.unit not in _RATIO_OF:
        return number(row.median)
    return f"{number(row.median)} ({number(ratio)} ×)"


def goals(verdicts: Sequence[Verdict]) -> Table:
    """Goals and results."""
    rows = tuple(
        (each.goal, number(each.measured), between(each), each.bound, _met(each))
        for each in verdicts
    )
    return Table("Goals", ("goal", "measured", "95 %", "limit", ""), rows)


def between(verdict: Verdict) -> str:
    """The interval of what was measured; "" if there is none."""
    if verdict.low is None or verdict.high is None:
        return ""
    return f"{number(verdict.low)} to {number(verdict.high)}"


def _met(verdict: Verdict) -> str:
    return "met" if verdict.met else "missed"


def settings(peers: dict[str, dict[str, str]]) -> Table:
    """How each system was set up."""
    rows = tuple(
        (name, what, text) for name, found in peers.items() for what, text in found.items()
    )
    return Table("Settings", ("system", "what", "how"), rows)


def markdown(table: Table) -> str:
    """The table, without its title, in Markdown."""
    lines = [table.columns, ("---", *("---:" for _ in table.columns[1:])), *table.rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def number(value: float) -> str:
    """Three digits, and thousands apart."""
    if abs(value) >= 1_000_000:
        return f"{value / 1e6:.2f} M"
    if abs(value) >= 10_000:
        return f"{value / 1e3:,.0f} k"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def caution(document: dict[str, Any]) -> str:
    """What a reader must know if other work ran on the machine; else nothing."""
    machine = document["machine"]
    idle = machine.get("idle before")  # older results don't have it
    if idle is None or float(idle) >= QUIET:
        return ""
    return (
        f"**Not a quiet machine:** other work took {1 - float(idle):.0%} of it before the first "
        "measurement. Rates and latencies are those of a busy machine and a busy disk; systems "
        "that sync often suffer most, so ratios to them are too good. CPU and bytes per message "
        "are of use.\n\n"
    )


def headline(document: dict[str, Any]) -> str:
    """Machine, date, load and duration, in a line."""
    machine, rounds = document["machine"], document["rounds"]
    return (
        f"{machine['processor']}, {machine['memory']}, {machine['journals on']}, Linux "
        f"{machine['kernel']}, Python {machine['python']}; {machine['date']}; load before "
        f"{machine['load before']}, after {machine['load after']}; {rounds} "
        f"round{'' if rounds == 1 else 's'} in {document['seconds'] / 60:.0f} min"
    )
