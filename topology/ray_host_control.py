"""`HostControl` for hosts that are Ray actors."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError

from velaray.actors.machine import Reason
from velaray.topology.compatibility import PROTOCOL, VERSION
from velaray.topology.config import ClusterConfig
from velaray.topology.host_control import HostStatus
from velaray.topology.placement import NoHostLeftError, NoSuchPlaceError
from velaray.topology.ray_directory import directory_of
from velaray.topology.ray_nodes import hosts_in_ray
from velaray.topology.rpc import RemoteError, reason_of

AWAY = "a host or the placement directory doesn't answer now: it restarts, or it is busy; try again"
_ANSWER_S = 5.0
_STARTED_WITHIN_S = 60.0
_LOOK_S = 0.2
_MOVED_WITHIN_S = 60.0
"""The time limit of a move: every actor of the group syncs its journal."""


class RayHostControl:
    """Asks the directory and the hosts."""

    def __init__(self, config: ClusterConfig) -> None:
        self._config = config

    async def hosts(self) -> list[HostStatus]:
        """The hosts that run now. One that doesn't answer in time is left out."""
        return [status for _, status in await self._asked() if status is not None]

    async def silent(self) -> list[str]:
        """The names of the hosts that were started and don't answer in time now."""
        return [name for name, status in await self._asked() if status is None]

    async def _asked(self) -> list[tuple[str, HostStatus | None]]:
        """The hosts that were started, by name; None: it doesn't answer."""
        drained = await self._ask_directory("drained")
        names = await asyncio.to_thread(hosts_in_ray, self._config)

        async def ask(name: str) -> list[tuple[str, HostStatus | None]]:
            try:
                handle = await self._handle(name)
            except ValueError:
                return []  # it hasn't been started
            return [(name, await _described(handle, name in drained))]

        return [each for found in await asyncio.gather(*map(ask, names)) for each in found]

    async def _handle(self, name: str) -> Any:
        """A host. Raises `ValueError` if there is none of this name."""
        return await asyncio.to_thread(ray.get_actor, name, self._config.ray_namespace)

    async def _status(self, name: str) -> HostStatus | None:
        """A drained host; None: it isn't there, or doesn't answer."""
        try:
            return await _described(await self._handle(name), drained=True)
        except ValueError:
            return None

    async def log_lines(self, host: str) -> list[str]:
        """Ask the host."""
        try:
            handle = await self._handle(host)
        except ValueError as error:
            raise RemoteError(Reason.NOT_FOUND, f"no host {host!r} was started") from error
        with _refusals():
            async with asyncio.timeout(_ANSWER_S):
                return list(await handle.log_lines.remote())

    async def move(self, group: str, to: str = "") -> str:
        """Tell the directory, then the former host."""
        before, after = await self._ask_directory("move", group, to)
        if before != after:
            await self._hand_over(group, before)
        return str(after)

    async def add_hosts(self, names: list[str]) -> None:
        """Place actors in further hosts, which run. Raises `RemoteError` (UNAVAILABLE)."""
        await self._ask_directory("add_hosts", names)

    async def level(self) -> str:
        """Move one topic from the fullest shared host to the emptiest one, and return its name; "":
        their numbers of actors can't be brought closer now. Raises as `move` does."""
        found = await self._ask_directory("level")
        if found is None:
            return ""
        group, before = found
        await self._hand_over(group, before)
        return str(group)

    async def drain(self, host: str) -> int:
        """Move the groups of a host one after the other."""
        groups = await self._ask_directory("drain", host)
        moved = 0
        for group in groups:
            try:
                await self.move(group)
            except RemoteError as error:
                if error.kind != Reason.NOT_FOUND:  # it was passivated meanwhile
                    raise
            else:
                moved += 1
        return moved

    async def resume(self, host: str) -> None:
        """Place actors in a drained host again."""
        await self._ask_directory("resume", host)

    async def restart(self, host: str) -> HostStatus:
        """Ask the host for the installed version, then end its process; Ray starts it again."""
        before = await self._status(host)
        if before is None:
            raise RemoteError(Reason.NOT_FOUND, f"no host {host!r} runs and answers")
        if before.actors:
            raise RemoteError(
                Reason.CONFLICT, f"{host} has {len(before.actors)} actors: drain it first"
            )
        handle = await self._handle(host)
        with _refusals():
            async with asyncio.timeout(_STARTED_WITHIN_S):
                version, protocol = await handle.installed.remote()
        if protocol != PROTOCOL:
            raise RemoteError(
                Reason.CONFLICT,
                f"the installed velaray {version} has protocol {protocol}, the cluster runs "
                f"{VERSION} with protocol {PROTOCOL}: stop the cluster, and start it again",
            )
        await asyncio.to_thread(partial(ray.kill, handle, no_restart=False))
        after = await self._successor(host, before.pid)
        await self.resume(host)
        return replace(after, drained=False)

    async def _successor(self, host: str, pid: int) -> HostStatus:
        """Wait until a host answers that has another process than ``pid``."""
        with _refusals():
            async with asyncio.timeout(_STARTED_WITHIN_S):
                while True:
                    found = await self._status(host)
                    if found is not None and found.pid != pid:
                        return found
                    await asyncio.sleep(_LOOK_S)

    async def _ask_directory(self, method: str, *args: Any) -> Any:
        with _refusals():
            async with asyncio.timeout(_ANSWER_S):
                return await getattr(directory_of(self._config), method).remote(*args)

    async def _hand_over(self, group: str, before: str) -> None:
        with _refusals(), contextlib.suppress(ValueError):  # the former host isn't there
            host = await self._handle(before)
            async with asyncio.timeout(_MOVED_WITHIN_S):
                await host.hand_over.remote(group)


async def _described(handle: Any, drained: bool) -> HostStatus | None:
    """What a host tells of itself; None: it is away, or hangs."""
    try:
        async with asyncio.timeout(_ANSWER_S):
            found = await handle.describe.remote()
    except (RayError, TimeoutError):
        return None
    found["actors"] = tuple(found["actors"])
    return HostStatus(name=found.pop("key"), drained=drained, **found)


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    """Turn Ray's errors into those of `HostControl`."""
    try:
        yield
    except RayTaskError as error:
        if isinstance(error.cause, NoSuchPlaceError):
            raise RemoteError(Reason.NOT_FOUND, str(error.cause)) from error
        if isinstance(error.cause, NoHostLeftError):
            raise RemoteError(Reason.CONFLICT, str(error.cause)) from error
        raise RemoteError(Reason.UNAVAILABLE, reason_of(error.cause)) from error
    except (RayActorError, GetTimeoutError, TimeoutError) as error:
        raise RemoteError(Reason.UNAVAILABLE, AWAY) from error  # its text has ids of Ray's
