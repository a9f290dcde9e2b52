"""Protobuf's variable-length integers, for the few commands that are coded by hand."""

from __future__ import annotations

from functools import lru_cache

from velaray.events.varints import varint as long_varint

UINT64_MAX = (1 << 64) - 1

_ONE_BYTE = [bytes((n,)) for n in range(128)]


def varint(number: int) -> bytes:
    """``number`` as a varint; a negative one wraps to 64 bits, as protobuf's do."""
    if number < 0:
        return long_varint(number & UINT64_MAX)
    if number < 128:
        return _ONE_BYTE[number]
    if number < 16384:
        return bytes((number & 127 | 128, number >> 7))
    if number < 2097152:
        return bytes((number & 127 | 128, number >> 7 & 127 | 128, number >> 14))
    return long_varint(number & UINT64_MAX)


cached_varint = lru_cache(maxsize=4096)(varint)
"""`varint` for recurring numbers: ledger ids, producer and consumer ids."""


def read_varint(data: bytes | bytearray, at: int) -> tuple[int, int]:
    """The varint at ``data[at]`` and the index after it.

    Raises `IndexError` if ``data`` ends inside it, `ValueError` if it has over ten bytes.
    """
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number & UINT64_MAX, at
        shift += 7
        if shift > 63:
            raise ValueError("a varint of over ten bytes")
