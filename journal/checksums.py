"""CRC32C of joined data, from the checksums of its parts.

A CRC is linear: the checksum of data that begins with a state differs from the one that begins with
0 by a value that depends only on the state and on the length of the data. That value is the state
after as many zero bytes. One table look-up for each bit of the length finds it; the tables are for
1, 2, 4, ... zero bytes. The method is that of ``crc32_combine`` in zlib.
"""

from __future__ import annotations

from functools import cache
from typing import Final

from crc32c import crc32c

_Tables = tuple[tuple[int, ...], ...]
_BITS: Final = 32


def joined(start: int, checksum: int, size: int) -> int:
    """The CRC32C of data that follows ``start``, the CRC32C of what is before it.

    ``checksum`` is the CRC32C of the data alone, and ``size`` its number of bytes.
    """
    power = 0
    while size:
        if size & 1:
            a, b, c, d = _after_zeros(power)
            start = a[start & 255] ^ b[start >> 8 & 255] ^ c[start >> 16 & 255] ^ d[start >> 24]
        size >>= 1
        power += 1
    return start ^ checksum


@cache
def _after_zeros(power: int) -> _Tables:
    """What each byte of a state becomes after ``2 ** power`` zero bytes."""
    if power == 0:
        bits = [crc32c(b"\0", 1 << bit) ^ crc32c(b"\0") for bit in range(_BITS)]
    else:
        half = power - 1
        bits = [joined(joined(1 << bit, 0, 1 << half), 0, 1 << half) for bit in range(_BITS)]
    return tuple(_of_bytes(bits[first : first + 8]) for first in range(0, _BITS, 8))


def _of_bytes(bits: list[int]) -> tuple[int, ...]:
    table = [0]
    for bit in bits:
        table += [value ^ bit for value in table]
    return tuple(table)
