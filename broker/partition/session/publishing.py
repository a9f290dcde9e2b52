"""Receiving the entries of producers: checks, transactions, and entries of replicators."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial

from velaray.actors.catalog.policies import ENCRYPTION_REQUIRED
from velaray.actors.machine import Reason
from velaray.broker.partition.replicated_publish import read_replicated, replicated_publish
from velaray.broker.partition.sealing import NotErasable
from velaray.broker.partition.session.producer import ConnectedProducer, ProducerTable
from velaray.broker.partition.session.protocols import Client
from velaray.broker.partition.session.requests import CALL_ERRORS
from velaray.broker.wire_errors import code_of
from velaray.events.ids import TransactionId
from velaray.journal.errors import JournalError
from velaray.topology.rpc import RemoteError, reason_of
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.commands import Send, send_receipt
from velaray.wire.errors import CorruptEntryError
from velaray.wire.messages import is_encrypted
from velaray.wire.plausible import fault_of
from velaray.wire.send_runs import SendRun
from velaray.wire.stamping import labelled

logger = logging.getLogger("velaray")

_MUST_ENCRYPT = f"Messages must be encrypted (policy {ENCRYPTION_REQUIRED} of the namespace)"
_FINAL = (Reason.NOT_FOUND, Reason.CONFLICT, Reason.NOT_ALLOWED)
"""A coordinator's reasons for refusing an entry that no later attempt changes."""


def _are_plausible(run: SendRun) -> bool:
    """Whether no SEND of the run contradicts its entry."""
    send = Send(run.producer_id, run.first_sequence_id, run.messages)
    return not any(fault_of(send, entry) for entry in run.entries)


