"""Producers that number their messages as Pulsar's C++ client does.

They have no name of their own. As long as one has no receipt, it restarts its sequence ids at each
reconnect from the last one that the server reports, and keeps what it has sent under the old ids.
It sends only the first id of a batch. The script closes each producer after a few messages and
begins a new one, so that many lose their partition before the first receipt.
"""

from __future__ import annotations

import asyncio
from typing import Any

from tests.sim.workload import ProducerScript
from velaray.aio import Client
from velaray.client.batcher import Entry
from velaray.client.exceptions import TopicTerminated
from velaray.client.partition_producer import PartitionProducer
from velaray.client.pending_entries import SentEntry
from velaray.client.producer import Producer
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.commands import entry_header

MOST = 8
"""The most messages that a producer sends."""
RUN_S = 24.0
"""The approximate duration of all of them."""


class RestartingProducer(PartitionProducer):
    """A partition's producer with the sequence ids of the C++ client."""

    def _registered(self, connection: Any, answer: pb.CommandProducerSuccess) -> None:
        if self.last_sequence_id == -1:
            self.last_sequence_id = answer.last_sequence_id
            self._batches.next_sequence_id = answer.last_sequence_id + 1
        super()._registered(connection, answer)

    def _transmit(self, entry: Entry) -> None:
        connection, self._connection = self._connection, None
        super()._transmit(entry)
        self._connection = connection
        sent = self._pending.entries[-1]
        sent.header = _with_the_first_id(sent)
        if connection is not None:
            connection.send_entry(sent.header, entry.data)


def _with_the_first_id(sent: SentEntry) -> bytes:
    entry = sent.entry
    command = pb.CommandSend(producer_id=sent.producer_id, sequence_id=entry.first_sequence_id)
    command.num_messages = entry.messages
    return entry_header(command, len(entry.data))


class RestartingScript(ProducerScript):
    """Sends numbered messages by one such producer after the other."""

    async def _create(self, client: Client) -> Producer | None:
        plan = self._plan
        try:
            producer = await client.create_producer(
                plan.topic, send_timeout_millis=plan.timeout_ms, batching_enabled=plan.batching
            )
        except TopicTerminated:
            return None
        for part in producer._parts:
            part.__class__ = RestartingProducer
        return producer

    async def _produce(self, producer: Producer) -> None:
        sending = []
        for _ in range(self._rng.randint(2, MOST)):
            sending.append(asyncio.get_running_loop().create_task(self._send(producer)))
            if not self._shared.draining.is_set() and self._rng.random() < 0.5:
                await asyncio.sleep(self._rng.random() * RUN_S / self._plan.count)
        await asyncio.wait(sending)
