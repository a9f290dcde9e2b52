"""Short runs of the demo of machines, which are lost with their disks.

`tests/topology/test_demo_machines.py` shows that it finds losses.
"""

from __future__ import annotations

import pytest

from benchmarks.contract import Absent
from tests.ray.support import run_demo
from tests.support.s3_server import BUILD_WITHIN_S, program

pytestmark = pytest.mark.timeout(BUILD_WITHIN_S)
CANT_RUN = "this demo can't run here"


@pytest.mark.parametrize("losses", [1, pytest.param(4, marks=pytest.mark.long)])
def test_the_demo_passes(losses: int) -> None:
    try:
        program()
    except Absent as absent:
        pytest.skip(str(absent))
    short = ("--seconds", "2", "--longest-delay", "6")
    finished = run_demo("machines_under_fire.py", *short, "--losses", str(losses))
    if CANT_RUN in finished.stderr:
        pytest.skip(finished.stderr)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert finished.stdout.count("all partitions serve again: ") == losses
    assert "all as it should be" in finished.stdout
