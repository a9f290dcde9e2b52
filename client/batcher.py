"""Builds entries from messages: batches, compression, chunks. No I/O and no timers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from struct import Struct
from time import time
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from velaray.client.chunks import cut
from velaray.client.enums import BatchingType, CompressionType
from velaray.client.exceptions import CryptoError, MessageTooBig, VelarayError
from velaray.client.message import OutgoingMessage
from velaray.client.message_id import MessageId
from velaray.client.options import ProducerOptions
from velaray.events.ids import MessageId as StoredId
from velaray.events.ids import TransactionId
from velaray.schemas import SchemaInfo
from velaray.wire.batches import plain_head
from velaray.wire.compression import Compression, compress
from velaray.wire.entries import ENTRY_HEADER_SIZE
from velaray.wire.messages import build_entry, open_entry
from velaray.wire.pulsar_pb2 import MessageMetadata, SingleMessageMetadata
from velaray.wire.schemas import NO_VERSION
from velaray.wire.trace_context import exposed

if TYPE_CHECKING:
    from velaray.client.encryption import Encryptor

Done = Callable[[VelarayError | None, MessageId | None], None]
"""Called once per message: with an error, or with the id of the stored message."""

EntryDone = Callable[[VelarayError | None, StoredId | None], None]
"""Called once per entry: with an error, or with the entry's position."""

_SIZE = Struct(">I")
_ROOM_FOR_METADATA = 16
"""Approximate size of a message in a batch, besides its payload."""

_ROOM_FOR_PROPERTY = 8
"""Largest overhead of a property, besides its name and its value."""

_ROOM_FOR_CHUNK_NUMBERS = 16
_ROOM_FOR_BATCH_METADATA = 128


class PackedBatch(NamedTuple):
    """The payload of a batch that was encoded elsewhere."""

    payload: bytes | memoryview
    messages: int
    key: str | None = None
    properties: Mapping[str, str] = MappingProxyType({})
    """Properties of the batch, which clients don't show."""


class Entry(NamedTuple):
    """One entry ready to send, and the callbacks for its receipt.

    ``waiting`` are called with the id of one message each, ``done`` with the entry's position.
    """

    first_sequence_id: int
    last_sequence_id: int
    messages: int
    data: bytes
    waiting: list[Done]
    batch: bool = False
    chunk: tuple[int, int] | None = None
    done: EntryDone | None = None
    transaction: TransactionId | None = None
    schema: SchemaInfo | None = None

    def stamped(self, version: bytes) -> Entry:
        """Return the entry with this version of its schema."""
        metadata, start = open_entry(self.data)
        if metadata.schema_version == version:
            return self
        metadata.schema_version = version
        return self._replace(data=build_entry(metadata, memoryview(self.data)[start:]))


class Batch:
    """Messages that will share an entry."""

    __slots__ = ("_metadata", "_parts", "count", "first", "last", "size", "waiting")

    def __init__(self) -> None:
        self.count = 0
        self.size = 0
        self.first = self.last = 0
        self.waiting: list[Done] = []
        self._parts: list[bytes] = []
        self._metadata = MessageMetadata()

    def add(self, message: OutgoingMessage, sequence_id: int, done: Done) -> None:
        """Add one message."""
        payload = message.payload
        if message.plain and not message.has_null_value():
            head = plain_head(len(payload))
        else:
            described = SingleMessageMetadata(payload_size=len(payload))
            message.describe(described)
            if message.sequence_id is not None:
                described.sequence_id = message.sequence_id
            single = described.SerializeToString()
            head = _SIZE.pack(len(single)) + single
        if not self.count:
            self.first = sequence_id
            if message.key:
                self._metadata.partition_key = message.key
                if message.key_encoded:
                    self._metadata.partition_key_b64_encoded = True
            if message.order_key:
                self._metadata.ordering_key = message.order_key.encode("utf-8", "surrogateescape")
        self._parts += (head, payload)
        self.waiting.append(done)
        self.count += 1
        self.last = sequence_id
        self.size += len(payload) + len(head)

    def expose(self, message: OutgoingMessage) -> None:
        """Copy the context of a message's trace to where the broker can read it."""
        for name, value in exposed(message.pairs or {}):
            self._metadata.properties.add(key=name, value=value)
            self.size += len(name) + len(value) + _ROOM_FOR_PROPERTY

    def close(self) -> tuple[MessageMetadata, bytes]:
        """Return the metadata and the payload of all messages."""
        self._metadata.num_messages_in_batch = self.count
        if self.count > 1:
            self._metadata.highest_sequence_id = self.last
        return self._metadata, b"".join(self._parts)


