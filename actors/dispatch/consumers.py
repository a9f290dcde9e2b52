"""The consumers of a subscription in its dispatcher, and the notices to them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import msgspec

from velaray.actors.sets.ranges import RangeSet


class SubscriptionType(IntEnum):
    """Pulsar's subscription types; the numbers are those of the wire."""

    EXCLUSIVE = 0
    SHARED = 1
    FAILOVER = 2
    KEY_SHARED = 3


class KeySharedMode(IntEnum):
    """The assignment of keys to Key_Shared consumers; the numbers are those of the wire."""

    AUTO_SPLIT = 0
    STICKY = 1


@dataclass(frozen=True, slots=True)
class KeySharedPolicy:
    """A Key_Shared consumer's requirements on its keys.

    ``ranges`` are the hashes of a STICKY one, as inclusive (first, last) pairs. With
    ``out_of_order`` a key may go to its new consumer before its former one has acknowledged what it
    holds of that key.
    """

    mode: KeySharedMode = KeySharedMode.AUTO_SPLIT
    ranges: tuple[tuple[int, int], ...] = ()
    out_of_order: bool = False


AUTO_SPLIT = KeySharedPolicy()


class UnknownConsumerError(KeyError):
    """No consumer with this id is attached."""


@dataclass(frozen=True, slots=True)
class ConsumerSpec:
    """A consumer that requests to attach; the id is the host's, unique in the subscription.

    ``priority`` 0 is the best. ``keys`` matters for Key_Shared only.
    """

    consumer_id: int
    name: str
    type: SubscriptionType
    priority: int = 0
    keys: KeySharedPolicy = AUTO_SPLIT


@dataclass(frozen=True, slots=True)
class ActiveChange:
    """Notify a Failover consumer whether it is the active one."""

    consumer_id: int
    active: bool


class Delivery(msgspec.Struct, gc=False):
    """Send the entries ``first`` to ``end`` - 1 to a consumer, in order.

    ``messages`` is debited from its permits. ``ack_set`` is the mask of messages that aren't
    acknowledged yet, for a batch acknowledged in part (a delivery of its own).
    """

    consumer_id: int
    first: int
    end: int
    messages: int
    redelivery_count: int
    ack_set: int | None = None


@dataclass(frozen=True, slots=True)
class ConsumerView:
    """A consumer in statistics.

    ``unacked`` counts messages; ``blocked``: it has reached its limit of them.
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
    """An attached consumer, its permits and its entries."""

    spec: ConsumerSpec
    permits: int = 0
    debited: int = 0  # all debits so far, in messages
    last_debit: int = 0  # by the last entry: permits fall no lower below zero
    unacked: int = 0  # messages that it holds
    blocked: bool = False  # at its limit of them (Shared, Key_Shared)
    queued: bool = False  # in its level's queue (Shared)
    reserved: RangeSet = field(default_factory=RangeSet)  # chunks that wait for its permits
    queue: int = 0  # its first permits: the size of its receiver queue
    # The last deliveries, in order: (first, last + 1, messages); at least half a queue.
    sent: deque[tuple[int, int, int]] = field(default_factory=deque)
    sent_messages: int = 0  # sum of those
    entries: int = 0  # that it holds
    suspects: dict[int, None] = field(default_factory=dict)  # of those, in order of delivery
    draining: bool = False  # gets nothing before it has room for suspects
    progressed: bool = False  # returned or finished entries since the last check
    relief: int = 0  # how often its room for suspects was doubled

    @property
    def on_trial(self) -> bool:
        """Whether it gets only suspects."""
        return self.draining or bool(self.suspects and not self.relief)

    def note_sent(self, first: int, end: int, messages: int) -> None:
        """Record entries that are sent to it."""
        self.note_all_sent([(first, end, messages)])

    def note_all_sent(self, runs: Sequence[tuple[int, int, int]]) -> int:
        """Record runs of entries that are sent to it, in this order: (first, last + 1, messages).
        Only the first of them may continue what was sent before. Returns their messages."""
        sent = self.sent
        total = sum(messages for _, _, messages in runs)
        self.sent_messages += total
        if sent and sent[-1][1] == runs[0][0]:
            (first, _, before), (_, end, messages) = sent.pop(), runs[0]
            sent.append((first, end, before + messages))
            runs = runs[1:]
        sent.extend(runs)
        half = self.queue - self.queue // 2
        excess = self.sent_messages - half
        while sent[0][2] <= excess and (half or len(sent) > 1):
            excess -= sent.popleft()[2]
        self.sent_messages = excess + half
        return total

    def forget_held(self) -> None:
        """Drop the records of held suspects and of sent entries."""
        self.sent.clear()
        self.suspects.clear()
        self.sent_messages = self.entries = self.relief = 0
        self.draining = False
