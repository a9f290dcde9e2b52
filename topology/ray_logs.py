"""The output of a cluster's processes in the session folders of Ray, on all nodes."""

from __future__ import annotations

import logging
import os
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
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_ANSWER_S: Final = 30.0

Offsets = dict[str, int]
"""The places up to which files were read, by `_identity`."""
Part = tuple[str, str, int, bytes]
"""Of a file: its identity, its process, where the part begins, and whole lines."""


def _identity(boot: str, path: Path) -> str:
    """What names a file on all nodes. Two nodes on one machine have the same files."""
    found = path.stat()
    return f"{boot}:{found.st_dev}:{found.st_ino}"


def _boot() -> str:
    """The machine since its start, also for containers; its name where it has no such id."""
    try:
        return _BOOT_ID.read_text("ascii").strip()
    except OSError:
        return os.uname().nodename


def read_parts(sessions: str, namespace: str, offsets: Offsets) -> list[Part]:
    """What the processes of a cluster wrote on this machine since the ``offsets``.

    Ray writes the name of an actor to the output of its process, as `__repr__` gives it.
    """
    marker = re.compile(rf"^:actor_name:{re.escape(namespace)}:(.+)$".encode(), re.MULTILINE)
    found, boot = [], _boot()
    for path in sorted(Path(sessions).glob("session_[0-9]*/logs/worker-*.err")):
        try:
            with path.open("rb") as file:
                named = marker.search(file.read(_HEAD))
                if named is None:
                    continue
                identity, size = _identity(boot, path), file.seek(0, 2)
                begin = file.seek(offsets.get(identity, max(0, size - _LONGEST)))
                raw = file.read(_LONGEST)
        except OSError:  # Ray has removed it
            continue
        whole = raw[: raw.rfind(b"\n") + 1]
        if whole:
            found.append((identity, named[1].decode(errors="replace"), begin, whole))
    return found


def take(part: Part, offsets: Offsets) -> str:
    """The new text of a part, after which the file's offset is its end; "" if another node of the
    machine has read it."""
    identity, _, begin, whole = part
    known, end = offsets.get(identity, begin), begin + len(whole)
    offsets[identity] = max(known, end)
    return whole[max(known - begin, 0) :].decode(errors="replace")


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
        for part in read_parts(self._sessions, self._namespace, self._offsets):
            yield part[1], take(part, self._offsets)

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
        self._offsets: Offsets = {}

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
            for part in parts:
                if text := take(part, self._offsets):
                    yield part[1], text

    def _ask(self, node: str) -> Any:
        there = NodeAffinitySchedulingStrategy(node, soft=False)
        task = ray.remote(_read_here).options(num_cpus=0, scheduling_strategy=there)
        return task.remote(self._namespace, self._offsets)

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
