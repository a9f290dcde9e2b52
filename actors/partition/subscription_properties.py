"""Changes of subscriptions' properties: rules of the partition's machine.

Command: `SetProperty`. Event: SubscriptionPropertiesSet.
"""

from __future__ import annotations

from dataclasses import dataclass

from velaray.actors.machine import Decision, Reason, refuse
from velaray.actors.partition.state import PartitionState
from velaray.events.events_pb2 import SubscriptionPropertiesSet


@dataclass(frozen=True, slots=True)
class SetProperty:
    """Set a property of a subscription, or remove it (without a value).

    Reply: `PropertiesAre`. Refused NOT_FOUND if there is no such subscription.
    """

    name: str
    key: str
    value: str | None


@dataclass(frozen=True, slots=True)
class PropertiesAre:
    """The properties are as requested, and whether the command changed them."""

    changed: bool


def decide(state: PartitionState, command: SetProperty) -> Decision:
    """The decision on `SetProperty`."""
    known = state.subscriptions.get(command.name)
    if known is None:
        return refuse(Reason.NOT_FOUND, f"no subscription {command.name!r}")
    if known.properties.get(command.key) == command.value:
        return Decision(reply=PropertiesAre(False))
    properties = {key: value for key, value in known.properties.items() if key != command.key}
    if command.value is not None:
        properties[command.key] = command.value
    event = SubscriptionPropertiesSet(incarnation=known.ref.incarnation, properties=properties)
    return Decision((event,), PropertiesAre(True))


def evolve(state: PartitionState, event: SubscriptionPropertiesSet) -> None:
    """Apply the event."""
    for known in state.subscriptions.values():
        if known.ref.incarnation == event.incarnation:
            known.properties = dict(event.properties)
