"""The head node of a Ray that this process started: notices its end, and ends what is left of it.

Ray's own processes notice the end of the head node after a minute. Until then the processes of
actors would go on without a service, and would hold their ports.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

_SET_CHILD_SUBREAPER = 36
_NEEDED = ("gcs_server", "raylet")
_END_S = 10.0


class RayEnded(ConnectionError):
    """The head node of Ray has ended; the text has the reason and a remedy."""


class RayHead:
    """The processes of the head node, for a program that runs nothing besides the cluster."""

    def __init__(self, node: Any) -> None:
        """Make this process the parent of all processes below it whose own parent ends (on Linux),
        so that `end_all` finds them. ``node`` is Ray's object with the processes that it started.
        """
        self._node = node
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def check(self) -> None:
        """Raise `RayEnded` if a process that Ray can't do without has ended."""
        gone = sorted({kind for kind, _ in self._node.dead_processes()}.intersection(_NEEDED))
        if gone:
            raise RayEnded(
                f"the head node of Ray has ended ({', '.join(gone)}): start velaray again; "
                "its logs are in /tmp/ray/session_latest/logs"
            )

    def end_all(self) -> None:
        """Kill all child processes of this process, and theirs, which become its own, within 10
        seconds. Journals survive that."""
        until = time.monotonic() + _END_S
        while (children := _children()) and time.monotonic() < until:
            for child in children:
                with suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            for child in children:
                with suppress(ChildProcessError):
                    os.waitpid(child, 0)


def _children() -> list[int]:
    me = str(os.getpid())
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if fields[1] == me and fields[0] != "Z":
                found.append(int(stat.parent.name))
    return found
