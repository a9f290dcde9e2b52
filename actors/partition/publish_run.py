"""Runs of entries that one producer publishes in the order of their sequence ids.

The decision on a run, and its effect on the state, are those of its entries one by one. Only the
usual case is decided here: every id follows the previous one, and nothing in the state concerns the
entries or their producer. The events in the journal are the same, too: an EntryAppended each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from velaray.actors.machine import RunDecision
from velaray.actors.partition.state import PartitionState
from velaray.events.codec import encode_run
from velaray.events.events_pb2 import EntryAppended
from velaray.events.ids import INT64_MAX, Position
from velaray.events.varints import consecutive

_SEQUENCE_ID = bytes((EntryAppended.SEQUENCE_ID_FIELD_NUMBER << 3,))


@dataclass(slots=True)
class PublishRun:
    """Append entries with consecutive sequence ids, none of them delayed, a chunk, or part of a
    transaction. ``messages`` is the number of messages of each. Reply: `PublishedRun`."""

    producer: str
    first_sequence_id: int
    messages: int
    blobs: Sequence[bytes]


class PublishedRun(NamedTuple):
    """The entries are stored from this position on, all in one ledger."""

    offset: int
    position: Position


@dataclass(frozen=True, slots=True)
class EntriesAppended:
    """An EntryAppended for each of ``count`` consecutive sequence ids."""

    producer: int
    first_sequence_id: int
    count: int
    messages: int
    at_ms: int

    def encode(self) -> list[bytes]:
        """The byte form of each event."""
        shown = self.messages if self.messages > 1 else 0
        before = EntryAppended(producer=self.producer).SerializeToString()
        after = EntryAppended(messages=shown, at_ms=self.at_ms).SerializeToString()
        ids = consecutive(self.first_sequence_id, self.count)
        if self.first_sequence_id:
            return encode_run(EntryAppended, before + _SEQUENCE_ID, ids, after)
        return [
            *encode_run(EntryAppended, before, [b""], after),  # protobuf omits a field that is 0
            *encode_run(EntryAppended, before + _SEQUENCE_ID, ids[1:], after),
        ]


def decide(state: PartitionState, run: PublishRun, now_ms: int) -> RunDecision | None:
    """The decision on a run; None: decide its entries one by one."""
    producer = state.producers.get(run.producer)
    if (
        producer is None
        or run.first_sequence_id != producer.last_sequence_id + 1
        or run.first_sequence_id > INT64_MAX - len(run.blobs)
        or producer.interleaving is not None
        or (producer.skipped is not None and producer.skipped.end > run.first_sequence_id)
        or producer.chunk_sequence_id >= 0
    ):
        return None
    if state.fence.up or state.terminated or state.unsettled or run.messages < 1:
        return None
    position = state.table.next_position()
    if position is None:
        return None
    count = len(run.blobs)
    events = EntriesAppended(producer.index, run.first_sequence_id, count, run.messages, now_ms)
    return RunDecision(events, PublishedRun(state.table.end_offset, position), run.blobs)


def evolve(state: PartitionState, events: EntriesAppended) -> None:
    """Apply the events that `decide` produced."""
    state.table.end_offset += events.count
    producer = state.by_index[events.producer]
    producer.at_ms = events.at_ms
    producer.last_sequence_id = events.first_sequence_id + events.count - 1
