"""Spark on Ray: a standalone Spark cluster whose master and workers are Ray actors."""

from __future__ import annotations

import json
import random
import secrets
import shutil
import socket
import tempfile
import threading
import urllib.request
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import (
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)

from velaray.pipelines.spark_on_ray_actors import Daemon, SparkProcess
from velaray.pipelines.spark_on_ray_needs import (
    MIB,
    NotEnoughResources,
    SparkSetupError,
    check_sizes,
    heap_of,
    require_spark,
)
from velaray.pipelines.spark_on_ray_session import SessionMaker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ANSWER_S = 20.0
_PAGE_S = 2.0


class SparkOnRay:
    """A Spark cluster in Ray's resources; ended by `stop`, with the context, or with the process.

    The constructor starts the cluster: a Spark master on this Ray node, and ``workers`` workers on
    nodes with free resources. Ray reserves ``cores`` CPUs and ``memory`` bytes for each worker. A
    tenth of the memory, at least 384 MiB, is for Python and other memory outside the heap; Spark
    allocates the rest. A master or worker that dies, with or without its actor, is restarted, and
    sessions continue. Connections require a secret, which `session` supplies.

    workers: the number of workers.
    cores: the CPUs of each worker.
    memory: the memory of each worker, in bytes.
    host: the address on which master, workers and the session's driver listen. None: their nodes'
        addresses in Ray, which a Ray cluster of several hosts requires.
    timeout: seconds until the whole cluster must run.

    Raises `InvalidConfiguration` for impossible sizes, `SparkMissing` without pyspark or Java,
    `NotEnoughResources` if Ray lacks the resources, and `SparkSetupError` if Spark can't be
    started. Everything that was started is stopped then.
    """

    def __init__(
        self,
        workers: int = 2,
        cores: int = 1,
        memory: int = 1 << 30,
        *,
        host: str | None = "127.0.0.1",
        timeout: float = 120.0,
    ) -> None:
        check_sizes(workers, cores, memory)
        heap = heap_of(memory)
        require_spark()
        if not ray.is_initialized():
            raise SparkSetupError("this process isn't connected to Ray: ray.init() first")
        self._host = host
        self._at = host or ray.util.get_node_ip_address()
        self._secret = secrets.token_urlsafe(32)
        self._folder = tempfile.mkdtemp(prefix="velaray-spark-")
        self._port, self._page_port = _free_ports(self._at)
        self._config = {"spark.executor.cores": str(cores), "spark.executor.memory": f"{heap}m"}
        self._sessions = self.session_maker()
        self._actors: list[Any] = []
        self._room = placement_group(
            [{"CPU": cores, "memory": memory}] * workers, strategy="SPREAD"
        )
        with ExitStack() as undo:
            undo.callback(self.stop)
            deadline = monotonic() + timeout
            if not self._room.wait(timeout):
                raise NotEnoughResources(_shortage(workers, cores, memory, timeout))
            self._start(workers, cores, heap)
            self._wait(workers, deadline)
            undo.pop_all()

    def _start(self, workers: int, cores: int, heap: int) -> None:
        here = ray.get_runtime_context().get_node_id()
        package = "org.apache.spark.deploy"
        master = [f"{package}.master.Master", "--port", str(self._port)]
        master += ["--webui-port", str(self._page_port)]
        # On this node its address and its recovery data stay the same after a restart.
        on_this_node = NodeAffinitySchedulingStrategy(here, soft=False)
        self._actors.append(self._actor("master", master, scheduling_strategy=on_this_node))
        worker = [f"{package}.worker.Worker", "--cores", str(cores), "--memory", f"{heap}m"]
        worker += ["--webui-port", "0", self.master_url]
        for index in range(workers):
            room = PlacementGroupSchedulingStrategy(self._room, index)
            of = self._room.bundle_specs[index]
            options = {"num_cpus": cores, "memory": of["memory"], "scheduling_strategy": room}
            self._actors.append(self._actor(f"worker-{index}", worker, **options))

    def _actor(self, role: str, command: list[str], **options: Any) -> Any:
        make = ray.remote(Daemon).options(**{"num_cpus": 0, "max_restarts": -1, **options})
        return make.remote(role, self._folder, command, self._host, self._secret)

    def _wait(self, workers: int, deadline: float) -> None:
        """Wait until the master knows every worker; raises `SparkSetupError` if one can't start."""
        pause = threading.Event()
        started = [actor.describe.remote() for actor in self._actors]
        while (running := self.workers_alive()) < workers:
            done, _ = ray.wait(started, num_returns=len(started), timeout=0)
            try:
                ray.get(done)
            except RayError as error:
                raise SparkSetupError(f"Spark can't be started: {error}") from error
            if monotonic() > deadline:
                raise SparkSetupError(
                    f"{running} of {workers} Spark workers came up in time: on several hosts "
                    f"host=None is needed; else allow a longer timeout. {self._log_tail()}"
                )
            pause.wait(0.1)

    def _log_tail(self) -> str:
        """The last log lines of the daemon that was started last."""
        try:
            return str(ray.get(self._actors[-1].log_tail.remote(), timeout=_ANSWER_S))
        except (RayError, OSError) as error:
            return f"(its log can't be read: {error})"

    @property
    def master_url(self) -> str:
        """The URL for Spark applications."""
        return f"spark://{self._at}:{self._port}"

    @property
    def folder(self) -> str:
        """The folder of logs and recovery data, until `stop`.

        Its JVMs' environments contain the name.
        """
        return self._folder

    def workers_alive(self) -> int:
        """Number of workers that the master knows and finds alive; 0 while it doesn't answer."""
        # Its web page listens on loopback whatever the host is.
        url = f"http://127.0.0.1:{self._page_port}/json/"
        try:
            with urllib.request.urlopen(url, timeout=_PAGE_S) as page:
                return int(json.load(page)["aliveworkers"])
        except (OSError, ValueError):
            return 0

    def processes(self) -> list[SparkProcess]:
        """The running master and workers, without those that are restarting."""
        found = []
        for actor in self._actors:
            try:
                found.append(SparkProcess(*ray.get(actor.describe.remote(), timeout=_ANSWER_S)))
            except (RayActorError, GetTimeoutError):
                continue
        return found

    def session(
        self, app_name: str = "velaray", config: Mapping[str, str] | None = None
    ) -> SparkSession:
        """Return this process's Spark session on this cluster; create it if there is none.

        It has ``format("velaray")`` and one executor per worker, as large as the worker.
        ``config``: additional or changed Spark settings. Raises `SparkSetupError` if this process
        has a session of another cluster.
        """
        return self._sessions.session(app_name, config or {})

    def session_maker(self) -> SessionMaker:
        """Return an object that makes and ends a session in another process on this host.

        The object can be pickled. It contains the cluster's secret, with which a process can run
        code on the cluster: pass it only to trusted processes.
        """
        return SessionMaker(self.master_url, self._at, self._secret, self._config)

    def stop(self) -> None:
        """Stop the session, workers and master, with all their JVMs; a second call does nothing."""
        self._sessions.stop()
        actors, self._actors = self._actors, []
        ending = [actor.stop.remote() for actor in reversed(actors)]
        if ending:
            ray.wait(ending, num_returns=len(ending), timeout=2 * _ANSWER_S)
        for actor in actors:
            ray.kill(actor)
        if self._room is not None:
            remove_placement_group(self._room)
            self._room = None
        shutil.rmtree(Path(self._folder), ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def _free_ports(host: str) -> list[int]:
    """Find two ports without a listener, outside of the range of outgoing connections.

    The system assigns ports from 32768 on to outgoing connections: one of these could be in use
    when the master restarts.
    """
    found: list[int] = []
    for port in random.sample(range(27_000, 32_000), 200):
        with socket.socket() as probe:
            if probe.connect_ex((host, port)) != 0:
                found.append(port)
        if len(found) == 2:
            return found
    raise SparkSetupError(f"no free ports on {host}")


def _shortage(workers: int, cores: int, memory: int, timeout: float) -> str:
    total, free = ray.cluster_resources(), ray.available_resources()

    def told(resources: dict[str, float]) -> str:
        return f"{resources.get('CPU', 0):g} CPUs, {int(resources.get('memory', 0)) // MIB} MiB"

    return (
        f"{workers} Spark workers of {cores} cores and {memory // MIB} MiB each found no room on "
        f"Ray within {timeout:g} s: it has {told(total)}, of which {told(free)} are free. Ask for "
        "fewer or smaller workers, free some, or add Ray nodes; one worker must fit on one node"
    )
