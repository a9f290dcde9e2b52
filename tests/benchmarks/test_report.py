"""The results file, and the goals, tables and plot that are made from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import goals, machine, plan, report, tables
from benchmarks.model import Result, Samples
from benchmarks.systems import registry


def results() -> list[Result]:
    """All that goals ask for: velaray is twice as good as anybody else."""
    samples: dict[str, Samples] = {}
    for goal in goals.GOALS:
        for place, value in ((goal.measured, 2.0), (goal.reference, 1.0)):
            if place is not None:
                load, case, subject, measure = place
                samples.setdefault(load, Samples()).add(case, subject, measure, "msg/s", value)
    return [
        Result(name, {"how": "so"}, plan.REDIS, found.rows()) for name, found in samples.items()
    ]


def document() -> dict[str, Any]:
    found = results()
    machine = ("memory", "journals on", "kernel", "python", "date", "load after")
    load = {"processor": "2 x Some", "load before": "0.10 0.20 0.30"}
    return {
        "machine": dict.fromkeys(machine, "some") | load,
        "results": [result.as_json() for result in found],
        "goals": [
            {"goal": each.goal, "measured": each.measured, "limit": each.limit}
            | {"at_least": each.at_least}
            for each in goals.judge(found)
        ],
        "peers": {"velaray": {"server": "one"}},
        "notes": ["mars is left out: too far", "not measured: a goal"],
        "rounds": 3,
        "seconds": 600.0,
    }


def test_goals_know_which_direction_is_better() -> None:
    verdicts = {each.goal: each for each in goals.judge(results())}
    assert len(verdicts) == len(goals.GOALS)
    publish = verdicts["publish, official client, batched, 100 B, over pulsar"]
    assert publish.measured == 2.0 and publish.met and publish.bound == "≥ 1.3"
    latency = verdicts["latency, velaray, end to end p50 at 500 msg/s, over redis-always"]
    assert latency.measured == 2.0 and not latency.met and latency.bound == "≤ 1"


def test_a_ratio_of_several_rounds_has_an_interval() -> None:
    samples = Samples()
    for mine, other in ((2.0, 1.0), (8.0, 2.0), (6.0, 3.0), (4.0, 1.0)):
        samples.add("100 B", "velaray", "publish", "msg/s", mine)
        samples.add("100 B", "pulsar", "publish", "msg/s", other)
    (verdict,) = goals.judge([Result("throughput", {}, plan.REDIS, samples.rows())])
    assert verdict.measured == pytest.approx(8**0.5)  # of 2, 4, 2 and 4
    assert verdict.low is not None and verdict.high is not None
    assert 1 < verdict.low < verdict.measured < verdict.high < 8
    assert "1.5 to 5.34" in tables.markdown(tables.goals([verdict]))


def test_a_ratio_of_two_rounds_has_no_interval() -> None:
    samples = Samples()
    for mine, other in ((2.0, 1.0), (8.0, 1.0)):
        samples.add("100 B", "velaray", "publish", "msg/s", mine)
        samples.add("100 B", "pulsar", "publish", "msg/s", other)
    (verdict,) = goals.judge([Result("throughput", {}, plan.REDIS, samples.rows())])
    assert (verdict.measured, verdict.low, verdict.high) == (pytest.approx(4), None, None)


def test_a_peer_that_lacks_a_round_is_compared_by_medians() -> None:
    samples = Samples()
    for value in (1.0, 2.0, 3.0):
        samples.add("100 B", "velaray", "publish", "msg/s", value)
    samples.add("100 B", "pulsar", "publish", "msg/s", 4.0)
    (verdict,) = goals.judge([Result("throughput", {}, plan.REDIS, samples.rows())])
    assert (verdict.measured, verdict.low, verdict.high) == (0.5, None, None)


def test_goals_refer_to_existing_measures() -> None:
    measured = {
        (cell.load, cell.case, cell.subject)
        for group in plan.cells(list(plan.LOADS), registry.NAMES, 1.0)
        for cell in group
    }
    named = {
        place[:3] for goal in goals.GOALS for place in (goal.measured, goal.reference) if place
    }
    assert {place[2] for place in named - measured} == {"disk"}


def test_a_goal_without_one_of_its_sides_is_undecided() -> None:
    assert goals.judge([]) == []
    everything = (list(plan.LOADS), registry.NAMES)
    assert len(goals.unmeasured([], *everything)) == len(goals.GOALS)
    assert goals.unmeasured(results(), *everything) == []
    left = goals.unmeasured([], ["latency"], ["kafka"])
    assert len(left) == 4
    assert all(each.startswith(goals.NOT_MEASURED) and plan.RELAXED in each for each in left)


def test_a_written_report_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text(json.dumps(document()), encoding="utf-8")
    assert [each.rows for each in report.results_of(report.load(path))] == [
        each.rows for each in results()
    ]


def test_a_file_that_is_not_a_report_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text("{}", encoding="utf-8")
    with pytest.raises(report.Unreadable, match="goals"):
        report.load(path)


def test_the_page_shows_figures_goals_settings_and_notes() -> None:
    page = report.page(document(), "plot.png", "there")
    assert "![plot](plot.png)" in page and "how to read it: there." in page
    assert "| velaray | 2 (2 ×) |" in page
    assert "over pulsar | 2 |  | ≥ 1.3 | met |" in page
    assert "| velaray | server | one |" in page
    assert "mars is left out" in page


def test_a_busy_machine_is_reported() -> None:
    busy = document()
    assert tables.caution(busy) == ""
    busy["machine"]["idle before"] = "0.97"
    assert tables.caution(busy) == ""
    busy["machine"]["idle before"] = "0.30"
    assert "other work took 70% of it" in report.page(busy, "plot.png", "there")


def test_idle_time_is_a_share() -> None:
    assert 0.0 <= machine.idle_share(0.05) <= 1.0


def test_table_and_plot_are_made_without_measuring(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "results.json"
    path.write_text(json.dumps(document()), encoding="utf-8")
    text, picture = report.beside(report.load(path), path)
    assert text.read_text(encoding="utf-8").startswith("# Benchmarks")
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_readme_changes_only_between_its_marks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report.plot, "draw", lambda *_: None)
    readme = tmp_path / "README.md"
    readme.write_text(f"above\n{report.BEGIN}\nold\n{report.END}\nbelow\n", encoding="utf-8")
    monkeypatch.setattr(report, "README", readme)
    monkeypatch.setattr(report, "DOCS_PAGE", tmp_path / "benchmarks.md")
    monkeypatch.setattr(report, "DOCS_PLOT", tmp_path / "benchmarks.png")
    assert report.publish(document())[0] == readme
    text = readme.read_text(encoding="utf-8")
    assert text.startswith("above\n") and text.endswith("\nbelow\n") and "old" not in text
    assert "| velaray |" in text
    assert f"Of {len(goals.GOALS) + 1} goals " in text and "1 not measured" in text
    readme.write_text("no marks", encoding="utf-8")
    with pytest.raises(report.Unreadable, match="has no"):
        report.publish(document())


def test_numbers_are_short() -> None:
    assert [tables.number(each) for each in (0.1234, 12.0, 1234, 12345, 1234567)] == [
        "0.123",
        "12",
        "1,234",
        "12 k",
        "1.23 M",
    ]
