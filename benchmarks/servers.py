"""Servers that are started for one benchmark: own directory, own port, ended by process id."""

from __future__ import annotations

import random
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

START_WITHIN_S = 240.0
STOP_WITHIN_S = 20.0
PORTS = range(10_000, 20_000)
_PORT_TRIES = 100
_TRY_EVERY_S = 0.05
_TAIL = 600


def free_port() -> int:
    """An unused port of the loopback address.

    Not one of those that the system hands out to outgoing connections: many servers start at
    once, and one's connection could take the port before another server listens on it.
    """
    for port in random.sample(PORTS, _PORT_TRIES):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port
    raise RuntimeError(f"no port between {PORTS.start} and {PORTS.stop} is free")


@contextmanager
def scratch(name: str) -> Iterator[Path]:
    """A new directory below the one for temporary files; deleted with the context."""
    directory = Path(tempfile.mkdtemp(prefix=f"{name}-bench-"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def running(
    words: Sequence[str], directory: Path, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A server process whose output goes to ``output.log``; ended with the context."""
    with (directory / "output.log").open("wb") as output:
        server = subprocess.Popen(
            words, cwd=directory, env=environment, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        yield server
    finally:
        server.terminate()
        try:
            server.wait(STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def wait_until(ready: Callable[[], bool], server: subprocess.Popen[bytes], directory: Path) -> None:
    """Return when ``ready()``. Raises `RuntimeError` with the end of the server's output."""
    pause = threading.Event()
    deadline = time.monotonic() + START_WITHIN_S
    while not ready():
        if server.poll() is not None or time.monotonic() > deadline:
            said = (directory / "output.log").read_text(errors="replace")[-_TAIL:]
            state = "runs but doesn't answer" if server.poll() is None else "has ended"
            raise RuntimeError(f"{server.args!r:.80} {state}: {said}")
        pause.wait(_TRY_EVERY_S)


def listens(port: int) -> bool:
    """Whether a process accepts connections on this port of the loopback address."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
