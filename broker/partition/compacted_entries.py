"""Reads the messages of an entry for compaction, and reduces a batch to the messages that are kept.

A batch keeps its position, its number of messages and their indexes. Of a removed message only the
metadata stays, with the protocol's ``compacted_out`` set, so that readers skip it.
"""

from __future__ import annotations

from velaray.actors.partition.compaction import Contents, Item, Part
from velaray.wire.batches import BatchLayout
from velaray.wire.compression import Compression, compress, decompress
from velaray.wire.errors import WireError
from velaray.wire.messages import build_batch, build_entry, is_batch, iterate_batch, split_entry
from velaray.wire.pulsar_pb2 import MessageMetadata, SingleMessageMetadata

OPAQUE = Contents(None)
_NO_KEY = Item(None, empty=False)


def contents(entry: bytes | memoryview) -> Contents:
    """The messages of an entry; `OPAQUE` if it isn't well formed or is encrypted."""
    try:
        metadata, payload = split_entry(entry)
        if is_batch(metadata):
            if metadata.encryption_keys:
                return OPAQUE
            return Contents(_items(_layout(metadata, payload)))
    except WireError:
        return OPAQUE
    key = metadata.partition_key if metadata.HasField("partition_key") else None
    size = metadata.uncompressed_size if metadata.compression else len(payload)
    item = Item(key, metadata.null_value or not size)
    if metadata.num_chunks_from_msg > 1:
        part = Part(metadata.uuid, metadata.chunk_id, metadata.num_chunks_from_msg)
        return Contents((item,), part)
    return Contents((item,))


def _open(metadata: MessageMetadata, payload: memoryview) -> bytes:
    if not metadata.compression:
        return bytes(payload)
    return bytes(decompress(metadata.compression, payload, metadata.uncompressed_size))


def _layout(metadata: MessageMetadata, payload: memoryview) -> BatchLayout:
    return BatchLayout(_open(metadata, payload), 0, metadata.num_messages_in_batch)


def _items(layout: BatchLayout) -> tuple[Item, ...]:
    if layout.plain:
        return (_NO_KEY,) * layout.count
    return tuple(_item(layout.single(index)) for index in range(layout.count))


def _item(single: SingleMessageMetadata | None) -> Item:
    if single is None:
        return _NO_KEY
    key = single.partition_key if single.HasField("partition_key") else None
    return Item(key, single.null_value or not single.payload_size, single.compacted_out)


def keep_part(entry: bytes | memoryview, mask: int) -> bytes:
    """The batch with only those messages whose bits are set."""
    metadata, payload = split_entry(entry)
    kept = []
    count = metadata.num_messages_in_batch
    for index, (single, value) in enumerate(iterate_batch(_open(metadata, payload), count)):
        if mask >> index & 1:
            kept.append((single, value))
        else:
            kept.append((SingleMessageMetadata(compacted_out=True), b""))
    batch = build_batch(kept)
    if metadata.compression:
        metadata.uncompressed_size = len(batch)
        batch = compress(Compression(metadata.compression), batch)
    return build_entry(metadata, batch)
