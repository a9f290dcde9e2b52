"""Small value classes that configure a consumer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from velaray.client.enums import KeySharedMode
from velaray.client.exceptions import InvalidConfiguration


class ConsumerBatchReceivePolicy:
    """When ``batch_receive`` returns: enough messages, enough bytes, or time is up.

    A limit of zero or less is off; at least one limit must be on.
    """

    def __init__(self, max_num_message: int, max_num_bytes: int, timeout_ms: int) -> None:
        if max_num_message <= 0 and max_num_bytes <= 0 and timeout_ms <= 0:
            raise InvalidConfiguration(
                "at least one of max_num_message, max_num_bytes, timeout_ms must be positive"
            )
        self.max_num_message = max_num_message
        self.max_num_bytes = max_num_bytes
        self.timeout_ms = timeout_ms

    def full(self, messages: int, size: int, following: int = 0) -> bool:
        """Whether ``messages`` messages with ``size`` bytes in total are enough.

        They are also enough if a next message of ``following`` bytes would exceed the byte limit.
        """
        if 0 < self.max_num_message <= messages:
            return True
        limit = self.max_num_bytes
        return messages > 0 and limit > 0 and (size >= limit or size + following > limit)


DEFAULT_BATCH_RECEIVE = ConsumerBatchReceivePolicy(-1, 10 * 1024 * 1024, 100)

_HASH_RANGE = 65536


class RedeliveryBackoff(Protocol):
    """The delay before a message is requested again."""

    def next_ms(self, redelivery_count: int) -> int | float:
        """The delay in milliseconds for a message with this redelivery count."""
        ...


class MultiplierRedeliveryBackoff:
    """A delay that grows with every redelivery, up to a limit; with Pulsar's defaults."""

    def __init__(
        self,
        min_delay_ms: int = 10_000,
        max_delay_ms: int = 600_000,
        multiplier: float = 2.0,
    ) -> None:
        if not 0 <= min_delay_ms <= max_delay_ms:
            raise InvalidConfiguration(
                f"0 <= min_delay_ms <= max_delay_ms: {min_delay_ms!r}, {max_delay_ms!r}"
            )
        if not multiplier >= 1:
            raise InvalidConfiguration(f"multiplier must be at least 1: {multiplier!r}")
        self.min_delay_ms = min_delay_ms
        self.max_delay_ms = max_delay_ms
        self.multiplier = multiplier

    def next_ms(self, redelivery_count: int) -> int | float:
        """The delay in milliseconds for a message with this redelivery count."""
        delay: int | float = self.min_delay_ms
        for _ in range(redelivery_count):
            if delay >= self.max_delay_ms or delay * self.multiplier == delay:
                break
            delay *= self.multiplier
        return min(delay, self.max_delay_ms)


MAX_RECONSUME_TIMES = 16
"""Default limit of retries by ``reconsume_later``; Pulsar's number."""


class ConsumerDeadLetterPolicy:
    """The topics for messages whose processing failed.

    A message is delivered at most ``max_redeliver_count + 1`` times. When it is acknowledged
    negatively after that, or its acknowledgement is overdue, it is moved to ``dead_letter_topic``
    (by default the topic's name with ``-<subscription>-DLQ``). The subscription
    ``initial_subscription_name`` is created there, so that no message is trimmed before it is read.
    ``retry_letter_topic`` is for ``reconsume_later``; the default ends in ``-RETRY``. With
    ``dead_letter_undecodable=True`` a message that doesn't fit the consumer's schema is moved when
    it arrives, and never received. Property ``EXCEPTION`` of the copy contains the reason. Each
    message is decoded on arrival as a check. This is off by default: a consumer with the wrong
    schema would move everything.
    """

    def __init__(
        self,
        max_redeliver_count: int,
        dead_letter_topic: str | None = None,
        initial_subscription_name: str | None = None,
        *,
        retry_letter_topic: str | None = None,
        dead_letter_undecodable: bool = False,
    ) -> None:
        if not isinstance(max_redeliver_count, int) or max_redeliver_count < 1:
            raise InvalidConfiguration(
                f"max_redeliver_count must be at least 1: {max_redeliver_count!r}"
            )
        self.max_redeliver_count = max_redeliver_count
        self.dead_letter_topic = dead_letter_topic
        self.initial_subscription_name = initial_subscription_name
        self.retry_letter_topic = retry_letter_topic
        self.dead_letter_undecodable = dead_letter_undecodable


class ConsumerKeySharedPolicy:
    """How a ``KeyShared`` consumer gets its keys.

    ``sticky_ranges`` are inclusive (first, last) pairs within 0..65535, for mode ``Sticky``.
    """

    def __init__(
        self,
        key_shared_mode: KeySharedMode = KeySharedMode.AutoSplit,
        allow_out_of_order_delivery: bool = False,
        sticky_ranges: Sequence[tuple[int, int]] | None = None,
    ) -> None:
        ranges = sorted(sticky_ranges or ())
        if (key_shared_mode == KeySharedMode.Sticky) != bool(ranges):
            raise InvalidConfiguration(
                "KeySharedMode.Sticky needs sticky_ranges, and other modes take none"
            )
        last_end = -1
        for start, end in ranges:
            if not last_end < start <= end < _HASH_RANGE:
                raise InvalidConfiguration(
                    f"sticky range ({start}, {end}): ranges must lie in 0..65535, not overlap"
                )
            last_end = end
        self.key_shared_mode = key_shared_mode
        self.allow_out_of_order_delivery = allow_out_of_order_delivery
        self.sticky_ranges = ranges
