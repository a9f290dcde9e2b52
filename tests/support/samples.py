"""The code samples of the documents: fenced blocks, and the comments that say how they are run.

A comment in the line before a block applies to it: ``<!-- run by tests/FILE.py -->`` names the test
that runs it; ``<!-- not run: REASON -->`` excuses it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTED_URL = "pulsar://127.0.0.1:6650"
_BLOCK = re.compile(
    r"(?:^<!-- (?:run by (?P<test>\S+)|not run: (?P<excuse>[^\n]+?)) -->\n)?"
    r"^```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^```$",
    flags=re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Sample:
    """A fenced block of a page."""

    page: str
    line: int
    language: str
    code: str
    test: str
    """The test file that runs it, if the page names one."""
    excuse: str
    """Why it isn't run, or empty."""


def pages() -> list[str]:
    """The pages whose samples are checked, by their paths in the tree."""
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    return sorted(page.relative_to(ROOT).as_posix() for page in found)


def samples(page: str) -> list[Sample]:
    """The fenced blocks of a page."""
    return list(parse(page, (ROOT / page).read_text(encoding="utf-8")))


def parse(page: str, text: str) -> Iterator[Sample]:
    """The fenced blocks of ``text``. Raises ValueError if a fence isn't closed or isn't seen."""
    fences = 0
    for block in _BLOCK.finditer(text):
        fences += 2
        line = text.count("\n", 0, block.start("language")) + 1
        found = {name: value or "" for name, value in block.groupdict().items()}
        yield Sample(page, line, **found)
    if fences != len(re.findall(r"^\s*```", text, flags=re.MULTILINE)):
        raise ValueError(f"{page}: a fence isn't closed, or is indented")


def python_of(page: str) -> list[str]:
    """The code of a page's Python blocks that aren't excused."""
    found = samples(page)
    return [one.code for one in found if one.language == "python" and not one.excuse]
