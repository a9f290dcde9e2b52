"""SIGKILLs of hosts with many topics: while they serve, activate actors, and hand actors over.

The long test also has limits for the time until topics serve again, which need a machine that isn't
busy otherwise.
"""

from __future__ import annotations

import math
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import ray
from ray.exceptions import RayError

from tests.ray.support import RayNodes
from tests.ray.traffic import Topic, Traffic
from velaray.client.admin import Admin, AdminError
from velaray.cluster import Cluster
from velaray.events.ids import ActorKey
from velaray.topology.placement import group_of
from velaray.topology.ray_directory import directory_of

WORKERS = 2
HOSTS = 4
NEW_TOPICS = 4
MOVED_TOPICS = 4
TRIES = 20
SERVED_WITHIN_S = 120.0
TYPICAL_S = 5.0
LONGEST_S = 15.0
_LOOK_S = 0.05
_PREFIX = "persistent://public/default/"
SERVING, ACTIVATING, MOVING = "serving", "activating", "moving"


@dataclass(frozen=True)
class Kill:
    """A SIGKILL of a host. The seconds count from it."""

    moment: str
    """What the host did."""
    restarted_s: float
    """Until the new process answered."""
    begun_s: float
    """Until it had begun to recover the last of its actors; nan: some were moved meanwhile."""
    served_s: Sequence[float]
    """Until each of its topics served: a message sent after the kill got its receipt."""


class Killer:
    """Kills hosts, and waits until their topics serve again."""

    def __init__(self, cluster: Cluster, traffic: Traffic, seed: int) -> None:
        self._traffic = traffic
        self._admin = Admin(cluster.admin_url)
        self._directory = directory_of(cluster.config)
        self._namespace = cluster.config.ray_namespace
        self._random = random.Random(seed)
        self._numbers = count()
        self._pause = threading.Event()
        self._pids: dict[str, int] = {}
        self.hosts = [f"host/{number}" for number in range(HOSTS)]
        for host in self.hosts:
            self._pids[host] = ray.get(self._handle(host).describe.remote())["pid"]

    def kill(self, moment: str) -> Kill:
        """Kill a host at such a moment. If the moment was over just before, the result says so."""
        if moment == SERVING:
            return self._kill(SERVING, self._random.choice(self.hosts), set(), lambda: True)
        attempt = self._while_it_activates if moment == ACTIVATING else self._while_it_moves
        for _ in range(TRIES):
            killed = attempt()
            if killed is not None:
                return killed
        raise AssertionError(f"no host was seen {moment}")

    def _while_it_activates(self) -> Kill | None:
        """Kill a host where a new topic is placed and doesn't serve yet."""
        names = [f"{_PREFIX}new-{next(self._numbers)}" for _ in range(NEW_TOPICS)]
        openings = [self._traffic.pool.submit(self._traffic.open, name) for name in names]
        killed = None
        while killed is None and not _over(openings):
            for host in self.hosts:
                new = self._groups(host).intersection(names)
                activating = partial(self._any_unserved, new)
                if activating():
                    killed = self._kill(ACTIVATING, host, new, activating)
                    break
        for opening in openings:
            opening.result()
        return killed

    def _any_unserved(self, names: Collection[str]) -> bool:
        return any(self._traffic.topics[name].producer is None for name in names)

    def _while_it_moves(self) -> Kill | None:
        """Kill the former or the next host of topics whose moves have begun and aren't over."""
        before, after = self._random.sample(self.hosts, 2)
        groups = sorted(self._groups(before).intersection(self._traffic.topics))
        moving = self._random.sample(groups, min(MOVED_TOPICS, len(groups)))
        moves = {name: self._traffic.pool.submit(self._move, name, after) for name in moving}
        victim, killed = self._random.choice((before, after)), None
        while killed is None and not _over(moves.values()):
            begun = self._groups(after).intersection(moving)
            running = [moves[name] for name in begun if not moves[name].done()]
            if running:
                still = partial(_any_runs, running)
                killed = self._kill(MOVING, victim, begun, still)
        for move in moves.values():
            move.result()
        return killed

    def _move(self, name: str, host: str) -> None:
        with suppress(AdminError):  # a host of the move was killed
            self._admin.hosts.move(name, host)

    def _kill(
        self, moment: str, host: str, also: Collection[str], still: Callable[[], bool]
    ) -> Kill:
        """Kill a host; return when its topics and ``also`` serve again. ``still`` tells after the
        kill whether it came in time for the moment."""
        restart = Restart(self._handle(host), self._pids[host], self._placed(host))
        os.kill(restart.former, signal.SIGKILL)
        restart.killed_s = time.monotonic()
        in_time = still()
        waiting = restart.groups().union(also).intersection(self._traffic.topics)
        served_s: list[float] = []
        while waiting or not restart.pid:
            assert time.monotonic() < restart.killed_s + SERVED_WITHIN_S, f"{host}: {waiting}"
            restart.look()
            for name in sorted(waiting):
                at_s = self._traffic.topics[name].served_s(restart.killed_s)
                if at_s is not None:
                    waiting.remove(name)
                    served_s.append(at_s - restart.killed_s)
            self._pause.wait(_LOOK_S)
        self._pids[host] = restart.pid
        killed = Kill(moment if in_time else SERVING, restart.answered_s, restart.begun_s, served_s)
        print(report([killed]), flush=True)
        return killed

    def _placed(self, host: str) -> set[str]:
        return set(ray.get(self._directory.placed_in.remote(host)))

    def _groups(self, host: str) -> set[str]:
        return {group_of(ActorKey.parse(key)) for key in self._placed(host)}

    def _handle(self, host: str) -> Any:
        return ray.get_actor(host, self._namespace)


