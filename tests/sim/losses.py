"""Entries that a relaxed partition may lose at a power loss, according to the disk."""

from __future__ import annotations

from velaray.journal import frames
from velaray.journal.errors import CorruptJournal


def synced_entries(durable: bytes) -> int:
    """The number of entries in the synced bytes of a ledger."""
    try:
        header = frames.decode_ledger_header("synced", durable)
    except CorruptJournal:
        return 0
    at, entries = header.size, 0
    while (found := frames.decode_frame_header(header.salt, at, durable, at)) is not None:
        start = at + frames.FRAME_HEADER_SIZE
        payload = memoryview(durable)[start : start + found.length]
        if not frames.payload_is_whole(header.salt, at, found, payload):
            break
        at = start + found.length
        if not found.kind:
            pairs = frames.records(payload, found.records)
            entries = found.entry + sum(blob is not None for _, blob in pairs)
    return entries
