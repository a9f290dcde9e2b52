"""Deliveries that a full disk leaves uncounted, noted in the history.

``uncounted``: a brain of that subscription heard that it can't count some, and goes on.
``opened``: a brain of that subscription began anew, with what is counted durably.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.sim.history import History
from velaray.actors.machine import Refusal
from velaray.broker.subscription.dispatcher import SubscriptionDispatcher


def watch_counts(replace: Callable[[Any, str, Any], None], history: History) -> None:
    """Have every brain note when it leaves deliveries uncounted."""
    noted, opened = SubscriptionDispatcher._noted, SubscriptionDispatcher._open

    def note(brain: SubscriptionDispatcher, kind: str) -> None:
        # A journal's text ends with name and incarnation; without a journal there is the name.
        history.add(kind, subscription=brain._runtime._actor.split("/")[-2:][0])

    def noted_and_told(brain: SubscriptionDispatcher, reply: Any, marker: tuple[str, Any]) -> None:
        if isinstance(reply, Refusal) and brain._runtime.state.cursor is brain._cursor:
            note(brain, "uncounted")
        noted(brain, reply, marker)

    async def opened_and_told(brain: SubscriptionDispatcher, *arguments: Any) -> int:
        mark = await opened(brain, *arguments)
        note(brain, "opened")
        return mark

    replace(SubscriptionDispatcher, "_noted", noted_and_told)
    replace(SubscriptionDispatcher, "_open", opened_and_told)
