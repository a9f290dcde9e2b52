"""A peer in a process of its own, with its client: what it costs is what the process spends."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.contract import Absent, Peer
from benchmarks.loads import (
    fan_out,
    latency,
    open_transactions,
    throughput,
    topics,
    transactions,
)
from benchmarks.loads.measure import Values
from benchmarks.processes import descendants
from benchmarks.systems import registry

START_WITHIN_S = 300.0
STOP_WITHIN_S = 60.0
LOADS: dict[str, Callable[..., Values]] = {
    "throughput": throughput.run,
    "latency": latency.run,
    "fan-out": fan_out.run,
    "topics": topics.run,
    "transactions": transactions.run,
    "open transactions": open_transactions.run,
}


class Failed(RuntimeError):
    """A workload failed; the text says how."""


class Remote:
    """The calling side. Ends the peer, with every process that it started, with its context."""

    def __init__(self, name: str, log: Path) -> None:
        """Start the process, which writes what it says to ``log``; `settings` waits for it."""
        self.name = name
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        # A process that is killed leaves its files: so they are all below this.
        self._scratch = tempfile.mkdtemp(prefix="velaray-bench-")
        self._process = context.Process(target=serve, args=(name, other, str(log), self._scratch))
        self._process.start()
        other.close()

    def settings(self) -> dict[str, str]:
        """Return when the peer runs. Raises `Absent`, or `Failed` if it doesn't start."""
        found: dict[str, str] = self._answer(START_WITHIN_S)
        return found

    def run(self, load: str, within_s: float, **arguments: Any) -> Values:
        """Run a workload. Raises `Failed`; after a timeout the peer is gone."""
        self._pipe.send((load, arguments))
        found: Values = self._answer(within_s)
        return found

    def _answer(self, within_s: float) -> Any:
        if not self._pipe.poll(within_s):
            self._kill()
            raise Failed(f"no answer within {within_s:g} s; ended")
        try:
            kind, found = self._pipe.recv()
        except EOFError as error:
            raise Failed("its process has ended") from error
        if kind == "absent":
            raise Absent(found)
        if kind == "failed":
            raise Failed(found)
        return found

    @property
    def pid(self) -> int:
        """The process of the peer's client; the server's are below it."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it can run more workloads."""
        return self._process.is_alive()

    def dismiss(self) -> None:
        """Wait for the peer's orderly end; doesn't wait for it."""
        self._pipe.close()

    def close(self) -> None:
        """End the peer in good order; kill it if that takes longer than a minute."""
        self.dismiss()
        self._process.join(STOP_WITHIN_S)
        if self._process.is_alive():
            self._kill()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _kill(self) -> None:
        pid = self._process.pid
        for one in reversed(descendants(pid) if pid else []):
            try:
                os.kill(one, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._process.join()


def serve(name: str, pipe: Connection, log: str, scratch: str) -> None:
    """The peer's process: start it, run what is asked for until the pipe is closed."""
    os.setsid()  # an interrupt from the keyboard is for the parent, which ends this in order
    tempfile.tempdir = scratch
    with open(log, "wb") as said:
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
    try:
        context = registry.start(name)
        with context as peer:
            pipe.send(("ok", peer.settings))
            while True:
                load, arguments = pipe.recv()
                pipe.send(_outcome(LOADS[load], peer, arguments))
    except EOFError:
        return
    except Absent as error:
        pipe.send(("absent", str(error)))
    except Exception:  # noqa: BLE001 - told to the parent, which goes on without this peer
        pipe.send(("failed", _last_words()))


def _outcome(load: Callable[..., Values], peer: Peer, arguments: dict[str, Any]) -> tuple[str, Any]:
    try:
        return "ok", load(peer, **arguments)
    except Exception:  # noqa: BLE001 - told to the parent; other workloads may succeed
        return "failed", _last_words()


def _last_words() -> str:
    """The exception, and where in this package it came from."""
    kind, error, trace = sys.exc_info()
    places = [
        f"{os.path.basename(frame.filename)}:{frame.lineno}"
        for frame in traceback.extract_tb(trace)
        if "benchmarks" in frame.filename
    ]
    name = kind.__name__ if kind else "?"
    return f"{name}: {error} (at {', '.join(places[-3:])})"
