"""Applies acknowledgements to the cursor and to the dispatcher."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from velaray.actors.machine import Refusal
from velaray.actors.subscription.cursor import words_to_mask
from velaray.actors.subscription.machine import Ack, AckBefore, Acked
from velaray.actors.subscription.pending_acks import (
    AckBeforeInTransaction,
    AckInTransaction,
    BatchAck,
    EndTransactionAcks,
)
from velaray.actors.subscription.remote_progress import TakeProgress
from velaray.broker.subscription.cursor_moves import CursorMoves
from velaray.broker.subscription.dead_letter_decisions import DeadLetterDecisions
from velaray.broker.subscription.dispatch_state import DispatchState, accepted, pairs
from velaray.broker.subscription.messages import (
    AckEntries,
    AckEntriesBefore,
    AckEntriesBeforeInTransaction,
    AckEntriesInTransaction,
    AckReceipt,
    Batches,
    EndPendingAcks,
    GrantsSkipped,
    PassOver,
    TakeRemoteProgress,
)
from velaray.broker.subscription.progress_form import ahead_from, from_args
from velaray.events.ids import Position, TransactionId


def _masks(batches: Batches) -> list[tuple[int, int]]:
    return [(offset, words_to_mask(words)) for offset, words in batches]


class Acknowledgements:
    """Submits acknowledgements to the machine and takes acknowledged entries out of dispatch."""

    def __init__(
        self, state: DispatchState, moves: CursorMoves, dead_letters: DeadLetterDecisions
    ) -> None:
        self._state = state
        self._moves = moves
        self._dead_letters = dead_letters
        # Repeated before each dispatch while the runtime puts the decisions off: the cursor may
        # have them by then. A dict keeps the order.
        self._late: dict[Callable[[], object], None] = {}

    def apply_late(self) -> None:
        """Take out of dispatch what the runtime may have decided late."""
        for acked in self._late:
            acked()

    # -- acknowledgements of consumers ----------------------------------------------

    def ack(self, notice: AckEntries) -> None:
        """Acknowledge entries one by one."""
        command = Ack(notice.end, pairs(notice.ranges), _masks(notice.partial))
        self._acknowledge(notice.number, notice.request_id, command)

    def ack_before(self, notice: AckEntriesBefore) -> None:
        """Acknowledge everything before an offset."""
        mask = None if notice.words is None else words_to_mask(notice.words)
        command = AckBefore(notice.end, notice.offset, mask)
        self._acknowledge(notice.number, notice.request_id, command)

    def skip_grants(self, notice: GrantsSkipped) -> None:
        """Acknowledge what was granted and is compacted away."""
        masks = _masks(notice.partial)
        self._state.dispatcher.unsent(notice.number, masks)
        self._acknowledge(notice.number, 0, Ack(notice.end, (), masks))

    def _acknowledge(self, number: int, request_id: int, command: Ack | AckBefore) -> None:
        state = self._state

        released = late = False

        def release(reply: Any, effects: Any) -> None:
            nonlocal released
            released = True
            self._late.pop(acked, None)
            if late and isinstance(reply, Acked):
                state.dispatcher.acked(reply.ranges, reply.partial)
                state.schedule_pump()
            if request_id:
                error = reply.message if isinstance(reply, Refusal) else None
                state.send(AckReceipt(number, request_id, error))
            if isinstance(reply, Refusal):
                state.restart_if_stale()  # no later message may check this

        def acked() -> bool:
            """Returns whether the cursor is known to have what was just submitted.

            It doesn't while the runtime rolls its journal, loads segments or tries a disk that was
            full: then the cursor changes later, and dispatch must learn of it then.
            """
            if isinstance(command, Ack):
                known = state.dispatcher.acked(command.ranges, command.partial)
                return known and not command.partial
            after = state.cursor.acked_before
            partial = () if command.remaining is None else ((command.offset, command.remaining),)
            state.dispatcher.acked([(before, after)] if before < after else [], partial)
            return not partial and after >= command.offset

        before = state.cursor.acked_before
        command.consumer = self._trace_number(number)
        state.runtime.submit(command, release)
        if not released:
            self._put_off(acked)
        if state.runtime.loads:  # the cursor doesn't have it yet
            late = True
        else:
            late = not acked()

    def _put_off(self, acked: Callable[[], object]) -> None:
        """If the runtime puts off the decision on what was just submitted, repeat ``acked`` before
        each dispatch until it is durable: a redelivery in between must not contain what is
        acknowledged."""
        if self._state.runtime.puts_off:
            self._late[acked] = None

    def _trace_number(self, number: int) -> int:
        """The consumer's number in the journal. Its deliveries are written before."""
        trace = self._state.trace
        if trace is None:
            return 0
        trace.writing()
        return trace.number_of(number)

    # -- in transactions --------------------------------------------------------------

    async def ack_in_transaction(self, request: AckEntriesInTransaction) -> None:
        """Keep acknowledgements until their transaction ends.

        Raises `RemoteError` (CONFLICT) and keeps none of them if a transaction has one; this
        transaction itself counts unless ``request.may_repeat``.
        """
        state = self._state
        parts = [
            BatchAck(offset, words_to_mask(words), messages)
            for offset, words, messages in request.partial
        ]
        transaction = TransactionId(*request.transaction)
        command = AckInTransaction(transaction, request.end, pairs(request.ranges), parts)
        command.consumer = self._trace_number(request.number)
        command.may_repeat = request.may_repeat

        def set_aside() -> None:
            if state.current:
                state.dispatcher.set_aside(command.ranges, [part.offset for part in parts])

        late = False

        def submitted() -> None:
            nonlocal late
            late = state.runtime.puts_off  # dispatch nothing until it is decided what is pending
            state.paused += late
            if not state.runtime.loads:
                set_aside()

        try:
            accepted(await state.runtime.ask(command, submitted))
            set_aside()
        finally:
            state.paused -= late
            state.schedule_pump()

    async def ack_before_in_transaction(self, request: AckEntriesBeforeInTransaction) -> None:
        """Like `ack_in_transaction`, for everything before an offset."""
        command = AckBeforeInTransaction(
            TransactionId(*request.transaction),
            request.end,
            request.offset,
            None if request.words is None else words_to_mask(request.words),
            self._trace_number(request.number),
        )
        accepted(await self._state.runtime.ask(command, None))

    async def end_transaction(self, request: EndPendingAcks) -> bool:
        """Acknowledge or redeliver what is pending in a transaction; return whether anything
        was."""
        state = self._state
        transaction = TransactionId(request.coordinator, request.sequence)
        command = EndTransactionAcks(transaction, request.commit)
        # A commit makes nothing deliverable, so a lease may go on.
        decide = state.runtime.ask if request.commit else self._moves.move
        ended = accepted(await decide(command))
        if state.current:
            state.dispatcher.acked(ended.ranges, ended.partial)
            state.dispatcher.put_back(ended.returned)
            self._dead_letters.decide()
            state.schedule_pump()
        return bool(ended.ranges or ended.partial or ended.returned)

    # -- not by consumers --------------------------------------------------------------

    async def pass_over(self, request: PassOver) -> None:
        """Acknowledge entries that no consumer will get, before they are fed."""
        command = Ack(request.end, pairs(request.ranges), _masks(request.partial))
        accepted(await self._state.runtime.ask(command))
        self._state.acked(command.ranges, command.partial)

    async def take_progress(self, request: TakeRemoteProgress) -> list[str]:
        """Apply what another cluster's subscription acknowledged; return the origins for which
        something still waits."""
        state = self._state
        here = from_args(request.ranges, request.partial, request.counts)
        command = TakeProgress(request.cluster, request.end, request.oldest, *here)
        command.ahead = {origin: ahead_from(raw) for origin, raw in request.ahead.items()}
        command.came = {origin: Position(*at) for origin, at in request.came.items()}

        def acked() -> None:
            if state.current:
                state.dispatcher.acked(command.ranges, command.partial)

        def submitted() -> None:
            self._put_off(acked)
            if not state.runtime.loads:
                acked()

        try:
            reply = accepted(await state.runtime.ask(command, submitted))
        finally:
            self._late.pop(acked, None)
        acked()
        if state.current:
            state.dispatcher.count_at_least(reply.counts)
            self._dead_letters.decide()
            state.schedule_pump()
        return sorted(state.runtime.state.remote.waiting)
