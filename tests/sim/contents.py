"""The messages in an entry of the simulation."""

from __future__ import annotations

from typing import Any

from velaray.wire.messages import is_batch, iterate_batch, split_entry


def contents_of(entry: bytes | memoryview) -> list[str]:
    """The messages of an entry, as text; a tombstone's is in its property."""
    metadata, payload = split_entry(entry)
    if not is_batch(metadata):
        return [_content_of(metadata, bytes(payload))]
    found = iterate_batch(payload, metadata.num_messages_in_batch)
    return [_content_of(single, body) for single, body in found]


def _content_of(metadata: Any, body: bytes) -> str:
    return metadata.properties[0].value if metadata.null_value else body.decode()
