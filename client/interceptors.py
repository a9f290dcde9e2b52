"""Interceptors: user code that inspects, and may change, sent and received messages."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from velaray.client.exceptions import OperationNotSupported, VelarayError
from velaray.client.message import Message, OutgoingMessage
from velaray.client.message_id import MessageId
from velaray.client.sent import SentBatch

logger = logging.getLogger("velaray")


class ConsumerInterceptor:
    """Base class of consumer interceptors; the methods are those of Pulsar's Java API.

    Override the methods that you need. ``consumer`` is the consumer that has the interceptor.
    `before_consume` is called on the thread that calls ``receive``, the other methods on the
    client's own thread (its event loop), so they must not block. Exceptions are logged and have no
    other effect.
    """

    def before_consume(self, consumer: Any, message: Message[Any]) -> Message[Any]:
        """Return the message that the user gets: ``message`` or a replacement."""
        return message

    def on_acknowledge(
        self, consumer: Any, message_id: MessageId, error: VelarayError | None
    ) -> None:
        """Handle an acknowledged message; the acknowledgement may not have been sent yet."""

    def on_acknowledge_cumulative(
        self, consumer: Any, message_id: MessageId, error: VelarayError | None
    ) -> None:
        """Handle the acknowledgement of all messages up to this one."""

    def on_negative_acks_send(self, consumer: Any, message_ids: set[MessageId]) -> None:
        """Handle a redelivery request for these entries, after negative acknowledgements."""

    def on_ack_timeout_send(self, consumer: Any, message_ids: set[MessageId]) -> None:
        """Handle a redelivery request for these entries, after the acknowledgement timeout."""

    def close(self) -> None:
        """Handle the close of the consumer."""


@dataclass(frozen=True, slots=True)
class SendManyWatch:
    """What an interceptor does with a call of ``send_many``.

    ``properties`` are added to its entries; Pulsar's clients don't show those of a batch. ``done``
    is called once with the error, with "cancelled", or with None if all values are stored.
    """

    properties: Mapping[str, str]
    done: Callable[[VelarayError | str | None], None]


class ProducerInterceptor:
    """Base class of producer interceptors; the methods are those of Pulsar's Java API.

    Override the methods that you need. All are called on the client's own thread (its event loop),
    so they must not block. Exceptions are logged and have no other effect.
    """

    def before_send(self, producer: Any, message: OutgoingMessage) -> OutgoingMessage:
        """Return the message to send: ``message`` or a replacement."""
        return message

    def on_send_acknowledgement(
        self,
        producer: Any,
        message: OutgoingMessage,
        message_id: MessageId | None,
        error: VelarayError | None,
    ) -> None:
        """Handle the receipt or the failure of ``message``."""

    def before_send_many(self, producer: Any, messages: int) -> SendManyWatch | None:
        """Return what watches a call of ``send_many``, which makes no message objects.

        This method returns None, which refuses the call with `OperationNotSupported`: the methods
        for messages would see none of its values.
        """
        return None

    def close(self) -> None:
        """Handle the close of the producer."""


class Harmless:
    """A context for user code, ``with Harmless("what"):``, that logs and suppresses its errors."""

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
    """Calls a consumer's interceptors in order. They get ``owner`` as the consumer."""

    def __init__(self, interceptors: Sequence[ConsumerInterceptor]) -> None:
        self.owner: Any = None
        self._interceptors = interceptors

    def before_consume(self, message: Message[Any]) -> Message[Any]:
        """Return the message that the user gets instead of ``message``."""
        for interceptor in self._interceptors:
            with Harmless(f"{interceptor!r}.before_consume"):
                seen = interceptor.before_consume(self.owner, message)
                if not isinstance(seen, Message):
                    raise TypeError(f"before_consume must return a Message: {seen!r}")
                message = seen
        return message

    def acknowledged(self, message_ids: Iterable[MessageId]) -> None:
        """Report messages that were acknowledged one by one."""
        for message_id in message_ids:
            for interceptor in self._interceptors:
                with Harmless(f"{interceptor!r}.on_acknowledge"):
                    interceptor.on_acknowledge(self.owner, message_id, None)

    def failed(self, message_id: MessageId, error: VelarayError) -> None:
        """Report a message that could not be acknowledged."""
        for interceptor in self._interceptors:
            with Harmless(f"{interceptor!r}.on_acknowledge"):
                interceptor.on_acknowledge(self.owner, message_id, error)

    def acknowledged_cumulatively(self, message_id: MessageId) -> None:
        """Report that all messages up to this one were acknowledged."""
        for interceptor in self._interceptors:
            with Harmless(f"{interceptor!r}.on_acknowledge_cumulative"):
                interceptor.on_acknowledge_cumulative(self.owner, message_id, None)

    def asked_again(self, nacked: set[MessageId], overdue: set[MessageId]) -> None:
        """Report a redelivery request for entries."""
        for interceptor in self._interceptors:
            if nacked:
                with Harmless(f"{interceptor!r}.on_negative_acks_send"):
                    interceptor.on_negative_acks_send(self.owner, set(nacked))
            if overdue:
                with Harmless(f"{interceptor!r}.on_ack_timeout_send"):
                    interceptor.on_ack_timeout_send(self.owner, set(overdue))

    def close(self) -> None:
        """Report the close of the consumer."""
        for interceptor in self._interceptors:
            with Harmless(f"{interceptor!r}.close"):
                interceptor.close()


