"""A cluster on two machines that see one directory or one object store; the loss of one of them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest

from tests.ray.namespaces import NETWORK, Machine, NoNamespacesError, two_machines
from tests.ray.support import OBJECT_STORE, wait_until
from tests.support.on_s3 import on_s3
from tests.support.s3_server import running

SECRET = b"the secret that signs every token"
TOPICS = [f"t{number}" for number in range(8)]
RAY = ("-c", "from ray.scripts.scripts import main; main()", "start", "--block", "--num-cpus=2")
VELARAY = ("-c", "from velaray.cli.app import main; main()")


HOSTS = """
import json, sys
from velaray.client.admin import Admin
print(json.dumps(Admin(sys.argv[1], token=sys.argv[2]).hosts()))
"""


@pytest.fixture
def machines(data_dir: Path) -> Iterator[tuple[Machine, Machine]]:
    try:
        with two_machines(data_dir) as found:
            yield found
    except NoNamespacesError as error:
        pytest.skip(str(error))


def start_ray(machine: Machine, head: Machine, folder: Path) -> subprocess.Popen[str]:
    is_head = machine is head
    alone = ("--head", "--port=6399", "--include-dashboard=false", f"--temp-dir={folder}/r")
    where = alone if is_head else ()
    return machine.run(
        "ray",
        *RAY,
        *(where or (f"--address={head.address}:6399",)),
        f"--node-ip-address={machine.address}",
        f"--object-store-memory={OBJECT_STORE}",
        "--resources",
        json.dumps({"velaray_data": 1}),
    )


def started(process: subprocess.Popen[str], said: Callable[[str], bool]) -> list[str]:
    """The lines of a process up to the one that is waited for."""
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line)
        if said(line):
            return lines
    raise AssertionError(f"the process ended: {lines}")


class Publisher:
    """A `tests.ray.topic_client` on a machine."""

    def __init__(self, machine: Machine, url: str, topics: list[str], published: int = 0) -> None:
        """``published`` is what `stop` of an earlier one of these topics has returned."""
        token = jwt.encode({"sub": "admin"}, SECRET, algorithm="HS256")
        client = ("-m", "tests.ray.topic_client", url, token, str(published))
        self._process = machine.run(f"client-{topics[0]}-{published}", *client, *topics)
        self._number = published - 1
        self.publish(3)

    def publish(self, count: int) -> None:
        """Wait until so many further numbers are in every topic."""
        self._number += count
        lines = started(self._process, lambda line: int(line) >= self._number)
        self._number = int(lines[-1])

    def stop(self) -> int:
        """Return the number of messages in each topic. Fails if one is lost or out of order."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        (*_, said) = started(self._process, lambda line: line.startswith("received"))
        assert self._process.wait(60) == 0
        return int(said.split()[1])


def hosts_of(machine: Machine) -> list[dict[str, Any]]:
    """The hosts of the cluster, as its admin interface describes them."""
    token = jwt.encode({"sub": "admin"}, SECRET, algorithm="HS256")
    asked = machine.run("admin", "-c", HOSTS, f"http://{machine.address}:8080", token)
    out, _ = asked.communicate(timeout=60)
    found: list[dict[str, Any]] = json.loads(out)
    return found


def nodes_of_topics(machine: Machine) -> dict[str, str]:
    """The Ray node of each topic."""
    return {
        key.split("/")[3]: host["node"]
        for host in hosts_of(machine)
        for key in host["actors"]
        if key.startswith("partition/")
    }


@pytest.mark.long
@pytest.mark.timeout(600)
def test_two_machines_with_one_directory(machines: tuple[Machine, Machine], data_dir: Path) -> None:
    lose_one_of_two(machines, data_dir, "--data", f"{data_dir}/data")


@on_s3
@pytest.mark.timeout(600)
def test_two_machines_with_an_object_store(
    machines: tuple[Machine, Machine], data_dir: Path
) -> None:
    """They share no directory: what the lost machine's journals had is in the store."""
    first, _ = machines
    with running(data_dir / "s3", first.address, first.entered) as server:
        for machine in machines:
            machine.environment.update(server.environment)
        lose_one_of_two(machines, data_dir, "--store", server.new_store())


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_machine_joins_leaves_and_joins_again(
    machines: tuple[Machine, Machine], data_dir: Path
) -> None:
    """Each time it gets a proxy, hosts, and topics; the number of hosts stays that of the cores."""
    first, second = machines
    secret = data_dir / "secret"
    secret.write_bytes(SECRET)
    started(start_ray(first, first, data_dir), lambda line: "Ray runtime started" in line)
    start = (*VELARAY, "start", "--data", f"{data_dir}/data", "--token-secret", str(secret))
    cluster = first.run(
        "velaray", *start, "--ray-address", f"{first.address}:6399", "--host", NETWORK
    )
    started(cluster, lambda line: line.startswith("velaray is running"))
    publisher = Publisher(first, f"pulsar://{first.address}:6650", TOPICS)
    counts = []
    for _ in range(2):
        started(start_ray(second, first, data_dir), lambda line: "Ray runtime started" in line)
        wait_until(
            lambda: len(set(nodes_of_topics(first).values())) == 2, "topics on both machines", 180
        )
        publisher.publish(20)
        through_second = Publisher(second, f"pulsar://{second.address}:6650", ["on-second"], 0)
        through_second.stop()
        counts.append(len(hosts_of(first)))
        publisher.publish(20)
        second.kill()
        wait_until(lambda: len(set(nodes_of_topics(first).values())) == 1, "topics on one machine")
        publisher.publish(20)
    assert counts == [counts[0]] * 2
    publisher.stop()
    cluster.terminate()
    assert cluster.wait(60) == 0


def lose_one_of_two(machines: tuple[Machine, Machine], folder: Path, *place: str) -> None:
    """A cluster on both machines serves on after one of them is killed and unplugged."""
    first, second = machines
    secret = folder / "secret"
    secret.write_bytes(SECRET)
    for machine in machines:
        started(start_ray(machine, first, folder), lambda line: "Ray runtime started" in line)
    start = (*VELARAY, "start", *place, "--token-secret", str(secret))
    start = (*start, "--ray-address", f"{first.address}:6399", "--host")
    refused = first.run("refused", *start, first.address, stderr=subprocess.STDOUT)
    assert (
        f"nodes of other machines have the resource velaray_data: {second.address}"
        in (refused.communicate(timeout=60)[0])
    )
    assert refused.returncode == 1
    cluster = first.run("velaray", *start, NETWORK)
    said = started(cluster, lambda line: line.startswith("velaray is running"))
    url = f"pulsar://{first.address}:6650,{second.address}:6650"
    assert f"service  {url}\n" in said
    on_first = Publisher(first, url, TOPICS[:4])
    on_second = Publisher(second, url, TOPICS[4:])
    places = nodes_of_topics(second)
    assert places.keys() == set(TOPICS)
    assert len(set(places.values())) == 2, "topics on both machines"
    published = on_second.stop()
    second.kill()
    second.unplug()
    on_first.publish(20)
    on_first.stop()
    Publisher(first, url, TOPICS[4:], published).stop()
    places = nodes_of_topics(first)
    assert places.keys() == set(TOPICS)
    assert len(set(places.values())) == 1, "topics on one machine"
    cluster.terminate()
    assert cluster.wait(60) == 0
