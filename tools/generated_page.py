"""Pages of the documents that are made from code: how they are written and checked."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def out_of_date(root: Path, page: str, text: str, target: str) -> list[str]:
    """A fault if the page below ``root`` isn't ``text``; it names the target of make that helps."""
    path = root / page
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return []
    return [f"{page}:1: out of date, run `make {target}`"]


def run(page: str, text: str, target: str) -> None:
    """The command line of a tool: write the page, or with ``--check`` exit if it isn't current."""
    if sys.argv[1:] != ["--check"]:
        (ROOT / page).write_text(text, encoding="utf-8")
    elif faults := out_of_date(ROOT, page, text, target):
        raise SystemExit("\n".join(faults))
