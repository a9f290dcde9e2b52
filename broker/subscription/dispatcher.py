"""The dispatcher of a subscription: the cursor and the dispatch decisions behind one connection.

The other end is the partition's channel (`velaray.broker.partition.subscription_channel`). The
messages between them are in `velaray.broker.subscription.messages`. A durable subscription's actor
answers some more requests itself (`velaray.broker.subscription.subscription_actor`).

The dispatcher of a durable subscription runs in an actor with a journal. That of a non-durable one
runs in the partition's process without a journal. The code is the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from velaray.actors.dispatch.consumers import (
    ActiveChange,
    ConsumerSpec,
    Delivery,
    KeySharedMode,
    KeySharedPolicy,
    SubscriptionType,
    UnknownConsumerError,
)
from velaray.actors.dispatch.suspects import Suspects
from velaray.actors.machine import Reason, Refusal
from velaray.actors.runtime import Runtime
from velaray.actors.sets.offset_sets import Range
from velaray.actors.subscription.cursor import mask_to_words
from velaray.actors.subscription.expiry import Expire, ExpiryReason
from velaray.actors.subscription.machine import Create, CursorAt, SubscriptionState
from velaray.actors.subscription.redelivery import CountRuns
from velaray.actors.subscription.undoing import Restore
from velaray.broker.subscription import messages as m
from velaray.broker.subscription import subscription_queries as queries
from velaray.broker.subscription.acknowledgements import Acknowledgements
from velaray.broker.subscription.cursor_loading import CursorLoading
from velaray.broker.subscription.cursor_moves import CursorMoves
from velaray.broker.subscription.dead_letter_decisions import DeadLetterDecisions
from velaray.broker.subscription.delivery_counts import DeliveryCounts
from velaray.broker.subscription.dispatch_state import DispatchState, Send, accepted, pairs
from velaray.broker.subscription.dispatcher_details import (
    details,
    message_status,
    pending_acks,
    pending_at,
    pending_transactions,
    stats,
)
from velaray.broker.subscription.lease_control import LeaseControl
from velaray.broker.subscription.tracing import Trace
from velaray.topology.messages import Message, ReplyT, Request
from velaray.topology.rpc import RemoteError

_WHOLE: Sequence[int] = []  # the ack set of an entry that isn't acknowledged in part
RELIEVE_S = 1.0
"""Seconds after which a consumer that holds suspects, and finished none, gets more entries."""


class SubscriptionDispatcher:
    """Decides which consumers of one partition get which entries."""

    def __init__(
        self,
        runtime: Runtime[SubscriptionState],
        partition: int,
        send: Send,
        trace: Trace | None = None,
        suspects: Callable[[], Awaitable[Suspects]] | None = None,
    ) -> None:
        """``trace`` records deliveries; None records nothing. ``suspects`` returns those that
        outlive the dispatcher."""
        self._suspects = suspects
        self._state = DispatchState(runtime, partition, send, trace, self._pump)
        self._counts = DeliveryCounts(self._state)
        self._leases = LeaseControl(self._state, self._counts)
        self._dead_letters = DeadLetterDecisions(self._state)
        self._moves = CursorMoves(self._state, self._leases, self._forget_deliveries)
        self._acks = Acknowledgements(self._state, self._moves, self._dead_letters)
        self._loading = CursorLoading(self._state, self._dead_letters.decide)
        self._opened = False
        self._terminated_at: int | None = None
        self._told_end: set[int] = set()
        self._relieving: asyncio.TimerHandle | None = None
        self._requests = self._request_handlers()
        self._notices = self._notice_handlers()

    # -- the end -------------------------------------------------------------------

    def close(self) -> None:
        """Close the dispatcher: its connection is closed, which ends the lease."""
        self._leases.end()
        self._state.dispatcher.cut_off()
        self._stop()

    def retire(self) -> None:
        """End in an orderly way: entries that consumers hold don't count as failed deliveries."""
        self._leases.end()
        self._state.dispatcher.retire()
        self._stop()

    def _stop(self) -> None:
        if self._state.trace is not None:
            self._state.trace.end()
        if self._relieving is not None:
            self._relieving.cancel()
        self._loading.close()
        self._dead_letters.close()
        self._counts.close()

    # -- what consumers hold ---------------------------------------------------------

    @property
    def failed_counts(self) -> CountRuns:
        """The counts of failed deliveries, also of those that aren't durable yet."""
        state = self._state
        return (
            state.dispatcher.failed_deliveries if self._opened else state.runtime.state.deliveries
        )

    def held(self) -> list[Range]:
        """The entries that consumers hold."""
        views = self._state.dispatcher.consumers()
        return [part for view in views for part in self.held_by(view.consumer_id)]

    def held_by(self, number: int) -> list[Range]:
        """The entries that a consumer holds; none if it isn't attached."""
        try:
            return self._state.dispatcher.unacked(number)
        except UnknownConsumerError:
            return []

    # -- requests ------------------------------------------------------------------

    def _request_handlers(self) -> dict[type[Request[Any]], Callable[[Any], Awaitable[Any]]]:
        acks, moves, state = self._acks, self._moves, self._state
        return {
            m.OpenDispatcher: self._open,
            m.ResetCursor: moves.reset,
            m.SkipTo: moves.skip_to,
            m.ExpireEntries: moves.expire,
            m.ForgetMessages: moves.forget,
            m.PassOver: acks.pass_over,
            m.TakeRemoteProgress: acks.take_progress,
            m.AckEntriesInTransaction: acks.ack_in_transaction,
            m.AckEntriesBeforeInTransaction: acks.ack_before_in_transaction,
            m.EndPendingAcks: acks.end_transaction,
            m.GetHoldings: self._reading(lambda r, s: queries.holdings(s, r.ranges)),
            m.GetWaiting: self._reading(lambda r, s: queries.waiting(s, r.came)),
            m.GetMark: self._reading(lambda r, s: s.cursor.acked_before),
            m.FindUnacked: self._reading(lambda r, s: queries.find_unacked(s, r.number, r.end)),
            m.GetUnacked: self._reading(lambda r, s: queries.unacked(s, r.first, r.most, r.end)),
            m.GetPendingAcks: self._reading(lambda r, s: pending_acks(s, r.transaction)),
            m.GetPendingTransactions: self._reading(lambda r, s: pending_transactions(s)),
            m.GetAckStatus: self._reading(lambda r, s: pending_at(s, r.offset, r.index)),
            m.GetStats: self._reading(lambda r, s: stats(s, state.dispatcher, r.end)),
            m.GetDetails: self._reading(
                lambda r, s: details(s, state.dispatcher, r.end, state.trace)
            ),
            m.LocateEntry: self._locate,
        }

    def _reading(
        self, query: Callable[[Any, SubscriptionState], Any]
    ) -> Callable[[Any], Awaitable[Any]]:
        """A handler that answers from the state once that is durable.

        The answer includes all earlier notices of the partition: it keeps the answers of a
        subscription at rest, and no later notice corrects them.
        """
        runtime = self._state.runtime
        return lambda request: runtime.read(lambda state: query(request, state), in_order=True)

    async def on_request(self, request: Request[ReplyT]) -> ReplyT:
        """Answer a request of the partition. Raises `RemoteError` if it is refused."""
        handler = self._requests.get(type(request))
        if handler is None:
            text = f"a subscription's dispatcher doesn't answer {type(request).__name__}"
            raise RemoteError(Reason.NOT_FOUND, text)
        reply: ReplyT = await handler(request)
        return reply

    async def _locate(self, request: m.LocateEntry) -> dict[str, Any]:
        if self._state.trace is not None:
            self._state.trace.write()
        return await self._state.runtime.read(
            lambda state: message_status(state, self._state.dispatcher, request.offset)
        )

    async def _open(self, request: m.OpenDispatcher) -> int:
        state = self._state
        suspects = None if self._suspects is None else await self._suspects()
        reply = accepted(await state.runtime.ask(Create(request.start)))
        assert isinstance(reply, CursorAt)
        expire = Expire(request.end, pairs(request.gone), ExpiryReason.TRIMMED)
        accepted(await state.runtime.ask(expire))
        state.begin(suspects)
        self._opened = True
        self._dead_letters.begin()
        self._terminated_at = request.terminated_at
        state.feed()
        return reply.acked_before

    async def restore(self, command: Restore) -> None:
        """Restore an earlier cursor. Raises `RemoteError` if that is refused."""
        await self._moves.restore(command)

    def _forget_deliveries(self) -> None:
        self._counts.drop_waiting()
        self._told_end.clear()
        self._dead_letters.drop_unconfirmed()

    # -- notices -------------------------------------------------------------------

    def _notice_handlers(self) -> dict[type[Message], Callable[[Any], None]]:
        acks = self._acks
        return {
            m.Attach: self._attach,
            m.Detach: self._detach,
            m.AddPermits: self._add_permits,
            m.FeedEntries: self._feed,
            m.EntriesDue: self._due,
            m.AckEntries: acks.ack,
            m.AckEntriesBefore: acks.ack_before,
            m.GrantsSkipped: acks.skip_grants,
            m.Redeliver: self._redeliver,
            m.LeaseReport: self._take_report,
            m.ReleaseLease: lambda notice: None,  # counted among `ENDS_LEASE`
            m.TopicTerminated: self._terminate,
            m.SetPolicies: self._set_policies,
            m.EntriesTrimmed: lambda notice: self._moves.lose(notice.end, notice.ranges),
            m.ReadCompacted: self._read_compacted,
            m.DeadLettersMoved: lambda notice: self._dead_letters.confirm(notice.offsets),
        }

    def on_notice(self, notice: Message) -> None:
        """Handle a notice of the partition."""
        with suppress(UnknownConsumerError):  # it detached before the notice arrived
            if type(notice) in m.ENDS_LEASE:
                self._leases.count_ending()
            self._notices[type(notice)](notice)
        if not self._state.restart_if_stale():
            self._state.schedule_pump()

    def _attach(self, notice: m.Attach) -> None:
        state = self._state
        mode, ranges, out_of_order = notice.key_shared
        hashes = tuple((first, last) for first, last in ranges)
        policy = KeySharedPolicy(KeySharedMode(mode), hashes, out_of_order)
        kind = SubscriptionType(notice.type)
        fed, had_hashes = state.dispatcher.feed_from, state.dispatcher.needs_hashes
        changes = state.dispatcher.attach(
            ConsumerSpec(notice.number, notice.name, kind, notice.priority, policy)
        )
        hashing = state.dispatcher.needs_hashes and not had_hashes
        if hashing or state.dispatcher.feed_from < fed:
            state.feed()
        if isinstance(changes, Refusal):
            state.send(m.Attached(notice.number, (changes.reason, changes.message)))
            return
        self._dead_letters.type = kind
        self._dead_letters.decide()
        state.send(m.Attached(notice.number, None))
        if state.trace is not None:
            state.trace.attached(notice.number, notice.name, notice.address)
        self._tell_changes(changes)

    def _detach(self, notice: m.Detach) -> None:
        self._told_end.discard(notice.number)
        if self._state.trace is not None:
            self._state.trace.detached(notice.number)
        self._tell_changes(self._state.dispatcher.detach(notice.number, notice.lost))
        self._dead_letters.decide()

    def _tell_changes(self, changes: Iterable[ActiveChange]) -> None:
        for change in changes:
            self._state.send(m.ActiveChanged(change.consumer_id, change.active))
        self._state.schedule_pump()

    def _add_permits(self, notice: m.AddPermits) -> None:
        self._state.dispatcher.flow(notice.number, notice.permits)

    def _feed(self, notice: m.FeedEntries) -> None:
        # The dispatcher drops entries that were fed before a reset: `FeedFrom` follows it.
        self._state.dispatcher.feed(
            notice.first, notice.sizes, notice.chunk_keys, notice.hashes, pairs(notice.delayed)
        )

    def _due(self, notice: m.EntriesDue) -> None:
        self._state.dispatcher.due(pairs(notice.ranges))

    def _redeliver(self, notice: m.Redeliver) -> None:
        ranges = None if notice.ranges is None else pairs(notice.ranges)
        if self._state.trace is not None:
            self._state.trace.asked_again(notice.number, ranges)
        self._state.dispatcher.redeliver(notice.number, ranges)
        self._dead_letters.decide()
        if notice.epoch is not None:
            self._counts.send(m.Redelivering(notice.number, notice.epoch))

    def _take_report(self, notice: m.LeaseReport) -> None:
        first, sizes = notice.first, notice.sizes
        self._state.dispatcher.lease_report(first, sizes, notice.chunk_keys, notice.hashes)
        if self._state.trace is not None:
            self._state.trace.lease_report(self._leases.holder, first, first + len(sizes))

    def _terminate(self, notice: m.TopicTerminated) -> None:
        self._terminated_at = notice.end

    def _set_policies(self, notice: m.SetPolicies) -> None:
        values = notice.values
        self._state.dispatcher.set_limits(
            values["maxUnackedMessagesPerConsumer"], values["maxUnackedMessagesPerSubscription"]
        )
        self._dead_letters.set_policy(values["deadLetter"])
        self._dead_letters.decide()

    def _read_compacted(self, notice: m.ReadCompacted) -> None:
        self._state.dispatcher.lease_from = notice.horizon

    # -- dispatch ------------------------------------------------------------------

    def _pump(self) -> None:
        state = self._state
        self._acks.apply_late()
        deliveries = state.dispatcher.dispatch()
        self._counts.note(deliveries)
        if deliveries:
            if state.trace is not None:
                state.trace.delivered(deliveries)
            self._counts.send(m.Deliver(_grants(deliveries)))
        if self._relieving is None and state.dispatcher.on_trial:
            self._relieving = asyncio.get_running_loop().call_later(RELIEVE_S, self._relieve)
        self._leases.update()
        wanted = state.dispatcher.wants()
        if wanted > state.wanted:
            state.wanted = wanted
            state.send(m.WantEntries(wanted))
        self._loading.go_on()
        if self._terminated_at is not None:
            self._tell_end(self._terminated_at)

    def _relieve(self) -> None:
        self._relieving = None
        self._state.dispatcher.relieve()
        self._state.schedule_pump()

    def _tell_end(self, end: int) -> None:
        dispatcher = self._state.dispatcher
        next_offset = dispatcher.cursor.next_unacked(dispatcher.next_offset)
        if dispatcher.waiting() or dispatcher.delayed() or next_offset < end:
            return
        for consumer in dispatcher.consumers():
            if consumer.consumer_id not in self._told_end:
                self._told_end.add(consumer.consumer_id)
                self._counts.send(m.EndOfTopic(consumer.consumer_id))


def _grants(deliveries: Sequence[Delivery]) -> list[m.DispatchGrant]:
    return [
        m.DispatchGrant(
            each.consumer_id,
            each.first,
            each.end - each.first,
            each.redelivery_count,
            _WHOLE if each.ack_set is None else mask_to_words(each.ack_set),
        )
        for each in deliveries
    ]


class LocalPort:
    """The connection to a dispatcher in the same process."""

    def __init__(self, dispatcher: SubscriptionDispatcher, end: Callable[[], None]) -> None:
        """``end`` is called when the port closes: the dispatcher has no other user."""
        self._dispatcher = dispatcher
        self._end = end
        self.closed = False

    def tell(self, notice: Message) -> None:
        """Send a notice to the dispatcher."""
        if not self.closed:
            self._dispatcher.on_notice(notice)

    async def ask(self, request: Request[ReplyT]) -> ReplyT:
        """Send a request to the dispatcher. Raises `RemoteError` if it is refused."""
        return await self._dispatcher.on_request(request)

    def close(self) -> None:
        """Close the dispatcher."""
        if not self.closed:
            self.closed = True
            self._dispatcher.close()
            self._end()
