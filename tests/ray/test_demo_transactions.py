"""A small run of the demo of transactions; `tests/pipelines/test_demo.py` shows it failing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SMALL = ("--flights", "6000", "--seconds", "10", "--kills", "4")


def run_demo() -> subprocess.CompletedProcess[str]:
    """Run the demo with this tree's code in every process."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    return subprocess.run(
        [sys.executable, str(ROOT / "examples" / "transactions_under_fire.py"), *SMALL],
        env=environment,
        cwd=ROOT,  # Ray's workers look for modules in the driver's folder first
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_demo_passes() -> None:
    finished = run_demo()
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "SIGKILL hit 4 living processes" in finished.stdout
    assert "all as it should be" in finished.stdout
