"""The placement directory of a simulated cluster: a process of its own, without a journal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tests.sim.loop import HARNESS, context_of
from velaray.events.ids import ActorKey
from velaray.topology.actor_system import Unreachable
from velaray.topology.placement import NoHostLeftError, NoSuchPlaceError, PlacementTable

if TYPE_CHECKING:
    from tests.sim.hosts_cluster import HostedCluster

LATENCY_S = 0.005
PATIENCE_S = 10.0
"""So long callers wait for an answer."""
_POLL_S = 0.05


class SimDirectory:
    """A `PlacementTable` behind a network; `Directory` for processes."""

    def __init__(self, cluster: HostedCluster, hosts: int) -> None:
        self._cluster = cluster
        self._count = hosts
        self._table = PlacementTable(hosts)
        self._down_until = 0.0
        self._answers: dict[tuple[str, ActorKey], float] = {}

    def _delay_s(self) -> float:
        return self._cluster.rng.random() * LATENCY_S

    async def _until_up(self, what: str) -> None:
        await asyncio.sleep(self._delay_s())
        loop = self._cluster.loop
        deadline = loop.time() + PATIENCE_S
        while loop.time() < self._down_until or self._cluster.down:
            if loop.time() > deadline:
                raise Unreachable(f"{what}: the placement directory doesn't answer")
            await asyncio.sleep(_POLL_S)

    # -- what processes ask ----------------------------------------------------------

    async def place(self, key: ActorKey) -> str:
        """The name of the host that runs an actor, or is to run it. Raises `Unreachable`."""
        await self._until_up(str(key))
        try:
            name = self._table.place(key)
        except NoHostLeftError as error:
            raise Unreachable(f"{key}: {error}") from error
        self._answers[name, key] = self._cluster.loop.time()
        await asyncio.sleep(self._delay_s())
        return name

    def released(self, host: str, key: ActorKey) -> None:
        """Note that a host has passivated an actor; lost while the directory is away."""

        def note() -> None:
            if loop.time() >= self._down_until:
                self._table.released(host, key)

        loop = self._cluster.loop
        loop.call_later(self._delay_s(), note, context=context_of(HARNESS))

    async def placed_in(self, host: str) -> list[ActorKey]:
        """The actors of a host."""
        await self._until_up(host)
        return self._table.placed_in(host)

    # -- what operators and faults do ------------------------------------------------

    def answered(self, host: str, key: ActorKey) -> float | None:
        """When the directory last said that the actor is in this host."""
        return self._answers.get((host, key))

    def restart(self, seconds: float) -> None:
        """End the process. The next one, after ``seconds``, asks the hosts what they run."""
        loop = self._cluster.loop
        self._down_until = loop.time() + seconds
        loop.call_at(self._down_until, self._rebuild, context=context_of(HARNESS))

    def _rebuild(self) -> None:
        self._table = PlacementTable(self._count)
        for name in self._cluster.places:
            self._table.add_host(name)
        for name, host in self._cluster.hosts.items():
            if not host.dead:
                self._table.found(name, host.system.placed.hosted.actors)

    def move(self, group: str, to: str = "") -> tuple[str, str]:
        """Place a group in another host, if that is possible; returns the former one and the new
        one, both "" if nothing moved."""
        return self._done(lambda: self._table.move(group, to)) or ("", "")

    def groups(self) -> list[str]:
        """The groups that are placed somewhere."""
        return sorted(self._table._host_of)

    def drain(self, host: str) -> list[str]:
        """Place nothing more in a host, if another one takes actors; returns its groups."""
        return self._done(lambda: self._table.drain(host)) or []

    def add_host(self, name: str) -> bool:
        """Place actors in a host that has joined; False: the directory is away."""
        return self._done(lambda: self._added(name)) or False

    def _added(self, name: str) -> bool:
        self._table.add_host(name)
        return True

    def takes(self, name: str) -> bool:
        """Whether a host is one of those that actors are placed in."""
        return name in self._table._placed

    def level(self) -> tuple[str, str] | None:
        """Place a topic's group of the fullest host in the emptiest one; returns the group and its
        former host, or None."""
        return self._done(self._levelled)

    def _levelled(self) -> tuple[str, str] | None:
        now_s = self._cluster.loop.time()
        found = self._table.levelling(now_s)
        if found is None:
            return None
        group, to = found
        before, _ = self._table.move(group, to)
        self._table.relieved(group, now_s)
        return group, before

    def resume(self, host: str) -> None:
        """Place actors in a host again."""
        self._done(lambda: self._table.resume(host))

    def resume_all(self) -> None:
        """Place actors in every host again."""
        for host in self._table.drained():
            self._table.resume(host)

    def _done(self, change: Callable[[], Any]) -> Any:
        if self._cluster.loop.time() < self._down_until:
            return None
        with suppress(NoHostLeftError, NoSuchPlaceError):
            return change()
        return None
