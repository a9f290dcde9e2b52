"""Which partition a message goes to. No I/O."""

from __future__ import annotations

import random
from collections.abc import Callable

from velaray.enums import PartitionsRoutingMode
from velaray.exceptions import InvalidMessage
from velaray.message import OutgoingMessage
from velaray.options import ProducerOptions
from velaray.wire.hashing import partition_of

BatchIsOpen = Callable[[int], bool]
"""Whether the partition's current batch has messages and room for more."""


class Router:
    """Picks partitions: by key, round robin per batch, one for all, or the user's choice.

    Keys are hashed as Pulsar's C++ and Python clients hash them, so that both send a key to
    the same partition.
    """

    def __init__(self, options: ProducerOptions, partitions: int) -> None:
        self._custom = options.message_router
        self._single = options.message_routing_mode == PartitionsRoutingMode.UseSinglePartition
        self._current = random.randrange(partitions)

    @property
    def start(self) -> int:
        """The partition for messages without a key, as of now."""
        return self._current

    def choose(self, message: OutgoingMessage, partitions: int, batch_open: BatchIsOpen) -> int:
        """The partition, 0 up to but not including ``partitions``.

        Raises `InvalidMessage` if the user's router returns anything else.
        """
        if self._custom is not None:
            chosen = self._custom(message, partitions)
            if not isinstance(chosen, int) or not 0 <= chosen < partitions:
                raise InvalidMessage(
                    f"message_router returned {chosen!r} for {partitions} partitions"
                )
            return chosen
        if message.key:
            return partition_of(message.key, partitions)
        if not self._single and not batch_open(self._current):
            self._current = (self._current + 1) % partitions
        return self._current
