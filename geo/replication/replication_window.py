"""What a replicator holds: entries that came from its partition and aren't confirmed yet.

It asks for so many messages that about `WINDOW` entries and `WINDOW_BYTES` are held. Permits are of
messages while the window is of entries: how many messages the next ones have is told by the
smallest of those that came lately, and whoever reads stops if far more came.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from velaray.events.ids import Position, TransactionId
from velaray.wire.pulsar_pb2 import MessageMetadata

WINDOW = 20_000
"""Fewer small ones don't keep both ends at work."""
WINDOW_BYTES = 16 << 20
FIRST_SIZE = WINDOW_BYTES // 16
"""Before anything came, entries are taken for so large."""
_FORGET = 0.99


@dataclass(slots=True, eq=False)
class Held:
    """One entry; ``outgoing``, its bytes, metadata and where its payload begins, is None if it
    isn't replicated, or is under way; ``transaction`` is what it says that it is of."""

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
        self._size = float(FIRST_SIZE)  # how large the next ones may well be
        self._messages = 1.0  # how few messages the next ones may well have
        self.permits = 0

    def __len__(self) -> int:
        return len(self._held)

    @property
    def overfull(self) -> bool:
        """Whether what is held is far more than it should be: entries weren't as thought."""
        return self._bytes > 2 * WINDOW_BYTES or len(self._held) > 2 * WINDOW

    @property
    def oldest_ms(self) -> int:
        """When the first of all that isn't confirmed was published; 0 if nothing is held."""
        return self._held[0].published_ms if self._held else 0

    def take(self, held: Held) -> None:
        """An entry came."""
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
        """What is to be sent next."""
        return self._unsent[0] if self._unsent else None

    def sent(self) -> None:
        """`next_unsent` is under way; it is read again if it has to be sent again."""
        held = self._unsent.popleft()
        held.outgoing = None
        self._unconfirmed.append(held)

    def confirmed(self, count: int) -> list[Held]:
        """So many of those that are under way are there, the oldest; returns them."""
        found = [self._unconfirmed.popleft() for _ in range(count)]
        for held in found:
            held.done = True
        return found

    def settle(self) -> Position | None:
        """Let go of what is done and has nothing undone before it; the last such, if any."""
        position = None
        while self._held and self._held[0].done:
            done = self._held.popleft()
            position = done.position
            self._bytes -= done.size
        return position

    def wanted(self) -> int:
        """How many more messages to ask for now; they count as asked for. 0: not worth it."""
        room = min(WINDOW - len(self._held), int((WINDOW_BYTES - self._bytes) / self._size))
        if not self._held:
            room = max(room, 1)
        asked = int(room * self._messages)
        missing = asked - self.permits
        if missing <= 0 or (missing < asked // 2 and self.permits > 0):
            return 0
        self.permits += missing
        return missing
