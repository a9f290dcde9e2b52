"""Programs with Pulsar's Go client: fetched and built once, run as processes of their own."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import Empty, SimpleQueue

from benchmarks.contract import Absent
from benchmarks.install import cache

_FOLDER = Path(__file__).parent / "go"
_FETCH_WITHIN_S = 120.0
_BUILD_WITHIN_S = 300.0
_RUN_WITHIN_S = 100.0


def program() -> str:
    """The path of the built scenarios, kept outside the tree. Raises `Absent` with the reason."""
    if shutil.which("go") is None:
        raise Absent("go isn't on the PATH")
    sources = sorted(path for path in _FOLDER.iterdir() if path.name.startswith("go."))
    sources += sorted(_FOLDER.glob("*.go"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    built = cache() / f"go-client-{digest}" / "scenarios"
    if not built.exists():
        built.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache()) as building:
            target = Path(building) / "scenarios"
            _build(target)
            target.rename(built)  # another test that was faster has built the same
    return str(built)


def _build(target: Path) -> None:
    environment = {**os.environ, "GOTOOLCHAIN": "local", "GOFLAGS": "", "CGO_ENABLED": "0"}

    def go(*words: str, within_s: float) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["go", *words],
            cwd=_FOLDER,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=within_s,
        )

    try:
        fetched = go("list", "-deps", ".", within_s=_FETCH_WITHIN_S)
    except subprocess.TimeoutExpired as error:
        raise Absent(f"fetching took more than {_FETCH_WITHIN_S:g} s") from error
    if fetched.returncode:
        raise Absent(f"go list failed: {fetched.stderr[-400:].strip()}")
    built = go("build", "-o", str(target), ".", within_s=_BUILD_WITHIN_S)
    assert built.returncode == 0, built.stderr[-4000:]


def run(program: str, scenario: str, *words: str) -> None:
    """Run a scenario; fails with what it says if it doesn't end well."""
    ended = subprocess.run(
        [program, scenario, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=_RUN_WITHIN_S,
    )
    assert ended.returncode == 0, ended.stdout[-4000:]


class Scenario:
    """A scenario that runs: what it prints, and what it reads, line by line."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process = process
        self._log = log
        self._lines: SimpleQueue[str] = SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            self._lines.put(line.rstrip("\n"))

    def tell(self, *lines: str) -> None:
        """Let it read these lines."""
        assert self._process.stdin
        self._process.stdin.write("".join(f"{line}\n" for line in lines))
        self._process.stdin.flush()

    def line(self, within_s: float = _RUN_WITHIN_S) -> str:
        """The next line that it prints; fails with its log if none comes."""
        with contextlib.suppress(Empty):
            return self._lines.get(timeout=within_s)
        raise AssertionError(f"no line within {within_s:g} s; its log:\n{self._tail()}")

    def close(self) -> None:
        """Close its input and wait until it has ended well."""
        assert self._process.stdin
        self._process.stdin.close()
        assert self._process.wait(_RUN_WITHIN_S) == 0, self._tail()

    def _tail(self) -> str:
        return self._log.read_text()[-4000:]


@contextlib.contextmanager
def running(program: str, scenario: str, *words: str) -> Iterator[Scenario]:
    """Run a scenario meanwhile; it is closed afterwards, or killed if the test fails."""
    with tempfile.TemporaryDirectory(prefix="vo-") as folder:
        log = Path(folder) / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [program, scenario, *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
            )
        with process:
            try:
                scenario_running = Scenario(process, log)
                yield scenario_running
                scenario_running.close()
            except BaseException:
                process.kill()
                raise
