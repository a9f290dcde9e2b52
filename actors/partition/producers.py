"""The producers that are connected to a partition, and those that wait.

Volatile: nothing here is journaled, and a restarted partition begins with an empty registry. The
one durable part of access modes is the topic epoch, which the partition machine owns. An answer
with ``raise_epoch`` obliges the host to run `RaiseTopicEpoch` and to answer the client only when
that is durable. Meanwhile the registry counts the producer as connected.

A producer is identified by ``key``, which the host chooses (for example connection and producer
id), and by its name, unique among connected and waiting producers; the host makes names for
producers without one.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import IntEnum

from velaray.actors.machine import Reason, Refusal, require


class AccessMode(IntEnum):
    """Pulsar's producer access modes; the numbers are those of the wire."""

    SHARED = 0
    EXCLUSIVE = 1
    WAIT_FOR_EXCLUSIVE = 2
    EXCLUSIVE_WITH_FENCING = 3


@dataclass(frozen=True, slots=True)
class ProducerSpec:
    """A producer that asks to connect.

    ``epoch`` counts the client's own reconnects of this producer; ``topic_epoch`` is the one
    it was given when it became exclusive, None for its first attempt.
    """

    key: Hashable
    name: str
    mode: AccessMode = AccessMode.SHARED
    epoch: int = 0
    topic_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class Accepted:
    """The producer may send, after the topic epoch is raised if ``raise_epoch`` is set.

    ``replaced`` is its own earlier connection, which the client has given up: drop it. ``fenced``
    are producers to close with CLOSE_PRODUCER, ``refused`` are waiting ones to answer FENCED. None
    of them is in the registry any more; don't report them disconnected.
    """

    raise_epoch: bool = False
    replaced: Hashable | None = None
    fenced: tuple[Hashable, ...] = ()
    refused: tuple[Hashable, ...] = ()


@dataclass(frozen=True, slots=True)
class Waiting:
    """The producer must wait: success with producer_ready = false, and later a `Promotion`.
    ``replaced`` as in `Accepted`."""

    replaced: Hashable | None = None


@dataclass(frozen=True, slots=True)
class Promotion:
    """A waiting producer became exclusive: raise the topic epoch, then notify it."""

    key: Hashable
    name: str


