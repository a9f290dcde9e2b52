"""Events to bytes and back.

The byte form of an event is the protobuf form of an ``Event`` message with one arm set:
a tag that carries the event's stable number, a length, the event itself. It is written
without building the envelope, since that would copy every event once more.
"""

from __future__ import annotations

from collections.abc import Sequence

from google.protobuf.message import DecodeError, Message

from velaray.events import events_pb2
from velaray.events.events_pb2 import EntriesAppended, EntryAppended
from velaray.events.events_pb2 import Event as EventEnvelope
from velaray.events.varints import varint

_LENGTH_DELIMITED = 2
_VARINT_BYTES = 5
_MORE = 0x80
"""The bit of a varint's byte which says that another one follows."""


class UnknownEventError(ValueError):
    """A record holds an event type that this version doesn't know; it is never skipped."""


class MalformedEventError(ValueError):
    """A record's bytes are not an event."""


_SHORT = [varint(size) for size in range(256)]


def _read_varint(raw: bytes, start: int) -> tuple[int, int]:
    """The varint of ``raw`` at ``start``, in its shortest spelling, and where it ends."""
    value = shift = 0
    for end in range(start, min(start + _VARINT_BYTES, len(raw))):
        byte = raw[end]
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < _MORE:
            if byte == 0 and end > start:
                break
            return value, end + 1
    raise MalformedEventError(f"no event in {bytes(raw[:16])!r}")


def _by_number() -> dict[int, type[Message]]:
    types: dict[int, type[Message]] = {}
    for field in EventEnvelope.DESCRIPTOR.fields:
        assert field.message_type is not None
        types[field.number] = getattr(events_pb2, field.message_type.name)
    return types


_TYPES = _by_number()
_TAGS: dict[type[Message], bytes] = {
    event: varint(number << 3 | _LENGTH_DELIMITED) for number, event in _TYPES.items()
}
_NESTED = frozenset(
    event
    for event in _TYPES.values()
    if any(field.message_type is not None for field in event.DESCRIPTOR.fields)
)
"""The types whose fields aren't all scalar: only maps have an order that must be determined."""
_BY_TAG: dict[int, type[Message]] = {
    number << 3 | _LENGTH_DELIMITED: event for number, event in _TYPES.items()
}
_BY_TWO_BYTES = {tag: event for event, tag in _TAGS.items() if len(tag) == 2}


def event_types() -> dict[int, type[Message]]:
    """Every event type by its stable number."""
    return dict(_TYPES)


def encode(event: Message) -> bytes:
    """The byte form of ``event``.

    Equal events have equal bytes. Raises `UnknownEventError` if it is not a journaled event.
    """
    kind = type(event)
    tag = _TAGS.get(kind)
    if tag is None:
        raise UnknownEventError(
            f"{type(event).__name__} is not a journaled event; add it to events.proto"
        )
    if kind in _NESTED:
        body = event.SerializeToString(deterministic=True)
    else:
        body = event.SerializeToString()  # the same bytes, without an argument to read
    size = len(body)
    return tag + (_SHORT[size] if size < len(_SHORT) else varint(size)) + body


def encode_run(
    kind: type[Message], before: bytes, different: Sequence[bytes], after: bytes
) -> list[bytes]:
    """The byte forms of events of one kind that differ in a part of their bytes only.

    ``before`` and ``after`` are the bytes of the fields around that part.
    """
    tag, common = _TAGS[kind], len(before) + len(after)
    heads = {size: tag + varint(common + size) + before for size in set(map(len, different))}
    return [heads[len(each)] + each + after for each in different]


def _read_head(raw: bytes) -> tuple[type[Message], int, int]:
    """The type of an event, its length, and where it starts. Raises as `decode`."""
    tag, start = _read_varint(raw, 0)
    length, start = _read_varint(raw, start)
    kind = _BY_TAG.get(tag)
    if kind is None:
        raise UnknownEventError(
            f"unknown event type {tag >> 3}: written by a newer version? Upgrade velaray to read it"
        )
    return kind, length, start


def decode(raw: bytes) -> Message:
    """The event in ``raw``.

    Raises `UnknownEventError` for an event type this version doesn't know and
    `MalformedEventError` for bytes that are no event.
    """
    kind = _BY_TWO_BYTES.get(raw[:2])
    if kind is not None and len(raw) > 2 and raw[2] < _MORE:  # as in most records
        length, start = raw[2], 3
    else:
        kind, length, start = _read_head(raw)
    if start + length != len(raw):
        raise MalformedEventError(
            f"{kind.__name__}: {len(raw) - start} bytes, the record says {length}"
        )
    try:
        return kind.FromString(raw[start:])
    except DecodeError as error:
        raise MalformedEventError(f"{kind.__name__}: {error}") from error


def decode_entries(raw: Sequence[bytes]) -> Sequence[EntryAppended]:
    """The events of entries, with one call for all; each of ``raw`` holds one.

    Raises as `decode`, and `MalformedEventError` for an event of another type.
    """
    try:
        entries = EntriesAppended.FromString(b"".join(raw)).entries
    except DecodeError as error:
        raise MalformedEventError(f"EntryAppended: {error}") from error
    if len(entries) != len(raw):
        kinds = {type(decode(each)).__name__ for each in raw}
        raise MalformedEventError(f"expected EntryAppended alone, found {sorted(kinds)}")
    return entries
