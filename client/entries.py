"""Converts delivered entries to messages: decompression, batches, chunks, start positions.

No I/O.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from velaray.client.acks import Where
from velaray.client.chunks import Chunk, ChunkAssembler
from velaray.client.encryption_keys import EncryptionKeyReader
from velaray.client.exceptions import CryptoError
from velaray.client.message import EntryInfo, Message
from velaray.client.message_id import MessageId
from velaray.events.ids import MessageId as StoredId
from velaray.wire.batches import BatchLayout
from velaray.wire.commands import Message as Delivery
from velaray.wire.compression import decompress
from velaray.wire.errors import CompressionError, MalformedEntryError
from velaray.wire.messages import is_batch, open_entry
from velaray.wire.pulsar_pb2 import MessageMetadata
from velaray.wire.replication import (
    SOURCE_POSITION,
    MalformedReplication,
    parse_source_position,
)

if TYPE_CHECKING:
    from velaray.client.encryption import Decryptor

logger = logging.getLogger("velaray")

LARGEST_ENTRY = 64 * 1024 * 1024
LARGEST_CHUNKED = 1024 * 1024 * 1024
"""Limit of the announced decompressed size; payloads that announce more are taken for damaged."""


def origin_of(metadata: MessageMetadata) -> Where | None:
    """The position of the entry in the cluster that it was replicated from; None if it wasn't."""
    if metadata.HasField("replicated_from"):
        for each in metadata.properties:
            if each.key == SOURCE_POSITION:
                with suppress(MalformedReplication):
                    return parse_source_position(each.value)
    return None


@dataclass(slots=True)
class Opened:
    """The contents of an entry.

    ``indexes`` are those of the messages from the start position on; ``skipped`` are the ids of the
    messages before it. ``chunks`` are the entries of a chunked message.
    """

    info: EntryInfo
    layout: BatchLayout
    indexes: Sequence[int]
    skipped: list[MessageId] = field(default_factory=list)
    chunks: list[Where] | None = None

    @property
    def batch_size(self) -> int:
        """Number of messages of the batch; 0 if the entry is no batch."""
        return self.info.batch_size


