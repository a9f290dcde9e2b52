"""Protobuf's variable-length integers of consecutive numbers, many at once."""

from __future__ import annotations

_LAST = [bytes((low,)) for low in range(128)]
_CONTINUED = [bytes((low | 128,)) for low in range(128)]
"""The first byte of a varint, by its lowest seven bits: if it is the last one, and if not."""


def consecutive(first: int, count: int) -> list[bytes]:
    """The varints of ``count`` consecutive numbers from ``first`` on, none of them negative."""
    at, end = first, first + count
    found: list[bytes] = []
    while at < end:
        stop = min(end, (at | 127) + 1)  # up to there only the lowest seven bits differ
        low = at & 127
        if at < 128:
            found += _LAST[low : low + stop - at]
        else:
            upper = _varint(at >> 7)
            found += [lowest + upper for lowest in _CONTINUED[low : low + stop - at]]
        at = stop
    return found


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 127:
        encoded.append(number & 127 | 128)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
