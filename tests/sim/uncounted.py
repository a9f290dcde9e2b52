"""Deliveries that a full disk leaves uncounted, noted in the history.

``uncounted``: a dispatcher of that subscription couldn't store some counts, and continues.
``opened``: a dispatcher of that subscription started, with the durable counts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.sim.history import History
from velaray.actors.machine import Refusal
from velaray.broker.subscription.delivery_counts import DeliveryCounts
from velaray.broker.subscription.dispatch_state import DispatchState
from velaray.broker.subscription.dispatcher import SubscriptionDispatcher
from velaray.broker.subscription.messages import OpenDispatcher


def watch_counts(replace: Callable[[Any, str, Any], None], history: History) -> None:
    """Make every dispatcher note when it leaves deliveries uncounted."""
    noted, opened = DeliveryCounts._noted, SubscriptionDispatcher._open

    def note(state: DispatchState, kind: str) -> None:
        # A journal's text ends with name and incarnation; without a journal there is the name.
        history.add(kind, subscription=state.runtime._actor.split("/")[-2:][0])

    def noted_and_told(counts: DeliveryCounts, reply: Any, count: Any) -> None:
        if isinstance(reply, Refusal) and counts._state.current:
            note(counts._state, "uncounted")
        noted(counts, reply, count)

    async def opened_and_told(dispatcher: SubscriptionDispatcher, request: OpenDispatcher) -> int:
        mark = await opened(dispatcher, request)
        note(dispatcher._state, "opened")
        return mark

    replace(DeliveryCounts, "_noted", noted_and_told)
    replace(SubscriptionDispatcher, "_open", opened_and_told)
