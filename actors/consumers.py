"""The consumers of a subscription as its dispatcher knows them, and what it tells about them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from velaray.actors.ranges import RangeSet


class SubscriptionType(IntEnum):
    """Pulsar's subscription types; the numbers are those of the wire."""

    EXCLUSIVE = 0
    SHARED = 1
    FAILOVER = 2
    KEY_SHARED = 3


class KeySharedMode(IntEnum):
    """How Key_Shared consumers come to their keys; the numbers are those of the wire."""

    AUTO_SPLIT = 0
    STICKY = 1


@dataclass(frozen=True, slots=True)
class KeySharedPolicy:
    """How a Key_Shared consumer wants its keys.

    ``ranges`` are the hashes of a STICKY one, as inclusive (first, last) pairs. With
    ``out_of_order`` a key may go to its new consumer before its former one has acknowledged
    what it holds of that key.
    """

    mode: KeySharedMode = KeySharedMode.AUTO_SPLIT
    ranges: tuple[tuple[int, int], ...] = ()
    out_of_order: bool = False


AUTO_SPLIT = KeySharedPolicy()


class UnknownConsumerError(KeyError):
    """No consumer with this id is attached."""


@dataclass(frozen=True, slots=True)
class ConsumerSpec:
    """A consumer that wants to attach; the id is the host's, unique in the subscription.

    ``priority`` 0 comes first. ``keys`` matters for Key_Shared alone.
    """

    consumer_id: int
    name: str
    type: SubscriptionType
    priority: int = 0
    keys: KeySharedPolicy = AUTO_SPLIT


@dataclass(frozen=True, slots=True)
class ActiveChange:
    """Tell a Failover consumer whether it is the active one."""

    consumer_id: int
    active: bool


@dataclass(slots=True)
class Delivery:
    """Send the entries ``first`` to ``end`` - 1 to a consumer, in order.

    ``messages`` is what they debit from its permits. ``remaining`` is the mask of messages
    that aren't acknowledged yet, for a batch acknowledged in part (a delivery of its own).
    """

    consumer_id: int
    first: int
    end: int
    messages: int
    redelivery_count: int
    remaining: int | None = None


@dataclass(frozen=True, slots=True)
class ConsumerView:
    """A consumer as statistics show it.

    ``unacked`` counts messages; ``blocked``: it holds too many of them to get more.
    """

    consumer_id: int
    name: str
    priority: int
    permits: int
    unacked: int
    active: bool
    blocked: bool


@dataclass(slots=True, eq=False)
class Attached:
    """A consumer that is attached, and what it may take."""

    spec: ConsumerSpec
    permits: int = 0
    debited: int = 0  # messages, ever; with ``permits`` that is all it ever gave
    last_debit: int = 0  # of the entry delivered last: all that permits may fall below zero
    unacked: int = 0  # messages that it holds
    blocked: bool = False  # holds too many of them (Shared, Key_Shared)
    queued: bool = False  # stands in its level's queue (Shared)
    reserved: RangeSet = field(default_factory=RangeSet)  # chunks that wait for its permits
