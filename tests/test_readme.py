"""The README begins with installation and an example, and the example does what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.local_cluster import LocalCluster

README = Path(__file__).resolve().parents[1] / "README.md"
DOCUMENTED_URL = "pulsar://127.0.0.1:6650"
SCREEN = 40


def test_the_first_screen_installs_and_uses_velaray() -> None:
    text = README.read_text()
    screen = "\n".join(text.splitlines()[:SCREEN])
    example, *_ = re.findall(r"```python\n(.*?)```", screen, flags=re.DOTALL)
    assert len([line for line in example.splitlines() if line]) <= 10
    assert "pip install velaray" in screen[: screen.index(example)]
    assert "velaray start" in screen[: screen.index(example)]
    for later in ("make demo", "![", "| system |", "```mermaid"):
        assert later not in screen
        assert later in text


def test_the_example_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example, *_ = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    assert DOCUMENTED_URL in example
    with LocalCluster(tmp_path) as cluster:
        exec(example.replace(DOCUMENTED_URL, cluster.service_url), {})
    assert capsys.readouterr().out.splitlines() == ["N14228 b'departed'"]
