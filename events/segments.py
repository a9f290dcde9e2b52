"""A segment of a state in a checkpoint: its bytes, or their place and a way to read them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b

DIGEST_SIZE = 16


def segment_digest(body: bytes) -> bytes:
    """16 bytes that are equal for equal segments."""
    return blake2b(body, digest_size=DIGEST_SIZE).digest()


@dataclass(frozen=True, slots=True)
class StoredSegment:
    """A segment as a durable checkpoint has it; ``offset`` is that of its first byte in the
    ledger.

    ``read`` reads the bytes again, at once, and compares their digest. If they are damaged or gone
    it raises what the journal raises; then the journal must be recovered again.
    """

    name: str
    ledger_id: int
    offset: int
    size: int
    digest: bytes
    read: Callable[[], bytes] = field(compare=False, repr=False)


Segment = bytes | StoredSegment
"""A part of a state: its bytes, or where they are stored already."""


def digest_of(segment: Segment) -> bytes:
    """The digest of a segment, wherever it is."""
    return segment_digest(segment) if isinstance(segment, bytes) else segment.digest


def bytes_of(segments: Mapping[str, Segment]) -> dict[str, bytes]:
    """The segments as bytes: stored ones are read."""
    return {
        name: segment if isinstance(segment, bytes) else segment.read()
        for name, segment in segments.items()
    }
