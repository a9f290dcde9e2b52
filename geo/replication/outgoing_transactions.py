"""Requests of replicators and coordinators about transactions that go to other clusters.

See `velaray.actors.partition.outgoing_transactions`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any, Protocol, TypeVar

from velaray.actors.machine import Refusal
from velaray.actors.partition.outgoing_transactions import (
    ConfirmReplicated,
    NameParticipants,
    OutgoingTransaction,
)
from velaray.actors.partition.state import PartitionState
from velaray.actors.runtime import Runtime
from velaray.broker.partition import messages as partition_messages
from velaray.broker.partition.geo_replication import Handler, OutgoingReplication
from velaray.events.ids import Position, TransactionId
from velaray.geo.replication import messages as m
from velaray.topology.messages import Message
from velaray.topology.rpc import RemoteError

ResultT = TypeVar("ResultT")

AT_ONCE = 1000
"""The most transactions in one answer."""


class Partition(Protocol):
    """What these requests need of the partition."""

    topic: str
    runtime: Runtime[PartitionState]

    async def read_certain(self, query: Callable[[Any], ResultT]) -> ResultT:
        """Read the state of the newest activation."""


async def name_participants(
    partition: Partition,
    replication: OutgoingReplication,
    request: partition_messages.NameParticipants,
) -> None:
    """Store the participants, and notify replicators."""
    transaction = TransactionId(request.coordinator, request.sequence)
    await _ask(partition, NameParticipants(transaction, request.clusters))
    await partition.read_certain(lambda state: None)  # perhaps there was nothing to write
    replication.tell_transactions()


async def committed(
    partition: Partition, cluster: str, request: m.Committed
) -> m.CommittedTransactions:
    """Answer `Committed` of the replicator to a cluster."""

    def look(state: PartitionState) -> m.CommittedTransactions:
        found = list(islice(state.outgoing.after(request.after, cluster), AT_ONCE))
        named = []
        for number in request.unnamed:
            known = state.outgoing.by_number.get(number)
            topics = None if known is None else _topics(partition, known, cluster)
            if topics is not None:
                named.append((number, topics))
        return {
            "transactions": [
                (
                    each.number,
                    each.transaction,
                    each.last,
                    each.position,
                    _topics(partition, each, cluster),
                )
                for each in found
            ],
            "named": named,
            "complete": None if len(found) == AT_ONCE else _decided(state),
        }

    return await partition.runtime.read(look)


def _topics(partition: Partition, known: OutgoingTransaction, cluster: str) -> list[str] | None:
    if known.participants is None:
        return None
    return list(known.participants.get(cluster, (partition.topic,)))


def _decided(state: PartitionState) -> Position:
    """The position of the first undecided entry, or the end of the log."""
    if state.max_read_offset < state.end_offset:
        return state.table.position_of(state.max_read_offset)
    end = state.table.next_position()
    assert end is not None  # a partition that serves has an open ledger
    return end


async def confirm_replicated(partition: Partition, cluster: str, numbers: list[int]) -> None:
    """Note that a cluster has received all entries of these transactions from here."""
    await _ask(partition, ConfirmReplicated(cluster, numbers))


async def _ask(partition: Partition, command: NameParticipants | ConfirmReplicated) -> None:
    reply = await partition.runtime.ask(command)
    if isinstance(reply, Refusal):
        raise RemoteError(reply.reason, reply.message)


def handlers(
    partition: Partition, replication: OutgoingReplication
) -> dict[type[Message], Handler]:
    """The requests about transactions that go to other clusters."""
    named = partial(name_participants, partition, replication)
    return {partition_messages.NameParticipants: named}
