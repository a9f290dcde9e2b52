"""A short run of the demo of machines: each of them is lost with its disk, then all of them.

`tests/topology/test_demo_machines.py` shows that it finds losses.
"""

from __future__ import annotations

import pytest

from benchmarks.contract import Absent
from tests.ray.support import run_demo
from tests.support.s3_server import BUILD_WITHIN_S, program

pytestmark = [pytest.mark.long, pytest.mark.timeout(BUILD_WITHIN_S)]
CANT_RUN = "this demo can't run here"


def test_the_demo_passes() -> None:
    try:
        program()
    except Absent as absent:
        pytest.skip(str(absent))
    finished = run_demo("machines_under_fire.py", "--seconds", "2", "--longest-delay", "6")
    if CANT_RUN in finished.stderr:
        pytest.skip(finished.stderr)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert finished.stdout.count("all partitions serve again: ") == 4
    assert "all as it should be" in finished.stdout
