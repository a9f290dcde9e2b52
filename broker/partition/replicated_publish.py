"""Entries that replicators of other clusters send to a partition, and their receipts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from velaray.actors.machine import Reason
from velaray.actors.partition.ledger_table import LedgerTable
from velaray.actors.partition.machine import Chunk, Publish, Replicated
from velaray.actors.partition.origins import NOWHERE
from velaray.actors.partition.remote_transactions import remote_id
from velaray.events.ids import Position
from velaray.journal.manifest import cluster_number_of
from velaray.topology.config import ClusterConfig
from velaray.topology.rpc import RemoteError
from velaray.wire.commands import send_receipt
from velaray.wire.errors import MalformedEntryError
from velaray.wire.messages import open_entry
from velaray.wire.plausible import count_in
from velaray.wire.pulsar_pb2 import MessageMetadata
from velaray.wire.replication import (
    SOURCE_POSITION,
    MalformedReplication,
    parse_source_position,
)
from velaray.wire.stamping import transaction_of


class Log(Protocol):
    """What `replicated_publish` needs of a partition."""

    config: ClusterConfig

    def table(self, compacted: bool = False) -> LedgerTable:
        """Return the position of every entry."""


class Receipts:
    """The receipts for one replicator's entries. The receipt of the last entry of a run stands for
    the whole run."""

    def __init__(self, producer_id: int, write: Callable[[bytes], None]) -> None:
        self._producer_id = producer_id
        self._write = write
        self._last: tuple[int, Position] | None = None

    def add(self, sequence_id: int, position: Position) -> None:
        """Note that the next entry is durable; `NOWHERE` for a duplicate."""
        if self._last is None:
            asyncio.get_running_loop().call_soon(self.send)
        elif (self._last[1] == NOWHERE) != (position == NOWHERE):
            self._write_last(*self._last)  # a run has only duplicates or none
        self._last = sequence_id, position

    def send(self) -> None:
        """Send the receipts of all entries that are durable now, before any later answer."""
        if self._last is not None:
            self._write_last(*self._last)
            self._last = None

    def _write_last(self, sequence_id: int, position: Position) -> None:
        self._write(send_receipt(self._producer_id, sequence_id, *position))


def read_replicated(entry: bytes) -> tuple[MessageMetadata, int]:
    """The metadata of a replicator's entry, and the start of its payload. Raises `RemoteError`
    (INVALID)."""
    try:
        return open_entry(entry)
    except MalformedEntryError as error:
        raise RemoteError(
            Reason.INVALID, f"the replicator sent an invalid entry: {error}"
        ) from error


def replicated_publish(
    partition: Log,
    source: str,
    metadata: MessageMetadata,
    entry: bytes,
    size: int,
    after: Position | None,
) -> Publish:
    """The command that stores an entry of cluster ``source``, which was sent just after the one at
    ``after``; its payload has ``size`` bytes.

    Raises `RemoteError`: INVALID if the entry has no source position, NOT_ALLOWED if its cluster
    has this cluster's number.
    """
    try:
        position, transaction = _source_position(source, metadata), transaction_of(metadata)
        if transaction is not None:
            transaction = remote_id(source, transaction)
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
        count_in(metadata, size),
        entry,
        True,
        chunk,
        transaction=transaction,
        replicated=tuple.__new__(Replicated, (source, position, after)),  # for every entry
        exact=True,  # whatever its producer is: its own cluster has checked for duplicates
    )


def _check_number(partition: Log, source: str, position: Position) -> None:
    number, own = cluster_number_of(position.ledger_id), partition.config.cluster_number
    if number == own or partition.table().may_hold(position.ledger_id):
        problem = (
            f"the entry at {position.ledger_id}:{position.entry_id} of cluster {source!r} could be "
            f"one of this cluster, {partition.config.name!r}: both have the number {own}. Start "
            "clusters that replicate to each other with different --cluster-number"
        )
        raise RemoteError(Reason.NOT_ALLOWED, problem)


def _source_position(source: str, metadata: MessageMetadata) -> Position:
    if metadata.replicated_from != source:
        stamp = metadata.replicated_from
        raise MalformedReplication(f"replicated_from must be {source!r}, not {stamp!r}")
    for item in metadata.properties:
        if item.key == SOURCE_POSITION:
            return parse_source_position(item.value)
    raise MalformedReplication(f"it has no property {SOURCE_POSITION}")
