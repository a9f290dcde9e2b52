"""``velaray logs NAME --follow`` on a Ray of two live nodes."""

from __future__ import annotations

import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.ray.support import RayNodes, wait_until
from velaray.client.admin import Admin
from velaray.cluster import Cluster

COMMAND = (sys.executable, "-u", "-c", "from velaray.cli.app import main; main()")
HOSTS = ("host/0", "host/1")


@contextmanager
def following(output: Path, *arguments: str) -> Iterator[None]:
    """Run the command, whose output goes to a file."""
    with (
        output.open("w") as file,
        subprocess.Popen([*COMMAND, "logs", *arguments, "--follow"], stdout=file) as process,
    ):
        try:
            yield
        finally:
            process.kill()


def moved(admin: Admin, topic: str) -> str:
    """Move a topic to the other host, and return its name."""
    admin.topics.stats(topic)  # it runs
    placed = next(
        host["name"]
        for host in admin.hosts()
        if any(f"/{topic}/" in each for each in host["actors"])
    )
    return admin.hosts.move(topic, next(host for host in HOSTS if host != placed))


def test_following_shows_the_lines_of_both_nodes(data_dir: Path, tmp_path: Path) -> None:
    output = tmp_path / "output"
    orders = f"orders-{secrets.token_hex(4)}"  # lines of earlier clusters are shown, too

    def lines() -> list[str]:
        return [line for line in output.read_text().splitlines() if " leaves " in line]

    options = {"service_port": 0, "admin_port": 0, "placement": "shared", "hosts": len(HOSTS)}
    with (
        RayNodes(workers=1) as nodes,
        Cluster.start(data_dir, log_level="info", **options) as cluster,  # type: ignore[arg-type]
    ):
        admin = Admin(cluster.admin_url)
        for topic in (orders, "others"):
            admin.topics.create(topic)
        moved(admin, "others")
        first = moved(admin, orders)
        found = {each["key"]: each["node"] for each in cluster.actors()}
        assert len({found[host] for host in HOSTS}) == 2, "the hosts are on two nodes"
        with following(output, orders, "--ray-address", nodes.address):
            wait_until(lambda: len(lines()) == 1, "the line from before the command")
            moved(admin, orders)
            wait_until(lambda: len(lines()) == 2, "a line of the other node")
            moved(admin, orders)
            wait_until(lambda: len(lines()) == 3, "a line of the first node again")
        left = [line for host in HOSTS for line in admin.hosts.log(host) if orders in line]
        assert sum(" leaves " in line for line in left) == 3
    assert all(f"public/default/{orders} leaves " in line for line in lines())
    left = [line.split(" leaves ")[1].split(":")[0] for line in lines()]
    assert left[0] != first and left == [left[0], first, left[0]]
