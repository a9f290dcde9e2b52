"""The codecs of `velaray.wire.compression`, by the name of the kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cramjam

Buffer = bytes | memoryview

DecompressionError: type[Exception] = cramjam.DecompressionError
"""The errors that the functions of `DECOMPRESS` raise for damaged data."""


def _compress_lz4(payload: Buffer) -> Any:
    return cramjam.lz4.compress_block(payload, store_size=False)


def _decompress_lz4(payload: Buffer, output: bytearray) -> int:
    return int(cramjam.lz4.decompress_block_into(payload, output, output_len=len(output)))


COMPRESS: dict[str, Callable[[Buffer], Any]] = {
    "LZ4": _compress_lz4,
    "ZLIB": cramjam.zlib.compress,
    "ZSTD": cramjam.zstd.compress,
    "SNAPPY": cramjam.snappy.compress_raw,
}
DECOMPRESS: dict[str, Callable[[Buffer, bytearray], int]] = {
    "LZ4": _decompress_lz4,
    "ZLIB": cramjam.zlib.decompress_into,
    "ZSTD": cramjam.zstd.decompress_into,
    "SNAPPY": cramjam.snappy.decompress_raw_into,
}