class ProducerRegistry:
    """Producers connected to one partition, and those that wait for it.

    Either any number of shared producers is connected or one exclusive one; producers wait, in
    order, only while others are connected.
    """

    def __init__(self) -> None:
        self._connected: dict[Hashable, ProducerSpec] = {}
        self._waiting: dict[Hashable, ProducerSpec] = {}

    def connect(self, spec: ProducerSpec, topic_epoch: int) -> Accepted | Waiting | Refusal:
        """Decide on ``spec``; ``topic_epoch`` is the partition's epoch now.

        Refused BUSY if the name is taken, or if a shared producer meets an exclusive one; FENCED if
        exclusivity is taken or the topic epoch has moved on. A producer that fences isn't refused
        because its name is taken: the other one is fenced. A refusal changes nothing. A key that is
        known gets the same answer again, without a new epoch.
        """
        if spec.key in self._connected:
            return Accepted()
        if spec.key in self._waiting:
            return Waiting()
        old = self._named(spec.name)
        succeeds = old is not None and _succeeds(spec, old)
        fences = spec.mode is AccessMode.EXCLUSIVE_WITH_FENCING
        if old is not None and not succeeds and not fences:
            return Refusal(
                Reason.BUSY, f"producer {spec.name!r} is already connected to this topic"
            )
        if (
            spec.mode is not AccessMode.SHARED
            and spec.topic_epoch is not None
            and spec.topic_epoch < topic_epoch
        ):
            return Refusal(
                Reason.FENCED,
                f"topic epoch has already moved: producer {spec.name!r} has "
                f"{spec.topic_epoch}, the topic {topic_epoch}",
            )
        if old is not None and succeeds:
            return self._succeed(spec, old, topic_epoch)
        return self._newcomer(spec, topic_epoch)

    def _named(self, name: str) -> ProducerSpec | None:
        for known in (*self._connected.values(), *self._waiting.values()):
            if known.name == name:
                return known
        return None

    def _succeed(
        self, spec: ProducerSpec, old: ProducerSpec, topic_epoch: int
    ) -> Accepted | Waiting:
        """Replace the producer's own earlier connection, in the queue as well."""
        if old.key in self._waiting:
            self._waiting = {
                (spec.key if key == old.key else key): (spec if key == old.key else known)
                for key, known in self._waiting.items()
            }
            return Waiting(replaced=old.key)
        del self._connected[old.key]
        return self._accept(spec, topic_epoch, replaced=old.key)

    def _newcomer(self, spec: ProducerSpec, topic_epoch: int) -> Accepted | Waiting | Refusal:
        match spec.mode:
            case AccessMode.SHARED:
                if self._waiting or self._exclusive() is not None:
                    return Refusal(Reason.BUSY, "the topic has an existing exclusive producer")
            case AccessMode.EXCLUSIVE:
                if self._connected:
                    kind = "shared producers" if self._exclusive() is None else "exclusive producer"
                    return Refusal(Reason.FENCED, f"the topic has existing {kind}")
            case AccessMode.WAIT_FOR_EXCLUSIVE:
                if self._connected:
                    self._waiting[spec.key] = spec
                    return Waiting()
            case AccessMode.EXCLUSIVE_WITH_FENCING:
                fenced, refused = tuple(self._connected), tuple(self._waiting)
                self._connected.clear()
                self._waiting.clear()
                return self._accept(spec, topic_epoch, fenced=fenced, refused=refused)
        return self._accept(spec, topic_epoch)

    def _accept(
        self,
        spec: ProducerSpec,
        topic_epoch: int,
        replaced: Hashable | None = None,
        fenced: tuple[Hashable, ...] = (),
        refused: tuple[Hashable, ...] = (),
    ) -> Accepted:
        """Accept the producer; it needs no new epoch if it returns with the current one."""
        self._connected[spec.key] = spec
        owns_epoch = spec.topic_epoch == topic_epoch
        raise_epoch = spec.mode is not AccessMode.SHARED and not owns_epoch
        return Accepted(raise_epoch, replaced, fenced, refused)

    def _exclusive(self) -> ProducerSpec | None:
        for known in self._connected.values():
            return known if known.mode is not AccessMode.SHARED else None
        return None

    def disconnect(self, key: Hashable) -> Promotion | None:
        """Remove a connected or waiting producer; an unknown key changes nothing.

        Returns the producer that takes its place.
        """
        self._waiting.pop(key, None)
        if self._connected.pop(key, None) is None or self._connected or not self._waiting:
            return None
        first = next(iter(self._waiting))
        promoted = self._connected[first] = self._waiting.pop(first)
        return Promotion(first, promoted.name)

    def names(self) -> frozenset[str]:
        """Names of connected and waiting producers."""
        return frozenset(
            known.name for known in (*self._connected.values(), *self._waiting.values())
        )

    def is_ready(self, key: Hashable) -> bool:
        """Whether the producer is connected and doesn't wait."""
        return key in self._connected

    def check(self) -> None:
        """Raise `InvariantViolation` if an invariant is broken."""
        everybody = [*self._connected.values(), *self._waiting.values()]
        exclusive = [
            spec for spec in self._connected.values() if spec.mode is not AccessMode.SHARED
        ]
        require(len({spec.name for spec in everybody}) == len(everybody), "names are unique")
        require(not exclusive or len(self._connected) == 1, "an exclusive producer is alone")
        require(
            bool(self._connected) or not self._waiting,
            "producers wait only while others are connected",
        )
        for spec in self._waiting.values():
            require(
                spec.mode is AccessMode.WAIT_FOR_EXCLUSIVE,
                "only those who asked to wait",
                spec.name,
            )


def _succeeds(spec: ProducerSpec, old: ProducerSpec) -> bool:
    return spec.epoch > old.epoch and spec.mode is old.mode
