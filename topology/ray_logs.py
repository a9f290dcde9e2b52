"""The output of a cluster's processes in the session folders of Ray, on all nodes."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Protocol

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from velaray.topology.config import namespace_of
from velaray.topology.ray_connection import RayUnavailable, connect_ray, one_line

logger = logging.getLogger("velaray")

SESSIONS: Final = "/tmp/ray"
"""The folder of Ray's sessions on a machine, unless Ray was started with another one."""
_LONGEST: Final = 4 << 20
"""The most bytes of a file that are read at a time; at first the last ones."""
_HEAD: Final = 4096
_ANSWER_S: Final = 30.0

Offsets = dict[str, int]
Part = tuple[str, str, int, str]
"""Of a file: its path, its process, the place up to which it was read, and what was read."""


def read_parts(sessions: str, namespace: str, offsets: Offsets) -> list[Part]:
    """What the processes of a cluster wrote on this machine since the ``offsets``.

    Ray writes the name of an actor to the output of its process, as `__repr__` gives it.
    """
    marker = re.compile(rf"^:actor_name:{re.escape(namespace)}:(.+)$".encode(), re.MULTILINE)
    found = []
    for path in sorted(Path(sessions).glob("session_[0-9]*/logs/worker-*.err")):
        try:
            with path.open("rb") as file:
                named = marker.search(file.read(_HEAD))
                if named is None:
                    continue
                size = file.seek(0, 2)
                begin = file.seek(offsets.get(str(path), max(0, size - _LONGEST)))
                raw = file.read(_LONGEST)
        except OSError:  # Ray has removed it
            continue
        whole = raw[: raw.rfind(b"\n") + 1]
        if whole:
            place, process = begin + len(whole), named[1].decode(errors="replace")
            found.append((str(path), process, place, whole.decode(errors="replace")))
    return found


class NodeLogs(Protocol):
    """The output on the nodes of a cluster."""

    def read(self) -> Iterator[tuple[str, str]]:
        """The name of a process and what it wrote since the last call, for each file."""
        ...

    def close(self) -> None:
        """Disconnect. Idempotent."""
        ...


class _OfThisMachine:
    """Reads the files of this machine, without Ray."""

    def __init__(self, namespace: str, sessions: str) -> None:
        self._namespace = namespace
        self._sessions = sessions
        self._offsets: Offsets = {}

    def read(self) -> Iterator[tuple[str, str]]:
        for path, process, place, text in read_parts(
            self._sessions, self._namespace, self._offsets
        ):
            self._offsets[path] = place
            yield process, text

    def close(self) -> None:
        """Nothing is open."""


def _read_here(namespace: str, offsets: Offsets) -> list[Part]:
    node = ray._private.worker.global_worker.node
    assert node is not None
    return read_parts(str(Path(node.get_session_dir_path()).parent), namespace, offsets)


class _OfRay:
    """Reads the files of every node by a task there."""

    def __init__(self, namespace: str, ends: Callable[[], Any]) -> None:
        self._namespace = namespace
        self._ends = ends
        self._offsets: dict[str, Offsets] = {}

    def read(self) -> Iterator[tuple[str, str]]:
        nodes = [str(node["NodeID"]) for node in ray.nodes() if node["Alive"]]
        asked = {node: self._ask(node) for node in nodes}
        for node, answer in asked.items():
            try:
                parts: list[Part] = ray.get(answer, timeout=_ANSWER_S)
            except RayError as error:  # it is lost, or busy: a next look asks again
                problem = one_line(error)
                logger.warning("the lines of node %s aren't shown: %s", node, problem)
                continue
            for path, process, place, text in parts:
                self._offsets[node][path] = place
                yield process, text

    def _ask(self, node: str) -> Any:
        there = NodeAffinitySchedulingStrategy(node, soft=False)
        task = ray.remote(_read_here).options(num_cpus=0, scheduling_strategy=there)
        return task.remote(self._namespace, self._offsets.setdefault(node, {}))

    def close(self) -> None:
        self._ends()


def node_logs(ray_address: str, cluster: str, sessions: str = SESSIONS) -> NodeLogs:
    """The output of a cluster's processes: on all nodes of the Ray at an address, or if none runs,
    on this machine, in the folder ``sessions``.

    Raises `RayUnavailable` if the Ray of another address than "auto" doesn't answer.
    """
    namespace = namespace_of(cluster)
    if ray.is_initialized():
        return _OfRay(namespace, lambda: None)
    try:
        connect_ray(ray_address)
    except RayUnavailable:
        if ray_address != "auto":
            raise
        return _OfThisMachine(namespace, sessions)
    return _OfRay(namespace, ray.shutdown)
