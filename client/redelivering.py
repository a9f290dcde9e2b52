"""Redelivery of the unacknowledged messages of one topic partition.

Messages are requested again after a negative acknowledgement, or after the acknowledgement timeout.
Messages that were delivered too often go to the dead-letter topic instead.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

from velaray.client.acks import AckTracker, Where
from velaray.client.blocks import Block
from velaray.client.consumer_extras import Extras
from velaray.client.core import Core
from velaray.client.dead_letters import EXCEPTION, Addressed, DeadLetterProducers
from velaray.client.exceptions import AlreadyClosed, UndecodableMessage, VelarayError
from velaray.client.interceptors import ConsumerInterceptors
from velaray.client.message import EntryInfo, Message
from velaray.client.message_id import MessageId
from velaray.client.redelivery import RedeliveryTimer
from velaray.client.subscription import Subscription

logger = logging.getLogger("velaray")

_ALL = -1
"""The bits of all messages of an entry."""

REDELIVERY_GROUP = 0.01
"""Seconds that a due redelivery waits for others to share its request."""


class Deliverer(Protocol):
    """What redelivery needs from the consumer."""

    def ask_again(self, entries: Sequence[Where]) -> None:
        """Request redelivery of these entries."""

    def entry_id(self, where: Where) -> MessageId:
        """The id of an entry."""
        ...

    async def settle(self, message: Message[Any]) -> bool:
        """Acknowledge the moved ``message``; returns when the acknowledgement is durable.

        True if no other consumer can have received the message meanwhile.
        """
        ...


class Redeliverer:
    """Tracks redelivery times, and the messages that had their last delivery."""

    def __init__(
        self,
        core: Core,
        subscription: Subscription,
        deliverer: Deliverer,
        tracker: AckTracker,
        extras: Extras,
    ) -> None:
        self._core = core
        self._subscription = subscription
        self._deliverer = deliverer
        self._tracker = tracker
        self._dead_letters = extras.dead_letters
        self._interceptors = extras.interceptors
        self._nacks = RedeliveryTimer()
        self._overdue = RedeliveryTimer()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._last: dict[Where, Block] = {}  # delivered for the last time
        self._nacked: dict[Where, int] = {}  # the messages of these entries, as bits
        self._moving: set[Where] = set()

    # --- scheduling ---

    def received(self, info: EntryInfo) -> None:
        """Begin the acknowledgement timeout of an entry of which the user got a message."""
        subscription = self._subscription
        if subscription.ack_timeout_seconds is not None:
            delay = subscription.ack_timeout_seconds
            if subscription.ack_timeout_backoff is not None:
                count = info.redelivery_count
                delay += subscription.ack_timeout_backoff.next_ms(count) / 1000
            self._overdue.add(info.where, self._core.loop.time(), delay)
            self._arm()

    def nack(self, where: Where, count: int = 0, index: int = -1) -> None:
        """Request an entry after the delay that ``count`` earlier redeliveries give.

        ``index`` is the index of the message within its batch.
        """
        self._overdue.remove(where)
        if where in self._last:
            self._nacked[where] = self._nacked.get(where, 0) | 1 << max(index, 0)
        delay = self._subscription.nack_delay_seconds
        if self._subscription.nack_backoff is not None:
            delay = self._subscription.nack_backoff.next_ms(count) / 1000
        self._nacks.add(where, self._core.loop.time(), delay)
        self._arm()

    def finished(self, where: Where) -> None:
        """Cancel the redelivery of a completely acknowledged entry."""
        self._overdue.remove(where)
        self._nacks.remove(where)
        if self._last:
            self._forget(where)

    def finished_until(self, where: Where) -> None:
        """Cancel the redelivery of all entries up to this acknowledged one."""
        self._overdue.remove_until(where)
        self._nacks.remove_until(where)
        for known in [known for known in self._last if known <= where]:
            self._forget(known)

    def _forget(self, where: Where) -> None:
        self._last.pop(where, None)
        self._nacked.pop(where, None)

    def clear(self) -> None:
        """Cancel all requests: everything is redelivered anyway."""
        self._nacks.clear()
        self._overdue.clear()
        self._last.clear()
        self._nacked.clear()

    def stop(self) -> None:
        """Stop requesting redeliveries."""
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self) -> None:
        deadlines = (self._nacks.next_deadline(), self._overdue.next_deadline())
        known = [deadline for deadline in deadlines if deadline is not None]
        if not known:
            return
        when = min(known) + REDELIVERY_GROUP
        if self._timer is not None:
            if self._timer_at <= when:
                return
            self._timer.cancel()
        self._timer, self._timer_at = self._core.loop.call_at(when, self._now_due), when

    def _now_due(self) -> None:
        self._timer = None
        now = self._core.loop.time()
        nacked, overdue = self._nacks.due(now), self._overdue.due(now)
        again: list[Where] = []
        for where in nacked + overdue:
            block = self._last.get(where)
            if block is None or self._dead_letters is None:
                again.append(where)
            else:
                self._dead_letter(self._dead_letters, block, self._nacked.pop(where, _ALL))
        if again:
            if self._interceptors is not None:
                self._tell(self._interceptors, set(again), nacked, overdue)
            self._deliverer.ask_again(again)
        self._arm()

    def _tell(
        self,
        interceptors: ConsumerInterceptors,
        again: set[Where],
        nacked: Sequence[Where],
        overdue: Sequence[Where],
    ) -> None:
        name = self._deliverer.entry_id
        interceptors.asked_again(
            {name(where) for where in nacked if where in again},
            {name(where) for where in overdue if where in again},
        )

    # --- dead letters ---

    def sifted(self, block: Block) -> Block:
        """Return the decodable part of a delivery; move the rest if the policy requires it."""
        dead_letters, info = self._dead_letters, block.info
        if dead_letters is None or not dead_letters.rules.undecodable or info.decode is None:
            return block
        wrong: dict[int, tuple[Message[Any], UndecodableMessage]] = {}
        for index, message in zip(block.indexes, block.messages(0, len(block)), strict=True):
            try:
                message.value()
            except UndecodableMessage as error:
                wrong[index] = (message, error)
        if not wrong:
            return block
        if info.where not in self._moving:
            dead = [
                (
                    message,
                    dead_letters.dead(message, {EXCEPTION: f"{type(error).__name__}: {error}"}),
                )
                for message, error in wrong.values()
            ]
            self._move_all(info, dead)
        rest = [index for index in block.indexes if index not in wrong]
        return Block(block.part, info, block.layout, rest)

    def arrived(self, block: Block) -> bool:
        """Handle a delivery before the user gets it; False if the user must not get it."""
        dead_letters, info = self._dead_letters, block.info
        if dead_letters is None or info.redelivery_count < dead_letters.max_redeliver_count:
            return True
        if info.where in self._moving:
            return False
        # Where everything unacknowledged is redelivered together, a message's count isn't its own.
        if (
            info.redelivery_count == dead_letters.max_redeliver_count
            or not self._subscription.shared
        ):
            self._last[info.where] = block
            return True
        self._dead_letter(dead_letters, block, _ALL)
        return False

    def _dead_letter(self, dead_letters: DeadLetterProducers, block: Block, bits: int) -> None:
        """Move the unacknowledged messages of ``block`` whose bits are set."""
        info = block.info
        if info.batch_size:
            bits &= self._tracker.open_bits(info.where) or 0
        messages = [
            message
            for number, index in enumerate(block.indexes)
            if bits >> index & 1
            for message in block.messages(number, number + 1)
        ]
        if messages:
            self._move_all(info, [(message, dead_letters.dead(message)) for message in messages])

    def _move_all(
        self, info: EntryInfo, dead_letters: list[tuple[Message[Any], Addressed]]
    ) -> None:
        self._moving.add(info.where)
        self._core.spawn(self._moved(info, dead_letters))

    async def _moved(
        self, info: EntryInfo, dead_letters: list[tuple[Message[Any], Addressed]]
    ) -> None:
        try:
            moves = [self._move(message, dead_letter) for message, dead_letter in dead_letters]
            failed = not all(await asyncio.gather(*moves))
        finally:
            self._moving.discard(info.where)
        if failed:
            self.nack(info.where, info.redelivery_count)

    async def _move(self, message: Message[Any], dead_letter: Addressed) -> bool:
        """Move a message; False if that failed: the message is redelivered then."""
        assert self._dead_letters is not None
        settle = partial(self._deliverer.settle, message)
        try:
            await self._dead_letters.move(message, dead_letter, settle)
        except AlreadyClosed:
            return True  # closed with the consumer; other consumers get the message
        except VelarayError as error:
            logger.warning("%r can't be moved to its dead-letter topic yet: %s", message, error)
            return False
        return True
