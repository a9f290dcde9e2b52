"""The demo passes, and fails on builds that lose, reorder or drop something."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.ray.support import ROOT, run_demo
from tools.layers import LAYERS

FOLDERS = (*LAYERS, "examples")
SMALL = ("--flights", "20000", "--seconds", "8", "--kills", "2")

# What each broken build changes: file, text, replacement, what the demo must say.
BROKEN = {
    "acknowledgements are dropped before they are journaled": (
        "broker/subscription/dispatcher.py",
        "        self._runtime.submit(command, release)\n",
        "        release(None, ())\n",
        "FAILED",
    ),
    "one flight is lost": (
        "examples/flights_worker.py",
        "            number, tail, carrier, delay = flight\n",
        "            number, tail, carrier, delay = flight\n"
        "            if number == 7777:\n"
        "                consumer.acknowledge(message)\n"
        "                continue\n",
        "missing 1,",
    ),
    "one flight is counted late": (
        "examples/flights_worker.py",
        "            at = time.monotonic_ns()\n",
        "            at = time.monotonic_ns() + (10**11 if number == 7777 else 0)\n",
        "out of order 1,",
    ),
}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_demo_passes() -> None:
    finished = run_demo("flights_under_fire.py", *SMALL)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "all as it should be" in finished.stdout


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, marks=pytest.mark.long) for fault in BROKEN
    ],  # one of them runs in `make test`
)
def test_the_demo_fails_for_wrong_results(fault: str, data_dir: Path) -> None:
    file, text, replacement, expected = BROKEN[fault]
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, data_dir / folder, symlinks=True)
    source = (data_dir / file).read_text()
    assert source.count(text) == 1, f"{file} has changed: adapt this test"
    (data_dir / file).write_text(source.replace(text, replacement))
    finished = run_demo("flights_under_fire.py", *SMALL, tree=data_dir)
    assert finished.returncode == 1, finished.stdout + finished.stderr
    assert expected in finished.stdout, finished.stdout
