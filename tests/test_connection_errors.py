"""What people see first when something is missing: one line that says what to do, and soon."""

from __future__ import annotations

import asyncio
import logging
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray
from ray._private import services

import velaray
import velaray.aio
from tests.support.local_cluster import LocalCluster
from velaray.cluster import Cluster
from velaray.starting import ClusterError
from velaray.topology import progress, ray_start
from velaray.topology.config import AuthSettings

CLI = "from velaray.cli.app import main; main()"
NO_RAY = "import sys; sys.modules['ray'] = None; "


@pytest.fixture
def listening() -> Iterator[int]:
    """A port of this machine on which something else listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def free() -> int:
    """A port of this machine on which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def run(*arguments: str, code: str = CLI) -> list[str]:
    """What a command that fails says on standard error, line by line."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    return done.stderr.splitlines()


def test_a_command_without_a_cluster_reports_what_it_waits_for(free: int) -> None:
    url = f"pulsar://127.0.0.1:{free}"
    *waiting, last = run("produce", "t", "-m", "x", "--service-url", url, "--timeout", "2")
    assert len(waiting) == 1 and f"127.0.0.1:{free}" in waiting[0]
    assert "not done after 1 s, retrying for up to 2 s" in waiting[0]
    assert last.startswith("Error: ") and "velaray start" in last


def test_clients_report_that_they_retry(free: int, caplog: pytest.LogCaptureFixture) -> None:
    url = f"pulsar://127.0.0.1:{free}"

    async def create() -> None:
        async with velaray.aio.Client(url, operation_timeout_seconds=1.5) as client:
            every = (client.create_producer(f"t{number}") for number in range(20))
            await asyncio.gather(*every)

    with pytest.raises(velaray.Timeout, match="velaray start"):
        asyncio.run(create())
    with (
        velaray.Client(url, operation_timeout_seconds=1.5) as client,
        pytest.raises(velaray.Timeout, match="velaray start"),
    ):
        client.create_producer("t")
    # One line of each client, however many operations wait.
    told = [each for each in caplog.records if each.levelno == logging.WARNING]
    assert len(told) == 2
    assert all("velaray start" in each.getMessage() for each in told)


def test_a_client_at_the_wrong_port_gets_a_clear_error(tmp_path: Path) -> None:
    with LocalCluster(tmp_path) as cluster:
        url = cluster.admin_url.replace("http", "pulsar")
        with (
            velaray.Client(url, operation_timeout_seconds=1) as client,
            pytest.raises(velaray.Timeout, match=r"doesn't speak Pulsar's protocol.*6650"),
        ):
            client.create_producer("t")


@pytest.mark.parametrize("option", ["service_port", "admin_port"])
def test_a_port_in_use_is_reported_before_ray_is_started(
    option: str, listening: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray, "init", lambda *_, **__: pytest.fail("Ray is started"))
    ports = {"service_port": 0, "admin_port": 0, option: listening}
    with pytest.raises(ClusterError, match=f"port {listening} of 127.0.0.1 is in use"):
        Cluster.start(tmp_path, **ports)


def test_an_address_of_another_machine_is_reported_before_ray_is_started(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="address of this machine"):
        Cluster.start(
            tmp_path,
            host="192.0.2.1",
            service_port=1024,
            auth=AuthSettings(secret=b"s" * 32),
        )


def test_an_address_without_ray_is_reported(free: int, tmp_path: Path) -> None:
    ports = ["--service-port", "0", "--admin-port", "0", "--data", str(tmp_path)]
    lines = run("start", "--ray-address", f"127.0.0.1:{free}", *ports)
    assert lines[-1].startswith(f"Error: no Ray answers at 127.0.0.1:{free}")
    assert "ray start --head" in lines[-1]
    assert all("still connecting to Ray" in line for line in lines[:-1])


def test_a_missing_ray_is_reported(tmp_path: Path) -> None:
    (line,) = run("start", "--data", str(tmp_path), code=NO_RAY + CLI)
    assert "pip install ray" in line
    (line,) = run("start", "--data", str(tmp_path), code=NO_RAY + ASKS)
    assert "pip install ray" in line


ASKS = """
import velaray
try:
    velaray.connect()
except velaray.InvalidConfiguration as error:
    sys.exit(str(error))
"""


class Raylet:
    """A raylet that has ended with this code, or runs."""

    def __init__(self, code: int | None) -> None:
        self.process = SimpleNamespace(poll=lambda: code)


def test_ray_has_time_to_start_while_its_raylet_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([False, False, True])

    def get_node(*_: str) -> str:
        if not next(answers):
            raise RuntimeError("not yet")
        return "the node"

    monkeypatch.setattr(services, "start_raylet", lambda: Raylet(None))
    monkeypatch.setattr(services, "get_node", get_node)
    with ray_start.patient_start():
        services.start_raylet()
        assert services.get_node("address", "id") == "the node"
    assert services.get_node is get_node


def test_a_dead_raylet_is_reported_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def get_node(*_: str) -> None:
        raise RuntimeError("not yet")

    monkeypatch.setattr(services, "start_raylet", lambda: Raylet(7))
    monkeypatch.setattr(services, "get_node", get_node)
    with ray_start.patient_start():
        services.start_raylet()
        with pytest.raises(ray_start.RayDidNotStart, match="exit code 7"):
            services.get_node("address", "id")


def test_slow_steps_are_announced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = threading.Event()
    monkeypatch.setattr(progress, "EVERY_S", 0.01)
    monkeypatch.setattr("builtins.print", lambda *words, **_: (lines.append(words), told.set()))
    lines: list[tuple[str, ...]] = []
    with progress.Progress("starting Ray"):
        assert told.wait(30)
    assert lines[0] == ("velaray: still starting Ray (0 s)",)
