"""What operators see of a cluster's hosts, and what they can do with them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from velaray.wire.guard import Usage


@dataclass(frozen=True, slots=True)
class HostStatus:
    """A process that runs actors."""

    name: str
    pid: int
    node: str
    """The id of its Ray node."""
    actors: tuple[str, ...]
    """The keys of the actors that run in it."""
    memory: int
    """Its resident memory in bytes."""
    cpu_s: float
    """The CPU time that it has used."""
    lag_s: float
    """The longest delay of its event loop within the last minute."""
    version: str
    """The version of velaray that it runs."""
    drained: bool
    """Whether it takes no further actors."""
    connections: Usage = field(default_factory=Usage)
    """What the connections of clients take in it."""
    restarted_s: float | None = None
    """The time since its process replaced one that was lost or restarted; None: it is the first."""


class HostControl(Protocol):
    """The hosts of a cluster.

    A *group* of actors is always in one host: a topic or partition with its subscriptions and
    replicators, named by the topic, or a single other actor, named by its key.
    """

    async def hosts(self) -> list[HostStatus]:
        """The hosts that run now. One that doesn't answer in time is left out."""
        ...

    async def silent(self) -> list[str]:
        """The names of the hosts that were started and don't answer in time now."""
        ...

    async def log_lines(self, host: str) -> list[str]:
        """The last lines that a host has written to its log since its process began, oldest first.

        Raises `RemoteError`: NOT_FOUND if it wasn't started, UNAVAILABLE if it doesn't answer in
        time.
        """
        ...

    async def move(self, group: str, to: str = "") -> str:
        """Move a group to a host ("": the one with fewest actors), and return that host's name.

        Its actors stop in good order and start there at their next use; clients reconnect. Nothing
        acknowledged is lost. Raises `RemoteError`: NOT_FOUND for an unknown host, and for a group
        without a running actor; CONFLICT if no other host takes actors; UNAVAILABLE if the former
        host doesn't answer. Then its actors may still run there until their next use elsewhere.
        """
        ...

    async def drain(self, host: str) -> int:
        """Move everything out of a host and place nothing more in it; returns the number of groups
        that were moved. Raises as `move` does; then some may have been moved."""
        ...

    async def resume(self, host: str) -> None:
        """Place actors in a drained host again. Raises `RemoteError` (NOT_FOUND)."""
        ...

    async def restart(self, host: str) -> HostStatus:
        """End the process of a drained host, wait for the new one, and place actors in it again.

        The new process runs the version of velaray that is installed now. Raises `RemoteError`:
        NOT_FOUND if no such host runs; CONFLICT, with nothing changed, if it still has actors, or
        if the installed version can't work with the running one; UNAVAILABLE if the new process
        doesn't answer in time. Then the host stays drained.
        """
        ...
