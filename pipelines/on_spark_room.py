"""The check that Spark has the slots, and its hosts the memory, for Ray nodes."""

from __future__ import annotations

import os
import shutil
import socket
import threading
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from velaray.client.exceptions import InvalidConfiguration
from velaray.pipelines.spark_on_ray_needs import MIB, NotEnoughResources

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The usable part of a host's memory. The rest is for everything else, as in Ray's own calculation.
_USABLE = 0.8


class Host(NamedTuple):
    """A host of executors, with its memory and its shared memory in bytes."""

    name: str
    physical: int
    shared: int


class Slots(NamedTuple):
    """Spark's current resources: cores for tasks, and the executors that have them."""

    cores: int
    executors: int


class Room:
    """Ray nodes of a given size, and Spark's resources for them."""

    def __init__(
        self, spark: SparkSession, nodes: int, cores: int, memory: int, object_store_memory: int
    ) -> None:
        """Raises `InvalidConfiguration` for sizes that Spark's mode doesn't allow."""
        self.nodes = nodes
        self.cores = cores
        self.memory = memory
        self.object_store_memory = object_store_memory
        self._context = spark.sparkContext
        master = self._context.master or ""
        self.local = master == "local" or master.startswith("local[")
        self._task_cores = int(self._context.getConf().get("spark.task.cpus", "1") or 1)
        if self.local and cores != self._task_cores:
            raise InvalidConfiguration(
                f"cores={cores}: in local mode a node has spark.task.cpus={self._task_cores}"
            )

    def check(self, timeout: float) -> None:
        """Wait for the executors.

        Raises `NotEnoughResources` if resources are missing after the timeout.
        """
        deadline = monotonic() + timeout
        pause = threading.Event()
        while lacking := self._lacking_slots(slots := self._slots()):
            if monotonic() > deadline:
                raise NotEnoughResources(lacking)
            pause.wait(0.2)
        tasks = slots.cores // self._task_cores
        hosts = set(self._context.parallelize(range(tasks), tasks).map(_host).collect())
        if lacking := self._lacking_memory(slots, hosts):
            raise NotEnoughResources(lacking)

    def _slots(self) -> Slots:
        jvm: Any = self._context._jsc.sc()
        profile = jvm.resourceProfileManager().defaultResourceProfile()
        tasks = int(jvm.maxNumConcurrentTasks(profile))
        known = len(jvm.statusTracker().getExecutorInfos())  # the driver is one
        return Slots(tasks * self._task_cores, 1 if self.local else known - 1)

    def _lacking_slots(self, slots: Slots) -> str:
        """Describe the missing slots; empty if there are enough."""
        each = slots.cores // max(slots.executors, 1)
        fit = each // self.cores * slots.executors
        needed = self.nodes * self.cores + self._task_cores
        if fit >= self.nodes and slots.cores >= needed:
            return ""
        return (
            f"{self.nodes} Ray nodes of {self.cores} cores need {needed} cores of Spark: they keep "
            f"theirs as long as they live, {self._task_cores} must stay for Spark's own tasks, and "
            f"one node must fit on one executor. Spark has {slots.cores} on {slots.executors} "
            "executors: give it more, or ask for fewer or smaller nodes"
        )

    def _lacking_memory(self, slots: Slots, hosts: set[Host]) -> str:
        """Describe the missing memory; empty if there is enough."""
        share = -(-slots.executors // len(hosts))
        nodes = min(self.nodes, -(-slots.cores // len(hosts)) // self.cores)
        ours = nodes * (self.memory + self.object_store_memory)
        of_spark = share * int(self._context._jsc.sc().executorMemory()) * MIB
        for host in sorted(hosts):
            if ours + of_spark > _USABLE * host.physical:
                return (
                    f"up to {nodes} Ray nodes on host {host.name} need {ours // MIB} MiB beside "
                    f"{of_spark // MIB} MiB of Spark's executors; of its {host.physical // MIB} "
                    f"MiB four fifths are usable: ask for less memory or fewer nodes"
                )
            if nodes * self.object_store_memory > _USABLE * host.shared:
                return (
                    f"object stores of {nodes} Ray nodes on host {host.name} need "
                    f"{nodes * self.object_store_memory // MIB} MiB; its /dev/shm has "
                    f"{host.shared // MIB} MiB, of which four fifths are usable: enlarge it, or "
                    "ask for a smaller object_store_memory"
                )
        return ""


def _host(_: int) -> Host:
    """The host of this task."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return Host(socket.gethostname(), physical, shutil.disk_usage("/dev/shm").total)
