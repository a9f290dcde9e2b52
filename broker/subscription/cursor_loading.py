"""Loads the segments of a cursor that its dispatcher comes to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from velaray.actors.machine import ColdSegment
from velaray.actors.runtime import Stopped
from velaray.actors.subscription.machine import SubscriptionState
from velaray.broker.subscription.dispatch_state import DispatchState
from velaray.journal.errors import JournalError


class CursorLoading:
    """Moves a dispatcher forward that stopped at segments which aren't in memory."""

    def __init__(self, state: DispatchState, moved: Callable[[], None]) -> None:
        """``moved`` is called when the dispatcher knows more of the cursor."""
        self._state = state
        self._moved = moved
        self._loading: asyncio.Task[None] | None = None

    def go_on(self) -> None:
        """Load what the dispatcher lacks, if anything."""
        if self._loading is None and self._state.current and self._state.dispatcher.lacks():
            self._loading = asyncio.get_running_loop().create_task(self._load())

    async def _load(self) -> None:
        state = self._state
        try:
            await state.runtime.look(self._move_forward)
        except (Stopped, JournalError):
            return  # the actor ends
        self._loading = None
        if state.restart_if_stale():
            return
        if state.dispatcher.wants() > state.dispatcher.feed_from:
            state.feed()  # what was fed beyond the segments was dropped
        self._moved()
        state.schedule_pump()

    def _move_forward(self, served: SubscriptionState) -> None:
        """Take in the next segments; raises `ColdSegment` until they are in memory."""
        dispatcher = self._state.dispatcher
        if served.cursor is not self._state.cursor:
            return
        before = dispatcher.cursor.kept_before
        dispatcher.wants()
        if dispatcher.cursor.kept_before == before and (lacking := dispatcher.lacks()):
            raise ColdSegment(lacking[0], lacking[1:])

    def close(self) -> None:
        """Load nothing more."""
        if self._loading is not None:
            self._loading.cancel()
