"""Durable delivery counts, and the notices that wait for them.

A redelivery tells the client how often the entry was delivered before. So such a delivery leaves
only after its count is durable, and later notices wait behind it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Any

from velaray.actors.dispatch.consumers import Delivery
from velaray.actors.machine import Refusal
from velaray.actors.runtime import Stopped
from velaray.actors.subscription.redelivery import NoteDeliveries
from velaray.broker.subscription.dispatch_state import DispatchState
from velaray.topology.messages import Message

NOTE_S = 0.1
"""Seconds after which first deliveries are counted durably, unless something else is written."""


_COUNT = attrgetter("redelivery_count")


class _Count:
    """The queue position of a count that isn't durable yet."""


class DeliveryCounts:
    """Counts deliveries, and sends notices in order once the counts before them are durable."""

    def __init__(self, state: DispatchState) -> None:
        self._state = state
        self._outgoing: deque[Message | _Count] = deque()
        self._noting: asyncio.TimerHandle | None = None

    def note(self, deliveries: Sequence[Delivery]) -> None:
        """Count deliveries: redeliveries at once, first deliveries some time later."""
        dispatcher = self._state.dispatcher
        counted = any(map(_COUNT, deliveries))
        if counted or dispatcher.must_note:
            count = _Count()
            if counted:
                self._outgoing.append(count)
            self._submit(dispatcher.take_notes(deliveries), count)
        elif dispatcher.has_notes and self._noting is None:
            self._noting = asyncio.get_running_loop().call_later(NOTE_S, self._note_later)

    def _note_later(self) -> None:
        self._noting = None
        state = self._state
        if state.paused:
            state.schedule_pump()  # the pump counts the rest
        elif state.dispatcher.has_notes and state.current:
            self._submit(state.dispatcher.take_notes(), _Count())

    def _submit(self, notes: NoteDeliveries, count: _Count) -> None:
        with suppress(Stopped):  # closed: nothing is sent any more
            self._state.runtime.submit(notes, lambda reply, effects: self._noted(reply, count))

    def _noted(self, reply: Any, count: _Count) -> None:
        if isinstance(reply, Refusal) and self._state.restart_if_stale():
            return
        # If the disk is full but the state is current, deliveries leave without a durable count.
        outgoing = self._outgoing
        if count in outgoing:
            outgoing.remove(count)
        while outgoing and not isinstance(outgoing[0], _Count):
            notice = outgoing.popleft()
            assert not isinstance(notice, _Count)
            self._state.send(notice)

    def send(self, notice: Message) -> None:
        """Send a notice after the deliveries that wait for their counts."""
        if self._outgoing:
            self._outgoing.append(notice)
        else:
            self._state.send(notice)

    def drop_waiting(self) -> None:
        """Drop the waiting notices, whose deliveries are void."""
        self._outgoing.clear()

    def close(self) -> None:
        """Count the uncounted deliveries, and send nothing more."""
        if self._noting is not None:
            self._noting.cancel()
        state = self._state
        if state.dispatcher.has_notes and state.current:
            with suppress(Stopped):  # recovery counts these deliveries as failed
                state.runtime.submit(state.dispatcher.take_notes(), lambda reply, effects: None)
