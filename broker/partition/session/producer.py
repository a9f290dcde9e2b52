"""A producer of one client connection, and the table of a connection's producers."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

from velaray.actors.machine import Refusal
from velaray.actors.partition.machine import Damaged
from velaray.actors.partition.producers import AccessMode
from velaray.broker.partition.replicated_publish import Receipts
from velaray.broker.partition.session.protocols import Client, HostedPartition
from velaray.broker.wire_errors import code_of_reason
from velaray.events.ids import Position
from velaray.topology.flow import Flow
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.commands import Send, send_receipt
from velaray.wire.replication import PROOF, source_of
from velaray.wire.send_runs import SendRun, send_receipts

CLOSED_KEPT = 1000
"""How many closed producers a connection remembers. Late sends of these are ignored; a send of any
other unknown producer closes the connection."""


class ProducerOwner(Protocol):
    """The handlers of the connection that a producer belongs to."""

    client: Client

    def forget(self, producer: ConnectedProducer) -> None:
        """Remove a producer that the registry has replaced."""
        ...

    def fence(self, producer: ConnectedProducer) -> None:
        """Remove and close a producer."""
        ...

    def promote(self, producer: ConnectedProducer) -> None:
        """Make a waiting producer the exclusive one."""
        ...

    def close(self, producer: ConnectedProducer) -> None:
        """Close a producer. The answer to its next attempt says why."""
        ...

    def send_home(self, producer: ConnectedProducer) -> None:
        """Close a producer after its last receipt. The answer to its next attempt says where it is
        served, or why it isn't."""
        ...

    def abandon(self, producer: ConnectedProducer) -> None:
        """Close a producer whose partition has ended."""
        ...


class ConnectedProducer:
    """A producer of a client connection."""

    def __init__(
        self, owner: ProducerOwner, partition: HostedPartition, producer_id: int, name: str
    ) -> None:
        client = owner.client
        self.owner = owner
        self.partition = partition
        self.producer_id = producer_id
        self.name = name
        self.connection = client.connection
        self.client_version = client.info.version
        self.source = source_of(name)
        """The cluster whose replicator it is; None for any other producer."""
        self.diverted = self.source is not None or partition.log.sealing is not None
        """Whether its entries aren't stored as they were sent."""
        self.encrypts = False
        """Whether it encrypts its messages, as its client says."""
        self.may_send_plain = self.source is not None or client.info.is_system
        """Whether it needn't encrypt where a policy asks for that: replicators copy what another
        cluster has accepted."""
        self.receipts = Receipts(producer_id, lambda frame: client.connection.write(frame))
        """The receipts of a replicator."""
        self.replicated: Position | None = None
        """The position of its newest entry in the cluster ``source``; None if it has sent none."""
        self.refused = ""
        """The reason why a replicator's entries are refused from now on. After a refused entry the
        later ones must not be stored, because that would change their order."""
        self.connected_ms = partition.actor_system.clock_ms()
        self.traffic = Flow(self.connected_ms, partition.publishing.published)
        self.metadata: dict[str, str] = {}
        self.access = AccessMode.SHARED
        self.request_id = 0
        self.generated = False
        """Whether the partition chose the name."""
        self.reconnected = False
        """Whether the client was connected as this producer before. It may hold entries without
        receipts."""
        self.exact = False
        """Whether an entry is a duplicate only if its very sequence id was stored."""
        self.ready = False
        """Whether the client has the answer that the producer is connected."""
        self.schema_version: int | None = None
        self.held: deque[tuple[Send, bytes]] = deque()
        """Entries that wait until a transaction is known to be open: its own and later ones."""
        self.releasing: asyncio.Task[None] | None = None
        """The task that publishes them."""

    def describe(self, command: pb.CommandProducer) -> None:
        """Take over what the client's command says about the producer."""
        self.request_id = command.request_id
        self.metadata = {item.key: item.value for item in command.metadata if item.key != PROOF}
        self.access = AccessMode(command.producer_access_mode)
        self.generated = not command.producer_name or not command.user_provided_producer_name
        self.exact = self.generated or self.owner.client.info.sends_out_of_order
        self.reconnected = reconnected(command)
        self.encrypts = command.encrypted

    def stored(self, send: Send, position: Position) -> None:
        """Send the receipt of a durable entry; `NOWHERE` is the position of a duplicate."""
        _, number, _, highest, _, _, _, _ = send
        if self.source is not None:
            self.receipts.add(number, position)
        else:
            ledger_id, entry_id = position
            receipt = send_receipt(self.producer_id, number, ledger_id, entry_id, highest)
            self.connection.write(receipt)

    def stored_run(self, run: SendRun, first: Position) -> None:
        """Send the receipts of durable entries; ``first`` is the position of the first one."""
        ledger_id, entry_id = first
        number, count = run.first_sequence_id, len(run.entries)
        self.connection.write(send_receipts(self.producer_id, number, ledger_id, entry_id, count))

    def refuse(self, send: Send, refusal: Refusal) -> None:
        """Answer an entry that the partition refused."""
        self.send_error(send.sequence_id, code_of_reason(refusal.reason), refusal.message)

    def send_error(self, sequence_id: int, code: pb.ServerError, message: str) -> None:
        """Answer an entry with an error, after the receipts of earlier ones."""
        if self.partition.geo.fence.up:
            return  # the producer is closed: its client sends all this again, to another cluster
        self.receipts.send()
        self.connection.send(
            pb.CommandSendError(
                producer_id=self.producer_id,
                sequence_id=sequence_id,
                error=code,
                message=message,
            )
        )

    def refuse_in_turn(self, send: Send, code: pb.ServerError, problem: str) -> None:
        """Refuse an entry after all earlier ones are answered."""
        sequence_id = send.sequence_id

        def release(reply: Refusal, effects: object) -> None:
            self.send_error(sequence_id, code, reply.message)

        self.partition.log.runtime.submit(Damaged(problem), release)


class ProducerTable:
    """The producers of one connection, by their ids."""

    def __init__(self) -> None:
        self.connected: dict[int, ConnectedProducer] = {}
        self.closed: dict[int, None] = {}
        """The producers that were closed last, oldest first."""

    def has(self, producer: ConnectedProducer) -> bool:
        """Whether the producer is connected."""
        return self.connected.get(producer.producer_id) is producer

    def add(self, producer: ConnectedProducer) -> None:
        """Add a producer that the partition has accepted."""
        self.connected[producer.producer_id] = producer
        self.closed.pop(producer.producer_id, None)
        producer.partition.clients.add_producer(producer)

    def remove(self, producer: ConnectedProducer) -> None:
        """Remove a producer; its late sends are ignored."""
        if self.has(producer):
            del self.connected[producer.producer_id]
            producer.partition.clients.remove_producer(producer)
            self.closed[producer.producer_id] = None
            if len(self.closed) > CLOSED_KEPT:
                del self.closed[next(iter(self.closed))]


def reconnected(command: pb.CommandProducer) -> bool:
    """Whether this producer was connected before. The command then contains what the answer to the
    first one did: the generated name, or the topic epoch."""
    generated = command.producer_name and not command.user_provided_producer_name
    return bool(generated) or command.HasField("topic_epoch")
