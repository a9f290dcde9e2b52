"""Computes the bounds of a reader's next step: up to a number of messages or bytes, whole messages
only.

Readers that plan their reads in steps use it. It keeps no state: each request reads the entries, at
most `SCAN_BYTES` of those that aren't in memory.

A chunked message belongs to the step with its last chunk. So a step's end includes the start of the
oldest message that is incomplete there, and the next step's reader begins at that. Messages whose
chunks are more than `REACH_BYTES` apart are given up, and reported as *torn* at their last chunk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from velaray.actors.partition.state import PartitionState
from velaray.actors.runtime import Runtime
from velaray.broker.partition.backlog import Backlog
from velaray.broker.partition.entries import CHUNK_BYTES, CHUNK_ENTRIES, CachedEntry, EntryCache
from velaray.broker.partition.visibility import Visibility
from velaray.events.ids import MessageId, Position
from velaray.journal.manifest import LEDGER_INDEX_BITS, LedgerInfo
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.messages import read_metadata
from velaray.wire.pulsar_pb2 import MessageMetadata

if TYPE_CHECKING:
    from velaray.events.ids_pb2 import MessageIdData

SCAN_BYTES = 64 << 20
REACH_BYTES = 128 << 20


class Log(Protocol):
    """What these functions need of a partition."""

    cache: EntryCache
    partition_index: int
    runtime: Runtime[PartitionState]
    backlog: Backlog
    visibility: Visibility

    @property
    def ledgers(self) -> tuple[LedgerInfo, ...]:
        """Every ledger of the journal, oldest first."""
        ...

    def kept_from(self, offset: int) -> int:
        """Return the first offset at or after ``offset`` that isn't trimmed away."""
        ...

    async def read_log(
        self, offset: int, max_entries: int, max_bytes: int
    ) -> Sequence[CachedEntry]:
        """Return durable entries from ``offset`` on, at least one."""
        ...


@dataclass(slots=True)
class _Begun:
    """An incomplete message: its first chunk, and the bytes scanned before that."""

    offset: int
    producer: str
    bytes_before: int


class _Scan:
    """Scans the entries that consumers get, and counts those from ``first`` on."""

    def __init__(self, partition: Log, first: int, request: pb.SpanRequest) -> None:
        self._partition = partition
        self._first = first
        self._request = request
        self.messages = 0
        self.bytes = 0
        self.full = False
        self._seen = 0
        self._begun: dict[str, _Begun] = {}
        self.unknown: list[int] = []

    async def go(self, at: int, end: int) -> int:
        """Scan the entries from ``at`` to ``end``; return where the scan stopped."""
        partition, read = self._partition, 0
        while (at := partition.kept_from(at)) < end and not self.full and read < SCAN_BYTES:
            stop = min(end, at + CHUNK_ENTRIES)
            if hidden := await partition.visibility.find_hidden(at, stop):
                if hidden[0][0] == at:
                    at = hidden[0][1]
                    continue
                stop = hidden[0][0]
            entries = partition.cache.run(at, stop - at)
            if not entries:
                entries = (await partition.read_log(at, stop - at, CHUNK_BYTES))[: stop - at]
                if at >= self._first:
                    read += sum(len(entry.data) for entry in entries)
            at = self._take(at, entries)
            await asyncio.sleep(0)
        return min(at, end)

    def _take(self, at: int, entries: Sequence[CachedEntry]) -> int:
        most, room = self._request.messages, self._request.bytes
        for offset, (data, messages, chunk_uuid) in enumerate(entries, at):
            size, chunk = len(data), None
            if chunk_uuid:
                chunk = read_metadata(data)
                # A chunked message counts at its last chunk.
                messages = int(chunk.chunk_id + 1 == chunk.num_chunks_from_msg)
            if offset >= self._first:
                full = (most and self.messages + messages > most) or (
                    room and self.bytes + size > room
                )
                if full and (self.bytes or not self._request.some):
                    self.full = True
                    return offset
                self.messages += messages
                self.bytes += size
            if chunk is not None:
                self._note(offset, chunk)
            self._seen += size
        return at + len(entries)

    def _note(self, offset: int, chunk: MessageMetadata) -> None:
        if chunk.chunk_id == 0:
            # A producer sends one message after the other, so its earlier message stays incomplete.
            over = [
                uuid for uuid, begun in self._begun.items() if begun.producer == chunk.producer_name
            ]
            for uuid in over:
                del self._begun[uuid]
            self._begun[chunk.uuid] = _Begun(offset, chunk.producer_name, self._seen)
        if chunk.chunk_id + 1 == chunk.num_chunks_from_msg:
            begun = self._begun.pop(chunk.uuid, None)
            if begun is None and offset >= self._first:
                self.unknown.append(offset)

    def give_up(self, more: int) -> bool:
        """Drop messages that began more than `REACH_BYTES` before a place ``more`` bytes after the
        last entry; return whether there were any."""
        reach = self._seen + more - REACH_BYTES
        near = {uuid: begun for uuid, begun in self._begun.items() if begun.bytes_before >= reach}
        given_up = len(near) < len(self._begun)
        self._begun = near
        return given_up

    def oldest_begun(self) -> int | None:
        """The first chunk of the oldest incomplete message."""
        return min((begun.offset for begun in self._begun.values()), default=None)


