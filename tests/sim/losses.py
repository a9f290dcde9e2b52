"""What a loss of power may take from a relaxed partition, by what the disk itself says."""

from __future__ import annotations

from velaray.journal import frames
from velaray.journal.errors import CorruptJournal


def synced_entries(durable: bytes) -> int:
    """How many entries the synced bytes of a ledger hold from its start on."""
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
