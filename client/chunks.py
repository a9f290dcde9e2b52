"""Divides large messages into chunks and reassembles them. No I/O."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from velaray.client.acks import Where


class Chunk(NamedTuple):
    """One chunk of a message."""

    uuid: str
    number: int
    chunks: int
    total_size: int
    where: Where
    payload: bytes | memoryview


@dataclass(slots=True)
class _Incomplete:
    count: int
    total_size: int
    first: Where
    parts: list[bytes | memoryview] = field(default_factory=list)
    entries: list[Where] = field(default_factory=list)


class Whole(NamedTuple):
    """A chunked message with all its chunks, and the entries that contain them."""

    payload: bytes
    entries: list[Where]
    first: Where


class ChunkAssembler:
    """Collects chunks until a message is complete; keeps at most ``limit`` incomplete messages.

    Entries that can't become part of a complete message, because a chunk is missing or the limit
    was reached, go to ``abandoned``: they must be redelivered.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._incomplete: dict[str, _Incomplete] = {}
        self.abandoned: list[Where] = []

    def __len__(self) -> int:
        return len(self._incomplete)

    def add(self, chunk: Chunk) -> Whole | None:
        """Add one chunk; return the message if this completes it."""
        if chunk.number == 0:
            self._begin(chunk)
        message = self._incomplete.get(chunk.uuid)
        if message is None:
            self.abandoned.append(chunk.where)
            return None
        if chunk.number < len(message.parts):
            # The producer sent it twice; the copy is acknowledged with the message.
            message.entries.append(chunk.where)
            return None
        if chunk.number > len(message.parts):
            self._drop(chunk.uuid)
            self.abandoned.append(chunk.where)
            return None
        message.parts.append(chunk.payload)
        message.entries.append(chunk.where)
        if len(message.parts) < message.count:
            return None
        del self._incomplete[chunk.uuid]
        return Whole(b"".join(message.parts), message.entries, message.first)

    def oldest(self) -> Where | None:
        """The first chunk of the oldest incomplete message; None if there is none."""
        return min((message.first for message in self._incomplete.values()), default=None)

    def take_abandoned(self) -> list[Where]:
        """Remove and return the entries to redeliver."""
        taken, self.abandoned = self.abandoned, []
        return taken

    def clear(self) -> None:
        """Drop everything: the connection was lost or the subscription moved."""
        self._incomplete.clear()
        self.abandoned.clear()

    def _begin(self, chunk: Chunk) -> None:
        message = _Incomplete(chunk.chunks, chunk.total_size, chunk.where)
        before = self._incomplete.pop(chunk.uuid, None)
        if before is not None:
            # The producer restarted the message: the old entries are acknowledged with it.
            message.entries = before.entries
        elif self._limit and len(self._incomplete) >= self._limit:
            self._drop(next(iter(self._incomplete)))
        self._incomplete[chunk.uuid] = message

    def _drop(self, uuid: str) -> None:
        message = self._incomplete.pop(uuid, None)
        if message is not None:
            self.abandoned.extend(message.entries)


def cut(payload: bytes | memoryview, size: int) -> Iterator[memoryview]:
    """Divide ``payload`` into pieces of at most ``size`` bytes; at least one piece."""
    view = memoryview(payload)
    for start in range(0, max(len(payload), 1), size):
        yield view[start : start + size]
