"""The unconfirmed entries of a replicator.

The window requests about `WINDOW` entries and `WINDOW_BYTES`. Permits count messages, while the
window counts entries: it estimates the messages of the next entries by the smallest recent ones,
and reading pauses if far more arrive.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from velaray.events.ids import Position, TransactionId
from velaray.wire.pulsar_pb2 import MessageMetadata

WINDOW = 20_000
"""Fewer small entries don't keep both ends busy."""
WINDOW_BYTES = 16 << 20
FIRST_SIZE = WINDOW_BYTES // 16
"""The assumed size of entries before the first one."""
_FORGET = 0.99


@dataclass(slots=True, eq=False)
class Held:
    """One entry. ``outgoing`` holds its bytes, its metadata and the start of its payload; it is
    None if the entry isn't replicated or is in transit. ``transaction`` is the transaction that the
    entry names."""

    position: Position
    messages: int
    size: int
    published_ms: int
    outgoing: tuple[bytes, MessageMetadata, int] | None
    done: bool = False
    transaction: TransactionId | None = None


class Window:
    """Entries in the order of the log, and how many more may come."""

    def __init__(self) -> None:
        self._held: deque[Held] = deque()
        self._unsent: deque[Held] = deque()
        self._unconfirmed: deque[Held] = deque()
        self._bytes = 0
        self._size = float(FIRST_SIZE)  # the estimated size of the next entries
        self._messages = 1.0  # the estimated messages of the next entries
        self.permits = 0

    def __len__(self) -> int:
        return len(self._held)

    @property
    def overfull(self) -> bool:
        """Whether far more is held than intended, because the estimates were wrong."""
        return self._bytes > 2 * WINDOW_BYTES or len(self._held) > 2 * WINDOW

    @property
    def oldest_ms(self) -> int:
        """The publish time of the oldest unconfirmed entry; 0 if there is none."""
        return self._held[0].published_ms if self._held else 0

    def take(self, held: Held) -> None:
        """Add an entry."""
        self.permits -= held.messages
        self._held.append(held)
        self._bytes += held.size
        self._size = max(held.size, self._size * _FORGET)
        self._messages = min(held.messages, self._messages / _FORGET)
        if held.outgoing is None:
            held.done = True
        else:
            self._unsent.append(held)

    def next_unsent(self) -> Held | None:
        """The next entry to send."""
        return self._unsent[0] if self._unsent else None

    def sent(self) -> None:
        """Mark `next_unsent` as sent. It is read again if it must be sent again."""
        held = self._unsent.popleft()
        held.outgoing = None
        self._unconfirmed.append(held)

    def confirmed(self, count: int) -> list[Held]:
        """Mark the oldest sent entries as confirmed; returns them."""
        found = [self._unconfirmed.popleft() for _ in range(count)]
        for held in found:
            held.done = True
        return found

    def settle(self) -> Position | None:
        """Drop the confirmed prefix; returns the last position in it, if any."""
        position = None
        while self._held and self._held[0].done:
            done = self._held.popleft()
            position = done.position
            self._bytes -= done.size
        return position

    def wanted(self) -> int:
        """The messages to request now, which count as requested; 0 for too few."""
        room = min(WINDOW - len(self._held), int((WINDOW_BYTES - self._bytes) / self._size))
        if not self._held:
            room = max(room, 1)
        asked = int(room * self._messages)
        missing = asked - self.permits
        if missing <= 0 or (missing < asked // 2 and self.permits > 0):
            return 0
        self.permits += missing
        return missing
