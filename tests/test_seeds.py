"""`docs/seeds.md` names modules and tests that exist, and tests that touch those modules."""

from __future__ import annotations

import pytest

from tests.seeds_rules import ROOT, faults, rows

SEEDS = (ROOT / "docs/seeds.md").read_text(encoding="utf-8")


def test_every_row_names_existing_tests() -> None:
    assert len(list(rows(SEEDS))) > 150
    found = faults(SEEDS)
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        (
            "| C | actors/subscription/cursor.py | `tests/actors/test_curser.py` |",
            "no file tests/actors/test_c",
        ),
        ("| C | actors/curser.py | `tests/actors/test_cursor.py` |", "no file actors/curser.py"),
        ("| C | actors/subscription/cursor.py | by hand |", "no test in 'by hand'"),
        (
            "| C | schemas/native.py | `actors/test_cursor.py` |",
            "actors/test_cursor.py touches none of schemas/native.py",
        ),
        (
            "| C | actors/subscription/cursor.py, actors/catalog/migrations.py |"
            " `actors/test_cursor.py` |",
            "actors/catalog/migrations.py is touched by none of actors/test_cursor.py",
        ),
        (  # a whole cluster is imported, of which the test means something else
            "| C | broker/coordinator/coordinators.py | `topology/test_transactions.py` |",
            "topology/test_transactions.py names nothing that only",
        ),
    ],
)
def test_a_wrong_row_is_found(row: str, fault: str) -> None:
    found = faults(f"| Component | Where | Shown by |\n|---|---|---|\n{row}\n")
    assert found[0].startswith(f"C: {fault}")


def test_a_correct_row_is_accepted() -> None:
    where = "actors/subscription/cursor.py, actors/sets/offset_sets.py"
    row = f"| C | {where} | `actors/test_cursor.py` |"
    assert faults(row) == []
