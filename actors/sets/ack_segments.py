"""The stored form of a segment: what of a fixed number of offsets is acknowledged.

A segment counts from its own start and depends on nothing outside, so an unchanged one
needn't be stored again. Its bytes follow from its content alone, whatever form it has in
memory: ranges, a list of offsets or a bit for each, whatever is shortest; then the masks of the
batches that are acknowledged in part. What comes first says enough for most questions,
so that a segment which isn't in memory needn't be read to be counted or passed over.
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
"""An offset, and what remains of the batch there."""


class Summary(NamedTuple):
    """What is known of a segment without its content: how many entries are acknowledged, in how
    many ranges, whether the first and the last offset are, how many batches are in part."""

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
    """Fill ``acked`` with what a stored form has; returns the masks, ascending."""
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
