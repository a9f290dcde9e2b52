"""The results file, and what is made from it without measuring again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import plan, plot, tables
from benchmarks.goals import NOT_MEASURED
from benchmarks.model import Result, Verdict
from benchmarks.tables import Table

ROOT = Path(__file__).parent.parent
DOCS_PAGE, DOCS_PLOT = ROOT / "docs" / "benchmarks.md", ROOT / "docs" / "benchmarks.png"
README = ROOT / "README.md"
BEGIN, END = "<!-- benchmarks: begin -->", "<!-- benchmarks: end -->"
_ABOUT = "How it was measured and how to read it: "


class Unreadable(ValueError):
    """A file isn't what this module writes; the text says what is missing."""


def load(path: Path) -> dict[str, Any]:
    """A results file. Raises `Unreadable`."""
    found = json.loads(path.read_text(encoding="utf-8"))
    missing = {"machine", "results", "goals", "peers", "notes", "rounds", "seconds"} - set(found)
    if missing:
        raise Unreadable(f"{path} has no {', '.join(sorted(missing))}: write one with --out")
    return dict(found)


def results_of(document: dict[str, Any]) -> list[Result]:
    """The results of the comparison."""
    return [Result.from_json(each) for each in document["results"] if each["name"] in _COMPARED]


_COMPARED = (*plan.LOADS, "disk")


def verdicts_of(document: dict[str, Any]) -> list[Verdict]:
    """The goals of the comparison."""
    return [
        Verdict(
            *(each[name] for name in ("goal", "measured", "limit", "at_least")),
            each.get("low"),
            each.get("high"),
        )
        for each in document["goals"]
    ]


def page(document: dict[str, Any], picture: str, about: str) -> str:
    """Everything, in Markdown; ``about`` says where it's explained."""
    parts = [
        "# Benchmarks\n",
        f"{tables.headline(document)}.\n\n{tables.caution(document)}",
        f"{_ABOUT}{about}. Medians of the rounds; in brackets the ratio to "
        "redis-always. Made by `python -m benchmarks render`; don't edit.\n",
        f"![plot]({picture})\n",
        _titled(tables.goals(verdicts_of(document))),
        *(_titled(table) for table in tables.compared(results_of(document))),
        _titled(tables.settings(document["peers"])),
    ]
    if document["notes"]:
        parts.append("## Notes\n\n" + "".join(f"- {note}\n" for note in document["notes"]))
    return "\n".join(parts)


def _titled(table: Table) -> str:
    return f"## {table.title}\n\n{tables.markdown(table)}"


def beside(document: dict[str, Any], path: Path) -> list[Path]:
    """Write the table and the plot beside a results file; returns where they are."""
    text, picture = path.with_suffix(".md"), path.with_suffix(".png")
    text.write_text(page(document, picture.name, "`benchmarks/README.md`"), encoding="utf-8")
    plot.draw(results_of(document), tables.headline(document), picture)
    return [text, picture]


def publish(document: dict[str, Any]) -> list[Path]:
    """Write the page and the plot into docs, and the section of README between its marks.

    Raises `Unreadable` if README has no such marks.
    """
    text = README.read_text(encoding="utf-8")
    if BEGIN not in text or END not in text:
        raise Unreadable(f"{README} has no {BEGIN} … {END}")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    README.write_text(f"{before}{BEGIN}\n{_section(document)}{END}{after}", encoding="utf-8")
    DOCS_PAGE.write_text(
        page(document, DOCS_PLOT.name, "[benchmarks](../benchmarks/README.md)"), "utf-8"
    )
    plot.draw(results_of(document), tables.headline(document), DOCS_PLOT)
    return [README, DOCS_PAGE, DOCS_PLOT]


def _section(document: dict[str, Any]) -> str:
    return (
        "![what was measured](docs/benchmarks.png)\n\n"
        f"{tables.headline(document)}.\n\n{tables.caution(document)}"
        f"{tables.markdown(_overview(results_of(document)))}\n"
        f"{_goals_in_words(document)} All tables: "
        "[docs/benchmarks.md](docs/benchmarks.md); how it was measured: "
        "[benchmarks](benchmarks/README.md).\n"
    )


def _goals_in_words(document: dict[str, Any]) -> str:
    verdicts = verdicts_of(document)
    missed = sum(not each.met for each in verdicts)
    left = sum(note.startswith(NOT_MEASURED) for note in document["notes"])
    met = len(verdicts) - missed
    return f"Of {len(verdicts) + left} goals {met} are met, {missed} missed, {left} not measured."


_OVERVIEW = (
    ("publish 100 B, msg/s", "throughput", "100 B", "publish"),
    ("publish 1 KiB, msg/s", "throughput", "1 KiB", "publish"),
    ("drain 100 B, msg/s", "throughput", "100 B", "drain"),
    ("drain 1 KiB, msg/s", "throughput", "1 KiB", "drain"),
    ("p50 at 500/s, µs", "latency", "500 msg/s", "end to end p50"),
    ("p99 at 500/s, µs", "latency", "500 msg/s", "end to end p99"),
)


def _overview(results: Sequence[Result]) -> Table:
    """The few figures that most readers want, of every subject."""
    medians = {
        (result.name, row.case, row.measure, row.subject): row.median
        for result in results
        for row in result.rows
    }
    subjects = dict.fromkeys(key[3] for key in medians if key[0] in ("throughput", "latency"))
    rows = []
    for subject in sorted(subjects, key=lambda name: (not name.startswith("velaray"), name)):
        values = (medians.get((*place, subject)) for _, *place in _OVERVIEW)
        cells = ("" if value is None else tables.number(value) for value in values)
        rows.append((subject, *cells))
    return Table("Overview", ("system", *(each[0] for each in _OVERVIEW)), tuple(rows))