class EntryBuilder:
    """Collects messages into batches and builds entries of at most ``max_message_size``."""

    def __init__(self, options: ProducerOptions[Any], producer_name: str, max_size: int) -> None:
        self.producer_name = producer_name
        self.max_message_size = max_size
        #: The transaction of messages added from now on. A batch belongs to one transaction, or to
        #: none.
        self.transaction: TransactionId | None = None
        #: The schema version of messages added from now on; b"" for none.
        self.schema_version = NO_VERSION
        self.schema: SchemaInfo | None = None
        self._compression = options.compression_type
        self._batching = options.batching_enabled
        self._chunking = options.chunking_enabled
        self._by_key = options.batching_type == BatchingType.KeyBased
        self._max_messages = options.batching_max_messages
        self._max_bytes = options.batching_max_allowed_size_in_bytes
        self._batches: dict[str, Batch] = {}
        self._count = 0
        self._bytes = 0
        self._encryptor = _encryptor_of(options)

    @property
    def count(self) -> int:
        """Number of messages that wait in batches."""
        return self._count

    @property
    def open(self) -> bool:
        """Whether a batch is open (a full batch is closed at once)."""
        return self._count > 0

    def add(self, message: OutgoingMessage, sequence_id: int, done: Done) -> list[Entry]:
        """Add one message; return the entries that it completes, in order.

        Raises `MessageTooBig` and `CryptoError`; the batches stay as they were.
        """
        if not self._batching or not message.batchable:
            alone = self._alone(message, sequence_id, done)
            return self.flush() + alone
        size = len(message.payload) + _ROOM_FOR_METADATA
        limit = self.max_message_size - self._overhead()
        if size > limit and self._compression == CompressionType.NONE:
            raise self._too_big(size)
        entries = []
        if self._count and self._bytes + size > min(self._max_bytes, limit):
            entries = self.flush()
        key = (message.order_key or message.key or "") if self._by_key else ""
        batch = self._batches.get(key)
        if batch is None:
            batch = self._batches[key] = Batch()
        before = batch.size
        batch.add(message, sequence_id, done)
        if self._encryptor is not None:
            batch.expose(message)
        self._count += 1
        self._bytes += batch.size - before
        if self._count >= self._max_messages or self._bytes >= self._max_bytes:
            entries += self.flush()
        return entries

    @property
    def batch_limit(self) -> int:
        """Largest size of a batch's payload before compression."""
        limit = self.max_message_size - self._overhead()
        if self._compression != CompressionType.NONE:
            limit -= limit // 64  # incompressible data becomes slightly larger
        name = len(self.producer_name.encode())
        return limit - ENTRY_HEADER_SIZE - _ROOM_FOR_BATCH_METADATA - name

    def packed(self, batch: PackedBatch, sequence_id: int, done: EntryDone) -> Entry:
        """Build the entry of a batch whose payload has at most `batch_limit` bytes.

        Raises `CryptoError`.
        """
        metadata = MessageMetadata(num_messages_in_batch=batch.messages)
        last = sequence_id + batch.messages - 1
        if batch.messages > 1:
            metadata.highest_sequence_id = last
        if batch.key:
            metadata.partition_key = batch.key
        for name, value in batch.properties.items():
            metadata.properties.add(key=name, value=value)
        self._stamp(metadata, sequence_id, len(batch.payload))
        data = self._built(metadata, self._compress(batch.payload))
        return Entry(
            *(sequence_id, last, batch.messages, data, [], True, None, done),
            transaction=self.transaction,
            schema=self.schema,
        )

    def flush(self) -> list[Entry]:
        """Return the entries of all batches, in the order of their first messages."""
        batches, self._batches = self._batches, {}
        self._count = self._bytes = 0
        return [entry for batch in batches.values() if (entry := self._entry_of(batch))]

    def _entry_of(self, batch: Batch) -> Entry | None:
        metadata, payload = batch.close()
        self._stamp(metadata, batch.first, len(payload))
        error: VelarayError | None = None
        try:
            data = self._built(metadata, self._compress(payload))
            if len(data) > self.max_message_size:
                error = self._too_big(len(data))
        except CryptoError as failed:
            error = failed
        if error is not None:
            for done in batch.waiting:
                done(error, None)
            return None
        return Entry(
            *(batch.first, batch.last, batch.count, data, batch.waiting),
            batch=True,
            transaction=self.transaction,
            schema=self.schema,
        )

    def _alone(self, message: OutgoingMessage, sequence_id: int, done: Done) -> list[Entry]:
        metadata = MessageMetadata()
        message.describe(metadata)
        if message.deliver_at:
            metadata.deliver_at_time = message.deliver_at
        if message.replicate_to:
            metadata.replicate_to.extend(message.replicate_to)
        self._stamp(metadata, sequence_id, len(message.payload))
        compressed = self._compress(message.payload)
        size = ENTRY_HEADER_SIZE + metadata.ByteSize() + len(compressed) + self._overhead()
        if size <= self.max_message_size:
            data = self._built(metadata, compressed)
            txn, schema = self.transaction, self.schema
            ids = (sequence_id, sequence_id)
            return [Entry(*ids, 1, data, [done], transaction=txn, schema=schema)]
        return self._in_chunks(metadata, compressed, done)

    def _in_chunks(
        self, metadata: MessageMetadata, payload: bytes | memoryview, done: Done
    ) -> list[Entry]:
        sequence_id = metadata.sequence_id
        metadata.uuid = f"{self.producer_name}-{sequence_id}"
        metadata.total_chunk_msg_size = len(payload)
        overhead = ENTRY_HEADER_SIZE + metadata.ByteSize() + _ROOM_FOR_CHUNK_NUMBERS
        room = self.max_message_size - overhead - self._overhead()
        if not self._chunking or room <= 0:
            raise self._too_big(len(payload))
        pieces = list(cut(payload, room))
        metadata.num_chunks_from_msg = len(pieces)
        entries = []
        for number, piece in enumerate(pieces):
            metadata.chunk_id = number
            waiting = [done] if number == len(pieces) - 1 else []
            chunk = (number, len(pieces))
            data = self._built(metadata, piece)
            entries.append(
                Entry(
                    *(sequence_id, sequence_id, 1, data, waiting),
                    chunk=chunk,
                    transaction=self.transaction,
                    schema=self.schema,
                )
            )
        return entries

    def _stamp(self, metadata: MessageMetadata, sequence_id: int, plain_size: int) -> None:
        metadata.producer_name = self.producer_name
        metadata.sequence_id = sequence_id
        metadata.publish_time = int(time() * 1000)
        if self.schema_version:
            metadata.schema_version = self.schema_version
        if self.transaction is not None:
            metadata.txnid_most_bits, metadata.txnid_least_bits = self.transaction
        # An empty payload isn't compressed: zlib's eight bytes for it break Pulsar's C++ client.
        if self._compression != CompressionType.NONE and plain_size:
            metadata.compression = int(self._compression)  # type: ignore[assignment]
            metadata.uncompressed_size = plain_size

    def _overhead(self) -> int:
        """Upper bound of the bytes that encryption adds to an entry."""
        return 0 if self._encryptor is None else self._encryptor.overhead()

    def _built(self, metadata: MessageMetadata, payload: bytes | memoryview) -> bytes:
        """Encrypt the compressed payload and build the entry. Raises `CryptoError`."""
        if self._encryptor is not None:
            payload = self._encryptor.encrypt(metadata, payload)
        return build_entry(metadata, payload)

    def _compress(self, payload: bytes | memoryview) -> bytes | memoryview:
        if self._compression == CompressionType.NONE or not payload:
            return payload
        return compress(Compression(self._compression), payload)

    def _too_big(self, size: int) -> MessageTooBig:
        hint = "" if self._chunking else "; send smaller messages or set chunking_enabled=True"
        return MessageTooBig(
            f"a message of {size} bytes exceeds the service's limit of"
            f" {self.max_message_size} bytes{hint}"
        )


def _encryptor_of(options: ProducerOptions[Any]) -> Encryptor | None:
    names, reader = options.key_names, options.crypto_key_reader
    if reader is None or not names:
        return None
    from velaray.client.encryption import Encryptor

    return Encryptor(names, reader, options.crypto_failure_action)
