"""Compression of payloads: the codecs that a producer can name in its metadata.

The compressed forms are Pulsar's: LZ4 blocks without a size in front, ZLIB, ZSTD frames, raw
Snappy. The size of the original travels in the metadata as ``uncompressed_size``.

The codecs (`velaray.wire.codecs`) are loaded when the first payload needs one: most actors never
look into an entry.
"""

from __future__ import annotations

from enum import IntEnum

from velaray.wire.errors import CompressionError
from velaray.wire.frames import MAX_MESSAGE_SIZE

Buffer = bytes | memoryview


class Compression(IntEnum):
    """The protocol's ``CompressionType``."""

    NONE = 0
    LZ4 = 1
    ZLIB = 2
    ZSTD = 3
    SNAPPY = 4


_KINDS = frozenset(Compression)


def compress(kind: Compression, payload: Buffer) -> bytes:
    """``payload`` in the form of ``kind``; `Compression.NONE` gives it back as it is."""
    if kind is Compression.NONE:
        return bytes(payload)
    from velaray.wire.codecs import COMPRESS

    return bytes(COMPRESS[kind.name](payload))


def decompress(
    kind: int, payload: Buffer, uncompressed_size: int, max_size: int = MAX_MESSAGE_SIZE
) -> bytes:
    """The original of a compressed ``payload``: exactly ``uncompressed_size`` bytes.

    ``kind`` is what the metadata says. Never allocates over ``max_size`` bytes, whatever the
    metadata or the payload claim. Raises `CompressionError` for an unknown kind, a size over
    the limit, damaged data, or an original of any other size. `Compression.NONE` gives back
    the payload itself, whose size is known.
    """
    if kind == Compression.NONE:
        return bytes(payload)
    if kind not in _KINDS:
        raise CompressionError(f"compression type {kind} is not known here")
    codec = Compression(kind)
    if not 0 <= uncompressed_size <= max_size:
        raise CompressionError(
            f"a payload of {uncompressed_size} bytes uncompressed is over the limit of {max_size}"
        )
    from velaray.wire.codecs import DECOMPRESS, DecompressionError

    output = bytearray(uncompressed_size)
    try:
        written = DECOMPRESS[codec.name](payload, output)
    except DecompressionError as error:
        raise CompressionError(
            f"a {codec.name} payload doesn't decompress to {uncompressed_size} bytes: {error}"
        ) from error
    if written != uncompressed_size:
        raise CompressionError(
            f"a {codec.name} payload has {written} bytes, not {uncompressed_size} as announced"
        )
    return bytes(output)
