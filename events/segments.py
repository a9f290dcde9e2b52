"""A segment of a state in a checkpoint: its bytes, or their place."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

DIGEST_SIZE = 16


def segment_digest(body: bytes) -> bytes:
    """16 bytes that are equal for equal segments."""
    return blake2b(body, digest_size=DIGEST_SIZE).digest()


@dataclass(frozen=True, slots=True)
class StoredSegment:
    """A segment as a durable checkpoint has it; ``offset`` is that of its first byte in the
    ledger."""

    name: str
    ledger_id: int
    offset: int
    size: int
    digest: bytes


Segment = bytes | StoredSegment
"""A part of a state: its bytes, or where they are stored already."""


def digest_of(segment: Segment) -> bytes:
    """The digest of a segment, wherever it is."""
    return segment_digest(segment) if isinstance(segment, bytes) else segment.digest
