"""The layout of an entry: ``[0x0e01][u32 crc32c][u32 metadata size][metadata][payload]``."""

from __future__ import annotations

ENTRY_HEADER_SIZE = 10
"""Magic, checksum and metadata size: where the metadata of an entry begins."""

CHECKSUM_MAGIC = 0x0E01

DELIVER_AT_TIME = bytes((19 << 3 & 0x7F | 0x80, 19 >> 4))
"""The tag of that field of the metadata; other fields may hold these bytes, too."""
