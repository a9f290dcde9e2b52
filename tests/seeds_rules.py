"""What `docs/seeds.md` says of each component is checked: where it lives, and which test shows it.

A test *touches* a module if its imports lead there: its own, those of its folder's fixtures, and
what these import in turn. Tests of a whole cluster touch most modules so. Therefore some test of a
row must also *name* something of the row's modules that hardly any other module defines.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = (
    *("events", "journal", "schemas", "wire", "actors", "client", "topology", "broker", "geo"),
    *("admin", "velaray", "pipelines"),
)
FEW = 5
"""A name is distinctive if no more modules than these define it."""
_NO_TESTS = re.compile(r"nothing to show|`make demo")


@dataclass(frozen=True)
class Row:
    """A component, the modules where it lives and the tests that show it."""

    component: str
    modules: tuple[str, ...]
    tests: tuple[str, ...]
    shown: str


def rows(text: str) -> Iterator[Row]:
    """The rows of all tables."""
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("| ") and len(cells) == 3 and cells[0] != "Component":
            component, where, shown = cells
            tests = tuple(re.findall(r"`([\w/]+\.py)`", shown))
            yield Row(component, tuple(_modules(where)), tests, shown)


def _modules(where: str) -> Iterator[str]:
    folder = ""
    for name in re.findall(r"[\w/]+\.py", where):
        if "/" in name:
            folder = name.rpartition("/")[0]
        # A file without a folder is in that of the file before it.
        yield name if "/" in name else f"{folder}/{name}"


def faults(text: str) -> list[str]:
    """Everything that isn't so."""
    return [f"{row.component}: {fault}" for row in rows(text) for fault in _faults_of(row)]


def _faults_of(row: Row) -> Iterator[str]:
    modules = {name: (ROOT / name).resolve() for name in row.modules}
    tests = {name: _test_file(name) for name in row.tests}
    if not tests and not _NO_TESTS.search(row.shown):
        yield f"no test in {row.shown!r}"
    missing = [name for name, path in (modules | tests).items() if not path.is_file()]
    if missing:
        yield f"no file {', '.join(missing)}"
        return
    if not modules or not tests:
        return
    for name, path in tests.items():
        if touched(path).isdisjoint(modules.values()):
            yield f"{name} touches none of {', '.join(modules)}"
    for name, path in modules.items():
        if not any(path in touched(test) for test in tests.values()):
            yield f"{name} is touched by none of {', '.join(tests)}"
    distinctive = {name for path in modules.values() for name in defined(path) if _is_rare(name)}
    if distinctive.isdisjoint(_all_words(tests.values())):
        yield f"{', '.join(tests)} names nothing that only {', '.join(modules)} defines"


def _all_words(tests: Iterable[Path]) -> set[str]:
    return {word for test in tests for word in words(test)}


def _test_file(name: str) -> Path:
    inside = ROOT / "tests" / name
    return inside if inside.is_file() else ROOT / name


@cache
def touched(test: Path) -> frozenset[Path]:
    """The files that a test's imports lead to."""
    waiting = [test, *_fixtures(test)]
    found: set[Path] = set()
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting += imported(path)
    return frozenset(found)


def _fixtures(test: Path) -> list[Path]:
    return [path for folder in test.parents if (path := folder / "conftest.py").is_file()]


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imported(path: Path) -> frozenset[Path]:
    """The files of this project that a file imports, anywhere in it, or names to be imported."""
    names: set[str] = set()
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Import):
            names |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names |= {node.value} if re.fullmatch(r"velaray(\.\w+)+", node.value) else set()
    return frozenset(file for name in names if (file := _file_of(name)) is not None)


def _file_of(name: str) -> Path | None:
    place = ROOT.joinpath(*name.split("."))
    for file in (place.with_suffix(".py"), place / "__init__.py"):
        if file.is_file():
            return file.resolve()
    return None


@cache
def defined(path: Path) -> frozenset[str]:
    """The names of functions, methods, classes and values that a file defines."""
    names = set()
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            names.add(node.targets[0].id)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return frozenset(name.lstrip("_") for name in names if not name.startswith("__"))


@cache
def _counts() -> Counter[str]:
    modules = {path.resolve() for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")}
    return Counter(name for path in modules for name in defined(path))


def _is_rare(name: str) -> bool:
    return len(name) > 2 and _counts()[name] <= FEW


@cache
def words(test: Path) -> frozenset[str]:
    """The names and words in a test, in its fixtures and in the helpers that it imports."""
    helpers = (path for path in imported(test) if path.is_relative_to(ROOT / "tests"))
    found: set[str] = set()
    for path in (test, *_fixtures(test), *helpers):
        for node in ast.walk(_tree(path)):
            if isinstance(node, ast.Name):
                found.add(node.id)
            elif isinstance(node, ast.Attribute):
                found.add(node.attr)
            elif isinstance(node, ast.keyword):
                found.add(node.arg or "")
            elif isinstance(node, ast.alias):
                found |= set(node.name.split("."))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found |= set(re.findall(r"\w+", node.value))
    return frozenset(found)
