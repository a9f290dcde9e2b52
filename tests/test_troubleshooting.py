"""The texts of docs/troubleshooting.md are those of the code, and every reason is listed."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from tests.support.samples import ROOT

PAGE = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
PACKAGES = ("actors", "admin", "broker", "client", "journal", "pipelines", "topology", "velaray")
QUOTED = re.findall(r"^- `([^`]+)`", PAGE, flags=re.MULTILINE)
REASONS = re.findall(r"^\| (`[^|]+`) \|", PAGE, flags=re.MULTILINE)


@cache
def texts() -> str:
    """Every literal text of the packages, a line each; inserted values are left out."""
    found = []
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.JoinedStr):
                    parts = [part.value for part in node.values if isinstance(part, ast.Constant)]
                    found.append("\0".join(map(str, parts)))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append(node.value)
    return "\n".join(found)


def test_the_page_quotes_errors() -> None:
    assert len(QUOTED) > 20


@pytest.mark.parametrize("text", QUOTED)
def test_a_quoted_text_is_one_of_the_code(text: str) -> None:
    assert text in texts()


def test_every_reason_why_entries_wait_is_listed() -> None:
    source = (ROOT / "broker/partition/subscription_view.py").read_text(encoding="utf-8")
    reasons = re.findall(r"Holdup\(\s*\"([a-z-]+)\"", source)
    listed = [word for cell in REASONS for word in re.findall(r"`([^`]+)`", cell)]
    assert sorted(listed) == sorted(reasons)
