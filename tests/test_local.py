"""Clusters without Ray: `velaray.local`, ``velaray start --local`` and `velaray.testing`."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pulsar
import pytest
from click.testing import CliRunner

import velaray
from tests.support.waiting import wait_until
from velaray.cli.app import main
from velaray.client.admin import Admin
from velaray.journal.offload.tiered_store import TieredStore
from velaray.local import LocalCluster
from velaray.starting import ClusterError
from velaray.topology.config import UnsafeBindingError

ROOT = Path(__file__).parents[1]
TOPIC = "persistent://public/default/t"
WITHOUT_RAY = "import sys; sys.modules['ray'] = None; from velaray.cli.app import main; main()"


def publish(cluster: LocalCluster, *messages: bytes) -> None:
    with velaray.Client(cluster.service_url) as client, client.create_producer(TOPIC) as producer:
        for message in messages:
            producer.send(message)


def read(cluster: LocalCluster, count: int) -> list[bytes]:
    with (
        velaray.Client(cluster.service_url) as client,
        client.create_reader(TOPIC, velaray.MessageId.earliest) as reader,
    ):
        return [reader.read_next(30_000).data() for _ in range(count)]


def test_a_cluster_in_memory_serves_official_clients() -> None:
    with LocalCluster.start() as cluster:
        client = pulsar.Client(cluster.service_url)
        consumer = client.subscribe(TOPIC, "s")
        client.create_producer(TOPIC).send(b"one")
        assert consumer.receive(30_000).data() == b"one"
        client.close()
        assert Admin(cluster.admin_url).topics("public/default") == {TOPIC: 0}


def test_data_on_disk_outlives_the_cluster(tmp_path: Path) -> None:
    with LocalCluster.start(tmp_path / "data") as cluster:
        publish(cluster, b"one", b"two")
    with LocalCluster.start(tmp_path / "data") as cluster:
        publish(cluster, b"three")
        assert read(cluster, 3) == [b"one", b"two", b"three"]


def test_two_clusters_in_memory_are_apart() -> None:
    with LocalCluster.start() as one, LocalCluster.start() as other:
        publish(one, b"one")
        publish(other, b"other")
        assert (read(one, 1), read(other, 1)) == ([b"one"], [b"other"])


def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    with LocalCluster.start(tmp_path / "data"):
        with pytest.raises(ClusterError, match="another cluster is running on"):
            LocalCluster.start(tmp_path / "data")
        with pytest.raises(ClusterError, match="use another directory"):
            velaray.Cluster.start(tmp_path / "data", service_port=0, admin_port=0)


def test_a_port_in_use_is_refused_and_the_directory_is_free_again(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(ClusterError, match=f"{port}.*--service-port"):
            LocalCluster.start(tmp_path / "data", service_port=port)
    with LocalCluster.start(tmp_path / "data") as cluster:
        publish(cluster, b"one")


def test_bad_settings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsafeBindingError):
        LocalCluster.start(tmp_path / "data", host="0.0.0.0")
    with pytest.raises(ValueError, match="deleters=0 must be at least 1"):
        LocalCluster.start(tmp_path / "data", deleters=0)
    assert not (tmp_path / "data").exists()


def test_the_data_keeps_its_name(tmp_path: Path) -> None:
    LocalCluster.start(tmp_path / "data", name="west").stop()
    with pytest.raises(ClusterError, match="west"):
        LocalCluster.start(tmp_path / "data", name="east")


def test_stopping_twice_does_nothing_more() -> None:
    cluster = LocalCluster.start()
    cluster.stop()
    cluster.stop()


def test_idle_actors_are_passivated() -> None:
    with LocalCluster.start(passivate_after_s=0.2) as cluster:
        publish(cluster, b"one")
        actors = cluster.actor_system.actors
        partition = next(key for key in actors if key.text().startswith("partition/public"))
        wait_until(lambda: partition not in actors, 60.0)
        assert read(cluster, 1) == [b"one"]


def test_the_command_runs_without_ray_and_stops_on_sigterm(tmp_path: Path) -> None:
    ports = ["--service-port", "0", "--admin-port", "0"]
    command = [sys.executable, "-c", WITHOUT_RAY, "start", "--local", *ports]
    with subprocess.Popen(
        [*command, "--data", str(tmp_path / "data")], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        told = "".join(process.stdout.readline() for _ in range(4))
        url = re.search(r"service +(\S+)", told)
        assert url is not None, told
        with (
            velaray.Client(url.group(1)) as client,
            client.create_producer(TOPIC) as producer,
        ):
            producer.send(b"one")
        process.send_signal(signal.SIGTERM)
        assert "velaray has stopped" in process.communicate(timeout=60)[0]
        assert process.returncode == 0
    with LocalCluster.start(tmp_path / "data") as cluster:
        assert read(cluster, 1) == [b"one"]


@pytest.mark.parametrize(
    "option", [["--ray-address", "x"], ["--placement", "shared"], ["--hosts", "4"]]
)
def test_options_about_ray_are_refused(option: list[str], tmp_path: Path) -> None:
    given = ["start", "--local", "--data", str(tmp_path / "data"), *option]
    done = CliRunner().invoke(main, given)
    assert done.exit_code == 2
    assert f"{' '.join(option)} is about Ray" in done.output
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("place", [[], ["--velaray-disk"]])
def test_the_example_suite_passes(place: list[str]) -> None:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "examples/testing"]
    done = subprocess.run(
        [*command, *place], cwd=ROOT, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stdout
    assert re.search(r"\b7 passed", done.stdout), done.stdout


def test_a_data_directory_notes_its_archive(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/archive"
    for options in ({"offload": url}, {}):
        with LocalCluster.start(tmp_path / "data", **options) as cluster:
            assert isinstance(cluster.actor_system.store, TieredStore)
    with pytest.raises(ClusterError, match=f"offloaded to {url}, not to file:///elsewhere"):
        LocalCluster.start(tmp_path / "data", offload="file:///elsewhere")
    with pytest.raises(ClusterError, match="use file:///path"):
        LocalCluster.start(tmp_path / "other", offload="file://relative/path")
    with pytest.raises(ValueError, match="in memory there are no ledgers"):
        LocalCluster.start(offload=url)
    with pytest.raises(ValueError, match="excludes store"):
        LocalCluster.start("s3://bucket", offload=url)
