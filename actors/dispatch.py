"""Who gets which entries of a subscription: the volatile dispatcher.

It knows the connected consumers, their permits, which entries each of them holds
un-acknowledged, and which must be delivered again. It reads the cursor, which belongs to the
subscription machine, and never delivers what the cursor has. It knows no payload: the host
feeds it the number of messages of each entry. Nothing here is journaled; all of it is made
anew when consumers subscribe again.

Permits count messages. While a consumer has any, it gets the next entry, whatever its size,
so permits may fall below zero by the size of one entry. What a batch debits is the number
of its messages that aren't acknowledged yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from velaray.actors.cursor import Cursor, Range
from velaray.actors.machine import Refusal


class SubscriptionType(IntEnum):
    """Pulsar's subscription types; the numbers are those of the wire."""

    EXCLUSIVE = 0
    SHARED = 1
    FAILOVER = 2
    KEY_SHARED = 3


class UnknownConsumerError(KeyError):
    """No consumer with this id is attached."""


@dataclass(frozen=True, slots=True)
class ConsumerSpec:
    """A consumer that wants to attach; the id is the host's, unique in the subscription.

    ``priority`` 0 comes first.
    """

    consumer_id: int
    name: str
    type: SubscriptionType
    priority: int = 0


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
    """A consumer as statistics show it; ``unacked`` counts entries."""

    consumer_id: int
    name: str
    priority: int
    permits: int
    unacked: int
    active: bool


class Dispatcher:
    """Dispatch of one subscription of one partition."""

    def __init__(self, cursor: Cursor, partition: int = 0) -> None:
        """Starts at the cursor's mark. ``partition`` spreads the active consumers of a
        Failover subscription over the consumers of the best priority level.
        """
        raise NotImplementedError

    @property
    def type(self) -> SubscriptionType | None:
        """The type of the consumers attached now; None without any."""
        raise NotImplementedError

    @property
    def next_offset(self) -> int:
        """New entries are read from here on; all before it have been delivered once."""
        raise NotImplementedError

    @property
    def feed_from(self) -> int:
        """The first offset whose size isn't known yet; acknowledged ones are passed over."""
        raise NotImplementedError

    def wants(self) -> int:
        """Feed up to this offset (exclusive), as far as the partition has entries.

        Not above `feed_from` while nobody could be given anything.
        """
        raise NotImplementedError

    def feed(
        self,
        first_offset: int,
        sizes: Sequence[int],
        chunk_keys: Mapping[int, str] | None = None,
    ) -> None:
        """Messages per entry of consecutive entries; keys of those that are chunks, by offset.

        Entries known already are ignored. Raises ValueError if un-acknowledged entries
        between `feed_from` and ``first_offset`` are missing, or for a size below 1.
        """
        raise NotImplementedError

    def size_of(self, offset: int) -> int | None:
        """Messages of the entry, if it was fed and is still needed."""
        raise NotImplementedError

    def attach(self, spec: ConsumerSpec) -> Refusal | list[ActiveChange]:
        """A consumer subscribes, with no permits.

        Refused BUSY for a second Exclusive one or if live consumers have another type,
        NOT_ALLOWED for Key_Shared. Raises ValueError if the id is attached already.
        """
        raise NotImplementedError

    def detach(self, consumer_id: int) -> list[ActiveChange]:
        """A consumer is gone: what it held goes back, to be delivered first, in order.

        This doesn't count as a redelivery. Raises `UnknownConsumerError`.
        """
        raise NotImplementedError

    def flow(self, consumer_id: int, permits: int) -> None:
        """A consumer can take that many more messages. Raises `UnknownConsumerError`."""
        raise NotImplementedError

    def acked(self, ranges: Iterable[Range], partial: Iterable[tuple[int, int]] = ()) -> None:
        """The cursor changed within these: nobody holds any longer what it has now.

        Call it right after every event that changed the cursor.
        """
        raise NotImplementedError

    def redeliver(self, consumer_id: int, ranges: Iterable[Range] | None = None) -> None:
        """A consumer asks for entries it holds again (None: all of them).

        Shared: those; their redelivery count goes up by one. Exclusive and Failover: all it
        holds, in order, before newer ones; the count of those it named goes up. Entries it
        doesn't hold are ignored. Raises `UnknownConsumerError`.
        """
        raise NotImplementedError

    def reset(self, next_offset: int) -> None:
        """The cursor was reset: forget what is held, counted and fed; go on there.

        Consumers and their permits stay.
        """
        raise NotImplementedError

    def dispatch(self) -> list[Delivery]:
        """Give out what can be given out now; deliveries are to be sent in this order."""
        raise NotImplementedError

    def unacked(self, consumer_id: int) -> list[Range]:
        """What the consumer holds, ascending. Raises `UnknownConsumerError`."""
        raise NotImplementedError

    def waiting(self) -> int:
        """How many entries wait to be delivered again."""
        raise NotImplementedError

    def consumers(self) -> list[ConsumerView]:
        """The attached consumers, in the order they attached."""
        raise NotImplementedError

    def check(self) -> None:
        """Raise `InvariantViolation` if an invariant is broken."""
        raise NotImplementedError
