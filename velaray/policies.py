"""Small value classes that configure a consumer."""

from __future__ import annotations

from collections.abc import Sequence

from velaray.enums import KeySharedMode
from velaray.exceptions import InvalidConfiguration


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

    def full(self, messages: int, size: int) -> bool:
        """Whether ``messages`` messages of together ``size`` bytes are enough."""
        return (0 < self.max_num_message <= messages) or (0 < self.max_num_bytes <= size)


DEFAULT_BATCH_RECEIVE = ConsumerBatchReceivePolicy(-1, 10 * 1024 * 1024, 100)

_HASH_RANGE = 65536


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
            raise InvalidConfiguration("sticky_ranges go with KeySharedMode.Sticky, and only there")
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
