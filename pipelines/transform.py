"""The definition of an exactly-once transform: consume, process, produce."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from velaray.client.auth import Authentication
from velaray.client.enums import ConsumerType
from velaray.client.exceptions import InvalidConfiguration
from velaray.client.policies import ConsumerDeadLetterPolicy


class Output(NamedTuple):
    """A message that a transform publishes; a plain tuple of the first fields is accepted, too.

    topic: the target topic.
    value: the payload; None is a tombstone.
    key, ordering_key, properties: as those of ``Producer.send``.
    event_time: milliseconds since 1970.
    """

    topic: str
    value: bytes | None
    key: str | None = None
    properties: Mapping[str, str] | None = None
    event_time: int | None = None
    ordering_key: str | None = None


@dataclass(frozen=True)
class Transform:
    """A function over batches of messages, run so that every message counts exactly once.

    A worker takes a batch of messages and calls ``function``. It publishes the result and
    acknowledges the batch in one transaction, and commits it. After any crash a message's outputs
    and its acknowledgement count together, once, or not at all; then the message is redelivered.
    ``function`` may be called several times with a message; exactly-once applies only to the
    messages that it *returns*. `TransformRun` runs it on Ray, `TransformWorker` in one process.

    function: called with a list of `velaray.Message`, returns an iterable of `Output`, or None for
        none. It may be a coroutine function, or a generator, asynchronous or not. A class (or a
        `functools.partial` of one) is instantiated once per worker, and the instance is called.
        Synchronous functions run in a thread, one call at a time.
    source: the topic or topics to consume.
    subscription: the name of the subscription; a missing one is created at the start of the topic.
    consumer_type: Shared, Key_Shared or Failover. With the latter two, messages (of a key) keep
        their order, with one exception: if a worker dies, or loses its connection, between
        acknowledging and committing, the messages of the open transaction are redelivered after
        their successors.
    batch_size: messages per transaction, at most. A worker holds twice as many, at most.
    batch_wait: seconds that an incomplete batch waits for more messages.
    transaction_timeout: seconds after which the service aborts the open transaction of a worker
        that died. Until then its messages wait, and messages that were published after its outputs
        stay unread. The timeout doesn't run during calls of ``function``.
    dead_letters: the policy for messages for which ``function`` raises an exception. None: the
        transform stops with that exception. Otherwise ``function`` is called again with each
        message of the batch alone. Messages that fail go to the policy's retry topic, and after
        ``max_redeliver_count`` retries to its dead-letter topic, in the transaction that
        acknowledges them. Property ``EXCEPTION`` of these copies contains the exception.
    retry_delay: seconds until a message in the retry topic is tried again.
    authentication: the client's credentials.

    Raises `InvalidConfiguration` for values that can't work.
    """

    function: Callable[..., Any]
    source: str | Sequence[str]
    subscription: str
    consumer_type: ConsumerType = ConsumerType.Shared
    batch_size: int = 500
    batch_wait: float = 0.05
    transaction_timeout: float = 10.0
    dead_letters: ConsumerDeadLetterPolicy | None = None
    retry_delay: float = 1.0
    authentication: Authentication | None = None

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise InvalidConfiguration(f"function: {self.function!r} can't be called")
        if not self.sources or not all(isinstance(each, str) for each in self.sources):
            raise InvalidConfiguration(f"source: name topics, not {self.source!r}")
        allowed = (ConsumerType.Shared, ConsumerType.KeyShared, ConsumerType.Failover)
        if self.consumer_type not in allowed:
            raise InvalidConfiguration(
                f"consumer_type={self.consumer_type!r}: several workers share a subscription of"
                " type Shared, KeyShared or Failover"
            )
        if not isinstance(self.batch_size, int) or self.batch_size < 1:
            raise InvalidConfiguration(f"batch_size={self.batch_size!r} must be at least 1")
        if self.batch_wait < 0 or self.retry_delay < 0:
            raise InvalidConfiguration("batch_wait and retry_delay can't be negative")
        if not self.transaction_timeout > 0:
            raise InvalidConfiguration(
                f"transaction_timeout={self.transaction_timeout!r} must be above 0"
            )

    @property
    def sources(self) -> list[str]:
        """The topics to consume."""
        return [self.source] if isinstance(self.source, str) else list(self.source)
