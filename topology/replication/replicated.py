"""What replicators of other clusters send to a partition: entries, and markers beside them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from velaray.actors.foreign_transactions import foreign_id
from velaray.actors.machine import Reason
from velaray.actors.origins import NOWHERE
from velaray.actors.partition import Chunk, Publish, Replicated
from velaray.events.ids import Position
from velaray.journal.manifest import cluster_number_of
from velaray.topology.links import RemoteError
from velaray.topology.replication.foreign_transactions import take_complete
from velaray.wire.commands import send_receipt
from velaray.wire.errors import MalformedEntryError
from velaray.wire.messages import open_entry
from velaray.wire.pulsar_pb2 import MessageMetadata
from velaray.wire.replication import (
    SOURCE_POSITION,
    MalformedReplication,
    Marker,
    parse_source_position,
)
from velaray.wire.stamping import transaction_of

if TYPE_CHECKING:
    from velaray.topology.partition_body import PartitionBody

Marked = Callable[["PartitionBody", str, bytes], Awaitable[None]]
"""Takes in the payload of a marker of a cluster; all it says is durable when it returns."""


async def take_progress(partition: PartitionBody, source: str, payload: bytes) -> None:
    """A part of the progress of a subscription."""
    await partition.progress.take(source, payload)


async def take_request(partition: PartitionBody, source: str, payload: bytes) -> None:
    """A cluster asks where this one is."""
    partition.snapshots.on_request(source, payload)


async def take_response(partition: PartitionBody, source: str, payload: bytes) -> None:
    """A cluster says where it is."""
    partition.snapshots.on_response(source, payload)


async def take_update(partition: PartitionBody, source: str, payload: bytes) -> None:
    """A subscription of another cluster has got everything up to some place."""
    await partition.snapshots.on_update(source, payload)


class Receipts:
    """Of the entries of one replicator. It is answered a run of them by the receipt of the last."""

    def __init__(self, producer_id: int, write: Callable[[bytes], None]) -> None:
        self._producer_id = producer_id
        self._write = write
        self._last: tuple[int, Position] | None = None

    def add(self, sequence_id: int, position: Position) -> None:
        """The next entry is durable; at `NOWHERE` if it was there before."""
        if self._last is None:
            asyncio.get_running_loop().call_soon(self.send)
        elif (self._last[1] == NOWHERE) != (position == NOWHERE):
            self._write_last(*self._last)  # runs are of either
        self._last = sequence_id, position

    def send(self) -> None:
        """Tell of those that are durable now: whatever is said next is to be behind that."""
        if self._last is not None:
            self._write_last(*self._last)
            self._last = None

    def _write_last(self, sequence_id: int, position: Position) -> None:
        self._write(send_receipt(self._producer_id, sequence_id, *position))


MARKERS: dict[int, Marked] = {
    Marker.PROGRESS: take_progress,
    Marker.SNAPSHOT_REQUEST: take_request,
    Marker.SNAPSHOT_RESPONSE: take_response,
    Marker.UPDATE: take_update,
    Marker.TRANSACTIONS_COMPLETE: take_complete,
}
"""The kinds of markers that partitions understand."""


def read_replicated(entry: bytes) -> tuple[MessageMetadata, int]:
    """The metadata of what a replicator sent, and where its payload begins. Raises `RemoteError`
    (INVALID)."""
    try:
        return open_entry(entry)
    except MalformedEntryError as error:
        raise RemoteError(Reason.INVALID, f"what the replicator sent: {error}") from error


def marker(metadata: MessageMetadata) -> Marked:
    """Who takes in a marker. Raises `RemoteError` (NOT_ALLOWED) if nobody does."""
    found = MARKERS.get(metadata.marker_type)
    if found is None:
        why = f"markers of type {metadata.marker_type} aren't understood here"
        raise RemoteError(Reason.NOT_ALLOWED, why)
    return found


def replicated_publish(
    partition: PartitionBody,
    source: str,
    metadata: MessageMetadata,
    entry: bytes,
    after: Position | None,
) -> Publish:
    """The command that stores an entry of ``source``, sent just behind the one at ``after``.

    Raises `RemoteError`: INVALID if the entry doesn't say where it is from, NOT_ALLOWED if it
    is from a cluster with this one's number.
    """
    try:
        position, transaction = _source_position(source, metadata), transaction_of(metadata)
        if transaction is not None:
            transaction = foreign_id(source, transaction)
    except ValueError as error:
        raise RemoteError(Reason.INVALID, f"an entry of cluster {source!r}: {error}") from error
    if after is None or after.ledger_id != position.ledger_id:
        _check_number(partition, source, position)
    chunk = None
    if metadata.num_chunks_from_msg > 1:
        chunk = Chunk(metadata.uuid, metadata.chunk_id, metadata.num_chunks_from_msg)
    return Publish(
        metadata.producer_name,
        metadata.sequence_id,
        metadata.highest_sequence_id,
        metadata.num_messages_in_batch,
        entry,
        True,
        chunk,
        transaction=transaction,
        replicated=tuple.__new__(Replicated, (source, position, after)),  # for every entry
    )


def _check_number(partition: PartitionBody, source: str, position: Position) -> None:
    number, own = cluster_number_of(position.ledger_id), partition.config.cluster_number
    if number == own or partition.table().may_hold(position.ledger_id):
        why = (
            f"the entry at {position.ledger_id}:{position.entry_id} of cluster {source!r} could be "
            f"one of this cluster, {partition.config.name!r}: both have the number {own}. Start "
            "clusters that replicate to each other with different --cluster-number"
        )
        raise RemoteError(Reason.NOT_ALLOWED, why)


def _source_position(source: str, metadata: MessageMetadata) -> Position:
    if metadata.replicated_from != source:
        stamp = metadata.replicated_from
        raise MalformedReplication(f"replicated_from must be {source!r}, not {stamp!r}")
    for item in metadata.properties:
        if item.key == SOURCE_POSITION:
            return parse_source_position(item.value)
    raise MalformedReplication(f"it has no property {SOURCE_POSITION}")
