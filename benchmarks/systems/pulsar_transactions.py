"""Pulsar's transactions, through its Java client: its Python client has none."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.contract import Transacted, transacted
from benchmarks.servers import STOP_WITHIN_S

_PROGRAM = Path(__file__).parent.parent / "java" / "Transactions.java"


class JavaClient:
    """A process with Pulsar's Java client; it's compiled when it is first asked for something."""

    def __init__(self, service_url: str, jars: str, log: Path) -> None:
        with log.open("wb") as said:
            self._process = subprocess.Popen(
                ["java", "-Xmx512m", "-cp", jars, str(_PROGRAM), service_url],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
            )

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def ask(self, *words: object) -> list[str]:
        """Have a command done; what it answers. Raises `RuntimeError` if it fails."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line.startswith("ok"):
            raise RuntimeError(f"{words[0]}: {line.strip() or 'the Java client has ended'}")
        return line.split()[1:]

    @contextmanager
    def transactor(self, source: str, target: str, most_at_once: int) -> Iterator[Transactor]:
        """One Shared consumer, and a producer for each transaction in flight."""
        self.ask("open", source, target, most_at_once)
        try:
            yield Transactor(self)
        finally:
            self.ask("close")


class Transactor:
    """See `benchmarks.contract.Transactor`."""

    def __init__(self, client: JavaClient) -> None:
        self._client = client

    def run(self, each: int, at_once: int, seconds: float) -> Transacted:
        """See `benchmarks.contract.Transactor`."""
        times = list(map(float, self._client.ask("run", each, at_once, seconds)))
        return transacted(each, 0.0, list(zip(times[::2], times[1::2], strict=True)))
