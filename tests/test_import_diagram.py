"""The diagram of imports is current and complete, and its arrows go one way."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import import_diagram
from tools.layers import LAYERS

ROOT = Path(__file__).resolve().parent.parent


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "docs").mkdir(exist_ok=True)
    return root


def test_every_arrow_points_down() -> None:
    graph = import_diagram.read(ROOT)
    place = {
        node: number for number, level in enumerate(import_diagram.levels(graph)) for node in level
    }
    assert place.keys() == LAYERS.keys()
    assert sum(map(len, graph.values())) > 30
    assert all(place[target] < place[node] for node in graph for target in graph[node])


def test_the_page_is_current_until_an_import_is_added(tmp_path: Path) -> None:
    root = tree(tmp_path, {"events/m.py": "", "journal/m.py": "import velaray.events.m"})
    stale = [f"{import_diagram.PAGE}:1: out of date, run `make diagram`"]
    assert import_diagram.out_of_date(root) == stale
    (root / import_diagram.PAGE).write_text(import_diagram.page(root))
    assert import_diagram.out_of_date(root) == []
    assert "    journal --> events\n" in import_diagram.page(root)
    tree(root, {"wire/m.py": "def f():\n    from velaray.events import m"})
    assert import_diagram.out_of_date(root) == stale


@pytest.mark.parametrize(
    "back",
    [
        "from velaray import journal",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import velaray.journal.m",
    ],
)
def test_an_upward_arrow_is_caught(tmp_path: Path, back: str) -> None:
    root = tree(tmp_path, {"events/m.py": back, "journal/m.py": "import velaray.events.m"})
    (fault,) = import_diagram.out_of_date(root)
    assert fault.endswith("imports don't go one way among these layers: events, journal")


def test_arrows_that_a_longer_path_implies_are_left_out() -> None:
    graph = {"a": set(), "b": {"a"}, "c": {"a", "b"}, "d": {"a", "c"}, "e": {"a"}}
    assert import_diagram.reduced(graph) == {
        "a": set(),
        "b": {"a"},
        "c": {"b"},
        "d": {"c"},
        "e": {"a"},
    }
