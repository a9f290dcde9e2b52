"""`velaray start` after the death of the head node of its Ray."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waiting import wait_until
from velaray.cli.app import RAY_ENDED

pytestmark = [pytest.mark.ray, pytest.mark.slow]
START = ("-c", "from velaray.cli.app import main; main()", "start", "--hosts", "1")
PORTS = ("--service-port", "0", "--admin-port", "0")


def parents() -> dict[int, int]:
    """The parent of each process that hasn't ended."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] != "Z":
            found[int(stat.parent.name)] = int(fields[1])
    return found


def below(process: int) -> set[int]:
    """All processes that descend from one."""
    known, found = parents(), {process}
    while more := {pid for pid, parent in known.items() if parent in found} - found:
        found |= more
    return found - {process}


def named(processes: set[int], name: str) -> list[int]:
    texts = {pid: Path(f"/proc/{pid}/comm").read_text().strip() for pid in processes}
    return [pid for pid, text in texts.items() if text == name]


def test_the_death_of_the_head_node_ends_the_cluster_and_all_its_processes(tmp_path: Path) -> None:
    command = (sys.executable, *START, *PORTS, "--data", str(tmp_path / "data"))
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            while "velaray is running" not in (line := process.stdout.readline()):
                assert line, process.stderr and process.stderr.read()
            started = below(process.pid)
            (server,) = named(started, "gcs_server")
            assert len(named(started, "ray::HostActor")) >= 1
            os.kill(server, signal.SIGKILL)
            _, said = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == RAY_ENDED
    assert "the head node of Ray has ended (gcs_server)" in said
    wait_until(lambda: not started & parents().keys())
