"""Transfer of producers' states from another cluster, with their sequence ids: part of a
partition's state.

A producer that continues here with its sequence ids sends all messages without a receipt again, and
these duplicates must be recognised. So the other cluster's state of the producer is *adopted*:
merged into the state here. The merged state only grows: adopting it again, or an older one, changes
nothing.

Command: `AdoptProducers`. Events: ProducerRegistered, ProducerAdopted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from google.protobuf.message import Message

from velaray.actors.machine import Decision, Reason, refuse
from velaray.actors.partition.interleaving import WINDOW, Interleaving
from velaray.actors.partition.producer_state import Producer
from velaray.actors.partition.skipped_sequence_ids import Skipped
from velaray.actors.partition.state import PartitionState
from velaray.actors.sets.offset_sets import Range
from velaray.actors.sets.ranges import RangeSet
from velaray.events.events_pb2 import InterleavedEntries, ProducerAdopted, ProducerRegistered


class ProducerRow(NamedTuple):
    """The state of one producer to adopt; sequence ids are -1 where there is none.

    ``chunk`` is the incompletely stored message: sequence id, uuid, last chunk. ``interleaved`` are
    the floor and the newest entries, (first, highest), as in
    `velaray.actors.partition.interleaving`; ``skipped`` the ids that may still arrive, as in
    `velaray.actors.partition.skipped_sequence_ids`.
    """

    name: str
    at_ms: int
    last_sequence_id: int
    chunk: tuple[int, str, int] = (-1, "", -1)
    interleaved: tuple[int, Sequence[tuple[int, int]]] | None = None
    skipped: Sequence[Range] = ()


@dataclass(frozen=True, slots=True)
class AdoptProducers:
    """Merge the states in ``rows`` into those of producers. Reply: `Adopted`.

    With ``origin``: use the sequence ids in replicated entries of that cluster, in case it can't be
    reached. Refused INVALID if a row is malformed.
    """

    rows: Sequence[ProducerRow] = ()
    origin: str = ""


@dataclass(frozen=True, slots=True)
class Adopted:
    """The number of producers whose state changed."""

    producers: int


def row_of(producer: Producer) -> ProducerRow:
    """The state of a producer, for another partition to adopt."""
    chunk = (producer.chunk_sequence_id, producer.chunk_uuid, producer.chunk_id)
    known = producer.interleaving
    interleaved = None if known is None else (known.floor, list(known.entries.items()))
    skipped = tuple(producer.skipped or ())
    last = producer.last_sequence_id
    return ProducerRow(producer.name, producer.at_ms, last, chunk, interleaved, skipped)


def without_skipped(producer: Producer) -> ProducerAdopted:
    """The event that sets a producer's state, without skipped ids."""
    return _event(producer.index, row_of(producer)._replace(skipped=()))


def plain_rows(state: PartitionState) -> list[list[Any]]:
    """The rows of this cluster's producers, for `read_rows` in another cluster. Versions without
    skipped ids read the rows without any."""
    return [list(row if row.skipped else row[:-1]) for row in rows_of(state)]


def rows_of(state: PartitionState, origin: str = "") -> list[ProducerRow]:
    """The rows of all producers of a cluster (empty: this one), in the order of their numbers."""
    numbered = (state.by_index[number] for number in sorted(state.by_index))
    return [row_of(known) for known in numbered if known.origin == origin]


def read_rows(rows: Sequence[Any]) -> list[ProducerRow]:
    """Rows from plain lists. Raises `ValueError` or `TypeError` if they are malformed."""
    found = []
    for name, at_ms, last, (sequence_id, uuid, chunk_id), interleaved, *rest in rows:
        entries = None
        if interleaved is not None:
            floor, pairs = interleaved
            entries = int(floor), [(int(first), int(highest)) for first, highest in pairs]
        chunk = int(sequence_id), str(uuid), int(chunk_id)
        skipped = tuple((int(first), int(end)) for first, end in rest[0]) if rest else ()
        found.append(ProducerRow(str(name), int(at_ms), int(last), chunk, entries, skipped))
    return found


