"""The parts that the actors of one process share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar, cast

from velaray.topology.config import ClusterConfig
from velaray.topology.rpc_server import RpcListener
from velaray.topology.tls import actors_tls

WRITERS = 4
"""The threads that write the journals of a process with many actors (decision 0039)."""


class HostPart(Protocol):
    """A part that the actors of a host share, such as its listener for clients."""

    def stop(self) -> None:
        """Close in good order: the actors of the host have stopped."""
        ...

    def abort(self) -> None:
        """Stop as a crash would."""
        ...


PartT = TypeVar("PartT", bound=HostPart)


class ActorHost:
    """A process that runs actors, or what stands for one in tests.

    An actor can't tell whether it is alone in its host. When it ends, everything that it opened
    ends with it, and nothing of the other actors does.
    """

    def __init__(self, config: ClusterConfig) -> None:
        self.config = config
        actors = actors_tls(config)
        tls = None if actors is None else actors.server
        self.rpc = RpcListener(config.rpc_key, config.port_range, tls)
        self._parts: dict[Callable[[ClusterConfig], Any], HostPart] = {}

    def part(self, make: Callable[[ClusterConfig], PartT]) -> PartT:
        """Return the host's part that ``make`` makes; it is made once."""
        if make not in self._parts:
            self._parts[make] = make(self.config)
        return cast(PartT, self._parts[make])

    def stop(self) -> None:
        """Close the listeners."""
        self.rpc.stop()
        for part in self._parts.values():
            part.stop()

    def abort(self) -> None:
        """Cut all connections, as the end of the process would."""
        self.rpc.abort()
        for part in self._parts.values():
            part.abort()
