"""Several clusters on one Ray cluster, and actors that hang or are unused."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
import ray

import velaray
from tests.ray.support import RayNodes, Receiver, actors, quiet_client, wait_until
from velaray import Client, MessageId
from velaray import cluster as cluster_module
from velaray.cluster import Cluster
from velaray.discovery import NoClusterError
from velaray.pipelines import Transform, TransformRun
from velaray.starting import ClusterError

PLACEMENTS = ("auto", pytest.param("dedicated", marks=pytest.mark.long))


def names(cluster: Cluster, kind: str) -> list[str]:
    """The actors of a kind that Ray knows by name, restarting ones included."""
    known = cluster_module._names(cluster.config.ray_namespace)
    return [name for name in known if name.startswith(kind)]


def test_a_name_in_use_is_refused_and_its_cluster_continues(
    nodes: RayNodes, data_dir: Path
) -> None:
    with Cluster.start(data_dir / "a", service_port=0, admin_port=0, name="taken") as first:
        client = quiet_client(first.service_url)
        producer = client.create_producer("t")
        producer.send(b"0")
        before = {each["pid"] for each in first.actors()}
        with pytest.raises(
            ClusterError, match=f"'taken' runs .* already, on {first.config.data_dir}"
        ):
            Cluster.start(data_dir / "b", service_port=0, admin_port=0, name="taken")
        assert {each["pid"] for each in first.actors()} == before
        producer.send(b"1")
        client.close()
        Cluster.start(data_dir / "b", service_port=0, admin_port=0, name="free").stop()


def test_clients_and_handles_find_the_cluster_of_a_name(nodes: RayNodes, data_dir: Path) -> None:
    placements = {"dedicated-one": "dedicated", "shared-one": "shared"}
    with ExitStack() as stack:
        for name, placement in placements.items():
            stack.enter_context(
                Cluster.start(
                    data_dir / name, service_port=0, admin_port=0, name=name, placement=placement
                )
            )
        for name in placements:
            with velaray.connect(name) as client:
                client.create_producer("t").send(name.encode())
        for name in placements:
            (stats,) = ray.get(velaray.handle("t", name).stats.remote()).values()
            assert stats["entries"] == 1
            with (
                velaray.connect(name=name) as client,
                client.create_reader("t", MessageId.earliest) as reader,
            ):
                assert reader.read_next(30_000).data() == name.encode()
        with pytest.raises(NoClusterError, match="'nowhere'"):
            velaray.connect("nowhere")


@pytest.mark.long
def test_a_transform_reads_the_backlog_in_the_cluster_of_a_name(
    nodes: RayNodes, data_dir: Path
) -> None:
    transform = Transform(lambda messages: [], "numbers", "s")
    with (
        Cluster.start(data_dir, service_port=0, admin_port=0, name="named") as cluster,
        Client(cluster.service_url) as client,
        TransformRun(transform, name="named") as run,
    ):
        wait_until(lambda: run.progress().backlog == 0, "a known backlog")
        client.create_producer("numbers").send(b"1")
        wait_until(lambda: run.progress().counts.consumed == 1, "the transform runs")


def test_leftovers_of_a_driver_are_replaced(nodes: RayNodes, data_dir: Path) -> None:
    first = Cluster.start(data_dir, service_port=0, admin_port=0, name="left")
    client = quiet_client(first.service_url)
    client.subscribe("t", "reader")
    producer = client.create_producer("t")
    producer.send(b"0")
    first._lock.close()  # all that the death of a driver changes, where it didn't start Ray
    with pytest.raises(ClusterError, match="it belongs to cluster left: start it with --name left"):
        Cluster.start(data_dir, service_port=0, admin_port=0, name="lost")
    producer.send(b"1")  # it goes on
    with Cluster.start(data_dir, service_port=0, admin_port=0, name="left") as second:
        client.close()
        client = quiet_client(second.service_url)
        receiver = Receiver(client.subscribe("t", "reader"))
        receiver.receive_until(lambda: receiver.numbers == [0, 1])
        client.close()


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_transactions_survive_a_restart_of_the_cluster(
    nodes: RayNodes, data_dir: Path, placement: str
) -> None:
    with Cluster.start(
        data_dir, service_port=0, admin_port=0, name="stops", placement=placement
    ) as first:
        with Client(first.service_url) as client, client.transaction() as committed:
            client.create_producer("t").send(b"kept", txn=committed)
        assert actors(first, "coordinator")
    assert not names(first, "")
    with (
        Cluster.start(
            data_dir, service_port=0, admin_port=0, name="stops", placement=placement
        ) as second,
        Client(second.service_url) as client,
    ):
        reader = client.create_reader("t", MessageId.earliest)
        assert reader.read_next(timeout_millis=60_000).data() == b"kept"


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_hanging_process_does_not_prevent_a_cluster_from_stopping(
    nodes: RayNodes, data_dir: Path, monkeypatch: pytest.MonkeyPatch, placement: str
) -> None:
    cluster = Cluster.start(
        data_dir, service_port=0, admin_port=0, name="hangs", placement=placement
    )
    client = quiet_client(cluster.service_url)
    client.create_producer("t").send(b"0")
    (hanging,) = actors(cluster, "partition")
    client.close()
    monkeypatch.setattr(cluster_module, "_REPORT_TIMEOUT_S", 1.0)
    os.kill(hanging["pid"], signal.SIGSTOP)
    cluster.stop()
    wait_until(lambda: not names(cluster, ""), "every actor is gone")
    Cluster.start(data_dir, service_port=0, admin_port=0, name="hangs", placement=placement).stop()


@pytest.mark.long
def test_a_restarted_actor_without_users_stops(nodes: RayNodes, data_dir: Path) -> None:
    with Cluster.start(
        data_dir,
        service_port=0,
        admin_port=0,
        name="unneeded",
        passivate_after_s=3.0,
        placement="dedicated",
    ) as cluster:
        client = quiet_client(cluster.service_url)
        client.create_producer("t").send(b"0")
        client.close()
        (partition,) = actors(cluster, "partition")
        os.kill(partition["pid"], signal.SIGKILL)
        wait_until(
            lambda: [each for each in actors(cluster, "partition") if each != partition],
            "Ray starts it anew",
        )
        wait_until(lambda: not names(cluster, "partition"), "it leaves again")


def test_spark_finds_a_cluster_by_the_address_of_ray(nodes: RayNodes, data_dir: Path) -> None:
    pytest.importorskip("pyspark", reason="pyspark isn't installed")
    script = """
import sys
from velaray.pipelines.spark_client import CONNECTION, Service
from velaray.pipelines.spark_options import Options
for cluster in sys.argv[1:]:
    try:
        print(Service.of(Options({"cluster": cluster}, CONNECTION, "the test")).url)
    except Exception as error:
        print(type(error).__name__, error)
"""
    address = ray.get_runtime_context().gcs_address
    with Cluster.start(data_dir, service_port=0, admin_port=0, name="named") as cluster:
        command = [sys.executable, "-c", script, f"{address}#named", f"{address}#other"]
        found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)
        url, refusal = found.stdout.splitlines()
        assert url == cluster.service_url
    assert refusal.startswith("InvalidConfiguration") and "no velaray cluster 'other'" in refusal
