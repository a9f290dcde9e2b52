"""Says why an entry waits that a dispatcher has read and no consumer holds."""

from __future__ import annotations

from velaray.actors.dispatch.consumers import Attached
from velaray.actors.dispatch.in_flight import InFlightTracker
from velaray.actors.dispatch.key_shared import KeySharedDispatch
from velaray.actors.dispatch.strategy import DispatchStrategy


def why_it_waits(in_flight: InFlightTracker, serving: DispatchStrategy | None, offset: int) -> str:
    """The reason why the entry at ``offset`` waits, as part of a sentence; "" if none is known."""
    if serving is None:
        return ""
    if not isinstance(serving, KeySharedDispatch):
        candidates = list(serving.candidates())
        reasons = [_why_it_takes_none(in_flight, consumer) for consumer in candidates]
        if len(reasons) == 1:
            return reasons[0]
        return "no consumer can take more messages now" if all(reasons) else ""
    consumer, holder = serving.consumer_and_holder(offset)
    if consumer is None:
        return "no consumer has its key"
    name = consumer.spec.name
    if holder is not None and holder is not consumer:
        former = holder.spec.name
        return (
            f"its key is {name}'s now, and {former} holds earlier messages of the key: "
            f"{former} must acknowledge them first, or leave"
        )
    reason = _why_it_takes_none(in_flight, consumer)
    return reason and f"{reason}, and no other consumer has its key"


def _why_it_takes_none(in_flight: InFlightTracker, consumer: Attached) -> str:
    """The reason why a consumer can't take an entry now; "" if there is none."""
    name = consumer.spec.name
    if consumer.blocked:
        return f"{name} holds as many un-acknowledged messages as a consumer may"
    if in_flight.limits.blocked:
        return "consumers hold as many un-acknowledged messages as the subscription may have"
    if consumer.permits <= 0:
        return f"{name} has asked for no more messages: its queue is full"
    if consumer.on_trial:
        return f"{name} gets nothing new before it has finished messages that failed elsewhere"
    return ""
