"""Compression of payloads: the codecs that a producer can name in its metadata.

The compressed forms are Pulsar's: LZ4 blocks without a size in front, ZLIB, ZSTD frames, raw
Snappy. The size of the original travels in the metadata as ``uncompressed_size``.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any

import cramjam

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


def _compress_lz4(payload: Buffer) -> Any:
    return cramjam.lz4.compress_block(payload, store_size=False)


def _decompress_lz4(payload: Buffer, output: bytearray) -> int:
    return int(cramjam.lz4.decompress_block_into(payload, output, output_len=len(output)))


_COMPRESS: dict[Compression, Callable[[Buffer], Any]] = {
    Compression.LZ4: _compress_lz4,
    Compression.ZLIB: cramjam.zlib.compress,
    Compression.ZSTD: cramjam.zstd.compress,
    Compression.SNAPPY: cramjam.snappy.compress_raw,
}
_DECOMPRESS: dict[Compression, Callable[[Buffer, bytearray], int]] = {
    Compression.LZ4: _decompress_lz4,
    Compression.ZLIB: cramjam.zlib.decompress_into,
    Compression.ZSTD: cramjam.zstd.decompress_into,
    Compression.SNAPPY: cramjam.snappy.decompress_raw_into,
}


def compress(kind: Compression, payload: Buffer) -> bytes:
    """``payload`` in the form of ``kind``; `Compression.NONE` gives it back as it is."""
    if kind is Compression.NONE:
        return bytes(payload)
    return bytes(_COMPRESS[kind](payload))


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
    if kind not in _DECOMPRESS:
        raise CompressionError(f"compression type {kind} is not known here")
    codec = Compression(kind)
    if not 0 <= uncompressed_size <= max_size:
        raise CompressionError(
            f"a payload of {uncompressed_size} bytes uncompressed is over the limit of {max_size}"
        )
    output = bytearray(uncompressed_size)
    try:
        written = _DECOMPRESS[codec](payload, output)
    except cramjam.DecompressionError as error:
        raise CompressionError(
            f"a {codec.name} payload doesn't decompress to {uncompressed_size} bytes: {error}"
        ) from error
    if written != uncompressed_size:
        raise CompressionError(
            f"a {codec.name} payload has {written} bytes, not {uncompressed_size} as announced"
        )
    return bytes(output)
