"""The time from ``pip install`` to the first message, and all that a new user sees printed.

Run as ``python -m benchmarks.first_message [--local] [--cold] [--wheel FILE]``. It builds the wheel
of this tree, makes an environment and an empty working directory elsewhere, and runs a user's
commands there: install, start, produce, consume, stop. With ``--cold`` pip's cache isn't used.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
RUNNING = "velaray is running"
WITHIN_S = 300.0
_OF_A_USER = ("PATH", "HOME", "LANG", "TERM", "TMPDIR", "SSL_CERT_FILE")


@dataclass
class Step:
    """One command: its seconds, and what it printed."""

    name: str
    seconds: float
    printed: str
    code: int = 0


@dataclass
class User:
    """Runs commands in a directory of its own, with the environment of a new user."""

    folder: Path
    steps: list[Step] = field(default_factory=list)

    def __post_init__(self) -> None:
        kept = {name: text for name, text in os.environ.items() if name in _OF_A_USER}
        pip = {name: text for name, text in os.environ.items() if name.startswith("PIP_")}
        self.environment = {**kept, **pip, "PATH": f"{self.folder}/venv/bin:{os.environ['PATH']}"}
        self.home = self.folder / "work"
        self.home.mkdir()

    def run(self, name: str, *words: str) -> Step:
        """Run a command to its end. Raises `RuntimeError` if it fails."""
        began = time.monotonic()
        ended = subprocess.run(
            words,
            cwd=self.home,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=WITHIN_S,
            check=False,
        )
        step = Step(name, time.monotonic() - began, ended.stdout, ended.returncode)
        self.steps.append(step)
        if ended.returncode:
            raise RuntimeError(f"{' '.join(words)} failed:\n{ended.stdout[-2000:]}")
        return step

    def serve(self, *words: str) -> Served:
        """Start a command, and wait until it says that it runs."""
        return Served(self, words)


class Served:
    """A command that runs in the background of a user's shell."""

    def __init__(self, user: User, words: tuple[str, ...]) -> None:
        self._user = user
        self._lines: list[str] = []
        self._runs = threading.Event()
        began = time.monotonic()
        self._process = subprocess.Popen(
            words,
            cwd=user.home,
            env=user.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()
        runs = self._runs.wait(WITHIN_S)
        printed = "".join(self._lines)
        user.steps.append(Step("start", time.monotonic() - began, printed, 0 if runs else 1))
        if RUNNING not in printed:
            self._process.kill()
            raise RuntimeError(f"the cluster doesn't run:\n{printed}")

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.append(line)
            if RUNNING in line:
                self._runs.set()
        self._runs.set()

    def stop(self) -> None:
        """Stop it as Ctrl-C does."""
        before, began = len(self._lines), time.monotonic()
        self._process.send_signal(signal.SIGINT)
        code = self._process.wait(WITHIN_S)
        self._reading.join()
        printed = "".join(self._lines[before:])
        self._user.steps.append(Step("stop", time.monotonic() - began, printed, code))


def wheel_of(folder: Path) -> Path:
    """Build the wheel of this tree."""
    words = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder)]
    subprocess.run(words, cwd=ROOT, check=True, capture_output=True)
    return next(folder.glob("velaray-*.whl"))


def first_message(folder: Path, wheel: Path, *, local: bool, cold: bool) -> list[Step]:
    """What a new user does, step by step."""
    user = User(folder)
    user.run("venv", sys.executable, "-m", "venv", f"{folder}/venv")
    without_cache = ("--no-cache-dir",) if cold else ()
    user.run("pip install", f"{folder}/venv/bin/pip", "install", *without_cache, str(wheel))
    velaray = f"{folder}/venv/bin/velaray"
    served = user.serve(velaray, "start", *(("--local",) if local else ()))
    try:
        user.run("produce", velaray, "produce", "orders", "-m", "hello")
        consume = ("consume", "orders", "-s", "billing", "--start", "earliest", "--timeout", "60")
        if "hello" not in user.run("consume", velaray, *consume).printed:
            raise RuntimeError("the message wasn't received")
    finally:
        served.stop()
    return user.steps


def main() -> None:
    """Measure, and print a table and everything that the commands printed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--local", action="store_true", help="start without Ray")
    parser.add_argument("--cold", action="store_true", help="don't use pip's cache")
    parser.add_argument("--wheel", type=Path, help="this wheel, instead of a new one")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="velaray-user-") as place:
        folder = Path(place)
        wheel = given.wheel.absolute() if given.wheel else wheel_of(folder)
        steps = first_message(folder, wheel, local=given.local, cold=given.cold)
    table = Table(title="From pip install to the first message")
    for name in ("step", "seconds", "exit code", "lines printed"):
        table.add_column(name)
    for step in steps:
        lines = str(len(step.printed.splitlines()))
        table.add_row(step.name, f"{step.seconds:.1f}", str(step.code), lines)
    until = [step.seconds for step in steps if step.name != "stop"]
    table.add_row("until the first message", f"{sum(until):.1f}", "", "")
    console = Console(width=int(os.environ.get("COLUMNS", "100")))
    console.print(table)
    for step in steps:
        if step.name != "pip install":
            console.print(f"--- {step.name}", style="bold")
            console.print(step.printed, markup=False, highlight=False, end="")


if __name__ == "__main__":
    main()
