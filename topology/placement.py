"""Placement: which process runs which actor.

``dedicated``: each actor is a Ray actor of its own, named by its key. ``shared``: all actors live
in the hosts of the cluster, which are Ray actors named ``host/<number>``. In both, each actor has
its own journal and is rebuilt by replay alone.

A wrong or doubled placement does no harm, because journals fence. It must only be rare.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from velaray.events.ids import ActorKey, ActorKind

HOST_PREFIX = "host"
BACKGROUND_HOST = "host/background"
"""The host of actors that work in the background; it has a lower priority than the others."""


class NoSuchPlaceError(ValueError):
    """There is no host of this name, or nothing of this name is placed in one."""


class NoHostLeftError(ValueError):
    """No other host takes actors."""


class Placement(StrEnum):
    """Where the actors of a cluster run."""

    DEDICATED = "dedicated"
    """Each actor in a process of its own."""
    SHARED = "shared"
    """All actors in the hosts of the cluster."""


def host_name(number: int) -> str:
    """The name of a host."""
    return f"{HOST_PREFIX}/{number}"


def host_names(count: int) -> list[str]:
    """The names of all hosts of a cluster with ``count`` of them, and the background host."""
    return [*map(host_name, range(count)), BACKGROUND_HOST]


def group_of(key: ActorKey) -> str:
    """The name of the actors that run in one host: a partition, its subscriptions, replicators."""
    return str(key.topic_name) if key.topic else key.text()


class PlacementTable:
    """Which host each actor was placed in. It has no journal: the hosts know what they run."""

    def __init__(self, hosts: int) -> None:
        """``hosts`` is the number of hosts besides the background host; 1 or more."""
        self._placed: dict[str, dict[ActorKey, None]] = {name: {} for name in host_names(hosts)}
        self._host_of: dict[str, str] = {}
        self._members: dict[str, int] = {}
        self._drained: set[str] = set()

    def place(self, key: ActorKey) -> str:
        """Return the host of an actor: that of its group, or else the host with fewest actors."""
        group = group_of(key)
        host = self._host_of.get(group)
        if host is None:
            host = self._host_of[group] = self._choose(key)
        if key not in self._placed[host]:
            self._placed[host][key] = None
            self._members[group] = self._members.get(group, 0) + 1
        return host

    def _choose(self, key: ActorKey) -> str:
        if key.kind is ActorKind.GARBAGE_COLLECTOR:
            return BACKGROUND_HOST
        return self._emptiest(set())

    def _emptiest(self, but: set[str]) -> str:
        closed = self._drained | but | {BACKGROUND_HOST}
        taking = [name for name in self._placed if name not in closed]
        if not taking:
            raise NoHostLeftError(
                "no other host takes actors: resume one that is drained, or start the cluster with "
                "more hosts"
            )
        return min(taking, key=lambda name: len(self._placed[name]))

    def move(self, group: str, to: str = "") -> tuple[str, str]:
        """Place a group's actors in another host ("": the one with fewest actors); returns the
        names of the former host and the new one.

        Raises `NoSuchPlaceError`, and `NoHostLeftError` if there is no other host.
        """
        before = self._host_of.get(group)
        if before is None:
            raise NoSuchPlaceError(f"no actor of {group!r} is placed: it has no actor that runs")
        host = self._checked(to) if to else self._emptiest({before})
        if host != before:
            for key in [key for key in self._placed[before] if group_of(key) == group]:
                del self._placed[before][key]
                self._placed[host][key] = None
            self._host_of[group] = host
        return before, host

    def drain(self, host: str) -> list[str]:
        """Place no further group in a host; returns the groups that it has.

        Raises `NoSuchPlaceError`, and `NoHostLeftError` if there is no other host.
        """
        self._emptiest({self._checked(host)})
        self._drained.add(host)
        return list(dict.fromkeys(map(group_of, self._placed[host])))

    def resume(self, host: str) -> None:
        """Place actors in a drained host again. Raises `NoSuchPlaceError`."""
        self._drained.discard(self._checked(host))

    def drained(self) -> list[str]:
        """The hosts that take no further actors."""
        return sorted(self._drained)

    def _checked(self, host: str) -> str:
        if host not in self._placed:
            names = ", ".join(self._placed)
            raise NoSuchPlaceError(f"there is no host {host!r}; the hosts are {names}")
        return host

    def found(self, host: str, keys: Iterable[ActorKey]) -> None:
        """Note what a host says that it runs. A group that was placed elsewhere meanwhile stays
        there."""
        for key in keys:
            self._host_of.setdefault(group_of(key), host)
            self.place(key)

    def released(self, host: str, key: ActorKey) -> None:
        """Forget an actor that its host has passivated."""
        if self._placed[host].pop(key, False) is False:
            return
        group = group_of(key)
        self._members[group] -= 1
        if not self._members[group]:
            del self._members[group], self._host_of[group]

    def placed_in(self, host: str) -> list[ActorKey]:
        """The actors of a host, in the order in which they were placed."""
        return list(self._placed[host])
