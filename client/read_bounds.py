"""How far a reader that goes in steps may go in the next one."""

from __future__ import annotations

from dataclasses import dataclass

from velaray.client.message_id import MessageId
from velaray.events.ids import MessageId as StoredId
from velaray.events.ids_pb2 import MessageIdData
from velaray.wire import pulsar_pb2 as pb


@dataclass(frozen=True, slots=True)
class SpanLimits:
    """What a step may hold. 0 is no limit; with ``some`` it has one entry in any case.

    Limits hold to the entry: a batch of messages is read whole or not.
    """

    messages: int = 0
    bytes: int = 0
    some: bool = False
    until: MessageId | None = None


@dataclass(frozen=True, slots=True)
class Spot:
    """A place in one topic partition that a step ends at: behind the entry of ``after``.

    ``entries`` counts what the partition ever had up to there; None: not known yet. From behind
    ``chunks_after`` on are the chunks of messages that aren't complete here; None if there are
    none. ``given_up``: there was one that began too far back, here or before.
    """

    after: MessageId
    entries: int | None = None
    chunks_after: MessageId | None = None
    given_up: bool = False


@dataclass(frozen=True, slots=True)
class Span:
    """The next step: up to ``end``, which is where it began if there is nothing.

    ``more``: limits left something out. ``messages`` and ``bytes`` (of entries) are 0 unless there
    were any. ``unfinished``: the service stopped looking early, ask again from ``end``. ``torn``
    ends a chunked message that began too far back for a step to have it. ``incarnation`` tells
    subscriptions of the same name apart. ``passed`` counts entries after the start that the
    subscription doesn't keep, ``trimmed`` those that are gone; ``foreign``: the start isn't of
    this topic, but of one of this name that was deleted.
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
    """The request for the span that begins at ``start``."""
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
    """The answer for the span that begins at ``start``."""

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
