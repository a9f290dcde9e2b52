"""The documents for contributors and the configuration of the tools agree with the tree."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

TEN_CHANGES = (
    "An admin operation",
    "A policy",
    "A journal store",
    "A form of credentials",
    "Redelivery back-off",
    "An actor kind",
    "A wire command",
    "Non-persistent topics",
    "A placement",
    "A console page",
)


def files_in(text: str) -> list[str]:
    """The paths of the tree that ``text`` names in backticks."""
    return re.findall(r"`((?!\.\.)[\w.-]+/[\w./-]*\w)`", text)


def change(title: str) -> list[str]:
    """The lines of CONTRIBUTING.md that describe a change; blank ones left out."""
    body = CONTRIBUTING.split(f"\n### {title}\n")[1].split("\n#")[0]
    return [line for line in body.splitlines() if line.strip()]


def test_the_ten_changes_are_described() -> None:
    found = CONTRIBUTING.split("\n## Ten changes\n")[1]
    assert tuple(re.findall(r"^### (.*)$", found, flags=re.MULTILINE)) == TEN_CHANGES


@pytest.mark.parametrize("title", TEN_CHANGES)
def test_a_change_has_six_lines_that_name_files(title: str) -> None:
    lines = change(title)
    assert len(lines) <= 6
    assert all(len(line) <= 140 for line in lines)
    assert len(set(files_in("\n".join(lines)))) >= 4


@pytest.mark.parametrize("document", ["CONTRIBUTING.md", "SECURITY.md", "docs/releasing.md"])
def test_every_named_file_exists(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    missing = [name for name in files_in(text) if not (ROOT / name).exists()]
    assert missing == []


def decisions() -> list[Path]:
    return sorted((ROOT / "docs/decisions").glob("[0-9]*.md"))


def test_numbers_of_decisions_are_unique() -> None:
    numbers = [path.name[:4] for path in decisions()]
    assert len(numbers) > 30
    assert sorted(set(numbers)) == numbers


@pytest.mark.parametrize("path", decisions(), ids=lambda path: path.stem)
def test_a_decision_has_its_number_a_status_and_the_headings_of_the_template(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.startswith(f"# {path.name[:4]} ")
    assert re.search(r"^\*\*Status\.\*\* (Proposed|Accepted|Superseded by)\b", text, re.MULTILINE)
    for heading in ("Context", "Decision", "Alternatives", "Consequences"):
        assert re.search(rf"^(\*\*|## ){heading}\b", text, re.MULTILINE), heading


def test_mypy_checks_every_package_strictly() -> None:
    face = ROOT / "velaray"
    packages = {f"velaray.{path.parent.name}" for path in face.glob("*/__init__.py")}
    modules = {
        "velaray" if path.stem == "__init__" else f"velaray.{path.stem}"
        for path in face.glob("*.py")
    }
    checked = PYPROJECT["tool"]["mypy"]
    assert set(checked["packages"]) == packages
    assert set(checked["modules"]) == modules
    assert checked["strict"] is True


def steps_of(path: Path) -> list[dict[str, Any]]:
    jobs = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]
    return [step for job in jobs.values() for step in job["steps"]]


@pytest.mark.parametrize("path", [*WORKFLOWS, ROOT / ".ci/run"], ids=lambda path: path.name)
def test_continuous_integration_runs_targets_that_exist(path: Path) -> None:
    if path.suffix == ".yml":
        commands = [step["run"] for step in steps_of(path) if "run" in step]
    else:
        lines = path.read_text(encoding="utf-8").splitlines()
        commands = [line.partition(" || ")[0] for line in lines]
    words = [command.split() for command in commands]
    used = {word for line in words if line[:1] == ["make"] for word in line[1:] if word[0] != "-"}
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert "install" in used
    assert used <= set(targets)


def test_continuous_integration_runs_lint_before_the_tests() -> None:
    lines = [line.split() for line in (ROOT / ".ci/run").read_text(encoding="utf-8").splitlines()]
    targets = ("lint", "docs", "test")
    made = [line for line in lines if line[:1] == ["make"]]
    at = [made.index(next(line for line in made if target in line)) for target in targets]
    assert at == sorted(at)
    assert all("--keep-going" in line for line in made[min(at) :])
    assert lines[-1] == ["exit", '"$status"']


def test_workflows_run_the_pythons_that_are_supported() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/tests.yml").read_text())["jobs"]
    versions = jobs["test"]["strategy"]["matrix"]["python-version"]
    assert versions == ["3.11", "3.12", "3.13"]
    assert PYPROJECT["project"]["requires-python"] == f">={versions[0]}"
