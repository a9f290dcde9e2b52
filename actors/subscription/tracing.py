"""Facts in a subscription's journal about deliveries and acknowledgements, besides the cursor.

The facts serve people; they change no state. A consumer has a number while it is connected, a new
one for each connection as long as the actor runs. Deliveries are written some time after they were
made; those that weren't journaled before a crash are lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from google.protobuf.message import Message

from velaray.actors.machine import Decision
from velaray.events.events_pb2 import (
    ConsumerAttached,
    ConsumerDetached,
    DeliveriesTraced,
    EntriesAskedAgain,
)

FACTS = (ConsumerAttached, ConsumerDetached, DeliveriesTraced, EntriesAskedAgain)


@dataclass(frozen=True, slots=True)
class Note:
    """Journal facts, events of the types in `FACTS`, in this order. Reply: None."""

    facts: Sequence[Message]


def decide_note(command: Note) -> Decision:
    """The decision on `Note`. Raises TypeError for events that aren't facts."""
    for fact in command.facts:
        if not isinstance(fact, FACTS):
            raise TypeError(f"{type(fact).__name__} isn't a fact")
    return Decision(tuple(command.facts))


def deliveries_of(event: DeliveriesTraced) -> Iterator[tuple[int, int, int]]:
    """(consumer, first, last + 1) of each delivered run of entries, in order."""
    numbers = iter(event.runs)
    for consumer, first, count in zip(numbers, numbers, numbers, strict=True):
        yield consumer, first, first + count
