"""An S3 server of this machine's own: versitygw, built once by Go and kept outside the tree.

python -m tests.support.s3_server      # builds it; `make s3-server` does the same
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.contract import Absent
from benchmarks.install import cache
from tests.support.waiting import wait_until
from velaray.journal.objects.remote_objects import open_objects

VERSION = "v1.8.0"
"""The first version of versitygw whose conditional writes are right under races."""
PACKAGE = f"github.com/versity/versitygw/cmd/versitygw@{VERSION}"
BUCKET = "velaray"
BUILD_WITHIN_S = 1800.0
_START_WITHIN_S = 60.0
_TRIES = 5
_ASK = "import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=1)"


def installed() -> Path:
    """The place of the built server."""
    return cache() / f"versitygw-{VERSION}" / "versitygw"


def program() -> Path:
    """The built server. Raises `Absent` if it isn't built and can't be."""
    built = installed()
    if built.exists():
        return built
    if shutil.which("go") is None:
        raise Absent(f"{built} isn't there, and Go, which builds it, isn't on the PATH")
    built.parent.mkdir(parents=True, exist_ok=True)
    with (built.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not built.exists():
            _build(built)
    return built


def _build(target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        environment = {
            **os.environ,
            "CGO_ENABLED": "0",
            "GOBIN": folder,
            "GOFLAGS": "",
            "GOTOOLCHAIN": "local",
        }
        # -p 1: one package at a time takes 650 MB of memory, two take more.
        command = ["go", "install", "-p", "1", "-trimpath", "-ldflags=-s -w", PACKAGE]
        ended = subprocess.run(
            ["nice", "-n", "10", *command],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=BUILD_WITHIN_S,
        )
        if ended.returncode:
            raise Absent(f"versitygw can't be built: {ended.stderr[-400:].strip()}")
        (Path(folder) / target.name).rename(target)


class S3Server:
    """A running server with one bucket."""

    access_key = "velaray"

    def __init__(
        self, process: subprocess.Popen[bytes], address: str, secret: str, requests: Path
    ) -> None:
        self.process = process
        self.requests = requests
        """The server's log of all requests, a line each."""
        self.url = f"http://{address}"
        self._secret = secret

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which a process reaches the server."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self._secret,
            "AWS_REGION": "us-east-1",
        }

    def new_store(self) -> str:
        """The URL of a store that nothing is in."""
        return f"s3://{BUCKET}/{secrets.token_hex(8)}"


async def content_of(url: str) -> dict[str, bytes]:
    """All objects of a store by their names, as they are stored."""
    objects = open_objects(url)
    try:
        found = {name: await objects.get(name) for name in await objects.list("")}
    finally:
        await objects.close()
    return {name: each.data for name, each in found.items() if each is not None}


@contextmanager
def running(
    directory: Path, address: str = "127.0.0.1", within: tuple[str, ...] = ()
) -> Iterator[S3Server]:
    """A server whose data are below ``directory``; ``within`` is a command that leads to the
    network of ``address``. Raises `Absent`."""
    data = directory / "data"
    (data / BUCKET).mkdir(parents=True)
    try:
        os.setxattr(data, "user.velaray", b"1")
    except OSError as error:
        raise Absent(f"the S3 server needs extended attributes in {directory}: {error}") from error
    server = _started(program(), data, directory / "log", address, within)
    try:
        yield server
    finally:
        server.process.terminate()
        try:
            server.process.wait(_START_WITHIN_S)
        finally:
            server.process.kill()


def _started(binary: Path, data: Path, log: Path, host: str, within: tuple[str, ...]) -> S3Server:
    secret = secrets.token_hex(16)
    environment = {
        **os.environ,
        "ROOT_ACCESS_KEY": S3Server.access_key,
        "ROOT_SECRET_KEY": secret,
    }
    for _ in range(_TRIES):
        address = f"{host}:{_free_port()}"
        requests = log.with_name("requests")
        options = ("--health", "/health", "--quiet", "--access-log", str(requests))
        command = [*within, str(binary), "--port", address, *options]
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*command, "posix", data], env=environment, stdout=output, stderr=output
            )
        server = S3Server(process, address, secret, requests)
        wait_until(
            lambda s=server: s.process.poll() is not None or _serves(s, within), _START_WITHIN_S
        )
        if process.poll() is None:
            return server
    raise AssertionError(f"the S3 server ended at once {_TRIES} times: {log.read_text()[-2000:]}")


def _free_port() -> int:
    """A port that nothing listens on; another process may take it before it is used."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _serves(server: S3Server, within: tuple[str, ...]) -> bool:
    if within:
        asked = [*within, sys.executable, "-c", _ASK, f"{server.url}/health"]
        return subprocess.run(asked, check=False, capture_output=True).returncode == 0
    try:
        with urllib.request.urlopen(f"{server.url}/health", timeout=1) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


if __name__ == "__main__":
    try:
        print(program())
    except Absent as absent:
        sys.exit(str(absent))
