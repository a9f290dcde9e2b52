"""Medians, ratios, verdicts, and their JSON and table forms."""

from __future__ import annotations

import json

from rich.console import Console

from benchmarks.model import Result, Row, Samples, Verdict
from benchmarks.render import show


def result() -> Result:
    samples = Samples()
    for velaray, redis in ((30.0, 10.0), (90.0, 20.0), (60.0, 40.0)):
        samples.add("100 B", "velaray", "publish", "msg/s", velaray)
        samples.add("100 B", "velaray", "drain", "msg/s", 1.0)
        samples.add("100 B", "redis", "publish", "msg/s", redis)
    return Result("throughput", {"how": "so"}, "redis", samples.rows())


def test_rows_have_a_value_per_round_and_are_grouped_by_measure() -> None:
    rows = result().rows
    assert [(row.measure, row.subject) for row in rows] == [
        ("publish", "velaray"),
        ("publish", "redis"),
        ("drain", "velaray"),
    ]
    assert rows[0].values == (30.0, 90.0, 60.0)
    assert rows[0].median == 60.0


def test_ratios_are_to_the_baseline_of_the_same_case_and_measure() -> None:
    found = result()
    assert [found.ratio(row) for row in found.rows] == [3.0, None, None]
    assert found.ratio(Row("1 KiB", "velaray", "publish", "msg/s", (1.0,))) is None


def test_a_goal_is_met_up_to_its_limit() -> None:
    assert Verdict("x", 1.5, 1.5).met
    assert not Verdict("x", 1.51, 1.5).met
    assert Verdict("x", 1.51, 1.5, at_least=True).met
    assert not Verdict("x", 1.49, 1.5, at_least=True).met


def test_json_and_table_show_the_results() -> None:
    found = result()
    found.verdicts.append(Verdict("fast enough", 2.0, 1.0))
    found.notes.append("no nats")
    document = json.loads(json.dumps(found.as_json()))
    assert document["rows"][0]["median"] == 60.0
    assert document["rows"][0]["ratio"] == 3.0
    assert document["verdicts"][0]["met"] is False
    assert Result.from_json(document) == found
    console = Console(width=110)
    with console.capture() as captured:
        show(console, found)
    text = captured.get()
    assert "3.00" in text and "missed  fast enough" in text and "Note: no nats" in text
