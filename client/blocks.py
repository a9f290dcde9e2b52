"""The queue of delivered entries, read message by message or in groups. No I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from velaray.client.message import EntryInfo, Message
from velaray.client.permits import Permits
from velaray.client.read_position import ReadPosition
from velaray.wire.batches import BatchLayout

LARGEST_PORTION = 1000
"""Number of messages that are prepared for ``receive`` at once."""


class Receiver(Protocol):
    """What the queue's readers need from the partition's consumer."""

    topic: str
    permits: Permits
    position: ReadPosition

    def received(self, info: EntryInfo) -> None:
        """Note that the user took a message of this entry."""


class Block:
    """The messages of one delivered entry that go to the user: all or some of them."""

    __slots__ = ("indexes", "info", "layout", "part")

    def __init__(
        self,
        part: Receiver,
        info: EntryInfo,
        layout: BatchLayout,
        indexes: Sequence[int],
    ) -> None:
        self.part = part
        self.info = info
        self.layout = layout
        self.indexes = indexes

    def __len__(self) -> int:
        return len(self.indexes)

    def messages(self, first: int, end: int) -> list[Message[Any]]:
        """The messages from index ``first`` of this block up to, not including, ``end``."""
        info, layout, indexes = self.info, self.layout, self.indexes[first:end]
        if not info.batch_size:
            return [Message(info, value) for value in layout.values(0, 1)]
        values = self.values(first, end)
        if layout.plain:
            return [Message(info, value, at) for at, value in zip(indexes, values, strict=True)]
        single = layout.single
        return [
            Message(info, value, at, single(at)) for at, value in zip(indexes, values, strict=True)
        ]

    def values(self, first: int, end: int) -> list[bytes]:
        """The payloads from index ``first`` of this block up to, not including, ``end``."""
        indexes = self.indexes[first:end]
        if type(indexes) is range:
            return self.layout.values(indexes.start, indexes.stop)
        values = self.layout.values
        return [values(index, index + 1)[0] for index in indexes]


class Segment:
    """Messages of a block, from index ``first`` up to, not including, ``end``."""

    __slots__ = ("block", "end", "first")

    def __init__(self, block: Block, first: int, end: int) -> None:
        self.block = block
        self.first = first
        self.end = end

    def __len__(self) -> int:
        return self.end - self.first

    @property
    def nbytes(self) -> int:
        """Bytes of their payloads."""
        layout = self.block.layout
        indexes = self.indexes if self.block.info.batch_size else range(1)
        if isinstance(indexes, range):
            return layout.size(indexes.start, indexes.stop)
        return sum(layout.size(index, index + 1) for index in indexes)

    @property
    def indexes(self) -> Sequence[int]:
        """Their indexes within the entry's batch."""
        return self.block.indexes[self.first : self.end]

    def values(self) -> list[bytes]:
        """Their payloads."""
        return self.block.values(self.first, self.end)

    def messages(self) -> list[Message[Any]]:
        """The messages."""
        return self.block.messages(self.first, self.end)

    @property
    def last(self) -> Message[Any]:
        """The last of the messages."""
        return self.block.messages(self.end - 1, self.end)[0]


class BlockQueue:
    """Blocks in the order of their arrival, and the messages that ``receive`` takes next.

    Message objects are made in portions, when they are needed. Any thread may take from `current`,
    with ``popleft`` only; the thread that empties it calls `settle`. All other methods are for one
    thread at a time. ``on_taken`` is called with the number of messages that were taken from a
    partition.
    """

    def __init__(self, on_taken: Callable[[Receiver, int], None]) -> None:
        self.current: deque[Message[Any]] = deque()
        self._on_taken = on_taken
        self._blocks: deque[Block] = deque()
        self._at = 0  # messages of the first block that have left `_waiting`
        self._waiting = 0
        self._portion: Segment | None = None  # initially in `current`, until settled

    def __len__(self) -> int:
        return self._waiting + len(self.current)

    @property
    def part(self) -> Receiver:
        """The partition of the messages in `current`."""
        assert self._portion is not None
        return self._portion.block.part

    def put(self, block: Block) -> None:
        """Append a block, which isn't empty."""
        self._blocks.append(block)
        self._waiting += len(block)

    def clear(self) -> None:
        """Drop everything; dropped messages don't count as taken."""
        self._blocks.clear()
        self.current = deque()
        self._portion = None
        self._at = self._waiting = 0

    def drop(self, part: Receiver) -> int:
        """Drop the partition's messages; return their number."""
        dropped = 0
        portion = self._portion
        if portion is not None and portion.block.part is part:
            dropped = len(self._emptied())
            part.permits.uncredited += len(portion) - dropped
            self._portion = None
        if self._blocks and self._blocks[0].part is part:
            dropped -= self._at
            self._at = 0
        dropped += sum(len(block) for block in self._blocks if block.part is part)
        self._blocks = deque(block for block in self._blocks if block.part is not part)
        self._waiting = sum(map(len, self._blocks)) - self._at
        return dropped

    def _emptied(self) -> list[Message[Any]]:
        """Return what was left in `current`. Another thread may still hold the old deque."""
        old, self.current = self.current, deque()
        left = []
        while old:
            left.append(old.popleft())
        return left

    def settle(self) -> None:
        """Count the portion in `current` as taken, if it is empty."""
        portion = self._portion
        if portion is not None and not self.current:
            self._portion = None
            self._on_taken(portion.block.part, len(portion))

    def refill(self) -> bool:
        """Put the next portion into the empty `current`; False if nothing waits."""
        self.settle()
        if not self._blocks:
            return False
        part = self._blocks[0].part
        room = max(part.permits.refill_at - part.permits.uncredited, 1)
        self._portion = portion = self._next(min(room, LARGEST_PORTION))
        self.current.extend(portion.messages())
        return True

    def take(self, limit: int) -> list[Segment]:
        """Take up to ``limit`` messages, which count as taken, without making message objects."""
        self.settle()
        segments = []
        if self._portion is not None:
            segments.append(self._rest_of(self._portion, limit))
        left = limit - sum(map(len, segments))
        while left > 0 and self._blocks:
            segment = self._next(left)
            left -= len(segment)
            segments.append(segment)
            self._on_taken(segment.block.part, len(segment))
        return [segment for segment in segments if len(segment)]

    def _rest_of(self, portion: Segment, limit: int) -> Segment:
        left = self._emptied()
        taken = left[:limit]
        self.current.extend(left[limit:])
        first = portion.end - len(left)
        segment = Segment(portion.block, first, first + len(taken))
        self._portion = Segment(portion.block, segment.end, portion.end)
        self._on_taken(portion.block.part, segment.end - portion.first)
        if not len(self._portion):
            self._portion = None
        return segment

    def _next(self, limit: int) -> Segment:
        block, first = self._blocks[0], self._at
        end = min(first + limit, len(block))
        self._waiting -= end - first
        self._at = end
        if end == len(block):
            self._blocks.popleft()
            self._at = 0
        return Segment(block, first, end)
