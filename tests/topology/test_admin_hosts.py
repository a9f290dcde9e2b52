"""The admin routes and commands for hosts. Moves themselves: `tests.ray.test_hosts`."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from dataclasses import replace

import pytest
from click.testing import CliRunner, Result

from tests.support.local_cluster import LocalCluster
from velaray.actors.machine import Reason
from velaray.cli.app import main
from velaray.client.admin import Admin, NotFound, PreconditionFailed
from velaray.client.exceptions import VelarayError
from velaray.topology.host_control import HostStatus
from velaray.topology.rpc import RemoteError

TOPIC = "persistent://public/default/t"
ACTORS = ("partition/public/default/t/-1/1", "catalog")


HOST = HostStatus("host/0", 17, "n", ACTORS, 5 << 20, 1.25, 0.0125, "0.2.0", drained=True)


class Control:
    """Notes what it is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []

    async def hosts(self) -> list[HostStatus]:
        return [HOST]

    async def silent(self) -> list[str]:
        return ["host/2"]

    async def log_lines(self, host: str) -> list[str]:
        return [f"a line of {host}"]

    async def move(self, group: str, to: str = "") -> str:
        self.asked.append(("move", group, to))
        return to or "host/0"

    async def drain(self, host: str) -> int:
        self.asked.append(("drain", host))
        return 3 if self.asked.count(("drain", host)) == 1 else 0

    async def resume(self, host: str) -> None:
        self.asked.append(("resume", host))
        raise RemoteError(Reason.NOT_FOUND, f"there is no host {host!r}")

    async def restart(self, host: str) -> HostStatus:
        self.asked.append(("restart", host))
        if host != "host/0":
            raise RemoteError(Reason.CONFLICT, f"{host} has 2 actors: drain it first")
        return replace(HOST, pid=18, drained=False)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("data")) as cluster:
        yield cluster


@pytest.fixture
def control(cluster: LocalCluster) -> Iterator[Control]:
    control = Control()
    cluster.actor_system.host_control = control
    yield control
    cluster.actor_system.host_control = None


def run(cluster: LocalCluster, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["hosts", *arguments, "--admin-url", cluster.admin_url])


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("t", TOPIC),
        ("acme/space/t-partition-2", "persistent://acme/space/t-partition-2"),
        (TOPIC, TOPIC),
        ("partition/public/default/t/-1/1", TOPIC),
        ("coordinator/3", "coordinator/3"),
    ],
)
def test_a_move_names_a_topic_or_an_actor(
    cluster: LocalCluster, control: Control, name: str, group: str
) -> None:
    assert Admin(cluster.admin_url).hosts.move(name, "host/1") == "host/1"
    assert control.asked == [("move", group, "host/1")]


def test_the_commands_ask_and_report(cluster: LocalCluster, control: Control) -> None:
    listed = run(cluster, "list")
    assert listed.exit_code == 0, listed.output
    assert "host/0" in listed.output and "drained" in listed.output
    assert re.search(r"^host/2 .* doesn't answer$", listed.output, re.MULTILINE)
    assert Admin(cluster.admin_url).hosts.silent() == ["host/2"]
    described = run(cluster, "describe", "host/0")
    assert json.loads(described.output)["actors"] == list(ACTORS)
    assert "no host 'host/5' runs; these do: host/0" in run(cluster, "describe", "host/5").output
    assert "t is in host/0" in run(cluster, "move", "t").output
    assert (
        "host/1 is drained: 3 topics and other actors moved"
        in run(cluster, "drain", "host/1").output
    )
    refused = run(cluster, "resume", "host/7")
    assert refused.exit_code == 1 and "there is no host 'host/7'" in refused.output
    assert control.asked == [("move", TOPIC, ""), ("drain", "host/1"), ("resume", "host/7")]


def test_one_host_is_answered(cluster: LocalCluster, control: Control) -> None:
    with Admin(cluster.admin_url) as admin:
        assert admin.hosts.get("host/0") == admin.hosts()[0]
        with pytest.raises(NotFound, match="no host 'host/5' runs; these do: host/0"):
            admin.hosts.get("host/5")


def test_the_last_lines_of_a_host_are_answered(cluster: LocalCluster, control: Control) -> None:
    assert Admin(cluster.admin_url).hosts.log("host/0") == ["a line of host/0"]


def test_a_restart_drains_each_host_first(cluster: LocalCluster, control: Control) -> None:
    restarted = run(cluster, "restart", "-o", "json")
    assert json.loads(restarted.output) == {
        "host": "host/0",
        "moved": 3,
        "pid": 18,
        "version": "0.2.0",
    }
    drain = ("drain", "host/0")
    assert control.asked == [drain, drain, ("restart", "host/0")]
    refused = run(cluster, "restart", "host/1")
    assert refused.exit_code == 1 and "host/1 has 2 actors: drain it first" in refused.output


def test_wrong_requests_are_refused_and_ask_nothing(
    cluster: LocalCluster, control: Control
) -> None:
    admin = Admin(cluster.admin_url)
    for body in ({}, {"name": 7}, {"name": ""}, {"name": "t", "host": 1}):
        with pytest.raises(VelarayError, match=r"must be a text|is missing"):
            admin.request("POST", "velaray/hosts/move", body)
    with pytest.raises(NotFound):
        admin.hosts.resume("host/7")
    assert control.asked == [("resume", "host/7")]


def test_a_scrape_has_the_hosts_and_succeeds_without_them(
    cluster: LocalCluster, control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scrape() -> str:
        with urllib.request.urlopen(f"{cluster.admin_url}/metrics") as answer:
            text: str = answer.read().decode()
        return text

    assert 'velaray_host_actors{cluster="standalone",host="host/0"} 2.0' in scrape()

    async def away() -> list[HostStatus]:
        raise RemoteError(Reason.UNAVAILABLE, "the placement directory doesn't answer")

    monkeypatch.setattr(control, "hosts", away)
    assert "velaray_actors{" in scrape() and "velaray_host_actors{" not in scrape()
    for what in ("memory_bytes", "cpu_seconds_total", "loop_lag_seconds"):
        assert f'velaray_host_{what}{{cluster="standalone",host="proxy"}}' in scrape()


def test_a_cluster_without_shared_hosts_says_so(cluster: LocalCluster) -> None:
    with pytest.raises(PreconditionFailed, match="start it with --placement shared"):
        Admin(cluster.admin_url).hosts()
    assert "--placement shared" in run(cluster, "drain", "host/0").output
