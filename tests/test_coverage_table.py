"""The coverage table judges lines and branches of every folder, and names what is missing."""

import json

import pytest

from tools import coverage_table
from tools.coverage_table import FOLDERS, table


def found(lines=100, covered_lines=100, branches=20, covered_branches=20, gone=(), arcs=()):
    return {
        "summary": {
            "num_statements": lines,
            "covered_lines": covered_lines,
            "num_branches": branches,
            "covered_branches": covered_branches,
        },
        "missing_lines": list(gone),
        "missing_branches": [list(arc) for arc in arcs],
    }


def report(**files):
    whole = {f"{folder}/a.py": found() for folder in FOLDERS}
    return {"files": whole | {name.replace("_", "/") + ".py": each for name, each in files.items()}}


def test_fully_covered_folders_are_not_below_the_bound() -> None:
    lines, below = table(report(wire_empty=found(0, 0, 0, 0)))
    assert below == []
    assert len(lines) == 2 * len(FOLDERS) + 3
    assert " ".join(lines[-1].split()) == "wire 100 of 100 100.0 % 20 of 20 100.0 %"


@pytest.mark.parametrize(
    ("file", "text"),
    [
        (found(covered_lines=89), "journal: 94.5 % of lines, 100.0 % of branches"),
        (found(covered_branches=17), "journal: 100.0 % of lines, 92.5 % of branches"),
    ],
)
def test_a_folder_is_below_the_bound_by_lines_or_by_branches(file, text) -> None:
    assert table(report(journal_b=file))[1] == [text]
    assert table(report(journal_b=found(covered_lines=90, covered_branches=18)))[1] == []


def test_an_unmeasured_folder_is_below_the_bound() -> None:
    whole = report()
    del whole["files"]["events/a.py"]
    assert [text.partition(":")[0] for text in table(whole)[1]] == ["events"]


def test_missing_lines_are_listed_once() -> None:
    file = found(98, 97, 20, 17, gone=[7], arcs=[(6, 7), (7, 9), (12, -3)])
    lines, _ = table(report(journal_b=file))
    (line,) = [line for line in lines if line.startswith("journal/b.py")]
    assert line.endswith("%  7, 6->7, 12->exit")


def test_the_command_fails_below_the_bound(tmp_path, monkeypatch, capsys) -> None:
    path = tmp_path / "report.json"
    monkeypatch.setattr("sys.argv", ["coverage_table.py", str(path)])
    path.write_text(json.dumps(report()))
    coverage_table.main()
    assert "actors/a.py" in capsys.readouterr().out
    path.write_text(json.dumps(report(actors_b=found(covered_lines=0))))
    with pytest.raises(SystemExit, match=r"below 95 %: actors: 50.0 % of lines"):
        coverage_table.main()
