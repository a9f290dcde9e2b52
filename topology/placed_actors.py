"""Actors in shared hosts, as each process of a cluster sees them: where they run, and those that
run here.

A process keeps placements, which a move makes stale. So a host that is asked to start an actor asks
the directory whether it is the right one, and refuses with `Misplaced` if it isn't. Nothing here
depends on how processes call each other: Ray's hosts and simulated ones run this code.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Protocol

from velaray.actors.machine import Reason
from velaray.actors.runtime import RuntimeFault, Stopped
from velaray.events.ids import ActorKey, ActorKind
from velaray.journal.errors import JournalError, StorageFull
from velaray.topology.actor_system import Activation, ActorBase, Address, Unreachable
from velaray.topology.hosted_actors import HostedActors, IdleActors
from velaray.topology.placement import group_of
from velaray.topology.rpc import RemoteError, reason_of
from velaray.topology.transient import TRANSIENT_OR_STORE

RECOVERED_AT_ONCE = 4
"""How many actors a restarted host activates at a time."""
_PLACEMENTS_KEPT = 100_000
_PLACES_TRIED = 3


class Misplaced(Unreachable):
    """The directory has placed the actor in another host."""


class Directory(Protocol):
    """The placement directory, as other processes call it."""

    async def place(self, key: ActorKey) -> str:
        """The name of the host that runs an actor, or is to run it. Raises `Unreachable`."""
        ...

    def released(self, host: str, key: ActorKey) -> None:
        """Note that a host has passivated an actor; the note may be lost."""
        ...

    async def placed_in(self, host: str) -> list[ActorKey]:
        """The actors of a host."""
        ...


class OtherHosts(Protocol):
    """The hosts in other processes."""

    async def address(self, host: str, key: ActorKey) -> Address:
        """Have a host start an actor unless it runs. Raises `Misplaced` if it is another host's."""
        ...


class PlacedActors:
    """Resolves the actors of a cluster to hosts, and runs those of this process."""

    def __init__(
        self,
        host: str,
        make: Callable[[ActorKey], ActorBase],
        directory: Directory,
        others: OtherHosts,
        fatal: Callable[[Activation, BaseException], None],
    ) -> None:
        """``host`` is the name of the host that this process is; "": it is none. ``fatal``
        reports an actor of it that failed to stop."""
        self.hosted = HostedActors(make)
        self.leaving: set[str] = set()
        """The groups that this host hands over: they start here no more."""
        self._host = host
        self._directory = directory
        self._others = others
        self._fatal = fatal
        self._placements: dict[ActorKey, str] = {}
        self._idle = IdleActors(self.hosted)

    # -- where actors are ----------------------------------------------------------

    async def address(self, key: ActorKey) -> Address:
        """Activate the actor in its host and return its address.

        Raises `Unreachable` if it is being moved or can't start now, `RemoteError` if it refuses to
        start or the disk is full, and what the directory and other hosts raise.
        """
        for _ in range(_PLACES_TRIED):
            kept = self._placements.get(key)
            name = await self.place(key)
            with contextlib.suppress(Misplaced):
                if name == self._host:
                    with _failures(key):
                        return await self.start(key, "" if kept else name)
                return await self._others.address(name, key)
            self._placements.pop(key, None)
        raise Unreachable(f"{key} is being moved to another host")

    async def place(self, key: ActorKey) -> str:
        """The host of an actor, by an answer of the directory that may be old."""
        name = self._placements.get(key)
        if name is None:
            name = await self._directory.place(key)
            if len(self._placements) >= _PLACEMENTS_KEPT:
                self._placements.clear()
            self._placements[key] = name
        return name

    # -- the actors of this host ---------------------------------------------------

    async def start(self, key: ActorKey, placed: str = "") -> Address:
        """Start an actor in this host, unless it runs. Raises `Misplaced` if the directory has
        placed it elsewhere. ``placed`` is the directory's answer, if it has just been asked."""
        if not self.hosted.has_begun(key):
            name = placed or await self._directory.place(key)
            if name != self._host or group_of(key) in self.leaving:
                raise Misplaced(f"{key} is placed in {name}")
        return await self.hosted.address(key)

    async def recover(self) -> None:
        """Activate again what was placed here before this process started: it may have work."""
        placed = await self._directory.placed_in(self._host)
        room = asyncio.Semaphore(RECOVERED_AT_ONCE)

        async def activate(key: ActorKey) -> None:
            async with room:
                # Its next use tries again.
                with contextlib.suppress(*TRANSIENT_OR_STORE, Stopped):
                    await self.start(key)

        await asyncio.gather(*map(activate, placed))

    async def passivate(self, key: ActorKey) -> None:
        """Stop an actor in good order, if it runs; the next use activates it again."""
        await self.hosted.started(key)
        actor = self.hosted.actors.get(key)
        stopping = asyncio.ensure_future(self.hosted.dismiss(key))
        await asyncio.wait([stopping])
        error = stopping.exception()
        if error is not None and actor is not None:
            self._fatal(actor, error)
        self._directory.released(self._host, key)

    async def passivate_idle(self, limit_s: float) -> None:
        """Stop the actors that were idle in all calls of the last ``limit_s`` seconds."""
        for key in self._idle.due(limit_s):
            await self.passivate(key)

    async def hand_over(self, group: str) -> None:
        """Stop the actors of a group that the directory has placed in another host.

        The partition comes first: it would open its subscriptions again.
        """
        self.leaving.add(group)
        try:
            keys = [key for key in self.hosted.begun() if group_of(key) == group]
            for key in sorted(keys, key=lambda key: key.kind is not ActorKind.PARTITION):
                await self.passivate(key)
        finally:
            self.leaving.discard(group)


@contextlib.contextmanager
def _failures(key: ActorKey) -> Iterator[None]:
    """Turn the errors of an actor that fails to start into those that its callers expect, who would
    fail with it otherwise."""
    try:
        yield
    except StorageFull as error:
        raise RemoteError(Reason.STORAGE_FULL, error.told) from error
    except (JournalError, RuntimeFault) as error:
        raise Unreachable(f"{key}: {reason_of(error)}") from error
