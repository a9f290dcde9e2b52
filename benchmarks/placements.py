"""Clusters of each placement: each actor a process, all in a few hosts, or one process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from benchmarks.processes import private_bytes
from benchmarks.rig import running_cluster

DEDICATED = "dedicated"
SHARED = "shared"
LOCAL = "local"
PLACEMENTS = (DEDICATED, SHARED, LOCAL)
SETTINGS = {
    DEDICATED: "velaray start: a process for each actor",
    SHARED: "velaray start --placement shared: a process for each core, and one for the background",
    LOCAL: "velaray start --local: one process, without Ray",
}
_LOCAL = "from velaray.cli.app import main; main()"
_STOP_WITHIN_S = 60.0


@dataclass(frozen=True, slots=True)
class Placed:
    """A running cluster; ``pids`` are the processes of its actors, its proxy and its directory."""

    service_url: str
    pids: Callable[[], set[int]]

    def private_bytes(self) -> int:
        """The memory that no other process shares with the cluster's processes."""
        return sum(map(private_bytes, self.pids()))


@contextmanager
def placed(placement: str) -> Iterator[Placed]:
    """A new cluster of this placement."""
    if placement == LOCAL:
        with _local() as cluster:
            yield cluster
        return
    with running_cluster(placement=placement) as started:
        yield Placed(started.service_url, lambda: {int(actor["pid"]) for actor in started.actors()})


@contextmanager
def _local() -> Iterator[Placed]:
    with tempfile.TemporaryDirectory(prefix="velaray-bench-") as directory:
        ports = ("--service-port", "0", "--admin-port", "0")
        command = [sys.executable, "-c", _LOCAL, "start", "--local", "--data", directory, *ports]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ)
        try:
            assert process.stdout is not None
            name, _, url = process.stdout.readline().partition(" ")
            if name != "service":
                raise RuntimeError(f"velaray start --local ended with {process.wait()}")
            yield Placed(url.strip(), lambda: {process.pid})
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(_STOP_WITHIN_S)
