"""From delivered entries to messages: decompression, batches, chunks, start positions. No I/O."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from velaray.aio.acks import Where
from velaray.aio.chunks import Chunk, ChunkAssembler
from velaray.events.ids import MessageId as StoredId
from velaray.message import EntryInfo, Message
from velaray.message_id import MessageId
from velaray.wire.commands import Message as Delivery
from velaray.wire.compression import decompress
from velaray.wire.errors import CompressionError, MalformedEntryError
from velaray.wire.messages import is_batch, iterate_batch, split_entry
from velaray.wire.pulsar_pb2 import MessageMetadata

logger = logging.getLogger("velaray")

LARGEST_ENTRY = 64 * 1024 * 1024
LARGEST_CHUNKED = 1024 * 1024 * 1024
"""Payloads that claim to be larger, decompressed, are taken for damaged."""


@dataclass(slots=True)
class Opened:
    """What was in an entry.

    ``wanted`` has a bit for each message of a batch that isn't before the start position;
    ``skipped`` are the ids of those that are. ``chunks`` are the entries of a chunked one.
    """

    messages: list[Message]
    batch_size: int = 0
    wanted: int = 0
    skipped: list[MessageId] = field(default_factory=list)
    chunks: list[Where] | None = None


class EntryReader:
    """Opens the entries of one topic partition, in the order of their delivery."""

    def __init__(self, topic: str, partition: int, max_chunked: int) -> None:
        self._topic = topic
        self._partition = partition
        self._chunks = ChunkAssembler(max_chunked)
        self._start: MessageId | None = None
        self._inclusive = False

    def skip_until(self, start: MessageId | None, inclusive: bool) -> None:
        """Messages of ``start``'s entry before it (and itself unless inclusive) are skipped."""
        self._start = start
        self._inclusive = inclusive

    def forget_chunks(self) -> None:
        """Drop incomplete messages: their chunks are delivered again."""
        self._chunks.clear()

    def take_abandoned(self) -> list[Where]:
        """Entries with chunks of messages that can't become complete; to be redelivered."""
        return self._chunks.take_abandoned() if self._chunks.abandoned else []

    def read(self, delivery: Delivery, entry: bytes) -> Opened | None:
        """The messages; None if it's a chunk of an incomplete one, or can't be read.

        An entry that can't be read is logged and left unacknowledged.
        """
        try:
            metadata, payload = split_entry(entry)
            if metadata.num_chunks_from_msg > 1:
                return self._chunk(delivery, metadata, payload)
            return self._open(delivery, metadata, payload)
        except (MalformedEntryError, CompressionError) as error:
            where = f"{delivery.ledger_id}:{delivery.entry_id}"
            logger.error("%s: entry %s can't be read: %s", self._topic, where, error)
            return None

    def _open(self, delivery: Delivery, metadata: MessageMetadata, payload: memoryview) -> Opened:
        plain = decompress(metadata.compression, payload, metadata.uncompressed_size, LARGEST_ENTRY)
        info = self._info(delivery, metadata)
        if is_batch(metadata):
            return self._batch(info, plain)
        if self._before_start(info, -1):
            return Opened([], skipped=[Message(info, b"").message_id()])
        return Opened([Message(info, plain)])

    def _info(self, delivery: Delivery, metadata: MessageMetadata) -> EntryInfo:
        return EntryInfo(
            self._topic,
            self._partition,
            delivery.ledger_id,
            delivery.entry_id,
            metadata,
            delivery.redelivery_count,
        )

    def _batch(self, info: EntryInfo, payload: bytes | memoryview) -> Opened:
        size = info.batch_size = info.metadata.num_messages_in_batch
        messages = [
            Message(info, data, index, single)
            for index, (single, data) in enumerate(iterate_batch(payload, size))
        ]
        opened = Opened(messages, size, (1 << size) - 1)
        if self._start is not None and self._start.position == (info.ledger_id, info.entry_id):
            for message in messages:
                if self._before_start(info, message.index):
                    opened.wanted &= ~(1 << message.index)
                    opened.skipped.append(message.message_id())
        return opened

    def _before_start(self, info: EntryInfo, index: int) -> bool:
        start = self._start
        if start is None or start.position != (info.ledger_id, info.entry_id):
            return False
        at = start.batch_index()
        return index < at if self._inclusive else index <= at

    def _chunk(
        self, delivery: Delivery, metadata: MessageMetadata, payload: memoryview
    ) -> Opened | None:
        where = (delivery.ledger_id, delivery.entry_id)
        whole = self._chunks.add(
            Chunk(
                metadata.uuid,
                metadata.chunk_id,
                metadata.num_chunks_from_msg,
                metadata.total_chunk_msg_size,
                where,
                bytes(payload),
            )
        )
        if whole is None:
            return None
        plain = decompress(
            metadata.compression, whole.payload, metadata.uncompressed_size, LARGEST_CHUNKED
        )
        info = self._info(delivery, metadata)
        info.first_chunk = StoredId(*whole.first, self._partition)
        opened = Opened([Message(info, plain)], chunks=whole.entries)
        if self._before_start(info, -1):
            opened.messages, opened.skipped = [], [Message(info, b"").message_id()]
        return opened
