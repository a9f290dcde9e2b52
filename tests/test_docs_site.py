"""The site of the documents: its links, and the pages that are made from code."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from tools import (
    docs_site,
    generate_configuration,
    generated_page,
    import_diagram,
    limits_reference,
    metrics_reference,
    policies_reference,
    sequence_diagrams,
)
from tools.generated_page import ROOT
from velaray.admin.api import groups
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


@pytest.mark.parametrize(
    "tool",
    [
        limits_reference,
        metrics_reference,
        policies_reference,
        generate_configuration,
        import_diagram,
        sequence_diagrams,
    ],
)
def test_a_page_that_is_made_from_code_is_current(tool: ModuleType, tmp_path: Path) -> None:
    assert tool.out_of_date(ROOT) == []
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    changed = tmp_path / tool.PAGE
    changed.write_text(changed.read_text() + "More.\n")
    assert len(tool.out_of_date(tmp_path)) == 1


def test_a_generated_page_is_written_and_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generated_page, "ROOT", tmp_path)
    monkeypatch.setattr("sys.argv", ["tool", "--check"])
    with pytest.raises(SystemExit, match=r"page\.md:1: out of date, run `make references`"):
        generated_page.run("page.md", "text", "references")
    monkeypatch.setattr("sys.argv", ["tool"])
    generated_page.run("page.md", "text", "references")
    monkeypatch.setattr("sys.argv", ["tool", "--check"])
    generated_page.run("page.md", "text", "references")


def test_every_metric_is_in_the_reference() -> None:
    assert all(f"`{name}`" in metrics_reference.page() for name in METRICS)


def test_every_operation_is_in_the_reference() -> None:
    text = Path("docs/reference/rest.md").read_text(encoding="utf-8")
    shown = SimpleNamespace(file=SimpleNamespace(src_uri="reference/rest.md"))
    page = docs_site.on_page_markdown(text, page=shown)
    for group in groups():
        assert f"## {group.name.capitalize()}\n" in page
        for route in group.routes:
            assert f"`{route.operation.path}`" in page
    assert (
        "| `GET, PUT, POST, DELETE` `/admin/v2/namespaces/{tenant}/{namespace}/retention`" in page
    )
