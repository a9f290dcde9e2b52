"""The calls of consumers and readers that return no messages; both faces share them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, Protocol, TypeVar

from velaray.client.closing import AsyncClosing
from velaray.client.consumer_base import (
    ConsumerBase,
    SeekTarget,
    SubscribedTopics,
    described_topics,
)
from velaray.client.exceptions import InvalidConfiguration
from velaray.client.message import Message
from velaray.client.message_id import MessageId
from velaray.client.read_bounds import Span, SpanLimits, Spot
from velaray.client.transactions import Transaction

TxnT = TypeVar("TxnT")


class Listener(Protocol):
    """Passes messages to a listener."""

    def pause(self) -> None:
        """Stop calling the listener, after the current call."""

    def resume(self) -> None:
        """Continue after `pause`."""

    def stop(self) -> None:
        """Stop calling the listener permanently."""


class TopicCalls(AsyncClosing):
    """The calls that consumers and readers have in common."""

    def __init__(self, base: ConsumerBase, on_close: Callable[[Any], object]) -> None:
        self._base = base
        self._on_close = on_close
        self.listening: Listener | None = None
        """What passes the messages to the listener; not for users."""

    async def seek(self, messageid: SeekTarget) -> None:
        """Continue at another position: the next message is the one after ``messageid``.

        With ``start_message_id_inclusive`` the next message is that message itself. An int is a
        publish time in milliseconds: the next message is the first one published at or after it. A
        function takes the name of each topic partition and returns its position. Messages received
        after the return start there, and the position of a subscription is durable.
        """
        await self._base.seek(messageid)

    async def get_positions(self) -> dict[str, tuple[MessageId, MessageId]]:
        """Return the last readable message and the current position, for every topic partition.

        Both are message ids, by the full name of the partition. The next message is after the
        position. An entry id of -1 in the position means the start of a ledger; in the last message
        it means that there is none.
        """
        return await self._base.topics.positions()

    async def get_spans(self, steps: Mapping[str, tuple[Spot, SpanLimits]]) -> dict[str, Span]:
        """Return the bounds of the next step of a stepwise read, by the full name of the partition.

        A step continues from a `Spot` within its `SpanLimits`. The service stores no state for it.
        """
        return await self._base.topics.spans(steps)

    def topic(self) -> str:
        """The full name of the topic, or of the topics, joined by commas."""
        return ",".join(described_topics(self._base))

    def is_connected(self) -> bool:
        """Whether every topic partition is currently attached."""
        return all(part.connected for part in self._base.topics.parts.values())

    async def close(self) -> None:
        """Leave the service. Acknowledgements are made durable before, if possible.

        A subscription delivers un-acknowledged messages to other consumers, or keeps them in the
        backlog. Closing twice has no effect.
        """
        self._stop_listening()
        await self._base.close()
        self._on_close(self)

    def stop(self) -> None:
        """Leave at once, without sending the last acknowledgements."""
        self._stop_listening()
        self._base.stop()

    def _stop_listening(self) -> None:
        if self.listening is not None:
            self.listening.stop()

    def __repr__(self) -> str:
        return f"<Reader of {self.topic()}>"


class ConsumerCalls(TopicCalls, Generic[TxnT]):
    """The calls of consumers. ``TxnT`` is the face's class of transactions."""

    _base: SubscribedTopics

    def __init__(
        self,
        base: SubscribedTopics,
        on_close: Callable[[Any], object],
        transaction_of: Callable[[TxnT], Transaction],
    ) -> None:
        super().__init__(base, on_close)
        self._transaction_of = transaction_of

    async def reconsume_later(
        self,
        message: Message[Any],
        delay_millis: int = 0,
        properties: Mapping[str, str] | None = None,
        *,
        txn: TxnT | None = None,
    ) -> None:
        """Redeliver the message after ``delay_millis``; other messages continue meanwhile.

        A copy is published to the retry topic, with ``properties`` added, and the message is
        acknowledged. When the call returns, both are durable. After the maximum number of
        redeliveries of the ``dead_letter_policy`` (16 by default) the copy goes to the dead-letter
        topic. Needs ``enable_retry=True``. If the call raises, the message is still
        un-acknowledged. Repeating the call doesn't store a second copy.

        In a transaction (``txn``) the copy and the acknowledgement take effect with the commit.
        Until then no consumer gets the copy. An abort redelivers the message itself.
        """
        inner = None if txn is None else self._transaction_of(txn)
        await self._base.reconsume_later(message, delay_millis, properties, inner)

    async def dead_letter(
        self,
        message: Message[Any],
        properties: Mapping[str, str] | None = None,
        *,
        txn: TxnT | None = None,
    ) -> None:
        """Move the message to the dead-letter topic now.

        A copy is published there, with ``properties`` added, and the message is acknowledged. When
        the call returns, both are durable. Needs a ``dead_letter_policy`` or ``enable_retry=True``.
        Failures and transactions (``txn``) are as with `reconsume_later`.
        """
        inner = None if txn is None else self._transaction_of(txn)
        await self._base.dead_letter(message, properties, inner)

    async def redeliver_unacknowledged_messages(self) -> None:
        """Request redelivery of all un-acknowledged messages."""
        for part in self._base.topics.parts.values():
            part.redeliver_all()

    def pause(self) -> None:
        """Stop requesting messages from the service; queued messages can still be received."""
        self._base.pause()

    def resume(self) -> None:
        """Resume requesting messages after `pause`."""
        self._base.resume()

    def pause_message_listener(self) -> None:
        """Stop calling the listener, after the current call."""
        self._listener().pause()

    def resume_message_listener(self) -> None:
        """Resume calling the listener after `pause_message_listener`."""
        self._listener().resume()

    def _listener(self) -> Listener:
        if self.listening is None:
            raise InvalidConfiguration("this consumer has no message_listener")
        return self.listening

    async def get_last_message_id(self) -> MessageId:
        """Return the id of the topic's last message; entry id -1 if the topic is empty.

        Raises `OperationNotSupported` for a consumer of several topic partitions.
        """
        return await self._base.topics.last_message_id()

    async def get_last_message_ids(self) -> list[MessageId]:
        """Return the id of every topic partition's last message; entry id -1 if there is none."""
        return await self._base.topics.last_message_ids()

    async def unsubscribe(self) -> None:
        """Delete the subscription, with its position and backlog, and close the consumer."""
        await self._base.unsubscribe()
        self._on_close(self)

    def subscription_name(self) -> str:
        """The name of the subscription."""
        return self._base.subscription.name

    def consumer_name(self) -> str:
        """The name that was given; "" if none."""
        return self._base.subscription.consumer_name or ""

    def __repr__(self) -> str:
        return f"<Consumer {self.subscription_name()} of {self.topic()}>"
