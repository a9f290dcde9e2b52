"""The content of an entry: metadata, payload, batches. For clients, and for cold server paths.

Servers keep entries opaque; they use this module only to answer questions about one entry (its
publish time, its number of messages).
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Iterable, Iterator
from contextlib import suppress
from struct import Struct

from crc32c import crc32c
from google.protobuf.message import DecodeError

from velaray.wire.batches import BatchLayout
from velaray.wire.entries import CHECKSUM_MAGIC, DELIVER_AT_TIME, ENTRY_HEADER_SIZE
from velaray.wire.errors import MalformedEntryError
from velaray.wire.hashing import sticky_hash
from velaray.wire.pulsar_pb2 import MessageMetadata, SingleMessageMetadata

_ENTRY_HEAD = Struct(">HII")
_ENTRY_PREFIX = Struct(">HI")
_SIZE = Struct(">I")

Buffer = bytes | memoryview

SEALED = "velaray-sealed-1"
"""The name of the algorithm in the metadata of a sealed entry (`velaray.wire.sealed`)."""
HASH_BYTES = 2
"""The size of the hash in that metadata."""


def open_entry(entry: Buffer) -> tuple[MessageMetadata, int]:
    """The metadata of a sealed entry, and where its payload begins.

    The payload is as the producer sent it: perhaps compressed, perhaps a batch. The checksum
    is not verified again. Raises `MalformedEntryError`.
    """
    if len(entry) < ENTRY_HEADER_SIZE:
        raise MalformedEntryError(f"an entry of {len(entry)} bytes is too short")
    magic, _, metadata_size = _ENTRY_HEAD.unpack_from(entry)
    if magic != CHECKSUM_MAGIC:
        raise MalformedEntryError(f"an entry begins with {magic:#06x}, not {CHECKSUM_MAGIC:#06x}")
    end = ENTRY_HEADER_SIZE + metadata_size
    if end > len(entry):
        raise MalformedEntryError(
            f"metadata of {metadata_size} bytes in an entry of {len(entry)} bytes"
        )
    try:
        metadata = MessageMetadata.FromString(bytes(entry[ENTRY_HEADER_SIZE:end]))
    except DecodeError as error:
        raise MalformedEntryError(f"the metadata can't be decoded: {error}") from error
    if not metadata.IsInitialized():
        raise MalformedEntryError(
            "the metadata lacks the producer name, the sequence id or the publish time"
        )
    return metadata, end


def split_entry(entry: Buffer) -> tuple[MessageMetadata, memoryview]:
    """As `open_entry`, with the payload as a view of ``entry``: no copy."""
    metadata, start = open_entry(entry)
    return metadata, memoryview(entry)[start:]


def build_entry(metadata: MessageMetadata, payload: Buffer) -> bytes:
    """The sealed entry of ``metadata`` and ``payload`` (already compressed, if at all)."""
    return join_entry(metadata.SerializeToString(), payload)


def join_entry(encoded: bytes, payload: Buffer) -> bytes:
    """As `build_entry`, of metadata that is encoded."""
    size = _SIZE.pack(len(encoded))
    checksum = crc32c(payload, crc32c(encoded, crc32c(size)))
    return b"".join((_ENTRY_PREFIX.pack(CHECKSUM_MAGIC, checksum), size, encoded, payload))


def read_metadata(entry: Buffer) -> MessageMetadata:
    """The metadata of a sealed entry. Raises `MalformedEntryError`."""
    return split_entry(entry)[0]


def is_encrypted(entry: Buffer) -> bool:
    """Whether a producer encrypted the entry end to end, by its metadata. An unreadable entry isn't
    encrypted."""
    try:
        return bool(read_metadata(entry).encryption_keys)
    except MalformedEntryError:
        return False


def message_count(entry: Buffer) -> int:
    """The number of messages in a sealed entry, at least 1. Raises `MalformedEntryError`."""
    count = read_metadata(entry).num_messages_in_batch
    if count < 1:
        raise MalformedEntryError(f"a batch of {count} messages")
    return count


def publish_time(entry: Buffer) -> int:
    """The publish time, in ms since 1970. Raises `MalformedEntryError`."""
    return read_metadata(entry).publish_time


def known_publish_time(entry: Buffer) -> int:
    """`publish_time`; 0 of an entry whose metadata can't be read."""
    try:
        return publish_time(entry)
    except MalformedEntryError:
        return 0


def known_key_hash(entry: Buffer) -> int:
    """`key_hash`; of an entry whose metadata can't be read, that of an empty key."""
    try:
        return key_hash(entry)
    except MalformedEntryError:
        return sticky_hash(b"")


def key_hash(entry: Buffer) -> int:
    """The hash that decides which Key_Shared consumer gets a sealed entry, 1 to 65535.

    It is the hash of the ordering key, else of the key; without either, of producer and sequence
    id, so that such entries spread over all consumers. The keys of a batch are those of its entry's
    metadata. Raises `MalformedEntryError`.
    """
    metadata = open_entry(entry)[0]
    if metadata.HasField("ordering_key"):
        return sticky_hash(metadata.ordering_key)
    if not metadata.HasField("partition_key"):
        if metadata.encryption_algo == SEALED and len(metadata.encryption_param) == HASH_BYTES:
            # Its key is sealed; the hash isn't. A client may send such metadata, too.
            return int.from_bytes(metadata.encryption_param, "big") or 1
        return sticky_hash(f"{metadata.producer_name}-{metadata.sequence_id}".encode())
    key = metadata.partition_key.encode()
    if metadata.partition_key_b64_encoded:
        with suppress(binascii.Error):  # otherwise use the text itself as the key
            key = b64decode(key, validate=True)
    return sticky_hash(key)


def delivery_time(entry: bytes) -> int:
    """The delivery time of an entry in ms since 1970; 0 if it has none.

    Cheap for entries without one. An unreadable entry has none.
    """
    if len(entry) < ENTRY_HEADER_SIZE:
        return 0
    size = _ENTRY_HEAD.unpack_from(entry)[2]
    if entry.find(DELIVER_AT_TIME, ENTRY_HEADER_SIZE, ENTRY_HEADER_SIZE + size) < 0:
        return 0
    try:
        return max(read_metadata(entry).deliver_at_time, 0)
    except MalformedEntryError:
        return 0  # the partition stores entries that only their readers understand


def is_batch(metadata: MessageMetadata) -> bool:
    """Whether the payload is a batch: also one of a single message is."""
    return metadata.HasField("num_messages_in_batch")


def build_batch(messages: Iterable[tuple[SingleMessageMetadata, Buffer]]) -> bytes:
    """The (uncompressed) payload that holds ``messages``, whose ``payload_size`` is set here."""
    parts: list[Buffer] = []
    for metadata, payload in messages:
        metadata.payload_size = len(payload)
        encoded = metadata.SerializeToString()
        parts += (_SIZE.pack(len(encoded)), encoded, payload)
    return b"".join(parts)


def iterate_batch(payload: Buffer, count: int) -> Iterator[tuple[SingleMessageMetadata, bytes]]:
    """The ``count`` messages in an uncompressed batch payload.

    Raises `MalformedEntryError` where the payload ends early, has bytes left over, or holds
    what can't be decoded.
    """
    layout = BatchLayout(bytes(payload), 0, count)
    for index, value in enumerate(layout.values(0, count)):
        yield layout.single(index) or SingleMessageMetadata(payload_size=len(value)), value