class EntryReader:
    """Opens the entries of one topic partition, in the order of their delivery."""

    def __init__(
        self,
        topic: str,
        partition: int,
        max_chunked: int,
        key_reader: EncryptionKeyReader | None = None,
    ) -> None:
        self._topic = topic
        self._decryptor = _decryptor_of(key_reader)
        self._partition = partition
        self._chunks = ChunkAssembler(max_chunked)
        self._start: MessageId | None = None
        self._inclusive = False
        self._places: set[Where] = set()  # the start's entry, in the clusters with it

    def skip_until(
        self, start: MessageId | None, inclusive: bool, origin: Where | None = None
    ) -> None:
        """Skip the messages of ``start``'s entry before it (and itself unless ``inclusive``).

        ``origin`` is the position of that entry in the cluster that it was replicated from.
        """
        self._start = start
        self._inclusive = inclusive
        self._places = {place for place in (start and start.position, origin) if place}

    def oldest_chunk(self) -> Where | None:
        """The first chunk of the oldest incomplete message; None if there is none."""
        return self._chunks.oldest()

    def forget_chunks(self) -> None:
        """Drop incomplete messages: their chunks are redelivered."""
        self._chunks.clear()

    def take_abandoned(self) -> list[Where]:
        """Remove and return the entries with chunks of messages that can't become complete.

        The caller requests their redelivery.
        """
        return self._chunks.take_abandoned() if self._chunks.abandoned else []

    def read(self, delivery: Delivery, entry: bytes) -> Opened | None:
        """Return the messages; None for a chunk of an incomplete message or an unreadable entry.

        An unreadable entry is logged and left unacknowledged. Of an entry that can't be decrypted
        the encrypted payload returns as one message, and ``info.sealed`` is the reason.
        """
        try:
            metadata, start = open_entry(entry)
            if metadata.encryption_keys:
                try:
                    entry, start = self._decrypted(metadata, entry, start), 0
                except CryptoError as error:
                    return self._sealed(delivery, metadata, entry[start:], error)
            if metadata.num_chunks_from_msg > 1:
                return self._chunk(delivery, metadata, entry[start:])
            return self._open(delivery, metadata, entry, start)
        except (MalformedEntryError, CompressionError) as error:
            where = f"{delivery.ledger_id}:{delivery.entry_id}"
            logger.error("%s: entry %s can't be read: %s", self._topic, where, error)
            return None

    def _decrypted(self, metadata: MessageMetadata, entry: bytes, start: int) -> bytes:
        if self._decryptor is None:
            raise CryptoError("there is no crypto_key_reader")
        return self._decryptor.decrypt(metadata, memoryview(entry)[start:])

    def _sealed(
        self, delivery: Delivery, metadata: MessageMetadata, payload: bytes, error: CryptoError
    ) -> Opened:
        where = f"{delivery.ledger_id}:{delivery.entry_id}"
        logger.error("%s: entry %s can't be decrypted: %s", self._topic, where, error)
        info = self._info(delivery, metadata)
        info.sealed = str(error)
        return self._alone(info, BatchLayout.whole(payload))

    def _open(self, delivery: Delivery, metadata: MessageMetadata, data: bytes, at: int) -> Opened:
        if metadata.compression:
            data = decompress(
                metadata.compression,
                memoryview(data)[at:],
                metadata.uncompressed_size,
                LARGEST_ENTRY,
            )
            at = 0
        info = self._info(delivery, metadata)
        if is_batch(metadata):
            return self._batch(info, data, at)
        return self._alone(info, BatchLayout.whole(data, at))

    def _info(self, delivery: Delivery, metadata: MessageMetadata) -> EntryInfo:
        return EntryInfo(
            self._topic,
            self._partition,
            delivery.ledger_id,
            delivery.entry_id,
            metadata,
            delivery.redelivery_count,
        )

    def _alone(self, info: EntryInfo, layout: BatchLayout) -> Opened:
        if self._before_start(info, -1):
            return Opened(info, layout, range(0), [Message(info, b"").message_id()])
        return Opened(info, layout, range(1))

    def _batch(self, info: EntryInfo, data: bytes, at: int) -> Opened:
        size = info.metadata.num_messages_in_batch
        if size < 1:
            raise MalformedEntryError(f"a batch of {size} messages")
        info.batch_size = size
        opened = Opened(info, BatchLayout(data, at, size), range(size))
        start = self._start
        if start is not None and self._is_the_starts(info):
            first = start.batch_index() + (not self._inclusive)
            first = min(max(first, 0), size)
            opened.skipped = [Message(info, b"", at).message_id() for at in range(first)]
            opened.indexes = range(first, size)
        return opened

    def _before_start(self, info: EntryInfo, index: int) -> bool:
        start = self._start
        if start is None or not self._is_the_starts(info):
            return False
        at = start.batch_index()
        return index < at if self._inclusive else index <= at

    def _is_the_starts(self, info: EntryInfo) -> bool:
        return info.where in self._places or origin_of(info.metadata) in self._places

    def _chunk(
        self, delivery: Delivery, metadata: MessageMetadata, payload: bytes
    ) -> Opened | None:
        where = (delivery.ledger_id, delivery.entry_id)
        whole = self._chunks.add(
            Chunk(
                metadata.uuid,
                metadata.chunk_id,
                metadata.num_chunks_from_msg,
                metadata.total_chunk_msg_size,
                where,
                payload,
            )
        )
        if whole is None:
            return None
        plain = decompress(
            metadata.compression, whole.payload, metadata.uncompressed_size, LARGEST_CHUNKED
        )
        info = self._info(delivery, metadata)
        info.first_chunk = StoredId(*whole.first, self._partition)
        opened = self._alone(info, BatchLayout.whole(plain))
        opened.chunks = whole.entries
        return opened


def _decryptor_of(reader: EncryptionKeyReader | None) -> Decryptor | None:
    if reader is None:
        return None
    from velaray.client.encryption import Decryptor

    return Decryptor(reader)
