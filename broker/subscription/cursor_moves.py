"""Moves of the cursor: reset, undo, skip, expiry. Delivery pauses during a move."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from velaray.actors.subscription.cursor import words_to_mask
from velaray.actors.subscription.expiry import Expire, ExpiryReason, missing
from velaray.actors.subscription.machine import Ack, AckBefore, Reset
from velaray.actors.subscription.pending_acks import EndTransactionAcks
from velaray.actors.subscription.undoing import Restore
from velaray.broker.subscription.dispatch_state import DispatchState, accepted, pairs
from velaray.broker.subscription.lease_control import LeaseControl
from velaray.broker.subscription.messages import (
    ExpireEntries,
    ForgetMessages,
    ResetCursor,
    SkipTo,
)

Move = Reset | Ack | AckBefore | Expire | Restore | EndTransactionAcks


class CursorMoves:
    """Moves the cursor while neither the dispatcher nor the partition delivers anything."""

    def __init__(
        self, state: DispatchState, leases: LeaseControl, forget: Callable[[], None]
    ) -> None:
        """``forget`` is called at a reset to drop state about earlier deliveries."""
        self._state = state
        self._leases = leases
        self._forget = forget

    async def move(self, command: Move) -> Any:
        """Decide a command while delivery is paused; return the machine's reply.

        The cursor changes before the decision is durable, so entries at its new position must wait.
        """
        self._state.paused += 1
        try:
            await self._leases.take_back()
            return await self._state.runtime.ask(command)
        finally:
            self._state.paused -= 1
            self._state.schedule_pump()

    async def reset(self, request: ResetCursor) -> None:
        """Move to an offset. Raises `RemoteError` if the machine refuses."""
        gone = pairs(request.gone)
        command = Reset(request.offset, request.reason, gone, request.shared)
        accepted(await self.move(command))
        self._begin_at(request.offset)

    async def restore(self, command: Restore) -> None:
        """Restore an earlier cursor. Raises `RemoteError` if the machine refuses."""
        reply = accepted(await self.move(command))
        self._begin_at(reply.acked_before)

    def _begin_at(self, offset: int) -> None:
        self._state.dispatcher.reset(offset)
        self._forget()
        self._state.feed()

    async def skip_to(self, request: SkipTo) -> None:
        """Acknowledge everything before an offset. Raises `RemoteError` if that is refused."""
        before = self._state.runtime.state.cursor.acked_before
        command = AckBefore(request.end, request.offset, reason=request.reason)
        accepted(await self.move(command))
        if before < request.offset:
            self._state.acked([(before, request.offset)])

    async def expire(self, request: ExpireEntries) -> int:
        """Acknowledge entries that expired; returns the mark. Raises `RemoteError` if that is
        refused."""
        state = self._state
        command = Expire(request.end, pairs(request.ranges), ExpiryReason(request.why))
        reply = accepted(await self.move(command))
        if reply.ranges:
            state.acked(reply.ranges)
        return await state.runtime.read(lambda found: found.cursor.acked_before)

    async def forget(self, request: ForgetMessages) -> None:
        """Acknowledge messages of a batch. Raises `RemoteError` if that is refused."""
        masks = [(offset, words_to_mask(words)) for offset, words in request.partial]
        reply = accepted(await self.move(Ack(request.end, (), masks)))
        self._state.acked(reply.ranges, reply.partial)

    def lose(self, end: int, flat: Sequence[int]) -> None:
        """Acknowledge entries that were trimmed away under a subscription that isn't durable."""
        state = self._state
        lost = missing(state.cursor, pairs(flat))
        if lost:
            command = Expire(end, lost, ExpiryReason.TRIMMED)
            state.runtime.submit(command, lambda reply, effects: None)
            state.dispatcher.acked(lost)
