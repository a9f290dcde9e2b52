"""A cluster in a process of its own that is attacked, and a client that must not notice it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

import velaray

PATIENCE_S = 120.0
START = "from velaray.cli.app import main; main()"


class Server:
    """The attacked process. It runs all actors, without Ray."""

    def __init__(
        self, process: subprocess.Popen[str], service_url: str, admin_url: str, told: Path
    ) -> None:
        self.process = process
        self.service_url = service_url
        self.admin_url = admin_url
        self.port = int(service_url.rpartition(":")[2])
        self._told = told

    def memory(self, kind: str = "VmRSS") -> int:
        """The resident bytes; those of "VmHWM" are the most that there ever were."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.findall(rf"{kind}:\s+(\d+) kB", text)[0]) << 10

    def metric(self, name: str, token: str = "") -> float:
        """The sum of a metric over its series."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        with urlopen(Request(f"{self.admin_url}/metrics", headers=headers), timeout=60) as answer:
            text = answer.read().decode()
        return sum(float(each) for each in re.findall(rf"(?m)^{name}(?:{{.*}})? (\S+)$", text))

    def check(self) -> None:
        """Raise `AssertionError` if the process ended, or if it reports that an actor or a request
        failed."""
        assert self.process.poll() is None, self.process.returncode
        told = self._told.read_text()
        assert "Traceback" not in told and " stops: " not in told, told[-4000:]


@contextmanager
def attacked(*options: str) -> Iterator[Server]:
    """A cluster with these options of ``velaray start --local``."""
    with tempfile.TemporaryDirectory(prefix="va-") as folder:
        told = Path(folder, "stderr")
        command = [
            *(sys.executable, "-c", START, "start", "--local", "--data", f"{folder}/data"),
            *("--service-port", "0", "--admin-port", "0", "-o", "json", *options),
        ]
        with (
            told.open("w") as stderr,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True) as process,
        ):
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, told.read_text()
            urls = json.loads(line)
            try:
                yield Server(process, urls["service"][0], urls["admin"][0], told)
            finally:
                process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 0


class Canary:
    """A client in a process of its own that publishes a message, receives it and acknowledges it,
    again and again, with a pause after each round."""

    def __init__(self, server: Server, topic: str = "canary", token: str = "") -> None:
        command = [sys.executable, "-m", __name__, server.service_url, topic, token]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._last = 0

    def goes_on(self, rounds: int) -> list[float]:
        """Go on for some more rounds; returns their times in seconds.

        Raises `AssertionError` if the client has got an error.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{rounds}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the client has ended"
        found: list[float] = json.loads(line)
        return found

    def stop(self) -> None:
        """End it. Raises `AssertionError` if it has got an error."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(PATIENCE_S) == 0


@contextmanager
def canary(server: Server, topic: str = "canary", token: str = "") -> Iterator[Canary]:
    """A client that has made its first rounds."""
    made = Canary(server, topic, token)
    try:
        made.goes_on(20)
        yield made
    finally:
        made.stop()


def quantile(times_s: list[float], part: float) -> float:
    """A quantile in milliseconds."""
    return sorted(times_s)[int(len(times_s) * part)] * 1000


PAUSE_S = 0.005
"""Between two rounds of the canary."""


def sing(service_url: str, topic: str, token: str) -> None:
    """Make as many rounds as each line of the standard input says, until its end."""
    auth = velaray.AuthenticationToken(token) if token else None
    with velaray.Client(service_url, authentication=auth, operation_timeout_seconds=60) as client:
        consumer = client.subscribe(topic, "s")
        producer = client.create_producer(topic)
        number, pause = 0, threading.Event()
        for line in sys.stdin:
            times_s = []
            for _ in range(int(line)):
                number += 1
                begun = time.perf_counter()
                producer.send(b"%d" % number)
                message = consumer.receive(int(PATIENCE_S * 1000))
                assert message.data() == b"%d" % number, message.data()
                consumer.acknowledge(message)
                times_s.append(time.perf_counter() - begun)
                pause.wait(PAUSE_S)
            print(json.dumps(times_s), flush=True)


if __name__ == "__main__":
    sing(*sys.argv[1:])
