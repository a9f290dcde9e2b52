"""The brain of a subscription: cursor and dispatch decisions, spoken over one port.

The other end is the channel of the partition (`velaray.broker.partition.subscription_channel`).
Notices in: ``attach``, ``feed``, ``due``, ``flow``, ``ack``, ``ack_before``, ``redeliver``,
``detach``, ``stood``, ``stood_down``, ``terminated``, ``policies``, ``gone``, ``compacted``,
``unsent``. Requests in: ``open``, ``reset``, ``skip_to``, ``expire``, ``holdings``, ``pass_over``,
``cursor``, ``find_unacked``, ``unacked``, ``stats``, ``details``, ``ack_in_transaction``,
``ack_before_in_transaction``, ``end_transaction``, ``pending_acks``, ``pending_transactions``,
``pending_at``, ``progress``, ``waiting``. Notices out: ``attached``, ``want``, ``feed_from``,
``deliver``, ``redelivering``, ``stand``, ``revoke``, ``acked``, ``active``, ``end``, ``restart``. A
durable subscription's body has more: the request ``export`` and the notice ``progressed``
(`velaray.broker.subscription.progress_exporter`).

Standing grants (`velaray.actors.dispatch.lease`): ``stand`` gives one, ``stood`` reports what was
delivered under it. Of what ends it, most comes from the channel: ``attach``, ``detach``,
``redeliver``, ``policies``, ``unsent``, and ``stood_down``, which answers ``revoke``. Both sides
count these; ``stand`` names the count that the brain has seen, and a channel with another count
ignores it. So a grant that crosses what ends it was never given, and either side knows.

The brain of a durable subscription is an actor with a journal; that of a non-durable one
lives in the partition's process without one. The code is the same.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
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
from velaray.actors.dispatch.dispatcher import IN_ORDER, Dispatcher
from velaray.actors.dispatch.suspects import Suspects
from velaray.actors.machine import Refusal
from velaray.actors.runtime import Runtime, Stopped
from velaray.actors.sets.offset_sets import Range
from velaray.actors.subscription.cursor import mask_to_words, words_to_mask
from velaray.actors.subscription.dead_letters import (
    ConfirmMoved,
    IntendDeadLetters,
    Intended,
    Moved,
)
from velaray.actors.subscription.expiry import Expire, Why, missing
from velaray.actors.subscription.machine import (
    Ack,
    AckBefore,
    Acked,
    Create,
    CursorAt,
    Reset,
    SubscriptionState,
)
from velaray.actors.subscription.pending_acks import (
    AckBeforeInTransaction,
    AckInTransaction,
    BatchAck,
    EndTransactionAcks,
)
from velaray.actors.subscription.redelivery import CountRuns, NoteDeliveries
from velaray.actors.subscription.remote_progress import NOWHERE, TakeProgress
from velaray.actors.subscription.undoing import Restore
from velaray.broker.subscription.dispatcher_details import (
    details,
    pending_acks,
    pending_at,
    pending_stats,
    pending_transactions,
    whereabouts,
)
from velaray.broker.subscription.progress_form import ahead_from, ahead_to, from_args
from velaray.broker.subscription.tracing import Trace
from velaray.events.ids import Position, TransactionId
from velaray.topology.rpc import RemoteError

Send = Callable[[str, Any], None]

COUNTED = "counted"
NOTE_S = 0.1
"""First deliveries are counted durably so much later, if nothing else is to be written."""
RELIEVE_S = 1.0
"""After this time a consumer that holds suspects, and finished nothing, gets more."""
CONFIRM_AGAIN_S = 1.0
"""What a full disk refused to take down of moved dead letters is tried again so much later."""

ENDS_STANDING = frozenset(
    ("attach", "detach", "redeliver", "due", "policies", "stood_down", "gone", "unsent")
)
"""Notices before which the channel ends its standing grant, if it has one."""


def _pairs(flat: Sequence[int]) -> list[tuple[int, int]]:
    return list(zip(flat[::2], flat[1::2], strict=True))


def _holdings(state: SubscriptionState, spans: Sequence[int]) -> list[Any]:
    """The mark, and which of the spans (by number) are wholly acknowledged."""
    cursor = state.cursor
    pairs = enumerate(_pairs(spans))
    return [
        cursor.acked_before,
        [number for number, (first, end) in pairs if cursor.next_unacked(first) >= end],
    ]


_AT_ONCE = 1 << 16
"""About so much of what waits is told at once."""
_WINDOW = 1 << 16
"""So many offsets are looked at at once: there may be millions of holes."""


def _find_unacked(state: SubscriptionState, number: int, end: int) -> int | None:
    cursor = state.cursor
    for start in range(cursor.acked_before, end, _WINDOW):
        for first, behind in cursor.unacked_ranges(start, min(start + _WINDOW, end)):
            if number <= behind - first:
                return first + number - 1
            number -= behind - first
    return None


def _unacked(state: SubscriptionState, first: int, most: int, end: int) -> list[int]:
    """The first ``most`` un-acknowledged offsets in a range: first, last + 1, first, ..."""
    found: list[int] = []
    cursor = state.cursor
    for start in range(max(first, cursor.acked_before), end, _WINDOW):
        for one, behind in cursor.unacked_ranges(start, min(start + _WINDOW, end)):
            found += [one, min(behind, one + most)]
            most -= behind - one
            if most <= 0:
                return found
    return found


def _waiting(state: SubscriptionState, came: dict[str, Any]) -> list[Any]:
    """What waits of what came, by origin, and up to which position that is; and of which origins
    anything does. ``came`` are the newest positions that did."""
    due = {}
    for origin, waiting in state.foreign.waiting.items():
        newest = Position(*came.get(origin, NOWHERE))
        if waiting.concerns(newest):
            border = waiting.border(newest, _AT_ONCE)
            due[origin] = [list(border), ahead_to(waiting.due(border))]
    return [due, sorted(state.foreign.waiting)]


class SubscriptionDispatcher:
    """Decides for the consumers that one partition connected."""

    def __init__(
        self,
        runtime: Runtime[SubscriptionState],
        partition: int,
        send: Send,
        trace: Trace | None = None,
        suspects: Suspects | None = None,
    ) -> None:
        """``trace`` records who gets what; without one nothing is. ``suspects`` outlive the
        brain."""
        self._runtime = runtime
        self._partition = partition
        self._send = send
        self._cursor = runtime.state.cursor
        self._suspects = suspects
        self._dispatcher = Dispatcher(self._cursor, partition, acks=runtime.state.pending)
        #: What the partition says of the policies that brains apply, by Pulsar's names.
        self.policies: dict[str, Any] = {}
        self._trace = trace
        self._stands = 0  # the consumer that had the last standing grant
        self._opened = False
        self._wanted = 0
        self._terminated_at: int | None = None
        self._resetting = 0
        # Tell the dispatcher of acknowledgements that were put off: the cursor may have them by
        # now. A dict to keep their order.
        self._late: dict[Callable[[], None], None] = {}
        self._told_end: set[int] = set()
        self._pump_scheduled = False
        self._endings = 0  # how many notices came that end a standing grant
        self._down = asyncio.Event()  # set while there is no standing grant
        self._down.set()
        self._revoking = False
        # What waits until the deliveries among it are counted durably; markers are such counts.
        self._outgoing: deque[tuple[str, Any]] = deque()
        self._noting: asyncio.TimerHandle | None = None
        self._relieving: asyncio.TimerHandle | None = None
        self._kind: SubscriptionType | None = None  # of the consumer that attached last
        self._unconfirmed: list[int] = []  # moved dead letters that a full disk refused
        self._confirming: asyncio.TimerHandle | None = None

    def close(self) -> None:
        """The channel is gone, and its grant with it."""
        self._stand_down()
        self._dispatcher.cut_off()
        self._note_rest()

    def retire(self) -> None:
        """This brain is about to end in order: what consumers hold isn't their fault."""
        self._stand_down()
        self._dispatcher.retire()
        self._note_rest()

    @property
    def in_vain(self) -> CountRuns:
        """How often entries were delivered in vain, by now."""
        return self._dispatcher.in_vain if self._opened else self._runtime.state.deliveries

    def held(self) -> list[Range]:
        """What consumers hold."""
        return [
            part for view in self._dispatcher.consumers() for part in self.held_by(view.consumer_id)
        ]

    def held_by(self, number: int) -> list[Range]:
        """What a consumer holds; nothing if it isn't attached."""
        try:
            return self._dispatcher.unacked(number)
        except UnknownConsumerError:
            return []

    def _note_rest(self) -> None:
        if self._trace is not None:
            self._trace.end()
        if self._noting is not None:
            self._noting.cancel()
        if self._relieving is not None:
            self._relieving.cancel()
        if self._confirming is not None:
            self._confirming.cancel()  # whoever opens it again is told of these letters again
        if self._dispatcher.has_notes and self._runtime.state.cursor is self._cursor:
            with suppress(Stopped):  # then it is a crash, and counted as one
                self._runtime.submit(self._dispatcher.take_notes(), lambda reply, effects: None)

    # -- requests ------------------------------------------------------------------

    async def on_request(self, method: str, args: Any) -> Any:
        """Answer a request of the channel."""
        match method:
            case "open":
                return await self._open(*args)
            case "reset":
                return await self._reset(*args)
            case "skip_to":
                return await self._skip_to(*args)
            case "expire":
                return await self._expire(*args)
            case "holdings":
                return await self._runtime.read(lambda state: _holdings(state, args))
            case "pass_over":
                return await self._pass_over(*args)
            case "progress":
                return await self._take_progress(*args)
            case "waiting":
                return await self._runtime.read(lambda state: _waiting(state, args))
            case "ack_in_transaction":
                return await self._ack_in_transaction(*args)
            case "ack_before_in_transaction":
                return await self._ack_before_in_transaction(*args)
            case "end_transaction":
                return await self._end_transaction(*args)
            case "cursor":
                return await self._runtime.read(lambda state: state.cursor.acked_before)
            case "find_unacked":
                number, end = args
                return await self._runtime.read(lambda state: _find_unacked(state, number, end))
            case "unacked":
                return await self._runtime.read(lambda state: _unacked(state, *args))
            case "pending_acks":
                return await self._runtime.read(lambda state: pending_acks(state, args))
            case "pending_transactions":
                return await self._runtime.read(pending_transactions)
            case "pending_at":
                return await self._runtime.read(lambda state: pending_at(state, *args))
            case "stats":
                return await self._runtime.read(lambda state: self._stats(state, args))
            case "whereabouts":
                if self._trace is not None:
                    self._trace.write()
                return await self._runtime.read(
                    lambda state: whereabouts(state, self._dispatcher, args)
                )
            case "details":
                return await self._runtime.read(
                    lambda state: {
                        **self._stats(state, args),
                        **details(state, self._dispatcher, args),
                    }
                )
        raise RemoteError("not found", f"a subscription knows no method {method!r}")

    async def _open(
        self, start: int, terminated_at: int | None, end: int, gone: Sequence[int]
    ) -> int:
        """Begin with this partition, whose log ends at ``end`` and lacks ``gone``; returns the
        cursor's mark."""
        reply = await self._runtime.ask(Create(start))
        if isinstance(reply, Refusal):
            raise RemoteError(reply.reason, reply.message)
        assert isinstance(reply, CursorAt)
        lost = await self._runtime.ask(Expire(end, _pairs(gone), Why.TRIMMED))
        if isinstance(lost, Refusal):
            raise RemoteError(lost.reason, lost.message)
        self._cursor = self._runtime.state.cursor
        state = self._runtime.state
        counts = state.deliveries.copy()
        self._dispatcher = Dispatcher(
            self._cursor, self._partition, counts, state.pending, self._suspects
        )
        self._opened = True
        letters = state.dead.letters()
        self._dispatcher.kill((offset, offset + 1) for offset, _ in letters)
        self._tell_dead(letters)
        self._terminated_at = terminated_at
        self._begin_feed()
        return reply.acked_before

    def _attach(
        self,
        number: int,
        name: str,
        kind: int,
        priority: int,
        keys: tuple[int, Any, bool],
        address: str,
    ) -> None:
        mode, ranges, out_of_order = keys
        pairs = tuple((first, last) for first, last in ranges)
        policy = KeySharedPolicy(KeySharedMode(mode), pairs, out_of_order)
        fed, had_hashes = self._dispatcher.feed_from, self._dispatcher.needs_hashes
        changes = self._dispatcher.attach(
            ConsumerSpec(number, name, SubscriptionType(kind), priority, policy)
        )
        hashing = self._dispatcher.needs_hashes and not had_hashes
        if hashing or self._dispatcher.feed_from < fed:
            self._begin_feed()
        if isinstance(changes, Refusal):
            self._send("attached", [number, [changes.reason, changes.message]])
        else:
            self._kind = SubscriptionType(kind)
            self._condemn()
            self._send("attached", [number, None])
            if self._trace is not None:
                self._trace.attached(number, name, address)
            self._tell_changes(changes)

    async def _reset(
        self, next_offset: int, reason: str, gone: Sequence[int] = (), shared: bool = False
    ) -> None:
        # The cursor moves before it is durable: deliver nothing from there.
        reply = await self._move_cursor(Reset(next_offset, reason, _pairs(gone), shared))
        if isinstance(reply, Refusal):
            raise RemoteError(reply.reason, reply.message)
        self._dispatcher.reset(next_offset)
        self._outgoing.clear()
        self._told_end.clear()
        self._unconfirmed.clear()
        self._begin_feed()

    async def restore(self, command: Restore) -> None:
        """Make the cursor what it was. Raises `RemoteError` if that is refused."""
        reply = await self._move_cursor(command)
        if isinstance(reply, Refusal):
            raise RemoteError(reply.reason, reply.message)
        self._dispatcher.reset(reply.acked_before)
        self._told_end.clear()
        self._unconfirmed.clear()
        self._begin_feed()

    async def _move_cursor(
        self, command: Reset | AckBefore | Expire | Restore | EndTransactionAcks
    ) -> Any:
        """Ask for it while nothing is delivered, neither here nor by the channel itself."""
        self._resetting += 1
        try:
            if self._dispatcher.standing:
                self._revoke()
                await self._down.wait()
            return await self._runtime.ask(command)
        finally:
            self._resetting -= 1
            self._schedule_pump()

    async def _skip_to(self, end: int, offset: int, reason: str = "by an administrator") -> None:
        before = self._runtime.state.cursor.acked_before
        reply = await self._move_cursor(AckBefore(end, offset, reason=reason))
        if isinstance(reply, Refusal):
            raise RemoteError(reply.reason, reply.message)
        if before < offset and self._runtime.state.cursor is self._cursor:
            self._dispatcher.acked([(before, offset)])
            self._schedule_pump()

    async def _expire(self, end: int, flat: Sequence[int], why: str) -> int:
        """Take entries for acknowledged; returns the cursor's mark then."""
        reply = await self._move_cursor(Expire(end, _pairs(flat), Why(why)))
        if isinstance(reply, Refusal):
            raise RemoteError(reply.reason, reply.message)
        if reply.ranges and self._runtime.state.cursor is self._cursor:
            self._dispatcher.acked(reply.ranges)
            self._schedule_pump()
        return await self._runtime.read(lambda state: state.cursor.acked_before)

    def _lose(self, end: int, flat: Sequence[int]) -> None:
        """Entries are trimmed away under a subscription that isn't durable: its state changes
        at once."""
        lost = missing(self._cursor, _pairs(flat))
        if lost:
            self._runtime.submit(Expire(end, lost, Why.TRIMMED), lambda reply, effects: None)
            self._dispatcher.acked(lost)

    async def _pass_over(self, end: int, ranges: list[int], partial: list[Any]) -> None:
        """Acknowledge what nobody will get, for good, before it is fed."""
        command = Ack(end, _pairs(ranges), [(at, words_to_mask(words)) for at, words in partial])
        reply = await self._runtime.ask(command)
        if isinstance(reply, Refusal):
            raise RemoteError(reply.reason, reply.message)
        if self._runtime.state.cursor is self._cursor:
            self._dispatcher.acked(command.ranges, command.partial)
            self._schedule_pump()

    async def _take_progress(self, cluster: str, end: int, oldest: int, *told: Any) -> list[str]:
        """Take in what another cluster's subscription has; returns of which origins something
        waits."""
        *told_here, ahead, came = told
        command = TakeProgress(cluster, end, oldest, *from_args(*told_here))
        command.ahead = {origin: ahead_from(raw) for origin, raw in ahead.items()}
        command.came = {origin: Position(*at) for origin, at in came.items()}

        def acked() -> None:
            if self._runtime.state.cursor is self._cursor:
                self._dispatcher.acked(command.ranges, command.partial)

        self._put_off(acked)
        try:
            reply = await self._runtime.ask(command, acked)
        finally:
            self._late.pop(acked, None)
        if isinstance(reply, Refusal):
            raise RemoteError(reply.reason, reply.message)
        acked()
        if self._runtime.state.cursor is self._cursor:
            self._dispatcher.count_at_least(reply.counts)
            self._condemn()
            self._schedule_pump()
        return sorted(self._runtime.state.foreign.waiting)

    async def _ack_in_transaction(
        self, number: int, transaction: list[int], end: int, ranges: list[int], partial: list[Any]
    ) -> None:
        """Keep acknowledgements until their transaction ends; a conflict refuses all of them."""
        parts = [BatchAck(at, words_to_mask(words), messages) for at, words, messages in partial]
        command = AckInTransaction(TransactionId(*transaction), end, _pairs(ranges), parts)
        command.consumer = self._who(number)

        def set_aside() -> None:
            if self._runtime.state.cursor is self._cursor:
                self._dispatcher.set_aside(command.ranges, [at for at, _, _ in parts])

        late = self._runtime.puts_off  # nothing goes out until it's known what is pending
        self._resetting += late
        try:
            await self._decided(command, set_aside)
            set_aside()
        finally:
            self._resetting -= late
            self._schedule_pump()

    async def _ack_before_in_transaction(
        self, number: int, transaction: list[int], end: int, offset: int, words: list[int] | None
    ) -> None:
        """As `_ack_in_transaction`, of everything before an offset."""
        remaining = None if words is None else words_to_mask(words)
        consumer = self._who(number)
        await self._decided(
            AckBeforeInTransaction(TransactionId(*transaction), end, offset, remaining, consumer)
        )

    def _who(self, number: int) -> int:
        """Who acknowledges, for the record; that it was delivered is on record before."""
        if self._trace is None:
            return 0
        self._trace.writing()
        return self._trace.number_of(number)

    async def _end_transaction(self, coordinator: int, sequence: int, commit: bool) -> bool:
        """What is pending in it is acknowledged, or comes again. False if nothing is."""
        command = EndTransactionAcks(TransactionId(coordinator, sequence), commit)
        # A commit gives nobody anything: the channel may go on delivering by itself.
        ended = await (self._runtime.ask(command) if commit else self._move_cursor(command))
        if isinstance(ended, Refusal):
            raise RemoteError(ended.reason, ended.message)
        if self._runtime.state.cursor is self._cursor:
            self._dispatcher.acked(ended.ranges, ended.partial)
            self._dispatcher.put_back(ended.returned)
            self._condemn()
            self._schedule_pump()
        return bool(ended.ranges or ended.partial or ended.returned)

    async def _decided(
        self,
        command: AckInTransaction | AckBeforeInTransaction,
        submitted: Callable[[], None] | None = None,
    ) -> Any:
        reply = await self._runtime.ask(command, submitted)
        if isinstance(reply, Refusal):
            raise RemoteError(reply.reason, reply.message)
        return reply

    def _begin_feed(self) -> None:
        self._wanted = self._dispatcher.wants()
        dispatcher = self._dispatcher
        self._send("feed_from", [dispatcher.feed_from, self._wanted, dispatcher.needs_hashes])

    # -- notices -------------------------------------------------------------------

    def on_notice(self, method: str, args: Any) -> None:
        """Handle a notice of the channel."""
        with suppress(UnknownConsumerError):  # it detached while the notice was under way
            self._on_notice(method, args)
        if not self._begin_anew():
            self._schedule_pump()

    def _begin_anew(self) -> bool:
        """Whether the disk was full and the state fell back to what is durable."""
        if self._runtime.state.cursor is self._cursor:
            return False
        self._send("restart", None)
        return True

    def _on_notice(self, method: str, args: Any) -> None:
        if method in ENDS_STANDING:
            self._endings += 1
            self._stand_down()
        match method:
            case "stood":
                self._dispatcher.stood(*args)
                if self._trace is not None:
                    self._trace.stood(self._stands, args[0], args[0] + len(args[1]))
            case "feed":
                # One that was under way during a reset isn't taken: `feed_from` has been sent.
                first, sizes, chunk_keys, hashes, delayed = args
                self._dispatcher.feed(first, sizes, chunk_keys, hashes, _pairs(delayed))
            case "due":
                self._dispatcher.due(_pairs(args))
            case "attach":
                self._attach(*args)
            case "flow":
                self._dispatcher.flow(args[0], args[1])
            case "ack":
                number, request_id, end, ranges, partial = args
                masks = [(at, words_to_mask(words)) for at, words in partial]
                self._acknowledge(number, request_id, Ack(end, _pairs(ranges), masks))
            case "ack_before":
                number, request_id, end, offset, words = args
                mask = None if words is None else words_to_mask(words)
                self._acknowledge(number, request_id, AckBefore(end, offset, mask))
            case "redeliver":
                number, ranges, epoch = args
                if self._trace is not None:
                    self._trace.asked_again(number, None if ranges is None else _pairs(ranges))
                self._dispatcher.redeliver(number, None if ranges is None else _pairs(ranges))
                self._condemn()
                if epoch is not None:
                    self._tell_in_turn("redelivering", [number, epoch])
            case "detach":
                number, lost = args
                self._told_end.discard(number)
                if self._trace is not None:
                    self._trace.detached(number)
                self._tell_changes(self._dispatcher.detach(number, lost))
                self._condemn()
            case "terminated":
                self._terminated_at = args
            case "gone":
                self._lose(*args)
            case "policies":
                self.policies = args
                self._dispatcher.set_limits(
                    args["maxUnackedMessagesPerConsumer"], args["maxUnackedMessagesPerSubscription"]
                )
                self._condemn()
            case "moved":
                self._confirm_moved(args)
            case "compacted":
                self._dispatcher.stand_from = args
            case "unsent":
                number, end, partial = args
                masks = [(at, words_to_mask(words)) for at, words in partial]
                self._dispatcher.unsent(number, masks)
                self._acknowledge(number, 0, Ack(end, (), masks))

    def _acknowledge(self, number: int, request_id: int, command: Ack | AckBefore) -> None:
        def release(reply: Any, effects: Any) -> None:
            self._late.pop(acked, None)
            if late and isinstance(reply, Acked):
                self._dispatcher.acked(reply.ranges, reply.partial)
                self._schedule_pump()
            if request_id:
                error = reply.message if isinstance(reply, Refusal) else None
                self._send("acked", [number, request_id, error])
            if isinstance(reply, Refusal):
                self._begin_anew()  # nothing else may come that would show it

        def acked() -> None:
            if isinstance(command, Ack):
                self._dispatcher.acked(command.ranges, command.partial)
                return
            after = self._cursor.acked_before
            partial = () if command.remaining is None else ((command.offset, command.remaining),)
            self._dispatcher.acked([(before, after)] if before < after else [], partial)

        before = self._cursor.acked_before
        late = False
        command.consumer = self._who(number)
        self._put_off(acked)
        self._runtime.submit(command, release)
        acked()
        late = not self._has(command)

    def _put_off(self, acked: Callable[[], None]) -> None:
        """If what is submitted next is decided later, ``acked`` is called before anything is
        dispatched until that is durable: who asks for redelivery meanwhile gets nothing of it."""
        if self._runtime.puts_off:
            self._late[acked] = None

    def _has(self, command: Ack | AckBefore) -> bool:
        """Whether the cursor has what was just submitted.

        It doesn't while the runtime rolls its journal or tries a disk that was full: then the
        cursor changes later, and the dispatcher has to hear of it then.
        """
        cursor = self._cursor
        if isinstance(command, AckBefore):
            return command.remaining is None and cursor.acked_before >= command.offset
        return not command.partial and not any(
            cursor.unacked_ranges(first, end) for first, end in command.ranges
        )

    # -- dispatch ------------------------------------------------------------------

    def _schedule_pump(self) -> None:
        if not self._pump_scheduled:
            self._pump_scheduled = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        self._pump_scheduled = False
        if self._resetting:
            return
        for acked in self._late:
            acked()
        deliveries = self._dispatcher.dispatch()
        self._note(deliveries)
        if deliveries and self._trace is not None:
            self._trace.delivered(deliveries)
        if deliveries:
            self._tell_in_turn(
                "deliver",
                [
                    [
                        delivery.consumer_id,
                        delivery.first,
                        delivery.end - delivery.first,
                        delivery.redelivery_count,
                        [] if delivery.remaining is None else mask_to_words(delivery.remaining),
                    ]
                    for delivery in deliveries
                ],
            )
        if self._relieving is None and self._dispatcher.on_trial:
            self._relieving = asyncio.get_running_loop().call_later(RELIEVE_S, self._relieve)
        self._stand()
        wanted = self._dispatcher.wants()
        if wanted > self._wanted:
            self._wanted = wanted
            self._send("want", wanted)
        if self._terminated_at is not None:
            self._tell_end(self._terminated_at)

    def _relieve(self) -> None:
        self._relieving = None
        self._dispatcher.relieve()
        self._schedule_pump()

    # -- dead letters --------------------------------------------------------------

    def _condemn(self) -> None:
        """What was delivered in vain too often goes to the dead-letter topic, durably decided."""
        policy = self.policies.get("deadLetter")
        if policy is None or self._kind is None or self._kind in IN_ORDER or self._resetting:
            return
        condemned = self._dispatcher.condemn(policy["maxRedeliverCount"])
        if condemned:
            with suppress(Stopped):
                self._runtime.submit(IntendDeadLetters(condemned), self._intended)

    def _intended(self, reply: Any, effects: Any) -> None:
        if isinstance(reply, Intended):
            self._tell_dead(reply.letters)
        elif not self._begin_anew():
            self._send("restart", None)  # the disk is full: it's tried again with all else

    def _tell_dead(self, letters: Sequence[tuple[int, int]]) -> None:
        masks = ((at, number, self._cursor.remaining(at)) for at, number in letters)
        told = [
            [at, number, [] if mask is None else mask_to_words(mask)] for at, number, mask in masks
        ]
        if told:
            self._send("dead", told)

    def _confirm_moved(self, offsets: list[int]) -> None:
        def release(reply: Any, effects: Any) -> None:
            if isinstance(reply, Moved):
                self._dispatcher.acked(reply.ranges)
                self._schedule_pump()
            elif not self._begin_anew():
                self._confirm_later(offsets)

        with suppress(Stopped):
            self._runtime.submit(ConfirmMoved(offsets), release)

    def _confirm_later(self, offsets: Sequence[int]) -> None:
        # The channel is done with these: nobody else would tell of them before it opens again.
        self._unconfirmed += offsets
        if self._confirming is None:
            loop = asyncio.get_running_loop()
            self._confirming = loop.call_later(CONFIRM_AGAIN_S, self._confirm_again)

    def _confirm_again(self) -> None:
        self._confirming = None
        offsets, self._unconfirmed = self._unconfirmed, []
        if not offsets or self._begin_anew():
            return
        if self._resetting:
            self._confirm_later(offsets)  # a reset that succeeds forgets them
        else:
            self._confirm_moved(offsets)

    # -- counting deliveries -------------------------------------------------------

    def _note(self, deliveries: Sequence[Delivery]) -> None:
        """Count deliveries: at once those that tell the client of others, which wait until that
        is durable; some time later those that come for the first time.
        """
        dispatcher = self._dispatcher
        counted = any(delivery.redelivery_count for delivery in deliveries)
        if counted or dispatcher.must_note:
            marker = (COUNTED, object())
            if counted:
                self._outgoing.append(marker)
            self._submit(dispatcher.take_notes(deliveries), marker)
        elif dispatcher.has_notes and self._noting is None:
            self._noting = asyncio.get_running_loop().call_later(NOTE_S, self._note_later)

    def _note_later(self) -> None:
        self._noting = None
        if self._resetting:
            self._schedule_pump()  # it comes back here, if anything is left to note
        elif self._dispatcher.has_notes and self._runtime.state.cursor is self._cursor:
            self._submit(self._dispatcher.take_notes(), (COUNTED, None))

    def _submit(self, notes: NoteDeliveries, marker: tuple[str, Any]) -> None:
        with suppress(Stopped):  # then nothing goes out any more
            self._runtime.submit(notes, lambda reply, effects: self._noted(reply, marker))

    def _noted(self, reply: Any, marker: tuple[str, Any]) -> None:
        if isinstance(reply, Refusal) and self._begin_anew():
            return
        # If the disk is full and nothing else was dropped, what waits goes out uncounted.
        outgoing = self._outgoing
        if marker in outgoing:
            outgoing.remove(marker)
        while outgoing and outgoing[0][0] != COUNTED:
            self._send(*outgoing.popleft())

    def _tell_in_turn(self, method: str, args: Any) -> None:
        """Tell the channel, behind deliveries that wait to be counted."""
        if self._outgoing:
            self._outgoing.append((method, args))
        else:
            self._send(method, args)

    def _stand(self) -> None:
        """Leave it to the channel to deliver if that is simple; take it back if not any more."""
        if not self._dispatcher.standing:
            grant = self._dispatcher.stand()
            if grant is not None:
                self._down.clear()
                self._stands = grant.consumer_id
                at = [grant.consumer_id, grant.first, grant.debited, grant.room]
                self._tell_in_turn("stand", [*at, self._endings])
        elif not self._dispatcher.may_stand():
            self._revoke()

    def _revoke(self) -> None:
        if not self._revoking:
            self._revoking = True
            self._tell_in_turn("revoke", None)

    def _stand_down(self) -> None:
        self._revoking = False
        self._dispatcher.stand_down()
        self._down.set()

    def _tell_end(self, end: int) -> None:
        next_offset = self._cursor.next_unacked(self._dispatcher.next_offset)
        dispatcher = self._dispatcher
        if dispatcher.waiting() or dispatcher.delayed() or next_offset < end:
            return
        for consumer in self._dispatcher.consumers():
            if consumer.consumer_id not in self._told_end:
                self._told_end.add(consumer.consumer_id)
                self._tell_in_turn("end", consumer.consumer_id)

    def _tell_changes(self, changes: list[ActiveChange]) -> None:
        for change in changes:
            self._send("active", [change.consumer_id, change.active])
        self._schedule_pump()

    # -- statistics ----------------------------------------------------------------

    def _stats(self, state: SubscriptionState, end_offset: int) -> dict[str, Any]:
        """The cursor and the consumers, for people; ``end_offset`` is the partition's."""
        cursor = state.cursor
        kind = self._dispatcher.type
        return {
            "acked_before": cursor.acked_before,
            "backlog": cursor.backlog(end_offset),
            "holes": cursor.hole_count(),
            "expired": dict(state.expired),
            "partial": len(cursor.partials(cursor.acked_before, end_offset)),
            "type": None if kind is None else kind.name,
            "next_offset": self._dispatcher.next_offset,
            "waiting": self._dispatcher.waiting(),
            "draining": self._dispatcher.draining(),
            "blocked": self._dispatcher.blocked,
            "delayed": self._dispatcher.delayed(),
            **pending_stats(state),
            "consumers": [
                {
                    "number": view.consumer_id,
                    "name": view.name,
                    "permits": view.permits,
                    "unacked": view.unacked,
                    "active": view.active,
                    "blocked": view.blocked,
                    "priority": view.priority,
                }
                for view in self._dispatcher.consumers()
            ],
        }


class LocalPort:
    """The way to a brain in the same process, in the shape of a link."""

    def __init__(self, brain: SubscriptionDispatcher, end: Callable[[], None]) -> None:
        """``end`` is called when the port closes: nobody else has this brain."""
        self._brain = brain
        self._end = end
        self.closed = False

    def notify(self, method: str, args: Any) -> None:
        """Tell the brain something."""
        if not self.closed:
            self._brain.on_notice(method, args)

    async def request(self, method: str, args: Any) -> Any:
        """Ask the brain something."""
        return await self._brain.on_request(method, args)

    def close(self) -> None:
        """Forget the brain."""
        if not self.closed:
            self.closed = True
            self._brain.close()
            self._end()