def _at(data: MessageIdData) -> Position:
    return MessageId.from_proto(data).position


def _is_remote(partition: Log, after: Position) -> bool:
    """Whether a position belongs to the journal of an earlier, deleted topic of the same name."""
    own = partition.ledgers[-1].ledger_id >> LEDGER_INDEX_BITS
    return after.ledger_id >= 0 and after.ledger_id >> LEDGER_INDEX_BITS != own


async def _unread(partition: Log, begun: int, end: int) -> int:
    """The number of entries from ``begun`` to ``end`` that consumers may want, including trimmed
    ones."""
    if end <= begun:
        return 0
    return end - begun - await partition.visibility.count_hidden(begun, end)


async def span(partition: Log, subscription: str, mark: int, request: pb.SpanRequest) -> pb.Span:
    """Answer ``request`` for a subscription that has acknowledged everything before offset
    ``mark``.

    Raises what reading the log raises (`NoSuchEntryError` if it's trimmed meanwhile).
    """
    table, after = partition.runtime.state.table, _at(request.after)
    foreign = _is_remote(partition, after)
    begun = 0 if foreign else table.at_or_before(after) + 1
    if request.HasField("entries") and not foreign:
        begun = request.entries
    end = partition.visibility.readable_end
    if request.HasField("until"):
        end = min(end, table.at_or_before(_at(request.until)) + 1)
    end = max(end, begun)
    gone = table.gone_ranges()
    answer = pb.Span(
        begun=begun,
        foreign=foreign,
        trimmed=sum(max(min(stop, end) - max(first, begun), 0) for first, stop in gone),
        passed=await _unread(partition, begun, mark),
    )
    known = partition.runtime.state.subscriptions.get(subscription)
    if known is not None:
        answer.incarnation = known.ref.incarnation
    scan = _Scan(partition, begun, request)
    reached = await _look(partition, scan, request, answer, end)
    answer.entries, answer.more = reached, reached < end
    answer.end.CopyFrom(_id_before(partition, reached) if reached > begun else request.after)
    return answer


def _id_before(partition: Log, offset: int) -> MessageIdData:
    position = partition.runtime.state.table.position_before(offset)
    return MessageId(*position, partition.partition_index).to_proto()


async def _look(
    partition: Log, scan: _Scan, request: pb.SpanRequest, answer: pb.Span, end: int
) -> int:
    """Find the end of the span, at most ``end``; return its offset."""
    state, begun = partition.runtime.state, answer.begun
    limited = bool(request.messages or request.bytes)
    first = begun
    if request.HasField("chunks_after") and not answer.foreign:
        first = min(first, state.table.at_or_before(_at(request.chunks_after)) + 1)
    # Without anything to count, the scan can stop after the last chunk.
    stop = end if limited else min(end, max(state.chunks_end, begun))
    reached = stop
    if limited or state.chunks_end > first:
        reached = await scan.go(first, stop)
    answer.unfinished = reached < stop and not scan.full
    if reached == stop:
        reached = end
    if limited:
        answer.messages, answer.bytes = scan.messages, scan.bytes
    bytes_from = partition.backlog.bytes_from
    gives_up = scan.give_up(bytes_from(stop) - bytes_from(end))
    answer.given_up = (request.given_up and not answer.foreign) or gives_up
    oldest = scan.oldest_begun()
    if oldest is not None:
        answer.chunks_after.CopyFrom(_id_before(partition, oldest))
    # If no message was given up, the unknown ones began before the first step.
    if request.given_up and scan.unknown:
        answer.torn.CopyFrom(_id_before(partition, scan.unknown[0] + 1))
    return max(reached, begun)
