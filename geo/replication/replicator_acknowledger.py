"""Acknowledges confirmed entries at a replicator's source."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from velaray.events.ids import Position

ACK_S = 0.1
"""The longest delay between a confirmation and its acknowledgement."""
ACK_ENTRIES = 500
"""The number of confirmed entries that are acknowledged without delay."""


class Acknowledger:
    """Acknowledges the confirmed prefix, many entries at once."""

    def __init__(
        self, acknowledge: Callable[[Position], None], acknowledged: Callable[[], None]
    ) -> None:
        """``acknowledge`` sends a cumulative acknowledgement; ``acknowledged`` is called
        afterwards."""
        self._acknowledge = acknowledge
        self._acknowledged = acknowledged
        self._unacked: Position | None = None
        self._entries = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def pending(self) -> bool:
        """Whether a confirmed entry isn't acknowledged yet."""
        return self._unacked is not None

    def add(self, position: Position, entries: int) -> None:
        """Acknowledge soon up to ``position``, ``entries`` more than before."""
        self._unacked = position
        self._entries += entries
        if self._entries >= ACK_ENTRIES:
            self.flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(ACK_S, self.flush)

    def flush(self) -> None:
        """Acknowledge now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._unacked is not None:
            self._acknowledge(self._unacked)
        self._unacked, self._entries = None, 0
        self._acknowledged()
