"""A small run of the demo of transactions; `tests/pipelines/test_demo.py` shows it failing."""

from __future__ import annotations

import pytest

from tests.ray.support import run_demo

SMALL = ("--flights", "6000", "--seconds", "10", "--kills", "4")


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_demo_passes() -> None:
    finished = run_demo("transactions_under_fire.py", *SMALL)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "SIGKILL hit 4 living processes" in finished.stdout
    assert "all as it should be" in finished.stdout
