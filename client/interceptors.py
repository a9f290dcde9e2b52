"""Interceptors: user code that sees, and may change, what is sent and received."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any

from velaray.client.exceptions import VelarayError
from velaray.client.message import Message, OutgoingMessage
from velaray.client.message_id import MessageId

logger = logging.getLogger("velaray")


class ConsumerInterceptor:
    """Derive from this and override what you need; the methods are those of Pulsar's Java API.

    ``consumer`` is the consumer that the interceptor was given to. `before_consume` is called
    where ``receive`` is; the others on the client's own thread (its event loop), so they must
    not block. What a method raises is logged and changes nothing.
    """

    def before_consume(self, consumer: Any, message: Message[Any]) -> Message[Any]:
        """The user is about to get ``message``; return it, or what the user is to get instead."""
        return message

    def on_acknowledge(
        self, consumer: Any, message_id: MessageId, error: VelarayError | None
    ) -> None:
        """A message was acknowledged; the acknowledgement need not have been sent yet."""

    def on_acknowledge_cumulative(
        self, consumer: Any, message_id: MessageId, error: VelarayError | None
    ) -> None:
        """All messages up to this one were acknowledged."""

    def on_negative_acks_send(self, consumer: Any, message_ids: set[MessageId]) -> None:
        """These entries are asked for again, since messages were acknowledged negatively."""

    def on_ack_timeout_send(self, consumer: Any, message_ids: set[MessageId]) -> None:
        """These entries are asked for again, since messages were not acknowledged in time."""

    def close(self) -> None:
        """The consumer is closed."""


class ProducerInterceptor:
    """Derive from this and override what you need; the methods are those of Pulsar's Java API.

    All are called on the client's own thread (its event loop): they must not block. What a
    method raises is logged and changes nothing.
    """

    def before_send(self, producer: Any, message: OutgoingMessage) -> OutgoingMessage:
        """``message`` is about to be sent; return it, or what is to be sent instead."""
        return message

    def on_send_acknowledgement(
        self,
        producer: Any,
        message: OutgoingMessage,
        message_id: MessageId | None,
        error: VelarayError | None,
    ) -> None:
        """``message`` is stored, or why it isn't."""

    def close(self) -> None:
        """The producer is closed."""


class Harmless:
    """``with Harmless("what"):`` runs user code whose errors are logged and go no further."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        logger.error("%s failed", self._what, exc_info=error)
        return True


class ConsumerInterceptors:
    """Calls a consumer's interceptors in their order. ``owner`` is what they get to see."""

    def __init__(self, interceptors: Sequence[ConsumerInterceptor]) -> None:
        self.owner: Any = None
        self._interceptors = interceptors

    def before_consume(self, message: Message[Any]) -> Message[Any]:
        """What the user is to get instead of ``message``."""
        for interceptor in self._interceptors:
            with Harmless(f"{interceptor!r}.before_consume"):
                seen = interceptor.before_consume(self.owner, message)
                if not isinstance(seen, Message):
                    raise TypeError(f"before_consume must return a Message: {seen!r}")
                message = seen
        return message

    def acknowledged(self, message_ids: Iterable[MessageId]) -> None:
        """These were acknowledged, one by one."""
        for message_id in message_ids:
            for interceptor in self._interceptors:
                with Harmless(f"{interceptor!r}.on_acknowledge"):
                    interceptor.on_acknowledge(self.owner, message_id, None)

    def failed(self, message_id: MessageId, error: VelarayError) -> None:
        """This one could not be acknowledged."""
        for interceptor in self._interceptors:
            with Harmless(f"{interceptor!r}.on_acknowledge"):
                interceptor.on_acknowledge(self.owner, message_id, error)

    def acknowledged_cumulatively(self, message_id: MessageId) -> None:
        """All up to this one were acknowledged."""
        for interceptor in self._interceptors:
            with Harmless(f"{interceptor!r}.on_acknowledge_cumulative"):
                interceptor.on_acknowledge_cumulative(self.owner, message_id, None)

    def asked_again(self, nacked: set[MessageId], overdue: set[MessageId]) -> None:
        """Entries are asked for again."""
        for interceptor in self._interceptors:
            if nacked:
                with Harmless(f"{interceptor!r}.on_negative_acks_send"):
                    interceptor.on_negative_acks_send(self.owner, set(nacked))
            if overdue:
                with Harmless(f"{interceptor!r}.on_ack_timeout_send"):
                    interceptor.on_ack_timeout_send(self.owner, set(overdue))

    def close(self) -> None:
        """The consumer is closed."""
        for interceptor in self._interceptors:
            with Harmless(f"{interceptor!r}.close"):
                interceptor.close()


class ProducerInterceptors:
    """Calls a producer's interceptors in their order. ``owner`` is what they get to see."""

    def __init__(self, interceptors: Sequence[ProducerInterceptor]) -> None:
        self.owner: Any = None
        self._interceptors = interceptors

    def before_send(self, message: OutgoingMessage) -> OutgoingMessage:
        """What is to be sent instead of ``message``."""
        for interceptor in self._interceptors:
            with Harmless(f"{interceptor!r}.before_send"):
                seen = interceptor.before_send(self.owner, message)
                if not isinstance(seen, OutgoingMessage):
                    raise TypeError(f"before_send must return an OutgoingMessage: {seen!r}")
                message = seen
        return message

    def acknowledged(
        self, message: OutgoingMessage, message_id: MessageId | None, error: VelarayError | None
    ) -> None:
        """``message`` is stored, or isn't."""
        for interceptor in self._interceptors:
            with Harmless(f"{interceptor!r}.on_send_acknowledgement"):
                interceptor.on_send_acknowledgement(self.owner, message, message_id, error)

    def close(self) -> None:
        """The producer is closed."""
        for interceptor in self._interceptors:
            with Harmless(f"{interceptor!r}.close"):
                interceptor.close()
