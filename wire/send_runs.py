"""Runs of SENDs: consecutive frames of one producer that differ only in sequence id and entry.

Clients that send each message as an entry of its own, or batches of the same number of messages,
produce little else. A run is found with a few comparisons for each frame: the command must have the
very bytes that are expected after the previous one. Whatever differs ends the run.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import count as count_from
from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from velaray.events.varints import consecutive
from velaray.wire.commands import SEND, around_ids, send_receipt, varint_within
from velaray.wire.entries import CHECKSUM_MAGIC, DELIVER_AT_TIME, ENTRY_HEADER_SIZE

MOST_BYTES = 16 << 10
"""A larger frame isn't part of a run: what its entry costs is its bytes."""

MOST_SEARCHED = 512
"""Bytes of an entry, on average, up to which one search of a whole run for delivery times is
cheaper than a look at the metadata of each entry."""

_FRAME_HEAD = Struct(">IIH")
_SIZE = Struct(">I")
_SMALLEST_FRAME = 4 + 4 + 9 + ENTRY_HEADER_SIZE
"""Bytes: sizes, a command with an id of one byte, and the header of an entry."""


class SendRun(NamedTuple):
    """SENDs with consecutive sequence ids, and nothing in them but the ids and, if it isn't one,
    the number of messages."""

    producer_id: int
    first_sequence_id: int
    messages: int
    """The number of messages of each entry."""
    entries: list[bytes]
    size: int
    """Bytes of all entries."""
    may_be_delayed: bool
    """Whether an entry may have a delivery time; false: none has."""


@lru_cache(maxsize=64)
def _heads(command_size: int) -> Struct:
    """A frame's size, and the magic, checksum and metadata size of its entry."""
    return Struct(f">I{4 + command_size}xHII")


class _First(NamedTuple):
    """The first frame of a run; ``after`` are the bytes of the command after the sequence id."""

    size: int
    producer_id: int
    sequence_id: int
    messages: int
    after: bytes


def _first_of_run(data: bytearray, start: int, end: int, limit: int) -> _First | None:
    """The frame at ``start``; None unless a run may begin with it and another frame of its producer
    follows."""
    if end - start < 2 * _SMALLEST_FRAME:
        return None
    size, command_size, kind = _FRAME_HEAD.unpack_from(data, start)
    if kind != SEND or size > limit or size + 4 + _SMALLEST_FRAME > end - start:
        return None
    if data[start + 12] != 8 or data[start + 13] > 127 or data[start + 14] != 16:
        return None
    stop = min(start + 8 + command_size, end)
    sequence_id, at = varint_within(data, start + 15, stop)
    follows = start + 4 + size
    if data[follows + 13] != data[start + 13] or (data[follows + 15] ^ (sequence_id + 1)) & 127:
        # Usually another producer's, since producers take turns on a connection, or the next batch
        # of a client that numbers messages, so that ids of batches have gaps.
        return None
    after, messages = bytes(data[at:stop]), 1
    if after:
        messages, at = varint_within(data, at + 1, stop)
    if at != stop or messages < 1 or sequence_id < 0 or after[:1] not in (b"", b"\x18"):
        return None
    return _First(size, data[start + 13], sequence_id, messages, after)


def read_run(
    data: bytearray, view: memoryview, start: int, end: int, limit: int
) -> tuple[SendRun, int] | None:
    """The run that begins at ``data[start]`` and ends before ``end``, and the index after it.

    None if no run begins there. ``view`` is a view of ``data``; a frame of more than ``limit``
    bytes ends the run.
    """
    limit = min(limit, MOST_BYTES)
    first = _first_of_run(data, start, end, limit)
    if first is None:
        return None
    entries: list[bytes] = []
    at, sequence_id, after = start, first.sequence_id, first.after
    while (count := min(128 - (sequence_id & 127), (end - at) // (first.size + 4))) > 0:
        numbers = consecutive(sequence_id, count)
        body = 3 + len(numbers[0]) + len(after)
        before = b"%b\x08\x06\x32%c\x08%c\x10" % (_SIZE.pack(body + 4), body, first.producer_id)
        commands = [before + number + after for number in numbers]
        at = _read_alike(data, view, at, end, limit, commands, entries)
        sequence_id += count
        if sequence_id - first.sequence_id != len(entries):
            break
    if not entries:
        return None
    size = sum(map(len, entries))
    searched = size < MOST_SEARCHED * len(entries)
    may_be_delayed = not searched or data.find(DELIVER_AT_TIME, start, at) >= 0
    run = SendRun(
        first.producer_id, first.sequence_id, first.messages, entries, size, may_be_delayed
    )
    return run, at


def _read_alike(
    data: bytearray,
    view: memoryview,
    at: int,
    end: int,
    limit: int,
    commands: list[bytes],
    entries: list[bytes],
) -> int:
    """Add the entries of whole frames with these commands, in turn; returns where they end.

    ``commands`` have one length, and begin with it. The first other frame ends it.
    """
    entry_at = 4 + len(commands[0])
    checked_at = entry_at + 6
    payload_at = entry_at + ENTRY_HEADER_SIZE
    last = end - payload_at
    head, starts_with, add = _heads(entry_at - 8).unpack_from, data.startswith, entries.append
    for command in commands:
        if at > last or not starts_with(command, at + 4):
            return at
        size, magic, checksum, metadata_size = head(data, at)
        stop = at + 4 + size
        if (
            stop > end
            or size > limit
            or magic != CHECKSUM_MAGIC
            or metadata_size > stop - at - payload_at
            or crc32c(view[at + checked_at : stop]) != checksum
        ):
            return at
        add(bytes(view[at + entry_at : stop]))
        at = stop
    return at


def send_receipts(
    producer_id: int, first_sequence_id: int, ledger_id: int, first_entry_id: int, count: int
) -> bytes:
    """The frames of ``count`` SEND_RECEIPTs, with consecutive sequence ids and entry ids."""
    numbers = consecutive(first_sequence_id, count)
    entry_ids = consecutive(first_entry_id, count)
    sizes = len(numbers[0]), len(entry_ids[0])
    if sizes != (len(numbers[-1]), len(entry_ids[-1])):
        ids = zip(range(first_sequence_id, first_sequence_id + count), count_from(first_entry_id))
        return b"".join(send_receipt(producer_id, number, ledger_id, at) for number, at in ids)
    before, between = around_ids(producer_id, ledger_id, *sizes, 0)
    parts = [before, b"", between, b""] * count
    parts[1::4] = numbers
    parts[3::4] = entry_ids
    return b"".join(parts)
