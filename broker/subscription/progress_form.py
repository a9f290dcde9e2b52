"""The forms of a subscription's progress: those of replicators, and those of messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError

from velaray.actors.machine import Reason
from velaray.actors.subscription.cursor import mask_to_words, words_to_mask
from velaray.actors.subscription.remote_progress import (
    LAST_ENTRY,
    NOWHERE,
    Ahead,
    EntryCount,
    EntryMask,
    EntryRange,
)
from velaray.broker.subscription.messages import Progress
from velaray.events.ids import Position
from velaray.topology.rpc import RemoteError
from velaray.wire.replication import REPLICATOR_PREFIX
from velaray.wire.replication_pb2 import OriginProgress, SubscriptionProgress


@dataclass(frozen=True, slots=True)
class Part:
    """The content of one `SubscriptionProgress`, by origin."""

    subscription: str
    properties: dict[str, str]
    origins: dict[str, Ahead]


def read_part(source: str, raw: bytes) -> Part:
    """A part of the progress of a subscription of ``source``.

    Raises `RemoteError`: INVALID if it can't be read, NOT_ALLOWED for a replicator's.
    """
    try:
        told = SubscriptionProgress.FromString(raw)
        if not told.IsInitialized() or not told.subscription:
            raise DecodeError("the subscription's name or a position is missing")
    except DecodeError as error:
        problem = f"progress of a subscription of cluster {source!r}: {error}"
        raise RemoteError(Reason.INVALID, problem) from error
    if told.subscription.startswith(REPLICATOR_PREFIX):
        problem = f"{told.subscription!r} of cluster {source!r} is a replicator: it has no progress"
        raise RemoteError(Reason.NOT_ALLOWED, problem)
    origins: dict[str, Ahead] = {}
    for each in told.origins:
        progress = _read_origin(each)
        before = origins.get(each.cluster)
        origins[each.cluster] = progress if before is None else _joined(before, progress)
    return Part(told.subscription, dict(told.properties), origins)


def _read_origin(told: OriginProgress) -> Ahead:
    up_to = NOWHERE
    if told.HasField("up_to"):
        up_to = Position(told.up_to.ledger_id, told.up_to.entry_id)
    ranges = (
        EntryRange(each.ledger, each.first_entry, min(each.last_entry, LAST_ENTRY) + 1)
        for each in told.acked
    )
    partial = (
        EntryMask(each.ledger, each.entry, words_to_mask(each.remaining)) for each in told.partial
    )
    counts = (
        EntryCount(
            each.entries.ledger,
            each.entries.first_entry,
            min(each.entries.last_entry, LAST_ENTRY) + 1,
            each.times,
        )
        for each in told.delivered
    )
    return Ahead(
        up_to,
        tuple(each for each in ranges if each.first < each.end),
        tuple(each for each in partial if each.entry_id <= LAST_ENTRY),
        tuple(each for each in counts if each.first < each.end and each.times),
    )


def _joined(one: Ahead, other: Ahead) -> Ahead:
    return Ahead(
        max(one.up_to, other.up_to),
        (*one.ranges, *other.ranges),
        (*one.partial, *other.partial),
        (*one.counts, *other.counts),
    )


def to_args(
    ranges: Sequence[Sequence[int]],
    partial: Sequence[Sequence[int]],
    counts: Sequence[Sequence[int]],
) -> tuple[list[Any], list[Any], list[Any]]:
    """The form in messages: masks become words, as they may exceed 64 bits."""
    parts = [[*where, mask_to_words(mask)] for *where, mask in partial]
    return [list(each) for each in ranges], parts, [list(each) for each in counts]


def from_args(
    ranges: Sequence[Any], partial: Sequence[Any], counts: Sequence[Any]
) -> tuple[list[Any], list[Any], list[Any]]:
    """The inverse of `to_args`."""
    parts = [(*where, words_to_mask(words)) for *where, words in partial]
    return [tuple(each) for each in ranges], parts, [tuple(each) for each in counts]


def ahead_to(ahead: Ahead) -> Progress:
    """The form of ``ahead`` in messages."""
    ranges, partial, counts = to_args(ahead.ranges, ahead.partial, ahead.counts)
    return (ahead.up_to.ledger_id, ahead.up_to.entry_id), ranges, partial, counts


def ahead_from(raw: Sequence[Any]) -> Ahead:
    """The inverse of `ahead_to`."""
    up_to, *rest = raw
    ranges, partial, counts = from_args(*rest)
    return Ahead(
        Position(*up_to),
        tuple(EntryRange(*each) for each in ranges),
        tuple(EntryMask(*each) for each in partial),
        tuple(EntryCount(*each) for each in counts),
    )


def all_ahead_to(ahead: Mapping[str, Ahead]) -> dict[str, Progress]:
    """The same, by origin."""
    return {origin: ahead_to(each) for origin, each in ahead.items()}
