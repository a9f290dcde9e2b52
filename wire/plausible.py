"""Checks of the numbers that come with an entry.

Servers count messages by the number in a SEND, without reading the entry. A count that no payload
can hold would use up the permits of every consumer.
"""

from __future__ import annotations

from struct import Struct

from google.protobuf.message import DecodeError

from velaray.events.ids import INT64_MAX
from velaray.wire.commands import Send
from velaray.wire.entries import ENTRY_HEADER_SIZE
from velaray.wire.limits import MAX_BATCH
from velaray.wire.pulsar_pb2 import MessageMetadata

SMALLEST_MESSAGE = 6
"""The least bytes of a message in a batch: a size of four bytes, and metadata of two."""

EXPANSION = 1 << 15
"""The largest growth of a payload by decompression: zstd stores 128 KiB in 4 bytes."""

_METADATA_SIZE = Struct(">I")
_METADATA_SIZE_AT = ENTRY_HEADER_SIZE - 4


def fault_of(send: Send, entry: bytes) -> str:
    """The contradiction between a SEND and its entry, as text; "" if there is none."""
    _, sequence_id, messages, highest, is_chunk, txn_id, _, _ = send
    if sequence_id > INT64_MAX:
        return f"sequence_id {sequence_id} is above {INT64_MAX}, the largest one"
    if highest is not None and highest > INT64_MAX:
        return f"highest_sequence_id {highest} is above {INT64_MAX}, the largest one"
    if txn_id is not None and max(txn_id) > INT64_MAX:
        return f"transaction {txn_id} has a number above {INT64_MAX}, the largest one"
    if messages == 1 and not is_chunk:
        return ""
    if messages > MAX_BATCH:
        return f"num_messages is {messages}: an entry holds {MAX_BATCH} messages at most"
    if messages < 1:
        return f"num_messages is {messages}: an entry holds one message at least"
    end = ENTRY_HEADER_SIZE + _METADATA_SIZE.unpack_from(entry, _METADATA_SIZE_AT)[0]
    try:
        metadata = MessageMetadata.FromString(entry[ENTRY_HEADER_SIZE:end])
    except DecodeError as error:
        return f"the metadata of the entry can't be decoded: {error}"
    if not metadata.IsInitialized():
        return "the metadata lacks the producer name, the sequence id or the publish time"
    if messages != metadata.num_messages_in_batch:
        return (
            f"num_messages is {messages}, but num_messages_in_batch of the entry is "
            f"{metadata.num_messages_in_batch}"
        )
    return _fault_of_batch(metadata, len(entry) - end)


def _fault_of_batch(metadata: MessageMetadata, size: int) -> str:
    """The contradiction of a batch with a payload of ``size`` bytes; "" if there is none."""
    count = metadata.num_messages_in_batch
    if metadata.compression:
        if metadata.uncompressed_size > size * EXPANSION:
            return f"uncompressed_size {metadata.uncompressed_size} of a payload of {size} bytes"
        size = metadata.uncompressed_size
    if count > 1 and count * SMALLEST_MESSAGE > size:
        return f"num_messages_in_batch is {count}, but {size} bytes can't hold so many messages"
    return ""


def count_in(metadata: MessageMetadata, size: int) -> int:
    """The number of messages that an entry counts as; its payload has ``size`` bytes.

    An impossible count is treated as one message: clients discard such an entry as a whole.
    """
    count = metadata.num_messages_in_batch
    return count if count > 0 and not _fault_of_batch(metadata, size) else 1
