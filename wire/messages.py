"""What is inside an entry: metadata, payload, batches. For clients, and for cold server paths.

Servers keep entries opaque; they come here only to answer questions about one entry (its
publish time, how many messages it holds).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from struct import Struct

from google.protobuf.message import DecodeError

from velaray.wire.errors import MalformedEntryError
from velaray.wire.frames import CHECKSUM_MAGIC, ENTRY_HEADER_SIZE, seal_entry
from velaray.wire.pulsar_pb2 import MessageMetadata, SingleMessageMetadata

_ENTRY_HEAD = Struct(">HII")
_SIZE = Struct(">I")

Buffer = bytes | memoryview


def split_entry(entry: Buffer) -> tuple[MessageMetadata, memoryview]:
    """The metadata and the payload (a view of ``entry``: no copy) of a sealed entry.

    The payload is as the producer sent it: perhaps compressed, perhaps a batch. The checksum
    is not verified again. Raises `MalformedEntryError`.
    """
    view = memoryview(entry)
    if len(view) < ENTRY_HEADER_SIZE:
        raise MalformedEntryError(f"an entry of {len(view)} bytes is too short")
    magic, _, metadata_size = _ENTRY_HEAD.unpack_from(view)
    if magic != CHECKSUM_MAGIC:
        raise MalformedEntryError(f"an entry begins with {magic:#06x}, not {CHECKSUM_MAGIC:#06x}")
    end = ENTRY_HEADER_SIZE + metadata_size
    if end > len(view):
        raise MalformedEntryError(
            f"metadata of {metadata_size} bytes in an entry of {len(view)} bytes"
        )
    try:
        metadata = MessageMetadata.FromString(bytes(view[ENTRY_HEADER_SIZE:end]))
    except DecodeError as error:
        raise MalformedEntryError(f"the metadata can't be decoded: {error}") from error
    if not metadata.IsInitialized():
        raise MalformedEntryError(
            "the metadata lacks the producer name, the sequence id or the publish time"
        )
    return metadata, view[end:]


def build_entry(metadata: MessageMetadata, payload: Buffer) -> bytes:
    """The sealed entry of ``metadata`` and ``payload`` (already compressed, if it's to be)."""
    encoded = metadata.SerializeToString()
    return seal_entry(b"".join((_SIZE.pack(len(encoded)), encoded, payload)))


def read_metadata(entry: Buffer) -> MessageMetadata:
    """The metadata of a sealed entry. Raises `MalformedEntryError`."""
    return split_entry(entry)[0]


def message_count(entry: Buffer) -> int:
    """How many messages a sealed entry holds, at least 1. Raises `MalformedEntryError`."""
    count = read_metadata(entry).num_messages_in_batch
    if count < 1:
        raise MalformedEntryError(f"a batch of {count} messages")
    return count


def publish_time(entry: Buffer) -> int:
    """When the producer published it, in ms since 1970. Raises `MalformedEntryError`."""
    return read_metadata(entry).publish_time


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


def iterate_batch(
    payload: Buffer, count: int
) -> Iterator[tuple[SingleMessageMetadata, memoryview]]:
    """The ``count`` messages in an uncompressed batch payload, as views of it: no copies.

    Raises `MalformedEntryError` where the payload ends early, has bytes left over, or holds
    what can't be decoded.
    """
    view = memoryview(payload)
    at = 0
    for index in range(count):
        metadata, at = _single_metadata(view, at, index)
        end = at + metadata.payload_size
        if metadata.payload_size < 0 or end > len(view):
            raise MalformedEntryError(
                f"message {index} of a batch announces {metadata.payload_size} bytes,"
                f" {len(view) - at} are left"
            )
        yield metadata, view[at:end]
        at = end
    if at != len(view):
        raise MalformedEntryError(f"{len(view) - at} bytes follow a batch of {count} messages")


def _single_metadata(view: memoryview, at: int, index: int) -> tuple[SingleMessageMetadata, int]:
    start = at + _SIZE.size
    if start > len(view):
        raise MalformedEntryError(f"a batch ends before its message {index}")
    end = start + _SIZE.unpack_from(view, at)[0]
    if end > len(view):
        raise MalformedEntryError(f"a batch ends in the metadata of its message {index}")
    try:
        metadata = SingleMessageMetadata.FromString(bytes(view[start:end]))
    except DecodeError as error:
        raise MalformedEntryError(
            f"the metadata of message {index} of a batch can't be decoded: {error}"
        ) from error
    if not metadata.HasField("payload_size"):
        raise MalformedEntryError(f"message {index} of a batch has no payload size")
    return metadata, end
