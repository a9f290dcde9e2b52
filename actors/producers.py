"""The producers that are connected to a partition now: who may send, who waits, who must go.

Volatile: nothing here is journaled, and a partition that restarts begins with an empty
registry. The one durable part of access modes is the topic epoch, which the partition machine
owns; an answer with ``raise_epoch`` obliges the host to run `RaiseTopicEpoch` and to tell the
client nothing before that is durable. The registry counts the producer as connected meanwhile.

A producer is named by ``key``, which the host chooses (say: connection and producer id), and
by its name, unique among connected and waiting producers; names of producers that brought
none are made by the host.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import IntEnum

from velaray.actors.machine import Refusal


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
    """The producer may send, once the topic epoch is raised (if it is to be).

    ``replaced`` is its own earlier connection, which is dead to the client: forget it.
    ``fenced`` are producers to close with CLOSE_PRODUCER, ``refused`` are waiting ones to
    answer FENCED. None of them is in the registry any more; don't report them disconnected.
    """

    raise_epoch: bool = False
    replaced: Hashable | None = None
    fenced: tuple[Hashable, ...] = ()
    refused: tuple[Hashable, ...] = ()


@dataclass(frozen=True, slots=True)
class Waiting:
    """The producer waits its turn: success with producer_ready = false, and later a
    `Promotion`. ``replaced`` as in `Accepted`.
    """

    replaced: Hashable | None = None


@dataclass(frozen=True, slots=True)
class Promotion:
    """A waiting producer became exclusive: raise the topic epoch, then tell it so."""

    key: Hashable
    name: str


class ProducerRegistry:
    """Producers connected to one partition, and those that wait for it."""

    def connect(self, spec: ProducerSpec, topic_epoch: int) -> Accepted | Waiting | Refusal:
        """Decide on ``spec``; ``topic_epoch`` is the partition's epoch now.

        Refused BUSY if the name is taken, or if a shared producer meets an exclusive one;
        FENCED if exclusivity is taken or the topic epoch has moved on. A refusal changes
        nothing. A key that is known gets the same answer again, without a new epoch.
        """
        raise NotImplementedError

    def disconnect(self, key: Hashable) -> Promotion | None:
        """A producer or a waiting one is gone; an unknown key changes nothing.

        Returns who takes its place.
        """
        raise NotImplementedError

    def names(self) -> frozenset[str]:
        """Names of connected and waiting producers."""
        raise NotImplementedError

    def is_ready(self, key: Hashable) -> bool:
        """Whether the producer is connected and doesn't wait."""
        raise NotImplementedError

    def check(self) -> None:
        """Raise `InvariantViolation` if an invariant is broken."""
        raise NotImplementedError