class PublishHandlers:
    """Passes the entries of one connection's producers to their partitions."""

    def __init__(self, client: Client, producers: ProducerTable) -> None:
        self._client = client
        self._producers = producers

    def on_send(self, send: Send, entry: bytes | None) -> None:
        """Publish an entry."""
        producer = self._producers.connected.get(send.producer_id)
        if producer is None or not producer.ready or entry is None:
            if send.producer_id not in self._producers.closed:
                self._client.connection.close()
            return
        fault = fault_of(send, entry)
        if fault:
            problem = f"producer {producer.name!r} sent an invalid entry: {fault}"
            self._refuse(producer, send, pb.NotAllowedError, problem)
            return
        if producer.held or not (send.txn_id is None or self._is_open(producer, send.txn_id)):
            self._hold(producer, send, entry)
        else:
            self._publish(producer, send, entry)

    def on_sends(self, run: SendRun) -> bool:
        """Publish entries at once; false: each must be published by itself."""
        producer = self._producers.connected.get(run.producer_id)
        if producer is None or not producer.ready or producer.held or producer.source is not None:
            return False
        policies = producer.partition.publishing.policies
        limit = policies.max_message_size
        if limit and max(map(len, run.entries)) > limit:
            return False
        if policies.encryption_required and not all(map(is_encrypted, run.entries)):
            return False
        if run.messages != 1 and not _are_plausible(run):
            return False
        return producer.partition.runs.publish_run(producer, run)

    def on_corrupt_entry(self, error: CorruptEntryError) -> None:
        """Refuse an entry that was damaged on its way, and no other."""
        send = error.command
        producer = self._producers.connected.get(send.producer_id)
        if producer is not None:
            producer.refuse_in_turn(send, pb.ChecksumError, str(error))
        elif send.producer_id not in self._producers.closed:
            self._client.connection.close()

    # -- entries of transactions ---------------------------------------------------

    def _is_open(self, producer: ConnectedProducer, txn_id: tuple[int, int]) -> bool:
        return producer.partition.publishing.admission.is_open(TransactionId(*txn_id))

    def _hold(self, producer: ConnectedProducer, send: Send, entry: bytes) -> None:
        """Keep an entry until its transaction is known to be open; later entries wait behind it."""
        producer.held.append((send, entry))
        producer.partition.publishing.pending_bytes += len(entry)
        if len(producer.held) == 1:
            producer.releasing = self._client.spawn(self._release(producer))

    async def _release(self, producer: ConnectedProducer) -> None:
        publishing, held = producer.partition.publishing, producer.held
        try:
            while held:
                send, entry = held[0]
                refusal = await self._refusal(producer, send)
                sealed = None if refusal is not None else await self._sealed(producer, entry)
                held.popleft()
                publishing.pending_bytes -= len(entry)
                if not self._producers.has(producer):
                    continue  # it was closed meanwhile
                if sealed is not None and self._problem(producer, entry) is None:
                    publishing.publish(producer, send, sealed)
                elif refusal is None:
                    self._publish(producer, send, entry)
                else:
                    producer.refuse_in_turn(send, *refusal)
        except JournalError as error:
            # An entry behind this one would make it a duplicate when it is sent again. So the
            # client must send all of them again.
            logger.error("%s: the keyring can't be used: %s", producer.partition.key, error)
            self._client.connection.close()
        finally:
            publishing.pending_bytes -= sum(len(entry) for _, entry in held)
            held.clear()

    async def _sealed(self, producer: ConnectedProducer, entry: bytes) -> bytes | None:
        """The entry as it is stored; None if the topic doesn't seal it, or refuses it.
        Raises `JournalError` if the keyring can't be used."""
        sealing = producer.partition.log.sealing
        if sealing is None or producer.source is not None:
            return None
        try:
            return await sealing.seal(entry)
        except NotErasable:
            return None

    async def _refusal(
        self, producer: ConnectedProducer, send: Send
    ) -> tuple[pb.ServerError, str] | None:
        """Return why the entry's transaction doesn't accept it; None if it does."""
        if send.txn_id is None:
            return None
        try:
            admission = producer.partition.publishing.admission
            await admission.pass_through(TransactionId(*send.txn_id))
        except CALL_ERRORS as error:
            # Clients give up on this code only; on others they send the entry again.
            final = isinstance(error, RemoteError) and error.kind in _FINAL
            return (pb.NotAllowedError if final else code_of(error)), reason_of(error)
        return None

    # -- publishing ----------------------------------------------------------------

    def _problem(
        self, producer: ConnectedProducer, entry: bytes
    ) -> tuple[pb.ServerError, str] | None:
        """Return why the topic's policies refuse an entry; None if they accept it."""
        policies = producer.partition.publishing.policies
        limit = policies.max_message_size
        if limit and len(entry) > limit:
            problem = f"the topic takes messages of at most {limit} bytes, not {len(entry)}"
            return pb.NotAllowedError, problem
        if policies.encryption_required and not (producer.may_send_plain or is_encrypted(entry)):
            return pb.MetadataError, _MUST_ENCRYPT  # Pulsar's code
        return None

    def _publish(self, producer: ConnectedProducer, send: Send, entry: bytes) -> None:
        publishing = producer.partition.publishing
        problem = self._problem(producer, entry)
        if problem is not None:
            self._refuse(producer, send, *problem)
        elif producer.diverted:
            self._publish_diverted(producer, send, entry)
        else:
            if send.txn_id is not None:
                entry = self._labelled(producer, send.txn_id, entry)
            publishing.publish(producer, send, entry)

    def _publish_diverted(self, producer: ConnectedProducer, send: Send, entry: bytes) -> None:
        """Publish an entry of a replicator, or one that is stored sealed."""
        sealing = producer.partition.log.sealing
        if sealing is None:
            assert producer.source is not None
            self._publish_replicated(producer, producer.source, send, entry)
            return
        try:
            if producer.source is not None:
                raise NotErasable("a namespace whose messages can be erased takes no replicas")
            sealed = sealing.sealed(entry)
        except NotErasable as error:
            self._refuse(producer, send, pb.NotAllowedError, str(error))
            return
        if sealed is None:
            self._hold(producer, send, entry)
        else:
            producer.partition.publishing.publish(producer, send, sealed)

    def _labelled(
        self, producer: ConnectedProducer, txn_id: tuple[int, int], entry: bytes
    ) -> bytes:
        """The entry of a transaction, with its id if replicators need that."""
        if not producer.partition.log.runtime.state.outgoing.replicators:
            return entry
        return labelled(entry, TransactionId(*txn_id))

    def _refuse(
        self, producer: ConnectedProducer, send: Send, code: pb.ServerError, problem: str
    ) -> None:
        """Refuse an entry; of a replicator, also all entries that it sends later."""
        if producer.source is not None:
            consequence = f"an earlier entry was refused: {problem}"
            producer.refused = producer.refused or consequence
        producer.refuse_in_turn(send, code, problem)

    def _publish_replicated(
        self, producer: ConnectedProducer, source: str, send: Send, entry: bytes
    ) -> None:
        partition = producer.partition
        try:
            metadata, start = read_replicated(entry)
            if metadata.HasField("marker_type"):
                handler = partition.geo.marker_handler(metadata.marker_type)
                handle = partial(handler, source, entry[start:])
                self._client.spawn(self._handle_marker(producer, send, handle))
                return
            if producer.refused:
                raise RemoteError(Reason.UNAVAILABLE, producer.refused)
            after = producer.replicated
            command = replicated_publish(
                partition.log, source, metadata, entry, len(entry) - start, after
            )
        except RemoteError as error:
            self._refuse(producer, send, code_of(error), error.message)
        else:
            assert command.replicated is not None
            producer.replicated = command.replicated.position
            deliver_at = max(metadata.deliver_at_time, 0)
            partition.publishing.submit(producer, send, command, entry, deliver_at)

    async def _handle_marker(
        self, producer: ConnectedProducer, send: Send, handle: Callable[[], Awaitable[None]]
    ) -> None:
        """Answer a marker with a receipt once its effect is durable, or with an error."""
        try:
            await handle()
        except CALL_ERRORS as error:
            producer.send_error(send.sequence_id, code_of(error), reason_of(error))
        else:
            receipt = send_receipt(producer.producer_id, send.sequence_id, -1, -1)
            self._client.connection.write(receipt)
