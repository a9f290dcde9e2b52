"""Machines for tests: network namespaces that a wire connects, each with an address of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.ray.support import ROOT, wait_until
from velaray.cluster import NODE_HEALTH

NETWORK = "10.213.0.0/24"


class NoNamespacesError(RuntimeError):
    """This user may not make network namespaces here, or there is no command ``ip``."""


class Machine:
    """A network namespace. It shares the file system with the others."""

    def __init__(self, name: str, address: str, folder: Path) -> None:
        """``folder`` keeps the output of processes, and a token for Ray."""
        self.name = name
        self.address = address
        self._folder = folder
        self.environment = {
            **os.environ,
            **NODE_HEALTH,
            "PYTHONPATH": str(ROOT),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": "c" * 64,
            "RAY_USAGE_STATS_ENABLED": "0",
        }

    @property
    def entered(self) -> tuple[str, ...]:
        """What a command begins with that runs here."""
        return ("ip", "netns", "exec", self.name)

    def run(self, called: str, *command: str, **options: Any) -> subprocess.Popen[str]:
        """Start Python here; its errors go to a file."""
        with (self._folder / f"{self.name}-{called}.log").open("w") as errors:
            return subprocess.Popen(
                [*self.entered, sys.executable, *command],
                env=self.environment,
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                **{"stderr": errors, **options},
            )

    def unplug(self) -> None:
        """Take the wire out, as far as the other machines can see."""
        _ip("-n", self.name, "link", "set", "wire", "down")

    def kill(self) -> None:
        """End every process of this machine at once."""
        for pid in self._pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not self._pids(), f"the processes of {self.name} end")

    def _pids(self) -> list[int]:
        listed = _ip("netns", "pids", self.name).split()
        return [int(pid) for pid in listed if not _is_zombie(int(pid))]


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@contextmanager
def two_machines(folder: Path) -> Iterator[tuple[Machine, Machine]]:
    """Two machines in `NETWORK`. At the end their processes are killed.

    Raises `NoNamespacesError`.
    """
    first, second = (
        Machine(f"vr{os.getpid()}{letter}", f"10.213.0.{number}", folder)
        for number, letter in ((1, "a"), (2, "b"))
    )
    made: list[Machine] = []
    try:
        for each in (first, second):
            _ip("netns", "add", each.name)
            made.append(each)
        peer = ("peer", "name", "wire", "netns", second.name)
        _ip("-n", first.name, "link", "add", "wire", "type", "veth", *peer)
        for each in made:
            _ip("-n", each.name, "address", "add", f"{each.address}/24", "dev", "wire")
            for link in ("lo", "wire"):
                _ip("-n", each.name, "link", "set", link, "up")
    except (OSError, subprocess.CalledProcessError) as error:
        _remove(made)
        raise NoNamespacesError(f"network namespaces can't be made here: {error}") from error
    try:
        yield first, second
    finally:
        for each in made:
            each.kill()
        _remove(made)
        for log in sorted(folder.glob("vr*.log")):
            print(log.name, log.read_text(errors="replace")[-2000:])  # shown if the test fails


def _remove(made: list[Machine]) -> None:
    for each in made:
        _ip("netns", "del", each.name)


def _ip(*arguments: str) -> str:
    done = subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
    return done.stdout
