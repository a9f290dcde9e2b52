"""The stored form of a segment: the acknowledged offsets among a fixed number of offsets.

A segment counts offsets from its own start and depends on nothing outside, so an unchanged segment
needn't be stored again. Its bytes depend on its content alone, not on its form in memory. They
start with a summary, which answers most questions without decoding the rest. Then follow the
acknowledged offsets, as ranges, a list or bits, whichever is shortest, and the masks of partly
acknowledged batches.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgpack

from velaray.actors.sets.offset_sets import OffsetSet

_RANGE = struct.Struct("<HH")
_RANGES, _LIST, _BITS = "ranges", "list", "bits"

Mask = tuple[int, int]
"""An offset, and the mask of the remaining messages of the batch there."""


class Summary(NamedTuple):
    """The summary of a segment: how many entries are acknowledged, in how many ranges, whether the
    first and the last offset are, and how many batches are partly acknowledged."""

    acked: int
    ranges: int
    first: bool
    last: bool
    partial: int


def summarize(acked: OffsetSet, partial: int, size: int) -> Summary:
    """The summary of a segment of ``size`` offsets."""
    return Summary(acked.size(), acked.range_count(), 0 in acked, size - 1 in acked, partial)


def encode_segment(acked: OffsetSet, partial: Sequence[Mask], size: int) -> bytes:
    """The stored form; ``partial`` is ascending."""
    summary = summarize(acked, len(partial), size)
    form, packed = _pack(acked, size)
    masks = msgpack.packb([[offset, _pack_mask(mask)] for offset, mask in partial])
    found: bytes = msgpack.packb([list(summary), form, packed, masks])
    return found


def read_summary(raw: bytes) -> Summary:
    """The summary in a stored form."""
    fields, *_ = msgpack.unpackb(raw)
    return Summary(*fields)


def decode_segment(raw: bytes, acked: OffsetSet) -> list[Mask]:
    """Decode a stored form into ``acked``; returns the masks, ascending."""
    _, form, packed, masks = msgpack.unpackb(raw)
    _unpack(form, packed, acked)
    found: list[Any] = msgpack.unpackb(masks)
    return [(offset, int.from_bytes(mask, "little")) for offset, mask in found]


def _pack_mask(mask: int) -> bytes:
    return mask.to_bytes((mask.bit_length() + 7) // 8, "little")


def _pack(acked: OffsetSet, size: int) -> tuple[str, bytes]:
    """The shortest of three forms: ranges, a list of offsets, a bit for each offset."""
    ranges, offsets = acked.range_count(), acked.size()
    if min(2 * offsets, 4 * ranges) > size // 8:
        return _BITS, acked.to_bits(size)
    if 4 * ranges <= 2 * offsets:
        return _RANGES, b"".join(_RANGE.pack(first, end - 1) for first, end in acked)
    listed = [offset for first, end in acked for offset in range(first, end)]
    return _LIST, struct.pack(f"<{len(listed)}H", *listed)


def _unpack(form: str, raw: bytes, acked: OffsetSet) -> None:
    if form == _BITS:
        acked.add_bits(raw)
    elif form == _RANGES:
        for first, last in _RANGE.iter_unpack(raw):
            acked.add(first, last + 1)
    else:
        for (offset,) in struct.iter_unpack("<H", raw):
            acked.add(offset, offset + 1)
