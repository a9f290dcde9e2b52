"""The clients of runs of several clusters: the usual ones, and producers that may move.

A script that leaves one cluster continues at another one with its state, like an application whose
service URL changes.
"""

from __future__ import annotations

from typing import Any

from tests.sim.tap import TappedConnection, bits
from tests.sim.workload import ProducerScript
from velaray.client.producer import Producer
from velaray.wire import pulsar_pb2 as pb


class MovingProducer(ProducerScript):
    """A producer that can be stopped early, with all receipts, and may continue later.

    One message in ``local`` isn't replicated.
    """

    local = 0

    def depart(self) -> None:
        """Send nothing more."""
        self._ended = True

    def arrive(self) -> None:
        """Continue, at the cluster of the next run."""
        self._ended = False

    async def _publish(
        self, producer: Producer, content: str, key: str | None, deliver_at: int | None
    ) -> Any:
        alone = self.local > 0 and self._rng.randrange(self.local) == 0
        if alone:
            self._shared.history.add("local", content=content)
        return await producer.send(
            content.encode(), partition_key=key, deliver_at=deliver_at, disable_replication=alone
        )


class GeoConnection(TappedConnection):
    """Notes every acknowledgement that the broker confirms (``ack durable``), besides what a
    `TappedConnection` notes."""

    def _note_durable(self, answer: pb.CommandAckResponse) -> None:
        _, asked = self._asked.get((answer.consumer_id, answer.request_id), (0.0, None))
        if asked is not None:
            self.history.add(
                "ack durable",
                connection=self.number,
                consumer=answer.consumer_id,
                cumulative=asked.ack_type == pb.CommandAck.Cumulative,
                entries=[
                    (at.ledgerId, at.entryId, bits(at.ack_set) if any(at.ack_set) else None)
                    for at in asked.message_id
                ],
            )
        super()._note_durable(answer)