class SendManyWatches:
    """Those of all interceptors of a producer for one call."""

    def __init__(self, watches: Sequence[SendManyWatch] = ()) -> None:
        self._watches = watches
        self.properties = {
            name: value for watch in watches for name, value in watch.properties.items()
        }

    async def outcome_of(self, work: Awaitable[SentBatch]) -> SentBatch:
        """Wait for the call, and report its outcome. Raises what it raises."""
        problem: VelarayError | str | None = "cancelled"
        try:
            sent = await work
            problem = None
        except VelarayError as error:
            problem = error
            raise
        finally:
            self.done(problem)
        return sent

    def done(self, problem: VelarayError | str | None) -> None:
        """Report the outcome."""
        for watch in self._watches:
            with Harmless(f"{watch!r}.done"):
                watch.done(problem)


class ProducerInterceptors:
    """Calls a producer's interceptors in order. They get ``owner`` as the producer."""

    def __init__(self, interceptors: Sequence[ProducerInterceptor]) -> None:
        self.owner: Any = None
        self._interceptors = interceptors

    def before_send(self, message: OutgoingMessage) -> OutgoingMessage:
        """Return the message that is sent instead of ``message``."""
        for interceptor in self._interceptors:
            with Harmless(f"{interceptor!r}.before_send"):
                seen = interceptor.before_send(self.owner, message)
                if not isinstance(seen, OutgoingMessage):
                    raise TypeError(f"before_send must return an OutgoingMessage: {seen!r}")
                message = seen
        return message

    def before_send_many(self, messages: int) -> SendManyWatches:
        """What watches a call of ``send_many``. Raises `OperationNotSupported` if an interceptor
        refuses it."""
        watches: list[SendManyWatch] = []
        for interceptor in self._interceptors:
            watch = None
            with Harmless(f"{interceptor!r}.before_send_many"):
                watch = interceptor.before_send_many(self.owner, messages)
            if watch is None:
                SendManyWatches(watches).done("refused")
                raise OperationNotSupported(
                    "send_many creates no Message objects: it can't be used with interceptors "
                    f"such as {type(interceptor).__name__}"
                )
            watches.append(watch)
        return SendManyWatches(watches)

    def acknowledged(
        self, message: OutgoingMessage, message_id: MessageId | None, error: VelarayError | None
    ) -> None:
        """Report the receipt or the failure of ``message``."""
        for interceptor in self._interceptors:
            with Harmless(f"{interceptor!r}.on_send_acknowledgement"):
                interceptor.on_send_acknowledgement(self.owner, message, message_id, error)

    def close(self) -> None:
        """Report the close of the producer."""
        for interceptor in self._interceptors:
            with Harmless(f"{interceptor!r}.close"):
                interceptor.close()
