"""Ray on Spark: a Ray cluster on Spark's executors, and velaray on it."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from contextlib import ExitStack
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import ray
from ray.util.spark import setup_ray_cluster, shutdown_ray_cluster

import velaray
from velaray.pipelines.on_spark_room import Room
from velaray.pipelines.spark_on_ray_needs import NotEnoughResources, SparkSetupError, check_sizes
from velaray.ray_access import connect_ray, ensure_ray_token

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_HEAD_MEMORY = 512 << 20
_HEAD_OBJECT_STORE = 128 << 20
_HOOK = "RAY_ON_SPARK_START_HOOK"
_END_S = 30.0


class RayOnSpark:
    """A Ray cluster on Spark and velaray on it; made by `on_spark`, ended by `stop`.

    address: the address of the Ray cluster; this process is connected to it.
    cluster: the velaray cluster; clients connect to its ``service_url``.
    """

    def __init__(self, address: str, cluster: velaray.Cluster, folder: str) -> None:
        """Not for callers: `on_spark` creates the object."""
        self.address = address
        self.cluster = cluster
        self._folder = folder
        self._stopped = False

    def stop(self) -> None:
        """Stop velaray, then Ray, and release Spark's slots. A second call does nothing."""
        if not self._stopped:
            self._stopped = True
            try:
                self.cluster.stop()
            finally:
                _end_ray(self._folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def on_spark(
    spark: SparkSession,
    data_dir: str | Path,
    *,
    nodes: int = 1,
    cores: int = 1,
    memory: int = 1 << 30,
    object_store_memory: int = 128 << 20,
    timeout: float = 60.0,
    **cluster_options: Any,
) -> RayOnSpark:
    """Start a Ray cluster on the executors of ``spark``, and velaray on it.

    Ray's head runs on this host. Each other node runs in a Spark task, which occupies ``cores``
    slots until the node ends. One more slot is necessary for Spark's own jobs. The start takes
    about half a minute. This process is connected to Ray afterwards.

    spark: an active session on a standalone cluster, a local cluster, YARN, or local.
    data_dir: the directory of the journals; every node must have access to it under this name.
    nodes: the number of Ray nodes besides the head.
    cores: the cores of each node; in Spark's local mode ``spark.task.cpus``.
    memory, object_store_memory: the memory of each node, in bytes, in addition to Spark's own
        memory.
    timeout: seconds to wait for Spark's slots.
    cluster_options: further arguments of `velaray.Cluster.start`.

    Raises `InvalidConfiguration` for impossible sizes, `NotEnoughResources` if Spark's slots or the
    hosts' memory don't suffice, `SparkSetupError` if Ray can't be started (for example if this
    process is connected to another Ray), and the errors of `velaray.Cluster.start`. Everything that
    was started is stopped then.
    """
    check_sizes(nodes, cores, memory)
    if ray.is_initialized():
        raise SparkSetupError("this process is connected to Ray already: ray.shutdown() first")
    room = Room(spark, nodes, cores, memory, object_store_memory)
    room.check(timeout)
    # The path is short: the paths of Ray's sockets have a length limit.
    folder = tempfile.mkdtemp(prefix="vr-", dir="/tmp")
    with ExitStack() as undo:
        undo.callback(shutil.rmtree, folder, ignore_errors=True)
        address = _start_ray(room, folder)
        undo.callback(_end_ray, folder)
        connect_ray(address)
        alive = sum(bool(node["Alive"]) for node in ray.nodes()) - 1
        if alive < nodes:
            raise NotEnoughResources(f"only {alive} of {nodes} Ray nodes came up on Spark")
        cluster = velaray.Cluster.start(data_dir, **cluster_options)
        undo.pop_all()
    return RayOnSpark(address, cluster, folder)


def _start_ray(room: Room, folder: str) -> str:
    """Start Ray and return its address; raises `SparkSetupError`."""
    ensure_ray_token()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    former = os.environ.get(_HOOK)
    os.environ[_HOOK] = former or "velaray.pipelines.on_spark_hook.StartHook"
    sizes: dict[str, Any] = {}
    if not room.local:
        sizes = {"num_cpus_worker_node": room.cores, "num_gpus_worker_node": 0}
    try:
        address, _ = setup_ray_cluster(
            max_worker_nodes=room.nodes,
            **sizes,
            num_cpus_head_node=0,
            memory_worker_node=room.memory,
            object_store_memory_worker_node=room.object_store_memory,
            memory_head_node=_HEAD_MEMORY,
            object_store_memory_head_node=_HEAD_OBJECT_STORE,
            head_node_options={"include_dashboard": False},
            ray_temp_root_dir=folder,
        )
    except (RuntimeError, ValueError) as error:
        cause = f": {error.__cause__}" if error.__cause__ else ""
        raise SparkSetupError(f"Ray can't be started on Spark: {error}{cause}") from error
    finally:
        if former is None:
            del os.environ[_HOOK]
    return str(address)


def _end_ray(folder: str) -> None:
    """Stop Ray, and wait until the last node on each host has removed Ray's files."""
    shutdown_ray_cluster()
    pause = threading.Event()
    deadline = monotonic() + _END_S
    while os.listdir(folder) and monotonic() < deadline:
        pause.wait(0.1)
    shutil.rmtree(folder, ignore_errors=True)
