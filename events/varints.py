"""Protobuf's variable-length integers: one, or those of consecutive numbers at once."""

from __future__ import annotations

LAST = [bytes((low,)) for low in range(128)]
CONTINUED = [bytes((low | 128,)) for low in range(128)]
"""The first byte of a varint, by its lowest seven bits: if it is the last one, and if not."""


def consecutive(first: int, count: int) -> list[bytes]:
    """The varints of ``count`` consecutive numbers from ``first`` on, none of them negative."""
    at, end = first, first + count
    found: list[bytes] = []
    while at < end:
        stop = min(end, (at | 127) + 1)  # up to there only the lowest seven bits differ
        low = at & 127
        if at < 128:
            found += LAST[low : low + stop - at]
        else:
            upper = varint(at >> 7)
            found += [lowest + upper for lowest in CONTINUED[low : low + stop - at]]
        at = stop
    return found


def varint(number: int) -> bytes:
    """The varint of a number that isn't negative."""
    encoded = bytearray()
    while number > 127:
        encoded.append(number & 127 | 128)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
