"""The README's example does what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.local_cluster import LocalCluster

README = Path(__file__).resolve().parents[1] / "README.md"
DOCUMENTED_URL = "pulsar://127.0.0.1:6650"


def test_the_example_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example, *_ = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    assert len(example.splitlines()) <= 25
    assert DOCUMENTED_URL in example
    with LocalCluster(tmp_path) as cluster:
        exec(example.replace(DOCUMENTED_URL, cluster.service_url), {})
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[-2:] for line in printed] == [
        ["N14228", "b'departed'"],
        ["N24211", "b'departed'"],
        ["N14228", "b'departed'"],
    ]