class Restart:
    """Asks a host that was killed until its new process answers."""

    def __init__(self, host: Any, former: int, placed: set[str]) -> None:
        self.former = former
        self.pid = 0
        """The new process."""
        self.killed_s = 0.0
        self.answered_s = self.begun_s = math.nan
        self._host = host
        self._placed = placed
        self._asked: list[Any] = []

    def groups(self) -> set[str]:
        """The groups of the actors that were placed in the host."""
        return {group_of(ActorKey.parse(key)) for key in self._placed}

    def look(self) -> None:
        """Ask once more, and take the answers that are there."""
        self._asked.append(self._host.describe.remote())
        done, self._asked = ray.wait(self._asked, num_returns=len(self._asked), timeout=0)
        after_s = time.monotonic() - self.killed_s
        for answer in done:
            with suppress(RayError):  # the host isn't back
                found = ray.get(answer)
                if found["pid"] == self.former:
                    continue
                if not self.pid:
                    self.pid, self.answered_s = found["pid"], after_s
                if math.isnan(self.begun_s) and self._placed.issubset(found["actors"]):
                    self.begun_s = after_s


def _over(moves: Collection[Future[Any]]) -> bool:
    return all(move.done() for move in moves)


def _any_runs(moves: Collection[Future[Any]]) -> bool:
    return not _over(moves)


def report(kills: Sequence[Kill]) -> str:
    """The seconds from kills until what was there before was there again."""
    figures = {
        "the host's new process answers": [kill.restarted_s for kill in kills],
        "its last actor begins to recover": [kill.begun_s for kill in kills],
        "its first topic serves": [min(kill.served_s) for kill in kills if kill.served_s],
        "its last topic serves": [max(kill.served_s) for kill in kills if kill.served_s],
        "each topic serves": [each for kill in kills for each in kill.served_s],
    }
    lines = [f"{len(kills)} kills: {dict(Counter(kill.moment for kill in kills))}"]
    for name, found in figures.items():
        if known := sorted(each for each in found if not math.isnan(each)):
            p90 = known[len(known) * 9 // 10]
            lines.append(
                f"{name}: p50 {median(known):.1f} s, p90 {p90:.1f} s, longest {known[-1]:.1f} s"
                f" ({len(known)})"
            )
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("topics", "wanted", "limited"),
    [
        (20, {SERVING: 2, ACTIVATING: 1, MOVING: 1}, False),
        pytest.param(
            200,
            {SERVING: 18, ACTIVATING: 16, MOVING: 16},
            True,
            marks=[pytest.mark.long, pytest.mark.timeout(3600)],
        ),
    ],
)
def test_killed_hosts_lose_nothing_and_serve_again(
    nodes: RayNodes, data_dir: Path, topics: int, wanted: dict[str, int], limited: bool
) -> None:
    start = partial(Cluster.start, data_dir, service_port=0, admin_port=0, name=f"killed-{topics}")
    with start(placement="shared", hosts=HOSTS) as cluster:
        kills: list[Kill] = []
        with Traffic(cluster.service_url) as traffic:
            traffic.open_all(f"{_PREFIX}old-{number}" for number in range(topics))
            killer = Killer(cluster, traffic, seed=topics)
            while missing := Counter(wanted) - Counter(kill.moment for kill in kills):
                kills.append(killer.kill(missing.most_common(1)[0][0]))
            print(report(kills))
            traffic.check()
        if limited:
            served_s = [each for kill in kills for each in kill.served_s]
            assert median(served_s) <= TYPICAL_S
            assert max(served_s) <= LONGEST_S


class Delivered:
    """A message, and the consumer that gets its acknowledgement."""

    def __init__(self, number: int, key: str) -> None:
        self._number, self._key = number, key

    def data(self) -> bytes:
        return str(self._number).encode()

    def partition_key(self) -> str:
        return self._key

    def acknowledge(self, message: Delivered) -> None:
        assert message is self


def test_the_record_shows_lost_and_reordered_messages() -> None:
    topic = Topic("recorded")
    for number, key in ((0, "a"), (2, "b"), (1, "b"), (0, "a"), (3, "a")):
        message = Delivered(number, key)
        topic.take(message, message)
    assert topic.problems == ["recorded: 1 came after 2, both of key b"]
    topic.acknowledged += [0, 1, 2, 3]
    assert topic.unsettled() == ""
    topic.acknowledged.append(4)
    assert topic.unsettled() == "recorded: [4] not received"
