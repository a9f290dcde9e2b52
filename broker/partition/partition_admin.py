"""The calls that read and change a partition's log, producers and transactions.

Calls that change something are idempotent, or answer NOT_FOUND. Over Ray:
``handle.call.remote("terminate", {})``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from velaray.actors.machine import Reason, Refusal
from velaray.actors.partition.machine import Terminate
from velaray.actors.partition.producer_transfer import AdoptProducers, plain_rows, read_rows
from velaray.actors.partition.state import PartitionState
from velaray.actors.runtime import Runtime
from velaray.broker.partition import messages as m
from velaray.broker.partition.compactor import Compactor
from velaray.broker.partition.offloader import Offloader
from velaray.broker.partition.sealing import Sealing, refuse_sealed
from velaray.events.ids import Position, TransactionId
from velaray.topology.messages import Message
from velaray.topology.rpc import RemoteError


class Log(Protocol):
    """What these calls need of the partition's log."""

    partition_index: int

    @property
    def end_offset(self) -> int:
        """The offset after the newest durable entry."""
        ...


class Transactions(Protocol):
    """Ends transactions."""

    async def end_transaction(
        self,
        transaction: TransactionId,
        subscription: str | None,
        *,
        commit: bool,
        alone: bool = False,
    ) -> tuple[str, ...]:
        """Apply a verdict durably."""
        ...


class Partition(Protocol):
    """What these calls need of a partition."""

    runtime: Runtime[PartitionState]
    compactor: Compactor
    sealing: Sealing | None
    offloader: Offloader

    @property
    def log(self) -> Log:
        """The log."""
        ...

    @property
    def transactions(self) -> Transactions:
        """Ends transactions."""
        ...

    def end_topic(self, end_offset: int) -> None:
        """Notify subscriptions and producers that the topic is terminated durably."""


def _id(partition: Partition, position: Position) -> list[int]:
    return [position.ledger_id, position.entry_id, partition.log.partition_index]


async def terminate(partition: Partition, request: m.Terminate) -> m.Id:
    """Terminate the topic, so that it accepts no more messages; return the last message id.
    Idempotent."""
    reply = await partition.runtime.ask(Terminate())
    if isinstance(reply, Refusal):
        raise RemoteError(reply.reason, reply.message)
    partition.end_topic(reply.end_offset)
    return _id(partition, reply.last_position)


async def compact(partition: Partition, request: m.Compact) -> None:
    """Start a compaction. Raises `RemoteError` (CONFLICT) while one runs."""
    refuse_sealed(partition.sealing, "it can't be compacted")
    partition.compactor.trigger()


async def compaction_status(partition: Partition, request: m.CompactionStatus) -> dict[str, str]:
    """The status of the last compaction: NOT_RUN, RUNNING, SUCCESS or ERROR, and its error."""
    return partition.compactor.described()


async def offload(partition: Partition, request: m.Offload) -> None:
    """Start an offload. Raises as `Offloader.trigger`."""
    partition.offloader.trigger(request.before, request.kept_bytes)


async def offload_status(partition: Partition, request: m.OffloadStatus) -> dict[str, Any]:
    """The status of the last offload."""
    return partition.offloader.described()


async def last_message_id(partition: Partition, request: m.LastMessageId) -> m.Id:
    """The last entry's id; entry id -1 if there is none."""
    table = partition.runtime.state.table
    return _id(partition, table.position_before(partition.log.end_offset))


async def end_transaction(partition: Partition, request: m.EndTransaction) -> list[str]:
    """Apply a coordinator's verdict to this partition or one of its subscriptions; return the
    clusters that need the names of its participants."""
    transaction = TransactionId(request.coordinator, request.sequence)
    clusters = await partition.transactions.end_transaction(
        transaction, request.subscription, commit=request.commit, alone=request.alone
    )
    return list(clusters)


async def newest_origins(partition: Partition, request: m.Origins) -> dict[str, list[int]]:
    """The newest durable position from each cluster that replicates to this one."""
    return await partition.runtime.read(
        lambda state: {
            cluster: list(origin.last) for cluster, origin in state.origins.by_cluster.items()
        }
    )


async def export_producers(partition: Partition, request: m.ExportProducers) -> list[list[Any]]:
    """The state of every producer, for a partition of another cluster to adopt."""
    return await partition.runtime.read(plain_rows)


async def adopt_producers(partition: Partition, request: m.AdoptProducers) -> int:
    """Take over the producer state in ``rows`` of `export_producers`, or that of the replicated
    entries of cluster ``origin``. Returns the number of producers whose state advanced.

    It is idempotent and never lowers a sequence id.
    """
    try:
        rows = read_rows(request.rows)
    except (TypeError, ValueError) as error:
        raise RemoteError(Reason.INVALID, f"rows of producers: {error}") from error
    reply = await partition.runtime.ask(AdoptProducers(rows, request.origin))
    if isinstance(reply, Refusal):
        raise RemoteError(reply.reason, reply.message)
    adopted: int = reply.producers
    return adopted


HANDLERS: dict[type[Message], Callable[[Partition, Any], Awaitable[Any]]] = {
    m.Terminate: terminate,
    m.Compact: compact,
    m.CompactionStatus: compaction_status,
    m.Offload: offload,
    m.OffloadStatus: offload_status,
    m.LastMessageId: last_message_id,
    m.EndTransaction: end_transaction,
    m.Origins: newest_origins,
    m.ExportProducers: export_producers,
    m.AdoptProducers: adopt_producers,
}
