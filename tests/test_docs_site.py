"""The site of the documents: its links, and the pages that are made from code."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from tools import docs_site, metrics_reference
from velaray.topology.metrics import METRICS


@pytest.mark.parametrize(
    ("page", "markdown", "expected"),
    [
        ("a.md", "[b](b.md#c)", "[b](b.md#c)"),
        ("a.md", "[b](https://b.example)", "[b](https://b.example)"),
        ("a.md", "[b](#c)", "[b](#c)"),
        ("a.md", "[how](../benchmarks/README.md)", "how (`benchmarks/README.md`)"),
        ("d/a.md", "[`tests/a.py`](../../tests/a.py)", "`tests/a.py`"),
        ("d/a.md", "[b](../b.md)", "[b](../b.md)"),
    ],
)
def test_links_that_leave_the_documents_become_text(
    page: str, markdown: str, expected: str
) -> None:
    shown = SimpleNamespace(file=SimpleNamespace(src_uri=page))
    assert docs_site.on_page_markdown(markdown, page=shown) == expected


def test_folders_are_listed_once(tmp_path: Path) -> None:
    (tmp_path / "reference").mkdir()
    for name in ("api", "rest", "cli"):
        (tmp_path / "reference" / f"{name}.md").touch()
    nav = [{"Start": ["index.md"]}, {"Reference": [{"API": "reference/api.md"}]}]
    docs_site.on_config({"docs_dir": str(tmp_path), "nav": nav})
    assert nav[1]["Reference"] == [
        {"API": "reference/api.md"},
        "reference/cli.md",
        "reference/rest.md",
    ]


def test_the_reference_of_metrics_is_current(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("sys.argv", ["metrics_reference", "--check"])
    assert metrics_reference.main() == 0
    monkeypatch.setattr(metrics_reference, "ROOT", tmp_path)
    assert metrics_reference.main() == 1
    monkeypatch.setattr("sys.argv", ["metrics_reference"])
    (tmp_path / "docs" / "reference").mkdir(parents=True)
    assert metrics_reference.main() == 0
    page = (tmp_path / metrics_reference.PAGE).read_text()
    assert all(f"`{name}`" in page for name in METRICS)
