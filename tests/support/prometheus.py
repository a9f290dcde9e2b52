"""Prometheus: of the system, or of Debian's package, which is fetched once and not installed."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import urlopen

import yaml

from benchmarks import debian
from benchmarks.contract import Absent
from benchmarks.debian import Program
from benchmarks.install import cache
from tests.support.waiting import wait_until
from velaray.starting import free_port

_FETCH_WITHIN_S = 60.0
_START_WITHIN_S = 60.0
_STOP_WITHIN_S = 30.0


def program(name: str) -> Program:
    """``prometheus`` or ``promtool``. Raises `Absent` with the reason."""
    if found := debian.in_system(name):
        return found
    folder = cache() / "prometheus"
    if not folder.exists():
        cache().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache()) as fetching:
            target = Path(fetching) / "prometheus"
            target.mkdir()
            debian.unpack_alone("prometheus", target, _FETCH_WITHIN_S)
            with suppress(OSError):
                target.rename(folder)  # another test that was faster has fetched the same
    found = debian.in_folder(folder, f"usr/bin/{name}")
    if not Path(found.path).exists():
        raise Absent(f"{name} isn't in Debian's package prometheus")
    return found


class Prometheus:
    """A running Prometheus."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/api/v1"

    def ask(self, path: str, **query: str) -> Any:
        """Return the data of an answer of the HTTP API; an error fails the test."""
        try:
            with urlopen(f"{self._url}/{path}?{urlencode(query)}", timeout=30) as answer:
                return json.load(answer)["data"]
        except HTTPError as error:
            if error.code == HTTPStatus.SERVICE_UNAVAILABLE:
                raise  # it starts
            raise AssertionError(f"{query}: {error.read().decode()}") from error

    def series(self, expression: str) -> list[Any]:
        """Return the present values of an expression: one row for each set of labels."""
        found: list[Any] = self.ask("query", query=expression)["result"]
        return found

    def is_up(self) -> bool:
        """Whether it answers, and has scraped its target."""
        try:
            return any(row["value"][1] == "1" for row in self.series("up"))
        except OSError:
            return False


@contextmanager
def running(folder: Path, target: str, rules: Path, jobs: Sequence[str]) -> Iterator[Prometheus]:
    """Run a Prometheus that scrapes ``target`` every second, for each job. Raises `Absent`."""
    server, port = program("prometheus"), free_port("127.0.0.1")
    scrapes = [{"job_name": job, "static_configs": [{"targets": [target]}]} for job in jobs]
    often = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config = {"global": often, "rule_files": [str(rules)], "scrape_configs": scrapes}
    file = folder / "prometheus.yaml"
    file.write_text(yaml.safe_dump(config), encoding="utf-8")
    places = (f"--web.listen-address=127.0.0.1:{port}", f"--storage.tsdb.path={folder / 'tsdb'}")
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [server.path, f"--config.file={file}", *places],
            env=server.environment,
            stdout=log,
            stderr=log,
        )
    try:
        found = Prometheus(port)
        wait_until(found.is_up, _START_WITHIN_S)
        yield found
    finally:
        process.terminate()
        try:
            process.wait(_STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
