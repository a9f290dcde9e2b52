"""Bugs of checkpoints in segments, and of the segments that leave memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.sim.mutants.mutant import Mutant, do_nothing, do_nothing_async
from velaray.actors.dispatch.in_flight import InFlightTracker
from velaray.actors.runtime import Runtime
from velaray.actors.sets import acknowledged_ranges
from velaray.actors.sets.acknowledged_ranges import AcknowledgedRanges
from velaray.actors.subscription.machine import SubscriptionMachine
from velaray.broker.partition.channel.feed import DispatcherFeed
from velaray.broker.subscription.cursor_loading import CursorLoading
from velaray.journal import journal
from velaray.journal.journal import Journal


def _forget_what_changed(original: Any) -> Any:
    def changing(self: AcknowledgedRanges, number: int) -> Any:
        known = self._segments.get(number)
        stored = known.stored if known is not None else None
        segment = original(self, number)
        segment.stored = stored
        return segment

    return changing


def _let_go_of_what_is_not_stored(original: Any) -> Any:
    def evict(self: AcknowledgedRanges) -> None:
        for number, segment in list(self._recent.items()):
            if self.memory() > self._budget:
                segment.summary = self._summary(segment)
                segment.acked = segment.partial = segment.packed = None
                del self._recent[number]

    return evict


def _drop_the_segment_of_the_mark(original: Any) -> Any:
    def drop_before(self: AcknowledgedRanges, mark: int) -> None:
        original(self, -(-mark // self._size) * self._size)

    return drop_before


def _keep_passed_segments(original: Any) -> Any:
    def drop_before(self: AcknowledgedRanges, mark: int) -> None:
        original(self, mark - mark % self._size - self._size)

    return drop_before


def _copy_nothing(original: Any) -> Any:
    async def with_copies(self: Journal, segments: Any) -> Any:
        return segments

    return with_copies


def _name_the_byte_behind(original: Any) -> Any:
    def encode(header: Any, sequence: int, segments: Any, *others: Any) -> Any:
        moved = {
            name: kept if isinstance(kept, bytes) else replace(kept, offset=kept.offset + 1)
            for name, kept in segments.items()
        }
        return original(header, sequence, moved, *others)

    return encode


def _lose_parts_of_batches(original: Any) -> Any:
    def encode(acked: Any, partial: Any, size: int) -> bytes:
        return bytes(original(acked, partial[:-1], size))

    return encode


def _need_nothing(original: Any) -> Any:
    def needs(self: SubscriptionMachine, *asked: Any) -> tuple[()]:
        return ()

    return needs


def _overtake_parked_commands(original: Any) -> Any:
    def decide_or_park(self: Runtime[Any], command: Any, release: Any) -> None:
        now_ms = self._clock_ms()
        if self._loading is not None and not self._held and not self._missing(command, now_ms):
            self._decide(command, release, now_ms)
        else:
            original(self, command, release)

    return decide_or_park


MUTANTS: dict[str, Mutant] = {
    "miss-a-dirty-segment": Mutant(
        "a changed segment of acknowledged ranges counts as stored",
        ((AcknowledgedRanges, "_changing", _forget_what_changed),),
        within=50,
    ),
    "evict-dirty-segments": Mutant(
        "segments leave memory before a checkpoint has them",
        ((AcknowledgedRanges, "_evict", _let_go_of_what_is_not_stored),),
        within=50,
    ),
    "drop-the-segment-of-the-mark": Mutant(
        "a segment is dropped when the mark enters it, not when the mark has passed it",
        ((AcknowledgedRanges, "drop_before", _drop_the_segment_of_the_mark),),
        within=50,
    ),
    "keep-segments-below-the-mark": Mutant(
        "a segment stays after the mark has passed it",
        ((AcknowledgedRanges, "drop_before", _keep_passed_segments),),
        within=50,
    ),
    "refer-for-ever": Mutant(
        "segments in old ledgers are never copied to newer ones",
        ((Journal, "_with_copies", _copy_nothing),),
        within=100,
    ),
    "refer-to-the-byte-behind": Mutant(
        "a checkpoint refers to the byte behind a segment's place",
        ((journal, "encode_checkpoint", _name_the_byte_behind),),
        within=100,
    ),
    "lose-parts-of-batches": Mutant(
        "a checkpoint lacks the ack set of the last batch of a segment",
        ((acknowledged_ranges, "encode_segment", _lose_parts_of_batches),),
        within=100,
    ),
    "need-no-segment": Mutant(
        "a subscription's machine doesn't say which stored segments it needs",
        ((SubscriptionMachine, "needs", _need_nothing),),
        within=100,
    ),
    "request-no-segment": Mutant(
        "a dispatcher doesn't request the stored segments that it stops at",
        ((CursorLoading, "go_on", do_nothing),),
        within=50,
    ),
    "deliver-beyond-memory": Mutant(
        "a dispatcher delivers entries whose acknowledgements aren't in memory",
        ((InFlightTracker, "reach", lambda original: lambda self, offset: offset),),
        within=50,
    ),
    "request-no-hidden-entries": Mutant(
        "a partition doesn't load which of the next entries are hidden",
        ((DispatcherFeed, "_load_hidden", do_nothing_async),),
        within=200,
    ),
    "overtake-parked-commands": Mutant(
        "commands that need no stored segment are decided before earlier ones that do",
        ((Runtime, "_decide_or_park", _overtake_parked_commands),),
        within=100,
    ),
}
