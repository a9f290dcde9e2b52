"""`velaray start --ray-address` on a Ray of two nodes that was started before."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import ray
from ray.util import list_named_actors

import velaray
from tests.ray.support import GENEROUS_S, RayNodes, wait_until
from velaray.topology.config import namespace_of

RUNNING = "velaray is running"
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


@pytest.mark.timeout(300)
def test_a_cluster_on_an_existing_ray_uses_both_nodes_and_does_not_stop_ray(data_dir: Path) -> None:
    with RayNodes(workers=1) as nodes:
        command = [sys.executable, *START, "--data", str(data_dir), "--ray-address", nodes.address]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as started:
            assert started.stdout is not None
            said: list[str] = []
            try:
                for line in started.stdout:
                    said.append(line)
                    if line.startswith(RUNNING):
                        break
                (url,) = re.findall(r"service +(pulsar://\S+)", "".join(said))
                with velaray.Client(url, operation_timeout_seconds=60) as client:
                    for number in range(4):
                        consumer = client.subscribe(f"t{number}", "s")
                        client.create_producer(f"t{number}").send(b"departed")
                        assert consumer.receive(60_000).data() == b"departed"
                    wait_until(lambda: len(nodes_in_use()) == 2, "actors on both nodes")
            finally:
                started.send_signal(signal.SIGTERM)
            assert started.wait(GENEROUS_S) == 0
        assert len([node for node in ray.nodes() if node["Alive"]]) == 2
