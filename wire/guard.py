"""Limits of the connections of a listener: their number, and the memory of their buffers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import NamedTuple
from weakref import WeakSet

from velaray.wire.turns import Turns

Reclaim = Callable[[bool], None]
"""Gives an owner's bytes back: without force only if they hold nothing. With force it gives up what
they hold, and its connection."""


class BufferAccount:
    """The bytes that connections hold in buffers of one kind, and their bound.

    At the bound, buffers that hold nothing are given back. If that isn't enough, the connections
    that have kept their buffers unchanged for the longest time are closed.
    """

    def __init__(self, most: int) -> None:
        self.held = 0
        self.closed = 0
        """The connections that were closed for the bound."""
        self._most = most
        self._owners: dict[Hashable, tuple[int, Reclaim]] = {}

    def resized(self, owner: Hashable, size: int, reclaim: Reclaim) -> None:
        """Note that an owner's buffer has this size now; 0: it has none."""
        before = self._owners.pop(owner, None)
        self.held += size - (before[0] if before else 0)
        if size:
            self._owners[owner] = (size, reclaim)
            if self.held > self._most:
                self._make_room(owner)

    def _make_room(self, asking: Hashable) -> None:
        for owner, (_, reclaim) in list(self._owners.items()):
            if self.held <= self._most * 3 // 4:  # so that this isn't done for each buffer
                return
            if owner is not asking:
                reclaim(False)
        for _, (_, reclaim) in list(self._owners.items()):
            if self.held <= self._most:
                return
            self.closed += 1
            reclaim(True)


class Usage(NamedTuple):
    """What the connections of listeners take."""

    connections: int = 0
    refused: int = 0
    """Connections that were closed at once, because there were too many."""
    received: int = 0
    """The bytes of buffers for what is received."""
    unsent: int = 0
    """The bytes that wait for peers that don't read."""
    closed: int = 0
    """Connections that were closed for the bound of the buffers."""
    role_refusals: int = 0
    """Connections and requests that were refused, because their role had too many."""
    memory_refusals: int = 0
    """Requests that were refused, because the process was over its memory budget."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """The limits of a listener. ``buffer_bytes`` bounds received and unsent bytes each."""

    connections: int = 10_000
    connections_per_address: int = 5_000
    buffer_bytes: int = 512 << 20


class ConnectionGuard:
    """Admits the connections of a listener, accounts for their buffers, and has their turns."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self._limits = limits
        self._addresses: Counter[str] = Counter()
        self._connections = self._refused = 0
        self.role_refusals = self.memory_refusals = 0
        self.received = BufferAccount(limits.buffer_bytes)
        self.unsent = BufferAccount(limits.buffer_bytes)
        self.turns = Turns()
        _GUARDS.add(self)

    def admit(self, address: str) -> bool:
        """Whether one more connection of this address may stay; it counts until `left`."""
        limits = self._limits
        if (
            self._connections >= limits.connections
            or self._addresses[address] >= limits.connections_per_address
        ):
            self._refused += 1
            return False
        self._connections += 1
        self._addresses[address] += 1
        return True

    def left(self, address: str) -> None:
        """Note the end of an admitted connection."""
        self._connections -= 1
        self._addresses[address] -= 1
        if not self._addresses[address]:
            del self._addresses[address]

    def usage(self) -> Usage:
        """What the connections take now."""
        received, unsent = self.received, self.unsent
        return Usage(
            self._connections,
            self._refused,
            received.held,
            unsent.held,
            received.closed + unsent.closed,
            self.role_refusals,
            self.memory_refusals,
        )


_GUARDS: WeakSet[ConnectionGuard] = WeakSet()


def usage_of_process() -> Usage:
    """What the connections of all listeners of this process take."""
    found = [guard.usage() for guard in _GUARDS]
    return Usage(*map(sum, zip(*found, strict=True))) if found else Usage()


class Entrance(asyncio.Protocol):
    """A new connection: admitted, or closed before anything is made for it."""

    def __init__(self, guard: ConnectionGuard, make: Callable[[], asyncio.BaseProtocol]) -> None:
        self._guard = guard
        self._make = make

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Admit the connection, and hand it to its protocol."""
        assert isinstance(transport, asyncio.Transport)
        if not self._guard.admit(address_of(transport)):
            transport.abort()
            return
        protocol = self._make()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)


def address_of(transport: asyncio.BaseTransport) -> str:
    """The address of the peer without its port."""
    peer = transport.get_extra_info("peername")
    return str(peer[0]) if isinstance(peer, tuple) and peer else str(peer)
