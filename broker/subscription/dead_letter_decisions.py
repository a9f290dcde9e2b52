"""Decides which entries go to the dead-letter topic; the partition publishes them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from velaray.actors.dispatch.consumers import SubscriptionType
from velaray.actors.dispatch.dispatcher import IN_ORDER
from velaray.actors.machine import ColdSegment
from velaray.actors.runtime import Stopped
from velaray.actors.subscription.cursor import mask_to_words
from velaray.actors.subscription.dead_letters import (
    ConfirmMoved,
    IntendDeadLetters,
    Intended,
    Moved,
)
from velaray.actors.subscription.machine import SubscriptionState
from velaray.broker.subscription.dispatch_state import DispatchState
from velaray.broker.subscription.messages import MoveDeadLetters, Restart
from velaray.journal.errors import JournalError

CONFIRM_AGAIN_S = 1.0
"""Seconds after which confirmations that a full disk refused are tried again."""


class DeadLetterDecisions:
    """Decides on dead letters durably, and acknowledges them when they are moved."""

    def __init__(self, state: DispatchState) -> None:
        self._state = state
        self.type: SubscriptionType | None = None
        """The type of the consumer that attached last."""
        self._most_deliveries: int | None = None
        self._unconfirmed: list[int] = []
        self._confirming: asyncio.TimerHandle | None = None
        self._moving: set[asyncio.Task[None]] = set()  # those that wait for a segment

    def set_policy(self, policy: Mapping[str, Any] | None) -> None:
        """The policy ``deadLetter``; None: no entry becomes a dead letter."""
        self._most_deliveries = None if policy is None else policy["maxRedeliverCount"]

    def begin(self) -> None:
        """Continue with the dead letters of an earlier connection."""
        dead_letters = self._state.runtime.state.dead.dead_letters()
        self._state.dispatcher.kill((offset, offset + 1) for offset, _ in dead_letters)
        self._move(dead_letters)

    def decide(self) -> None:
        """Choose the entries whose deliveries failed too often."""
        ordered = self.type is None or self.type in IN_ORDER
        if self._most_deliveries is None or ordered or self._state.paused:
            return
        condemned = self._state.dispatcher.condemn(self._most_deliveries)
        if condemned:
            with suppress(Stopped):
                self._state.runtime.submit(IntendDeadLetters(condemned), self._intended)

    def _intended(self, reply: Any, effects: Any) -> None:
        if isinstance(reply, Intended):
            self._move(reply.dead_letters)
        elif not self._state.restart_if_stale():
            self._state.send(Restart())  # the disk is full: restart, and decide again

    def _move(self, dead_letters: Sequence[tuple[int, int]]) -> None:
        """Have the partition move entries, as soon as it is known what remains of them."""
        try:
            told = _remaining(self._state.runtime.state, dead_letters)
        except ColdSegment:
            task = asyncio.get_running_loop().create_task(self._move_later(dead_letters))
            self._moving.add(task)
            task.add_done_callback(self._moving.discard)
        else:
            self._send(told)

    async def _move_later(self, dead_letters: Sequence[tuple[int, int]]) -> None:
        with suppress(Stopped, JournalError):  # then the actor ends
            told = await self._state.runtime.look(lambda state: _remaining(state, dead_letters))
            if self._state.current:
                self._send(told)

    def _send(self, told: list[tuple[int, int, list[int]]]) -> None:
        if told:
            self._state.send(MoveDeadLetters(told))

    def confirm(self, offsets: Sequence[int]) -> None:
        """Acknowledge dead letters that are durable in the dead-letter topic."""

        def release(reply: Any, effects: Any) -> None:
            if isinstance(reply, Moved):
                self._state.dispatcher.acked(reply.ranges)
                self._state.schedule_pump()
            elif not self._state.restart_if_stale():
                self._confirm_later(offsets)

        with suppress(Stopped):
            self._state.runtime.submit(ConfirmMoved(list(offsets)), release)

    def _confirm_later(self, offsets: Sequence[int]) -> None:
        # The partition sends each confirmation once per connection.
        self._unconfirmed += offsets
        if self._confirming is None:
            loop = asyncio.get_running_loop()
            self._confirming = loop.call_later(CONFIRM_AGAIN_S, self._confirm_again)

    def _confirm_again(self) -> None:
        self._confirming = None
        offsets, self._unconfirmed = self._unconfirmed, []
        if not offsets or self._state.restart_if_stale():
            return
        if self._state.paused:
            self._confirm_later(offsets)  # a cursor move that succeeds drops them
        else:
            self.confirm(offsets)

    def drop_unconfirmed(self) -> None:
        """Drop unconfirmed dead letters, since the cursor was moved."""
        self._unconfirmed.clear()

    def close(self) -> None:
        """Stop. The next connection moves and confirms what is left."""
        if self._confirming is not None:
            self._confirming.cancel()
        for task in self._moving:
            task.cancel()


def _remaining(
    state: SubscriptionState, dead_letters: Sequence[tuple[int, int]]
) -> list[tuple[int, int, list[int]]]:
    """The dead letters with what remains of each, as words; without those that aren't intended any
    more."""
    intended = [each for each in dead_letters if state.dead.intended.get(each[0]) == each[1]]
    masks = ((offset, number, state.cursor.ack_set(offset)) for offset, number in intended)
    return [
        (offset, number, [] if mask is None else mask_to_words(mask))
        for offset, number, mask in masks
    ]
