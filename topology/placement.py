"""Placement: which process runs which actor.

``dedicated``: each actor is a Ray actor of its own, named by its key. ``shared``: all actors live
in the hosts of the cluster, which are Ray actors named ``host/<number>``. ``auto``: as ``shared``,
but a topic that takes most of a host's time gets a host of its own, and returns when it is quiet.
In each of them, each actor has its own journal and is rebuilt by replay alone.

A wrong or doubled placement does no harm, because journals fence. It must only be rare.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from velaray.events.ids import ActorKey, ActorKind

HOST_PREFIX = "host"
BACKGROUND_HOST = "host/background"
"""The host of actors that work in the background; it has a lower priority than the others."""
OWN_PREFIX = f"{HOST_PREFIX}/own-"
REST_S = 600.0
"""After a move by load, a group isn't moved by load again for so long."""


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
    AUTO = "auto"
    """All actors in the hosts of the cluster; busy topics get hosts of their own."""


def host_name(number: int) -> str:
    """The name of a host."""
    return f"{HOST_PREFIX}/{number}"


def host_names(count: int, own: int = 0) -> list[str]:
    """The names of all hosts of a cluster: ``count`` shared ones, the background host, and ``own``
    ones for a single busy topic each."""
    return [
        *map(host_name, range(count)),
        BACKGROUND_HOST,
        *(f"{OWN_PREFIX}{number}" for number in range(own)),
    ]


def is_own(host: str) -> bool:
    """Whether it is a host for a single topic."""
    return host.startswith(OWN_PREFIX)


def is_shared(host: str) -> bool:
    """Whether it is a host of any topics."""
    return host.startswith(f"{HOST_PREFIX}/") and host != BACKGROUND_HOST and not is_own(host)


def group_of(key: ActorKey) -> str:
    """The name of the actors that run in one host: a partition, its subscriptions, replicators."""
    return str(key.topic_name) if key.topic else key.text()


class PlacementTable:
    """Which host each actor was placed in. It has no journal: the hosts know what they run."""

    def __init__(self, hosts: int, own: int = 0) -> None:
        """``hosts`` is the number of hosts besides the background host, 1 or more; ``own`` that of
        the hosts for a single topic."""
        names = host_names(hosts, own)
        self._placed: dict[str, dict[ActorKey, None]] = {name: {} for name in names}
        self._moved_s: dict[str, float] = {}
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
        if key.kind is ActorKind.GARBAGE_COLLECTOR and BACKGROUND_HOST not in self._drained:
            return BACKGROUND_HOST
        return self._emptiest(set())

    def _emptiest(self, but: set[str]) -> str:
        closed = self._drained | but
        taking = [name for name in self._placed if is_shared(name) and name not in closed]
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

    def relief(self, group: str, now_s: float, isolated: bool = False) -> str:
        """The host to which a group should move because of its load, or because it is ``isolated``:
        an empty one of its own, or back to a shared one. "": nowhere, since there is no such host,
        or the group was moved within `REST_S` and isn't isolated."""
        before = self._host_of.get(group)
        moved_s = self._moved_s.get(group)
        rests = moved_s is not None and now_s - moved_s < REST_S
        if before is None or (rests and not isolated) or (isolated and is_own(before)):
            return ""
        if is_own(before):
            try:
                return self._emptiest({before})
            except NoHostLeftError:
                return ""
        free = (
            name
            for name, placed in self._placed.items()
            if is_own(name) and not placed and name not in self._drained
        )
        return next(free, "")

    def relieved(self, group: str, now_s: float) -> None:
        """Note that a group was moved because of its load."""
        self._moved_s = {each: at for each, at in self._moved_s.items() if now_s - at < REST_S}
        self._moved_s[group] = now_s

    def add_host(self, name: str) -> None:
        """Place actors in this shared host from now on, even if it was drained. Idempotent."""
        self._placed.setdefault(name, {})
        self._drained.discard(name)

    def levelling(self, now_s: float) -> tuple[str, str] | None:
        """A topic's group in the fullest shared host, and the emptiest host, if a move brings their
        numbers of actors closer; None: there is no such group that wasn't moved within `REST_S`."""
        open_hosts = [
            name for name in self._placed if is_shared(name) and name not in self._drained
        ]
        if not open_hosts:
            return None
        to, fullest = (
            choose(open_hosts, key=lambda name: len(self._placed[name])) for choose in (min, max)
        )
        excess = len(self._placed[fullest]) - len(self._placed[to])
        for key in self._placed[fullest]:
            group = group_of(key)
            moved_s = self._moved_s.get(group, -REST_S)
            if key.topic and self._members[group] < excess and now_s - moved_s >= REST_S:
                return group, to
        return None

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
        """The actors of a host, in the order in which they were placed; none of one that `add_host`
        will add: it starts before."""
        return list(self._placed.get(host, ()))
