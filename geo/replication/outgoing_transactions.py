"""Calls of replicators and coordinators about transactions that go to other clusters.

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
from velaray.broker.partition.geo_replication import Method, OutgoingReplication
from velaray.events.ids import Position, TransactionId
from velaray.topology.rpc import RemoteError

ResultT = TypeVar("ResultT")

AT_ONCE = 1000
"""The most transactions in one answer."""


class Partition(Protocol):
    """What these calls need of the partition."""

    topic: str
    runtime: Runtime[PartitionState]

    async def read_certain(self, query: Callable[[Any], ResultT]) -> ResultT:
        """Read the state of the newest activation."""


async def name_participants(
    partition: Partition, replication: OutgoingReplication, args: dict[str, Any]
) -> None:
    """Store the partitions of a committed transaction whose entries go to the same clusters, and
    notify replicators. They are durable when this returns."""
    transaction = TransactionId(args["coordinator"], args["sequence"])
    await _ask(partition, NameParticipants(transaction, args["clusters"]))
    await partition.read_certain(lambda state: None)  # perhaps there was nothing to write
    replication.tell_transactions()


async def committed(partition: Partition, cluster: str, args: dict[str, Any]) -> dict[str, Any]:
    """The durable transactions for a cluster after number ``after``: number, transaction, offset
    and position of the last entry, and participants (None until they are known). Also the
    participants of those ``unnamed`` transactions that are known by now.

    ``complete`` is the end of the log that these transactions cover; None if there are more.
    """
    after, unnamed = args["after"], args["unnamed"]

    def look(state: PartitionState) -> dict[str, Any]:
        found = list(islice(state.outgoing.after(after, cluster), AT_ONCE))
        named = []
        for number in unnamed:
            known = state.outgoing.by_number.get(number)
            if known is not None and known.participants is not None:
                named.append([number, _topics(partition, known, cluster)])
        return {
            "transactions": [
                [
                    each.number,
                    list(each.transaction),
                    each.last,
                    list(each.position),
                    _topics(partition, each, cluster),
                ]
                for each in found
            ],
            "named": named,
            "complete": None if len(found) == AT_ONCE else list(_decided(state)),
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
    return state.table.next_position()


async def confirm_replicated(partition: Partition, cluster: str, numbers: list[int]) -> None:
    """Note that a cluster has received all entries of these transactions from here."""
    await _ask(partition, ConfirmReplicated(cluster, numbers))


async def _ask(partition: Partition, command: NameParticipants | ConfirmReplicated) -> None:
    reply = await partition.runtime.ask(command)
    if isinstance(reply, Refusal):
        raise RemoteError(reply.reason, reply.message)


def methods(partition: Partition, replication: OutgoingReplication) -> dict[str, Method]:
    """The calls about transactions that go to other clusters."""
    return {"name_participants": partial(name_participants, partition, replication)}
