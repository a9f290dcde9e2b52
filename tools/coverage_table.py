"""Print the test coverage by folder and by file, and fail if a folder is below the bound.

Run as ``python tools/coverage_table.py REPORT`` on a report of ``coverage json``. Lines and
branches are counted separately, and both must reach the bound: a sum hides the branches, since
there are fewer of them. The exit status is 1 if a folder is below.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

BOUND = 95.0
FOLDERS = ("events", "journal", "schemas", "actors", "wire")


@dataclass
class Count:
    """Numbers of lines and branches, covered ones and all."""

    lines: int = 0
    covered_lines: int = 0
    branches: int = 0
    covered_branches: int = 0

    def add(self, summary: dict[str, int]) -> None:
        """Add the numbers of a file."""
        self.lines += summary["num_statements"]
        self.covered_lines += summary["covered_lines"]
        self.branches += summary["num_branches"]
        self.covered_branches += summary["covered_branches"]

    @property
    def percent(self) -> tuple[float, float]:
        """Percentages of lines and of branches that are covered; 100 if there are none."""
        return (
            100 * self.covered_lines / self.lines if self.lines else 100.0,
            100 * self.covered_branches / self.branches if self.branches else 100.0,
        )

    def row(self, name: str, missing: str = "") -> str:
        """One line of the table."""
        lines, branches = self.percent
        text = (
            f"{name:<26}{self.covered_lines:>6} of {self.lines:<5}{lines:>6.1f} %"
            f"{self.covered_branches:>7} of {self.branches:<5}{branches:>6.1f} %  {missing}"
        )
        return text.rstrip()


def missing(found: dict[str, list]) -> str:
    """The lines and branches of a file that aren't covered, without the branches of such lines."""
    lines = found["missing_lines"]
    gone = set(lines)
    branches = [
        f"{start}->{end if end > 0 else 'exit'}"
        for start, end in found["missing_branches"]
        if start not in gone
    ]
    return ", ".join([*map(str, lines), *branches])


def table(report: dict) -> tuple[list[str], list[str]]:
    """The lines of the table, and the folders that are below the bound."""
    counts = {folder: Count() for folder in FOLDERS}
    files: list[str] = []
    for path, found in sorted(report["files"].items()):
        if not found["summary"]["num_statements"]:
            continue
        counts[path.partition("/")[0]].add(found["summary"])
        count = Count()
        count.add(found["summary"])
        files.append(count.row(path, missing(found)))
    below = [
        f"{folder}: {count.percent[0]:.1f} % of lines, {count.percent[1]:.1f} % of branches"
        for folder, count in counts.items()
        if not count.lines or min(count.percent) < BOUND
    ]
    head = f"{'':<26}{'lines':>23}{'branches':>22}"
    folders = [count.row(folder) for folder, count in counts.items()]
    return [f"{head}  not covered", *files, "", head, *folders], below


def main() -> None:
    """The command line."""
    (path,) = sys.argv[1:]
    lines, below = table(json.loads(Path(path).read_text(encoding="utf-8")))
    print("\n".join(lines))
    if below:
        raise SystemExit(f"below {BOUND:.0f} %: {'; '.join(below)}")


if __name__ == "__main__":
    main()
