"""Target of a replicator: a producer of a partition, over the wire protocol."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from velaray.client.connection import Connection
from velaray.client.exceptions import NotConnected, VelarayError, from_server
from velaray.events.ids import MessageId, TopicName
from velaray.geo.replication.replicator_connections import Way
from velaray.geo.replication.replicator_settings import CannotReplicate
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.commands import entry_header, send_header
from velaray.wire.messages import build_entry
from velaray.wire.replication import DATA_ID, PROOF, Marker, replicator_name

PRODUCER_ID = 1
REQUEST_TIMEOUT_S = 10.0

OnConfirmed = Callable[[int, bool], None]
"""Called with the number of the oldest unconfirmed entries that are durable there, and whether they
were duplicates."""


class Target:
    """One producer on one connection."""

    def __init__(
        self,
        way: Way,
        topic: TopicName,
        source: str,
        cluster: str,
        epoch: int,
        on_confirmed: OnConfirmed,
        on_lost: Callable[[Exception], None],
        data_id: str = "",
        proofs: str = "",
    ) -> None:
        """``topic`` is the partition's. Entries go from cluster ``source``, whose data has this id
        (if known), to ``cluster``, which accepts them for one of these ``proofs``. A target with a
        higher ``epoch`` replaces one whose lost connection wasn't noticed there yet."""
        self._way = way
        self._topic = topic
        self._source = source
        #: The name of the target's cluster.
        self.cluster = cluster
        self._name = replicator_name(source, cluster)
        self._epoch = epoch
        self._on_confirmed = on_confirmed
        self._on_lost = on_lost
        self._told = {DATA_ID: data_id} if data_id else {}
        if proofs:
            self._told[PROOF] = proofs
        self._connection: Connection | None = None
        self._unconfirmed: deque[int] = deque()
        self._markers: dict[int, asyncio.Future[None]] = {}
        self._next = 0
        self._closed = False

    @property
    def server_version(self) -> str:
        """The server version that the cluster announced; empty before `open`."""
        return "" if self._connection is None else self._connection.server_version

    @property
    def is_velaray(self) -> bool:
        """Whether the cluster runs velaray, and so takes markers of velaray's own."""
        return self.server_version.startswith("velaray")

    async def open(self) -> None:
        """Register. Raises `VelarayError`, `CannotReplicate` and what the way raises."""
        connection = await self._way.connect()
        connection.producers[PRODUCER_ID] = self
        command = pb.CommandProducer(
            topic=str(self._topic),
            producer_id=PRODUCER_ID,
            producer_name=self._name,
            user_provided_producer_name=True,
            epoch=self._epoch,
            metadata=[pb.KeyValue(key=key, value=value) for key, value in self._told.items()],
        )
        answer = await connection.request(command, REQUEST_TIMEOUT_S)
        self._next = max(answer.last_sequence_id + 1, 0)
        self._connection = connection

    async def register(
        self, command: pb.CommandGetOrCreateSchema
    ) -> pb.CommandGetOrCreateSchemaResponse:
        """Register a schema there; the answer may be a refusal. Raises `VelarayError`."""
        if self._connection is None:
            raise NotConnected(f"not connected to {self.cluster}")
        answer = await self._connection.request(command, REQUEST_TIMEOUT_S)
        assert isinstance(answer, pb.CommandGetOrCreateSchemaResponse)
        return answer

    def send(self, entry: bytes, messages: int, *, is_chunk: bool) -> None:
        """Send an entry. It is confirmed unless the connection breaks first."""
        number, size = self._next, len(entry)
        if is_chunk:
            command = pb.CommandSend(producer_id=PRODUCER_ID, sequence_id=number, is_chunk=True)
            header = entry_header(command, size)
        else:
            header = send_header(PRODUCER_ID, number, messages, size)
        self._unconfirmed.append(number)
        self._send(header, entry)

    async def send_marker(self, kind: Marker, payload: bytes, now_ms: int) -> None:
        """Send a marker; its effect is durable there when this returns.

        Raises `VelarayError`; `CannotReplicate` if it is refused.
        """
        if self._closed or self._connection is None:
            raise NotConnected(f"not connected to {self.cluster}")
        metadata = pb.MessageMetadata(
            producer_name=self._name,
            sequence_id=self._next,
            publish_time=now_ms,
            marker_type=kind,
            replicated_from=self._source,
        )
        number = self._next
        taken = self._markers[number] = asyncio.get_running_loop().create_future()
        entry = build_entry(metadata, payload)
        command = pb.CommandSend(producer_id=PRODUCER_ID, sequence_id=number, marker=True)
        self._send(entry_header(command, len(entry)), entry)
        try:
            await taken
        finally:
            self._markers.pop(number, None)

    def _send(self, header: bytes, entry: bytes) -> None:
        self._next += 1
        if self._connection is not None:
            self._connection.send_entry(header, entry)

    def on_receipt(self, receipt: pb.CommandSendReceipt) -> None:
        """Confirm an entry and all entries before it, which are stored in order. Markers are
        answered when they are applied."""
        number = receipt.sequence_id
        marker = self._markers.get(number)
        if marker is not None:
            if not marker.done():
                marker.set_result(None)
            return
        if number not in self._unconfirmed:
            return  # for a marker whose caller is gone
        confirmed = 1
        while self._unconfirmed.popleft() != number:
            confirmed += 1
        self._on_confirmed(confirmed, MessageId.from_proto(receipt.message_id).entry_id < 0)

    def on_send_error(self, error: pb.CommandSendError) -> None:
        """Stop at a refused entry, to keep the order. A refused marker fails alone."""
        refusal = from_server(error.error, error.message)
        problem = f"{type(refusal).__name__}: {refusal}"
        marker = self._markers.get(error.sequence_id)
        if marker is None:
            self._fail(CannotReplicate(f"{self.cluster} refuses an entry: {problem}"))
        elif not marker.done():
            marker.set_exception(CannotReplicate(f"{self.cluster} refuses a marker: {problem}"))

    def on_closed(self, connection: Connection) -> None:
        """The cluster closed the producer, or the connection is lost."""
        self._fail(NotConnected(f"the connection to {self.cluster} is lost"))

    def _fail(self, error: VelarayError | CannotReplicate) -> None:
        if self._closed:
            return
        self.abort()
        self._on_lost(error)

    def abort(self) -> None:
        """Cut the connection; no callback follows."""
        self._closed = True
        self._unconfirmed.clear()
        for marker in self._markers.values():
            if not marker.done():
                marker.set_exception(NotConnected(f"the connection to {self.cluster} is lost"))
        self._way.abort()
