"""Time travel: a state that the journal gives for a point in the past is what was live then."""

from __future__ import annotations

from typing import Any, NamedTuple

from velaray.actors.machine import digest
from velaray.actors.subscription.machine import SubscriptionMachine
from velaray.broker.history import PointInTime, state_at
from velaray.events.ids import ActorKey, ActorKind
from velaray.journal.store import LedgerStore

EVERY = 8
"""One state in so many frames of a subscription is noted."""
COMPARED = 6
"""So many of them are compared, of each subscription."""


class Noted(NamedTuple):
    """A subscription's state after an event, as its digest."""

    key: ActorKey
    sequence: int
    digest: bytes


def note(noted: list[Noted], key: ActorKey | None, sequence: int, state: Any) -> None:
    """Remember the state of a subscription after ``sequence``, now and then."""
    if key is not None and key.kind is ActorKind.SUBSCRIPTION and sequence % EVERY == 0:
        shown = digest(SubscriptionMachine().snapshot(state))
        noted.append(Noted(key, sequence, shown))


async def pasts_are_as_noted(
    store: LedgerStore, noted: list[Noted], expected: set[str]
) -> list[str]:
    """Read some of the noted states from the journals that are still expected."""
    faults, machine = [], SubscriptionMachine()
    by_key: dict[ActorKey, list[Noted]] = {}
    for each in noted:
        if each.key.text() in expected:
            by_key.setdefault(each.key, []).append(each)
    for key, points in by_key.items():
        for point in points[:: -(-len(points) // COMPARED)]:
            past = await state_at(store, key, PointInTime(sequence=point.sequence))
            if digest(machine.snapshot(past.state)) != point.digest:
                faults.append(
                    f"{key.text()}: the past after event {point.sequence} isn't what was live then"
                )
    return faults
