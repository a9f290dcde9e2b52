"""Bounds of a reader's next step."""

from __future__ import annotations

from dataclasses import dataclass

from velaray.client.message_id import MessageId
from velaray.events.ids import MessageId as StoredId
from velaray.events.ids_pb2 import MessageIdData
from velaray.wire import pulsar_pb2 as pb


@dataclass(frozen=True, slots=True)
class SpanLimits:
    """Limits of a step; 0 is no limit. With ``some`` a step contains at least one entry.

    Limits apply to entries: a step contains a whole batch or none of it.
    """

    messages: int = 0
    bytes: int = 0
    some: bool = False
    until: MessageId | None = None


@dataclass(frozen=True, slots=True)
class Spot:
    """The end of a step in one topic partition: behind the entry of ``after``.

    ``entries`` counts all entries that the partition ever had up to here; None: not known yet. The
    chunks of messages that are incomplete here begin after ``chunks_after``; None if there are
    none. ``given_up``: a chunked message began too far back, here or before.
    """

    after: MessageId
    entries: int | None = None
    chunks_after: MessageId | None = None
    given_up: bool = False


@dataclass(frozen=True, slots=True)
class Span:
    """The next step: up to ``end``, which is its start if the step is empty.

    ``more``: the limits excluded entries. ``messages`` and ``bytes`` (of entries) are 0 without
    limits. ``unfinished``: the service stopped the search early; ask again from ``end``. ``torn``
    is the end of a chunked message that began too far back to fit into a step. ``incarnation``
    distinguishes subscriptions of the same name. ``passed`` counts entries after the start that the
    subscription doesn't keep, ``trimmed`` those that were trimmed. ``foreign``: the start belongs
    to a deleted topic of the same name.
    """

    end: Spot
    messages: int
    bytes: int
    more: bool
    unfinished: bool
    torn: MessageId | None
    incarnation: int
    passed: int
    trimmed: int
    foreign: bool


def to_proto(start: Spot, limits: SpanLimits) -> pb.SpanRequest:
    """Build the request for the step that begins at ``start``."""
    request = pb.SpanRequest(
        after=_entry(start.after),
        messages=limits.messages,
        bytes=limits.bytes,
        some=limits.some,
        entries=start.entries,
        given_up=start.given_up,
    )
    if limits.until is not None:
        request.until.CopyFrom(_entry(limits.until))
    if start.chunks_after is not None:
        request.chunks_after.CopyFrom(_entry(start.chunks_after))
    return request


def from_proto(answer: pb.Span, start: Spot, topic: str) -> Span:
    """Read the response for the step that begins at ``start``."""

    def read(data: MessageIdData) -> MessageId:
        return MessageId.from_stored(StoredId.from_proto(data), topic)

    chunks = read(answer.chunks_after) if answer.HasField("chunks_after") else None
    return Span(
        Spot(read(answer.end), answer.entries, chunks, answer.given_up),
        answer.messages,
        answer.bytes,
        answer.more,
        answer.unfinished,
        read(answer.torn) if answer.HasField("torn") else None,
        answer.incarnation,
        answer.passed,
        answer.trimmed,
        answer.foreign,
    )


def _entry(message_id: MessageId) -> MessageIdData:
    return StoredId(message_id.ledger_id(), message_id.entry_id()).to_proto()
