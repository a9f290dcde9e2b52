"""Spark's standalone daemons as Ray actors: actor and JVM end together."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from time import monotonic
from typing import NamedTuple

import ray

from velaray.journal.private import make_private, private_opener
from velaray.pipelines import spark_on_ray_child
from velaray.pipelines.spark_on_ray_needs import require_spark

# A JVM that ends within this time has failed to start and isn't restarted at once.
_SHORTEST_LIFE_S = 5.0
_STOP_S = 15.0
_DAEMON_HEAP = "256m"
_QUICK_START = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")  # they do little once they run
_LOOPBACK = "127.0.0.1"


class SparkProcess(NamedTuple):
    """A running master or worker.

    role: "master" or "worker-0", "worker-1" and so on.
    actor_pid, jvm_pid: the processes of the actor and of its JVM.
    node: the id of the Ray node.
    """

    role: str
    actor_pid: int
    jvm_pid: int
    node: str


class Daemon:
    """A Spark master or worker. Raises `SparkMissing` if Java or pyspark is missing."""

    def __init__(
        self, role: str, folder: str, command: list[str], host: str | None, secret: str
    ) -> None:
        """``command``: class and arguments.

        ``host``: the address to listen on; None: the node's.
        """
        self._role = role
        self._folder = Path(folder) / role
        make_private(self._folder)
        self._stopping = threading.Event()
        started = monotonic()
        self._jvm = self._start(
            [*command, "--host", host or ray.util.get_node_ip_address()], secret
        )
        threading.Thread(target=self._watch, args=(started,), daemon=True).start()

    def _start(self, command: list[str], secret: str) -> subprocess.Popen[bytes]:
        home = require_spark()
        child = [sys.executable, "-S", "-E", spark_on_ray_child.__file__, str(os.getpid())]
        with open(self._folder / "log", "ab", opener=private_opener) as log:
            # In Ray's main thread: the JVM ends with the thread that started it.
            return subprocess.Popen(
                [*child, str(home / "bin" / "spark-class"), *command],
                env={**os.environ, **_environment(home, self._folder, secret)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def _watch(self, started: float) -> None:
        self._jvm.wait()
        if not self._stopping.is_set():
            self._stopping.wait(_SHORTEST_LIFE_S - (monotonic() - started))
            os._exit(1)  # Ray restarts the actor

    def describe(self) -> SparkProcess:
        """The processes and the node of the daemon."""
        node = ray.get_runtime_context().get_node_id()
        return SparkProcess(self._role, os.getpid(), self._jvm.pid, node)

    def log_tail(self) -> str:
        """The end of the JVM's log."""
        return (self._folder / "log").read_text(errors="replace")[-2000:]

    def stop(self) -> None:
        """Stop the JVM in good order, or kill it, after its executors; remove its files."""
        self._stopping.set()
        self._jvm.terminate()
        try:
            self._jvm.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._jvm.kill()
            self._jvm.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


def _environment(home: Path, folder: Path, secret: str) -> Mapping[str, str]:
    """The environment of a daemon's JVM, which its executors and their Python inherit."""
    options = {
        "spark.authenticate": "true",
        "spark.master.rest.enabled": "false",  # its port is fixed: a second master would never lead
        "spark.port.maxRetries": "0",  # avoid trying further ports, which no client uses
        "spark.deploy.recoveryMode": "FILESYSTEM",
        "spark.deploy.recoveryDirectory": str(folder / "recovery"),
        "spark.deploy.recoveryTimeout": "15s",  # the longest wait for a worker that is gone
        "spark.deploy.maxExecutorRetries": "-1",  # deaths of executors don't end applications
    }
    properties = [f"-D{name}={value}" for name, value in options.items()]
    of_python = (sys.prefix, sys.base_prefix)
    here = [path for path in sys.path if path and not path.startswith(of_python)]
    return {
        "SPARK_HOME": str(home),
        "SPARK_DAEMON_JAVA_OPTS": " ".join([*_QUICK_START, *properties]),
        "SPARK_DAEMON_MEMORY": _DAEMON_HEAP,
        "SPARK_LOCAL_IP": _LOOPBACK,  # for the web pages; the rest listens on its configured host
        "SPARK_WORKER_DIR": str(folder / "work"),
        "SPARK_LOCAL_DIRS": str(folder / "local"),
        "_SPARK_AUTH_SECRET": secret,
        "PYTHONPATH": os.pathsep.join(here),
    }
