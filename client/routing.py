"""The choice of a message's partition. No I/O."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from velaray.client.enums import PartitionsRoutingMode
from velaray.client.exceptions import InvalidMessage
from velaray.client.message import OutgoingMessage
from velaray.client.options import ProducerOptions
from velaray.client.values import Values
from velaray.wire.hashing import partition_of

BatchIsOpen = Callable[[int], bool]
"""Whether the partition's open batch has messages and room for more."""


NEXT = -1
"""Stands for the partition whose turn it is."""


class Group(NamedTuple):
    """Rows for one partition (or for `NEXT`), in order; ``rows`` None: all rows."""

    partition: int
    rows: Sequence[int] | None


class Router:
    """Chooses partitions: by key, round robin per batch, one for all, or with the user's router.

    Keys are hashed as in Pulsar's C++ and Python clients, so that all clients send a key to the
    same partition.
    """

    def __init__(self, options: ProducerOptions[Any], partitions: int) -> None:
        self._custom = options.message_router
        self._single = options.message_routing_mode == PartitionsRoutingMode.UseSinglePartition
        self._current = random.randrange(partitions)

    @property
    def start(self) -> int:
        """The current partition for messages without a key."""
        return self._current

    def choose(self, message: OutgoingMessage, partitions: int, batch_open: BatchIsOpen) -> int:
        """Return the partition for a message, from 0 up to, not including, ``partitions``.

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

    def next_batch(self, partitions: int) -> int:
        """Return the partition for a whole batch without keys."""
        if not self._single:
            self._current = (self._current + 1) % partitions
        return self._current

    def groups(self, values: Values, partitions: int, by_key: bool) -> list[Group]:
        """Group the values by partition; with ``by_key`` no two keys share a group.

        Raises `InvalidMessage` as `choose` does.
        """
        custom = self._custom is not None and partitions > 1
        if not custom and (not values.keyed or (partitions == 1 and not by_key)):
            return [Group(NEXT if partitions > 1 else 0, None)]
        found: dict[tuple[int, str], list[int]] = {}
        known: dict[str | None, int] = {None: NEXT if partitions > 1 else 0}
        for row, key in enumerate(values.keys()):
            if custom:
                message = OutgoingMessage(values.value(row), partition_key=key)
                partition = self.choose(message, partitions, lambda _: False)
            elif key in known:
                partition = known[key]
            else:
                assert key is not None
                partition = known[key] = partition_of(key, partitions)
            found.setdefault((partition, key or "" if by_key else ""), []).append(row)
        return [Group(partition, rows) for (partition, _), rows in found.items()]
