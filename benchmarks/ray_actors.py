"""Ray actors under measurement: bare ones to compare with, and how long any takes to answer."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayActorError

from velaray.cluster import Cluster
from velaray.events.ids import ActorKey
from velaray.geo.actor_kinds import make_actor
from velaray.topology.ray_system import activate

NAMESPACE = "velaray-benchmarks"
ASK_EVERY_S = 0.01
ANSWER_WITHIN_S = 60.0


class Bare:
    """The least that a Ray actor of the same sort as velaray's can be."""

    async def describe(self) -> dict[str, Any]:
        """As a velaray actor's ``describe``."""
        return {"pid": os.getpid()}


@dataclass(frozen=True, slots=True)
class Subject:
    """An actor that is killed: its handle, and the method whose answer shows that it's back."""

    handle: Any
    method: str

    def pid(self) -> int:
        """The process it lives in now."""
        return int(ray.get(self.handle.describe.remote(), timeout=ANSWER_WITHIN_S)["pid"])


def bare_actor(name: str) -> Subject:
    """A new bare actor with the options that velaray's have, which answers."""
    handle = (
        ray.remote(Bare)
        .options(
            name=name,
            namespace=NAMESPACE,
            lifetime="detached",
            max_restarts=-1,
            max_task_retries=0,
            max_concurrency=1000,
            num_cpus=0,
        )
        .remote()
    )
    subject = Subject(handle, "describe")
    subject.pid()
    return subject


def velaray_actor(cluster: Cluster, key: str) -> Subject:
    """The velaray actor of this key, activated; it answers once it has recovered and listens."""
    subject = Subject(activate(ActorKey.parse(key), cluster.config, make_actor), "address")
    ray.get(subject.handle.address.remote(), timeout=ANSWER_WITHIN_S)
    return subject


def kill(subject: Subject) -> float:
    """Send SIGKILL to the actor's process; returns when, by `time.perf_counter`."""
    pid = subject.pid()
    began = time.perf_counter()
    os.kill(pid, signal.SIGKILL)
    return began


def seconds_to_answer_after_kill(subject: Subject) -> float:
    """Send SIGKILL to the actor's process; seconds until any call is answered again.

    A call that is under way when the process dies fails two seconds later at the earliest,
    long after the actor is back. So a new one is made every 10 ms until one is answered, as
    velaray's own callers do. Raises `TimeoutError` after a minute.
    """
    began = kill(subject)
    under_way: list[Any] = []
    while time.perf_counter() - began < ANSWER_WITHIN_S:
        under_way.append(getattr(subject.handle, subject.method).remote())
        ended, under_way = ray.wait(under_way, num_returns=len(under_way), timeout=ASK_EVERY_S)
        if any(_answered(call) for call in ended):
            return time.perf_counter() - began
    raise TimeoutError(f"{subject.method}: no answer within {ANSWER_WITHIN_S:g} s of SIGKILL")


def _answered(call: Any) -> bool:
    try:
        ray.get(call)
    except RayActorError:
        return False
    return True


def retire(subject: Subject) -> None:
    """End a bare actor for good."""
    ray.kill(subject.handle, no_restart=True)