def decide(state: PartitionState, command: AdoptProducers) -> Decision:
    """The decision on `AdoptProducers`."""
    rows = [*command.rows, *(rows_of(state, command.origin) if command.origin else ())]
    for row in rows:
        if not row.name or row.last_sequence_id < -1 or row.at_ms < 0:
            return refuse(Reason.INVALID, f"no such producer: {row.name!r}, {row[1:3]}")
    events: list[Message] = []
    number = state.next_producer
    adopted = 0
    for row in {row.name: row for row in rows}.values():
        known = state.producers.get(row.name)
        before = ProducerRow(row.name, 0, -1) if known is None else row_of(known)
        after = _merged(before, row)
        if after == before:
            continue
        adopted += 1
        if known is None:
            events.append(ProducerRegistered(producer=number, name=row.name, at_ms=row.at_ms))
        events.append(_event(number if known is None else known.index, after))
        number += known is None
    return Decision(tuple(events), Adopted(adopted))


def _merged(known: ProducerRow, told: ProducerRow) -> ProducerRow:
    last = max(known.last_sequence_id, told.last_sequence_id)
    interleaved = known.interleaved
    if told.interleaved is not None or interleaved is not None:
        interleaved = _union(_seen(known), _seen(told))
    chunk = max(known.chunk, told.chunk)
    if chunk[0] <= last:
        chunk = (-1, "", -1)
    merged = known._replace(
        last_sequence_id=last,
        chunk=chunk,
        interleaved=interleaved,
        skipped=_skipped_by_both(known, told, last),
    )
    if merged == known:
        return known  # a newer time of activity alone changes nothing
    return merged._replace(at_ms=max(known.at_ms, told.at_ms))


def _skipped_by_both(known: ProducerRow, told: ProducerRow, last: int) -> tuple[Range, ...]:
    """The skipped ids in both."""
    unseen = RangeSet([*known.skipped, (known.last_sequence_id + 1, last + 1)])
    also = [*told.skipped, (told.last_sequence_id + 1, last + 1)]
    return tuple(run for first, end in also for run in unseen.within(first, end))


def _seen(row: ProducerRow) -> tuple[int, Sequence[tuple[int, int]]]:
    return row.interleaved or (row.last_sequence_id + 1, ())


def _union(
    known: tuple[int, Sequence[tuple[int, int]]], told: tuple[int, Sequence[tuple[int, int]]]
) -> tuple[int, Sequence[tuple[int, int]]]:
    """The ids that were seen in either, within the window; in the former's order if it has them
    all."""
    floor, entries = max(known[0], told[0]), dict(known[1])
    new = {first: highest for first, highest in told[1] if first >= floor}
    if floor == known[0] and new.keys() <= entries.keys():
        return known
    merged = sorted((new | entries).items())
    forgotten = merged[:-WINDOW]
    if forgotten:
        floor = max(floor, forgotten[-1][0] + 1)
    return floor, merged[-WINDOW:]


def _event(number: int, row: ProducerRow) -> ProducerAdopted:
    event = ProducerAdopted(
        producer=number,
        at_ms=row.at_ms,
        last_sequence_id=row.last_sequence_id,
        chunk_sequence_id=row.chunk[0],
        chunk_uuid=row.chunk[1],
        chunk_id=row.chunk[2],
    )
    if row.interleaved is not None:
        floor, entries = row.interleaved
        first, highest = [each[0] for each in entries], [each[1] for each in entries]
        event.interleaved.CopyFrom(InterleavedEntries(floor=floor, first=first, highest=highest))
    event.skipped_first.extend(first for first, _ in row.skipped)
    event.skipped_end.extend(end for _, end in row.skipped)
    return event


def evolve(producer: Producer, event: ProducerAdopted) -> None:
    """Set the producer's state."""
    producer.at_ms = event.at_ms
    producer.last_sequence_id = event.last_sequence_id
    producer.chunk_sequence_id = event.chunk_sequence_id
    producer.chunk_uuid = event.chunk_uuid
    producer.chunk_id = event.chunk_id
    runs = zip(event.skipped_first, event.skipped_end, strict=True)
    producer.skipped = Skipped(runs) if event.skipped_first else None
    if event.HasField("interleaved"):
        entries = event.interleaved
        pairs = dict(zip(entries.first, entries.highest, strict=True))
        producer.interleaving = Interleaving(entries.floor, pairs)
