"""`velaray start --ray-address`, with `--name`, on a Ray that was started before."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.util import list_named_actors

import velaray
from tests.ray.support import GENEROUS_S, OBJECT_STORE, RayNodes, wait_until
from velaray.topology.config import namespace_of

RUNNING = "velaray is running"
STARTED = re.compile(r"ray start --address='(\S+)'")
START = (
    *("-c", "from velaray.cli.app import main; main()", "start"),
    *("--service-port", "0", "--admin-port", "0"),
)


def nodes_in_use() -> set[str]:
    """The nodes on which the cluster's actors run."""
    namespace = namespace_of("standalone")
    named = list_named_actors(all_namespaces=True)
    handles = [
        ray.get_actor(each["name"], namespace) for each in named if each["namespace"] == namespace
    ]
    return {report["node"] for report in ray.get([each.describe.remote() for each in handles])}


@contextmanager
def running(data_dir: Path, *options: str) -> Iterator[str]:
    """``velaray start`` with these options, as the lines that it prints."""
    command = [sys.executable, *START, "--data", str(data_dir), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as started:
        try:
            yield lines_until(started, lambda line: line.startswith(RUNNING))
        finally:
            started.send_signal(signal.SIGTERM)
        assert started.wait(GENEROUS_S) == 0


def lines_until(started: subprocess.Popen[str], is_last: Callable[[str], Any]) -> str:
    """The lines that a process prints, until the last one that is waited for."""
    assert started.stdout is not None
    said: list[str] = []
    for line in started.stdout:
        said.append(line)
        if is_last(line):
            break
    return "".join(said)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_cluster_on_an_existing_ray_uses_both_nodes_and_does_not_stop_ray(data_dir: Path) -> None:
    with RayNodes(workers=1) as nodes:
        options = ("--ray-address", nodes.address, "--placement", "dedicated")
        with running(data_dir, *options) as said:
            (url,) = re.findall(r"service +(pulsar://\S+)", said)
            with velaray.Client(url, operation_timeout_seconds=60) as client:
                for number in range(4):
                    consumer = client.subscribe(f"t{number}", "s")
                    client.create_producer(f"t{number}").send(b"departed")
                    assert consumer.receive(60_000).data() == b"departed"
                wait_until(lambda: len(nodes_in_use()) == 2, "actors on both nodes")
        assert len([node for node in ray.nodes() if node["Alive"]]) == 2


PROGRAM = """
import sys
import ray
import velaray
from velaray import InitialPosition

@ray.remote
def publish(handle, text):
    return ray.get(handle.publish.remote(text))

@ray.remote
def work(board, batch):
    ray.get(board.acknowledge.remote(batch))
    return [message.data() for message in batch]

ray.init(address=sys.argv[1], log_to_driver=False)
for name in sys.argv[2:]:
    ray.get(publish.remote(velaray.handle("t", name), f"of {name}".encode()))
for name in sys.argv[2:]:
    board = velaray.subscription_handle(
        "t", "board", name, initial_position=InitialPosition.Earliest
    )
    batch = board.receive.remote(timeout_s=60)
    with velaray.connect(name=name) as client:
        reader = client.create_reader("t", velaray.MessageId.earliest)
        print(name, ray.get(work.remote(board, batch)), reader.read_next(60_000).data())
"""


@contextmanager
def ray_started(folder: Path) -> Iterator[str]:
    """A Ray that ``ray start`` started, as its address."""
    command = [
        *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"),
        *("--port", "0", "--num-cpus", "2", "--include-dashboard", "false"),
        *("--object-store-memory", str(OBJECT_STORE), "--temp-dir", str(folder)),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as started:
        try:
            (address,) = STARTED.findall(lines_until(started, STARTED.search))
            yield address
        finally:
            started.send_signal(signal.SIGTERM)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_programs_find_the_clusters_of_a_ray_by_their_names(data_dir: Path) -> None:
    clusters = {"east": "dedicated", "west": "shared"}
    with ray_started(data_dir / "r") as address, ExitStack() as stack:
        for name, placement in clusters.items():
            options = ("--ray-address", address, "--name", name, "--placement", placement)
            said = stack.enter_context(running(data_dir / name, *options))
            assert RUNNING in said
        command = [sys.executable, "-c", PROGRAM, address, *clusters]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.stdout.splitlines() == [
            "east [b'of east'] b'of east'",
            "west [b'of west'] b'of west'",
        ], done.stderr[-2000:]
