"""The subscription: what of a partition has been acknowledged, and where it goes on.

States: until `Create` it isn't there and refuses everything; from then on it holds a cursor.
What is journaled is what an acknowledgement changed, never the request: acks are idempotent
and commute, and one that says nothing new writes nothing.

Commands: `Create`, `Ack`, `AckBefore`, `Reset`. Events: CursorCreated, EntriesAcked,
MarkDeleted, CursorReset (and LedgerOpened, which changes nothing here).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import Message

from velaray.actors.cursor import Cursor
from velaray.actors.machine import Decision


@dataclass(frozen=True, slots=True)
class Create:
    """Begin at ``start_offset``. Reply: `CursorAt`. Doing it again changes nothing."""

    start_offset: int


@dataclass(slots=True)
class Ack:
    """Acknowledge entries (``ranges`` of (first, last + 1)) and parts of batches (``partial``:
    (offset, mask of what is still un-acknowledged: bit i set = message i isn't)), in any order.

    Reply: `Acked`. Refused INVALID, as a whole, if anything is at or beyond ``end_offset``,
    the partition's end; NOT_FOUND before `Create`.
    """

    end_offset: int
    ranges: Sequence[tuple[int, int]] = ()
    partial: Sequence[tuple[int, int]] = ()


@dataclass(slots=True)
class AckBefore:
    """Acknowledge everything before ``offset`` and, with ``remaining``, all of the batch at
    ``offset`` but the messages whose bits are set.

    Reply: `Acked`; going back changes nothing. Refused INVALID beyond ``end_offset`` (or at
    it, with ``remaining``); NOT_FOUND before `Create`.
    """

    end_offset: int
    offset: int
    remaining: int | None = None


@dataclass(slots=True)
class Acked:
    """What was new: ascending whole entries as (first, last + 1), and what now remains of
    partly acknowledged ones as (offset, mask). Both empty if nothing was.
    """

    ranges: tuple[tuple[int, int], ...] = ()
    partial: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Reset:
    """Go on at ``next_offset``, back or forth, and forget all acknowledgements beyond it.

    Reply: `CursorAt`. Refused INVALID below 0; NOT_FOUND before `Create`. That the offset
    isn't beyond the partition's end is for the caller to see to.
    """

    next_offset: int
    reason: str


@dataclass(frozen=True, slots=True)
class CursorAt:
    """Everything before the offset is acknowledged."""

    acked_before: int


@dataclass(slots=True)
class SubscriptionState:
    """A cursor, once it is created."""

    created: bool = False
    cursor: Cursor = field(default_factory=Cursor)


class SubscriptionMachine:
    """Decides for one durable subscription."""

    def initial(self) -> SubscriptionState:
        """Not created."""
        return SubscriptionState()

    def decide(self, state: SubscriptionState, command: Any, now_ms: int) -> Decision:
        """What ``command`` leads to."""
        raise NotImplementedError

    def evolve(self, state: SubscriptionState, event: Message) -> None:
        """Apply ``event``."""
        raise NotImplementedError

    def check(self, state: SubscriptionState) -> None:
        """Raise `InvariantViolation` if an invariant is broken."""
        raise NotImplementedError

    def snapshot(self, state: SubscriptionState) -> Mapping[str, bytes]:
        """Segments: ``cursor``, and ``holes/<n>`` for offsets n * 65536 and following."""
        raise NotImplementedError

    def restore(self, segments: Mapping[str, bytes]) -> SubscriptionState:
        """The state whose snapshot is ``segments``."""
        raise NotImplementedError
